package stage

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// aggregations are the ways in which the numbers of the tokens of a file become one number: means over the tokens or the rows of the file, of the
// file divided by the accumulation steps, and of the step times the ranks; and the same of the sums of rows, which a constant may divide besides.
const (
	ofTokens, ofTokensDivided, ofTokensGlobal = 0, 1, 2
	ofRows, ofRowsDivided, ofRowsGlobal       = 3, 4, 5
	ofSums, ofSumsGlobal                      = 6, 7
	aggregations                              = 8
	ofGenerations                             = aggregations // and one more for every span of steps: ofTokensGlobal of the tokens of these by their number
)

// mostSteps is the most steps of a generation batch that is looked for.
const mostSteps = 16

// wholeFile is a file whose loss is all that says of its terms: the loss, and by aggregation the losses, the KL and the entropy of its tokens.
type wholeFile struct {
	loss  float64
	step  int // index
	rank  int
	steps float64 // that are accumulated
	world float64 // ranks
	terms [3][aggregations]float64
	size  [aggregations]float64 // of the magnitudes of the losses of its tokens: their sum may be 0 but for rounding
	value float64               // its value loss, NaN where it has none
	high  float64               // mean of the entropies of the tokens that are kept, divided by the accumulation steps; NaN where no entropy tells them from others
}

// wholes collects such files; see [Losses].
type wholes struct {
	files []wholeFile
	has   [3]bool
	value bool    // the files have their value losses
	unit  float64 // of the coarsest of the tensors
	no    bool    // some file has its policy loss, or lacks its loss, or the losses of its tokens

	steps  []int             // one after the other, until one is missing
	tokens []float64         // of each
	ranks  []map[int]float64 // the tokens of each that the ranks have
	moved  []float64         // how far the policy is from its rollout, in each
	gap    bool
	only   []int // aggregations that are tried; nil: all
	empty  bool  // rows without a token count among those that a sum over rows is divided by (agg.empty_rows counted)
}

var wholeTerms = [3]string{"token_loss", "kl", "entropy"}

// add takes the files of a batch.
func (w *wholes) add(b *dump.Batch, first bool) {
	loss := b.PerFile("loss")
	if w.no = w.no || loss == nil || b.Token("token_loss") == nil || b.PerFile("pg_loss") != nil || len(b.Missing) > 0; w.no {
		return
	}
	var x [3][]float64
	for k, name := range wholeTerms {
		x[k] = b.Token(name)
		if first {
			w.has[k] = x[k] != nil
		} else if w.has[k] != (x[k] != nil) {
			w.no = true
			return
		}
		if x[k] != nil {
			w.unit = max(w.unit, Grid(x[k]), tol.U32)
		}
	}
	if n := len(w.steps); n > 0 && b.Meta.Step != w.steps[n-1]+1 {
		w.gap = true
	}
	w.steps = append(w.steps, b.Meta.Step)
	c := NewCase(b, &convention.Set{}, 0)
	value := b.PerFile("value_loss")
	if first {
		w.value = value != nil
	} else if w.value != (value != nil) {
		w.no = true
		return
	}
	var tokens float64
	ranks := map[int]float64{}
	n := c.tokensOfRows()
	for _, f := range b.Files {
		for _, x := range n[f.Lo:f.Hi] {
			tokens += x
			ranks[f.Rank] += x
		}
	}
	w.tokens, w.ranks, w.moved = append(w.tokens, tokens), append(w.ranks, ranks), append(w.moved, distanceOfPolicy(b))
	var of [3][][aggregations]float64
	for k := range x {
		of[k] = c.aggregatedOver(x[k], w.empty)
	}
	magnitudes := make([]float64, len(x[0]))
	for i, v := range x[0] {
		magnitudes[i] = math.Abs(v)
	}
	size := c.aggregatedOver(magnitudes, w.empty)
	for f := range b.Files {
		file := wholeFile{loss: loss[f], value: math.NaN(), step: len(w.steps) - 1, rank: b.Files[f].Rank, steps: c.accumulation(), world: c.worldSize(), high: c.highMean(f, x[0], x[1], x[2])}
		for k := range x {
			if x[k] != nil {
				file.terms[k] = of[k][f]
			}
		}
		if value != nil {
			file.value = value[f]
		}
		file.size = size[f]
		w.files = append(w.files, file)
	}
}

// aggregated returns numbers of tokens as the number of each file that every aggregation makes of them; nil of none. Rows without a token are no rows.
func (c *Case) aggregated(x []float64) (list [][aggregations]float64) {
	return c.aggregatedOver(x, false)
}

// aggregatedOver is aggregated where rows without a token may count.
func (c *Case) aggregatedOver(x []float64, empty bool) (list [][aggregations]float64) {
	b := c.B
	if x == nil {
		return nil
	}
	n := c.tokensOfRows()
	var tokens, rows float64
	for _, t := range n {
		if tokens += t; t > 0 || empty {
			rows++
		}
	}
	world, steps := c.worldSize(), c.accumulation()
	for _, file := range b.Files {
		var own, ownRows, sum, means float64
		for r := file.Lo; r < file.Hi; r++ {
			var row float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					row += x[i]
				}
			}
			if sum += row; n[r] > 0 {
				own, means = own+n[r], means+row/n[r]
			}
			if n[r] > 0 || empty {
				ownRows++
			}
		}
		list = append(list, [aggregations]float64{sum / own, sum / own / steps, sum * world / tokens, means / ownRows, means / ownRows / steps, means * world / rows,
			sum / ownRows, sum * world / rows})
	}
	return list
}

// highMean returns the mean of the entropies of the tokens of a file that its loss keeps, those of high entropy alone (TRL 1.16, top_entropy_quantile),
// divided by the accumulation steps: NaN where all are kept, or others. The policy term of a token that is left out is 0, its loss β·kl, with one β.
func (c *Case) highMean(f int, loss, kl, h []float64) float64 {
	b := c.B
	adv := b.Token("advantages")
	if row := b.Row("advantages"); adv == nil && len(row) == b.Rows {
		adv = c.spread(row)
	}
	if loss == nil || h == nil || adv == nil {
		return math.NaN()
	}
	u, _ := b.Tensors["token_loss"].Type.Unit()
	var cells []lossCell
	var betas []float64
	for i := b.Files[f].Lo * b.Cols; i < b.Files[f].Hi*b.Cols; i++ {
		if !b.Mask[i] {
			continue
		}
		x := lossCell{loss: loss[i], adv: adv[i], rho: 1, lp: -1, w: 1, u: u, h: h[i]}
		if kl != nil {
			if x.k = kl[i]; x.k != 0 && x.adv != 0 {
				betas = append(betas, x.loss/x.k)
			}
		}
		cells = append(cells, x)
	}
	beta, n := 0.0, 0
	if beta, n = commonest(betas); n < 3 {
		beta = 0
	}
	if topEntropy(cells, beta, "outside").n == 0 {
		return math.NaN()
	}
	above, sum, count := math.Inf(1), 0.0, 0.0
	for i := range cells {
		if c := &cells[i]; c.adv != 0 && c.kept(beta, "outside") {
			above = min(above, c.h)
		}
	}
	left := false
	for _, c := range cells {
		if c.h >= above {
			sum, count = sum+c.h, count+1
		} else {
			left = true
		}
	}
	if !left {
		return math.NaN()
	}
	return sum / count / c.accumulation()
}

// wholeFit is what the files of a run say of their losses: the coefficients of the terms, the aggregation of a bonus of its own, the steps of a generation
// batch whose tokens are counted, 0 where they are those of the step, the constant that sums of rows are divided by, 0 where they are divided by none, and what
// is left of the largest loss.
type wholeFit struct {
	coefficients map[string]float64
	entropy      string
	span         int
	constant     float64
	divisor      float64 // of sums over tokens; 0: none
	kind         int     // aggregation
	misdivided   string  // the bug that makes the losses too small by a factor; "": none
	turned       bool    // a term has the sign of none
	left, size   float64 // relative to the size
}

// wholeTerm is a term of a loss: which it is, 3 for the entropy of the tokens that are kept, 4 for the value loss of the file, and its aggregation.
type wholeTerm struct{ of, kind int }

// digits counts those of the coefficients: files of one rollout have the same tokens at every step, and then a sum of a term over a number, and its mean,
// are the same but for the coefficient, which people write with few digits.
func (f *wholeFit) digits() (n int) {
	for _, c := range f.coefficients {
		text, _, _ := strings.Cut(strconv.FormatFloat(c, 'e', -1, 64), "e")
		n += len(text)
	}
	return n
}

// fit solves loss = s·Σ token_loss + β·Σ kl − c·Σ entropy + c_V·value_loss, each Σ by one aggregation, those of the KL and the entropy times s too where it is that of
// the policy loss, and s = 1 but for sums of rows, which a constant may divide, for β, c and s by least squares over the files: those that leave 1e-4
// of the largest difference, and 8 units of the coarsest tensor, with the fewest terms, but for more that leave a thirtieth of it; nil where no
// aggregation does, or fewer files are there than one more than unknowns. Of two that leave as little the one whose coefficients have fewer digits.
func (w *wholes) fit() (chosen *wholeFit) {
	if w.no || !w.has[0] {
		return nil
	}
	lists := [][]int{{}, {1}, {2}, {3}, {1, 2}, {1, 3}}
	if w.value {
		lists = append(lists, []int{4}, []int{1, 4}, []int{2, 4}, []int{1, 2, 4})
	}
	for _, which := range lists {
		for _, free := range []bool{false, true} {
			if free && w.only != nil {
				continue
			}
			for _, own := range []bool{false, true} {
				f := w.best(which, own, free)
				switch floor := 4 * w.unit; {
				case f == nil:
				case chosen == nil || max(f.left, floor) < chosen.left/30,
					max(f.left, floor) <= max(chosen.left, floor) && len(f.coefficients) == len(chosen.coefficients) && f.digits() < chosen.digits():
					chosen = f
				}
			}
		}
	}
	return chosen
}

// best returns the fit of some terms that leaves the least, over all aggregations of the policy loss, the other terms having that, or one of their
// own, which is a mean over tokens; nil where there is none.
func (w *wholes) best(which []int, own, free bool) (best *wholeFit) {
	kinds := aggregations
	if !w.gap && !free {
		kinds += mostSteps + 1
	}
	for kind := range kinds {
		if w.only != nil && !slices.Contains(w.only, kind) || free && kind < ofSums || kind == ofGenerations || kind == ofGenerations+1 {
			continue
		}
		for _, others := range w.others(which, kind, own) {
			f := w.solved(others, kind, free)
			switch {
			case f == nil:
			case best == nil, f.left < best.left && (f.span == 0 || best.span != 0), f.left < best.left/4: // where all steps have as many tokens, those of a span are as good
				best = f
			}
		}
	}
	return best
}

// others returns the aggregations that terms have beside a policy loss of one kind.
func (w *wholes) others(which []int, kind int, own bool) (lists [][]wholeTerm) {
	lists = [][]wholeTerm{nil}
	if own && len(which) == 0 {
		return nil
	}
	for _, k := range which {
		kinds := []int{kind}
		switch {
		case k == 4 && own && len(which) == 1:
			return nil
		case k == 4: // a number of the file
		case k == 3 && !own:
			return nil
		case k == 3:
			kinds = []int{ofTokensDivided}
		case !w.has[k]:
			return nil
		case own && (k == 2 || len(which) == 1 || len(which) == 2 && which[1] == 4):
			kinds = []int{ofTokensDivided, ofTokensGlobal, ofTokens}
		case own:
			kinds = []int{kind, ofTokensDivided, ofTokensGlobal, ofTokens}
		}
		var longer [][]wholeTerm
		for _, list := range lists {
			for _, of := range kinds {
				longer = append(longer, append(slices.Clone(list), wholeTerm{k, of}))
			}
		}
		lists = longer
	}
	return lists
}

// of returns a term of a file, NaN where it is not known.
func (w *wholes) of(f *wholeFile, t wholeTerm) float64 {
	switch t.of {
	case 3:
		return f.high
	case 4:
		return f.value
	}
	if t.kind < ofGenerations {
		return f.terms[t.of][t.kind]
	}
	span := t.kind - ofGenerations
	lo := f.step / span * span
	if lo+span > len(w.tokens) {
		return math.NaN()
	}
	var all float64
	for _, n := range w.tokens[lo : lo+span] {
		all += n
	}
	return f.terms[t.of][ofTokensGlobal] * w.tokens[f.step] * float64(span) / all
}

// solved returns the fit of some terms beside a policy loss of one aggregation; nil where it leaves too much.
func (w *wholes) solved(others []wholeTerm, kind int, free bool) *wholeFit {
	policy, kindOf := wholeTerm{0, kind}, kind
	if kind >= ofGenerations {
		kindOf = ofTokensGlobal
	}
	terms := others
	if free {
		terms = append([]wholeTerm{policy}, others...)
	}
	n := len(terms)
	m := n + 1
	a := make([]float64, n*m)
	var y []float64
	var rows [][]float64
	size, sums, differ, left := 0.0, 0.0, 0.0, 0.0
	for i := range w.files {
		f := &w.files[i]
		own := w.of(f, policy)
		row := make([]float64, n)
		known := !math.IsNaN(own)
		for j, t := range terms {
			row[j] = w.of(f, t)
			known = known && !math.IsNaN(row[j])
		}
		if !known {
			continue
		}
		of := f.loss
		if size = max(size, math.Abs(of), math.Abs(own)); !free {
			of -= own
		}
		sums = max(sums, f.size[kindOf])
		differ = max(differ, math.Abs(of))
		for j := range terms {
			for k := range terms {
				a[j*m+k] += float64(row[j] * row[k])
			}
			a[j*m+n] += float64(row[j] * of)
		}
		rows, y = append(rows, row), append(y, of)
	}
	if len(y) < n+2 || 4*len(y) < 3*len(w.files) {
		return nil
	}
	var x []float64
	if n > 0 {
		if x = eliminate(a, n); x == nil {
			return nil
		}
	}
	shows := make([]float64, n) // what a term is at most
	for i := range y {
		for j := range terms {
			term := float64(x[j] * rows[i][j])
			y[i] -= term
			shows[j] = max(shows[j], math.Abs(term))
		}
		left = max(left, math.Abs(y[i]))
	}
	if free { // the sums themselves are no loss
		size, sums = differ, x[0]*sums
	}
	if size = max(size, sums); !(left <= 1e-4*differ+8*w.unit*size) || n > 0 && slices.Min(shows) <= 64*w.unit*size {
		return nil
	}
	const near = 1e-3
	if kind >= ofGenerations && left > near*size { // of so many spans one is near in coarse numbers
		return nil
	}
	fit := &wholeFit{coefficients: map[string]float64{}, kind: kind, left: left / size, size: size}
	scale := 1.0
	if free {
		if scale = x[0]; !(scale > 0) {
			return nil
		}
		x, fit.constant = x[1:], 1/scale
	}
	if kind >= ofGenerations {
		fit.span = kind - ofGenerations
	}
	for i, t := range others {
		c := x[i]
		if t.kind == kind && t.of < 3 {
			c /= scale
		}
		if t.of == 2 || t.of == 3 {
			if c = -c; t.kind != kind || t.of == 3 {
				fit.entropy = map[int]string{ofTokensDivided: "micro", ofTokens: "micro", ofTokensGlobal: "token"}[t.kind]
			}
		}
		if fit.turned = fit.turned || c < 0; c == 0 || math.IsNaN(c) {
			return nil
		}
		c = math.Abs(c)
		fit.coefficients[map[int]string{1: "kl.beta", 2: "entropy.coef", 3: "entropy.coef", 4: "value.coef"}[t.of]] = written(c, max(1e-3, w.unit))
	}
	return fit
}
