package quant

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// layer draws a layer [out, in] and activations [n, in] of its type, some of them outliers.
func layer(t *rapid.T) (l *Linear, x []float64, n int) {
	out, in := shape(t)
	n = rapid.IntRange(1, 4).Draw(t, "n")
	l = &Linear{Weight: Quantize(matrix(t, out, in), out, in, Float16), Type: Type(rapid.IntRange(0, 2).Draw(t, "type"))}
	if rapid.Bool().Draw(t, "bias") {
		for range out {
			l.Bias = append(l.Bias, rapid.Float64Range(-2, 2).Draw(t, "b"))
		}
	}
	x = matrix(t, n, in)
	for range rapid.IntRange(0, 3).Draw(t, "outliers") {
		x[rapid.IntRange(0, len(x)-1).Draw(t, "at")] = rapid.SampledFrom([]float64{6, -7, 40}).Draw(t, "outlier")
	}
	for i, v := range x {
		x[i] = l.Type.Round(v)
	}
	return l, x, n
}

func run(l *Linear, x []float64, n int) []float64 {
	y := make([]float64, n*l.Weight.Rows)
	l.Forward(y, x, n)
	return y
}

// near demands agreement to the roundings of sums of float64 whose terms add up to size.
func near(t require.TestingT, want, got, size float64, msg ...any) {
	require.LessOrEqual(t, math.Abs(want-got), 1e-14*size+1e-300, msg...)
}

// W8A16 is the dense layer of the dequantised weight.
func TestW8A16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, x, n := layer(t)
		w := make([]float64, len(l.Weight.Codes))
		l.Weight.Dequantize(w, Inv127)
		y := run(l, x, n)
		for i := range y {
			row, col := i/l.Weight.Rows, i%l.Weight.Rows
			var sum, size float64
			for k := range l.Weight.Cols {
				p := x[row*l.Weight.Cols+k] * w[col*l.Weight.Cols+k]
				sum, size = sum+p, size+math.Abs(p)
			}
			if l.Bias != nil {
				sum, size = sum+l.Bias[col], size+math.Abs(l.Bias[col])
			}
			near(t, sum, y[i], size)
		}
	})
}

// The integer path is the dense product of the two matrices that the codes stand for, but for the columns that have none:
// those are the product of the activations as they are with the weight in their type.
func TestDecomposition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, x, n := layer(t)
		l.Mode, l.Threshold = LLMInt8, rapid.SampledFrom([]float64{0, 2, 6}).Draw(t, "threshold")
		in := l.Weight.Cols
		a, columns := QuantizeOutliers(x, n, in, Float16, l.Threshold)
		left, w := make([]float64, len(x)), make([]float64, len(l.Weight.Codes))
		a.Dequantize(left, Inv127)
		l.Weight.Dequantize(w, Inv127)
		y := run(l, x, n)
		for i := range y {
			row, col := i/l.Weight.Rows, i%l.Weight.Rows
			var sum, size float64
			for k := range in {
				p := left[row*in+k] * w[col*in+k]
				if slices.Contains(columns, k) {
					p = x[row*in+k] * l.Type.Round(w[col*in+k])
				}
				sum, size = sum+p, size+math.Abs(p)
			}
			if l.Bias != nil {
				sum, size = sum+l.Bias[col], size+math.Abs(l.Bias[col])
			}
			near(t, sum, y[i], 4*size)
		}
	})
}

// W8A8 with the outlier columns of the batch named is LLM.int8() where the outliers fill their columns; without columns it is
// LLM.int8() without a threshold.
func TestW8A8(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, x, n := layer(t)
		l.Type = Float16
		in := l.Weight.Cols
		k := rapid.IntRange(0, in-1).Draw(t, "column")
		for i := range x {
			x[i] = math.Mod(x[i], 6)
			if i%in == k {
				x[i] = 6 + math.Abs(x[i])
			}
		}
		fixed, found := *l, *l
		fixed.Mode, fixed.Columns = W8A8, []int{k}
		found.Mode, found.Threshold = LLMInt8, 6
		require.Equal(t, run(&found, x, n), run(&fixed, x, n))
		fixed.Columns, found.Threshold = nil, 0
		require.Equal(t, run(&found, x, n), run(&fixed, x, n))
	})
}

// The error of quantising both sides is within the first line of tolerances 5.4, and the layer is no exact one.
func TestQuantisationError(t *testing.T) {
	worst := 0.0
	rapid.Check(t, func(t *rapid.T) {
		out, in := shape(t)
		n := rapid.IntRange(1, 3).Draw(t, "n")
		wide, x := matrix(t, out, in), matrix(t, n, in)
		for i := range wide {
			wide[i] = Float16.Round(wide[i])
		}
		for i := range x {
			x[i] = Float16.Round(x[i])
		}
		l := &Linear{Weight: Quantize(wide, out, in, Float16), Mode: LLMInt8, Type: Float16}
		a := Quantize(x, n, in, Float16)
		y := run(l, x, n)
		for i := range y {
			row, col := i/out, i%out
			sa, sb := a.AbsMax[row]/127, l.Weight.AbsMax[col]/127
			var exact, bound float64
			for k := range in {
				p, q := x[row*in+k], wide[col*in+k]
				exact += p * q
				bound += sa/2*math.Abs(q) + sb/2*math.Abs(p) + sa*sb/4
			}
			bound *= 1 + 1e-5 // near a half the float32 arithmetic of the codes may choose the farther one
			require.LessOrEqual(t, math.Abs(y[i]-exact), bound+1e-300)
			if bound > 0 {
				worst = max(worst, math.Abs(y[i]-exact)/bound)
			}
		}
	})
	require.Greater(t, worst, 0.3, "the bound says something")
}

// The gradient is the adjoint of the W8A16 layer, in every mode: ⟨dy, W·x⟩ = ⟨Wᵀ·dy, x⟩.
func TestAdjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, x, n := layer(t)
		l.Bias = nil
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		dy, dx := make([]float64, n*l.Weight.Rows), make([]float64, len(x))
		for i := range dy {
			dy[i] = r.NormFloat64()
		}
		y := run(l, x, n)
		l.Mode, l.Threshold = Mode(rapid.IntRange(0, 2).Draw(t, "mode")), 6
		l.Backward(dx, dy, n)
		var left, right, size float64
		for i := range y {
			left, size = left+dy[i]*y[i], size+math.Abs(dy[i]*y[i])
		}
		for i := range x {
			right, size = right+dx[i]*x[i], size+math.Abs(dx[i]*x[i])
		}
		var sizes float64 // of the terms inside y and dx
		w := make([]float64, len(l.Weight.Codes))
		l.Weight.Dequantize(w, Inv127)
		for i := range y {
			for k := range l.Weight.Cols {
				sizes += math.Abs(dy[i] * w[i%l.Weight.Rows*l.Weight.Cols+k] * x[i/l.Weight.Rows*l.Weight.Cols+k])
			}
		}
		near(t, left, right, size+sizes)
	})
}

// A layer by hand: codes [127, −64; 0, 0; 127, 42] of absmax 1, 0 and 3, activations [6.5, 2; 1, −1].
func TestByHand(t *testing.T) {
	l := &Linear{Weight: Quantize([]float64{1, -0.5, 0, 0, 3, 1}, 3, 2, Float16), Bias: []float64{0, 10, 0}, Type: Float16, Threshold: 6, Columns: []int{0}}
	x := []float64{6.5, 2, 1, -1}
	hand := map[Mode][]float64{
		W8A16: {6.5 - 2*64./127, 10, 6.5*3 + 2*3*42./127, 1 + 64./127, 10, 3 - 3*42./127},
		// column 0 is whole: 6.5·1 and 6.5·3; 2 is its row's absmax, so 2·(−64/127) again; the weight 3·127/127 is exact.
		LLMInt8: {6.5 - 2*64./127, 10, 6.5*3 + 2*3*42./127, 1 + 64./127, 10, 3 - 3*42./127},
	}
	hand[W8A8] = hand[LLMInt8]
	for mode, want := range hand {
		l.Mode = mode
		for i, y := range run(l, x, 2) {
			near(t, want[i], y, 30, mode, i)
		}
	}
	l.Mode, l.Threshold = LLMInt8, 0 // 2 is 39.08/127 of 6.5 and becomes code 39
	near(t, 6.5-6.5*39./127*64/127, run(l, x, 2)[0], 30)

	// A constant names itself: the products of two frameworks differ by it and by nothing else.
	torch := *l
	torch.Inv127Squared = Inv127SquaredTorch
	near(t, run(l, x, 2)[0]*Inv127SquaredTorch/Inv127Squared, run(&torch, x, 2)[0], 30)
	dx := make([]float64, 4)
	l.Inv127 = 2 // stands for a constant that nobody has
	l.Backward(dx, []float64{1, 5, 0, 0, 0, 1}, 2)
	require.Equal(t, []float64{254, -128, 254 * 3, 84 * 3}, dx)
}

// Planted in a layer, each of these changes an output by more than any rounding.
func TestLayerFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(20261121, 1))
	const n, in, out = 4, 16, 5
	x, w := make([]float64, n*in), make([]float64, out*in)
	for i := range x {
		x[i] = r.NormFloat64()
	}
	x[2*in+3] = 20
	for i := range w {
		w[i] = r.NormFloat64() * float64(1+i/in)
	}
	right := &Linear{Weight: Quantize(w, out, in, Float16), Bias: []float64{1, 2, 3, 4, 5}, Mode: LLMInt8, Type: Float16, Threshold: 6}
	y := run(right, x, n)
	turn := slices.Clone(right.Weight.AbsMax)
	slices.Reverse(turn)
	for name, change := range map[string]func(l *Linear){
		"scales of other rows":      func(l *Linear) { l.Weight = &Int8{out, in, l.Weight.Codes, turn} },
		"scale for absmax":          func(l *Linear) { l.Inv127Squared = 1. / 127 },
		"one factor 1/127 lost":     func(l *Linear) { l.Inv127 = 1 },
		"the torch constant":        func(l *Linear) { l.Inv127Squared = Inv127SquaredTorch },
		"no bias":                   func(l *Linear) { l.Bias = nil },
		"no outliers":               func(l *Linear) { l.Threshold = 0 },
		"all columns outliers":      func(l *Linear) { l.Threshold = 1e-3 },
		"activations not quantised": func(l *Linear) { l.Mode = W8A16 },
		"outliers in bfloat16":      func(l *Linear) { l.Type = BFloat16 },
	} {
		l := *right
		change(&l)
		most := 0.0
		for i, v := range run(&l, x, n) {
			most = max(most, math.Abs(v-y[i])/(1+math.Abs(y[i])))
		}
		require.Greater(t, most, 1e-7, name)
	}
	l := *right
	l.Columns, l.Mode = []int{3, 3}, W8A8
	require.PanicsWithValue(t, badColumn, func() { run(&l, x, n) })
	l.Columns = []int{in}
	require.PanicsWithValue(t, badColumn, func() { run(&l, x, n) })
	l.Mode = 9
	require.PanicsWithValue(t, badMode, func() { run(&l, x, n) })
	l = *right
	l.Bias = []float64{1}
	require.PanicsWithValue(t, badLength, func() { run(&l, x, n) })
}
