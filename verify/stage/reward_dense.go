package stage

import "math"

// dense reports whether the dumped rewards of tokens, less their KL, are those of a reward that is given to several tokens of a response and whose sum
// is the score of the response: p without its score, in the columns at, is the KL. All rows have that sum; some have it in several cells, and most tokens
// have none. A score in another place stands in one cell, and one that is spread is in all.
func (c *Case) dense(p *Prediction, at []int, score Input) bool {
	b, got := c.B, c.B.Token("token_rewards")
	if got == nil || len(p.Want) != len(b.Mask) {
		return false
	}
	paid, tokens, several := 0, 0, 0
	for r, t := range at {
		if t < 0 {
			continue
		}
		var sum, size, e float64
		n := 0
		for i := range b.TokensOf(r) {
			x := got[i] - p.Want[i]
			if i == r*b.Cols+t {
				x += score.X[r]
			}
			limit := 4*p.Bound[i] + 4*c.Unit*math.Abs(got[i]) + 1e-12
			tokens++
			if math.Abs(x) > limit {
				n++
			}
			sum, size, e = sum+x, size+math.Abs(x), e+limit
		}
		if !(math.Abs(sum-score.X[r]) <= e+score.E(r)+16*c.Unit*(size+math.Abs(score.X[r]))) {
			return false
		}
		paid += n
		if n > 1 {
			several++
		}
	}
	return several > 0 && 2*paid <= tokens
}
