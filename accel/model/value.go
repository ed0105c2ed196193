package model

// ValueHead gives every state a value, v = ⟨W, x⟩ + B, with sums of float64: v_head.summary of TRL's models.
type ValueHead struct {
	W []float64 // [C]
	B float64
}

// Forward returns the values of the states x [N, C].
func (h ValueHead) Forward(x []float32) []float64 {
	c := len(h.W)
	v := make([]float64, len(x)/c)
	for i := range v {
		sum := h.B
		for j, w := range h.W {
			sum += float64(w * float64(x[i*c+j]))
		}
		v[i] = sum
	}
	return v
}

// Backward adds to gradW, gradB and dx [N, C] the gradients from dv, the gradient by the values.
func (h ValueHead) Backward(gradW []float64, gradB *float64, dx, x []float32, dv []float64) {
	c := len(h.W)
	for i, d := range dv {
		if d == 0 {
			continue
		}
		*gradB += d
		for j, w := range h.W {
			gradW[j] += float64(d * float64(x[i*c+j]))
			dx[i*c+j] = float32(float64(dx[i*c+j]) + float64(d*w))
		}
	}
}
