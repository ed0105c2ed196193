package stage_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The update takes the action of the step before: where that is another one the log-prob is, and the values are those of the rollout. Other kernels, values
// that moved, and tokens of older weights in front of each row say nothing.
func TestActionsOfAnotherStep(t *testing.T) {
	const rows, cols = 6, 32
	of := func(change func(t int, same bool, other, old float64) float64, moved float64) []stage.Violation {
		r := rand.New(rand.NewPCG(4, 9))
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Hi: rows, Cols: cols}}}
		b.Meta.Step = 1
		x := map[string][]float64{}
		add := func(name string, v float64) { x[name] = append(x[name], float64(float32(v))) }
		for i := range b.Mask {
			b.Mask[i] = true
			p, q := 0.2+0.2*r.Float64(), 0.2+0.2*r.Float64()
			old, other, v := math.Log(p), math.Log(q), r.NormFloat64()
			add("logp_old", old)
			add("logp_new", change(i%cols, r.Float64() < 0.4, other, float64(float32(old))))
			add("values", v)
			add("values_new", v+moved)
		}
		for name, data := range x {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: data, Type: format.F32}
		}
		a := stage.OldIsNew(stage.NewCase(b, (&convention.Set{}).WithFact("first_update", stage.FirstUpdate), 0))
		require.NotNil(t, a)
		return a.Violations
	}
	late := func(_ int, same bool, other, old float64) float64 {
		if same {
			return old
		}
		return other
	}
	require.Len(t, of(late, 0), 1)
	require.Equal(t, "LOGP-OTHER-ACTION", of(late, 0)[0].Fault)
	require.Empty(t, of(func(_ int, _ bool, _, old float64) float64 { return old }, 0))
	require.Empty(t, of(func(t int, _ bool, other, old float64) float64 { return late(t, t > 12, old+0.02*other, old) }, 0), "older weights in front")
	require.Empty(t, of(func(_ int, same bool, other, old float64) float64 { return late(0, same, old+0.02*other, old) }, 1e-4), "another pass")
}
