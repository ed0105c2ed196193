package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// These tests stand at the edge of one term of a bound: a right program that rounds in float32 is off by more than the bound
// would be without the term, and by less than the bound.

// λ = 1 − 1/(α·length) near 0 is a difference of numbers near 1, whose roundings are many of its own. Rewards are 1 at the last token and
// values 0, so that the advantage of the token before it is λ.
func TestBoundHoldsTheRoundingOfVAPOsLambda(t *testing.T) {
	far := 0
	for n := 257; n < 290; n++ {
		o := rl.GAEOptions{Gamma: 1, Hole: rl.HoleCarry, LambdaPolicy: rl.LambdaVAPO, Alpha: 1. / 256}
		b := rl.Rollout{Rows: 1, Cols: n, Reward: make([]float64, n), Value: make([]float64, n), Mask: make([]bool, n)}
		for i := range b.Mask {
			b.Mask[i] = true
		}
		b.Reward[n-1] = 1
		adv, _ := rl.GAE(nil, nil, b, o)
		bound := gaeErrors(adv, b, Input{X: b.Reward}, Input{X: b.Value}, Input{}, o, tol.U32)
		lambda := 1 - 1/(float32(o.Alpha)*float32(n))
		off := math.Abs(float64(lambda) - adv[n-2])
		require.LessOrEqual(t, off, bound[n-2], "%d tokens", n)
		if off > 3*tol.U32*adv[n-2] { // the product with A' and its sum with δ = 0
			far++
		}
	}
	require.Greater(t, far, 3)
}

// A sum with 0 is exact: of reward, γV' and V alone the advantage has no error, whichever of them is not 0, and of two it has one rounding.
func TestSumsWithNothingAreExact(t *testing.T) {
	o := rl.GAEOptions{Gamma: 1, Lambda: 1, Hole: rl.HoleCarry}
	for _, c := range []struct {
		reward, value []float64
		want          []float64 // bounds in units of u
	}{
		{[]float64{0, 0}, []float64{0, 3}, []float64{0, 0}}, // V' and −V cancel
		{[]float64{0}, []float64{2}, []float64{0}},
		{[]float64{5}, []float64{0}, []float64{0}},
		{[]float64{5}, []float64{2}, []float64{3}},
		{[]float64{0, 0}, []float64{2, 3}, []float64{1 + 2, 0}}, // δ = 3 − 2, and A = δ − 3
		{[]float64{0, 7}, []float64{0, 0}, []float64{0, 0}},
	} {
		b := rl.Rollout{Rows: 1, Cols: len(c.reward), Reward: c.reward, Value: c.value}
		adv, _ := rl.GAE(nil, nil, b, o)
		for i, e := range gaeErrors(adv, b, Input{X: b.Reward}, Input{X: b.Value}, Input{}, o, tol.U32) {
			require.InDelta(t, c.want[i]*tol.U32, e, 1e-6*tol.U32, "%v %v", c.reward, c.value)
		}
	}
}

// A penalty that float32 does not have: where the score is near it, all of the difference is its rounding; where it scales a large
// score, the rounding is the score's size.
func TestBoundHoldsTheRoundingOfThePenalty(t *testing.T) {
	type program func(score, penalty float32) float32
	for text, p := range map[string]struct {
		score   float32
		penalty float64
		program program
	}{
		"eos.rule=subtract eos.penalty=0.1": {float32(0.1), 0.1, func(s, p float32) float32 { return s - p }},
		"eos.rule=replace eos.penalty=0.1":  {3, 0.1, func(_, p float32) float32 { return p }},
		"eos.rule=scale eos.penalty=0.1":    {1e6 + 1, 0.1, func(s, p float32) float32 { return s * p }},
	} {
		g := newGrid(1, 1).row("scores", float64(p.score)).token("response_ids", 7)
		c := NewCase(g.Batch, set(t, "reward.clip=none eos.test=eos_id "+text).WithFact("eos_token_id", 2.0), tol.U32)
		y := c.shapedScores()
		require.True(t, c.OK(), text)
		off := math.Abs(float64(p.program(p.score, float32(p.penalty))) - y.X[0])
		require.NotZero(t, off, text)
		require.LessOrEqual(t, off, y.Err[0], text)
		require.Less(t, y.Err[0], 4*tol.U32*(p.penalty+math.Abs(y.X[0])), text)
	}
}

// In TRL num_items_in_batch counts a generation batch, whose tokens are those of several steps. The Trainer of supervised
// fine-tuning counts the step alone, whatever else the configuration says.
func TestItemsOfSupervisedFineTuningAreOfOneStep(t *testing.T) {
	for algorithm, want := range map[string]float64{"grpo": 64 * 2 / 8., "sft": 64} {
		g := newGrid(1, 1)
		g.Meta.Algorithm, g.Meta.MicroBatches = algorithm, 2
		c := NewCase(g.Batch, set(t, "").WithFact("num_items_in_batch", 64.0).WithFact("steps_per_generation", 8.0).WithFact("gradient_accumulation_steps", 2.0), tol.U32)
		require.Equal(t, want, c.items(), algorithm)
		require.True(t, c.OK())
	}
}

// Eight elements tell what a tensor was stored in, fewer do not, and zeros do not count.
func TestEightElementsTellTheGrid(t *testing.T) {
	x := make([]float64, 20)
	for i := range 7 {
		x[i] = 1 + float64(i+1)/128
	}
	require.Zero(t, Grid(x))
	x[7] = 1.5
	require.Equal(t, tol.UB, Grid(x))
}

// A value that was rounded when it was stored may have been beyond the clip bound, where the derivative is 0.
func TestClipBoundOfAValueThatWasRounded(t *testing.T) {
	const rounding = 1e-3
	w := &value{o: rl.ValueOptions{Factor: .5, Clip: .25}, u: tol.U32,
		v: Input{X: []float64{.25 - rounding/2}, Err: []float64{rounding}}, old: Input{X: []float64{0}}, r: Input{X: []float64{2}}}
	beyond := w.v.X[0] + rounding // what the program had: clipped, and the square of the clipped value is the larger one
	require.Greater(t, (w.o.Clip-2)*(w.o.Clip-2), (beyond-2)*(beyond-2))
	slope, _ := w.cell(0)
	require.GreaterOrEqual(t, slope, 2*math.Abs(w.v.X[0]-w.r.X[0]))
	w.v.Err = nil // stored as it was, it is within
	slope, _ = w.cell(0)
	require.Less(t, slope, 1e-5)
}

// A row that a filter of sequences keeps has the weights of its tokens, which are off by their own roundings, on either side of 1 and of a clamp.
func TestBoundOfFilteredWeights(t *testing.T) {
	g := newGrid(4, 4).token("logp_old", -1, -2, -3, -9).token("logp_gen", -1.5, -1.75, -3.125, -5)
	c := NewCase(g.token("is_weights", 0, 0, 0, 0).Batch, set(t, "tis.level=seq_geo tis.rule=seq_filter tis.gate=ratio tis.low=0.1 tis.high=10 tis.log_clamp=2"), tol.U32)
	p := Find("ratio/is_weights").Predict(c)
	require.NotNil(t, p, c.Absent)
	for i, d := range []float64{0.5, -0.25, 0.125, -2} {
		require.InEpsilon(t, math.Exp(d), p.Want[i], 1e-12)
		require.Positive(t, p.Bound[i])
		require.Less(t, p.Bound[i], 1e-5*p.Want[i])
	}
}

// Advantages that were cast to bfloat16 as they were stored are off by half of a unit of it, which −A·logp multiplies by the log-prob.
func TestBoundOfDROHoldsTheErrorOfAdvantages(t *testing.T) {
	r := rand.New(rand.NewPCG(94, 1))
	s := set(t, plainPPO+"clip.low=none clip.high=none loss.kind=dro dro.beta=0.1")
	g := newGrid(6, 6, 6, 6, 6)
	lp := g.fill("logp_new", dump.PerToken, func() float64 { return -8 - 4*r.Float64() })
	old := g.fill("logp_old", dump.PerToken, func() float64 { return 0 })
	adv := g.fill("advantages", dump.PerToken, func() float64 { return r.NormFloat64() })
	loss := make([]float64, len(lp))
	for i := range lp {
		old[i] = float64(float32(lp[i] + 0.01*r.NormFloat64()))
		d := float32(lp[i]) - float32(old[i])
		loss[i] = float64(-float32(adv[i])*float32(lp[i]) + 0.05*d*d)
		adv[i], _ = rounded(adv[i], tol.UB)
	}
	g.token("token_loss", loss...)
	g.Tensors["advantages"].Type = format.BF16
	o := Judge(Find("token_loss/policy"), g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict, "%v %+v", o.Lacking(), o.Tally)
	loss[7] *= 1.02
	require.Equal(t, check.Fail, Judge(Find("token_loss/policy"), g.Batch, s).Verdict)
}

// A divergence on its bound within its error is decided by the gradient of the token; log-probs that are equal have none in any arithmetic.
func TestGateOnItsBound(t *testing.T) {
	beta := "0"
	weights := func(lp float64, slopes ...float64) Input {
		n := 4 // tokens that are kept surely, before the one in question
		g := newGrid(5, 5).token("logp_old", slices.Repeat([]float64{-1}, 5)...).token("logp_new", slices.Repeat([]float64{lp}, 5)...).token("logp_gen", append(slices.Repeat([]float64{-1}, n), -1.00001)...).token("advantages", slices.Repeat([]float64{1}, 5)...)
		if slopes != nil {
			g = g.token("dlogp", append(slices.Repeat([]float64{-0.1}, n), slopes...)...)
		}
		return NewCase(g.Batch, set(t, "tis.level=token tis.rule=seq_filter tis.gate=binary_kl tis.low=0 tis.high=0.01 tis.log_clamp=none clip.low=0.2 clip.high=0.2 kl.beta="+beta), tol.U32).isWeights()
	}
	w := weights(-1)
	require.Equal(t, 1.0, w.X[0])
	require.Less(t, w.Err[0], 1e-5, "equal log-probs are kept")
	require.Greater(t, w.Err[4], 0.9, "nothing says which side")
	for slope, want := range map[float64]float64{-0.1: 1, 0: 0} {
		w := weights(-1, slope)
		require.Less(t, w.Err[4], 1e-5)
		require.InDelta(t, want, w.X[4], 1e-4)
	}
	require.Greater(t, weights(-0.5, 0).Err[4], 0.9, "the ratio may have been cut")
	beta = "0.01" // what a KL in the loss adds is no weight
	for slope, want := range map[float64]float64{-0.103: 1, 0.002: 0, -0.001: 0} {
		w := weights(-1, slope)
		require.Less(t, w.Err[4], 1e-5, "%g", slope)
		require.InDelta(t, want, w.X[4], 1e-4, "%g", slope)
	}
	require.Greater(t, weights(-1, -0.05).Err[4], 0.9, "of neither")
}

// A release that weighs an engine's log-probs unless that is switched off does so where a run has such an engine; that it would says nothing of a run that has none.
func TestWeightsOfADeclaredEngine(t *testing.T) {
	g := newGrid(1, 1, 1).token("logp_gen", -1, -2).token("logp_old", -1.25, -2)
	s := set(t, "tis.rule=zero_outside tis.gate=ratio tis.low=none tis.high=3 tis.log_clamp=none clip.low=0.2 clip.high=0.2 kl.beta=0").With("tis.level", mustParse(t, "tis.level", "token"), "trl-grpo@1.16")
	require.Nil(t, NewCase(g.Batch, s, tol.U32).isWeights().X)
	require.Nil(t, NewCase(g.Batch, s.WithFact("use_vllm", false), tol.U32).isWeights().X)
	w := NewCase(g.Batch, s.WithFact("use_vllm", true), tol.U32).isWeights().X
	require.InDeltaSlice(t, []float64{math.Exp(-0.25), 1}, w, 1e-9)
}
