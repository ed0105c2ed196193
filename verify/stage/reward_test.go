package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

func TestScoresBound(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	w := worst{}
	for _, family := range sorted(statFamilies) {
		draw := statFamilies[family]
		for range 350 {
			n, f := 1+r.IntN(6), 1+r.IntN(5)
			lengths := make([]int, n)
			g := newGrid(1, lengths...)
			per, scores, weights := make([]float64, n*f), make([]float64, n), make([]any, f)
			for k := range weights {
				weights[k] = float64(r.IntN(40)) / 20
			}
			for i := range n {
				scores[i] = math.NaN()
				var terms []float32
				for k := range f {
					per[i*f+k] = float64(f32(draw(r)))
					if r.IntN(6) == 0 {
						per[i*f+k] = math.NaN()
					} else {
						terms = append(terms, f32(per[i*f+k])*f32(weights[k].(float64)))
					}
				}
				if len(terms) > 0 {
					scores[i] = float64(sums32(r)(terms))
				}
			}
			g.row("rewards_per_func", per...).row("scores", scores...)
			w.add(t, family, "reward/scores", g.Batch, set(t, "").WithFact("reward_weights", weights))
		}
	}
	w.tight(t)
}

func TestScoresNeedWeights(t *testing.T) {
	g := newGrid(1, 1).row("rewards_per_func", 1, 2).row("scores", 3)
	lacks(t, "reward/scores", g.Batch, set(t, ""), "reward_weights")
	lacks(t, "reward/scores", g.Batch, set(t, "").WithFact("reward_weights", []any{1.0}), "there are 1")
	g.Meta.Options = []dump.Option{{Name: "reward_weights"}}
	require.Equal(t, check.Pass, Judge(Find("reward/scores"), g.Batch, set(t, "")).Verdict, "null stands for ones")
	fails(t, "reward/scores", g.Batch, set(t, "").WithFact("reward_weights", []any{1.0, 0.5}))
	fails(t, "reward/scores", g.row("scores", 3.00001).Batch, set(t, ""))
	// One function that could not score is left out, all of them give NaN.
	g.row("rewards_per_func", 1, math.NaN()).row("scores", 1)
	require.Equal(t, check.Pass, Judge(Find("reward/scores"), g.Batch, set(t, "")).Verdict)
	fails(t, "reward/scores", g.row("scores", math.NaN()).Batch, set(t, ""))
}

const plainReward = "kl.place=token_reward kl.beta=0.05 eos.rule=none reward.clip=none rewards.whiten=no "

func TestTokenRewardsBound(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2))
	w := worst{}
	for _, index := range []string{"last_response", "eos_plus_1", "last_column"} {
		s := set(t, plainReward+"score.index="+index)
		for range 800 {
			g := randomGrid(r, 1+r.IntN(4), 1+r.IntN(10), true)
			score := g.fill("scores", dump.PerRow, r.NormFloat64)
			kl := narrow(g.fill("kl", dump.PerToken, func() float64 { return math.Exp(2 * r.NormFloat64()) }))
			x := make([]float64, len(kl))
			for i := range x {
				if g.Mask[i] {
					x[i] = float64(-(f32(0.05) * kl[i]))
				}
			}
			some := false
			for i := range g.Rows {
				last := -1
				for t := range g.Cols {
					if g.Mask[i*g.Cols+t] {
						last = t
					}
				}
				if last < 0 {
					continue
				}
				some = true
				switch index {
				case "eos_plus_1":
					last = min(last+1, g.Cols-1)
				case "last_column":
					last = g.Cols - 1
				}
				x[i*g.Cols+last] = float64(f32(x[i*g.Cols+last]) + f32(score[i]))
			}
			if some {
				w.add(t, index, "reward/token", g.token("token_rewards", x...).Batch, s)
			}
		}
	}
	w.tight(t)
}

func TestTokenRewardsFindFaults(t *testing.T) {
	g := newGrid(4, 3, 4).row("scores", 2, -1).token("kl", .1, .2, .3, 9, .4, .3, .2, .1)
	s := set(t, plainReward+"score.index=last_response")
	right := []float64{-.005, -.01, 2 - .015, 0, -.02, -.015, -.01, -1 - .005}
	put := func(change func(x []float64)) *dump.Batch {
		x := append([]float64(nil), right...)
		change(x)
		for i := range x {
			x[i] = float64(f32(x[i]))
		}
		return g.token("token_rewards", x...).Batch
	}
	for i, v := range g.Token("kl") {
		g.Token("kl")[i] = float64(f32(v))
	}
	require.Equal(t, check.Pass, Judge(Find("reward/token"), put(func([]float64) {}), s).Verdict)
	fails(t, "reward/token", put(func(x []float64) { x[2], x[3] = -.015, 2 }), s) // one past the end
	fails(t, "reward/token", put(func(x []float64) { x[0] = .005 }), s)           // sign of the KL
	fails(t, "reward/token", put(func(x []float64) { x[7] += 1e-5 }), s)
	fails(t, "reward/token", put(func([]float64) {}), set(t, plainReward+"score.index=eos_plus_1"))
	fails(t, "reward/token", put(func([]float64) {}), set(t, "kl.place=loss eos.rule=none reward.clip=none score.index=last_response"))
	lacks(t, "reward/token", put(func([]float64) {}), set(t, plainReward), "score.index")
	lacks(t, "reward/token", g.Without("scores"), set(t, plainReward+"score.index=last_response"), "scores")
	// Where β adapts, it is declared for the first step only.
	adaptive := s.With("kl.adaptive", mustParse(t, "kl.adaptive", "6,1e4,8"), "test")
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g.Batch, adaptive).Verdict)
	g.Meta.Step = 2
	lacks(t, "reward/token", g.Batch, adaptive, "kl.adaptive")
}

// A response that is cut off within a tool's output has its score at its own end, outside the mask. One whose score stands before that, or on padding, has it in
// a wrong place.
func TestScoreBehindTheLastAction(t *testing.T) {
	ids := []float64{5, 6, 8, 9, 5, 1, 0, 0, 7, 8, 8, 0} // 8 and 9 are a tool's, 0 is padding
	of := func(row2 ...float64) *dump.Batch {
		g := newGrid(4, 2, 2, 1).row("scores", 2, -1, 3).token("response_ids", ids...)
		return g.token("token_rewards", append([]float64{0, 0, 0, 2, 0, -1, 0, 0}, row2...)...).Batch
	}
	s := set(t, "kl.place=token_reward kl.beta=0 eos.rule=none reward.clip=none rewards.whiten=no score.index=last_response")
	require.Equal(t, check.Pass, Judge(Find("reward/token"), of(0, 0, 3, 0), s).Verdict)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), of(3, 0, 0, 0), s).Verdict)
	fails(t, "reward/token", of(0, 3, 0, 0), s)
	fails(t, "reward/token", of(0, 0, 0, 3), s)
	fails(t, "reward/token", of(0, 0, 3, 1), s)
	fails(t, "reward/token", of(1, 0, 3, 0), s)
}

// The coefficient of a controller is read off the rewards of a later batch: one number has to explain all of them, and be the one that is logged.
func TestCoefficientOfAController(t *testing.T) {
	s := set(t, plainReward+"score.index=last_response").WithFact("algorithm.kl_ctrl.type", "adaptive").WithFact("num_mini_batches", 1.0)
	const moved = 0.0613
	of := func(change func(x []float64)) *dump.Batch {
		g := newGrid(6, 6, 5, 6).row("scores", 2, -1, 0.5)
		kl, x := make([]float64, len(g.Mask)), make([]float64, len(g.Mask))
		for i, m := range g.Mask {
			if m {
				kl[i] = float64(f32(math.Sin(float64(7*i) + 1)))
				x[i] = -moved * kl[i]
			}
		}
		for r, last := range []int{5, 10, 17} {
			x[last] += g.Row("scores")[r]
		}
		change(x)
		for i := range x {
			x[i] = float64(f32(x[i]))
		}
		g = g.token("kl", kl...)
		b := g.token("token_rewards", x...).Batch
		b.Meta.Step = 3
		return b
	}
	right := of(func([]float64) {})
	require.Equal(t, check.Pass, Judge(Find("reward/token"), right, s).Verdict)
	fails(t, "reward/token", of(func(x []float64) { x[3] *= 1.01 }), s)
	spread := of(func(x []float64) { // what no number explains is told from the declared one
		for i := range x {
			x[i] = 0.1 * float64(1+i/5)
		}
	})
	o := Judge(Find("reward/token"), spread, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.InDelta(t, -s.Value("kl.beta").Num()*spread.Token("kl")[0], o.Pred.Want[0], 1e-9)
	declared := set(t, plainReward+"score.index=last_response") // nothing says that it moves
	fails(t, "reward/token", right, declared)
	for logged, verdict := range map[float64]check.Verdict{moved: check.Pass, 1.02 * moved: check.Fail} {
		right.Files = []dump.FileInfo{{Lo: 0, Hi: right.Rows, Cols: right.Cols, Scalars: []dump.Scalar{{Name: "actor/reward_kl_penalty_coeff", Value: logged}}}}
		right.Meta.Framework, right.Meta.MicroBatches, right.Meta.WorldSize, right.Meta.ScalarsScope = "verl", 1, 1, "optimizer_step"
		o := Judge(Find("scalars/actor_reward_kl_penalty_coeff"), right, s)
		require.Equal(t, verdict, o.Verdict, o.Lacking())
	}
}

// What happens to a response without EOS: the second row has none.
// Rewards of several tokens whose sum is the score of the response are dense ones, of which no score says where they stand; a score in another place, or
// with another sum, is wrong.
func TestDenseRewards(t *testing.T) {
	s := set(t, "kl.place=none kl.beta=0 score.index=last_response reward.clip=none eos.rule=none rewards.whiten=no")
	verdict := func(rewards ...float64) check.Verdict {
		g := newGrid(5, 5, 5).row("scores", 2, -1).token("token_rewards", rewards...)
		return Judge(Find("reward/token"), g.Batch, s).Verdict
	}
	require.Equal(t, check.Pass, verdict(0, 0, 0, 0, 2, 0, 0, 0, 0, -1))
	require.Equal(t, check.Undetermined, verdict(0, 0.5, 0, 0, 1.5, 0, 0, 0, 0, -1))
	for name, x := range map[string][]float64{
		"first token": {2, 0, 0, 0, 0, -1, 0, 0, 0, 0}, "spread": {0.4, 0.4, 0.4, 0.4, 0.4, -0.2, -0.2, -0.2, -0.2, -0.2}, "twice": {0, 2, 0, 0, 2, 0, -1, 0, 0, -1},
	} {
		require.Equal(t, check.Fail, verdict(x...), name)
	}
}

func TestMissingEOS(t *testing.T) {
	g := newGrid(2, 2, 2).row("scores", 3, 3).token("response_ids", 7, 2, 7, 7)
	for text, want := range map[string]float64{
		"eos.rule=none eos.penalty=none":     3,
		"eos.rule=subtract eos.penalty=none": 3,
		"eos.rule=subtract eos.penalty=1":    2,
		"eos.rule=replace eos.penalty=-1":    -1,
		"eos.rule=scale eos.penalty=0.5":     1.5,
	} {
		s := set(t, "kl.place=none reward.clip=none score.index=last_response eos.test=eos_id "+text)
		b := g.token("token_rewards", 0, 3, 0, want).Batch
		require.Equal(t, check.Pass, Judge(Find("reward/token"), b, s.WithFact("eos_token_id", []any{2.0})).Verdict, text)
		fails(t, "reward/token", g.token("token_rewards", 0, want+.5, 0, want).Batch, s.WithFact("eos_token_id", 2.0))
		if want != 3 {
			lacks(t, "reward/token", b, s, "eos_token_id")
		}
	}
	// The score of score.index eos stands at the EOS, not at the end of the mask.
	s := set(t, "kl.place=none reward.clip=none score.index=eos").WithFact("eos_token_id", 2.0)
	g.token("response_ids", 2, 7, 7, 7).token("token_rewards", 3, 0, 0, 3)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g.Batch, s).Verdict)
	// Clipping.
	s = set(t, "kl.place=none reward.clip=after_baseline reward.clip_range=-1,1 score.index=last_response")
	g.token("token_rewards", 0, 1, 0, 1)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g.Batch, s).Verdict)
	lacks(t, "reward/token", g.Batch, set(t, "kl.place=none reward.clip=after_baseline score.index=last_response"), "reward.clip_range")
}

// An engine stops at an EOS or at its longest response; one that is shorter and has no EOS was stopped by what the dump does not say.
func TestFinishReason(t *testing.T) {
	s := set(t, "kl.place=none reward.clip=none score.index=last_response eos.rule=scale eos.penalty=0.5 eos.test=finish_reason").WithFact("eos_token_id", 2.0)
	g := newGrid(3, 2, 3).row("scores", 3, 4).token("response_ids", 7, 2, 0, 7, 7, 7).token("token_rewards", 0, 3, 0, 0, 0, 2)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g.Batch, s).Verdict)
	fails(t, "reward/token", g.token("token_rewards", 0, 1.5, 0, 0, 0, 4).Batch, s)
	lacks(t, "reward/token", g.token("response_ids", 7, 7, 0, 7, 7, 7).Batch, s, "what ended each response (eos.test stop_id and finish_reason)")
}

// Rewards that are whitened before GAE may be dumped before or after it.
func TestWhitenedRewards(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 3))
	g := randomGrid(r, 6, 8, false)
	x := g.fill("token_rewards", dump.PerToken, func() float64 { return 3 + 0.1*r.NormFloat64() })
	g.token("values", make([]float64, len(x))...)
	const text = "adv.kind=gae rewards.whiten=shift_mean_false whiten.mask=response whiten.ddof=1 whiten.eps_place=inside_sqrt whiten.eps=1e-8 gae.hole=carry gae.gamma=1 gae.lambda=1 gae.value_mask=response whiten.scope=global whiten.shift_mean=true returns.before_whiten=true"
	s := set(t, text)
	y := whiten32(r, narrow(x), g.Mask, 1, "inside_sqrt", 1e-8, "false_add_back")
	white := make([]float64, len(y))
	for i, v := range y {
		white[i] = float64(v)
	}
	h := newGrid(g.Cols, make([]int, g.Rows)...)
	h.Mask = g.Mask
	h.token("token_rewards", white...).token("values", make([]float64, len(x))...)
	returns := h.gae32("carry", 1, 1, 0)
	require.Equal(t, check.Pass, Judge(Find("gae/returns"), g.token("returns", returns...).Batch, s).Verdict, "from the raw rewards")
	require.Equal(t, check.Pass, Judge(Find("gae/returns"), h.token("returns", returns...).Batch, s).Verdict, "from the whitened ones")
	fails(t, "gae/returns", g.token("returns", g.gae32("carry", 1, 1, 0)...).Batch, s)
}

// Scores stand before the penalty of eos.rule unless the file says that they are shaped.
func TestScoresBeforeAndAfterPenalties(t *testing.T) {
	g := newGrid(3, 3, 2, 3)
	g.token("response_ids", 5, 6, 7, 8, 1, 1, 5, 5, 5).row("scores", 2, 3, 4)
	g.token("token_rewards", 0, 0, 1, 0, 3, 0, 0, 0, 3)
	s := set(t, "kl.place=none score.index=last_response eos.rule=subtract eos.penalty=1 eos.test=eos_id reward.clip=none").WithFact("eos_token_id", 1.0)
	verdict := func() check.Verdict { return Judge(Find("reward/token"), g.Batch, s).Verdict }
	require.Equal(t, check.Pass, verdict(), "as the reward model gave them")
	g.row("scores", 1, 3, 3)
	require.Equal(t, check.Fail, verdict(), "the penalty would be taken twice")
	yes := true
	g.Meta.ScoresShaped = &yes
	require.Equal(t, check.Pass, verdict())
	g.row("scores", 2, 3, 4)
	require.Equal(t, check.Fail, verdict(), "said to be shaped, and not")
	s = set(t, "kl.place=none score.index=last_response eos.rule=subtract eos.penalty=1 eos.test=eos_id reward.clip=before_baseline reward.clip_range=-2,2").WithFact("eos_token_id", 1.0)
	g.token("token_rewards", 0, 0, 1, 0, 2, 0, 0, 0, 2)
	for _, before := range [][]float64{{1, 3, 3}, {1, 2, 2}} { // the clip
		g.row("scores", before...)
		require.Equal(t, check.Pass, verdict(), "%v", before)
	}
}

// Token rewards of an environment have no score: nothing is predicted where neither the dump has one nor anybody says where it would
// stand, and the score is asked for where somebody does.
func TestTokenRewardsWithoutScores(t *testing.T) {
	g := newGrid(2, 2).token("token_rewards", 0.5, -0.25)
	require.Equal(t, check.Skip, Judge(Find("reward/token"), g.Batch, set(t, "kl.place=none")).Verdict)
	lacks(t, "reward/token", g.Batch, set(t, "kl.place=none eos.rule=none score.index=last_response"), "scores")
}

// Where the KL term is in the loss, OpenRLHF's token rewards are the advantages of a group, and verl's are the scores.
func TestTokenRewardsAfterTheBaseline(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none kl.place=loss kl.beta=0.1 score.index=last_response reward.clip=none eos.rule=none rewards.whiten=no")
	g := func(ends ...float64) grid {
		x := make([]float64, 12)
		for r, v := range ends {
			x[r*3+1+r%2] = v
		}
		return newGrid(3, 2, 3, 2, 3).row("scores", 1, 2, 5, 3).row("group_id", 0, 0, 1, 1).token("token_rewards", x...)
	}
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g(1, 2, 5, 3).Batch, s).Verdict)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g(-0.5, 0.5, 1, -1).Batch, s).Verdict)
	fails(t, "reward/token", g(-0.5, 0.5, 1, -1.5).Batch, s)
	fails(t, "reward/token", g(-0.5, 0.5, 5, 3).Batch, s)
}

// Rewards may be whitened over other rows than advantages: over the rollout where advantages are whitened in a mini-batch, or the other way round.
func TestScopeOfRewardsAndOfAdvantages(t *testing.T) {
	const text = "adv.kind=gae rewards.whiten=shift_mean_false whiten.mask=response whiten.ddof=0 whiten.eps_place=inside_sqrt whiten.eps=1e-8 gae.hole=carry gae.gamma=0.9 gae.lambda=0.8 gae.value_mask=response whiten.shift_mean=true returns.before_whiten=true"
	halves, whole := [][2]int{{0, 3}, {3, 6}}, [][2]int{{0, 6}}
	for _, k := range []struct {
		rewards, advantages [][2]int
		right, wrong        string
	}{
		{whole, halves, "whiten.scope=minibatch rewards.whiten_scope=local_batch", "whiten.scope=minibatch rewards.whiten_scope=same"},
		{halves, whole, "whiten.scope=global rewards.whiten_scope=minibatch", "whiten.scope=global"},
		{halves, halves, "whiten.scope=minibatch", "whiten.scope=minibatch rewards.whiten_scope=global"},
	} {
		r := rand.New(rand.NewPCG(5, 4))
		g := randomGrid(r, 6, 8, false)
		g.Files = []dump.FileInfo{{Lo: 0, Hi: 3, Cols: 8, PromptCols: -1}, {Lo: 3, Hi: 6, Cols: 8, PromptCols: -1}}
		x := g.fill("token_rewards", dump.PerToken, func() float64 { return 3 + r.NormFloat64() })
		for i := range x[:24] {
			x[i] *= 3
		}
		g.fill("values", dump.PerToken, r.NormFloat64)
		white := func(x []float64, runs [][2]int, shift string) (y []float64) {
			for _, s := range runs {
				for _, v := range whiten32(r, narrow(x[s[0]*8:s[1]*8]), g.Mask[s[0]*8:s[1]*8], 0, "inside_sqrt", 1e-8, shift) {
					y = append(y, float64(v))
				}
			}
			return y
		}
		h := grid{g.With("token_rewards", white(x, k.rewards, "false_add_back"))}
		adv := h.gae32("carry", 0.9, 0.8, 0)
		returns := slices.Clone(adv)
		for i, v := range narrow(g.Token("values")) {
			returns[i] = float64(float32(adv[i]) + v)
		}
		g.token("returns", returns...).token("advantages", white(adv, k.advantages, "true")...)
		h.token("returns", returns...).token("advantages", g.Token("advantages")...)
		for name, b := range map[string]grid{"from the raw rewards": g, "from the whitened ones": h} {
			for _, id := range []string{"gae/returns", "gae/advantage"} {
				require.Equal(t, check.Pass, Judge(Find(id), b.Batch, set(t, text+" "+k.right)).Verdict, "%s %s %s", id, k.right, name)
			}
		}
		fails(t, "gae/returns", g.Batch, set(t, text+" "+k.wrong))
	}
}

// A dump of an estimator of outcomes may have its rewards without the scores that they are made of, which leaves nothing to decide; a critic's has not.
func TestRewardsWithoutScores(t *testing.T) {
	g := newGrid(4, 3, 4).token("token_rewards", 0, 0, 1, 0, 0, 0, 0, -1)
	for kind, verdict := range map[string]check.Verdict{"rfpp": check.Skip, "remax": check.Skip, "gae": check.Undetermined} {
		s := set(t, plainReward+"score.index=last_response adv.kind="+kind)
		o := Judge(Find("reward/token"), g.Batch, s)
		require.Equal(t, verdict, o.Verdict, "%s %s", kind, o.Lacking())
	}
}
