package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// weightBounds are what programs make of a weight x and its bounds, lo of which is 0 and hi Inf where there is none.
var weightBounds = []struct {
	title string
	of    func(x, lo, hi float64) float64
}{
	{"0 within the bounds, and kept outside: the condition is inverted", func(x, lo, hi float64) float64 { return x * float64(boolToInt(x < lo || x > hi)) }},
	{"1 within the bounds, 0 outside", func(x, lo, hi float64) float64 { return float64(boolToInt(lo <= x && x <= hi)) }},
	{"kept within the bounds, 1 outside", func(x, lo, hi float64) float64 {
		if lo <= x && x <= hi {
			return x
		}
		return 1
	}},
	{"0 above the upper bound, and not bounded from below", func(x, _, hi float64) float64 { return x * float64(boolToInt(x <= hi)) }},
	{"0 below the lower bound, and not bounded from above", func(x, lo, _ float64) float64 { return x * float64(boolToInt(x >= lo)) }},
	{"0 above the upper bound, held at the lower one", func(x, lo, hi float64) float64 { return max(x, lo) * float64(boolToInt(x <= hi)) }},
	{"0 below the lower bound, held at the upper one", func(x, lo, hi float64) float64 { return min(x, hi) * float64(boolToInt(x >= lo)) }},
	{"held at the lower bound where they are above the upper one, and at the upper one below", func(x, lo, hi float64) float64 {
		switch {
		case x > hi:
			return lo
		case x < lo:
			return hi
		}
		return x
	}},
	{"at least 1, and at most tis.high", func(x, _, hi float64) float64 { return min(max(x, 1), hi) }},
	{"at least 1", func(x, _, _ float64) float64 { return max(x, 1) }},
	{"at most 1", func(x, _, _ float64) float64 { return min(x, 1) }},
	{"at most 1, and at least tis.low", func(x, lo, _ float64) float64 { return max(min(x, 1), lo) }},
	{"at most tis.high, and at least 1/tis.high", func(x, _, hi float64) float64 { return max(min(x, hi), 1/hi) }},
	{"at least 1/tis.high", func(x, _, hi float64) float64 { return max(x, 1/hi) }},
	{"0 below 1/tis.high and above tis.high", func(x, _, hi float64) float64 { return x * float64(boolToInt(1/hi <= x && x <= hi)) }},
	{"at most 1/tis.low, and at least tis.low", func(x, lo, _ float64) float64 { return max(min(x, 1/lo), lo) }},
	{"at most tis.low", func(x, lo, _ float64) float64 { return min(x, lo) }},
	{"at most 1 + tis.high", func(x, _, hi float64) float64 { return min(x, 1+hi) }},
	{"at most ln tis.high", func(x, _, hi float64) float64 { return min(x, math.Log(hi)) }},
	{"at most e to the tis.high", func(x, _, hi float64) float64 { return min(x, math.Exp(hi)) }},
	{"at most e to the tis.high − 1: the log-ratio is held at what the weight may have more than 1", func(x, _, hi float64) float64 { return min(x, math.Exp(hi-1)) }},
	{"at most e to the tis.high − 1, and at least e to the tis.low − 1: the bounds are those of the log-ratio", func(x, lo, hi float64) float64 {
		return min(max(x, math.Exp(lo-1)), math.Exp(hi-1))
	}},
	{"held at most at tis.high, and not bounded from below", func(x, _, hi float64) float64 { return min(x, hi) }},
	{"held at least at tis.low, and not bounded from above", func(x, lo, _ float64) float64 { return max(x, lo) }},
}

// boundedBy predicts weights under another rule. Of one that jumps, the other side is right, too, where the weight is on the edge within its error.
func boundedBy(of func(x, lo, hi float64) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	if c.EnumOr("tis.gate", "ratio") != "ratio" || c.EnumOr("tis.rule", "clamp") == "seq_filter" || c.BoolOr("tis.normalize", false) {
		return nil
	}
	lo, hi := numberOr(c, "tis.low", 0), numberOr(c, "tis.high", math.Inf(1))
	p := under(unbounded, c, ch)
	if p == nil {
		return nil
	}
	q := *p
	q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), slices.Repeat([]float64{math.NaN()}, len(p.Want))
	for i, x := range p.Want {
		e := 2*p.Bound[i] + 4*c.Unit*math.Abs(x)
		y, below, above := of(x, lo, hi), of(x-e, lo, hi), of(x+e, lo, hi)
		q.Want[i], q.Bound[i] = y, p.Bound[i]+4*c.Unit*math.Abs(y)
		switch slack := 2 * (e + q.Bound[i]); {
		case math.Abs(below-y) > slack:
			q.Alt[i] = below
		case math.Abs(above-y) > slack:
			q.Alt[i] = above
		}
	}
	return &q
}

// filterForms are what programs make of the weight w of a token by the weight x of its response, which is to be within bounds for w to stay and 0 else.
var filterForms = []struct {
	title string
	of    func(w, x, lo, hi float64) float64
}{
	{"0 in responses within the bounds, and kept in those outside: the condition is inverted", func(w, x, lo, hi float64) float64 { return w * float64(boolToInt(x < lo || x > hi)) }},
	{"0 in responses whose log-ratio, not the ratio, is outside the bounds", func(w, x, lo, hi float64) float64 {
		return w * float64(boolToInt(lo <= math.Log(x) && math.Log(x) <= hi))
	}},
	{"0 in responses above the upper bound alone", func(w, x, _, hi float64) float64 { return w * float64(boolToInt(x <= hi)) }},
	{"0 in responses below the lower bound alone", func(w, x, lo, _ float64) float64 { return w * float64(boolToInt(x >= lo)) }},
	{"0 in responses whose inverse ratio is outside the bounds", func(w, x, lo, hi float64) float64 { return w * float64(boolToInt(lo <= 1/x && 1/x <= hi)) }},
	{"1 in responses within the bounds, 0 outside", func(_, x, lo, hi float64) float64 { return float64(boolToInt(lo <= x && x <= hi)) }},
	{"kept in responses within the bounds, 1 outside", func(w, x, lo, hi float64) float64 {
		if lo <= x && x <= hi {
			return w
		}
		return 1
	}},
}

// filteredBy predicts weights of tokens under another filter of responses. Where a response is on the edge within its error, the other side is right, too.
func filteredBy(of func(w, x, lo, hi float64) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	if c.EnumOr("tis.gate", "ratio") != "ratio" || c.EnumOr("tis.rule", "clamp") != "seq_filter" || c.BoolOr("tis.normalize", false) {
		return nil
	}
	lo, hi := numberOr(c, "tis.low", 0), numberOr(c, "tis.high", math.Inf(1))
	rows, p := under(unbounded, c, ch), under(both(unbounded, option("tis.level", "token")), c, ch)
	if rows == nil || p == nil || len(rows.Want) != len(p.Want) {
		return nil
	}
	q := *p
	q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), slices.Repeat([]float64{math.NaN()}, len(p.Want))
	for i, w := range p.Want {
		x := rows.Want[i]
		e := 2*rows.Bound[i] + 4*c.Unit*math.Abs(x)
		y, below, above := of(w, x, lo, hi), of(w, x-e, lo, hi), of(w, x+e, lo, hi)
		switch q.Want[i] = y; {
		case below != y:
			q.Alt[i] = below
		case above != y:
			q.Alt[i] = above
		}
	}
	return &q
}
