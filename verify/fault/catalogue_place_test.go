package fault

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// scored returns eight responses with holes, whose KL is not 0 outside the mask, the token rewards with the score in a column that a program
// chooses, and group advantages of scores from which a program takes a sum of the KL.
func scored(column func(cells []int) int, sum func(kl, m []float64) float64) *dump.Batch {
	g := rand.New(rand.NewPCG(2, 9))
	const rows, cols, beta = 8, 9, 0.1
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
		Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	single := func() float64 { return float64(float32(g.NormFloat64())) }
	kl, rewards, scores, group, adv := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows), make([]float64, rows), make([]float64, rows)
	net := make([]float64, rows)
	for r := range rows {
		scores[r], group[r] = single(), float64(r/4)
		m := make([]float64, cols)
		var cells []int
		for t := range cols {
			i := r*cols + t
			kl[i] = single()
			if b.Mask[i] = t < 8-r%3 && t != 3 && t != 4; b.Mask[i] {
				m[t], rewards[i] = 1, float64(float32(-beta*kl[i]))
				cells = append(cells, t)
			}
		}
		if r == 5 { // a response of one token
			for t := range cols {
				b.Mask[r*cols+t], rewards[r*cols+t], m[t] = t == 0, 0, 0
			}
			m[0], rewards[r*cols] = 1, float64(float32(-beta*kl[r*cols]))
			cells = []int{0}
		}
		i := r*cols + column(cells)
		rewards[i] = float64(float32(rewards[i] + scores[r]))
		net[r] = scores[r] - beta*sum(kl[r*cols:(r+1)*cols], m)
	}
	for r := range rows {
		mean := 0.0
		for j := range 4 {
			mean += net[r/4*4+j] / 4
		}
		adv[r] = float64(float32(net[r] - mean))
	}
	for name, x := range map[string][]float64{"kl": kl, "token_rewards": rewards} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
	}
	for name, x := range map[string][]float64{"scores": scores, "group_id": group, "advantages": adv} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: x, Type: format.F32}
	}
	return b
}

// A score in another column, and a KL that is summed without the mask, are named by what they are, and not by the mask of the loss.
func TestPlacesOfRewards(t *testing.T) {
	under := func(check, profile string, options map[string]string, b *dump.Batch) *stage.Outcome {
		p, _, err := convention.Lookup(profile)
		require.NoError(t, err)
		set := convention.FromProfile(p)
		for name, x := range options {
			set = set.With(name, parsed(name, x), "test")
		}
		return stage.Judge(stage.Find(check), b, set)
	}
	inMask := func(kl, m []float64) (s float64) {
		for t := range kl {
			s += kl[t] * m[t]
		}
		return s
	}
	whole := func(kl, _ []float64) (s float64) {
		for t := range kl {
			s += kl[t]
		}
		return s
	}
	last := func(cells []int) int { return cells[len(cells)-1] }
	for words, column := range map[string]func(cells []int) int{
		"one token before the last": func(cells []int) int { return cells[max(len(cells)-2, 0)] },
		"number of tokens, less 1":  func(cells []int) int { return len(cells) - 1 },
		"column 1 of every row":     func([]int) int { return 1 },
		"row 0 in column 2":         func(cells []int) int { return cells[len(cells)/3] },
		"":                          last,
	} {
		o := under("reward/token", "verl-ppo@0.9", map[string]string{"kl.place": "token_reward", "kl.beta": "0.1"}, scored(column, inMask))
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict)
			continue
		}
		requireName(t, o, "SCORE-INDEX", words)
		require.Equal(t, words == "row 0 in column 2", len(Explain(o)[0].Hypothesis.Configured) > 0, "%s: an environment may pay each response where it has earned it", words)
	}
	group := map[string]string{"kl.place": "sequence_reward_before_baseline", "kl.beta": "0.1", "adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "whiten.scope": "none", "reward.clip": "none"}
	o := under("advantage/group", "trl-rloo@1.16", group, scored(last, whole))
	requireName(t, o, "KL-REWARD-PADS", "masked cells")
	mean := func(kl, m []float64) float64 {
		var n float64
		for _, on := range m {
			n += on
		}
		return inMask(kl, m) / n
	}
	requireName(t, under("advantage/group", "trl-rloo@1.16", group, scored(last, mean)), "KL-REWARD-MEAN", "the mean over its tokens")
	added := func(kl, m []float64) float64 { return -inMask(kl, m) }
	require.Contains(t, texts(Explain(under("advantage/group", "trl-rloo@1.16", group, scored(last, added)))), "KL-SIGN")
	for _, e := range Explain(under("advantage/group", "trl-rloo@1.16", group, scored(last, inMask))) {
		require.NotEqual(t, "KL-REWARD-PADS", e.Hypothesis.ID)
	}
}

// The KL of padding shows in the reward behind the last token, where a score stands that the program puts there.
func TestKLOfPaddingInRewards(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"kl.place": "token_reward", "kl.beta": "0.1", "rewards.whiten": "no", "eos.rule": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for _, padded := range []float64{0, 1} {
		b := scored(func(cells []int) int { return cells[len(cells)-1] + 1 }, func(_, _ []float64) float64 { return 0 })
		x, kl := b.Tensors["token_rewards"].Data, b.Tensors["kl"].Data
		for i, in := range b.Mask {
			if !in {
				x[i] = float64(float32(x[i] - padded*0.1*kl[i]))
			}
		}
		o := stage.Judge(stage.Find("reward/token"), b, set)
		if padded == 0 {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "KL-REWARD-PADS", "outside the mask")
	}
}

// A penalty that replaces the score of a response without EOS in place of being subtracted from it.
func TestPenaltyInPlaceOfTheScore(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("eos_token_id", 2.)
	for name, x := range map[string]string{"kl.place": "token_reward", "kl.beta": "0.1", "eos.rule": "subtract", "eos.penalty": "1", "eos.test": "eos_id"} {
		set = set.With(name, parsed(name, x), "test")
	}
	last := func(cells []int) int { return cells[len(cells)-1] }
	judge := func(penalised func(reward, score float64) float64) *stage.Outcome {
		b := scored(last, func(_, _ []float64) float64 { return 0 })
		ids := slices.Repeat([]float64{5}, len(b.Mask))
		for r := range b.Rows {
			at := -1
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					at = i
				}
			}
			if r%2 == 0 {
				ids[at] = 2
				continue
			}
			x := b.Tensors["token_rewards"].Data
			x[at] = float64(float32(penalised(x[at], b.Row("scores")[r])))
		}
		b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: ids, Type: format.I32}
		return stage.Judge(stage.Find("reward/token"), b, set)
	}
	require.Equal(t, check.Pass, judge(func(reward, _ float64) float64 { return reward - 1 }).Verdict)
	requireName(t, judge(func(reward, score float64) float64 { return reward - score - 1 }), "EOS-PENALTY-MISSING", "in place of the score")
	requireName(t, judge(func(reward, _ float64) float64 { return reward - 2 }), "EOS-PENALTY-TWICE", "subtracted twice")
	set = set.With("eos.rule", parsed("eos.rule", "replace"), "test").With("eos.penalty", parsed("eos.penalty", "-1"), "test")
	require.Equal(t, check.Pass, judge(func(reward, score float64) float64 { return reward - score - 1 }).Verdict)
	requireName(t, judge(func(reward, _ float64) float64 { return reward - 1 }), "EOS-PENALTY-MISSING", "added to its score")
}

// A change of an option that a logged number alone asks for is a bug of the log, where the loss is right, and one of the loss elsewhere.
func TestOfChangeIn(t *testing.T) {
	change := func(option, from, to string) stage.Change {
		return stage.Change{Option: option, From: parsed(option, from), To: parsed(option, to)}
	}
	pads, clip := change("mask.tokens", "response", "none"), change("clip.low", "0.2", "none")
	for _, c := range []struct {
		check string
		of    stage.Change
		right bool
		id    string
	}{
		{"scalars/clip_frac", pads, true, "METRIC-PADS"}, {"scalars/clip_frac", pads, false, "LOSS-MASK-PADS"},
		{"scalars/entropy", pads, true, "METRIC-ENTROPY-PADS"}, {"scalars/ppo_kl", pads, true, "METRIC-APPROX-KL-PADS"},
		{"scalars/clip_frac", clip, true, "METRIC-CLIP-FRACTION"}, {"token_loss/policy", clip, true, "CLIP-BOUND"},
		{"token_loss/policy", pads, true, "RATIO-MEAN-PADS"}, {"aggregate/loss", pads, true, "LOSS-MASK-PADS"}, {"aggregate/kl_loss", pads, true, "KL-OUTSIDE-MASK"},
		{"aggregate/entropy_loss", pads, true, "ENTROPY-AGGREGATION"}, {"aggregate/entropy_loss", pads, false, "LOSS-MASK-PADS"},
		{"token_loss/policy", change("loss.off_policy_max", "0.01", "none"), false, "OFF-POLICY-KEPT"}, {"preference/dpo_loss", change("dpo.nll_weight", "0.2", "1"), false, "DPO-NLL"},
		{"preference/pair_loss", change("dpo.divergence", "js", "reverse_kl"), false, "DPO-LOSS"}, {"advantage/group", change("adv.scale", "none", "group_std"), false, "ADV-SPREAD"},
		{"reward/token", change("eos.penalty", "1", "-1"), false, "EOS-PENALTY-SIGN"}, {"reward/token", change("eos.penalty", "1", "0"), false, "EOS-PENALTY-IGNORED"},
		{"advantage/group", change("adv.kind", "group", "raw"), false, "ADV-CENTER"}, {"reward/token", change("kl.place", "token_reward", "none"), false, "KL-ABSENT"},
		{"reward/token", change("kl.place", "token_reward", "sequence_reward_after"), false, "KL-AFTER-BASELINE"},
		{"aggregate/loss", change("value.coef", "0.5", "0"), false, "VALUE-MISSING"}, {"aggregate/loss", change("ratio.level", "seq_mean", "seq_sum"), false, "RATIO-SUM-FOR-MEAN"},
	} {
		n, ok := OfChangeIn(c.check, c.of, c.right)
		require.True(t, ok)
		require.Equal(t, c.id, n.ID, c.check)
	}
}

// A declared denominator of the ratio that is not the one that ran has a name either way.
func TestOtherOldLogProbs(t *testing.T) {
	for id, words := range map[string][2]string{"OLD-IS-STORED": {"engine", "stored"}, "OLD-IS-GEN": {"stored", "engine"}, "OLD-RECOMPUTED": {"stored", "stopgrad_new"}} {
		n, ok := OfChange(stage.Change{Option: "ratio.old", From: parsed("ratio.old", words[0]), To: parsed("ratio.old", words[1])})
		require.True(t, ok)
		require.Equal(t, id, n.ID)
	}
}
