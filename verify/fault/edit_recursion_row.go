package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// bootstrapOf returns what stands behind the last token of a row, 0 where the batch has no such tensor.
func bootstrapOf(x []float64, rows, r int) float64 {
	if len(x) != rows {
		return 0
	}
	return x[r]
}

// doneOf returns after which of the cells of a row an episode ends, as the form reads it.
func (f recursionForm) doneOf(cells []int, dones []float64) []bool {
	done := make([]bool, len(cells))
	for t, i := range cells {
		if f.doneEarly {
			done[t] = t+1 < len(cells) && dones[cells[t+1]] != 0
			continue
		}
		if done[t] = dones[i] != 0; f.doneLate && (t < len(cells)-1 || f.cutLast) {
			done[t] = t > 0 && dones[cells[t-1]] != 0
		}
	}
	return done
}

// moved puts the advantages of the cells of a row into other columns. Behind the last token of a row that does not fill its file there is 0. It is false
// where the tokens do not stand side by side.
func (f recursionForm) moved(p *stage.Prediction, cells []int, r int, b *dump.Batch) bool {
	n, w := len(cells), b.Origin[r].Cols
	if w <= 0 || w > b.Cols {
		w = b.Cols
	}
	if cells[n-1]-cells[0] != n-1 {
		return false
	}
	want, bound := make([]float64, n), make([]float64, n)
	for t := range cells {
		from := f.from(t, n)
		if t == n-1 && from != t-1 && cells[t]-r*b.Cols != w-1 || t == 0 && from == n-1 && n > 1 && cells[n-1]-r*b.Cols != w-1 {
			from = -1 // a masked column stands there
		}
		if from >= 0 {
			want[t], bound[t] = p.Want[cells[from]], p.Bound[cells[from]]
		}
	}
	for t, i := range cells {
		p.Want[i], p.Bound[i] = want[t], bound[t]
	}
	return true
}

// overCells fills in the advantages of the cells of one row, from the last one back.
func (f recursionForm) overCells(p *stage.Prediction, cells []int, v, rewards []float64, done []bool, behind, bootstrap, gamma, k float64, rounding func(i int, size float64) float64) {
	a, e, uncut := f.start, 8*0x1p-24*math.Abs(f.start), k // it is read off rounded numbers
	for s := range cells {
		t := len(cells) - 1 - s
		if f.fromFirst {
			t = s
		}
		i, k := cells[t], k
		next := f.next(v, t)
		switch {
		case t == len(cells)-1:
			if next = 0; t == f.last || f.endColumn {
				next = f.end(v, behind, gamma)
			}
			if next == 0 {
				next = bootstrap
			}
		case t == f.last && !f.endColumn: // masked columns stand behind it
			if end := f.end(v[:t+1], behind, gamma); end != 0 {
				next = end
			}
		}
		over := next
		switch {
		case done == nil:
		case t+1 < len(cells) || f.cutLast:
			counts, carried := f.cut(done[t])
			if !counts {
				next = 0
			}
			if !carried {
				k = 0
			}
		case done[t]:
			next = 0
		}
		if f.stops != nil && t < f.last {
			counts, carried := f.stops(t, f.last+1)
			if !counts {
				next = 0
			}
			if !carried {
				k = 0
			}
		}
		own := f.own(v, t)
		if f.ownNext {
			own = over
		}
		delta := f.reward(rewards, t) + gamma*next - own
		if f.held > 0 {
			delta = min(max(delta, -f.held), f.held)
		}
		if f.some != nil && done[t] {
			if d := f.reward(rewards, t) + gamma*over - own; math.Abs(d+uncut*a-f.some[i]) < math.Abs(delta+k*a-f.some[i]) {
				next, delta, k = over, d, uncut
			}
		}
		size := math.Abs(rewards[t]) + math.Abs(gamma*next) + math.Abs(v[t]) + math.Abs(k*a)
		a, e = delta+k*a, math.Abs(k)*e+rounding(i, size)
		p.Want[i], p.Bound[i] = a, e
		if f.short {
			a = delta
		}
	}
}

// firstDone decides whether an episode ended before the first token of a row, which the rows do not say: by the dumped returns, of which the
// first is one of two numbers. Without them none ended.
func (f recursionForm) firstDone(c *stage.Case, p *stage.Prediction, cells []int, v, rewards []float64, done []bool, bootstrap, gamma, k, behind float64) {
	ret := c.Optional("returns").X
	if len(ret) != len(c.B.Mask) || len(cells) < 2 {
		return
	}
	first := cells[0]
	q := &stage.Prediction{Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
	other := slices.Clone(done)
	other[0] = true
	f.overCells(q, cells, v, rewards, other, behind, bootstrap, gamma, k, func(int, float64) float64 { return 0 })
	if a := ret[first] - v[0]; math.Abs(a-q.Want[first]) < math.Abs(a-p.Want[first]) {
		p.Want[first] = q.Want[first]
	}
}

// overColumns fills in the advantages of one row where all its columns are visited:
//
//	g_t = r_t + γ·V' − V_t + k·A';  V' and A' of the column before are V_t and g_t in the mask, and by the rule of the form outside it
func (f recursionForm) overColumns(c *stage.Case, p *stage.Prediction, r int, reward, value stage.Input, gamma, k float64) {
	b := c.B
	w := b.Origin[r].Cols
	if w <= 0 || w > b.Cols {
		w = b.Cols
	}
	var next, a, e float64
	for t := w - 1; t >= 0; t-- {
		i := r*b.Cols + t
		g := reward.X[i] + gamma*next - value.X[i] + k*a
		bound := math.Abs(k)*e + 8*c.Unit*(math.Abs(reward.X[i])+math.Abs(gamma*next)+math.Abs(value.X[i])+math.Abs(k*a)) + reward.E(i) + value.E(i)
		p.Want[i], p.Bound[i] = g, bound
		if b.Mask[i] || f.hole.value {
			next = value.X[i]
		} else if f.hole.discount != nil {
			next *= f.hole.discount(numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN()))
		}
		if !b.Mask[i] && f.hole.trace != nil {
			by := f.hole.trace(numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN()))
			a, e = by*a, by*e+c.Unit*math.Abs(by*a)
		}
		switch {
		case b.Mask[i] || f.hole.carried:
			a, e = g, bound
		case f.hole.zero:
			a, e = 0, 0
		}
	}
}

// turned reverses the columns of a row of which a masked column has what is carried over it, 0 behind the last token, unless all are steps.
func turned(p *stage.Prediction, mask []bool, cols, r, w int, steps bool) {
	if w <= 0 || w > cols {
		w = cols
	}
	lo, hi := r*cols, r*cols+w
	var a, e float64
	for i := hi - 1; i >= lo; i-- {
		if mask[i] {
			a, e = p.Want[i], p.Bound[i]
		}
		if !steps {
			p.Want[i], p.Bound[i] = a, e
		}
	}
	slices.Reverse(p.Want[lo:hi])
	slices.Reverse(p.Bound[lo:hi])
}

// behindOr returns the column behind t of n, last for the last one.
func behindOr(t, n, last int) int {
	if t == n-1 {
		return last
	}
	return t + 1
}
