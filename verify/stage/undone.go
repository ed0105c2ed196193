package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// Undo returns the rewards of a response of which a wrong sum over rewards, linear in them, has made x; NaN of a token whose reward x does not hold.
type Undo = func(x []float64, gamma float64) []float64

// ScoredToken is the token of a response of n that has its score.
type ScoredToken = func(n int) int

// writtenDiscounts are the discounts of returns that programs write.
var writtenDiscounts = []float64{1, 0.999, 0.998, 0.995, 0.99, 0.98, 0.97, 0.96, 0.95, 0.9, 0.85, 0.8}

// Undone returns b with the right returns R_t = r_t + γ·R_{t+1} in place of those that a wrong sum over the rewards of tokens has made of them, where these were
// not dumped: but for the token that has the score r_t is −β·k_t of an estimate k of the KL, or 0, so that of a sum F that is linear, and whitened to a·F(r) + c, undo gives
//
//	undo(A)_t = −aβ·k_t + c·undo(1)_t
//
// for all of them. The score is put on the last token. It is nil where no estimate and no written γ leave roundings alone. Right returns are whitened to the mean and the deviation of the dumped ones.
func Undone(b *dump.Batch, set *convention.Set, undo Undo, scored ScoredToken) *dump.Batch {
	if b.Token("token_rewards") != nil || b.Token("values") != nil || b.Row("scores") == nil || !variesInRow(b) {
		return nil
	}
	estimates := [][]float64{nil}
	for _, t := range rewardEstimates(b, set) {
		estimates = append(estimates, t.k)
	}
	healed := b.Without("returns")
	for _, name := range []string{"advantages", "returns"} {
		x := b.Token(name)
		if x == nil {
			continue
		}
		y := undone(b, x, estimates, undo, scored)
		switch {
		case y != nil && name == "returns":
			healed.Tensors[name] = b.With(name, y).Tensors[name]
		case y != nil:
			healed = healed.With(name, y)
		case name == "advantages":
			return nil
		}
	}
	return healed
}

// undone returns the right returns of what undo makes of wrong ones, nil of no rewards.
func undone(b *dump.Batch, x []float64, estimates [][]float64, undo Undo, scored ScoredToken) []float64 {
	const exact = 1e-5
	size := rms(x, func(i int) bool { return b.Mask[i] })
	least, best := exact*size, []float64(nil)
	for _, gamma := range writtenDiscounts {
		r, one := make([]float64, len(x)), make([]float64, len(x))
		inner := make([]bool, len(x))
		from := map[int]int{} // the cell of the score of the row that ends in a cell
		for row := range b.Rows {
			var cells []int
			var own, ones []float64
			for i := range b.TokensOf(row) {
				cells, own, ones = append(cells, i), append(own, x[i]), append(ones, 1)
			}
			if len(cells) == 0 {
				continue
			}
			of, by, at := undo(own, gamma), undo(ones, gamma), scored(len(cells))
			from[cells[len(cells)-1]] = cells[at]
			for t, i := range cells {
				r[i], one[i], inner[i] = of[t], by[t], t != at && !math.IsNaN(of[t])
			}
		}
		for _, k := range estimates {
			slope, shift, left := linePlane(r, k, one, inner)
			if !(left < least) { // of a sum without a discount every γ leaves the same
				continue
			}
			least = left
			y := make([]float64, len(x))
			for i := range y {
				if k != nil && b.Mask[i] {
					y[i] = slope * k[i]
				}
			}
			for last, at := range from {
				if rest := 0.0; !math.IsNaN(r[at]) {
					if k != nil {
						rest = slope * k[at]
					}
					y[last] += r[at] - shift*one[at] - rest
				}
			}
			best = rl.RewardToGo(nil, y, b.Mask, b.Rows, b.Cols, gamma, rl.HoleCarry)
			if math.Abs(shift) > 1e-4*size {
				asWhite(best, x, b.Mask)
			}
			for i, y := range best {
				best[i] = float64(float32(y))
			}
		}
	}
	return best
}

// linePlane fits y = slope·k + shift·c by least squares where in, without k where it is nil, and returns the RMS of what is left, NaN where nothing is determined.
func linePlane(y, k, c []float64, in []bool) (slope, shift, left float64) {
	var kk, kc, cc, ky, cy, n float64
	at := func(x []float64, i int) float64 {
		if x == nil {
			return 0
		}
		return x[i]
	}
	for i := range y {
		if in[i] {
			kk, kc, cc = kk+float64(at(k, i)*at(k, i)), kc+float64(at(k, i)*c[i]), cc+float64(c[i]*c[i])
			ky, cy, n = ky+float64(at(k, i)*y[i]), cy+float64(c[i]*y[i]), n+1
		}
	}
	switch det := kk*cc - kc*kc; {
	case n < 8:
		return 0, 0, math.NaN()
	case det > 1e-9*kk*cc:
		slope, shift = (ky*cc-cy*kc)/det, (cy*kk-ky*kc)/det
	case kk > 0:
		slope = ky / kk
	case cc > 0:
		shift = cy / cc
	}
	for i := range y {
		if in[i] {
			d := y[i] - slope*at(k, i) - shift*c[i]
			left += float64(d * d)
		}
	}
	return slope, shift, math.Sqrt(left / n)
}

// asWhite gives x the mean and the deviation of like over the cells of a mask.
func asWhite(x, like []float64, mask []bool) {
	var own, other []float64
	for i, in := range mask {
		if in {
			own, other = append(own, x[i]), append(other, like[i])
		}
	}
	m, l := momentsOf(own, nil, 0, 0, 0), momentsOf(other, nil, 0, 0, 0)
	for i, in := range mask {
		if in && m.v > 0 {
			x[i] = (x[i]-m.mean)*math.Sqrt(l.v/m.v) + l.mean
		}
	}
}
