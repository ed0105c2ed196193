package stage

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// sameContext compares rows of one prompt up to the first token in which they differ: what depends on the tokens before alone is the same
// in both, but for the rounding of a forward pass over other rows and padding. Those are the entropy and the value in a column, and the
// log-prob of a token that both have; and the probabilities of the tokens that follow one context have a sum of 1 at most.
//
// Log-probs may be σ·(1 − p) apart as [Discrepancy] has it, σ at most [largestScale]. Entropies move by σ times the deviation of ln p, values
// by [valueNoise] of their size; besides, what is further apart in one context than half of what it is between prompts does not know
// the context.
func sameContext(c *Case) *Assertion {
	b := c.B
	prompts := c.prompts()
	if prompts == nil || b.Meta.Align != dump.AlignResponse {
		return nil
	}
	pairs := c.pairs(prompts)
	out := &Assertion{Checked: len(pairs)}
	if len(pairs) == 0 {
		return nil
	}
	say := func(fault, format string, args ...any) {
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: fault, Reason: fmt.Sprintf(format, args...)})
	}
	noise := largestScale
	for _, name := range logpNames {
		x := b.Token(name)
		if x == nil {
			continue
		}
		var relative, alike, unlike []float64 // alike: of those that agree in the next token, too
		for _, p := range pairs {
			q := max(-math.Expm1(min(x[p.i], 0)), -math.Expm1(min(x[p.j], 0)))
			d := math.Abs(x[p.i]-x[p.j]) / (1.22 * q * math.Sqrt2)
			if !p.token || !(q > 0.01) || !isFinite(d) {
				continue
			}
			relative = append(relative, d)
			if p.next {
				alike = append(alike, d)
			} else if p.known {
				unlike = append(unlike, d)
			}
		}
		if len(relative) < leastPairs {
			continue
		}
		scale := medianSize(relative) / 0.6745
		if len(unlike) >= leastPairs { // those of the next token agree where that is the same
			scale = max(scale, medianSize(unlike)/0.6745)
		}
		noise = min(noise, max(scale, 1e-6))
		// A tenth of the pairs is beyond 1.645 deviations of normal errors, here of twice the largest: where most tokens are the likeliest of
		// their context, those of other rows agree, too.
		if tail := rank(relative, 0.9) / 1.645; tail > 2*largestScale {
			scale = max(scale, tail)
		}
		if !(scale > largestScale) {
			continue
		}
		fault, how := "", "its log-probs are of other tokens, rows or prompts than the ids"
		if len(alike) >= leastPairs && len(unlike) >= leastPairs && rank(alike, 0.9)/1.645 <= largestScale && rank(unlike, 0.25) > 3*rank(alike, 0.9) {
			fault, how = "LOGP-SHIFT", "where the token after it is the same, too, they agree: they are those of the next token"
		}
		say(fault, "%s of one token behind one context differs between rows of one prompt, in %d pairs by a logit noise of %.2g where %g is the largest: %s", name, len(relative), scale, largestScale, how)
		return out
	}
	for _, name := range logpNames {
		if n, most := c.oversubscribed(name, pairs); n >= 3 {
			say("", "%s: the probabilities of different tokens behind one context have a sum above 1.5 in %d contexts, at most %.3g: they are not of one distribution", name, n, most)
			return out
		}
	}
	for _, name := range []string{"entropy", "values", "values_new"} {
		x := b.Token(name)
		if x == nil {
			continue
		}
		var same, sure, differ, others, size []float64
		for _, p := range pairs {
			d := x[p.i] - x[p.j]
			if !isFinite(d) {
				continue
			}
			same, size = append(same, d), append(size, x[p.i])
			if p.token {
				sure = append(sure, d)
			} else {
				differ = append(differ, d)
			}
			if o := p.other; o >= 0 && isFinite(x[o]) {
				others = append(others, x[p.i]-x[o])
			}
		}
		if len(same) < leastPairs || len(others) < leastPairs {
			continue
		}
		limit := valueNoise * rms(size, func(int) bool { return true })
		if name == "entropy" {
			limit = 4 * noise * c.surprise()
		}
		here, there := medianSize(same), medianSize(others)
		if len(differ) >= leastPairs { // those behind the token agree where the token is the same
			here = max(here, medianSize(differ))
		}
		if !(here > limit) || !(here > there/2) {
			continue
		}
		fault, how := "", fmt.Sprintf("and by %.3g between prompts: it is of other rows or columns than the ids", there)
		if late(sure, differ) {
			how = "and hardly where the token itself is the same: it is that behind the token, one column late"
			if name != "entropy" {
				fault = "GAE-VALUE-SHIFT"
			}
		}
		say(fault, "%s behind one context differs between rows of one prompt, by %.3g at the median of %d pairs, %s", name, here, len(same), how)
		return out
	}
	return out
}

// leastPairs is the number of pairs of cells of one context below which nothing is said.
const leastPairs = 12

// rank sorts x and returns its element at a share of it.
func rank(x []float64, at float64) float64 {
	slices.Sort(x)
	return x[int(at*float64(len(x)))]
}

// late reports whether the pairs that agree in one token more are five times nearer than those that do not.
func late(agree, differ []float64) bool {
	return len(agree) >= 6 && len(differ) >= 6 && medianSize(agree) < medianSize(differ)/5
}

// contextPair is a cell of two rows with one prompt and the same tokens before it.
type contextPair struct {
	i, j        int
	other       int  // the cell of that column in a row of another prompt, −1 if there is none
	token, next bool // both have the same token there, and behind it
	known       bool // the tokens behind it are known
}

// prompts numbers the prompts of the rows: by group_id and by their tokens, nil where one of both is not known: texts may be alike and
// images behind them not, and rows of a group may be the turns of one conversation.
func (c *Case) prompts() []int {
	id := c.B.Row("group_id")
	if len(id) != c.B.Rows {
		return nil
	}
	text := c.groupPrompts()
	if text == nil {
		return nil
	}
	numbers, list := map[[2]float64]int{}, make([]int, c.B.Rows)
	for r := range list {
		key := [2]float64{id[r], float64(text[r])}
		if _, seen := numbers[key]; !seen {
			numbers[key] = len(numbers)
		}
		list[r] = numbers[key]
	}
	return list
}

// pairs lists the cells of the mask that rows of one prompt share, each row with the few before it.
func (c *Case) pairs(prompts []int) (list []contextPair) {
	const before, most = 4, 1 << 18
	b := c.B
	rows := map[int][]int{}
	for r, p := range prompts {
		if c.last(r) < 0 {
			continue
		}
		own := rows[p]
		stranger := -1
		for k := range prompts { // the next row of another prompt
			if s := (r + 1 + k) % b.Rows; prompts[s] != p {
				stranger = s
				break
			}
		}
		for _, s := range own[max(0, len(own)-before):] {
			for t := range b.Cols {
				x, okX := b.TokenID(r, t)
				y, okY := b.TokenID(s, t)
				if !okX || !okY || len(list) >= most {
					break
				}
				i, j := r*b.Cols+t, s*b.Cols+t
				if b.Mask[i] && b.Mask[j] {
					p := contextPair{i: i, j: j, other: -1, token: x == y}
					if stranger >= 0 && b.Mask[stranger*b.Cols+t] {
						p.other = stranger*b.Cols + t
					}
					if u := i + 1; t+1 < b.Cols && b.Mask[u] && b.Mask[j+1] {
						x, _ := b.TokenID(r, t+1)
						y, _ := b.TokenID(s, t+1)
						p.known, p.next = true, x == y
					}
					list = append(list, p)
				}
				if x != y {
					break
				}
			}
		}
		rows[p] = append(own, r)
	}
	return list
}

// oversubscribed counts the contexts behind which the probabilities of different tokens have a sum above 1.5, and returns the largest sum.
func (c *Case) oversubscribed(name string, pairs []contextPair) (n int, most float64) {
	x := c.B.Token(name)
	if x == nil {
		return 0, 0
	}
	// A context is named by the first cell of it; the pairs of a cell come one after another.
	of, tokens := map[int]int{}, map[int]map[int]float64{}
	for _, p := range pairs {
		root, seen := of[p.j]
		if !seen {
			root = p.j
			of[p.j] = root
		}
		if _, seen := of[p.i]; !seen {
			of[p.i] = root
		}
		if tokens[root] == nil {
			tokens[root] = map[int]float64{}
		}
		for _, i := range []int{p.i, p.j} {
			id, _ := c.B.TokenID(i/c.B.Cols, i%c.B.Cols)
			if v := math.Exp(min(x[i], 0)); isFinite(v) {
				tokens[root][id] = v
			}
		}
	}
	for _, root := range slices.Sorted(maps.Keys(tokens)) {
		var sum float64
		for _, id := range slices.Sorted(maps.Keys(tokens[root])) {
			sum += tokens[root][id]
		}
		if sum > 1.5 {
			n++
			most = max(most, sum)
		}
	}
	return n, most
}

// surprise returns the deviation of ln p of sampled tokens, where the entropies are known.
func (c *Case) surprise() float64 {
	h, lp := c.B.Token("entropy"), c.B.Token("logp_new")
	if h == nil || lp == nil {
		return math.Inf(1)
	}
	var n, square float64
	for i, m := range c.B.Mask {
		if x := lp[i] + h[i]; m && isFinite(x) {
			n, square = n+1, square+float64(x*x)
		}
	}
	return math.Sqrt(square / max(n, 1))
}
