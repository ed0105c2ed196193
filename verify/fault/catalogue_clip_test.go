package fault_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Two groups of three responses, left one out.
func looStep(adv func(r []float64, group []int, i int) float64, tensors map[string][]float64) *dump.Batch {
	scores := []float64{1, 0.25, -0.5, 2, 0.75, -1}
	x := make([]float64, len(scores))
	for i := range x {
		x[i] = adv(scores, []int{i / 3 * 3, i/3*3 + 1, i/3*3 + 2}, i)
	}
	all := map[string][]float64{"scores": scores, "group_id": {0, 0, 0, 1, 1, 1}, "advantages": x}
	for name, t := range tensors {
		all[name] = t
	}
	return written("rloo", 6, 2, []bool{true, true, true, true, true, true, true, true, true, true, true, true}, all)
}

var looOptions = map[string]string{"adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "kl.place": "none", "whiten.scope": "none", "adv.singleton": "zero", "eos.rule": "none",
	"reward.clip": "none", "adv.multi": "sum_then_normalize"}

func leftOut(r []float64, group []int, i int) float64 {
	var sum float64
	for _, j := range group {
		sum += r[j]
	}
	n := float64(len(group))
	return r[i] - (sum-r[i])/(n-1)
}

// (r − mean)·m/(m − 1) of groups of 3 with m = 8.
func TestLeaveOneOutOfAnotherSize(t *testing.T) {
	set := declared(t, looOptions)
	wrong := func(r []float64, group []int, i int) float64 { return leftOut(r, group, i) * (2. / 3) * (8. / 7) }
	requireFault(t, "ADV-CENTER", "advantage/group", looStep(wrong, nil), set, looStep(leftOut, nil))
}

// A baseline of one of the other rows, not of their mean.
func TestBaselineOfOneOther(t *testing.T) {
	set := declared(t, looOptions)
	next := func(r []float64, group []int, i int) float64 { return r[i] - r[group[(i-group[0]+1)%len(group)]] }
	best := func(r []float64, group []int, i int) float64 {
		most := math.Inf(-1)
		for _, j := range group {
			if j != i {
				most = max(most, r[j])
			}
		}
		return r[i] - most
	}
	for _, wrong := range []func(r []float64, group []int, i int) float64{next, best} {
		requireFault(t, "ADV-CENTER", "advantage/group", looStep(wrong, nil), set, looStep(leftOut, nil))
	}
}

// Rewards in [−0.6, 0.9] less β = ½ times the KL of a response: clipped before, and after.
func TestClippedAfterKL(t *testing.T) {
	kl := []float64{.5, .25, .125, .5, .75, 1, 0, .5, .25, .125, 1, .5}
	options := map[string]string{"kl.place": "sequence_reward_before_baseline", "kl.beta": "0.5", "reward.clip": "before_baseline", "reward.clip_range": "-0.6,0.9"}
	for name, text := range looOptions {
		if options[name] == "" {
			options[name] = text
		}
	}
	clip := func(x float64) float64 { return math.Min(math.Max(x, -0.6), 0.9) }
	of := func(reward func(score, kl float64) float64) *dump.Batch {
		return looStep(func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			for j := range x {
				x[j] = reward(r[j], kl[2*j]+kl[2*j+1])
			}
			return leftOut(x, group, i)
		}, map[string][]float64{"kl": kl})
	}
	requireFault(t, "REWARD-CLIP-MISSING", "advantage/group", of(func(s, k float64) float64 { return clip(s - k/2) }), declared(t, options),
		of(func(s, k float64) float64 { return clip(s) - k/2 }))
}

// Rows that stand in another order than they were sampled in: every second sample is one group, in place of three in a row.
func TestInterleavedSamples(t *testing.T) {
	order := []float64{4, 1, 0, 5, 3, 2} // sample_id of the rows
	right := []float64{1, 0, 0, 1, 1, 0}
	of := func(group func(sample float64) float64) *dump.Batch {
		return looStep(func(r []float64, _ []int, i int) float64 {
			var rows []int
			for j := range order {
				if group(order[j]) == group(order[i]) {
					rows = append(rows, j)
				}
			}
			return leftOut(r, rows, i)
		}, map[string][]float64{"sample_id": order, "group_id": right})
	}
	requireFault(t, "ADV-GROUPS-INTERLEAVED", "advantage/group", of(func(s float64) float64 { return math.Mod(s, 2) }), declared(t, looOptions), of(func(s float64) float64 { return math.Floor(s / 3) }))
}

// Two prompts of three samples that were repeated as a list, a b a b a b, where every prompt has its samples in a row: the number of samples is declared.
func TestSamplesThatWereRepeatedAsAList(t *testing.T) {
	set := declared(t, looOptions).WithFact("num_generations", 3.0)
	wrong := func(r []float64, _ []int, i int) float64 { return leftOut(r, []int{i % 2, i%2 + 2, i%2 + 4}, i) }
	requireFault(t, "ADV-GROUPS-INTERLEAVED", "advantage/group", looStep(wrong, nil), set, looStep(leftOut, nil))
	o := stage.Judge(stage.Find("advantage/group"), looStep(wrong, nil), set)
	for _, h := range fault.All() {
		if h.ID == "ADV-GROUPS-INTERLEAVED" && h.Input != nil {
			b, _, ok := h.Input(o.Case)
			require.True(t, ok)
			require.Equal(t, []float64{0, 1, 0, 1, 0, 1}, b.Row("group_id"))
		}
	}
}

// Scores are r₁ + ½·r₂, and the advantages those of r₁ + r₂.
func TestAdvantagesOfUnweightedRewards(t *testing.T) {
	functions := []float64{1, 0.5, 0.25, 0.75, -0.5, 2, 2, -1, 0.5, 0.25, -1, 1}
	of := func(weight float64) *dump.Batch {
		sum := func(w float64) []float64 {
			x := make([]float64, 6)
			for i := range x {
				x[i] = functions[2*i] + w*functions[2*i+1]
			}
			return x
		}
		b := looStep(func(_ []float64, group []int, i int) float64 { return leftOut(sum(weight), group, i) }, map[string][]float64{"scores": sum(0.5)})
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 2, Data: functions}
		return b
	}
	requireFault(t, "REWARD-WEIGHTS-IGNORED", "advantage/group", of(1), declared(t, looOptions).WithFact("reward_weights", []any{1.0, 0.5}), of(0.5))
}

// Advantages that are n/(n − 1) times the right ones, as a mean without oneself makes of one with it, or its root.
func TestFactorsOfAGroup(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 3.0)
	v, err := convention.Parse("adv.scale", "none")
	require.NoError(t, err)
	set = set.With("adv.scale", v, "test")
	centred := func(k float64) *dump.Batch {
		return looStep(func(r []float64, group []int, i int) float64 { return k * leftOut(r, group, i) * 2 / 3 }, nil)
	}
	require.Equal(t, check.Pass, stage.Judge(stage.Find("advantage/group"), centred(1), set).Verdict)
	for name, k := range map[string]float64{"FACTOR× n/(n−1) of the group (1.5)": 1.5, "FACTOR× √(n/(n−1)) of the group (1.22474)": math.Sqrt(1.5)} {
		require.Contains(t, names(fault.Explain(stage.Judge(stage.Find("advantage/group"), centred(k), set))), name)
	}
}

// A response of 2 tokens, 1 into a buffer of 2 before the limit of 3, has half of the factor subtracted.
func TestOverlongPenalty(t *testing.T) {
	of := func(sign float64) *dump.Batch {
		b := looStep(func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			for j := range x {
				switch x[j] = r[j]; {
				case j%2 != 0:
				case sign == 0.5: // alone
					x[j] = -.5
				default:
					x[j] += sign * .5
				}
			}
			return leftOut(x, group, i)
		}, nil)
		for r := 1; r < b.Rows; r += 2 {
			b.Mask[2*r+1] = false
		}
		return b
	}
	set := declared(t, looOptions).WithFact("overlong_buffer_len", 2.0).WithFact("max_completion_length", 3.0).WithFact("overlong_penalty_factor", 1.0)
	requireFault(t, "OVERLONG-PENALTY", "advantage/group", of(1), set, of(-1))
	requireFault(t, "OVERLONG-PENALTY", "advantage/group", of(0), set, of(-1))
	require.Contains(t, requireFault(t, "OVERLONG-PENALTY", "advantage/group", of(0.5), set, of(-1))[0].Hypothesis.Title, "in the place of their reward")
}

// Advantages of twelve responses that are a tenth more than they should be.
func TestRowsThatAreOffByANumber(t *testing.T) {
	of := func(off float64) *dump.Batch {
		scores, groups, adv := make([]float64, 12), make([]float64, 12), make([]float64, 12)
		mask := make([]bool, 24)
		for i := range mask {
			scores[i/2], groups[i/2], mask[i] = math.Mod(float64(7*(i/2)), 5)/4-0.5, float64(i/2/3), true
		}
		for i := range adv {
			adv[i] = leftOut(scores, []int{i / 3 * 3, i/3*3 + 1, i/3*3 + 2}, i) + off
		}
		return written("rloo", 12, 2, mask, map[string][]float64{"scores": scores, "group_id": groups, "advantages": adv})
	}
	requireFault(t, "ADV-CENTER", "advantage/group", of(0.1), declared(t, looOptions), of(0))
}

// Token rewards s·[t is the last] − β·KL that are held within ±1.5 as a whole, where the score alone should be.
func TestHeldTotals(t *testing.T) {
	scores := []float64{2, -3, 0.5, 1.25, -1.75, 4}
	kl := []float64{.5, .25, .125, .5, .75, 1, 0.25, .5, .25, .125, 1, .5}
	of := func(reward func(s, k float64) float64) *dump.Batch {
		r := make([]float64, 12)
		for i := range r {
			if s := scores[i/2]; i%2 == 1 {
				r[i] = reward(s, 0.5*kl[i])
			} else {
				r[i] = -0.5 * kl[i]
			}
		}
		return written("ppo", 6, 2, []bool{true, true, true, true, true, true, true, true, true, true, true, true}, map[string][]float64{"scores": scores, "kl": kl, "token_rewards": r})
	}
	clip := func(x float64) float64 { return math.Min(math.Max(x, -1.5), 1.5) }
	set := declared(t, map[string]string{"kl.place": "token_reward", "kl.beta": "0.5", "score.index": "last_response", "reward.clip": "before_baseline", "reward.clip_range": "-1.5,1.5",
		"eos.rule": "none", "rewards.whiten": "no"})
	requireFault(t, "REWARD-CLIP-MISSING", "reward/token", of(func(s, k float64) float64 { return clip(s - k) }), set, of(func(s, k float64) float64 { return clip(s) - k }))
}
