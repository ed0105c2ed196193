package f32

// RMSNorm stores in y the root-mean-square normalisation of the rows of x [N, C], with weight w [C], and in rstd [N], unless it is nil,
// what [RMSNormBackward] needs:
//
//	y_i = w_i·(x_i·r),   r = 1/√(Σx²/C + ε)
//
// The sum is of float64 in eight parts, so that r is exact to 2 units of float32 and y to 4 in relative terms, whatever C is. y may be x. It panics if
// the lengths do not fit.
//
// Source: Zhang and Sennrich 2019, Equation 4, with the ε of LlamaRMSNorm inside the root.
func RMSNorm(y, x, w []float32, eps float64, rstd []float32) {
	n := rows("rmsnorm", len(x), len(w))
	same("rmsnorm", len(y), len(x))
	if rstd != nil {
		same("rmsnorm", len(rstd), n)
	}
	c, f := len(w), rmsNorm.Func()
	for i := range n {
		r := f(y[i*c:(i+1)*c], x[i*c:(i+1)*c], w, eps)
		if rstd != nil {
			rstd[i] = r
		}
	}
}

// RMSNormBackward adds to dx [N, C] the gradient by x from dy, the gradient by y. The weight is frozen and has none.
//
//	dx_i += r·(g_i − x_i·r²·Σ_j g_j·x_j/C),   g = w∘dy
func RMSNormBackward(dx, dy, x, w, rstd []float32) {
	n := rows("rmsnorm", len(x), len(w))
	same("rmsnorm", len(dx), len(x))
	same("rmsnorm", len(dy), len(x))
	same("rmsnorm", len(rstd), n)
	c, f := len(w), rmsNormBack.Func()
	for i := range n {
		f(dx[i*c:(i+1)*c], dy[i*c:(i+1)*c], x[i*c:(i+1)*c], w, rstd[i])
	}
}

// rows returns how many rows of c elements n elements are.
func rows(op string, n, c int) int {
	if c < 1 || n%c != 0 {
		panic("f32: " + op + ": the elements are no whole number of rows")
	}
	return n / c
}

// same panics unless two lengths are equal.
func same(op string, a, b int) {
	if a != b {
		panic("f32: " + op + ": lengths do not fit")
	}
}
