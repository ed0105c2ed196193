package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// boundRow is a row of tokens from lo to hi.
type boundRow struct {
	lo, hi int
	prompt float64 // tokens, NaN where nobody says
}

// boundFile is a file with what aggregations make of sums over its tokens and of sums of means over its rows: one factor for each; see [Case.aggregated].
type boundFile struct {
	loss         float64
	cols, height float64
	step         int // index
	rows         []boundRow
	factor       [aggregations + 1]float64
	counts       boundCounts
}

// boundCounts are what the reductions of a file count.
type boundCounts struct {
	tokens, rows, longest float64 // of the file
	ofRank, ofStep        float64 // tokens of the rank, and of the step
	rowsOfStep            float64
	steps, world          float64 // that are accumulated; ranks
}

// boundCells are the cells of files, without those outside a mask.
type boundCells struct {
	files  []boundFile
	n      int
	steps  []int
	tokens []float64 // of each step
	column []int     // of each cell
	weight map[int][]float64
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
	ofRank, prompts := map[int]float64{}, promptsOf(b, n)
	for _, of := range b.Files {
		for _, x := range n[of.Lo:of.Hi] {
			ofRank[of.Rank] += x
		}
	}
	for f, of := range b.Files {
		file := boundFile{loss: loss[f], cols: float64(of.Cols), height: float64(of.Hi - of.Lo), step: len(t.steps) - 1}
		var own, ownRows, longest float64
		for r := of.Lo; r < of.Hi; r++ {
			if n[r] == 0 {
				continue
			}
			own, ownRows = own+n[r], ownRows+1
			row := boundRow{lo: t.n, prompt: math.NaN()}
			if prompts != nil {
				row.prompt = prompts[r]
			}
			longest = max(longest, n[r])
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if mask[i] {
					take(i)
					t.column = append(t.column, i%b.Cols)
					t.n++
				}
			}
			row.hi = t.n
			file.rows = append(file.rows, row)
		}
		file.factor = [aggregations + 1]float64{1 / own, 1 / own / steps, world / tokens, 1 / ownRows, 1 / ownRows / steps, world / rows, 1 / ownRows, world / rows, 1}
		file.counts = boundCounts{own, ownRows, longest, ofRank[of.Rank], tokens, rows, steps, world}
		t.files = append(t.files, file)
	}
}

// promptsOf returns the tokens of the prompts of rows with so many tokens of responses, nil where nobody says.
func promptsOf(b *dump.Batch, n []float64) []float64 {
	if prompt := b.Row("prompt_len"); len(prompt) == b.Rows {
		return prompt
	}
	attention := b.Tensors["attention_mask"]
	if attention == nil || attention.Width < 1 || len(attention.Data) != b.Rows*attention.Width {
		return nil
	}
	prompt := make([]float64, b.Rows)
	for r := range prompt {
		for _, on := range attention.Data[r*attention.Width : (r+1)*attention.Width] {
			prompt[r] += on
		}
		prompt[r] -= n[r]
	}
	return prompt
}

// weights returns what an aggregation multiplies cells by besides the factor of their file; nil for 1.
func (t *boundCells) weights(kind int) []float64 {
	if (kind < ofRows || kind >= ofSums) && kind < ofStrays {
		return nil
	}
	w, ok := t.weight[kind]
	if ok {
		return w
	}
	switch {
	case kind < ofStrays:
		w = t.ofRows(func(row *boundRow) float64 { return 1 / float64(row.hi-row.lo) })
	case strayReductions[kind-ofStrays].weight != nil:
		w = t.ofRows(strayReductions[kind-ofStrays].weight)
	case strayReductions[kind-ofStrays].columns:
		w = t.ofColumns()
	}
	if t.weight == nil {
		t.weight = map[int][]float64{}
	}
	t.weight[kind] = w
	return w
}

// ofRows are the weights of cells by their rows.
func (t *boundCells) ofRows(of func(row *boundRow) float64) []float64 {
	w := make([]float64, t.n)
	for f := range t.files {
		for r := range t.files[f].rows {
			row := &t.files[f].rows[r]
			x := of(row)
			for i := row.lo; i < row.hi; i++ {
				w[i] = x
			}
		}
	}
	return w
}

// ofColumns are the weights of cells in the mean over the columns of a file of the means of these.
func (t *boundCells) ofColumns() []float64 {
	w := make([]float64, t.n)
	for f := range t.files {
		n := map[int]float64{}
		for _, row := range t.files[f].rows {
			for _, c := range t.column[row.lo:row.hi] {
				n[c]++
			}
		}
		for _, row := range t.files[f].rows {
			for i := row.lo; i < row.hi; i++ {
				w[i] = 1 / n[t.column[i]] / float64(len(n))
			}
		}
	}
	return w
}

// of returns what an aggregation makes of numbers of the cells, a number of every file.
func (t *boundCells) of(x []float64, kind int) []float64 {
	list := make([]float64, len(t.files))
	weights := t.weights(kind)
	for f := range t.files {
		file := &t.files[f]
		var all float64
		for _, row := range file.rows {
			for i := row.lo; i < row.hi; i++ {
				if weights == nil {
					all += x[i]
				} else {
					all += float64(weights[i] * x[i])
				}
			}
		}
		list[f] = all * t.factor(file, kind)
	}
	return list
}

// factor returns that of an aggregation, of a span of steps too; see [ofGenerations].
func (t *boundCells) factor(f *boundFile, kind int) float64 {
	switch {
	case kind <= ofPlain:
		return f.factor[kind]
	case kind >= ofStrays:
		return strayReductions[kind-ofStrays].factor(&f.counts)
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
