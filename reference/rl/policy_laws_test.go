package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// policyFunc is Policy, or a wrong variant of it.
type policyFunc func(b PolicyBatch, o PolicyOptions) (PolicyResult, error)

func rightPolicy(b PolicyBatch, o PolicyOptions) (r PolicyResult, err error) {
	err = Policy(&r, b, o)
	return r, err
}

// clipped is the surrogate that the laws are stated for.
var clipped = PolicyOptions{Clip: ClipOptions{Low: .2, High: .3}, Agg: AggOptions{Outside: OutsideIgnore}}

// policyLaws checks the laws of the clipped surrogate on one batch, and returns the first that f breaks.
func policyLaws(f policyFunc, b PolicyBatch) string {
	o := clipped
	r, err := f(b, o)
	if err != nil {
		return err.Error()
	}
	lo, hi := .8, 1.3
	var n, sum float64
	for i, m := range b.Mask {
		if m {
			n++
			sum += b.Adv[i]
		}
	}
	for i, m := range b.Mask {
		a, rho := b.Adv[i], math.Exp(b.LogProbs[i]-b.Old[i])
		if !m {
			if r.DLogp[i] != 0 {
				return "a masked token has gradient 0"
			}
			continue
		}
		out := a > 0 && rho > hi || a < 0 && rho < lo
		onBound := math.Abs(rho-lo) < 1e-12 || math.Abs(rho-hi) < 1e-12
		switch {
		case onBound:
		case (r.DLogp[i] == 0) != (out || a == 0):
			return "gradient 0 iff clipped or A = 0"
		case !out && a != 0 && math.Signbit(r.DLogp[i]) == math.Signbit(a):
			return "raising lp of a token with A > 0 lowers the loss"
		}
		if r.Token[i] < -a*r.Ratio[i] {
			return "the clipped loss is at least the unclipped one"
		}
	}

	// Ratio 1: the loss is −mean A, the gradient −A/N.
	same := b
	same.Old = nil
	r1, _ := f(same, o)
	if !(math.Abs(r1.Loss+sum/n) <= 1e-12) {
		return "ratio 1: the loss is −mean A"
	}
	detached := b
	detached.Old = append([]float64{}, b.LogProbs...)
	r2, _ := f(detached, o)
	if r1.Loss != r2.Loss || !sameBits(r1.DLogp, r2.DLogp) {
		return "old absent equals a detached copy"
	}
	for i, m := range b.Mask {
		if m && !(math.Abs(r1.DLogp[i]+b.Adv[i]/n) <= 1e-12) {
			return "ratio 1: the gradient is −A/N"
		}
	}

	// No bounds: the importance-sampled loss. Bounds 0: gradient only in the corrective direction.
	free := o
	free.Clip = NoClip
	rf, _ := f(b, free)
	closed := o
	closed.Clip = ClipOptions{}
	rc, _ := f(b, closed)
	for i, m := range b.Mask {
		if !m {
			continue
		}
		a, rho := b.Adv[i], rf.Ratio[i]
		if rf.Token[i] != -a*rho || !(math.Abs(rf.DLogp[i]+a*rho/n) <= 1e-12*max(1, rho)) {
			return "without bounds it is the importance-sampled loss"
		}
		if away := a > 0 && rho > 1 || a < 0 && rho < 1; away && rc.DLogp[i] != 0 {
			return "bounds 0: gradient only in the corrective direction"
		}
	}

	// Doubling A doubles everything; what masked cells hold does not matter.
	twice := b
	twice.Adv = make([]float64, len(b.Adv))
	for i, a := range b.Adv {
		twice.Adv[i] = 2 * a
	}
	rt, _ := f(twice, o)
	if rt.Loss != 2*r.Loss {
		return "A → 2A doubles the loss"
	}
	for i := range r.DLogp {
		if rt.DLogp[i] != 2*r.DLogp[i] {
			return "A → 2A doubles the gradient"
		}
	}
	dirty := b
	dirty.LogProbs, dirty.Old, dirty.Adv = poison(b.LogProbs, b.Mask), poison(b.Old, b.Mask), poison(b.Adv, b.Mask)
	rp, err := f(dirty, o)
	if err != nil || rp.Loss != r.Loss || !sameBits(rp.DLogp, r.DLogp) {
		return "contamination"
	}

	// A dual clip touches only A < 0 with ρ > c; delta ≥ 1 + High equals it.
	dual, delta := o, o
	dual.Clip.Dual, delta.Clip.Delta = 1.5, 1.5
	rd, _ := f(b, dual)
	rx, _ := f(b, delta)
	for i, m := range b.Mask {
		touched := b.Adv[i] < 0 && r.Ratio[i] > 1.5
		if m && !touched && (rd.Token[i] != r.Token[i] || rd.DLogp[i] != r.DLogp[i]) {
			return "the dual clip touches only A < 0 and ρ > c"
		}
		if m && touched && (rd.DLogp[i] != 0 || rd.Token[i] != -b.Adv[i]*1.5) {
			return "the dual clip bounds the loss"
		}
	}
	if rd.Loss != rx.Loss || !sameBits(rd.DLogp, rx.DLogp) {
		return "delta ≥ 1 + High equals the dual clip"
	}
	return ""
}

func TestPolicyLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawPolicy(t)
		b.Weight = nil
		if law := policyLaws(rightPolicy, b); law != "" {
			t.Fatal(law)
		}
	})
}

// lawBatch has clipped, unclipped, dual-clipped and masked tokens of both signs.
var lawBatch = PolicyBatch{Rows: 2, Cols: 4, Mask: []bool{true, true, true, false, true, false, true, false},
	Old: []float64{-1, -2, -.5, -1, -3, -1.5, -1, -2}, LogProbs: []float64{-.5, -1.2, -1, -1.1, -2.78, -2.5, -1.1, -2},
	Adv: []float64{1, -2, -1, .5, 1.5, 2, -.7, 1}}

func TestPolicyLawsReject(t *testing.T) {
	require.Empty(t, policyLaws(rightPolicy, lawBatch))
	change := func(f func(o *PolicyOptions)) policyFunc {
		return func(b PolicyBatch, o PolicyOptions) (PolicyResult, error) {
			f(&o)
			return rightPolicy(b, o)
		}
	}
	after := func(f func(b *PolicyBatch, r *PolicyResult)) policyFunc {
		return func(b PolicyBatch, o PolicyOptions) (PolicyResult, error) {
			r, err := rightPolicy(b, o)
			f(&b, &r)
			return r, err
		}
	}
	for name, f := range map[string]policyFunc{
		"no clip":          change(func(o *PolicyOptions) { o.Clip.Low, o.Clip.High = math.Inf(1), math.Inf(1) }),
		"sides exchanged":  change(func(o *PolicyOptions) { o.Clip.Low, o.Clip.High = o.Clip.High, o.Clip.Low }),
		"multiplies":       change(func(o *PolicyOptions) { o.Agg.Outside = OutsidePropagate }),
		"padding counted":  change(func(o *PolicyOptions) { o.Agg.Denominator, o.Agg.Tokens = AggConstant, 8 }),
		"row means":        change(func(o *PolicyOptions) { o.Agg.Kind = AggSeqMeanTokenMean }),
		"log clamp":        change(func(o *PolicyOptions) { o.Ratio.LogClamp = .1 }),
		"sequence ratio":   change(func(o *PolicyOptions) { o.Ratio.Level = RatioSeqMean }),
		"reinforce":        change(func(o *PolicyOptions) { o.Kind = LossReinforce }),
		"dual on any sign": change(func(o *PolicyOptions) { o.Clip.Delta = max(o.Clip.Dual, o.Clip.Delta) / 1.4 }),
		"sign":             after(func(b *PolicyBatch, r *PolicyResult) { r.DLogp[0] = -r.DLogp[0] }),
		"masked gradient":  after(func(b *PolicyBatch, r *PolicyResult) { r.DLogp[3] = 1e-300 }),
		"minimum": func(b PolicyBatch, o PolicyOptions) (PolicyResult, error) {
			neg := b
			neg.Adv = make([]float64, len(b.Adv))
			for i, a := range b.Adv {
				neg.Adv[i] = -a
			}
			r, err := rightPolicy(neg, o)
			for i := range r.DLogp {
				r.DLogp[i], r.Token[i] = -r.DLogp[i], -r.Token[i]
			}
			r.Loss = -r.Loss
			return r, err
		},
		"advantage not detached": func(b PolicyBatch, o PolicyOptions) (PolicyResult, error) {
			r, err := rightPolicy(b, o)
			for i, w := range r.Weights {
				r.DLogp[i] -= 1e-3 * w
			}
			return r, err
		},
	} {
		require.NotEmpty(t, policyLaws(f, lawBatch), name)
	}
}

// TestPPOKinks has the values of torch 2.15 where derivatives do not exist.
func TestPPOKinks(t *testing.T) {
	half := ClipOptions{Low: .5, High: .5, Dual: 3, Delta: 2.5}
	for _, c := range []struct{ ratio, adv, loss, slope float64 }{
		{1, 2, -2, -2},    // inside, both operands equal: the halves add up
		{1.5, 2, -3, -1},  // on the bound: the half of the unclipped operand is left
		{.5, -2, 1, 1},    // likewise below
		{1.5, -2, 3, 1},   // A < 0: also equal there
		{.5, 2, -1, -1},   // likewise
		{1.75, 2, -3, 0},  // clipped
		{.25, -2, 1, 0},   // clipped
		{.25, 2, -.5, -2}, // corrective
		{2, -2, 4, 2},     // corrective
		{2.5, -2, 5, 0},   // on delta: a clamp passes nothing
		{4, -2, 5, 0},     // beyond
		{1, 0, 0, 0},      // no advantage
		{math.Inf(1), 2, -3, 0},
	} {
		loss, slope := PPO(nil, nil, []float64{c.ratio}, []float64{c.adv}, half)
		require.Equal(t, []float64{c.loss}, loss, "%+v", c)
		require.Equal(t, c.slope, slope[0]+0, "%+v", c)
	}
	loss, slope := PPO(nil, nil, []float64{3}, []float64{-2}, ClipOptions{Low: .5, High: .5, Dual: 3})
	require.Equal(t, []float64{6}, loss)
	require.Equal(t, []float64{1}, slope, "on the dual bound half is left")
	for _, c := range [][2]float64{{nan, 1}, {1, nan}, {nan, nan}} {
		loss, slope := PPO(nil, nil, c[:1], c[1:], half)
		require.True(t, math.IsNaN(loss[0]) && math.IsNaN(slope[0]), "%v", c)
	}
}

// TestPolicyPropagate: multiplying by the mask lets NaN and infinities through, selecting does not.
func TestPolicyPropagate(t *testing.T) {
	dirty := lawBatch
	dirty.LogProbs = append([]float64{}, lawBatch.LogProbs...)
	dirty.LogProbs[3] = nan
	o := clipped
	r, err := rightPolicy(dirty, o)
	require.NoError(t, err)
	require.False(t, math.IsNaN(r.Loss))
	o.Agg.Outside = OutsidePropagate
	r, err = rightPolicy(dirty, o)
	require.NoError(t, err)
	require.True(t, math.IsNaN(r.Loss))
	require.True(t, math.IsNaN(r.DLogp[3]))
	require.False(t, math.IsNaN(r.DLogp[0]))
}

// TestPolicyReuse: a second call with the same result gives what a fresh one gives.
func TestPolicyReuse(t *testing.T) {
	var used PolicyResult
	for name, o := range policyCases {
		b := lawBatch
		b.Ref = b.Old
		require.NoError(t, Policy(&used, b, o), name)
		fresh, err := rightPolicy(b, o)
		require.NoError(t, err)
		require.Equal(t, fresh.Loss, used.Loss, name)
		require.True(t, sameBits(fresh.DLogp, used.DLogp), name)
		require.True(t, sameBits(fresh.DRatio, used.DRatio), name)
	}
	require.PanicsWithValue(t, badLength, func() { _ = Policy(&used, PolicyBatch{Rows: 1, Cols: 1}, clipped) })
	require.PanicsWithValue(t, badOption, func() { _ = Policy(&used, lawBatch, PolicyOptions{Kind: LossGSPO}) })
	require.PanicsWithValue(t, badOption, func() { _ = Policy(&used, lawBatch, PolicyOptions{Kind: 99}) })
	weighted := lawBatch
	weighted.Weight = make([]float64, weighted.Rows*weighted.Cols)
	require.PanicsWithValue(t, badOption, func() { _ = Policy(&used, weighted, PolicyOptions{Kind: LossGMPO}) }, "gmpo has no weights: they would be left out in silence")
}

// TestCovariances has both covariance losses on a batch that can be followed by hand.
func TestCovariances(t *testing.T) {
	lp, adv := []float64{-1, -2, -3, -9}, []float64{2, 0, 1, nan}
	mask := []bool{true, true, true, false}
	cov := TokenCovariance(nil, lp, adv, mask, 0) // means −2 and 1
	require.Equal(t, []float64{1, 0, 0}, []float64{cov[0], cov[1] + 0, cov[2] + 0})
	ratio := []float64{1, 1, 1, 1}
	o := CovOptions{Lower: .5, Upper: 5}
	require.Equal(t, []bool{true, false, false, false}, ClipCovCandidates(nil, cov, ratio, adv, mask, ClipOptions{Low: .2, High: .2}, o))
	o.Upper = 1
	require.Equal(t, []bool{false, false, false, false}, ClipCovCandidates(nil, cov, ratio, adv, mask, ClipOptions{Low: .2, High: .2}, o), "strictly between")
	o = CovOptions{Lower: .5, Upper: 5}
	require.Equal(t, []bool{false, false, false, false}, ClipCovCandidates(nil, cov, []float64{2, 1, 1, 1}, adv, mask, ClipOptions{Low: .2, High: .2}, o), "clipped")
	require.Equal(t, []bool{true, false, false, false}, KLCovSelect(nil, cov, mask, CovOptions{}), "at least one")
	require.Equal(t, []bool{true, true, false, false}, KLCovSelect(nil, cov, mask, CovOptions{Fraction: .7}), "the earlier of equals")
	require.Equal(t, []bool{true, true, true, false}, KLCovSelect(nil, cov, mask, CovOptions{Fraction: 5}))

	loss, dratio, dlp := KLCov(nil, nil, nil, []float64{1.5, 1}, []float64{-1, -2}, []float64{-1.5, -1}, []float64{2, 3}, []bool{true, true}, 4)
	require.Equal(t, []float64{-3 + 2, -3 + 4}, loss)
	require.Equal(t, []float64{-2, -3}, dratio)
	require.Equal(t, []float64{4, -4}, dlp)

	// Dropped tokens leave the loss but stay in the denominator.
	b := PolicyBatch{Rows: 1, Cols: 2, LogProbs: []float64{-1, -1}, Adv: []float64{1, 3}, Drop: []bool{true, false}}
	r, err := rightPolicy(b, PolicyOptions{Kind: LossClipCov, Clip: NoClip})
	require.NoError(t, err)
	require.Equal(t, -1.5, r.Loss)
	require.Equal(t, []float64{0, -1.5}, r.DLogp)
}
