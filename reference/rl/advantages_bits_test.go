package rl

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdvantageBits runs every function of rewards and advantages that uses + − × ÷ √ only: the results have the same bits
// under GOAMD64=v1 and v3 and on other machines, because no product is fused into a sum.
//
// The digest was printed by this test under GOAMD64=v1, Go 1.26. It guards against change; that the numbers are right is
// for the other tests.
func TestAdvantageBits(t *testing.T) {
	const want = "f652bb71d20f2b95"

	const rows, cols, n = 12, 17, 12 * 17
	fill := func(salt, n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64((i+salt)*7919%1009-504) / 331 // one rounding, full mantissa
		}
		return x
	}
	mask := make([]bool, n)
	done := make([]bool, n)
	for i := range mask {
		mask[i] = i*5%7 < 5
		done[i] = i%11 == 10
	}
	group := make([]int, rows)
	for i := range group {
		group[i] = i * 5 % 4
	}
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
	score := MissingEOS(nil, fill(1, rows), done[:rows], EOSScale, .3)
	ClipRewards(score, score, -1.2, 1.2)
	reward := TokenRewards(nil, score, fill(2, n), mask, nil, rows, cols, RewardOptions{Beta: .05})
	b := Rollout{Rows: rows, Cols: cols, Reward: reward, Value: fill(3, n), Mask: mask, Done: done, Next: fill(4, rows)}
	for hole := HoleNone; hole <= HoleCutNext; hole++ {
		adv, ret := GAE(nil, nil, b, GAEOptions{Gamma: .97, Lambda: .93, Hole: hole, Bootstrap: BootstrapValue, LambdaPolicy: LambdaVAPO, Alpha: .2})
		add(adv, ret)
		for place := InsideSqrt; place <= AddStd; place++ {
			for shift := ShiftTrue; shift <= ShiftFalsePlain; shift++ {
				white, err := Whiten(nil, adv, mask, rows, cols, WhitenOptions{Scope: ScopeRow, EpsPlace: place, Eps: 1e-3, Shift: shift,
					Var: VarOptions{DDof: 1, Mean: MeanOptions{Eps: 1e-8}}})
				require.NoError(t, err)
				add(white)
			}
		}
	}
	add(RewardToGo(nil, reward, mask, rows, cols, .9, HoleCarry), RewardToGo(nil, reward, mask, rows, cols, .9, HoleZeroStep))
	for center := CenterMean; center <= CenterNone; center++ {
		for scale := ScaleNone; scale <= ScaleLOOStd; scale++ {
			adv, err := GroupAdvantage(nil, score, group, GroupOptions{Center: center, Scale: scale, DDof: 1, Eps: 1e-6, BatchCentred: center == CenterLOO})
			require.NoError(t, err)
			add(adv)
		}
	}
	multi, err := MultiAdvantage(nil, fill(5, 2*rows), []float64{.3, .7}, group, NormalizeThenSum, GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-4})
	require.NoError(t, err)
	pass, err := PassKAdvantage(nil, score, group, true, 1e-6)
	require.NoError(t, err)
	remax, returns := ReMaxAdvantage(nil, nil, reward, score, mask, rows, cols)
	add(multi, pass, remax, returns, OPOAdvantage(nil, score, fill(6, rows), group), GPGAdvantage(nil, score, group, 3))
	add([]float64{OverlongPenalty(95, 100, 30, .7), AdaptKL(.15, 6.3, 6, 1e4, 512)})
	require.Equal(t, want, fmt.Sprintf("%016x", h.Sum64()))
}

// BenchmarkGAE is one million tokens.
func BenchmarkGAE(b *testing.B) {
	const rows, cols = 1000, 1000
	x := make([]float64, rows*cols)
	mask := make([]bool, len(x))
	for i := range x {
		x[i], mask[i] = float64(i%97)/97, i%cols < 900
	}
	batch := Rollout{Rows: rows, Cols: cols, Reward: x, Value: x, Mask: mask}
	adv, ret := make([]float64, len(x)), make([]float64, len(x))
	b.ReportAllocs()
	for b.Loop() {
		GAE(adv, ret, batch, GAEOptions{Gamma: .99, Lambda: .95, Hole: HoleCarry})
	}
}

// BenchmarkWhiten is one million tokens.
func BenchmarkWhiten(b *testing.B) {
	const rows, cols = 1000, 1000
	x := make([]float64, rows*cols)
	mask := make([]bool, len(x))
	for i := range x {
		x[i], mask[i] = float64(i%97)/97, i%cols < 900
	}
	dst := make([]float64, len(x))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Whiten(dst, x, mask, rows, cols, own); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGroupAdvantage is one million rewards in groups of eight.
func BenchmarkGroupAdvantage(b *testing.B) {
	r := make([]float64, 1<<20)
	for i := range r {
		r[i] = float64(i % 97)
	}
	group, adv := GroupBlocks(len(r), 8), make([]float64, len(r))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := GroupAdvantage(adv, r, group, GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-6}); err != nil {
			b.Fatal(err)
		}
	}
}
