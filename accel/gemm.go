package accel

import "fmt"

// GemmFunc is the type of a product of matrices.
type GemmFunc[T float32 | float64] = func(c []T, ldc int, a []T, lda int, b []T, ldb int, m, n, k int, transA, transB, accumulate bool)

// TestGemm returns the test of a variant of a product, which compares it with the generic twin, bit by bit, on a product of many columns and
// one of few.
func TestGemm[T float32 | float64](generic GemmFunc[T]) func(f GemmFunc[T]) error {
	return func(f GemmFunc[T]) error {
		const m, most, k = 14, 39, 11
		a, b := make([]T, m*k), make([]T, k*most)
		for i := range a {
			a[i] = T(i*7919%1009-504) / 331
		}
		for i := range b {
			b[i] = T(i*6007%1013-506) / 337
		}
		for _, n := range []int{most, 5} {
			want, got := make([]T, m*n), make([]T, m*n)
			generic(want, n, a, k, b, n, m, n, k, false, false, false)
			f(got, n, a, k, b, n, m, n, k, false, false, false)
			for i := range want {
				if got[i] != want[i] {
					return fmt.Errorf("element %d of a product is %v, not %v", i, got[i], want[i])
				}
			}
		}
		return nil
	}
}
