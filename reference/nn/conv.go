package nn

import (
	"fmt"

	"plumbline/reference/ad"
)

// Conv2D returns the cross-correlation of the images x [B, I, H, W] with the kernels w [O, I, M, N], as
// [B, O, H + 2·pad − M + 1, W + 2·pad − N + 1]:
//
//	y_bohw = Σ_i Σ_m Σ_n w_oimn·x_{b, i, h+m−pad, w+n−pad} + b_o
//
// where x is 0 outside its H rows and W columns. It is torch.nn.functional.conv2d with stride 1, dilation 1, one group and
// padding pad on all four sides: the kernel is not flipped. A zero of the padding is multiplied like any other element, so
// that a weight that is not finite shows at the border too.
//
// b is [O] or nil. It panics if the shapes do not fit or the kernel is larger than the padded image.
func Conv2D(x, w, b *ad.Var, pad int) *ad.Var {
	xs, ws := x.Shape(), w.Shape()
	if len(xs) != 4 || len(ws) != 4 || xs[1] != ws[1] || pad < 0 {
		panic(fmt.Sprintf("nn: conv2d: kernels of shape %v for images of %v, padding %d", ws, xs, pad))
	}
	batch, in, out, rows, cols := xs[0], xs[1], ws[0], ws[2], ws[3]
	h, wide := xs[2]+2*pad-rows+1, xs[3]+2*pad-cols+1
	if rows < 1 || cols < 1 || h < 1 || wide < 1 {
		panic(fmt.Sprintf("nn: conv2d: kernels of shape %v for images of %v, padding %d", ws, xs, pad))
	}
	if b != nil && b.Size() != out {
		panic(fmt.Sprintf("nn: conv2d: a bias of shape %v for %d outputs", b.Shape(), out))
	}
	x = padZero(padZero(x, 2, pad), 3, pad)

	// What the kernel's place (m, n) sees of every output, so that the sum over i, m and n is one row of a matrix product.
	var seen []*ad.Var
	for m := range rows {
		for n := range cols {
			part := ad.Slice(ad.Slice(x, 2, m, m+h), 3, n, n+wide)
			seen = append(seen, ad.Reshape(part, batch, in, 1, h*wide))
		}
	}
	patches := ad.Reshape(ad.Concat(2, seen...), batch, in*rows*cols, h*wide)
	y := ad.Reshape(ad.MatMul(ad.Reshape(w, out, in*rows*cols), patches, false, false), batch, out, h, wide)
	if b == nil {
		return y
	}
	return ad.Add(y, ad.Reshape(b, out, 1, 1))
}

// padZero returns x with n zeros before and after its elements along one axis.
func padZero(x *ad.Var, axis, n int) *ad.Var {
	if n == 0 {
		return x
	}
	shape := x.Shape()
	shape[axis] = n
	size := 1
	for _, d := range shape {
		size *= d
	}
	zero := x.Tape().Const(make([]float64, size), shape...)
	return ad.Concat(axis, zero, x, zero)
}
