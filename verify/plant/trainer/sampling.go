package trainer

import (
	"math"
	"slices"

	"plumbline/internal/rng"
)

// sample draws the tokens from the engine's policy, tool output from nowhere.
func (w *world) sample(o settings) {
	d := &drawn{stream: rng.New(w.seed, drawTokens)}
	w.ids = slices.Repeat([]int{w.pad}, w.rows*w.cols)
	w.context = make([]int, w.rows*w.cols)
	for i := range w.context {
		w.context[i] = i
	}
	z := make([]float64, w.vocab)
	for r := range w.rows {
		for t := range w.length[r] {
			cell := r*w.cols + t
			w.context[cell] = w.contextOf(r, t)
			x := d.uniform()
			switch {
			case t == w.eosAt[r]:
				w.ids[cell] = w.eos
			case w.hole[cell]:
				w.ids[cell] = 2 + int(x*float64(w.vocab-2))
			default:
				w.logits(z, genPolicy, cell)
				w.ids[cell] = draw(z, o.temperature, x)
			}
		}
	}
}

// contextOf returns the first cell with the prompt and the tokens before a cell.
func (w *world) contextOf(r, t int) int {
	for s := range r {
		if w.group[s] == w.group[r] && t < w.length[s] && slices.Equal(w.ids[s*w.cols:s*w.cols+t], w.ids[r*w.cols:r*w.cols+t]) {
			return s*w.cols + t
		}
	}
	return r*w.cols + t
}

// draw returns the token other than pad and EOS at which the cumulated probability passes x.
func draw(z []float64, temperature, x float64) int {
	high := slices.Max(z[2:])
	var total float64
	for _, v := range z[2:] {
		total += math.Exp((v - high) / temperature)
	}
	x *= total
	for v := 2; v < len(z); v++ {
		if x -= math.Exp((z[v] - high) / temperature); x < 0 {
			return v
		}
	}
	return len(z) - 1
}
