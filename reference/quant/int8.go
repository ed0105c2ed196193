package quant

import "math"

// Int8 is a matrix [Rows, Cols] of codes with a scale for each row, as Linear8bitLt saves a weight [out, in]: Codes is its
// weight, AbsMax its SCB. An element is Codes[i·Cols+j]·AbsMax[i]/127.
type Int8 struct {
	Rows, Cols int
	Codes      []int8
	AbsMax     []float64 // float32 numbers, of at least 0
}

// Quantize returns the codes and scales of the matrix x [rows, cols], whose elements are first rounded to t:
//
//	absmax_i = max_j |x_ij|
//	s_i      = fl(fl(1/absmax_i)·127)
//	code_ij  = fl(x_ij·s_i), rounded half to even
//
// where fl rounds to float32. PyTorch evaluates 127/absmax by the reciprocal, so that s and with it a code near a half may
// differ from those of a division. A weight is cast to Float16 whatever its own type was.
//
// A row of zeros has absmax 0 and codes 0. Where x·s is no finite number the code is 0 too: a row with NaN (absmax NaN), with
// an infinity (absmax +Inf), or with an absmax below about 2⁻¹²¹, whose s overflows.
//
// It is int8_vectorwise_quant of bitsandbytes@0.50.2 on a CPU of amd64. It panics if the lengths do not fit.
func Quantize(x []float64, rows, cols int, t Type) *Int8 {
	m, _ := QuantizeOutliers(x, rows, cols, t, 0)
	return m
}

// QuantizeOutliers is [Quantize] with the decomposition of LLM.int8(): elements with |x| ≥ threshold are outliers, and a
// column with one of them is an outlier column. It returns the outlier columns in order. Their codes are 0 in every row.
// The absmax of a row is taken over its elements that are no outliers, those in outlier columns among them.
//
// threshold is compared in the format t and rounded to it, as torch compares a tensor with a number. Without outliers the
// list of columns is empty; with threshold 0 there are none. It panics if threshold is negative or NaN.
func QuantizeOutliers(x []float64, rows, cols int, t Type, threshold float64) (*Int8, []int) {
	shaped(x, rows, cols)
	if !(threshold >= 0) {
		panic(badThreshold)
	}
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(t.Round(v))
	}
	outlier := make([]bool, cols)
	if limit := float32(t.Round(threshold)); threshold > 0 {
		for i, v := range y {
			if abs32(v) >= limit {
				outlier[i%cols] = true
				y[i] = 0
			}
		}
	}
	m := &Int8{Rows: rows, Cols: cols, Codes: make([]int8, len(x)), AbsMax: make([]float64, rows)}
	for i := range rows {
		row, codes := y[i*cols:(i+1)*cols], m.Codes[i*cols:(i+1)*cols]
		var absmax float32
		for _, v := range row {
			absmax = max(absmax, abs32(v)) // NaN if any is
		}
		m.AbsMax[i] = float64(absmax)
		if absmax == 0 {
			continue
		}
		inv := 1 / absmax
		s := inv * 127
		for j, v := range row {
			if !outlier[j] {
				codes[j] = code(float32(v * s)) // rounded, or v·s − v·s might be computed in one step there
			}
		}
	}
	var columns []int
	for j, is := range outlier {
		if is {
			columns = append(columns, j)
		}
	}
	return m, columns
}

// code rounds a scaled element half to even. What is not finite has no code; 0 stands for it.
func code(v float32) int8 {
	if v-v != 0 {
		return 0
	}
	return int8(math.RoundToEven(float64(v)))
}

func abs32(v float32) float32 { return float32(math.Abs(float64(v))) }

// Dequantize stores in dst the matrix [Rows, Cols] that m stands for, code·absmax·inv127. inv127 is [Inv127] or the constant
// of another program, [Inv127Float32]. It panics if dst has another length.
func (m *Int8) Dequantize(dst []float64, inv127 float64) {
	m.check()
	shaped(dst, m.Rows, m.Cols)
	for i, absmax := range m.AbsMax {
		for j := range m.Cols {
			dst[i*m.Cols+j] = float64(m.Codes[i*m.Cols+j]) * absmax * inv127
		}
	}
}

// Product returns the integers Σ_k a_ik·b_jk, [a.Rows, b.Rows]. They are exact; int32 holds them for at most 133,144
// columns. It panics if a and b differ in columns.
func Product(a, b *Int8) []int64 {
	a.check()
	b.check()
	if a.Cols != b.Cols {
		panic(badLength)
	}
	out := make([]int64, a.Rows*b.Rows)
	for i := range a.Rows {
		for j := range b.Rows {
			var sum int64
			for k := range a.Cols {
				sum += int64(a.Codes[i*a.Cols+k]) * int64(b.Codes[j*b.Cols+k])
			}
			out[i*b.Rows+j] = sum
		}
	}
	return out
}

// Merge returns m with the update delta [Rows, Cols] of an adapter merged into it:
//
//	quantise(t(t(fl(fl(code·absmax)·c)) + delta))
//
// where t is the adapter's type, c is [Inv127Float32], fl rounds to float32 and quantisation casts to Float16. Every code of a
// row changes when its absmax does: taking delta off again does not give m back. It is the merge of peft@0.21.2
// tuners/lora/bnb.py; it panics if the lengths do not fit.
func (m *Int8) Merge(delta []float64, t Type) *Int8 {
	m.check()
	shaped(delta, m.Rows, m.Cols)
	w := make([]float64, len(delta))
	for i, d := range delta {
		y := float32(m.Codes[i]) * float32(m.AbsMax[i/m.Cols])
		w[i] = t.Round(t.Round(float64(y*float32(Inv127Float32))) + d)
	}
	return Quantize(w, m.Rows, m.Cols, Float16)
}

// check panics if the fields of m do not fit each other.
func (m *Int8) check() {
	if m.Rows < 0 || m.Cols < 0 {
		panic(badShape)
	}
	if len(m.Codes) != m.Rows*m.Cols || len(m.AbsMax) != m.Rows {
		panic(badLength)
	}
}
