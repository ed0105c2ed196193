package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A reduction of token losses to the loss of a file is a weight of every response,
//
//	w_r = keep_r·factor / (length_r·count_r)
//
// with a length of its own, one count of many, and a common factor. Its edits replace one or two of these by other quantities that the
// batch can count.
type part struct {
	what string
	x    []float64 // of every row
	idle bool      // is another one on this batch
}

// reductionParts are what programs divide by, and multiply with.
type reductionParts struct{ keep, length, count, factor []part }

// lengthLimits are numbers that programs take for the shortest or the longest length that a response is divided by.
var lengthLimits = []float64{2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 100, 128, 256, 512, 1024}

// twice is the square of the tokens of a response: a mean over its tokens that is divided by their number once more.
const twice = "its tokens twice"

// root is that of the tokens of a response, by which no framework divides it.
const root = "√ of its tokens"

// lengthConstants are facts of a run by which programs divide every response.
var lengthConstants = []string{"max_completion_length", "loss_scale_factor", "loss_denominator"}

// spreadFiles gives every row the number of its file.
func spreadFiles(b *dump.Batch, of func(f int) float64) []float64 {
	x := make([]float64, b.Rows)
	for f, info := range b.Files {
		v := of(f)
		for r := info.Lo; r < info.Hi; r++ {
			x[r] = v
		}
	}
	return x
}

// fileMeans are, of every row, the mean of the numbers of its file.
func fileMeans(c *stage.Case, x []float64) []float64 {
	return spreadFiles(c.B, func(f int) float64 {
		info := c.B.Files[f]
		return total(x[info.Lo:info.Hi]) / float64(info.Hi-info.Lo)
	})
}

func everyRow(b *dump.Batch, v float64) []float64 {
	return spreadFiles(b, func(int) float64 { return v })
}

func countsOf(c *stage.Case) (p reductionParts) {
	b := c.B
	n := tokensOf(b, b.Mask)
	sumOf := func(x []float64, rows func(r int) bool) (s float64) {
		for r, v := range x {
			if rows(r) {
				s += v
			}
		}
		return s
	}
	inFile := func(f int) func(int) bool {
		return func(r int) bool { return r >= b.Files[f].Lo && r < b.Files[f].Hi }
	}
	ofRank := func(f int) func(int) bool {
		return func(r int) bool { return b.Files[b.File(r)].Rank == b.Files[f].Rank }
	}
	all := func(int) bool { return true }
	longest := func(rows func(int) bool) (m float64) {
		for r, v := range n {
			if rows(r) {
				m = max(m, v)
			}
		}
		return m
	}
	ones, filled := everyRow(b, 1), mapped(n, func(v float64) float64 { return float64(boolToInt(v > 0)) })
	moved := func(by float64) []float64 {
		return mapped(n, func(v float64) float64 { return max(v+by, 0) })
	}
	add := func(list *[]part, what string, x []float64) {
		if !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) || v < 0 }) {
			*list = append(*list, part{what: what, x: x})
		}
	}
	width := spreadFiles(b, func(f int) float64 { return float64(b.Files[f].Cols) })
	add(&p.length, "1", ones)
	for _, name := range lengthConstants {
		add(&p.length, name, everyRow(b, c.FactOr(name, math.NaN())))
	}
	add(&p.length, "its own tokens", n)
	add(&p.length, "its tokens + 1", moved(1))
	add(&p.length, "its tokens − 1", moved(-1))
	epsilons := []float64{0.01, 0.1, 0.5}
	for _, e := range epsilons {
		add(&p.length, fmt.Sprintf("its tokens + %g", e), moved(e))
	}
	add(&p.length, "the padded width of its micro-batch", width)
	add(&p.length, "the padded width of the step", everyRow(b, float64(b.Cols)))
	add(&p.length, "the longest response of its micro-batch", spreadFiles(b, func(f int) float64 { return longest(inFile(f)) }))
	add(&p.length, "the longest response of the step", everyRow(b, longest(all)))
	add(&p.length, longDropped, everyRow(b, longestByIDs(b, n)))
	add(&p.length, "the longest response of its micro-batch without its last token", spreadFiles(b, func(f int) float64 { return longest(inFile(f)) - 1 }))
	add(&p.length, "the longest response of the step without its last token", everyRow(b, longest(all)-1))
	if wide := columnsWithPrompts(b); wide > 0 {
		add(&p.length, "the padded width of prompt and response", everyRow(b, float64(wide)))
	}
	mean := func(rows func(int) bool) float64 { return sumOf(n, rows) / max(sumOf(ones, rows), 1) }
	add(&p.length, "the mean length of its micro-batch", spreadFiles(b, func(f int) float64 { return mean(inFile(f)) }))
	add(&p.length, "the mean length of the step", everyRow(b, mean(all)))
	add(&p.length, root, mapped(n, math.Sqrt))
	add(&p.length, twice, mapped(n, func(v float64) float64 { return v * v }))
	for _, k := range lengthLimits {
		floor := mapped(n, func(v float64) float64 { return max(v, k) })
		cap := mapped(n, func(v float64) float64 { return min(v, k) })
		for i, x := range [][]float64{floor, cap} {
			what := fmt.Sprintf("its tokens, at %s %g", [2]string{"least", "most"}[i], k)
			p.length = append(p.length, part{what, x, slices.Equal(x, n) || len(x) == 0 || slices.Min(x) == slices.Max(x)})
		}
	}
	p.promptParts(c, n, add)
	add(&p.count, "1", ones)
	add(&p.count, "the rows of the micro-batch", spreadFiles(b, func(f int) float64 { return sumOf(ones, inFile(f)) }))
	add(&p.count, "the rows of the step", everyRow(b, float64(b.Rows)))
	add(&p.count, "the rows of the rank", spreadFiles(b, func(f int) float64 { return sumOf(ones, ofRank(f)) }))
	add(&p.count, "the rows of the micro-batch that have tokens", spreadFiles(b, func(f int) float64 { return sumOf(filled, inFile(f)) }))
	add(&p.count, "the rows of the step that have tokens", everyRow(b, sumOf(filled, all)))
	if packed := packedRows(b); packed != nil {
		add(&p.count, "the packed rows of the micro-batch", spreadFiles(b, func(f int) float64 { return sumOf(packed, inFile(f)) }))
		add(&p.count, "the packed rows of the step", everyRow(b, sumOf(packed, all)))
		stored := func(f int) float64 { return float64(b.Files[f].Stored[0] * b.Files[f].Stored[1]) }
		whole := 0.0
		for f := range b.Files {
			whole += stored(f)
		}
		add(&p.count, "the cells of the packed rows of the micro-batch", spreadFiles(b, stored))
		add(&p.count, "the cells of the packed rows of the step", everyRow(b, whole))
	}
	add(&p.count, "the tokens of the micro-batch", spreadFiles(b, func(f int) float64 { return sumOf(n, inFile(f)) }))
	add(&p.count, "the tokens of the rank", spreadFiles(b, func(f int) float64 { return sumOf(n, ofRank(f)) }))
	if first, last, several := endFiles(b); several {
		add(&p.count, "the tokens of the first micro-batch of the rank", spreadFiles(b, func(f int) float64 { return sumOf(n, inFile(first[f])) }))
		add(&p.count, "the tokens of the last micro-batch of the rank", spreadFiles(b, func(f int) float64 { return sumOf(n, inFile(last[f])) }))
	}
	add(&p.count, "the tokens of the step", everyRow(b, sumOf(n, all)))
	p.addUneven(c, n, add)
	p.addRanks(c, n, add)
	p.addWeighted(c, n, add)
	add(&p.count, "the cells of the micro-batch", spreadFiles(b, func(f int) float64 { return sumOf(width, inFile(f)) }))
	add(&p.count, "the cells of the step", everyRow(b, sumOf(width, all)))
	if b.Meta.Algorithm == "sft" { // labels are a column fewer than tokens
		add(&p.count, "the cells of the micro-batch, and those of the first tokens, which nothing predicts", spreadFiles(b, func(f int) float64 { return sumOf(width, inFile(f)) + sumOf(ones, inFile(f)) }))
		add(&p.count, "the cells of the step, and those of the first tokens, which nothing predicts", everyRow(b, sumOf(width, all)+float64(b.Rows)))
	}
	for _, e := range epsilons {
		add(&p.count, fmt.Sprintf("the tokens of the micro-batch + %g", e), spreadFiles(b, func(f int) float64 { return sumOf(n, inFile(f)) + e }))
		add(&p.count, fmt.Sprintf("the rows of the micro-batch + %g", e), spreadFiles(b, func(f int) float64 { return sumOf(ones, inFile(f)) + e }))
		add(&p.count, fmt.Sprintf("the tokens of the step + %g", e), everyRow(b, sumOf(n, all)+e))
	}
	for _, by := range []float64{1, -1} {
		word := map[float64]string{1: "one more", -1: "one fewer"}[by]
		add(&p.count, "the tokens of the step, "+word+" of every response", everyRow(b, sumOf(moved(by), all)))
		add(&p.count, "the tokens of the micro-batch, "+word+" of every response", spreadFiles(b, func(f int) float64 { return sumOf(moved(by), inFile(f)) }))
	}
	for _, one := range []float64{1, -1} {
		word := map[float64]string{1: " + 1", -1: " − 1"}[one]
		add(&p.count, "the tokens of the micro-batch"+word, spreadFiles(b, func(f int) float64 { return sumOf(n, inFile(f)) + one }))
		add(&p.count, "the tokens of the step"+word, everyRow(b, sumOf(n, all)+one))
		add(&p.count, "the rows of the micro-batch"+word, spreadFiles(b, func(f int) float64 { return sumOf(ones, inFile(f)) + one }))
		add(&p.count, "the rows of the step"+word, everyRow(b, float64(b.Rows)+one))
	}
	if ends, dropped := idCounts(b, n); ends > 0 {
		add(&p.count, withEnds, everyRow(b, ends))
	} else if dropped > sumOf(n, all) {
		add(&p.count, withDropped, everyRow(b, dropped))
	}
	add(&p.count, "num_items_in_batch", everyRow(b, c.FactOr("num_items_in_batch", math.NaN())))
	add(&p.count, "num_generations", everyRow(b, c.FactOr("num_generations", math.NaN())))
	if id := b.Row("group_id"); id != nil {
		of := func(rows func(int) bool) float64 {
			groups := map[float64]bool{}
			for r, g := range id {
				if rows(r) {
					groups[g] = true
				}
			}
			return float64(len(groups))
		}
		add(&p.count, "the groups of the step", everyRow(b, of(all)))
		add(&p.count, "the groups of the micro-batch", spreadFiles(b, func(f int) float64 { return of(inFile(f)) }))
		p.addGroups(b, id, n, add)
	}
	files := float64(len(b.Files))
	ga, world := c.FactOr("gradient_accumulation_steps", float64(max(b.Meta.MicroBatches, 1))), max(float64(b.Meta.WorldSize), 1)
	for _, f := range []struct {
		what string
		k    float64
	}{{"1", 1}, {"the accumulation steps", ga}, {"1/the accumulation steps", 1 / ga}, {"the ranks", world}, {"1/the ranks", 1 / world},
		{"the number of micro-batches", files}, {"1/the number of micro-batches", 1 / files}, {"the ranks/the accumulation steps", world / ga}, {"the accumulation steps/the ranks", ga / world}} {
		add(&p.factor, f.what, everyRow(b, f.k))
	}
	p.addPowers(b, add)
	add(&p.factor, "its own tokens", n)
	squares := mapped(n, func(v float64) float64 { return v * v })
	add(&p.count, "the squares of the lengths of the step", everyRow(b, sumOf(squares, all)))
	add(&p.count, "the squares of the lengths of the micro-batch", spreadFiles(b, func(f int) float64 { return sumOf(squares, inFile(f)) }))
	keep := func(what string, drop func(r int) bool) {
		x, kept := everyRow(b, 1), 0
		for r := range x {
			if drop(r) {
				x[r] = 0
			} else if n[r] > 0 {
				kept++
			}
		}
		if kept > 0 && slices.Contains(x, 0) {
			add(&p.keep, what, x)
		}
	}
	add(&p.keep, "", ones)
	keep("responses of a single token", func(r int) bool { return n[r] == 1 })
	keep("responses that were cut off", func(r int) bool { return truncated(c, r) })
	if a := c.Optional("advantages"); len(a.X) == len(b.Mask) && b.Cols > 0 {
		first := func(r int) float64 {
			if i := firstOf(b, r); i >= 0 {
				return a.X[i]
			}
			return 0
		}
		keep("responses of advantage 0", func(r int) bool { return first(r) == 0 })
		keep("responses of a negative advantage", func(r int) bool { return first(r) < 0 })
		keep("responses of a positive advantage", func(r int) bool { return first(r) > 0 })
	}
	return p
}

// choice is a value of every part, by its index.
type choice struct{ keep, length, count, factor int }

func (p *reductionParts) weight(at choice, r int) float64 {
	return p.keep[at.keep].x[r] * p.factor[at.factor].x[r] / (p.length[at.length].x[r] * p.count[at.count].x[r])
}

// reductionEdits returns the edits of the reduction that the output is near to.
func reductionEdits(o *stage.Outcome) []edit {
	if s := o.Check.Stage; s != convention.Aggregate && s != convention.Gradient || o.Check.Output == "value_loss" || o.Check.Output == "dvalues" {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	b := c.B
	healthy := rowWeights(c)
	if healthy == nil {
		return nil
	}
	p := countsOf(c)
	// What is declared, as parts: several choices can have the same numbers.
	var declared []choice
	each := func(do func(choice)) {
		for k := range p.keep {
			for l := range p.length {
				if p.length[l].idle {
					continue
				}
				for n := range p.count {
					for f := range p.factor {
						do(choice{k, l, n, f})
					}
				}
			}
		}
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-7*(math.Abs(a)+math.Abs(b)) }
	each(func(at choice) {
		if at.keep != 0 {
			return
		}
		for r, w := range healthy {
			if w != 0 && !near(p.weight(at, r), w) {
				return
			}
		}
		declared = append(declared, at)
	})
	if len(declared) == 0 {
		return nil
	}
	change := func(a, b choice) int {
		return boolToInt(a.keep != b.keep) + boolToInt(a.length != b.length) + boolToInt(a.count != b.count) + boolToInt(a.factor != b.factor)
	}
	predictor := newRowPredictor(o, c)
	if predictor == nil {
		return nil
	}
	written := slices.Clone(declared) // those of parts that people write first
	slices.SortStableFunc(written, func(a, b choice) int { return p.odd(choice{}, a) - p.odd(choice{}, b) })
	var list []edit
	type found struct{ at, odd int }
	seen := map[string]found{} // of those of several changes that are one number on this batch the one that people write is told
	by := make([]float64, b.Rows)
	each(func(at choice) {
		from, n := written[0], mostChanges+1
		for _, d := range written {
			if k := change(at, d); k < n {
				from, n = d, k
			}
		}
		if n == 0 || n > mostChanges || n > 1 && o.Half() {
			return
		}
		for r, w := range healthy {
			if by[r] = 1; w != 0 {
				by[r] = p.weight(at, r) / w
			}
			if math.IsNaN(by[r]) || math.IsInf(by[r], 0) {
				return
			}
		}
		if !predictor.near(by) {
			return
		}
		key := fmt.Sprintf("%.9g", by)
		was, known := seen[key]
		odd := p.odd(from, at)
		if known && n > 1 && (odd >= was.odd || list[was.at].changes < n) {
			return
		}
		id, title := p.words(from, at)
		e := edit{id: id, title: title, changes: n, foreign: p.ofNobody(at) || p.withPrompts(from, at), own: p.count[at.count].what != p.count[from.count].what && strings.HasSuffix(p.count[at.count].what, weightsKeep), predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			healthy, q := rowWeights(c), countsOf(c)
			if healthy == nil {
				return nil
			}
			then := q.find(p, at)
			if then == nil {
				return nil
			}
			by := make([]float64, c.B.Rows)
			for r, w := range healthy {
				if by[r] = 1; w != 0 {
					by[r] = q.weight(*then, r) / w
				}
				if math.IsNaN(by[r]) || math.IsInf(by[r], 0) {
					return nil
				}
			}
			return weighted(c.B, c, ch, by)
		}}
		if known && n > 1 {
			list[was.at], seen[key] = e, found{was.at, odd}
			return
		}
		if list = append(list, e); !known {
			seen[key] = found{len(list) - 1, odd}
		}
	})
	if by := inverseSquares(c); predictor.near(by) {
		list = append(list, productForQuotient())
	}
	if len(list) == 0 {
		slices.SortStableFunc(declared, func(a, b choice) int { // of counts that are one number here, that of the step first
			of := func(c choice) int { return boolToInt(!strings.HasSuffix(p.count[c.count].what, "of the step")) }
			return of(a) - of(b)
		})
		for _, d := range declared {
			if e, ok := otherDivisor(o, p.count[d.count]); ok {
				return append(list, e)
			}
		}
	}
	return list
}

// find returns the choice of another batch that has the same words, nil if there is none.
func (p *reductionParts) find(other reductionParts, at choice) *choice {
	index := func(list []part, what string) int {
		return slices.IndexFunc(list, func(x part) bool { return x.what == what })
	}
	then := choice{index(p.keep, other.keep[at.keep].what), index(p.length, other.length[at.length].what), index(p.count, other.count[at.count].what), index(p.factor, other.factor[at.factor].what)}
	if min(then.keep, then.length, then.count, then.factor) < 0 {
		return nil
	}
	return &then
}

// rowWeights returns the weight that a token of every row has in the right reduction, nil where the tokens of a row have different ones.
func rowWeights(c *stage.Case) []float64 {
	gradient := stage.Find("gradient/dlogp")
	p := weightsOf(c, gradient)
	b := c.B
	if p == nil || len(p.Want) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	scale := b.Meta.DLogpScale
	w := make([]float64, b.Rows)
	for r := range w {
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			switch v := p.Want[i] * scale; {
			case !b.Mask[i]:
			case math.IsNaN(v):
				return nil
			case w[r] == 0:
				w[r] = v
			case math.Abs(v-w[r]) > 1e-9*math.Abs(v):
				return nil
			}
		}
	}
	return w
}
