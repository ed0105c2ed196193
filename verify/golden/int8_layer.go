package golden

import (
	"math"

	"plumbline/reference/quant"
)

// int8Layer is a layer with an 8-bit weight and the bounds of a program that runs it in the activations' type t.
type int8Layer struct {
	quant.Linear
	n       int
	u       float64   // roundoff of t
	weight  []float64 // [out, in], code·absmax/127
	rounded []float64 // the same, rounded to t
}

// linear8bit is the forward pass of Linear8bitLt in training, the state in which a module is made.
func linear8bit(c *call) []answer {
	w, out, in := c.grid("W")
	x, n, width := c.grid("X")
	b := c.shaped("b", out)
	t, u := storage(c)
	if threshold := c.threshold(); threshold != 0 { // activations keep their type: there are no outliers
		c.undetermined("threshold %v in a layer that may be in training", threshold)
	}
	if c.ok() && width != in {
		c.malformed("inputs X and W have %d and %d columns", width, in)
	}
	if !c.ok() {
		return nil
	}
	l := newInt8Layer(w, out, in, b, t, u, n)
	l.Mode = quant.W8A16
	return []answer{l.forward(x)}
}

// linear8bitLayer is Linear8bitLt with its weight and its backward pass.
func linear8bitLayer(c *call) []answer {
	w, out, in := c.grid("W")
	x, n, width := c.grid("X")
	dy := c.shaped("dY", n, out)
	var b []float64
	if c.has("b") {
		b = c.shaped("b", out)
	}
	t, u := storage(c)
	c.holds("W", quant.Float32)
	c.holds("X", t)
	c.holds("dY", t)
	threshold, training := c.threshold(), c.flag("training")
	if c.ok() && width != in {
		c.malformed("inputs X and W have %d and %d columns", width, in)
	}
	if !c.ok() {
		return nil
	}
	l := newInt8Layer(w, out, in, b, t, u, n)
	if !training {
		l.Mode, l.Threshold = quant.LLMInt8, threshold
	}
	return []answer{equal("codes", floats(l.Weight.Codes)...), equal("scales", l.Weight.AbsMax...), l.forward(x), l.backward(dy)}
}

func newInt8Layer(w []float64, out, in int, b []float64, t quant.Type, u float64, n int) *int8Layer {
	l := &int8Layer{n: n, u: u}
	l.Linear = quant.Linear{Weight: quant.Quantize(w, out, in, quant.Float16), Type: t, Inv127Squared: quant.Inv127SquaredTorch}
	for _, v := range b { // the layer casts it to the activations' type
		l.Bias = append(l.Bias, t.Round(v))
	}
	l.weight, l.rounded = make([]float64, len(w)), make([]float64, len(w))
	l.Weight.Dequantize(l.weight, quant.Inv127)
	for i, v := range l.weight {
		l.rounded[i] = t.Round(v)
	}
	return l
}

// forward bounds the output. In training, with p = Σ|x·w| and t the type of the activations, the weight is rounded to t before
// the product, whose effect is computed; the product has the roundings of a sum of K + 5 terms in float32, and sum and output
// are rounded to t:
//
//	|Σ x·(t(w) − w)| + (K + 5)·u₃₂·(p + |b|) + 2u·(|y| + |b|)
//
// Beside it the integers are exact. Their product with scales and constant, and the bias, take 6 roundings in float32, after
// which the output is rounded to t. With outlier columns O, x·w over O is added to that, a sum in float32, and rounded again:
//
//	s = t(s₀ ± 6u₃₂·(|s₀ − b| + |b|)),   y = t(s + Σ_O x·w ± (|O| + 2)·u₃₂·(|s| + Σ_O |x·w|))
func (l *int8Layer) forward(x []float64) answer {
	w := l.Weight
	y, off := make([]float64, l.n*w.Rows), make([]float64, l.n*w.Rows)
	if l.Mode == quant.LLMInt8 {
		l.Inv127 = quant.Inv127Float32
	}
	l.Forward(y, x, l.n)
	if l.Mode == quant.LLMInt8 {
		return l.decomposed(x, y)
	}
	for i := range y {
		row, col := i/w.Rows, i%w.Rows
		var shift, size float64
		for k := range w.Cols {
			xk := l.Type.Round(x[row*w.Cols+k])
			shift += float64(xk * (l.rounded[col*w.Cols+k] - l.weight[col*w.Cols+k]))
			size += math.Abs(xk * l.weight[col*w.Cols+k])
		}
		b := math.Abs(l.bias(col))
		off[i] = math.Abs(shift) + float64(float64(w.Cols+5)*u32*(size+b)) + float64(2*l.u*(math.Abs(y[i])+b)) + 0x1p-25
	}
	return bounded("y", y, off, LeakDType)
}

// decomposed bounds the output y of LLM.int8().
func (l *int8Layer) decomposed(x, y []float64) answer {
	w := l.Weight
	outlier, has := l.outliers(x)
	a := answer{output: "y", got: make([]float64, len(y)), bound: make([]float64, len(y)), leak: LeakDType, tight: true}
	for i := range y {
		row, col := i/w.Rows, i%w.Rows
		var held, size float64
		terms := 0
		for k := range w.Cols {
			if outlier[k] {
				p := float64(l.Type.Round(x[row*w.Cols+k]) * l.rounded[col*w.Cols+k])
				held, size = held+p, size+math.Abs(p)
				terms++
			}
		}
		b := l.bias(col)
		rest := y[i] - held // the integers and the bias
		first := rounded("", []float64{rest}, []float64{6 * u32 * (math.Abs(rest-b) + math.Abs(b))}, l.Type)
		if !has {
			a.got[i], a.bound[i] = first.got[0], first.bound[0]
			continue
		}
		s := first.got[0]
		last := rounded("", []float64{s + held}, []float64{first.bound[0] + float64(float64(terms+2)*u32*(math.Abs(s)+size))}, l.Type)
		a.got[i], a.bound[i] = last.got[0], last.bound[0]
	}
	return a
}

// bias returns that of an output, 0 if there is none.
func (l *int8Layer) bias(col int) float64 {
	if l.Bias == nil {
		return 0
	}
	return l.Bias[col]
}

// outliers returns which columns of the batch hold an outlier, and whether one does.
func (l *int8Layer) outliers(x []float64) ([]bool, bool) {
	is := make([]bool, l.Weight.Cols)
	_, columns := quant.QuantizeOutliers(x, l.n, l.Weight.Cols, quant.Float16, l.Threshold)
	for _, k := range columns {
		is[k] = true
	}
	return is, len(columns) > 0
}

// backward bounds the gradient for the activations: the weight is rounded to t before the product, as in training.
func (l *int8Layer) backward(dy []float64) answer {
	w := l.Weight
	dx, off := make([]float64, l.n*w.Cols), make([]float64, l.n*w.Cols)
	l.Inv127 = quant.Inv127
	l.Backward(dx, dy, l.n)
	for i := range dx {
		row, k := i/w.Cols, i%w.Cols
		var shift, size float64
		for j := range w.Rows {
			d := dy[row*w.Rows+j]
			shift += float64(d * (l.rounded[j*w.Cols+k] - l.weight[j*w.Cols+k]))
			size += math.Abs(d * l.weight[j*w.Cols+k])
		}
		off[i] = math.Abs(shift) + float64(float64(w.Rows+5)*u32*size) + float64(l.u*math.Abs(dx[i])) + 0x1p-25
	}
	return bounded("dX", dx, off, LeakDType)
}

// merged8bit is the merge of an adapter's update into a weight of codes, and taking it off again.
func merged8bit(c *call) []answer {
	m := c.int8Matrix("codes", "scales")
	delta := c.shaped("delta", m.Rows, m.Cols)
	t, _ := storage(c)
	c.holds("delta", t)
	if !c.ok() {
		return nil
	}
	merged := m.Merge(delta, t)
	minus := make([]float64, len(delta))
	for i, d := range delta {
		minus[i] = -d
	}
	back := merged.Merge(minus, t)
	return []answer{
		equal("codes", floats(merged.Codes)...), equal("scales", merged.AbsMax...),
		equal("unmerged_codes", floats(back.Codes)...), equal("unmerged_scales", back.AbsMax...),
	}
}
