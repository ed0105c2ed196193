package stage

import (
	"math"
	"slices"
)

// boundRow is a row of tokens from lo to hi.
type boundRow struct{ lo, hi int }

// boundFile is a file with what aggregations make of sums over its tokens and of sums of means over its rows: one factor for each; see [Case.aggregated].
type boundFile struct {
	loss         float64
	cols, height float64
	step         int // index
	rows         []boundRow
	factor       [aggregations + 1]float64
}

// boundCells are the cells of files, without those outside a mask.
type boundCells struct {
	files  []boundFile
	n      int
	steps  []int
	tokens []float64 // of each step
}

// valueMasks are the cells that a value loss may have (value.mask).
var valueMasks = []string{"response", "p1"}

// boundValues are the cells of a value loss.
type boundValues struct {
	boundCells
	value, rollout, target []float64
}

// boundTokens are the tokens of files.
type boundTokens struct {
	boundCells
	values                                [2]boundValues // by mask
	lp, old, ref, adv, entropy            []float64
	klOf                                  []float64    // log-probs that the KL is of
	minus                                 bool         // the KL is subtracted
	besideKL                              bool         // there is one
	given                                 []float64    // the KL where it was dumped
	engine                                [3][]float64 // weights by level
	hasOld, hasRef, hasEntropy, hasEngine bool
	hasValue, over                        bool
	toEngine                              bool // old are the engine's
	ratios                                map[string][]float64
	order                                 map[sortedKey][][2]sortedTokens
	room                                  [params + 1][]float64
	unit                                  float64
}

// add takes the files of a batch with the advantages of their tokens, and with the terms beside the policy loss that a loss may have; in are the inputs of
// these where they are not those of the batch.
func (t *boundTokens) add(c *Case, in LossInputs, loss, adv []float64, unit float64, terms bool) {
	b := c.B
	if t.over = t.over || len(t.lp)+len(b.Mask) > 4*mostBound; t.over {
		return
	}
	lp, h := b.Token("logp_new"), b.Token("entropy")
	of, ref := in.kl(b)
	trainer, gen := in.weights(b)
	old, toEngine := rolloutLogp(b)
	value, rollout, target, kl := b.Token("values_new"), b.Token("values"), b.Token("returns"), b.Token("kl")
	if !terms {
		ref, h, value, kl = nil, nil, nil, nil
	}
	if b.Tensors["is_weights"] != nil { // the advantages have them
		gen = nil
	}
	if b.PerFile("value_loss") != nil || value == nil || rollout == nil || target == nil {
		value = nil
	}
	if len(t.files) == 0 {
		t.hasOld, t.hasRef, t.hasEntropy, t.hasEngine, t.hasValue, t.toEngine = old != nil, ref != nil, h != nil, gen != nil, value != nil, toEngine
	}
	t.unit, t.minus = max(t.unit, unit), in.Minus
	if t.over = t.hasOld != (old != nil) || t.hasRef != (ref != nil) || t.hasEntropy != (h != nil) || t.hasEngine != (gen != nil) || t.hasValue != (value != nil) ||
		t.toEngine != toEngine; t.over {
		return
	}
	if old == nil {
		old = lp
	}
	var weights func(i int) engineStats
	if gen != nil {
		if trainer == nil { // to the detached copy, whose ratios are 1
			trainer = lp
		}
		weights = ofEngine(b, trainer, gen, b.Mask)
	}
	t.cells(c, loss, b.Mask, func(i int) {
		t.lp, t.old, t.adv = append(t.lp, lp[i]), append(t.old, old[i]), append(t.adv, adv[i])
		if ref != nil {
			t.ref, t.klOf = append(t.ref, ref[i]), append(t.klOf, of[i])
		}
		if kl != nil {
			t.given = append(t.given, kl[i])
		}
		if h != nil {
			t.entropy = append(t.entropy, -h[i]) // a bonus
		}
		if weights != nil {
			w := weights(i)
			for k := range t.engine {
				t.engine[k] = append(t.engine[k], w[k])
			}
		}
	})
	for k, name := range valueMasks {
		if v := &t.values[k]; value != nil {
			v.cells(c, loss, c.valueMask(name), func(i int) {
				v.value, v.rollout, v.target = append(v.value, value[i]), append(v.rollout, rollout[i]), append(v.target, target[i])
			})
		}
	}
}

// cells adds the cells of a mask.
func (t *boundCells) cells(c *Case, loss []float64, mask []bool, take func(i int)) {
	b := c.B
	n := make([]float64, b.Rows)
	var tokens, rows float64
	for r := range n {
		for _, on := range mask[r*b.Cols : (r+1)*b.Cols] {
			if on {
				n[r]++
			}
		}
		if tokens += n[r]; n[r] > 0 {
			rows++
		}
	}
	world, steps := c.worldSize(), c.accumulation()
	t.steps, t.tokens = append(t.steps, b.Meta.Step), append(t.tokens, tokens)
	for f, of := range b.Files {
		file := boundFile{loss: loss[f], cols: float64(of.Cols), height: float64(of.Hi - of.Lo), step: len(t.steps) - 1}
		var own, ownRows float64
		for r := of.Lo; r < of.Hi; r++ {
			if n[r] == 0 {
				continue
			}
			own, ownRows = own+n[r], ownRows+1
			row := boundRow{lo: t.n}
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if mask[i] {
					take(i)
					t.n++
				}
			}
			row.hi = t.n
			file.rows = append(file.rows, row)
		}
		file.factor = [aggregations + 1]float64{1 / own, 1 / own / steps, world / tokens, 1 / ownRows, 1 / ownRows / steps, world / rows, 1 / ownRows, world / rows, 1}
		t.files = append(t.files, file)
	}
}

// of returns what an aggregation makes of numbers of the cells, a number of every file.
func (t *boundCells) of(x []float64, kind int) []float64 {
	list := make([]float64, len(t.files))
	for f := range t.files {
		file := &t.files[f]
		var all float64
		for _, row := range file.rows {
			var sum float64
			for _, v := range x[row.lo:row.hi] {
				sum += v
			}
			if kind >= ofRows && kind < ofSums {
				sum /= float64(row.hi - row.lo)
			}
			all += sum
		}
		list[f] = all * t.factor(file, kind)
	}
	return list
}

// factor returns that of an aggregation, of a span of steps too; see [ofGenerations].
func (t *boundCells) factor(f *boundFile, kind int) float64 {
	if kind <= ofPlain {
		return f.factor[kind]
	}
	span := kind - ofGenerations
	lo := f.step / span * span
	var all float64
	for _, n := range t.tokens[lo : lo+span] {
		all += n
	}
	return f.factor[ofTokensGlobal] * t.tokens[f.step] * float64(span) / all
}

// alike reports whether two aggregations have the same factors.
func (t *boundCells) alike(a, b int) bool {
	for f := range t.files {
		if x := t.factor(&t.files[f], a); math.Abs(x-t.factor(&t.files[f], b)) > 1e-12*x {
			return false
		}
	}
	return true
}

// generations returns the aggregations over spans of steps one after the other that fill the run and that differ from others, and from that of each step.
func (t *boundCells) generations() (kinds []int) {
	n := len(t.steps)
	for span := 2; span <= min(mostSteps, n); span++ {
		kind := ofGenerations + span
		if n%span > 0 || t.steps[n-1]-t.steps[0] != n-1 || t.alike(kind, ofTokensGlobal) || slices.ContainsFunc(kinds, func(o int) bool { return t.alike(kind, o) }) {
			continue
		}
		kinds = append(kinds, kind)
	}
	return kinds
}
