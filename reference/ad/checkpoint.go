package ad

// Checkpoint returns f of the inputs and forgets what f computes on the way: the
// rules run f once more (Chen et al. 2016, arXiv:1604.06174). f is called with
// Vars of another tape that hold the same data; it must be a function of them
// alone and record on their tape. Values and gradients have the bits of f(in)
// itself, as long as what an input contributes to outside f was recorded later.
//
//	JVP  ẏ = J_f·ẋ
//	VJP  x̄ = J_fᵀ·ȳ
func Checkpoint(in []*Var, f func(in []*Var) *Var) *Var {
	run := func(needs func(k int) bool) ([]*Var, *Var) {
		t, x := &Tape{}, make([]*Var, len(in))
		for k, v := range in {
			if needs(k) {
				x[k] = t.Param(v.data, v.shape...)
			} else {
				x[k] = t.View(v.data, v.shape...)
			}
		}
		return x, f(x)
	}
	_, inside := run(func(int) bool { return false })
	y := record("checkpoint", inside.shape, inside.data, in,
		func(dx [][]float64, dy []float64) {
			x, inside := run(func(k int) bool { return dx[k] != nil })
			var moved []*Var
			var tangents [][]float64
			for k := range x {
				if dx[k] != nil {
					moved, tangents = append(moved, x[k]), append(tangents, dx[k])
				}
			}
			for i, d := range JVP(inside, moved, tangents) {
				dy[i] += d
			}
		},
		func(dy []float64, dx [][]float64) {
			x, inside := run(func(k int) bool { return dx[k] != nil })
			if !inside.needs { // f reads none of them
				return
			}
			Backward(inside, dy)
			for k := range x {
				if dx[k] != nil {
					for i, d := range x[k].grad {
						dx[k][i] += d
					}
				}
			}
		})
	y.inside = func() ([]*Var, *Var) {
		x, inside := run(func(k int) bool { return in[k].needs })
		for k, v := range in {
			if !v.needs {
				x[k] = nil
			}
		}
		return x, inside
	}
	y.mag = func() []float64 {
		_, inside := run(func(k int) bool { return in[k].needs })
		m := make([]float64, len(inside.data))
		for i := range m {
			one := make([]float64, len(m))
			one[i] = 1
			m[i] = magnitude(inside, one)
		}
		return m
	}
	return y
}
