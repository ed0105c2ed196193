package checkpoint

import (
	"fmt"
	"math"
)

// mergedBias is the bias of a layer that lora_B.bias is added to.
type mergedBias struct {
	name     string
	compared int
	excess   int // numbers that are not bias + s·b
	plain    int // numbers that are not bias + b either
	where    string
}

// bias compares the bias of one layer: its merge is bias + s·b, of which peft@0.21 leaves out s for 8-bit layers.
func (m *mergeFacts) bias(s float64, b, old, made *Tensor) error {
	if old == nil || made == nil || old.Array.Len() != b.Array.Len() || made.Array.Len() != b.Array.Len() {
		m.absent = append(m.absent, b.Name)
		return nil
	}
	var x [3][]float64
	for i, t := range []*Tensor{b, old, made} {
		var err error
		if x[i], err = t.Array.Float64s(); err != nil {
			return err
		}
	}
	r := mergedBias{name: made.Name, compared: len(x[0])}
	unit, eta := made.Array.DType.Unit()
	stored, _ := b.Array.DType.Unit()
	for i, v := range x[2] {
		delta := s * x[0][i]
		bound := func(want, d float64) float64 {
			return (unit*math.Abs(want)+(2*stored+0x1p-24)*math.Abs(d))*(1+0x1p-10) + eta
		}
		if want := x[1][i] + delta; !(math.Abs(v-want) <= bound(want, delta)) {
			if r.excess == 0 {
				r.where = fmt.Sprintf("[%d]: got %.9g, want %.9g + %.9g", i, v, x[1][i], delta)
			}
			r.excess++
		}
		if want := x[1][i] + x[0][i]; !(math.Abs(v-want) <= bound(want, x[0][i])) {
			r.plain++
		}
	}
	m.biases = append(m.biases, r)
	return nil
}
