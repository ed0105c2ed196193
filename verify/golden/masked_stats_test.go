package golden_test

import (
	"errors"
	"math"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// float32Leak bounds the relative error of a quotient that a framework rounds to float32: half a unit in the last place.
// TRL's Bessel factor n/(n−1) of two integers is such a quotient (conventions.md, section 7).
const float32Leak = 0x1p-24

// meanOf is the masked mean of each framework.
var meanOf = map[string]rl.MeanOptions{
	"trl-ppo":  {},
	"openrlhf": {},
	"verl":     {Eps: 1e-8, Empty: rl.EmptyZero, Outside: rl.OutsideIgnore},
}

// varOf is the masked variance of each framework.
func varOf(peer string, unbiased bool) rl.VarOptions {
	o := rl.VarOptions{Mean: meanOf[peer], Empty: rl.EmptyNaN}
	if peer == "verl" {
		o.Empty = rl.EmptyZero
	}
	if unbiased {
		o.DDof, o.Empty = 1, rl.EmptyError
		if peer == "verl" {
			o.Single = rl.SingleError
		}
	}
	return o
}

// whitenOf is masked_whiten of TRL and verl.
func whitenOf(peer string, shift bool) rl.WhitenOptions {
	o := rl.WhitenOptions{Var: varOf(peer, true), Scope: rl.ScopeGlobal, Eps: 1e-8}
	if !shift {
		o.Shift = rl.ShiftFalseAddBack
	}
	return o
}

// requireRaises checks that err is there exactly when the framework raised, and is one of the errors of package rl.
func requireRaises(t *testing.T, e *entry, out *value, err error) (raised bool) {
	t.Helper()
	if out.Raises == "" {
		require.NoError(t, err, e.name())
		return false
	}
	require.Equal(t, "ValueError", out.Raises, e.name())
	require.True(t, errors.Is(err, rl.ErrEmptyMask) || errors.Is(err, rl.ErrSingle) || errors.Is(err, rl.ErrGroupOfOne), "%s: %v", e.name(), err)
	return true
}

func TestMaskedStats(t *testing.T) {
	compared := 0
	for _, e := range load(t, "masked_stats") {
		x, mask := e.input(t, "x"), e.input(t, "mask")
		rows, cols := x.dims(t)
		m := mask.bools()
		axis := "axis"
		if e.Peer == "openrlhf" {
			axis = "dim"
		}
		compared++
		switch e.Function {
		case "masked_mean":
			want := e.output(t, "mean")
			if _, byRow := e.num(t, axis); byRow {
				got, err := rl.MaskedMeanRows(nil, x.Data, m, rows, cols, meanOf[e.Peer])
				require.NoError(t, err)
				requireNear(t, e, "mean", got, want.Data, exact)
			} else {
				got, err := rl.MaskedMean(x.Data, m, meanOf[e.Peer])
				require.NoError(t, err)
				requireNear(t, e, "mean", []float64{got}, want.Data, exact)
			}
		case "masked_sum":
			want := e.output(t, "sum")
			if _, byRow := e.num(t, axis); byRow {
				requireNear(t, e, "sum", rl.RowSums(nil, x.Data, m, rows, cols), want.Data, exact)
			} else {
				requireNear(t, e, "sum", []float64{rl.MaskedSum(x.Data, m, rl.OutsideIgnore)}, want.Data, exact)
			}
		case "masked_var":
			want := e.output(t, "var")
			got, err := rl.MaskedVar(x.Data, m, varOf(e.Peer, e.flag(t, "unbiased")))
			if !requireRaises(t, e, want, err) {
				requireNear(t, e, "var", []float64{got}, want.Data, exact)
			}
		case "masked_whiten":
			want := e.output(t, "whitened")
			got, err := rl.Whiten(nil, x.Data, m, rows, cols, whitenOf(e.Peer, e.flag(t, "shift_mean")))
			if !requireRaises(t, e, want, err) {
				requireNear(t, e, "whitened", got, want.Data, exact)
			}
		case "masked_normalize":
			got, err := rl.Whiten(nil, x.Data, m, rows, cols, rl.WhitenOptions{Scope: rl.ScopeRow, EpsPlace: rl.FloorVar, Eps: 1e-8,
				Var: rl.VarOptions{Empty: rl.EmptyZero}})
			require.NoError(t, err)
			for i, b := range m {
				if !b {
					got[i] *= 0 // it multiplies by the mask, so NaN outside stays
				}
			}
			requireNear(t, e, "normalized", got, e.output(t, "normalized").Data, exact)
		case "nanstd":
			outside := make([]float64, len(x.Data))
			for i, v := range x.Data {
				outside[i] = v
				if !m[i] {
					outside[i] = math.NaN()
				}
			}
			got := rl.NaNStd(outside, 1)
			requireNear(t, e, "std", []float64{got}, e.output(t, "std").Data, float32Leak)
		default:
			t.Errorf("%s: not compared", e.name())
		}
	}
	require.Equal(t, 197, compared)
}
