package golden

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/reference/quant"
)

// Int8 judges 8-bit codes, scales and products.
var Int8 = int8Codes.check()

var int8Codes = &section{
	name:  "int8",
	title: "8-bit codes, scales and products are those of bitsandbytes",
	doc: `Quantises the matrix of every entry row by row, at its threshold of outliers: codes, scales and outlier columns must be equal.
Integer products must be equal too. What the framework computes from them in float32 and stores in 16 bits is compared with
the float64 formula rounded to the stored type; it may differ only where the float32 roundings reach a midpoint of that type.`,
	source: "Dettmers et al. 2022, Sections 2 and 3; bitsandbytes@0.50.2 backends/default/ops.py; reference/quant",
	functions: map[string]recompute{
		"bitsandbytes " + vectorwise:                       quantised,
		"bitsandbytes " + mmDequant:                        integerProduct,
		"bitsandbytes nn.Linear8bitLt forward on cpu":      linear8bit,
		"bitsandbytes nn.Linear8bitLt":                     linear8bitLayer,
		"peft tuners.lora.bnb.Linear8bitLt merge, unmerge": merged8bit,
	},
	faults: int8Faults,
}

// Int8Layers judges layers with 8-bit weights.
var Int8Layers = int8Layers.check()

var int8Layers = &section{
	name:  "int8_layers",
	title: "layers with 8-bit weights are those of bitsandbytes and PEFT",
	doc: `Quantises weights and runs the layer on the activations of every entry, in training (the activations keep their type) and
beside it (LLM.int8() with outlier columns), and backwards. Codes and scales must be equal, also after an adapter was merged
into them and taken off. Outputs are within the roundings of the activations' type.`,
	source:    "Dettmers et al. 2022, Section 3; bitsandbytes@0.50.2 autograd/_functions.py MatMul8bitLt, MatMul8bitFp; peft@0.21.2 tuners/lora/bnb.py; reference/quant",
	functions: int8Codes.functions,
	faults:    int8LayerFaults,
}

const (
	vectorwise = "functional.int8_vectorwise_quant / int8_vectorwise_dequant"
	mmDequant  = "functional.int8_linear_matmul / int8_mm_dequant"
)

// storage returns the type that the option dtype names, and its unit roundoff. Entries of another device than the CPU have
// other constants and roundings.
func storage(c *call) (t quant.Type, u float64) {
	if device, ok := c.e.Options["device"]; ok && device != "cpu" {
		c.undetermined("the kernels of device %s", short(fmt.Sprint(device)))
	}
	c.ignore("device")
	switch dtype := c.text("dtype"); dtype {
	case "float16":
		return quant.Float16, 0x1p-11
	case "bfloat16":
		return quant.BFloat16, 0x1p-8
	case "float32":
		return quant.Float32, u32
	default:
		c.undetermined("dtype %q", short(dtype))
	}
	return quant.Float32, u32
}

// holds notes an input that is not stored as t.
func (c *call) holds(name string, t quant.Type) {
	want := map[quant.Type]format.DType{quant.Float16: format.F16, quant.BFloat16: format.BF16, quant.Float32: format.F32}[t]
	if v := c.tensor(name); v.Data != nil && v.Tensor != "" && v.DType != want {
		c.malformed("input %s holds %v, the option dtype says %v", name, v.DType, want)
	}
}

// threshold returns the option of that name.
func (c *call) threshold() float64 {
	x := c.value("threshold")
	c.within("threshold", x, x >= 0 && x <= math.MaxFloat64, "a number of at least 0")
	return x
}

// quantised is int8_vectorwise_quant, and int8_vectorwise_dequant of what it returned.
func quantised(c *call) []answer {
	a, rows, cols := c.grid("A")
	t, _ := storage(c)
	c.holds("A", t)
	threshold := c.threshold()
	if !c.ok() {
		return nil
	}
	m, columns := quant.QuantizeOutliers(a, rows, cols, t, threshold)
	y := make([]float64, len(a))
	m.Dequantize(y, quant.Inv127Float32)
	off := make([]float64, len(y))
	for i, x := range y { // fl(fl(code·absmax)·c)
		off[i] = 2 * u32 * math.Abs(x)
	}
	answers := []answer{
		equal("codes", floats(m.Codes)...), equal("scales", m.AbsMax...), rounded("dequantised", y, off, quant.Float32),
		{output: "codes_differing_from_exact", got: []float64{differing(m, a, columns, t, threshold)}, tight: true, maybe: true},
	}
	if threshold > 0 {
		list := equal("outlier_cols", floats(columns)...)
		list.list = true
		answers = append(answers, list)
	}
	return answers
}

// differing counts the codes that exact arithmetic does not give: x·127/absmax, rounded half to even.
func differing(m *quant.Int8, a []float64, columns []int, t quant.Type, threshold float64) float64 {
	n := 0.0
	for i, code := range m.Codes {
		row, col := i/m.Cols, i%m.Cols
		want := 0.0
		if x, absmax := a[i], m.AbsMax[row]; absmax > 0 && !slices.Contains(columns, col) && !(threshold > 0 && math.Abs(x) >= t.Round(threshold)) {
			want = math.RoundToEven(x * 127 / absmax)
		}
		if float64(code) != want {
			n++
		}
	}
	return n
}

// integerProduct is int8_linear_matmul, and int8_mm_dequant of what it returned.
func integerProduct(c *call) []answer {
	a, b := c.int8Matrix("codes_a", "scales_a"), c.int8Matrix("codes_b", "scales_b")
	c.threshold() // of the activations, whose codes are given
	storage(c)
	if c.ok() && a.Cols != b.Cols {
		c.malformed("inputs codes_a and codes_b have %d and %d columns", a.Cols, b.Cols)
	}
	if !c.ok() {
		return nil
	}
	sums := quant.Product(a, b)
	y, off := make([]float64, len(sums)), make([]float64, len(sums))
	for i, s := range sums { // int32 to float32, the product of scales, twice a product, and the constant: 5 roundings
		y[i] = float64(s) * (a.AbsMax[i/b.Rows] * b.AbsMax[i%b.Rows]) * quant.Inv127SquaredTorch
		off[i] = 5 * u32 * math.Abs(y[i])
	}
	return []answer{equal("int32", floats(sums)...), rounded("out", y, off, quant.Float16)}
}

// int8Matrix returns two inputs as a matrix of codes with a scale for each row.
func (c *call) int8Matrix(codes, scales string) *quant.Int8 {
	x, rows, cols := c.grid(codes)
	m := &quant.Int8{Rows: rows, Cols: cols, Codes: make([]int8, len(x))}
	if !c.ok() {
		return m
	}
	for i, n := range c.ints(codes, -128, 128, rows, cols) {
		m.Codes[i] = int8(n)
	}
	m.AbsMax = c.shaped(scales, rows)
	return m
}

// equal is an answer without a tolerance.
func equal(output string, got ...float64) answer {
	return answer{output: output, got: got, leak: LeakDType, tight: true}
}

// rounded is an answer that the framework stores as t: y rounded to t, and the neighbour where y ± off is rounded to it.
func rounded(output string, y, off []float64, t quant.Type) answer {
	a := answer{output: output, got: make([]float64, len(y)), bound: make([]float64, len(y)), leak: LeakDType, tight: true}
	for i, x := range y {
		a.got[i] = t.Round(x)
		if x-x == 0 {
			a.bound[i] = max(math.Abs(t.Round(x+off[i])-a.got[i]), math.Abs(t.Round(x-off[i])-a.got[i]))
		}
	}
	return a
}

func floats[T int | int8 | int64](x []T) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
