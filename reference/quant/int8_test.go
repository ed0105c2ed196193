package quant

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// quantizer is QuantizeOutliers or a form of it with a fault.
type quantizer func(x []float64, rows, cols int, t Type, threshold float64) (*Int8, []int)

var nan, inf = math.NaN(), math.Inf(1)

// oracles are matrices with their codes by hand: x·127/absmax, half to even; where a comment says so, by the arithmetic of
// float32, as bitsandbytes@0.50.2 returned them (golden quant/int8_layers and int8).
var oracles = []struct {
	name      string
	rows      int
	x         []float64
	t         Type
	threshold float64
	codes     []int8
	absmax    []float64
	columns   []int
}{
	{"halves go to even", 1, []float64{127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5}, Float32, 0, []int8{127, 0, 2, 2, 0, -2, -2, 126}, []float64{127}, nil},
	{"each row has its own scale", 2, []float64{1, -0.5, 100, 50}, Float32, 0, []int8{127, -64, 127, 64}, []float64{1, 100}, nil},
	{"the absmax may be negative", 1, []float64{-9, 4.5, 1}, Float32, 0, []int8{-127, 64, 14}, []float64{9}, nil},
	{"a row of zeros", 2, []float64{0, 0, 0, 3, -3, 1}, Float16, 0, []int8{0, 0, 0, 127, -127, 42}, []float64{0, 3}, nil},
	{"minus zero", 1, []float64{math.Copysign(0, -1), 0}, Float16, 0, []int8{0, 0}, []float64{0}, nil},
	// 0.1 and 0.0996 as float16 are 0.0999755859375 and 0.0996093750, whose quotient times 127 is 126.535.
	{"float16 before all else", 1, []float64{0.1, 0.0995605}, Float16, 0, []int8{127, 126}, []float64{0.0999755859375}, nil},
	{"float16 overflows", 1, []float64{70000, 1}, Float16, 0, []int8{0, 0}, []float64{inf}, nil},
	{"beyond float16, kept in float32", 1, []float64{70000, 35000}, Float32, 0, []int8{127, 64}, []float64{70000}, nil},
	{"NaN takes its row", 2, []float64{1, nan, 2, 1}, Float16, 0, []int8{0, 0, 127, 64}, []float64{nan, 2}, nil},
	{"an infinity takes its row", 1, []float64{inf, 1}, Float16, 0, []int8{0, 0}, []float64{inf}, nil},
	// fl(fl(1/0.7)·127)·x lies on the other side of a half than x·127/0.7.
	{"the reciprocal, not the quotient", 1, []float64{float64(float32(0.7)), float64(float32(0.7 * 66.5 / 127)), float64(float32(-0.7 * 22.5 / 127))}, Float32, 0, nil, nil, nil},

	{"outliers are not in the absmax", 2, []float64{7, 1, -0.5, 2, 4, 1}, Float16, 6, []int8{0, 127, -64, 0, 127, 32}, []float64{1, 4}, []int{0}},
	{"the threshold itself is an outlier", 1, []float64{6, 3}, Float16, 6, []int8{0, 127}, []float64{3}, []int{0}},
	{"just below the threshold", 1, []float64{5.99609375, 3}, Float16, 6, []int8{127, 64}, []float64{5.99609375}, nil},
	{"a negative outlier", 1, []float64{-6.5, 3}, Float16, 6, []int8{0, 127}, []float64{3}, []int{0}},
	{"a column's other elements have no codes but count", 2, []float64{7, 1, 5, 1}, Float16, 6, []int8{0, 127, 0, 25}, []float64{1, 5}, []int{0}},
	{"nothing but outliers", 2, []float64{7, -8, 9, 60}, Float16, 6, []int8{0, 0, 0, 0}, []float64{0, 0}, []int{0, 1}},
	{"no threshold, no outliers", 1, []float64{60, 30}, Float16, 0, []int8{127, 64}, []float64{60}, nil},
	{"the threshold is rounded as the tensor is", 1, []float64{2.1, 1}, Float16, 2.1, []int8{0, 127}, []float64{1}, []int{0}},
	{"no rows", 0, nil, Float16, 6, []int8{}, []float64{}, nil},
}

// violations compares a quantiser with the oracles and with the laws of tolerances 5.3 on random matrices, and returns what
// does not hold.
func violations(q quantizer) []string {
	var bad []string
	for _, o := range oracles {
		cols := 3
		if o.rows > 0 {
			cols = len(o.x) / o.rows
		}
		m, columns := q(slices.Clone(o.x), o.rows, cols, o.t, o.threshold)
		if o.codes == nil { // where the two formulas differ, the framework's arithmetic written out
			inv := 1 / float32(o.x[0])
			s := inv * 127
			for _, v := range o.x {
				o.codes = append(o.codes, int8(math.RoundToEven(float64(float32(v)*s))))
			}
			o.absmax = o.x[:1]
		}
		if !slices.Equal(m.Codes, o.codes) || fmt.Sprint(m.AbsMax) != fmt.Sprint(o.absmax) || !slices.Equal(columns, o.columns) {
			bad = append(bad, o.name)
		}
	}
	// Near ties in float32: where the reciprocal and the quotient round apart.
	var apart, quotients int
	for a := 1; a < 200; a++ {
		absmax := float32(a) / 7
		row := []float64{float64(absmax)}
		for k := range 126 {
			row = append(row, float64(absmax*(float32(k)+0.5)/127))
		}
		m, _ := q(row, 1, len(row), Float32, 0)
		inv := 1 / absmax
		s := inv * 127
		for j, v := range row {
			want := math.RoundToEven(float64(float32(v) * s))
			if float64(m.Codes[j]) != want {
				apart++
			}
			if math.RoundToEven(v*127/float64(absmax)) != want {
				quotients++
			}
		}
	}
	if quotients == 0 {
		panic("no near tie tells the reciprocal from the quotient")
	}
	if apart > 0 {
		bad = append(bad, "near ties")
	}
	return bad
}

func TestOracles(t *testing.T) { require.Empty(t, violations(QuantizeOutliers)) }

// faulty is QuantizeOutliers written a second time, with one thing done otherwise.
func faulty(fault string) quantizer {
	return func(x []float64, rows, cols int, t Type, threshold float64) (*Int8, []int) {
		m := &Int8{Rows: rows, Cols: cols, Codes: make([]int8, len(x)), AbsMax: make([]float64, rows)}
		y := make([]float64, len(x))
		cast := t
		if fault == "float32 in place of float16" {
			cast = Float32
		}
		for i, v := range x {
			y[i] = cast.Round(v)
		}
		kept := slices.Clone(y)
		limit := cast.Round(threshold)
		if fault == "threshold not rounded" {
			limit = threshold
		}
		columns := map[int]bool{}
		for i, v := range y {
			over := math.Abs(v) >= limit
			switch fault {
			case "> for ≥":
				over = math.Abs(v) > limit
			case "outliers by value":
				over = v >= limit
			}
			if threshold > 0 && over {
				columns[i%cols] = true
				y[i] = 0
			}
		}
		scale := func(i int) float64 {
			a := 0.0
			for j := range cols {
				v := math.Abs(y[i*cols+j])
				switch {
				case fault == "absmax with outliers":
					v = math.Abs(kept[i*cols+j])
				case fault == "absmax without outlier columns" && columns[j]:
					v = 0
				case fault == "absmax of the signed maximum":
					v = y[i*cols+j]
				}
				if fault == "NaN skipped" && math.IsNaN(v) {
					continue
				}
				a = max(a, v)
			}
			return a
		}
		for i := range rows {
			m.AbsMax[i] = scale(i)
			a := float32(m.AbsMax[i])
			if fault == "one scale for all rows" {
				a = 0
				for k := range rows {
					a = max(a, float32(scale(k)))
				}
				m.AbsMax[i] = float64(a)
			}
			full := float32(127)
			if fault == "128 for 127" {
				full = 128
			}
			inv := 1 / a
			s := inv * full
			if fault == "quotient for reciprocal" {
				s = full / a
			}
			if fault == "scale for absmax" {
				m.AbsMax[i] /= 127
			}
			for j := range cols {
				v := float32(y[i*cols+j])
				if fault == "column by column" {
					var most float32
					for k := range rows {
						most = max(most, float32(math.Abs(y[k*cols+j])))
					}
					inv := 1 / most
					s = inv * full
				}
				c := float64(v * s)
				switch {
				case columns[j] && fault != "outlier columns keep their codes":
					c = 0
				case c-c != 0 && fault == "NaN is −128":
					c = -128
				case c-c != 0:
					c = 0
				case fault == "half away":
					c = math.Round(c)
				case fault == "half up":
					c = math.Floor(c + 0.5)
				case fault == "truncated":
					c = math.Trunc(c)
				default:
					c = math.RoundToEven(c)
				}
				m.Codes[i*cols+j] = int8(max(-128, min(127, c)))
			}
		}
		var list []int
		for j := range cols {
			if columns[j] {
				list = append(list, j)
			}
		}
		return m, list
	}
}

// The oracles tell every fault from the right form.
func TestOraclesCatch(t *testing.T) {
	require.Empty(t, violations(faulty("")), "without a fault it is the right form")
	for _, f := range []string{"half away", "half up", "truncated", "quotient for reciprocal", "128 for 127", "column by column", "one scale for all rows",
		"float32 in place of float16", "NaN is −128", "NaN skipped", "> for ≥", "outliers by value", "threshold not rounded", "absmax with outliers",
		"absmax without outlier columns", "absmax of the signed maximum", "outlier columns keep their codes", "scale for absmax"} {
		found := violations(faulty(f))
		require.NotEmpty(t, found, f)
		t.Logf("%-34s %v", f, found)
	}
}

// matrix draws a matrix whose rows have scales from 2⁻¹⁰ to 2¹⁰; one element in four is an extreme one.
func matrix(t *rapid.T, rows, cols int) []float64 {
	x := make([]float64, rows*cols)
	for i := range rows {
		scale := math.Ldexp(1, rapid.IntRange(-10, 10).Draw(t, "scale"))
		for j := range cols {
			v := rapid.Float64Range(-1, 1).Draw(t, "x")
			if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
				v = rapid.SampledFrom([]float64{0, 1, -1, 0.5, 1.5 / 127, 2.5 / 127, -63.5 / 127}).Draw(t, "extreme")
			}
			x[i*cols+j] = v * scale
		}
	}
	return x
}

func shape(t *rapid.T) (rows, cols int) {
	return rapid.IntRange(1, 5).Draw(t, "rows"), rapid.IntRange(1, 9).Draw(t, "cols")
}

// What tolerances 5.3 promises: the round trip is within half a step, the absmax has the code ±127, and a code is that of
// exact arithmetic but near a half.
func TestRoundTrip(t *testing.T) {
	const u = 0x1p-24
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := shape(t)
		x := matrix(t, rows, cols)
		f := Type(rapid.IntRange(0, 2).Draw(t, "type"))
		m := Quantize(x, rows, cols, f)
		y := make([]float64, len(x))
		m.Dequantize(y, Inv127)
		for i, v := range x {
			v, absmax := f.Round(v), m.AbsMax[i/cols]
			require.LessOrEqual(t, math.Abs(v), absmax)
			if absmax > 0 && absmax < 127*0x1p-126 {
				continue // the scale is subnormal or its reciprocal overflows
			}
			require.LessOrEqual(t, math.Abs(v-y[i]), absmax/254+4*u*math.Abs(v))
			if absmax == 0 {
				require.Zero(t, m.Codes[i])
				continue
			}
			if math.Abs(v) == absmax {
				require.Equal(t, math.Copysign(127, v), float64(m.Codes[i]))
			}
			exact := v * 127 / absmax
			if want := math.RoundToEven(exact); float64(m.Codes[i]) != want {
				_, frac := math.Modf(math.Abs(exact))
				require.LessOrEqual(t, math.Abs(frac-0.5), 4*u*math.Abs(exact))
				require.Equal(t, 1.0, math.Abs(float64(m.Codes[i])-want))
			}
		}
	})
}

// Signs, rows and columns carry over to the codes; a power of two carries over to the scale alone.
func TestSymmetries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := shape(t)
		x := matrix(t, rows, cols)
		for i, v := range x {
			if math.Abs(v) < 0x1p-100 {
				x[i] = 0 // near the subnormal numbers of bfloat16 a power of two rounds
			}
		}
		m := Quantize(x, rows, cols, Float16)
		minus, turned, twice := make([]float64, len(x)), make([]float64, len(x)), make([]float64, len(x))
		power := math.Ldexp(1, rapid.IntRange(-3, 3).Draw(t, "power"))
		for i, v := range x {
			minus[i], twice[i] = -v, v*power
			turned[(rows-1-i/cols)*cols+cols-1-i%cols] = v
		}
		n := Quantize(minus, rows, cols, Float16)
		r := Quantize(turned, rows, cols, Float16)
		p := Quantize(twice, rows, cols, BFloat16)
		q := Quantize(x, rows, cols, BFloat16)
		require.Equal(t, m.AbsMax, n.AbsMax)
		require.Equal(t, q.Codes, p.Codes, "a power of two leaves the codes")
		for i, c := range m.Codes {
			require.Equal(t, -c, n.Codes[i])
			require.Equal(t, c, r.Codes[(rows-1-i/cols)*cols+cols-1-i%cols])
			require.Equal(t, q.AbsMax[i/cols]*power, p.AbsMax[i/cols])
		}
	})
}

// Codes and scales are those of the weight that they stand for: quantising it again changes nothing, nor does a merge of 0.
func TestIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := shape(t)
		m := Quantize(matrix(t, rows, cols), rows, cols, Float16)
		merged := m.Merge(make([]float64, rows*cols), Float32)
		require.Equal(t, m.Codes, merged.Codes)
		require.Equal(t, m.AbsMax, merged.AbsMax)
	})
}

// A merged update and the same taken off again leave other codes than before: merging is no exact operation.
func TestMergeIsNotExact(t *testing.T) {
	m := Quantize([]float64{1, 0.1, -0.3, 0.7}, 1, 4, Float16)
	delta := []float64{2, 0, 0, 0}
	merged := m.Merge(delta, Float32)
	require.Equal(t, []float64{3}, merged.AbsMax)
	require.Equal(t, []int8{127, 4, -13, 30}, merged.Codes, "0.1·127/3 = 4.3, −0.3·127/3 = −12.7, 0.7·127/3 = 29.7")
	back := merged.Merge([]float64{-2, 0, 0, 0}, Float32)
	require.NotEqual(t, m.Codes, back.Codes)
}

// Integer products are exact, whatever the order of their terms, and are those of the codes.
func TestProduct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := shape(t)
		n := rapid.IntRange(1, 4).Draw(t, "n")
		a, b := Quantize(matrix(t, rows, cols), rows, cols, Float16), Quantize(matrix(t, n, cols), n, cols, Float16)
		got := Product(a, b)
		for i := range rows {
			for j := range n {
				sum := 0
				for k := cols - 1; k >= 0; k-- {
					sum += int(a.Codes[i*cols+k]) * int(b.Codes[j*cols+k])
				}
				require.Equal(t, int64(sum), got[i*n+j])
			}
		}
		require.Equal(t, len(got), rows*n)
	})
	long := &Int8{Rows: 1, Cols: 140_000, Codes: slices.Repeat([]int8{-128}, 140_000), AbsMax: []float64{1}}
	require.Equal(t, []int64{140_000 * 128 * 128}, Product(long, long), "beyond int32")
}

// Programmer errors panic with the package's name.
func TestPanics(t *testing.T) {
	m := Quantize([]float64{1, 2}, 1, 2, Float16)
	for name, f := range map[string]func(){
		badLength:    func() { Quantize([]float64{1}, 1, 2, Float16) },
		badShape:     func() { Quantize(nil, -1, 2, Float16) },
		badThreshold: func() { QuantizeOutliers([]float64{1}, 1, 1, Float16, -1) },
		badType:      func() { Quantize([]float64{1}, 1, 1, Type(7)) },
	} {
		require.PanicsWithValue(t, name, f)
	}
	require.PanicsWithValue(t, badThreshold, func() { QuantizeOutliers(nil, 0, 1, Float16, nan) })
	require.PanicsWithValue(t, badLength, func() { m.Dequantize(make([]float64, 1), Inv127) })
	require.PanicsWithValue(t, badLength, func() { m.Merge(make([]float64, 3), Float32) })
	require.PanicsWithValue(t, badLength, func() { Product(m, Quantize([]float64{1}, 1, 1, Float16)) })
	require.PanicsWithValue(t, badLength, func() { Product(m, &Int8{Rows: 1, Cols: 2}) })
	require.PanicsWithValue(t, badShape, func() { Product(m, &Int8{Rows: -1, Cols: 2}) })
}
