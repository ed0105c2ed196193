package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// recursion predicts advantages whose recursion has a wrong mask while the whitening has the right one: what the recursion gives
// is handed to the whitening as rewards without a future.
func recursion(in input) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		if ch.Output != "advantages" {
			return under(in, c, ch)
		}
		if v := c.Set.Value("whiten.scope"); v.Kind() != convention.Enum || v.Text() == "none" {
			return under(in, c, ch)
		}
		c, _ = c.OfWhiteRewards() // whose scope is not to be none, too
		raw := under(both(in, option("whiten.scope", "none")), c, ch)
		if raw == nil {
			return nil
		}
		p := under(both(both(perToken("token_rewards", raw.Want), constant("values", 0)), number("gae.gamma", func(float64) float64 { return 0 })), c, ch)
		if p == nil || len(p.Want) != len(raw.Want) {
			return nil
		}
		var most float64
		for _, b := range raw.Bound {
			most = max(most, b)
		}
		for i := range p.Bound {
			p.Bound[i] += 4 * most
		}
		return p
	}
}

// maskedKL is the input whose KL, and whose reference where that makes it, say nothing outside the mask.
func maskedKL(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	for name, stands := range map[string][]float64{"kl": make([]float64, len(b.Mask)), "logp_ref": b.Token("logp_old")} {
		x := b.Token(name)
		if len(x) != len(b.Mask) || len(stands) != len(x) {
			continue
		}
		b = b.With(name, eachOf(len(x), func(i int) float64 {
			if b.Mask[i] {
				return x[i]
			}
			return stands[i]
		}))
	}
	return b, c.Set, true
}

// moved predicts a per-token output whose column t of row r is column t−by(r) of the right one, judged where that is in the mask.
func moved(c *stage.Case, ch *stage.Check, by func(row int) int) *stage.Prediction {
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: make([]bool, len(p.Want))}
	w := c.B.Cols
	for r := range c.B.Rows {
		for t := range w {
			i, from := r*w+t, t-by(r)
			if from < 0 || from >= w || !c.B.Mask[i] || !c.B.Mask[r*w+from] {
				continue
			}
			q.Want[i], q.Bound[i], q.Judge[i] = p.Want[r*w+from], p.Bound[r*w+from], true
		}
	}
	return q
}

// ofLast returns the input in which a tensor has another number at the last token of every row, x there.
func ofLast(name string, change func(c *stage.Case, row, last int, x float64) float64) input {
	return token(name, func(c *stage.Case, x []float64) []float64 {
		if len(x) != c.B.Rows*c.B.Cols {
			return nil
		}
		y, w := slices.Clone(x), c.B.Cols
		for row := range c.B.Rows {
			if _, last := firstLast(c.B.Mask[row*w : (row+1)*w]); last >= 0 {
				y[row*w+last] = change(c, row, last, x[row*w+last])
			}
		}
		return y
	})
}

// discounted returns γ·V of a cell, 0 behind the last column.
func discounted(c *stage.Case, row, col int) float64 {
	v, g := c.B.Token("values"), c.Set.Value("gae.gamma")
	if v == nil || g.Kind() != convention.Number || col >= c.B.Cols {
		return 0
	}
	return g.Num() * v[row*c.B.Cols+col]
}

// ended reports whether a row has an EOS in its mask.
func ended(c *stage.Case, row int) bool {
	eos := c.FactList("eos_token_id")
	for t := range c.B.Cols {
		if id, ok := c.B.TokenID(row, t); ok && c.B.Mask[row*c.B.Cols+t] && slices.Contains(eos, float64(id)) {
			return true
		}
	}
	return false
}

// byColumn whitens the raw advantages over columns in place of all cells.
func byColumn(c *stage.Case, ch *stage.Check) *stage.Prediction {
	if ch.Output != "advantages" {
		return nil
	}
	raw := under(option("whiten.scope", "none"), c, ch)
	ddof, eps := c.Set.Value("whiten.ddof"), c.Set.Value("whiten.eps")
	if raw == nil || len(raw.Want) != len(c.B.Mask) || ddof.Kind() != convention.Number || eps.Kind() != convention.Number {
		return nil
	}
	x, err := make([]float64, len(raw.Want)), slices.Clone(raw.Bound)
	column, mask := make([]float64, c.B.Rows), make([]bool, c.B.Rows)
	judge, judged := make([]bool, len(x)), 0.0
	place := c.Set.Value("whiten.eps_place")
	if place.Kind() != convention.Enum {
		return nil
	}
	o := rl.WhitenOptions{Scope: rl.ScopeGlobal, Eps: eps.Num(), Var: rl.VarOptions{DDof: int(ddof.Num())}}
	o.EpsPlace, _ = rl.ParseEpsPlace(place.Text())
	for t := range c.B.Cols {
		for r := range column {
			column[r], mask[r] = raw.Want[r*c.B.Cols+t], c.B.Mask[r*c.B.Cols+t]
		}
		y, fail := rl.Whiten(nil, column, mask, c.B.Rows, 1, o)
		if fail != nil {
			continue // what programs make of a column of a single token differs
		}
		for r := range column {
			if i := r*c.B.Cols + t; mask[r] {
				judge[i] = true
				judged++
			}
			x[r*c.B.Cols+t] = y[r]
			err[r*c.B.Cols+t] = 1e-4 * max(1, math.Abs(y[r]))
		}
	}
	if 2*judged < count(c.B.Mask) {
		return nil
	}
	return &stage.Prediction{Want: x, Bound: err, Scale: raw.Scale, Judge: judge}
}

// permuted predicts a per-token output whose every row is the right one of some row, no two of the same: the row whose cells
// are nearest to those that were dumped.
func permuted(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const most = 512
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	w := c.B.Cols
	if p == nil || got == nil || len(got.Data) != len(c.B.Mask) || len(p.Want) != len(c.B.Mask) || c.B.Rows > most || c.B.Rows < 2 {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: make([]bool, len(p.Want))}
	taken, elsewhere := map[int]bool{}, 0
	for r := range c.B.Rows {
		best, least, shared := -1, math.Inf(1), 0
		for s := range c.B.Rows {
			var sum float64
			n := 0
			for t := range w {
				if i, j := r*w+t, s*w+t; c.B.Mask[i] && c.B.Mask[j] {
					sum += math.Abs(got.Data[i] - p.Want[j])
					n++
				}
			}
			if n > 0 && sum/float64(n) < least && !taken[s] {
				best, least, shared = s, sum/float64(n), n
			}
		}
		if shared == 0 {
			continue
		}
		taken[best] = true
		if best != r {
			elsewhere++
		}
		for t := range w {
			if i, j := r*w+t, best*w+t; c.B.Mask[i] && c.B.Mask[j] {
				q.Want[i], q.Bound[i], q.Judge[i] = p.Want[j], p.Bound[j], true
			}
		}
	}
	if elsewhere < 2 {
		return nil
	}
	return q
}

// merged predicts group advantages where two groups share a key: those whose merging leaves the fewest cells wrong.
func merged(c *stage.Case, ch *stage.Check) *stage.Prediction {
	id, got := c.B.Row("group_id"), c.B.Tensors["advantages"]
	if id == nil || got == nil {
		return nil
	}
	groups := slices.Compact(slices.Sorted(slices.Values(id)))
	if len(groups) < 3 || len(groups) > 24 {
		return nil
	}
	pairwise := func(key func(g int) float64) *stage.Prediction {
		ids := make([]float64, len(id))
		for r, g := range id {
			at, _ := slices.BinarySearch(groups, g)
			ids[r] = key(at)
		}
		return under(ofGroups(ids), c, ch)
	}
	best := closest{got: got.Data}
	best.consider(pairwise(func(g int) float64 { return float64(g / 2) }))
	for i := range groups {
		for j := i + 1; j < len(groups); j++ {
			best.consider(pairwise(func(g int) float64 {
				if g == j {
					return float64(i)
				}
				return float64(g)
			}))
		}
	}
	return best.p
}

// closest holds, of several predictions of an output, the first that leaves the fewest of its elements wrong. It only chooses which
// one is tried; whether that explains a failure is judged within the bounds.
type closest struct {
	got   []float64
	p     *stage.Prediction
	wrong int
}

func (c *closest) consider(p *stage.Prediction) {
	if p == nil || len(p.Want) != len(c.got) {
		return
	}
	wrong := 0
	for i, w := range p.Want {
		if (p.Judge == nil || p.Judge[i]) && !(math.Abs(c.got[i]-w) <= 4*p.Bound[i]+1e-6*math.Abs(w)) {
			wrong++
		}
	}
	if c.p == nil || wrong < c.wrong {
		c.p, c.wrong = p, wrong
	}
}

// inverted returns the input in which finished responses get the penalty of a missing EOS, and the others do not.
func inverted(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	rule, penalty := c.Set.Value("eos.rule"), c.Set.Value("eos.penalty")
	score := c.B.Row("scores")
	if rule.Kind() != convention.Enum || penalty.Kind() != convention.Number || score == nil || c.FactList("eos_token_id") == nil {
		return nil, nil, false
	}
	x := slices.Clone(score)
	for r := range x {
		if !ended(c, r) {
			continue
		}
		switch p := penalty.Num(); {
		case rule.Text() == "subtract":
			x[r] -= p
		case rule.Text() == "replace", rule.Text() == "scale" && p < 0:
			x[r] = p
		case rule.Text() == "scale":
			x[r] *= p
		}
	}
	return c.B.With("scores", x), c.Set.With("eos.rule", parsed("eos.rule", "none"), "hypothesis"), true
}

// afterBaseline predicts group advantages from which the KL of the sequence is subtracted after the baseline.
func afterBaseline(c *stage.Case, ch *stage.Check) *stage.Prediction {
	beta, p, kl := c.Set.Value("kl.beta"), under(noKL, c, ch), c.Of(c.B, c.Set).Token("kl")
	if p == nil || len(kl.X) != len(c.B.Mask) || beta.Kind() != convention.Number || len(p.Want) != c.B.Rows {
		return nil
	}
	q := altered(p)
	for r := range q.Want {
		var sum, size, e float64
		for i := range c.B.TokensOf(r) {
			sum += kl.X[i]
			size += math.Abs(kl.X[i])
			e += kl.E(i)
		}
		q.Want[r] -= float64(beta.Num() * sum)
		q.Bound[r] += 0x1p-20*(math.Abs(beta.Num())*size+math.Abs(q.Want[r])) + math.Abs(beta.Num())*e
	}
	return q
}

// spanned predicts per-token numbers of which a few rows are off by one constant each.
func spanned(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if p == nil || got == nil || got.Layout != dump.PerToken || len(p.Want) != len(got.Data) || c.B.Cols < 3 {
		return nil
	}
	q := *p
	q.Want = slices.Clone(p.Want)
	off := 0
	for r := range c.B.Rows {
		by, n, constant := math.NaN(), 0, true
		for i := range c.B.TokensOf(r) {
			d := got.Data[i] - p.Want[i]
			if n++; n == 1 {
				by = d
			}
			constant = constant && math.Abs(d-by) <= 4*p.Bound[i]+1e-6
		}
		if n < 3 || !constant || !(math.Abs(by) > 1e-3) {
			continue
		}
		off++
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			q.Want[i] += by
		}
	}
	if off == 0 || off > max(1, c.B.Rows/4) {
		return nil
	}
	return &q
}

// rowsMoved returns a per-token output whose row r of a file is row from(r) of it.
func rowsMoved(from func(r, n int) int) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
			return nil
		}
		q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: slices.Clone(c.B.Mask)}
		w := c.B.Cols
		for _, f := range c.B.Files {
			n := f.Hi - f.Lo
			for r := range n {
				s := from(r, n)
				for t := range w {
					i, j := (f.Lo+r)*w+t, (f.Lo+s)*w+t
					q.Want[i], q.Bound[i] = p.Want[j], p.Bound[j]
					q.Judge[i] = q.Judge[i] && c.B.Mask[j]
				}
			}
		}
		return q
	}
}

// onePass predicts group advantages whose deviation is one that E[x²] − μ² in float32 can have given. Mean and deviation of a
// group are fitted to its advantages, all of which they must explain; the mean must be right to its rounding, and the variance lie within the error of the one-pass
// formula: (n+2)·u·E[x²] of the mean of squares and (2n+1)·u·μ² of the squared mean, times n/(n−1).
func onePass(c *stage.Case, ch *stage.Check) *stage.Prediction {
	scale, eps := c.Set.Value("adv.scale"), c.Set.Value("adv.eps")
	r, group := c.B.Row("scores"), c.B.Row("group_id")
	got := c.B.Tensors["advantages"]
	if scale.Kind() != convention.Enum || scale.Text() != "group_std" || eps.Kind() != convention.Number || r == nil || group == nil || got == nil || got.Layout != dump.PerRow {
		return nil
	}
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(got.Data) || len(r) != len(got.Data) {
		return nil
	}
	ddof := numberOr(c, "adv.ddof", 1)
	q := *p
	q.Want, q.Bound = slices.Clone(p.Want), slices.Clone(p.Bound)
	for _, of := range membersOf(group) {
		n := float64(len(of))
		var mean, adv, moment, cross, square, variance float64
		for _, i := range of {
			mean += r[i] / n
			adv += got.Data[i] / n
			moment += float64(r[i] * r[i])
		}
		for _, i := range of {
			d := r[i] - mean
			cross += float64(d * (got.Data[i] - adv))
			square += float64(d * d)
		}
		if square == 0 {
			continue
		}
		variance = square / (n - ddof)
		factor := cross / square
		std := max(1/factor-eps.Num(), 0)
		centre := mean - adv/factor
		if !(factor > 0) || !(math.Abs(std*std-variance) <= (3*n+3)*0x1p-24*moment/(n-ddof)) || !(math.Abs(centre-mean) <= (n+1)*0x1p-24*math.Sqrt(moment/n)) {
			return nil
		}
		for _, i := range of {
			q.Want[i] = (r[i] - centre) * factor
			q.Bound[i] = 8 * 0x1p-24 * (math.Abs(q.Want[i]) + math.Abs(adv))
		}
	}
	return &q
}
