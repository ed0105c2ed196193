package golden

import (
	"math"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// LoRALinear judges one linear layer with an adapter.
var LoRALinear = loraLinear.check()

var loraLinear = &section{
	name:  "lora_linear",
	title: "a linear layer with an adapter is that of PEFT",
	doc: `Runs y = W·x + b + s·B·A·x on the tape and backwards from Σ y², with s = alpha/r, or alpha/√r with rank stabilisation. Compares
the output, the gradients for A, B and x, the update s·B·A, the weight with the update merged into it, the output of that
weight, and the weight after the update was taken off. Weights of Conv1D (fan_in_fan_out) are stored transposed. With DoRA the
rows of W + s·B·A are scaled to the magnitudes, and their norms have no gradient.`,
	source:    "Hu et al. 2021, Section 4.1; Kalajdzievski 2023; Liu et al. 2024 (DoRA), Section 4.3; peft@0.21.2 tuners/lora/layer.py, dora.py; reference/nn LoRA",
	functions: map[string]recompute{"peft LoraConfig/get_peft_model on one layer": loraLayer},
	faults:    loraFaults,
}

// loraLayer recomputes one layer. The weight of the entry is [out, in] whatever way the layer stores it.
func loraLayer(c *call) []answer {
	w, out, in := c.grid("W")
	x, n, width := c.grid("X")
	a, rank, aIn := c.grid("A")
	b := c.shaped("b", out)
	up := c.shaped("B", out, rank)
	if c.ok() && (width != in || aIn != in) {
		c.malformed("inputs W, X and A have %d, %d and %d columns", in, width, aIn)
	}
	c.ignore("name")
	for key, want := range map[string]int{"din": in, "dout": out, "r": rank} {
		if v := c.value(key); c.ok() && v != float64(want) {
			c.malformed("option %s is %v, the inputs say %d", key, v, want)
		}
	}
	transposed := c.agree("fan_in_fan_out", "ff")
	scale := 0.0
	if alpha, stabilised := c.value("alpha"), c.agree("use_rslora", "rs"); c.ok() {
		scale = nn.LoRAScale(alpha, rank, stabilised)
	}
	if hasBias := c.flag("bias") || transposed; !hasBias { // Conv1D always has one
		for _, v := range b {
			if v != 0 {
				c.malformed("option bias is false, and input b is not 0")
			}
		}
	}
	if loss := c.text("loss"); loss != "sum(y*y)" {
		c.undetermined("loss %s", short(loss))
	}
	var magnitude []float64
	if c.flagOr("dora", false) {
		magnitude = c.shaped("magnitude", out)
	}
	if !c.ok() {
		return nil
	}

	t := new(ad.Tape)
	xs, as, bs := t.Param(x, n, in), t.Param(a, rank, in), t.Param(up, out, rank)
	weight, bias := t.Const(w, out, in), t.Const(b, out)
	delta := ad.Scale(ad.MatMul(bs, as, false, false), scale) // [out, in]
	var y, merged *ad.Var
	if magnitude == nil {
		y = ad.Add(nn.Linear(xs, weight, bias), nn.LoRA{A: as, B: bs, Scale: scale}.Delta(xs))
		merged = ad.Add(weight, delta)
	} else {
		sum := ad.Add(weight, delta)
		norm := ad.Detach(ad.Sqrt(ad.Sum(ad.Mul(sum, sum), true, 1)))
		merged = ad.Mul(ad.Div(t.Const(magnitude, out, 1), norm), sum)
		y = nn.Linear(xs, merged, bias)
	}
	ad.Backward(ad.Sum(ad.Mul(y, y), false, 0, 1), []float64{1})

	// Adding the update and taking it off leaves two roundings; with magnitudes, those of a product and a quotient more.
	unmerged := plain("unmerged_weight", w...)
	unmerged.leak = Conditioning
	unmerged.bound = make([]float64, len(w))
	for i := range w {
		unmerged.bound[i] = 8 * u64 * (math.Abs(w[i]) + math.Abs(delta.Data()[i]) + math.Abs(merged.Data()[i]))
	}
	stored := func(name string, m []float64) answer {
		if transposed {
			m = turned(m, out, in)
		}
		return plain(name, m...)
	}
	if transposed {
		unmerged.got, unmerged.bound = turned(w, out, in), turned(unmerged.bound, out, in)
	}
	return []answer{
		plain("y", y.Data()...), plain("scaling", scale), stored("delta_weight", delta.Data()), stored("merged_weight", merged.Data()),
		plain("y_merged", nn.Linear(t.Const(x, n, in), ad.Detach(merged), bias).Data()...), unmerged,
		plain("dA", as.Grad()...), plain("dB", bs.Grad()...), plain("dX", xs.Grad()...),
	}
}

// agree returns a boolean option that the producer recorded under two names.
func (c *call) agree(key, again string) bool {
	v := c.flag(key)
	if c.flagOr(again, v) != v {
		c.malformed("options %s and %s differ", key, again)
	}
	return v
}

// turned returns the transposed of x [rows, cols].
func turned(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for i := range rows {
		for j := range cols {
			y[j*rows+i] = x[i*cols+j]
		}
	}
	return y
}
