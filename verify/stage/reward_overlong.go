package stage

import (
	"math"

	"plumbline/verify/tol"
)

// overlong lowers the scores of responses that reach into the buffer before the longest length, where one is declared (DAPO, Yu et al. 2025,
// Eq. 13; OpenRLHF 0.11.2 apply_overlong_penalty): for n tokens, of L at most, the buffer b and the factor f
//
//	s − min(n − (L − b), b)/b·f        n > L − b
//
// The sum is one of the format, the penalty a constant of it: u·(|penalty| + |sum|).
func (c *Case) overlong(s Input) Input {
	buffer := c.FactOr("overlong_buffer_len", 0)
	if buffer <= 0 {
		return s
	}
	limit, factor := c.Fact("max_completion_length"), c.FactOr("overlong_penalty_factor", 1)
	if !c.OK() {
		return Input{}
	}
	y := Input{X: make([]float64, len(s.X)), Err: make([]float64, len(s.X)), Half: s.Half}
	for r, n := range c.tokensOfRows() {
		y.X[r], y.Err[r] = s.X[r], s.E(r)
		if n > limit-buffer {
			penalty := min(n-(limit-buffer), buffer) / buffer * factor
			y.X[r] -= penalty
			y.Err[r] += (c.Unit + tol.U64) * (math.Abs(penalty) + math.Abs(y.X[r]))
		}
	}
	return y
}
