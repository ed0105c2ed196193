package model_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// TestRounding demands that values and gradients move by what the contract says, to first order, and by nothing where it says nothing.
func TestRounding(t *testing.T) {
	pass := func(r model.Rounding, f func(r *model.Rounding, x *ad.Var) *ad.Var) (y, dx []float64) {
		var tape ad.Tape
		x := tape.Param([]float64{1, -2, 0, 4}, 1, 4)
		r.Rand = rand.New(rand.NewPCG(1, 2))
		out := f(&r, x)
		ad.Backward(out, []float64{1, 10, 100, 1000})
		return out.Data(), x.Grad()
	}
	read := func(r *model.Rounding, x *ad.Var) *ad.Var { return r.Read("", x) }
	give := func(r *model.Rounding, x *ad.Var) *ad.Var { return r.Give("", x) }
	update := func(r *model.Rounding, x *ad.Var) *ad.Var { return r.Update("", x) }
	for _, f := range []func(*model.Rounding, *ad.Var) *ad.Var{read, give, update} {
		y, dx := pass(model.Rounding{Terms: 16}, f)
		require.Equal(t, []float64{1, -2, 0, 4}, y)
		require.Equal(t, []float64{1, 10, 100, 1000}, dx)
	}
	moved := func(got, want []float64) (d []float64) {
		for i := range got {
			d = append(d, math.Abs(got[i]-want[i]))
		}
		return d
	}
	x, g := []float64{1, -2, 0, 4}, []float64{1, 10, 100, 1000}
	y, dx := pass(model.Rounding{Activation: 1e-3}, read)
	require.InDeltaSlice(t, []float64{1e-3, 2e-3, 0, 4e-3}, moved(y, x), 1e-15)
	require.Equal(t, g, dx)
	y, _ = pass(model.Rounding{Code: 1e-3}, read)
	require.InDeltaSlice(t, []float64{4e-3, 4e-3, 4e-3, 4e-3}, moved(y, x), 1e-15)
	y, dx = pass(model.Rounding{Gradient: 1e-3}, give)
	require.InDeltaSlice(t, x, y, 1e-15)
	require.InDeltaSlice(t, []float64{1e-3, 1e-2, 1e-1, 1}, moved(dx, g), 1e-12)
	rms := math.Sqrt(21. / 4)
	y, dx = pass(model.Rounding{Unit: 1e-4, Terms: 25}, give)
	require.InDeltaSlice(t, []float64{5e-4 * (1 + rms), 5e-4 * (2 + rms), 5e-4 * rms, 5e-4 * (4 + rms)}, moved(y, x), 1e-15)
	require.InDeltaSlice(t, []float64{5e-4, 5e-3, 5e-2, 0.5}, moved(dx, g), 1e-12)
	y, dx = pass(model.Rounding{Activation: 1, Code: 1, Gradient: 1}, update)
	require.Equal(t, x, y, "no format rounds what an update reads")
	require.Equal(t, g, dx)
	y, dx = pass(model.Rounding{Unit: 1e-4}, update)
	require.InDeltaSlice(t, []float64{8e-4 * (1 + rms), 8e-4 * (2 + rms), 8e-4 * rms, 8e-4 * (4 + rms)}, moved(y, x), 1e-15)
	require.InDeltaSlice(t, []float64{8e-4, 8e-3, 8e-2, 0.8}, moved(dx, g), 1e-12)
	y, dx = pass(model.Rounding{Unit: 1e-4}, read)
	require.InDeltaSlice(t, []float64{8e-4 * (1 + rms), 8e-4 * (2 + rms), 8e-4 * rms, 8e-4 * (4 + rms)}, moved(y, x), 1e-15)
	require.InDeltaSlice(t, []float64{8e-4, 8e-3, 8e-2, 0.8}, moved(dx, g), 1e-12)
}
