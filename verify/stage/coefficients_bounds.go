package stage

import (
	"math"
	"slices"
)

// Bounds have any value. Of a loss that is all that says of its tokens, as of [lossForms], they are solved for: the loss of a token is a line of each
// bound that holds it, so that the losses of the files are linear in bounds, caps of weights and coefficients together as long as the same tokens are
// held, and Gauss–Newton steps from one set of these to the next end in few. Numbers that people write then leave nothing of the losses.

// ofPlain is a sum over tokens that a constant divides.
const ofPlain = aggregations

// Parameters of a form that are no coefficients: bounds of the ratio, one for both sides or each its own, the dual clip, the cap of the engine's weights,
// and the clip of values.
const (
	paramBoth, paramLow, paramHigh = 0, 1, 2
	paramDual, paramCap, paramClip = 3, 4, 5
	params                         = 6
)

// boundStarts are the values from which parameters are solved.
var boundStarts = [params][]float64{{0.2, 0.05, 3e-3}, {0.2, 0.05, 3e-3}, {0.2, 0.05, 3e-3}, {2, 1.2, 4}, {1.5, 1.05, 3}, {0.2, 0.05, 0.02}}

// mostBound is the most tokens whose bounds are solved for.
const mostBound = 1 << 14

// boundRow is a row of tokens from lo to hi.
type boundRow struct{ lo, hi int }

// boundFile is a file with what aggregations make of sums over its tokens and of sums of means over its rows: one factor for each; see [Case.aggregated].
type boundFile struct {
	loss         float64
	cols, height float64
	rows         []boundRow
	factor       [aggregations + 1]float64
}

// boundCells are the cells of files, without those outside a mask.
type boundCells struct {
	files []boundFile
	n     int
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
	engine                                [3][]float64 // weights by level
	hasOld, hasRef, hasEntropy, hasEngine bool
	hasValue, over                        bool
	ratios                                map[string][]float64
	unit                                  float64
}

// add takes the files of a batch with the advantages of their tokens, and with the terms beside the policy loss that a loss may have.
func (t *boundTokens) add(c *Case, loss, adv []float64, unit float64, terms bool) {
	b := c.B
	if t.over = t.over || len(t.lp)+len(b.Mask) > 4*mostBound; t.over {
		return
	}
	lp, old, ref, h, gen := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("entropy"), b.Token("logp_gen")
	value, rollout, target := b.Token("values_new"), b.Token("values"), b.Token("returns")
	if !terms {
		ref, h, value = nil, nil, nil
	}
	if b.PerFile("value_loss") != nil || value == nil || rollout == nil || target == nil {
		value = nil
	}
	if len(t.files) == 0 {
		t.hasOld, t.hasRef, t.hasEntropy, t.hasEngine, t.hasValue = old != nil, ref != nil, h != nil, gen != nil, value != nil
	}
	t.unit = max(t.unit, unit)
	if t.over = t.hasOld != (old != nil) || t.hasRef != (ref != nil) || t.hasEntropy != (h != nil) || t.hasEngine != (gen != nil) || t.hasValue != (value != nil); t.over {
		return
	}
	if old == nil {
		old = lp
	}
	var weights func(i int) engineStats
	if gen != nil {
		weights = ofEngine(b, old, gen, b.Mask)
	}
	t.cells(c, loss, b.Mask, func(i int) {
		t.lp, t.old, t.adv = append(t.lp, lp[i]), append(t.old, old[i]), append(t.adv, adv[i])
		if ref != nil {
			t.ref = append(t.ref, ref[i])
		}
		if h != nil {
			t.entropy = append(t.entropy, h[i])
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
	for f, of := range b.Files {
		file := boundFile{loss: loss[f], cols: float64(of.Cols), height: float64(of.Hi - of.Lo)}
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
		list[f] = all * file.factor[kind]
	}
	return list
}

// ratio returns the ratios of the tokens of a level.
func (t *boundTokens) ratio(level string) []float64 {
	if x, ok := t.ratios[level]; ok {
		return x
	}
	x := make([]float64, len(t.lp))
	for f := range t.files {
		for _, row := range t.files[f].rows {
			var sum float64
			for i := row.lo; i < row.hi; i++ {
				d := t.lp[i] - t.old[i]
				x[i] = math.Exp(d)
				sum += d
			}
			if level == "seq_mean" {
				sum /= float64(row.hi - row.lo)
			}
			for i := row.lo; level != "token" && i < row.hi; i++ {
				x[i] = math.Exp(sum)
			}
		}
	}
	if t.ratios == nil {
		t.ratios = map[string][]float64{}
	}
	t.ratios[level] = x
	return x
}

// boundForm is a form whose parameters are solved for.
type boundForm struct {
	lossForm
	weights  string  // level of the engine's weights, "" where there are none
	kind     int     // aggregation
	terms    []int   // 0 for the KL, 1 for the entropy, 2 for the value loss
	estimate int     // of the KL
	mask     int     // of the value loss
	beside   float64 // size of the terms
	uses     []int   // parameters
	at       [params]float64
	idle     [params]bool // hold no token
	coef     [3]float64
	scale    float64 // of a sum of rows; 1 of a mean
	left     float64
	size     float64 // of the losses of the tokens
}

// has reports whether a form has a parameter.
func (f *boundForm) has(k int) bool { return slices.Contains(f.uses, k) }

// bounds returns the bounds of a form.
func (f *boundForm) bounds() (low, high, dual, limit float64) {
	low, high, dual, limit = math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	if f.has(paramBoth) {
		low, high = f.at[paramBoth], f.at[paramBoth]
	}
	if f.has(paramLow) {
		low = f.at[paramLow]
	}
	if f.has(paramHigh) {
		high = f.at[paramHigh]
	}
	if f.has(paramDual) {
		dual = f.at[paramDual]
	}
	if f.has(paramCap) {
		limit = f.at[paramCap]
	}
	return low, high, dual, limit
}

// policy returns the policy losses of the tokens, and how they change with each parameter.
func (t *boundTokens) policy(f *boundForm) (loss []float64, by [params][]float64) {
	ratio, n := t.ratio(f.level), len(t.lp)
	loss = make([]float64, n)
	for _, k := range f.uses {
		by[k] = make([]float64, n)
	}
	low, high, dual, limit := f.bounds()
	var engine []float64
	if k := slices.Index([]string{"token", "seq_sum", "seq_geo"}, f.weights); k >= 0 {
		engine = t.engine[k]
	}
	for i, a := range t.adv {
		x, held, slope := -a*ratio[i], -1, 0.0
		switch {
		case a > 0 && ratio[i] > 1+high:
			x, held, slope = -a*(1+high), paramHigh, -a
		case a < 0 && ratio[i] < 1-low:
			x, held, slope = -a*(1-low), paramLow, a
		case a < 0 && ratio[i] > dual:
			x, held, slope = -a*dual, paramDual, -a
		}
		w := 1.0
		if engine != nil {
			if w = engine[i]; w > limit {
				w = limit
				by[paramCap][i] = x
			}
		}
		if loss[i] = w * x; held < 0 {
			continue
		}
		if held != paramDual && f.has(paramBoth) {
			held = paramBoth
		}
		by[held][i] = w * slope
	}
	return loss, by
}

// losses returns the value losses of the cells, ½ of the larger square, and how they change with the clip.
func (t *boundValues) losses(clip float64) (loss, by []float64) {
	loss, by = make([]float64, len(t.value)), make([]float64, len(t.value))
	for i, v := range t.value {
		held := min(max(v, t.rollout[i]-clip), t.rollout[i]+clip)
		d, e := v-t.target[i], held-t.target[i]
		if loss[i] = d * d / 2; e*e > d*d {
			loss[i] = e * e / 2
			if by[i] = e; v < held {
				by[i] = -e
			}
		}
	}
	return loss, by
}

// kl returns the estimates of a KL of the tokens.
func (t *boundTokens) kl(k int) []float64 {
	x := make([]float64, len(t.lp))
	for i := range x {
		if x[i] = klForms[k%len(klForms)].of(t.lp[i] - t.ref[i]); k >= len(klForms) {
			x[i] *= math.Exp(t.lp[i] - t.old[i])
		}
	}
	return x
}

// column is what a term is in every file.
type column struct {
	x     []float64
	term  int // of coefficients; −1 of a parameter, −2 of the scale
	param int
}

// columns returns the terms of a form and what its parameters change, nil where one is not known, and the losses less what has no coefficient.
func (t *boundTokens) columns(f *boundForm, terms map[[2]int][]float64) (list []column, y []float64) {
	loss, by := t.policy(f)
	policy := t.of(loss, f.kind)
	y = make([]float64, len(t.files))
	free := f.kind >= ofSums
	for i := range y {
		if y[i] = t.files[i].loss; !free {
			y[i] -= policy[i]
		}
	}
	if free {
		list = append(list, column{policy, -2, 0})
	}
	for i := range loss {
		loss[i] = math.Abs(loss[i])
	}
	f.size = slices.Max(t.of(loss, f.kind))
	var clipped []float64
	f.beside = 0
	for _, term := range f.terms {
		key := [2]int{term, f.kind}
		if term == 0 {
			key[0] = 10 + f.estimate
		}
		x := terms[key]
		if x == nil {
			switch term {
			case 0:
				x = t.of(t.kl(f.estimate), f.kind)
			case 1:
				x = t.of(t.entropy, f.kind)
			case 2:
				v, slope := t.values[f.mask].losses(f.clip())
				x, clipped = t.values[f.mask].of(v, f.kind), t.values[f.mask].of(slope, f.kind)
			}
			if term != 2 {
				terms[key] = x
			}
		}
		list = append(list, column{x, term, 0})
		f.beside += math.Abs(f.coef[term]) * maxAbs(x)
	}
	for _, k := range f.uses {
		x, times := clipped, f.coef[2]
		if k != paramClip {
			x, times = t.of(by[k], f.kind), f.scale
		}
		f.idle[k] = true
		for i := range x {
			x[i] *= times
			f.idle[k] = f.idle[k] && math.Abs(x[i]) <= 1e-4*f.sizeOf()
		}
		if !f.idle[k] {
			list = append(list, column{x, -1, k})
		}
	}
	return list, y
}

// clip is that of the values.
func (f *boundForm) clip() float64 {
	if f.has(paramClip) {
		return f.at[paramClip]
	}
	return math.Inf(1)
}

// squares solves y = Σ c·x by least squares; nil where it is not determined.
func squares(list []column, y []float64) []float64 {
	n := len(list)
	if n == 0 {
		return []float64{}
	}
	m := n + 1
	norm := make([]float64, n)
	for j, c := range list {
		for _, v := range c.x {
			norm[j] += v * v
		}
		if norm[j] = math.Sqrt(norm[j]); norm[j] == 0 || math.IsNaN(norm[j]) {
			return nil
		}
	}
	a := make([]float64, n*m)
	for i := range y {
		for j := range n {
			for k := range n {
				a[j*m+k] += float64(list[j].x[i] / norm[j] * list[k].x[i] / norm[k])
			}
			a[j*m+n] += float64(list[j].x[i] / norm[j] * y[i])
		}
	}
	x := eliminate(a, n)
	for j := range x {
		x[j] /= norm[j]
	}
	return x
}

// residual is the largest of what a solution leaves.
func residual(list []column, y, x []float64) (left float64) {
	for i := range y {
		r := y[i]
		for j, c := range list {
			r -= x[j] * c.x[i]
		}
		left = max(left, math.Abs(r))
	}
	return left
}

// solve makes Gauss–Newton steps until the parameters of a form stay, and reports whether the numbers that they and the coefficients then are near to leave
// nothing of the losses but rounding.
func (t *boundTokens) solve(f *boundForm, terms map[[2]int][]float64) bool {
	const steps, near = 14, 2e-6
	const early, far = 4, 1e-3 // a form that is right leaves no more by then
	f.scale, f.coef = 1, [3]float64{1, 1, 1}
	stays := false
	for step := range steps {
		list, y := t.columns(f, terms)
		if len(y) < len(list)+1 {
			return false
		}
		x := squares(list, y)
		if x == nil || step == early && residual(list, y, x) > far*f.sizeOf() {
			return false
		}
		stays = true
		for j, c := range list {
			switch {
			case c.term == -2:
				stays = stays && math.Abs(x[j]-f.scale) <= 1e-9*math.Abs(x[j])
				f.scale = x[j]
			case c.term >= 0:
				stays = stays && math.Abs(x[j]-f.coef[c.term]) <= 1e-9*math.Abs(x[j])
				f.coef[c.term] = x[j]
			default:
				old := f.at[c.param]
				to := min(max(old+x[j], old/3), 3*old)
				if c.param == paramDual {
					to = max(to, 1+(old-1)/3)
				}
				if c.param == paramLow || c.param == paramBoth {
					to = min(to, 0.99)
				}
				stays = stays && math.Abs(to-old) <= 1e-9*old
				f.at[c.param] = to
			}
		}
		if !(f.scale > 0) {
			return false
		}
		if stays {
			break
		}
	}
	list, y := t.columns(f, terms)
	limit := near * f.sizeOf()
	if x := squares(list, y); x == nil || residual(list, y, x) > 64*limit {
		return false
	}
	return t.settle(f, terms, limit)
}

// sizeOf is that of the losses.
func (f *boundForm) sizeOf() float64 { return f.scale*f.size + f.beside }
