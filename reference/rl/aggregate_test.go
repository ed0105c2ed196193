package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// aggFunc is Aggregate, or a wrong variant of it.
type aggFunc func(loss []float64, mask []bool, rows, cols int, o AggOptions) (float64, []float64)

func rightAgg(loss []float64, mask []bool, rows, cols int, o AggOptions) (float64, []float64) {
	l, w, err := Aggregate(nil, loss, mask, rows, cols, o)
	if err != nil {
		panic(err)
	}
	return l, w
}

// aggLaws checks the laws of aggregation on one batch that has a token, and returns the first that f breaks.
func aggLaws(f aggFunc, loss []float64, mask []bool, rows, cols int) string {
	const tol = 1e-12
	same := func(a, b float64) bool { return math.Abs(a-b) <= tol*max(1, math.Abs(a)) }
	own := AggOptions{Outside: OutsideIgnore}
	for kind := range AggKind(len(aggKinds.names)) {
		o := own
		o.Kind, o.Length, o.DivBatch = kind, 7, true
		l, w := f(loss, mask, rows, cols, o)
		var dot float64 // L is linear: L = Σ w·ℓ
		for i, m := range mask {
			if kind == AggLUSPO {
				dot += w[i] * loss[i]
				continue
			}
			if !m && w[i] != 0 {
				return "masked cells have weight 0"
			}
			if m {
				dot += w[i] * loss[i]
			}
		}
		if !same(l, dot) {
			return "the value is Σ weight·loss: " + kind.String()
		}
		if kind == AggLUSPO {
			continue
		}
		lp, wp := f(poison(loss, mask), mask, rows, cols, o)
		if lp != l || !sameBits(w, wp) {
			return "contamination: " + kind.String()
		}
		// Padding: one more masked column changes nothing.
		wide, wm := make([]float64, 0, rows*(cols+1)), make([]bool, 0, rows*(cols+1))
		for r := range rows {
			wide = append(append(wide, loss[r*cols:(r+1)*cols]...), 99)
			wm = append(append(wm, mask[r*cols:(r+1)*cols]...), false)
		}
		if lw, _ := f(wide, wm, rows, cols+1, o); lw != l {
			return "amount of padding: " + kind.String()
		}
		// The batch twice leaves every mean.
		l2, _ := f(append(append([]float64{}, loss...), loss...), append(append([]bool{}, mask...), mask...), 2*rows, cols, o)
		if want := l; !same(l2, want) && kind != AggTokenSum {
			return "the batch twice: " + kind.String()
		}
		// Row by row with the global denominator gives the whole.
		var tokens, full float64
		for r := range rows {
			any := 0.0
			for _, m := range mask[r*cols : (r+1)*cols] {
				if m {
					tokens++
					any = 1
				}
			}
			full += any
		}
		o.Denominator, o.Tokens, o.Rows = AggGlobal, tokens, full
		var parts float64
		for r := range rows {
			p, _ := f(loss[r*cols:(r+1)*cols], mask[r*cols:(r+1)*cols], 1, cols, o)
			parts += p
		}
		if !same(parts, l) {
			return "micro-batches with the global denominator: " + kind.String()
		}
		// An empty row matters only where it is counted.
		o.Denominator, o.EmptyRows = AggMicro, AggCounted
		le, _ := f(append(append([]float64{}, loss...), make([]float64, cols)...), append(append([]bool{}, mask...), make([]bool, cols)...), rows+1, cols, o)
		switch counted := le * float64(rows+1); kind {
		case AggSeqMeanTokenMean, AggSeqMeanTokenSum, AggSeqSumConst:
			lc, _ := f(loss, mask, rows, cols, o)
			if !same(counted, lc*float64(rows)) {
				return "an empty row is counted: " + kind.String()
			}
		default:
			if le != l {
				return "an empty row changes nothing: " + kind.String()
			}
		}
	}
	one, om := pick(loss[:cols], mask[:cols]), []bool(nil)
	if len(one) > 0 { // on one sequence the means agree
		a, _ := f(one, om, 1, len(one), own)
		b, _ := f(one, om, 1, len(one), AggOptions{Kind: AggSeqMeanTokenMean})
		c, _ := f(one, om, 1, len(one), AggOptions{Kind: AggSeqSumConst})
		if !same(a, b) || !same(a, c) {
			return "one sequence"
		}
	}
	return ""
}

func TestAggregateLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loss, mask, rows, cols := drawBatch(t, 1)
		if law := aggLaws(rightAgg, loss, mask, rows, cols); law != "" {
			t.Fatal(law)
		}
	})
}

func TestAggregateLawsReject(t *testing.T) {
	loss := []float64{1, 2, 3, 4, -5, 6}
	mask := []bool{true, true, true, true, false, false}
	require.Empty(t, aggLaws(rightAgg, loss, mask, 2, 3))
	change := func(f func(o *AggOptions)) aggFunc {
		return func(loss []float64, mask []bool, rows, cols int, o AggOptions) (float64, []float64) {
			f(&o)
			return rightAgg(loss, mask, rows, cols, o)
		}
	}
	for name, f := range map[string]aggFunc{
		"local denominators":    change(func(o *AggOptions) { o.Denominator = AggMicro }),
		"divided by the padded": change(func(o *AggOptions) { o.Length = 0 }),
		"empty rows left out":   change(func(o *AggOptions) { o.EmptyRows = AggExcluded }),
		"multiplies":            change(func(o *AggOptions) { o.Outside = OutsidePropagate }),
		"not divided by B":      change(func(o *AggOptions) { o.DivBatch = false }),
		"eps too large":         change(func(o *AggOptions) { o.Eps = 1e-3 }),
		"mask ignored": func(loss []float64, mask []bool, rows, cols int, o AggOptions) (float64, []float64) {
			return rightAgg(loss, nil, rows, cols, o)
		},
		"weight of the next row": func(loss []float64, mask []bool, rows, cols int, o AggOptions) (float64, []float64) {
			l, w := rightAgg(loss, mask, rows, cols, o)
			return l, append(w[cols:], w[:cols]...)
		},
		"one token lost": func(loss []float64, mask []bool, rows, cols int, o AggOptions) (float64, []float64) {
			l, w := rightAgg(loss, mask, rows, cols, o)
			return l - w[0]*loss[0], w
		},
	} {
		require.NotEmpty(t, aggLaws(f, loss, mask, 2, 3), name)
	}
}

// TestAggregateDiffer: on unequal lengths the modes are different numbers.
func TestAggregateDiffer(t *testing.T) {
	loss := []float64{1, 2, 3, 4, -5, 6}
	mask := []bool{true, true, true, true, false, false}
	seen := map[float64]AggKind{}
	for kind := range AggKind(len(aggKinds.names)) {
		l, _ := rightAgg(loss, mask, 2, 3, AggOptions{Kind: kind})
		other, twice := seen[l]
		require.False(t, twice, "%v and %v", kind, other)
		seen[l] = kind
	}
	want := map[AggKind]float64{AggToken: 2.5, AggTokenSum: 10, AggSeqMeanTokenMean: 3, AggSeqMeanTokenSum: 5, AggSeqSumConst: 10. / 3,
		AggLUSPO: (3*6 + 1*5) / 6.}
	for kind, w := range want {
		l, _ := rightAgg(loss, mask, 2, 3, AggOptions{Kind: kind})
		require.Equal(t, w, l, "%v", kind)
	}
}

// TestAggregateEps: the eps belong to the counts, LenEps to the length of a row.
func TestAggregateEps(t *testing.T) {
	loss, mask := []float64{1, 2, 3, 4}, []bool{true, true, true, false}
	for _, c := range []struct {
		o    AggOptions
		want float64
	}{
		{AggOptions{Eps: 1}, 6. / 4},
		{AggOptions{Kind: AggSeqMeanTokenMean, Eps: 1}, (1.5 + 3) / 3},
		{AggOptions{Kind: AggSeqMeanTokenMean, LenEps: 1}, (1 + 1.5) / 2},
		{AggOptions{Kind: AggSeqMeanTokenSum, Eps: 1}, 6. / 3},
		{AggOptions{Kind: AggSeqSumConst, Eps: 1}, 6. / 2},
		{AggOptions{Kind: AggSeqSumConst, Eps: 1, DivBatch: true, Length: 4}, 6. / 12},
		{AggOptions{Kind: AggSeqSumConst, DivBatch: true, Denominator: AggRank, Rows: 5, Length: 4, Steps: 2, Scale: 3}, 6. / 20 * 3 / 2},
	} {
		l, w := rightAgg(loss, mask, 2, 2, c.o)
		require.InDelta(t, c.want, l, 1e-15, "%+v", c.o)
		require.InDelta(t, c.want, w[0]*1+w[1]*2+w[2]*3, 1e-15, "%+v", c.o)
	}
}

func TestAggregateEmpty(t *testing.T) {
	loss, mask := []float64{1, 2}, []bool{false, false}
	for _, kind := range []AggKind{AggToken, AggSeqMeanTokenMean, AggSeqMeanTokenSum} {
		l, _, err := Aggregate(nil, loss, mask, 1, 2, AggOptions{Kind: kind})
		require.NoError(t, err)
		require.True(t, math.IsNaN(l), "%v", kind)
		l, w, err := Aggregate(nil, loss, mask, 1, 2, AggOptions{Kind: kind, Empty: EmptyZero})
		require.NoError(t, err)
		require.Equal(t, 0.0, l)
		require.Equal(t, []float64{0, 0}, w)
		_, _, err = Aggregate(nil, loss, mask, 1, 2, AggOptions{Kind: kind, Empty: EmptyError})
		require.ErrorIs(t, err, ErrEmptyMask)
	}
	l, w, err := Aggregate(nil, []float64{nan, 2}, mask, 1, 2, AggOptions{Kind: AggTokenSum, Outside: OutsideIgnore, Empty: EmptyError})
	require.NoError(t, err)
	require.Equal(t, 0.0, l)
	require.Equal(t, []float64{0, 0}, w)
	l, _, err = Aggregate(nil, nil, nil, 0, 5, AggOptions{Empty: EmptyZero})
	require.NoError(t, err)
	require.Equal(t, 0.0, l)
	require.PanicsWithValue(t, badLength, func() { _, _, _ = Aggregate(nil, loss, mask, 2, 2, AggOptions{}) })
	require.PanicsWithValue(t, badOption, func() { _, _, _ = Aggregate(nil, loss, mask, 1, 2, AggOptions{Kind: 17}) })
}
