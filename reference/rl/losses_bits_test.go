package rl

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLossBits runs everything of the losses that needs no function of package math, on ratios and log-probs that are given.
// The bits are the same under GOAMD64=v1 and v3, because no product is fused into a sum. (math.Exp picks an instruction set
// at run time, so that what comes after it is not part of this.)
//
// The digest was printed by this test under GOAMD64=v1, Go 1.26. It guards against change; that the numbers are right is for
// the other tests.
func TestLossBits(t *testing.T) {
	const want = "49f250170f3bf74f"
	const rows, cols = 7, 13
	fill := func(salt int) []float64 {
		x := make([]float64, rows*cols)
		for i := range x {
			x[i] = float64((i+salt)*7919%1009-504) / 331 // one rounding, full mantissa
		}
		return x
	}
	mask := make([]bool, rows*cols)
	for i := range mask {
		mask[i] = i%5 != 2
	}
	lp, ref, adv, ratio := fill(1), fill(2), fill(3), fill(4)
	h := fnv.New64a()
	add := func(xs ...[]float64) {
		for _, x := range xs {
			for _, v := range x {
				require.False(t, math.IsNaN(v))
				var b [8]byte
				binary.LittleEndian.PutUint64(b[:], math.Float64bits(v))
				h.Write(b[:])
			}
		}
	}
	for _, kind := range []KLKind{KLK1, KLK2, KLAbs, KLRatioD} {
		for _, grad := range []KLGrad{KLNaive, KLScoreFunction, KLStraightThroughK2, KLISCorrected} {
			v, g := KL(nil, nil, lp, ref, nil, KLOptions{Kind: kind, Grad: grad, ClampIn: 1, ClampOut: .9, ClampAll: true})
			add(v, g)
		}
	}
	clip := ClipOptions{Low: .2, High: .28, Dual: 1.5, Delta: 1.9}
	loss, slope := PPO(nil, nil, ratio, adv, clip)
	add(loss, slope)
	for kind := range AggKind(len(aggKinds.names)) {
		l, w, err := Aggregate(nil, loss, mask, rows, cols, AggOptions{Kind: kind, LenEps: 1e-8, Eps: 1e-8, DivBatch: true, Length: 11, Steps: 3, Scale: 7})
		require.NoError(t, err)
		add([]float64{l}, w)
	}
	add(CISPOWeight(nil, ratio, clip), Clipped(nil, ratio, adv, ClipFracBinding, clip), OffPolicyMask(nil, lp, ref, adv, mask, rows, cols, .1))
	l, d := Reinforce(nil, nil, lp, adv, ratio)
	add(l, d)
	l, d = DRO(nil, nil, lp, ref, adv, .3)
	add(l, d)
	cov := TokenCovariance(nil, lp, adv, mask, 1e-8)
	l, d, e := KLCov(nil, nil, nil, ratio, lp, ref, adv, KLCovSelect(nil, cov, mask, CovOptions{Fraction: .3}), .7)
	add(cov, l, d, e)
	var v ValueResult
	require.NoError(t, ValueLoss(&v, lp, ref, adv, mask, rows, cols, ValueOptions{Clip: .3, Coef: .1}))
	add([]float64{v.Loss, ExplainedVariance(lp, ref, mask)}, v.Token, v.DValue)
	dlp := fill(5)
	for _, level := range []RatioLevel{RatioToken, RatioSeqMean, RatioSeqSum} {
		RatioBackward(dlp, slope, ratio, lp, ref, mask, rows, cols, RatioOptions{Level: level, LenEps: 1e-8, LogClamp: 2})
	}
	l, d, _ = DPO(nil, nil, nil, lp, ref, adv, ratio, DPOOptions{Kind: DPOIPO, Beta: .1})
	add(dlp, l, d)
	require.Equal(t, want, fmt.Sprintf("%016x", h.Sum64()))
}
