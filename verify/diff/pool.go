package diff

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The names under which the two passes stand in the pooled batch: those of a run, so that all that is known of engines applies.
const (
	first  = "logp_old"
	second = "logp_gen"
)

// mostCells are the cells that are kept: statistics do not get better beyond, and memory does not grow with the run.
const mostCells = 1 << 21

// pool is the tokens of two passes over all steps of a run.
type pool struct {
	left, right    string // the sides in words: Δ = left − right
	first, second  string // the tensors
	engine         bool   // the tokens were sampled by the left side
	set            *convention.Set
	rows           []pooled
	cells, leftOut int // kept, and left out
	steps          []int
}

// pooled is a row of a step: the cells of its mask in order.
type pooled struct {
	step, file, row            int
	cols                       []int
	a, b, entropy, ref, tokens []float64
}

func newPool(left, right string, common dump.Meta) *pool {
	return &pool{left: left, right: right, engine: left == "engine", set: &convention.Set{}}
}

// masked returns the columns of a row that are in the mask.
func masked(b *dump.Batch, row int) (cols []int) {
	for t := range b.Cols {
		if b.Mask[row*b.Cols+t] {
			cols = append(cols, t)
		}
	}
	return cols
}

// add adds the rows of a step: a of x against b of y, of the rows ra of x and rb of y; nil: all in order.
func (p *pool) add(x, y *dump.Batch, a, b string, ra, rb []int) {
	p.first, p.second = a, b
	p.steps = append(p.steps, x.Meta.Step)
	if ra == nil {
		for r := range x.Rows {
			ra, rb = append(ra, r), append(rb, r)
		}
	}
	for k, r := range ra {
		s := rb[k]
		ca, cb := masked(x, r), masked(y, s)
		n := min(len(ca), len(cb))
		if n == 0 {
			continue
		}
		if p.cells += n; p.cells > mostCells {
			p.leftOut++
			continue
		}
		o := x.Origin[r]
		row := pooled{step: x.Meta.Step, file: o.File, row: o.Row, cols: ca[:n]}
		take := func(b *dump.Batch, r int, cols []int, name string) (list []float64) {
			data := b.Token(name)
			if data == nil {
				return nil
			}
			for _, t := range cols[:n] {
				list = append(list, data[r*b.Cols+t])
			}
			return list
		}
		row.a, row.b, row.entropy = take(x, r, ca, a), take(y, s, cb, b), take(x, r, ca, "entropy")
		if p.engine {
			row.ref = take(x, r, ca, "logp_ref")
		}
		for _, t := range ca[:n] {
			id := math.NaN()
			if v, ok := x.TokenID(r, t); ok {
				id = float64(v)
			}
			row.tokens = append(row.tokens, id)
		}
		p.rows = append(p.rows, row)
	}
}

// batch returns the pooled rows as one batch.
func (p *pool) batch() *dump.Batch {
	b := &dump.Batch{Rows: len(p.rows), Tensors: map[string]*dump.Tensor{}, Files: []dump.FileInfo{{}}, Meta: dump.Meta{DLogpScale: 1}}
	for _, r := range p.rows {
		b.Cols = max(b.Cols, len(r.a))
	}
	b.Mask = make([]bool, b.Rows*b.Cols)
	b.Origin = make([]dump.Origin, b.Rows)
	fill := func(name string, of func(r *pooled) []float64) {
		data := make([]float64, b.Rows*b.Cols)
		for i := range p.rows {
			x := of(&p.rows[i])
			if x == nil {
				return
			}
			copy(data[i*b.Cols:], x)
		}
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: data}
	}
	for i, r := range p.rows {
		for t := range r.a {
			b.Mask[i*b.Cols+t] = true
		}
	}
	fill(first, func(r *pooled) []float64 { return r.a })
	fill(second, func(r *pooled) []float64 { return r.b })
	fill("entropy", func(r *pooled) []float64 { return r.entropy })
	fill("logp_ref", func(r *pooled) []float64 { return r.ref })
	return b
}

// each calls do for every token with two finite log-probs.
func (p *pool) each(do func(r *pooled, i int, d, q float64)) {
	for k := range p.rows {
		r := &p.rows[k]
		for i := range r.a {
			if d := r.b[i] - r.a[i]; !math.IsNaN(d) && !math.IsInf(d, 0) {
				do(r, i, d, -math.Expm1(min(r.a[i], 0)))
			}
		}
	}
}

// stepsText says which steps were compared.
func (p *pool) stepsText() string {
	s := slices.Compact(slices.Sorted(slices.Values(p.steps)))
	switch len(s) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("step %d", s[0])
	}
	return fmt.Sprintf("%d steps, %d to %d", len(s), s[0], s[len(s)-1])
}

// group is the statistics of a part of the tokens.
type group struct {
	name         string
	n            int
	abs, sum, s2 float64
	informative  int
}

func (g *group) add(d, q float64) {
	g.n++
	g.abs += math.Abs(d)
	g.sum += d
	if q > 0.01 {
		g.informative++
		g.s2 += float64(d / q * d / q)
	}
}

// noise is the root mean square of Δ/(1 − p), which rounding makes the same everywhere.
func (g *group) noise() string {
	if g.informative == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2g", math.Sqrt(g.s2/float64(g.informative)))
}

func table(title string, groups []group) check.Table {
	t := check.Table{Title: title, Lines: []string{fmt.Sprintf("%-16s %8s %10s %10s %12s", "", "tokens", "mean |Δ|", "mean Δ", "rms Δ/(1−p)")}}
	for _, g := range groups {
		if g.n > 0 {
			t.Lines = append(t.Lines, fmt.Sprintf("%-16s %8d %10.2g %+10.2g %12s", g.name, g.n, g.abs/float64(g.n), g.sum/float64(g.n), g.noise()))
		}
	}
	return t
}

// bounds of |Δ| in the histogram, and of p.
var (
	bins     = []float64{1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1, 3}
	shares   = []float64{0.01, 0.1, 0.3, 0.6, 0.9, 0.99}
	sections = 8 // parts of the position and of the steps
)

// sections are the parts of the report: histogram, worst tokens, Δ by position, probability and step, causes that were tried.
func (p *pool) sections(m *stage.Comparison, o Options) []check.Table {
	if m.Same || m.Tokens == 0 {
		return nil
	}
	counts := make([]int, 2*len(bins)+1)
	byShare := make([]group, len(shares)+1)
	for i := range byShare {
		switch {
		case i == 0:
			byShare[i].name = fmt.Sprintf("p < %g", shares[0])
		case i == len(shares):
			byShare[i].name = fmt.Sprintf("p ≥ %g", shares[i-1])
		default:
			byShare[i].name = fmt.Sprintf("%g ≤ p < %g", shares[i-1], shares[i])
		}
	}
	longest := 0
	for _, r := range p.rows {
		longest = max(longest, len(r.a))
	}
	parts := min(sections, longest)
	byPlace := make([]group, parts)
	for i := range byPlace {
		byPlace[i].name = fmt.Sprintf("%d to %d", i*longest/parts, (i+1)*longest/parts-1)
	}
	steps := slices.Compact(slices.Sorted(slices.Values(p.steps)))
	parts2 := min(sections, len(steps))
	byStep := make([]group, parts2)
	for i := range byStep {
		from, to := steps[i*len(steps)/parts2], steps[(i+1)*len(steps)/parts2-1]
		if byStep[i].name = fmt.Sprintf("%d to %d", from, to); from == to {
			byStep[i].name = fmt.Sprintf("%d", from)
		}
	}
	type spot struct {
		r *pooled
		i int
		d float64
	}
	var worst []spot
	p.each(func(r *pooled, i int, d, q float64) {
		k, _ := slices.BinarySearch(bins, math.Abs(d))
		if d < 0 {
			k = -k
		}
		counts[k+len(bins)]++
		s, _ := slices.BinarySearch(shares, 1-q)
		byShare[s].add(d, q)
		byPlace[min(i*parts/longest, parts-1)].add(d, q)
		at, _ := slices.BinarySearch(steps, r.step)
		part := 0
		for part+1 < parts2 && at >= (part+1)*len(steps)/parts2 {
			part++
		}
		byStep[part].add(d, q)
		if len(worst) < 10 || math.Abs(d) > math.Abs(worst[len(worst)-1].d) {
			at, _ := slices.BinarySearchFunc(worst, -math.Abs(d), func(w spot, v float64) int {
				switch a := -math.Abs(w.d); {
				case a < v:
					return -1
				case a > v:
					return 1
				}
				return 0
			})
			worst = slices.Insert(worst, at, spot{r, i, d})
			worst = worst[:min(len(worst), 10)]
		}
	})
	hist := check.Table{Title: fmt.Sprintf("Δ = %s − %s, nats", p.second, p.first)}
	most := slices.Max(counts)
	for k, n := range counts {
		if n == 0 {
			continue
		}
		i := k - len(bins)
		var name string
		edge := func(i int) string { return fmt.Sprintf("%g", bins[i]) }
		switch a := max(i, -i); {
		case i == 0:
			name = "|Δ| ≤ " + edge(0)
		case a == len(bins):
			name = "beyond ±" + edge(a-1)
		default:
			name = edge(a-1) + " to " + edge(a)
		}
		if i < 0 {
			name = "− " + name
		} else if i > 0 {
			name = "+ " + name
		}
		hist.Lines = append(hist.Lines, fmt.Sprintf("%-18s %8d  %s", name, n, strings.Repeat("█", max(1, n*40/most))))
	}
	tokens := check.Table{Title: "worst tokens", Lines: []string{fmt.Sprintf("%6s %5s %6s %8s %9s %9s %9s  %s", "step", "row", "token", "id", p.right, p.left, "Δ", "text")}}
	for _, w := range worst {
		id, text := "–", ""
		if v := w.r.tokens[w.i]; !math.IsNaN(v) && !o.Redact {
			id = fmt.Sprintf("%d", int(v))
			if o.Text != nil {
				text = fmt.Sprintf("%q", o.Text(int(v)))
			}
		}
		tokens.Lines = append(tokens.Lines, strings.TrimRight(fmt.Sprintf("%6d %5d %6d %8s %9.4g %9.4g %+9.3g  %s", w.r.step, w.r.row, w.r.cols[w.i], id, w.r.a[w.i], w.r.b[w.i], w.d, text), " "))
	}
	list := []check.Table{hist, tokens, table("by probability under "+p.right, byShare), table("by token of the response", byPlace)}
	if len(steps) > 1 {
		list = append(list, table("by step", byStep))
	}
	tried := []string{"shift by one, rows of others, filled with 0, stored in bfloat16,", "mass of top-p, temperature, other tokens, noise of rounding"}
	if p.engine {
		tried[1] += ", weights of the reference"
	}
	if p.leftOut > 0 {
		tried = append(tried, fmt.Sprintf("%d rows beyond %d tokens were left out", p.leftOut, mostCells))
	}
	return append(list, check.Table{Title: "causes tried", Lines: tried})
}
