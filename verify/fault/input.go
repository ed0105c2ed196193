package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

type input = func(c *stage.Case) (*dump.Batch, *convention.Set, bool)

// maskOf returns the input with another mask, of rows and columns as the batch has; nil says that there is none, and one of no token explains nothing.
func maskOf(of func(c *stage.Case) []bool) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, m := c.B, of(c)
		if m == nil || slices.Equal(m, b.Mask) || !slices.Contains(m, true) {
			return nil, nil, false
		}
		set := c.Set
		if n := c.FactOr("num_items_in_batch", 0); n > 0 { // counted in the same mask
			set = set.WithFact("num_items_in_batch", n*count(m)/count(b.Mask))
		}
		return b.WithMask(m), set, true
	}
}

// mask returns the input whose mask has every row changed.
func mask(change func(row []bool)) input { return maskOf(rowByRow(change)) }

func rowByRow(change func(row []bool)) func(c *stage.Case) []bool {
	return func(c *stage.Case) []bool {
		m := slices.Clone(c.B.Mask)
		for r := 0; r < c.B.Rows && c.B.Cols > 0; r++ {
			change(m[r*c.B.Cols : (r+1)*c.B.Cols])
		}
		return m
	}
}

// withoutLastColumn returns the input in which the last column that any row of a file uses is cut off: of its longest rows alone a token
// is lost. It is no other input where all rows of a file end there.
func withoutLastColumn(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	m := slices.Clone(b.Mask)
	some := false
	for _, file := range b.Files {
		at, ends := -1, map[int]bool{}
		for r := file.Lo; r < file.Hi; r++ {
			if _, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); last >= 0 {
				at, ends[last] = max(at, last), true
			}
		}
		some = some || len(ends) > 1
		for r := file.Lo; r < file.Hi && at >= 0; r++ {
			m[r*b.Cols+at] = false
		}
	}
	if !some {
		return nil, nil, false
	}
	return b.WithMask(m), c.Set, true
}

// firstLast returns the first and the last true cell of a row, -1, -1 if it has none.
func firstLast(row []bool) (first, last int) {
	first, last = -1, -1
	for i, m := range row {
		if m {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	return first, last
}

// token returns the input with another per-token tensor; a per-row one is spread first.
func token(name string, change func(c *stage.Case, x []float64) []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		t := c.B.Tensors[name]
		if t == nil || t.Width > 1 || t.Layout != dump.PerToken && t.Layout != dump.PerRow {
			return nil, nil, false
		}
		x := change(c, t.Data)
		if x == nil {
			return nil, nil, false
		}
		return c.B.With(name, x), c.Set, true
	}
}

// instead returns the input in which tensor to stands where tensor name should.
func instead(name, to string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		a, b := c.B.Tensors[name], c.B.Tensors[to]
		if a == nil || b == nil || a.Layout != b.Layout || a.Width != b.Width {
			return nil, nil, false
		}
		return c.B.With(name, b.Data), c.Set, true
	}
}

// constant returns the input in which every element of a tensor is x.
func constant(name string, x float64) input {
	return token(name, func(_ *stage.Case, old []float64) []float64 {
		return slices.Repeat([]float64{x}, len(old))
	})
}

// shifted returns the input in which column t of a tensor is column t−by; what comes in at the edge is 0.
func shifted(name string, by int) input {
	return token(name, func(c *stage.Case, x []float64) []float64 {
		if len(x) != c.B.Rows*c.B.Cols {
			return nil
		}
		return shift(x, c.B.Rows, c.B.Cols, by)
	})
}

func shift(x []float64, rows, cols, by int) []float64 {
	y := make([]float64, len(x))
	for r := range rows {
		for t := range cols {
			if from := t - by; from >= 0 && from < cols {
				y[r*cols+t] = x[r*cols+from]
			}
		}
	}
	return y
}

// keepingEnds is [shifted] in which a cell at the end of a row, for which there is none to read, keeps its own: torch.cat([x[:, 1:], x[:, -1:]], 1).
func keepingEnds(name string, by int) input {
	return token(name, func(c *stage.Case, x []float64) []float64 {
		b := c.B
		if len(x) != len(b.Mask) || b.Cols == 0 {
			return nil
		}
		return eachOf(len(x), func(i int) float64 {
			w := width(b, i/b.Cols)
			return x[i-i%b.Cols+min(max(i%b.Cols-by, 0), max(w-1, i%b.Cols))]
		})
	})
}

// rolled returns the input in which row r of a tensor is row r−by of its file.
func rolled(name string, by int) input {
	return token(name, func(c *stage.Case, x []float64) []float64 {
		b := c.B
		w := len(x) / max(b.Rows, 1)
		y := make([]float64, len(x))
		for _, f := range b.Files {
			n := f.Hi - f.Lo
			for r := range n {
				from := f.Lo + ((r-by)%n+n)%n
				copy(y[(f.Lo+r)*w:(f.Lo+r+1)*w], x[from*w:(from+1)*w])
			}
		}
		return y
	})
}

// number returns the input with the value of an option changed by a function of it.
func number(name string, change func(float64) float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		v := c.Set.Value(name)
		if v.Kind() != convention.Number || change(v.Num()) == v.Num() {
			return nil, nil, false
		}
		return c.B, c.Set.With(name, convention.NumberValue(change(v.Num())), "hypothesis"), true
	}
}

// option returns the input with another value of an option.
func option(name, value string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		v, err := convention.Parse(name, value)
		if err != nil {
			panic("fault: " + err.Error())
		}
		if c.Set.Value(name) == v {
			return nil, nil, false
		}
		return c.B, c.Set.With(name, v, "hypothesis"), true
	}
}

// both returns the input with two changes.
func both(first, second input) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, set, ok := first(c)
		if !ok {
			return nil, nil, false
		}
		return second(c.Of(b, set))
	}
}

// under returns what the healthy formula gives for an input, nil if it cannot be told.
func under(in input, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, set, ok := in(c)
	if !ok {
		return nil
	}
	d := c.Of(b, set)
	p := ch.Predict(d)
	if p == nil || !d.OK() {
		return nil
	}
	return p
}

// guarded returns the predictor of an input with a number that may be outside what a formula is defined for, where nothing computes it.
func guarded(in input) func(c *stage.Case, ch *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) (p *stage.Prediction) {
		defer func() {
			if recover() != nil {
				p = nil
			}
		}()
		return under(in, c, ch)
	}
}

// altered returns a copy of a prediction whose numbers and bounds are its own, to be changed, and which has no second choice.
func altered(p *stage.Prediction) *stage.Prediction {
	q := *p
	q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
	return &q
}

// timesCells returns p with every number times one of its own, whose product is off by doubt of it besides.
func timesCells(p *stage.Prediction, doubt float64, by func(i int) float64) *stage.Prediction {
	q := altered(p)
	for i := range q.Want {
		k := by(i)
		q.Want[i] *= k
		if q.Bound[i] *= math.Abs(k); doubt > 0 {
			q.Bound[i] += doubt * math.Abs(q.Want[i])
		}
	}
	return q
}

// combined returns a·p + b·q, element by element, with the bounds added.
func combined(a float64, p *stage.Prediction, b float64, q *stage.Prediction) *stage.Prediction {
	if p == nil || q == nil || len(p.Want) != len(q.Want) {
		return nil
	}
	r := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want))}
	for i := range p.Want {
		r.Want[i] = float64(a*p.Want[i]) + float64(b*q.Want[i])
		r.Bound[i] = max(a, -a)*p.Bound[i] + max(b, -b)*q.Bound[i]
	}
	return r
}

// noPolicy and noKL take a term out of an output that is linear in the terms of the loss.
var (
	noPolicy = constant("advantages", 0)
	noKL     = number("kl.beta", func(float64) float64 { return 0 })
)

// klOnly returns the KL term of an output alone: 0 where there is none.
func klOnly(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(noPolicy, c, ch) }

// policyOnly returns an output without its KL term, for a changed input of the policy term.
func policyOnly(in input, c *stage.Case, ch *stage.Check) *stage.Prediction {
	if v := c.Set.Value("kl.beta"); v.Kind() == convention.Number && v.Num() != 0 {
		return under(both(in, noKL), c, ch)
	}
	return under(in, c, ch)
}

// policyTerm returns a predictor for a bug in the input of the policy term that leaves the KL term alone: sign times the term
// under the changed input, and the healthy KL term.
func policyTerm(sign float64, in input) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		if ch.Stage == convention.Aggregate && c.Has("token_loss") {
			return nil // it is aggregated as it was dumped: the bug shows there
		}
		return combined(sign, policyOnly(in, c, ch), 1, klOnly(c, ch))
	}
}
