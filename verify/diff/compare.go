package diff

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// kind is how a tensor comes about, which decides how much two runs may differ in it.
type kind int

const (
	prompts  kind = iota // exact
	sampled              // exact
	rewarded             // exact: they are computed from text
	forward              // by a model
	derived              // from those above
)

// quantity is a tensor in the order in which tensors of a step come about.
type quantity struct {
	name string
	kind kind
}

var order = []quantity{
	{"input_ids", prompts}, {"prompt_len", prompts}, {"response_ids", sampled}, {"scores", rewarded}, {"rewards_per_func", rewarded},
	{"logp_gen", forward}, {"logp_ref", forward}, {"logp_old", forward}, {"values", forward},
	{"kl", derived}, {"token_rewards", derived}, {"returns", derived}, {"advantages", derived}, {"is_weights", derived},
	{"logp_new", forward}, {"entropy", forward}, {"values_new", forward}, {"logp_chosen", forward}, {"logp_rejected", forward},
	{"token_loss", derived}, {"pg_loss", derived}, {"kl_loss", derived}, {"value_loss", derived}, {"entropy_loss", derived}, {"loss", derived}, {"dlogp", derived}, {"dvalues", derived},
}

// difference is what two runs differ by in one tensor of one step.
type difference struct {
	quantity
	step     int
	compared int
	changed  int     // elements that are not equal bit by bit
	worst    float64 // largest |difference| over its bound
	gap      float64 // that difference
	relative float64 // largest |difference| over the size of the tensor
	limit    float64
	where    string
	biased   float64 // standard errors of the mean from 0, where it is no rounding
	reason   string
}

// beyond reports whether a difference is no rounding.
func (d *difference) beyond() bool { return !(d.worst <= 1) || d.biased > 0 || d.reason != "" }

// pairing is the rows of one step in two runs that belong together, and the cells of their masks.
type pairing struct {
	x, y   *dump.Batch
	ra, rb []int
	ca, cb [][]int
}

// pair pairs the rows of a step: in their order, or by what was sampled.
func pair(x, y *dump.Batch, byContent bool) (p pairing, why string) {
	p.x, p.y = x, y
	if x.Rows != y.Rows {
		return p, fmt.Sprintf("%d rows against %d", x.Rows, y.Rows)
	}
	for r := range x.Rows {
		p.ra, p.rb = append(p.ra, r), append(p.rb, r)
	}
	if byContent {
		both := promptLengths(x) != nil && promptLengths(y) != nil
		ka, kb := keys(x, both), keys(y, both)
		if ka == nil || kb == nil {
			return p, "rows cannot be paired: neither run has response_ids (or input_ids and prompt_len)"
		}
		by := func(k []string) func(a, b int) int {
			return func(a, b int) int { return strings.Compare(k[a], k[b]) }
		}
		slices.SortStableFunc(p.ra, by(ka))
		slices.SortStableFunc(p.rb, by(kb))
		for i, r := range p.ra {
			if cut(ka[r]) != cut(kb[p.rb[i]]) {
				return p, "the two runs have other rows: a relation is over the same rows"
			}
		}
	}
	for i := range p.ra {
		p.ca, p.cb = append(p.ca, masked(x, p.ra[i])), append(p.cb, masked(y, p.rb[i]))
	}
	return p, ""
}

// promptLengths are those of the rows, nil where a dump has none.
func promptLengths(b *dump.Batch) []float64 { return b.Row("prompt_len") }

// keys are what rows are paired by: prompt length, where both runs have it, and tokens, and behind a bar the reward and the first log-prob, which put equal rows
// in an order.
func keys(b *dump.Batch, prompts bool) (list []string) {
	var lengths []float64
	if prompts {
		lengths = promptLengths(b)
	}
	for r := range b.Rows {
		var s strings.Builder
		if lengths != nil {
			fmt.Fprintf(&s, "%v:", lengths[r])
		}
		cols := masked(b, r)
		for _, t := range cols {
			id, ok := b.TokenID(r, t)
			if !ok {
				return nil
			}
			fmt.Fprintf(&s, "%d,", id)
		}
		s.WriteString("|")
		if v := b.Row("scores"); len(v) == b.Rows {
			fmt.Fprintf(&s, "%.6e", v[r])
		}
		for _, name := range []string{"logp_old", "logp_new"} {
			if v := b.Token(name); v != nil && len(cols) > 0 {
				fmt.Fprintf(&s, " %.3e", v[r*b.Cols+cols[0]])
				break
			}
		}
		list = append(list, s.String())
	}
	return list
}

func cut(key string) string {
	s, _, _ := strings.Cut(key, "|")
	return s
}

// unit is the unit roundoff that the two runs were computed in: the declared one, else that of the log-probs as stored.
func unit(b *dump.Batch) float64 {
	if u, ok := stage.UnitOf(b.Meta.ComputeDType); ok {
		return u
	}
	u := tol.U64
	for _, name := range []string{"logp_new", "logp_old", "logp_gen", "values"} {
		if t := b.Tensors[name]; t != nil {
			if v, _ := t.Type.Unit(); v > u {
				u = v
			}
			if v := stage.Grid(t.Data); v > u {
				u = v
			}
		}
	}
	return u
}

// values of one tensor in two runs, element by element; group is the row of an element.
type values struct {
	a, b  []float64
	group []int
	place func(i int) string
}

// of returns the elements of a tensor that both runs have; nil if one lacks it.
func (p *pairing) of(name string) (v *values, why string) {
	s, t := p.x.Tensors[name], p.y.Tensors[name]
	if s == nil || t == nil {
		return nil, ""
	}
	v = &values{}
	if s.Layout != t.Layout && s.Layout != dump.PerFile {
		return nil, fmt.Sprintf("%s has another layout in the two runs", name)
	}
	switch s.Layout {
	case dump.PerToken:
		if s.Width != t.Width {
			return nil, fmt.Sprintf("%s is %d wide against %d", name, s.Width, t.Width)
		}
		var at [][2]int
		for k, r := range p.ra {
			for i, col := range p.ca[k] {
				for w := range s.Width {
					v.a = append(v.a, s.Data[(r*p.x.Cols+col)*s.Width+w])
					v.b = append(v.b, t.Data[(p.rb[k]*p.y.Cols+p.cb[k][i])*t.Width+w])
					v.group = append(v.group, k)
					at = append(at, [2]int{r, col})
				}
			}
		}
		v.place = func(i int) string { return fmt.Sprintf("row %d token %d", at[i][0], at[i][1]) }
	case dump.PerRow:
		if name == "input_ids" {
			return p.inputs(s, t)
		}
		if s.Width != t.Width {
			return nil, fmt.Sprintf("%s is %d wide against %d", name, s.Width, t.Width)
		}
		for k, r := range p.ra {
			for w := range s.Width {
				v.a, v.b, v.group = append(v.a, s.Data[r*s.Width+w]), append(v.b, t.Data[p.rb[k]*t.Width+w]), append(v.group, k)
			}
		}
		v.place = func(i int) string { return fmt.Sprintf("row %d", p.ra[i/s.Width]) }
	case dump.PerFile:
		// Losses as they were back-propagated add up over the micro-batches of a step.
		sum := func(x []float64) (total float64) {
			for _, y := range x {
				total += y
			}
			return total
		}
		v.a, v.b, v.group = []float64{sum(s.Data)}, []float64{sum(t.Data)}, []int{0}
		v.place = func(int) string { return "the sum over the micro-batches" }
	default:
		if len(s.Data) != len(t.Data) {
			return nil, fmt.Sprintf("%s has %d elements against %d", name, len(s.Data), len(t.Data))
		}
		v.a, v.b, v.group = s.Data, t.Data, make([]int, len(s.Data))
		v.place = func(i int) string { return fmt.Sprintf("element %d", i) }
	}
	return v, ""
}

// inputs are the ids of the prompts, without padding: what lies before the responses in input_ids.
func (p *pairing) inputs(s, t *dump.Tensor) (*values, string) {
	ids := func(b *dump.Batch, t *dump.Tensor, row int) (list []float64, ok bool) {
		end, most := b.Files[b.File(row)].PromptCols, t.Width
		if n := b.Row("prompt_len"); end < 0 && len(n) == b.Rows {
			end, most = t.Width, int(n[row])
		}
		m := b.Tensors["attention_mask"]
		for i := 0; i < end && i < t.Width && len(list) < most; i++ {
			if m == nil || m.Width != t.Width || m.Data[row*t.Width+i] != 0 {
				list = append(list, t.Data[row*t.Width+i])
			}
		}
		return list, end >= 0
	}
	v := &values{}
	for k, r := range p.ra {
		a, oka := ids(p.x, s, r)
		b, okb := ids(p.y, t, p.rb[k])
		switch {
		case !oka || !okb:
			return nil, ""
		case len(a) != len(b):
			return nil, fmt.Sprintf("the prompt of row %d has %d tokens against %d", r, len(a), len(b))
		}
		for range a {
			v.group = append(v.group, r)
		}
		v.a, v.b = append(v.a, a...), append(v.b, b...)
	}
	v.place = func(i int) string { return fmt.Sprintf("row %d", v.group[i]) }
	return v, ""
}

// compare compares one tensor of a step. Relative is what the tensors before it differ by, of their size.
//
// A forward pass rounds logits by σ = [stage.OrdinaryScale]·u/2⁻⁸, so that two passes of one token differ by at most 8 standard
// deviations of √2·σ·(1 − p), and by the 64 units of the sum of a softmax. What is computed from n numbers of size S in any order
// is off by n·u·S at most on each side (Jeannerod and Rump 2013), and by what its inputs differ by, of which a first-order product of
// at most 8 factors makes 8 times as much.
func (p *pairing) compare(q quantity, u, relative float64) (d *difference) {
	v, why := p.of(q.name)
	if why != "" {
		return &difference{quantity: q, step: p.x.Meta.Step, reason: why, worst: math.Inf(1), compared: 1}
	}
	if v == nil {
		return nil
	}
	d = &difference{quantity: q, step: p.x.Meta.Step, compared: len(v.a)}
	var size float64
	for i := range v.a {
		for _, x := range []float64{v.a[i], v.b[i]} {
			if x = math.Abs(x); !math.IsInf(x, 0) && x > size {
				size = x
			}
		}
	}
	sigma := stage.OrdinaryScale * u / tol.UB
	if q.name == "loss" || strings.HasSuffix(q.name, "_loss") && len(v.a) == 1 { // it may cancel: the size is that of its terms
		for _, name := range []string{"token_loss", "advantages"} {
			if t := p.x.Tensors[name]; t != nil {
				for _, x := range t.Data {
					if x = math.Abs(x); !math.IsInf(x, 0) && x > size {
						size = x
					}
				}
			}
		}
	}
	n := 0
	for _, c := range p.ca {
		n += len(c)
	}
	for i := range v.a {
		a, b := v.a[i], v.b[i]
		if math.Float64bits(a) == math.Float64bits(b) || a == b || math.IsNaN(a) && math.IsNaN(b) {
			continue
		}
		d.changed++
		gap, limit := math.Abs(a-b), 0.0
		switch q.kind {
		case forward:
			spread := size
			if strings.HasPrefix(q.name, "logp_") {
				spread = -math.Expm1(min(a, b, 0))
			}
			limit = 8*math.Sqrt2*sigma*spread + 64*u*max(1, math.Abs(a)) + relative*size
		case derived:
			limit = 2*float64(n+8)*u*size + 8*relative*size
		}
		ratio := gap / limit
		if !(gap <= limit) && !(ratio > 1) {
			ratio = math.Inf(1) // NaN, or against a limit of 0
		}
		d.relative = max(d.relative, gap/max(size, 1e-300))
		if ratio > d.worst {
			d.worst, d.gap, d.limit = ratio, gap, limit
			d.where = fmt.Sprintf("%s: %.9g against %.9g", v.place(i), a, b)
		}
	}
	if d.changed > 0 && d.worst <= 1 && q.kind == forward {
		d.biased = p.bias(v)
	}
	return d
}

// bias tests residuals for a mean that is not 0: that of the rows, whose tokens share their rounding, at least 6 standard errors and
// a quarter of the spread of the tokens away. It returns the standard errors, 0 where the mean may be 0.
func (p *pairing) bias(v *values) float64 {
	var means []float64
	var all, square, sum, count float64
	for i := range v.a {
		if i > 0 && v.group[i] != v.group[i-1] && count > 0 {
			means = append(means, sum/count)
			sum, count = 0, 0
		}
		if d := v.b[i] - v.a[i]; !math.IsNaN(d) && !math.IsInf(d, 0) {
			sum += d
			count++
			all++
			square += float64(d * d)
		}
	}
	if count > 0 {
		means = append(means, sum/count)
	}
	n := float64(len(means))
	if n < 12 {
		return 0
	}
	var m, s float64
	for _, x := range means {
		m += x / n
	}
	for _, x := range means {
		s += float64((x - m) * (x - m))
	}
	z := math.Abs(m) / (math.Sqrt(s/(n-1)/n) + 1e-300)
	if z > 6 && math.Abs(m) > 0.25*math.Sqrt(square/all) {
		return z
	}
	return 0
}
