package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestISWeights has every level and rule on rows that can be followed by hand: log-ratios ln 2, −ln 4, ln 1 and ln 8.
func TestISWeights(t *testing.T) {
	ln := math.Log
	gen := []float64{-3, -3, nan, -3, -3, nan}
	old := []float64{-3 + ln(2), -3 - ln(4), 1e6, -3, -3 + ln(8), nan}
	mask := []bool{true, true, false, true, true, false}
	w := func(o TISOptions) []float64 { return ISWeights(nil, old, gen, mask, 2, 3, o) }
	r2, r8 := math.Sqrt(.5), math.Sqrt(8)
	for _, c := range []struct {
		o    TISOptions
		want []float64
	}{
		{TISOptions{}, []float64{1, 1, 0, 1, 1, 0}},
		{TISOptions{Level: TISToken, High: 2}, []float64{2, .25, 0, 1, 2, 0}},
		{TISOptions{Level: TISToken, Rule: TISClamp, Low: .5, High: 4}, []float64{2, .5, 0, 1, 4, 0}},
		{TISOptions{Level: TISToken, Rule: TISZeroOutside, Low: .5, High: 4}, []float64{2, 0, 0, 1, 0, 0}},
		{TISOptions{Level: TISSeqSum, High: 3}, []float64{.5, .5, 0, 3, 3, 0}},
		{TISOptions{Level: TISSeqSum, Rule: TISZeroOutside, Low: .4, High: 3}, []float64{.5, .5, 0, 0, 0, 0}},
		{TISOptions{Level: TISSeqGeo, High: 2}, []float64{r2, r2, 0, 2, 2, 0}},
		{TISOptions{Level: TISSeqGeo, Rule: TISSeqFilter, Low: 1, High: 3}, []float64{0, 0, 0, 1, 8, 0}},
		{TISOptions{Level: TISSeqGeo, Rule: TISZeroOutside, Low: 1, High: 3}, []float64{0, 0, 0, r8, r8, 0}},
		{TISOptions{Level: TISSeqSum, High: 9, LogClamp: ln(4)}, []float64{.5, .5, 0, 4, 4, 0}},
		{TISOptions{Level: TISToken, High: 3, Normalize: true}, []float64{2 / 1.5625, .25 / 1.5625, 0, 1 / 1.5625, 3 / 1.5625, 0}},
		{TISOptions{Level: TISSeqSum, High: 3, Normalize: true}, []float64{.5 / 1.75, .5 / 1.75, 0, 3 / 1.75, 3 / 1.75, 0}},
		{TISOptions{Level: TISSeqSum, Rule: TISZeroOutside, Low: 4, High: 5, Normalize: true}, []float64{0, 0, 0, 0, 0, 0}},
	} {
		require.NoError(t, off(w(c.o), c.want, 1e-14), "%+v", c.o)
	}
	require.Error(t, off(w(TISOptions{Level: TISSeqGeo, High: 2}), w(TISOptions{Level: TISSeqSum, High: 2}), 1e-14))

	// The levels of a row with log-ratios −.94 per 10000 tokens: NeMo-RL#2269.
	o := TISOptions{Level: TISSeqSum, High: 1}
	long, zero := make([]float64, 10000), make([]float64, 10000)
	for i := range long {
		long[i] = ln(.0596) / 10000
	}
	require.InDelta(t, .0596, ISWeights(nil, long, zero, nil, 1, 10000, o)[0], 1e-12)
	o.Level = TISSeqGeo
	require.InDelta(t, .9997, ISWeights(nil, long, zero, nil, 1, 10000, o)[0], 1e-4)
}

// TestISGates: divergences of the two-point distribution, by token and as a mean over the row.
func TestISGates(t *testing.T) {
	ln := math.Log
	p, q := []float64{.5, .5, .9}, []float64{.5, .25, .1}
	gen, old := []float64{ln(p[0]), ln(p[1]), ln(p[2])}, []float64{ln(q[0]), ln(q[1]), ln(q[2])}
	kl := func(p, q float64) float64 { return p*ln(p/q) + (1-p)*ln((1-p)/(1-q)) }
	at := func(o TISOptions) []float64 { return ISWeights(nil, old, gen, nil, 1, 3, o) }
	o := TISOptions{Level: TISToken, Rule: TISZeroOutside, Gate: TISTV, High: .3}
	require.NoError(t, off(at(o), []float64{1, .5, 0}, 1e-15))
	o.Gate, o.High = TISBinaryKL, kl(.5, .25)+1e-9
	require.NoError(t, off(at(o), []float64{1, .5, 0}, 1e-15))
	o.High = kl(.5, .25) - 1e-9
	require.NoError(t, off(at(o), []float64{1, 0, 0}, 1e-15))
	o = TISOptions{Level: TISSeqGeo, Rule: TISSeqFilter, Gate: TISTV, High: (.25+.8)/3 + 1e-12}
	require.NoError(t, off(at(o), []float64{1, .5, 1. / 9}, 1e-14))
	o.High -= 2e-12
	require.NoError(t, off(at(o), []float64{0, 0, 0}, 0))
}

// TestISLaws: masked cells do not matter, on policy every weight is 1, and the token level knows no rows.
func TestISLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, mask, rows, cols := drawBatch(t, 0)
		gen := drawCells(t, "gen", len(old))
		o := TISOptions{Level: TISLevel(rapid.IntRange(0, 3).Draw(t, "level")), Rule: TISRule(rapid.IntRange(0, 3).Draw(t, "rule")), Low: .5, High: 2,
			Normalize: rapid.Bool().Draw(t, "normalize")}
		w := ISWeights(nil, old, gen, mask, rows, cols, o)
		if dirty := ISWeights(nil, poison(old, mask), poison(gen, mask), mask, rows, cols, o); !sameBits(w, dirty) {
			t.Fatal("contamination")
		}
		for i, v := range ISWeights(nil, old, old, mask, rows, cols, o) {
			if mask[i] && v != 1 || !mask[i] && v != 0 {
				t.Fatalf("on policy the weight is %v", v)
			}
		}
		o.Normalize = false
		for i, v := range ISWeights(nil, old, gen, mask, rows, cols, o) {
			if bounded := o.Rule == TISClamp || o.Rule == TISTruncateUpper; v < 0 || bounded && o.Level != TISNone && v > 2 {
				t.Fatalf("weight %d is %v", i, v)
			}
		}
		o.Level = TISToken
		flat := ISWeights(nil, old, gen, mask, 1, rows*cols, o)
		if !sameBits(flat, ISWeights(nil, old, gen, mask, rows, cols, o)) {
			t.Fatal("the token level depends on rows")
		}
	})
}

func TestOffPolicyMask(t *testing.T) {
	lp := []float64{-2, -2, nan, -2, -2, -2}
	old := []float64{-1, -1.5, nan, -1.9, -1.9, -1.9}
	adv := []float64{1, -1, 1, -1, -1, 0}
	mask := []bool{true, true, false, true, true, true}
	require.Equal(t, []float64{1, 0, 1, 1, 1, 1}, OffPolicyMask(nil, lp, old, adv, mask, 2, 3, .5)) // means .75 and .1
	require.Equal(t, []float64{1, 1, 1, 1, 1, 1}, OffPolicyMask(nil, lp, old, adv, mask, 2, 3, .75), "at the threshold it is near")
}
