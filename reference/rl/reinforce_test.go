package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPolicyContamination: with selection, NaN, infinities and ±1e6 in masked cells of every input leave the loss and all
// gradients as they are, bit by bit, whatever the kind of loss, ratio and KL.
func TestPolicyContamination(t *testing.T) {
	kinds := map[string]PolicyOptions{
		"clip_cov": {Kind: LossClipCov, Clip: ClipOptions{Low: .2, High: .2}, Cov: CovOptions{Lower: .1, Upper: 5, MeanEps: 1e-8}},
		"kl_cov":   {Kind: LossKLCov, Cov: CovOptions{Fraction: .3, Coef: 1}},
		"dppo_tv":  {Kind: LossDPPOTV, DPPOLimit: 3, Clip: ClipOptions{Low: .2, High: .2}},
		"dppo_kl":  {Kind: LossDPPOKL, DPPOLimit: 3, Clip: ClipOptions{Low: .05, High: .05}},
	}
	for name, o := range policyCases {
		if o.Agg.Kind != AggLUSPO { // which reads masked cells by definition
			kinds[name] = o
		}
	}
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			o.Agg.Outside = OutsideIgnore
			rapid.Check(t, func(t *rapid.T) {
				b := drawPolicy(t)
				if o.Kind == LossGMPO {
					b.Weight = nil
				}
				clean, err := rightPolicy(b, o)
				if err != nil {
					t.Fatal(err)
				}
				d := b
				d.LogProbs, d.Old, d.Ref, d.Adv = poison(b.LogProbs, b.Mask), poison(b.Old, b.Mask), poison(b.Ref, b.Mask), poison(b.Adv, b.Mask)
				if b.Weight != nil {
					d.Weight = poison(b.Weight, b.Mask)
				}
				dirty, err := rightPolicy(d, o)
				if err != nil || dirty.Loss != clean.Loss || !sameBits(dirty.DLogp, clean.DLogp) || !sameBits(dirty.DRatio, clean.DRatio) {
					t.Fatalf("%v %v, want %v %v", dirty.Loss, dirty.DLogp, clean.Loss, clean.DLogp)
				}
				for i, m := range b.Mask {
					if !m && (dirty.DLogp[i] != 0 || dirty.Weights[i] != 0) {
						t.Fatal("a masked cell has gradient 0")
					}
				}
			})
		})
	}
}

func TestCISPOWeight(t *testing.T) {
	ratio := []float64{.1, 1, 1.5, 9}
	require.Equal(t, []float64{.8, 1, 1.25, 1.25}, CISPOWeight(nil, ratio, ClipOptions{Low: .2, High: .25}), "verl")
	require.Equal(t, []float64{.1, 1, 1.25, 1.25}, CISPOWeight(nil, ratio, ClipOptions{Low: math.Inf(1), High: .25}), "open-instruct")
	require.Equal(t, []float64{.1, 1, 1.5, 4}, CISPOWeight(nil, ratio, ClipOptions{Low: math.Inf(1), High: 4, HighAbsolute: true}), "TRL")
}

// TestDPPOWeight: the trust region stops only what moves further away.
func TestDPPOWeight(t *testing.T) {
	ln := math.Log
	q, p := []float64{.5, .5, .5, .5, .1}, []float64{.8, .8, .2, .2, .35}
	adv := []float64{1, -1, 1, -1, 1}
	lp, old, ratio := make([]float64, 5), make([]float64, 5), make([]float64, 5)
	for i := range p {
		lp[i], old[i], ratio[i] = ln(p[i]), ln(q[i]), p[i]/q[i]
	}
	w := func(div DPPODivergence, bound float64) []float64 {
		return DPPOWeight(nil, ratio, lp, old, adv, div, 3, ClipOptions{Low: bound, High: bound})
	}
	require.NoError(t, off(w(DPPOTV, .2), []float64{0, 1.6, .4, 0, 0}, 1e-15))
	require.NoError(t, off(w(DPPOTV, .31), []float64{1.6, 1.6, .4, .4, 3}, 1e-15), "the limit holds the last")
	kl := func(p, q float64) float64 { return q*ln(q/p) + (1-q)*ln((1-q)/(1-p)) }
	require.NoError(t, off(w(DPPOKL, kl(.8, .5)-1e-6), []float64{0, 1.6, .4, 0, 3}, 1e-15))
	require.NoError(t, off(w(DPPOKL, kl(.8, .5)+1e-6), []float64{1.6, 1.6, .4, .4, 3}, 1e-15))
}

func TestVESPOWeight(t *testing.T) {
	lp, old := []float64{-1, -1, nan}, []float64{-1, -1, nan}
	w := VESPOWeight(nil, lp, old, []float64{1, -1, 1}, nil, []bool{true, true, false}, 1, 3, VESPODefaults)
	require.Equal(t, []float64{1, 1, 1}, w, "on policy the weight is 1")
	lp = []float64{-1 + math.Ln2}
	w = VESPOWeight(nil, lp, []float64{-1}, []float64{1}, nil, nil, 1, 1, VESPODefaults)
	require.InDelta(t, 4*math.Exp(-3), w[0], 1e-15)
	w = VESPOWeight(nil, []float64{0}, []float64{-60}, []float64{-1}, nil, nil, 1, 1, VESPODefaults)
	require.Equal(t, 0.0, w[0], "far out it vanishes")
	at := func(adv float64) float64 {
		return VESPOWeight(nil, lp, []float64{-1}, []float64{adv}, nil, nil, 1, 1, VESPODefaults)[0]
	}
	require.Equal(t, at(1), at(0), "A = 0 counts as positive")
	require.NotEqual(t, at(1), at(-1))
}

func TestGMPO(t *testing.T) {
	lp, old := []float64{-1, -2, nan, -1, -1, -1}, []float64{-1.1, -1.5, nan, -1, -1, -1}
	adv := []float64{1, 3, nan, 0, 0, 0}
	o := GMPOOptions{Low: .2, High: .05}
	loss, grad := GMPO(nil, nil, lp, old, adv, []bool{true, true, false, false, false, false}, 2, 3, o)
	want := -2 * math.Exp((.05-.5)/2) // the first clipped from above, the second free below
	require.NoError(t, off(loss, []float64{want, 0}, 1e-15))
	require.NoError(t, off(grad, []float64{0, want / 2, 0, 0, 0, 0}, 1e-15))
}
