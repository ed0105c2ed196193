package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Numbers of a 16-bit type whose bounds tell nothing pass where they agree to the last place, enough of them; one that is two places off is left undecided.
func TestNumbersThatAgreeToTheLastPlace(t *testing.T) {
	judged := func(n, places int, dtype format.DType) *Outcome {
		b := &dump.Batch{Rows: n, Cols: 1, Mask: make([]bool, n), Tensors: map[string]*dump.Tensor{}}
		p := &Prediction{Want: make([]float64, n), Bound: make([]float64, n)}
		got := make([]float64, n)
		for i := range n {
			b.Mask[i], p.Want[i], p.Bound[i] = true, 1.5+0.25*float64(i%2), 0.2
			got[i] = p.Want[i] + 0x1p-7
		}
		got[0] = p.Want[0] + float64(places)*0x1p-7
		b.Tensors["returns"] = &dump.Tensor{Name: "returns", Data: got, Layout: dump.PerToken, Type: dtype}
		return Compare(Find("gae/returns"), NewCase(b, &convention.Set{}, tol.U32), p, Arithmetic{Unit: tol.U32})
	}
	require.Equal(t, check.Pass, judged(LeastToLast, 1, format.BF16).Verdict)
	few := judged(LeastToLast-1, 1, format.BF16)
	require.Equal(t, check.Undetermined, few.Verdict)
	require.Equal(t, LeastToLast-1, few.ToLast, "with the numbers of other steps they may be enough")
	off := judged(LeastToLast, 2, format.BF16)
	require.Equal(t, check.Undetermined, off.Verdict)
	require.Zero(t, off.ToLast)
	require.Equal(t, check.Undetermined, judged(LeastToLast, 0, format.F32).Verdict, "a place of float32 is not what they were rounded to")
	one := func(off, bound float64) *Outcome {
		b := newGrid(1, 1).token("returns", float64(float32(1.5*(1+off)))).Batch
		return Compare(Find("gae/returns"), NewCase(b, &convention.Set{}, tol.U32), &Prediction{Want: []float64{1.5}, Bound: []float64{bound}}, Arithmetic{Unit: tol.U32})
	}
	require.Equal(t, check.Pass, one(2e-6, 0.5).Verdict, "one number of float32 that agrees to its last places")
	require.Equal(t, check.Undetermined, one(8e-6, 0.5).Verdict)
	require.Equal(t, check.Undetermined, one(2e-6, 0.02).Verdict, "it takes two of so narrow a bound")
	require.Equal(t, 5, one(2e-6, 0.02).ToLast, "11 octaves; with another of another step they are enough")
	b := newGrid(LeastToLast, LeastToLast).token("returns", make([]float64, LeastToLast)...).Batch
	zero := &Prediction{Want: make([]float64, LeastToLast), Bound: []float64{1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9}}
	require.Equal(t, check.Pass, Compare(Find("gae/returns"), NewCase(b, &convention.Set{}, tol.U32), zero, Arithmetic{Unit: tol.U32}).Verdict, "bit by bit")
}

// A loss of which nothing is left is exactly 0, as it should be, whatever else its bound allows.
func TestANumberThatIsExactlyZero(t *testing.T) {
	of := func(got float64) check.Verdict {
		b := newGrid(1, 1).token("returns", got).Batch
		return Compare(Find("gae/returns"), NewCase(b, &convention.Set{}, tol.U32), &Prediction{Want: []float64{0}, Bound: []float64{1e-6}}, Arithmetic{Unit: tol.U32}).Verdict
	}
	require.Equal(t, check.Pass, of(0))
	require.Equal(t, check.Undetermined, of(1e-7))
	require.Equal(t, check.Fail, of(1e-5))
}
