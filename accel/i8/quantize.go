// Package i8 holds the kernels of matrices of int8 codes: row by row quantisation and exact products.
//
// A matrix [rows, cols] has codes in [−127, 127] and a number absmax for each row; an element is code·absmax/127.
package i8

import (
	"fmt"
	"math"

	"plumbline/accel"
)

// QuantizeFunc is the type of [QuantizeRows].
type QuantizeFunc = func(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int)

var quantize = accel.New("i8.QuantizeRows", quantizeGeneric, testQuantize)

// QuantizeRows stores in codes [rows, cols] and absmax [rows] the int8 form of the matrix x [rows, cols]:
//
//	absmax_i = max_j |x_ij|
//	s_i      = fl(fl(1/absmax_i)·127)
//	code_ij  = fl(x_ij·s_i), rounded half to even
//
// where fl rounds to float32. Matrices are row-major, rows of x start ldx elements apart, rows of codes ldc.
//
// A row of zeros has absmax 0 and codes 0. A row with NaN has absmax NaN, one with an infinity and no NaN +Inf; their codes are 0.
// So are the codes of a row whose s overflows, with absmax below about 2⁻¹²¹. With cols = 0 absmax is 0. Every variant returns
// the same bits, those of int8_vectorwise_quant of bitsandbytes@0.50.2 for float32.
//
// It panics if a matrix does not fit its slice.
func QuantizeRows(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int) {
	accel.CheckMatrix("i8.QuantizeRows: codes", len(codes), rows, cols, ldc)
	accel.CheckMatrix("i8.QuantizeRows: x", len(x), rows, cols, ldx)
	accel.CheckMatrix("i8.QuantizeRows: absmax", len(absmax), rows, 1, 1)
	if cols == 0 {
		ldc, ldx = 0, 0
	}
	quantize.Func()(codes, ldc, absmax, x, ldx, rows, cols)
}

// Scales stores fl(absmax_i/127) in scale: what a code of row i is multiplied by. They may alias. It panics if the lengths differ.
func Scales(scale, absmax []float32) {
	if len(scale) != len(absmax) {
		panic("i8: Scales: lengths differ")
	}
	for i, v := range absmax {
		scale[i] = v / 127
	}
}

func testQuantize(f QuantizeFunc) error {
	const rows, cols = 3, 37
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(i*7919%1009-504) / 331
	}
	x[cols] = float32(math.NaN())
	var want, got [rows * cols]int8
	var wantMax, gotMax [rows]float32
	quantizeGeneric(want[:], cols, wantMax[:], x, cols, rows, cols)
	f(got[:], cols, gotMax[:], x, cols, rows, cols)
	if got != want {
		return fmt.Errorf("wrong codes")
	}
	for i := range want[:rows] {
		if math.Float32bits(wantMax[i]) != math.Float32bits(gotMax[i]) && wantMax[i] == wantMax[i] {
			return fmt.Errorf("row %d has absmax %v, not %v", i, gotMax[i], wantMax[i])
		}
	}
	return nil
}
