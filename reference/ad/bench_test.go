package ad

import "testing"

// decoder is a stack of pre-norm transformer blocks with C = 64, 4 heads and a
// 4·C wide GELU, as a language model over a vocabulary of V.
type decoder struct {
	tape   *Tape
	params []*Var
}

const (
	benchB, benchT, benchC, benchH, benchV = 8, 64, 64, 4, 128
	benchLayers                            = 2
)

func (m *decoder) weight(shape ...int) *Var {
	x := make([]float64, size(shape))
	for i := range x {
		x[i] = float64((i+len(m.params)*131)*7919%1009-504) / 4096
	}
	p := m.tape.Param(x, shape...)
	m.params = append(m.params, p)
	return p
}

func (m *decoder) norm(x *Var) *Var {
	c := Sub(x, Mean(x, true, -1))
	return Mul(Mul(c, Pow(AddScalar(Mean(Mul(c, c), true, -1), 1e-5), -0.5)), m.weight(benchC))
}

func (m *decoder) block(x *Var, causal Mask) *Var {
	heads := func(x *Var) *Var {
		return Permute(Reshape(x, benchB, benchT, benchH, benchC/benchH), 0, 2, 1, 3)
	}
	h := m.norm(x)
	q := heads(MatMul(h, m.weight(benchC, benchC), false, false))
	k := heads(MatMul(h, m.weight(benchC, benchC), false, false))
	v := heads(MatMul(h, m.weight(benchC, benchC), false, false))
	s := Where(causal, Scale(MatMul(q, k, false, true), 0.25), m.tape.Scalar(-inf))
	a := Permute(MatMul(Softmax(s, -1), v, false, false), 0, 2, 1, 3)
	x = Add(x, MatMul(Reshape(a, benchB, benchT, benchC), m.weight(benchC, benchC), false, false))

	h = MatMul(m.norm(x), m.weight(benchC, 4*benchC), false, false)
	h = Mul(Scale(h, 0.5), AddScalar(Erf(Scale(h, 0.7071067811865476)), 1))
	return Add(x, MatMul(h, m.weight(4*benchC, benchC), false, false))
}

// loss is the mean negative log-probability of the tokens ids.
func (m *decoder) loss(ids []int) *Var {
	causal := Mask{[]int{benchT, benchT}, make([]bool, benchT*benchT)}
	for i := range causal.On {
		causal.On[i] = i%benchT <= i/benchT
	}
	x := Embedding(m.weight(benchV, benchC), ids, benchB, benchT)
	for range benchLayers {
		x = m.block(x, causal)
	}
	logits := MatMul(m.norm(x), m.weight(benchC, benchV), false, false)
	return Neg(Mean(Gather(LogSoftmax(logits, -1), 1, ids), false))
}

func BenchmarkDecoder(b *testing.B) {
	ids := make([]int, benchB*benchT)
	for i := range ids {
		ids[i] = i * 37 % benchV
	}
	b.Run("forward", func(b *testing.B) {
		for b.Loop() {
			(&decoder{tape: new(Tape)}).loss(ids)
		}
	})
	b.Run("forward+backward", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Backward((&decoder{tape: new(Tape)}).loss(ids), []float64{1})
		}
	})
}

func BenchmarkMatMul(b *testing.B) {
	const n = 256
	var tape Tape
	x := tape.Const(make([]float64, n*n), n, n)
	for i := range x.data {
		x.data[i] = float64(i%17) - 8.5
	}
	b.Run("Gemm", func(b *testing.B) {
		for b.Loop() {
			MatMul(x, x, false, false)
		}
	})
	b.Run("loop", func(b *testing.B) {
		c := make([]float64, n*n)
		for b.Loop() {
			mulAddLoop(c, x.data, false, x.data, n, n, n)
		}
	})
}
