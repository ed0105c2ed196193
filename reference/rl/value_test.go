package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tapeValue is [ValueLoss] on the tape, token mean.
func tapeValue(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) (loss float64, grad []float64) {
	var tape ad.Tape
	shape := []int{rows, cols}
	x, r := tape.Param(append([]float64{}, v...), shape...), tape.Const(returns, shape...)
	square := func(y *ad.Var) *ad.Var { d := ad.Sub(y, r); return ad.Mul(d, d) }
	l := square(x)
	if o.Clip > 0 {
		c := tape.Const(old, shape...)
		l = ad.Max(l, square(ad.Add(c, ad.Clamp(ad.Sub(x, c), -o.Clip, o.Clip))))
	}
	n := 0.0
	for _, m := range mask {
		if m {
			n++
		}
	}
	total := ad.Sum(ad.Where(ad.Mask{Shape: shape, On: mask}, l, tape.Const(make([]float64, len(v)), shape...)), false, 0, 1)
	y := ad.Scale(total, o.Factor*o.Coef/n)
	ad.Backward(y, []float64{1})
	return y.Item(), x.Grad()
}

// valueLaws checks the value loss of one batch, and returns the first law that f breaks.
func valueLaws(f func(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) ValueResult,
	v, old, returns []float64, mask []bool, rows, cols int) string {
	o := ValueOptions{Clip: .25, Factor: .5, Coef: .1, Agg: AggOptions{Outside: OutsideIgnore}}
	r := f(v, old, returns, mask, rows, cols, o)
	loss, grad := tapeValue(v, old, returns, mask, rows, cols, o)
	if closeTo([]float64{r.Loss}, []float64{loss}) != nil || closeTo(r.DValue, grad) != nil {
		return "value and gradient of the tape"
	}
	free := o
	free.Clip = 0
	plain := f(v, old, returns, mask, rows, cols, free)
	for i, m := range mask {
		e, c := v[i]-returns[i], max(min(v[i], old[i]+.25), old[i]-.25)-returns[i]
		switch {
		case !m && r.DValue[i] != 0:
			return "masked cells have gradient 0"
		case m && r.Token[i] < plain.Token[i]:
			return "clipped is at least unclipped"
		case m && c*c > e*e && r.DValue[i] != 0:
			return "gradient 0 where the clipped square is larger"
		}
	}
	p := f(poison(v, mask), poison(old, mask), poison(returns, mask), mask, rows, cols, o)
	if p.Loss != r.Loss || !sameBits(p.DValue, r.DValue) {
		return "contamination"
	}
	return ""
}

func rightValue(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) (r ValueResult) {
	if err := ValueLoss(&r, v, old, returns, mask, rows, cols, o); err != nil {
		panic(err)
	}
	return r
}

func TestValueLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, mask, rows, cols := drawBatch(t, 1)
		old, returns := drawCells(t, "old", len(v)), drawCells(t, "returns", len(v))
		// The grid puts v often exactly on old ± 1/4, where v and old are sums of halves.
		for i := range v {
			v[i], old[i] = math.Round(8*v[i])/8, math.Round(8*old[i])/8
		}
		if law := valueLaws(rightValue, v, old, returns, mask, rows, cols); law != "" {
			t.Fatal(law)
		}
	})
}

func TestValueLawsReject(t *testing.T) {
	v, old, returns := []float64{1, 2, .5, -1}, []float64{0, 2.1, 1.5, -3}, []float64{3, 2, 1, -3.1}
	mask := []bool{true, true, true, false}
	require.Empty(t, valueLaws(rightValue, v, old, returns, mask, 1, 4))
	type valueFunc = func(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) ValueResult
	change := func(f func(o *ValueOptions)) valueFunc {
		return func(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) ValueResult {
			f(&o)
			return rightValue(v, old, returns, mask, rows, cols, o)
		}
	}
	for name, f := range map[string]valueFunc{
		"factor 1":   change(func(o *ValueOptions) { o.Factor = 1 }),
		"coef lost":  change(func(o *ValueOptions) { o.Coef = 0 }),
		"unclipped":  change(func(o *ValueOptions) { o.Clip = 0 }),
		"multiplies": change(func(o *ValueOptions) { o.Agg.Outside = OutsidePropagate }),
		"around R": func(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) ValueResult {
			return rightValue(v, returns, old, mask, rows, cols, o)
		},
		"around 0": func(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) ValueResult {
			return rightValue(v, make([]float64, len(v)), returns, mask, rows, cols, o)
		},
		"mask absent": func(v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) ValueResult {
			return rightValue(v, old, returns, nil, rows, cols, o)
		},
	} {
		require.NotEmpty(t, valueLaws(f, v, old, returns, mask, 1, 4), name)
	}
}

func TestValueRules(t *testing.T) {
	var r ValueResult
	require.ErrorIs(t, ValueLoss(&r, []float64{1}, []float64{1}, []float64{1}, []bool{false}, 1, 1, ValueOptions{Agg: AggOptions{Empty: EmptyError}}), ErrEmptyMask)
	require.Equal(t, []float64{1, 1, 0}, ValueClipped(nil, []float64{2, 2, .2}, []float64{0, 3, 0}, []float64{2, 0, 9}, .5))
	require.PanicsWithValue(t, badLength, func() { _ = ValueLoss(&r, []float64{1}, nil, nil, nil, 1, 1, ValueOptions{}) })
	// A NaN at a true cell is a value.
	require.NoError(t, ValueLoss(&r, []float64{nan}, []float64{1}, []float64{1}, nil, 1, 1, ValueOptions{Clip: .5}))
	require.True(t, math.IsNaN(r.Loss))
}
