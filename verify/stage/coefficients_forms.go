package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// A loss of which neither the losses of tokens nor its terms were dumped is a number of a file, one of many forms: which ratios, which bounds, which
// estimate of the KL, which aggregation, which coefficients. One file has too little to tell them apart; all files of a run together have a number
// each, and coefficients that people write with few digits.

// lossForm is a form of the policy loss of a token and of the KL beside it.
type lossForm struct {
	level     string  // of the ratio; "" where all are 1
	low, high float64 // bounds, NaN where no ratio is beyond any
	kl        string  // estimate, "" where the files have no reference
	corrected bool    // it is times the ratio of its token
	engine    bool    // the ratios are to the engine's log-probs
}

// levelsOfRatios are those whose losses are tried.
var levelsOfRatios = []string{"token", "seq_mean", "seq_sum"}

// logLevel stands for a loss that has log-probs in the place of ratios (loss.kind reinforce).
const logLevel = "log"

// detachedLevel stands for ratios to a detached copy of the log-probs, which are 1, where those of the engine may stand in their place.
const detachedLevel = "detached"

// anyKL stands for an estimate of a KL that the losses do not tell from others.
const anyKL = "any"

// usualBounds are the bounds that are tried, the commonest first, each on either side; Inf stands for none.
var usualBounds = []float64{0.2, math.Inf(1), 0.1, 0.3, 0.28, 0.25, 0.15, 0.05, 0.4, 0.5, 0.27, 0.24, 0.35, 0.02, 0.01, 3e-4, 4e-4}

// widestBound is the largest of them that is one.
const widestBound = 0.5

// klForms are the estimates of a KL in a loss, d = lp − ref.
var klForms = []struct {
	kind string
	of   func(d float64) float64
}{
	{"k3", func(d float64) float64 { return math.Expm1(-d) + d }},
	{"k1", func(d float64) float64 { return d }},
	{"k2", func(d float64) float64 { return d * d / 2 }},
	{"abs", math.Abs},
}

// formFile is a file of a run with what the forms make of its tokens.
type formFile struct {
	loss, value float64
	step        int
	steps       float64                      // that are accumulated
	world       float64                      // ranks
	surrogates  [][2][][aggregations]float64 // by level, of what is better and worse than its baseline, by bound
	size        [][2][aggregations]float64   // by level, of the magnitudes, and of those where the usual bounds hold the ratios of A > 0
	kl          [][aggregations]float64
	entropy     [aggregations]float64
	bent        bentFile
}

// lossForms collects them; see [Losses].
type lossForms struct {
	files   []formFile
	whole   wholes // of what is the same in all forms
	no      bool
	ratios  bool // there are log-probs of the rollout
	engine  bool // they are those of the engine alone
	coarse  bool // log-probs have so few digits that forms with them tell nothing
	entropy bool
	kl      bool
	acts    [2][]bool // by side and bound: it is another loss than without bounds somewhere
	solver  boundTokens
	policy  bool    // the files have their policy losses
	known   [2]bool // or the weights between engine and trainer, or the KL of their tokens
	rowSum  float64 // largest sum of a row's log-probs, of policy and rollout, without their sign

	tried   bool
	beneath bool // a bug, of whatever kind, is in the form, which the options are beneath
	fit     *wholeFit
	form    lossForm
	beside  []assign // options of the form besides
}

// add takes the files of a batch.
func (l *lossForms) add(b *dump.Batch, first bool) {
	loss, lp, ref, h := b.PerFile("loss"), b.Token("logp_new"), b.Token("logp_ref"), b.Token("entropy")
	old, engine := rolloutLogp(b)
	c := NewCase(b, &convention.Set{}, 0)
	adv := c.advantagesOfLoss()
	known := [2]bool{b.Tensors["is_weights"] != nil, b.Token("kl") != nil}
	if first {
		l.policy, l.known = b.PerFile("pg_loss") != nil, known
		l.ratios, l.engine, l.kl, l.entropy, l.whole.value = old != nil, engine, ref != nil || known[1], h != nil, b.PerFile("value_loss") != nil
		l.acts = [2][]bool{make([]bool, len(usualBounds)), make([]bool, len(usualBounds))}
	}
	l.no = l.no || loss == nil || lp == nil || adv == nil || b.Token("token_loss") != nil || l.policy != (b.PerFile("pg_loss") != nil) || l.known != known || len(b.Missing) > 0 ||
		l.ratios != (old != nil) || l.engine != engine || l.kl != (ref != nil || known[1]) || l.entropy != (h != nil) || l.whole.value != (b.PerFile("value_loss") != nil)
	if l.no {
		return
	}
	for i, x := range [][]float64{lp, old, ref, h} { // advantages of scores without a division have few digits
		if i == 0 && old == nil && ref == nil && Grid(lp) > 1e-5 { // every ratio is 1, and log-probs are in no other form
			l.coarse, l.whole.unit = true, max(l.whole.unit, tol.U32)
			continue
		}
		if x == nil {
			continue
		}
		if l.whole.unit = max(l.whole.unit, Grid(x), tol.U32); l.whole.unit > 1e-5 { // so coarse that many forms fit
			l.no = true
			return
		}
	}
	if l.policy { // what stands beside it is another matter
		l.solver.add(c, LossInputs{Batch: b}, b.PerFile("pg_loss"), adv, l.whole.unit, false)
		return
	}
	w := &l.whole
	if n := len(w.steps); n > 0 && b.Meta.Step != w.steps[n-1]+1 {
		w.gap = true
	}
	w.steps = append(w.steps, b.Meta.Step)
	var tokens float64
	for _, n := range c.tokensOfRows() {
		tokens += n
	}
	w.tokens, w.moved = append(w.tokens, tokens), append(w.moved, distanceOfPolicy(b))
	value := b.PerFile("value_loss")
	at := len(l.files)
	for f := range b.Files {
		file := formFile{loss: loss[f], value: math.NaN(), step: len(w.steps) - 1, steps: c.accumulation(), world: c.worldSize()}
		if value != nil {
			file.value = value[f]
		}
		l.files = append(l.files, file)
	}
	files := l.files[at:]
	x := make([]float64, len(lp))
	for _, level := range l.levels() {
		switch level {
		case "", detachedLevel:
			l.surrogates(c, files, ratiosOf(b, lp, lp, level), adv, false)
		case logLevel:
			l.surrogates(c, files, lp, adv, false)
		case "seq_sum":
			for r := range b.Rows {
				sum := 0.0
				for i := range b.TokensOf(r) {
					sum += math.Abs(lp[i]) + math.Abs(old[i])
				}
				l.rowSum = max(l.rowSum, sum)
			}
			of, ratio := c.withEmptyRows(ratiosOf(b, lp, old, level))
			l.surrogates(of, files, ratio, adv, true)
		default:
			l.surrogates(c, files, ratiosOf(b, lp, old, level), adv, true)
		}
	}
	for _, k := range l.kls() {
		for i := range x {
			if l.known[1] {
				x[i] = b.Token("kl")[i]
			} else {
				x[i] = klForms[k%len(klForms)].of(lp[i] - ref[i])
			}
			if k >= len(klForms) {
				x[i] *= math.Exp(lp[i] - old[i])
			}
		}
		for f, of := range c.aggregated(x) {
			files[f].kl = append(files[f].kl, of)
		}
	}
	l.bend(c, files, adv)
	l.solver.add(c, LossInputs{Batch: b}, loss, adv, w.unit, true)
	if h != nil {
		for f, of := range c.aggregated(h) {
			files[f].entropy = of
		}
	}
}

// withEmptyRows returns a case in which rows without a token have one, of the ratio 1: a surrogate of the whole row, of its summed log-probs, is −A of those (TRL
// 1.16, RLOOTrainer._compute_loss, of truncated completions that are masked).
func (c *Case) withEmptyRows(ratio []float64) (*Case, []float64) {
	b := c.B
	mask := slices.Clone(b.Mask)
	for r, n := range c.tokensOfRows() {
		if n == 0 && b.Cols > 0 {
			mask[r*b.Cols], ratio[r*b.Cols] = true, 1
		}
	}
	return NewCase(b.WithMask(mask), c.Set, 0), ratio
}

// rolloutLogp returns the log-probs that ratios are taken to: those of the rollout as the trainer has them, or where these were not dumped those of
// the engine (ratio.old engine).
func rolloutLogp(b *dump.Batch) (old []float64, engine bool) {
	if old = b.Token("logp_old"); old != nil {
		return old, false
	}
	old = b.Token("logp_gen")
	return old, old != nil
}

// weighted returns advantages times the weights between engine and trainer that were dumped: a loss of tokens, which these multiply, is linear in both.
func (c *Case) weighted(adv []float64) []float64 {
	w := c.B.Token("is_weights")
	if row := c.B.Row("is_weights"); w == nil && len(row) == c.B.Rows {
		w = c.spread(row)
	}
	if w == nil {
		return adv
	}
	adv = slices.Clone(adv)
	for i := range adv {
		adv[i] *= w[i]
	}
	return adv
}

// kls are the estimates of the KL, by their index among klForms: each, and each times the ratio of its token where there is one; that which was dumped.
func (l *lossForms) kls() (list []int) {
	for k := range 2 * len(klForms) {
		if l.kl && (k < len(klForms) || l.ratios && !l.engine) && !(l.known[1] && k%len(klForms) > 0) {
			list = append(list, k)
		}
	}
	return list
}

// levels are those that make a difference.
func (l *lossForms) levels() []string {
	switch {
	case l.coarse:
		return []string{""}
	case !l.ratios:
		return []string{"", logLevel}
	}
	levels := append(slices.Clone(levelsOfRatios), logLevel)
	if l.engine {
		levels = append(levels, detachedLevel)
	}
	return levels
}

// surrogates adds what files have of −min(ρA, clip(ρ)A) of one level, of the tokens of a positive and of a negative advantage for every bound,
// or of −ρA where nothing is bounded.
func (l *lossForms) surrogates(c *Case, files []formFile, ratio, adv []float64, bounded bool) {
	of := make([][2][][aggregations]float64, len(files))
	x, plain := make([]float64, len(ratio)), make([]float64, len(ratio))
	for f := range files {
		files[f].size = append(files[f].size, [2][aggregations]float64{})
	}
	for k, most := range []float64{math.Inf(1), 1 + widestBound} {
		for i := range x {
			if x[i] = math.Abs(adv[i] * ratio[i]); bounded && adv[i] > 0 {
				x[i] = min(x[i], adv[i]*most)
			}
		}
		for f, size := range c.aggregated(x) {
			files[f].size[len(files[f].size)-1][k] = size
		}
	}
	for side := range 2 {
		for i, a := range adv {
			if plain[i] = 0; (a > 0) == (side == 0) && a != 0 {
				plain[i] = -a * ratio[i]
			}
		}
		unbound := c.aggregated(plain)
		for k, bound := range usualBounds {
			acts := false
			for i, a := range adv {
				x[i] = plain[i]
				switch {
				case plain[i] == 0 || !c.B.Mask[i] || !bounded:
				case side == 0 && ratio[i] > 1+bound:
					x[i], acts = -a*(1+bound), true
				case side == 1 && ratio[i] < 1-bound:
					x[i], acts = -a*(1-bound), true
				}
			}
			list := unbound
			if acts {
				l.acts[side][k] = true
				list = c.aggregated(x)
			}
			for f := range files {
				of[f][side] = append(of[f][side], list[f])
			}
		}
	}
	for f := range files {
		files[f].surrogates = append(files[f].surrogates, of[f])
	}
}

// bounds returns the indices of the bounds of a side that differ from each other, the others once.
func (l *lossForms) bounds(side int) (list []int) {
	idle := false
	for k := range usualBounds {
		if l.acts[side][k] || !idle {
			list = append(list, k)
		}
		idle = idle || !l.acts[side][k]
	}
	return list
}

// candidate is a form with what it makes of the tokens of a file.
type candidate struct {
	form      lossForm
	level     int // index
	held      int // 1 where ratios of A > 0 have a bound
	surrogate func(f *formFile) [aggregations]float64
	kl        func(f *formFile) [aggregations]float64
}

// candidates returns the forms that configurations have.
func (l *lossForms) candidates() (list []candidate) {
	type pair struct{ high, low int }
	var pairs []pair
	const lows = 4 // that are tried beside each upper bound
	for _, h := range l.bounds(0) {
		for i, k := range l.bounds(1) {
			if i < lows || k == h {
				pairs = append(pairs, pair{h, k})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return a.high + a.low - b.high - b.low })
	for level, name := range l.levels() {
		for i, p := range pairs {
			if (name == logLevel || name == detachedLevel) && i > 0 {
				break
			}
			kls := l.kls()
			for at := range max(1, len(kls)) {
				form := lossForm{level: name, high: l.boundOf(name, 0, p.high), low: l.boundOf(name, 1, p.low), engine: l.engine && slices.Contains(levelsOfRatios, name)}
				if at < len(kls) {
					if form.kl, form.corrected = klForms[kls[at]%len(klForms)].kind, kls[at] >= len(klForms); l.known[1] {
						form.kl = anyKL
					}
				}
				held := 1
				if math.IsInf(form.high, 1) {
					held = 0
				}
				list = append(list, candidate{
					form:      form,
					level:     level,
					held:      held,
					surrogate: func(f *formFile) [aggregations]float64 { return f.surrogate(level, p.high, p.low) },
					kl:        func(f *formFile) [aggregations]float64 { return f.kl[at] },
				})
			}
		}
	}
	return list
}

// surrogate returns the policy loss of a file with bounds.
func (f *formFile) surrogate(level, high, low int) (sum [aggregations]float64) {
	for k := range sum {
		sum[k] = f.surrogates[level][0][high][k] + f.surrogates[level][1][low][k]
	}
	return sum
}

// best returns the form that explains the losses of all files best, with few digits, and its coefficients: one that a configuration has, else one with
// a bug in it; nil where none does.
func (l *lossForms) best() (*wholeFit, lossForm) {
	if l.no || l.tried || len(l.files) < 3 && !l.policy {
		return l.fit, l.form
	}
	l.tried = true
	if l.policy {
		if fit, form := l.solver.solved(); fit != nil {
			l.fit, l.form, l.beside = fit, form.lossForm, form.options()
		}
		return l.fit, l.form
	}
	list := l.candidates()
	if l.among(list, (*wholes).fit); l.fit == nil {
		if fit, form := l.solver.solved(); fit != nil {
			l.fit, l.form, l.beside = fit, form.lossForm, form.options()
			return l.fit, l.form
		}
		if l.among(list, (*wholes).misfit); l.fit == nil {
			l.among(l.bent(), (*wholes).fit)
			l.beneath = l.fit != nil
		}
		return l.fit, l.form
	}
	if l.fit.left > 64*tol.U32 { // a bound of no table may hold a few tokens
		if fit, form := l.solver.solved(); fit != nil && form.slip == 0 && fit.left < l.fit.left/8 {
			l.fit, l.form, l.beside = fit, form.lossForm, form.options()
			return l.fit, l.form
		}
	}
	l.undecide(list)
	return l.fit, l.form
}

// undecide takes out of the form what another form in its place, all else equal, explains as well: ratios that have hardly moved are those of any level,
// and small log-ratios have one square by every estimate.
func (l *lossForms) undecide(list []candidate) {
	form, limit := l.form, max(16*l.fit.left, 64*tol.U32)
	same := func(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) }
	for _, c := range list {
		level, kl, corrected := c.form.level != form.level, c.form.kl != form.kl, c.form.corrected != form.corrected
		low, high := !same(c.form.low, form.low), !same(c.form.high, form.high)
		if form.kl == "" {
			kl, corrected = false, false
		}
		differ := 0 // engine goes with the level
		for _, d := range []bool{level, kl, corrected, low, high} {
			if d {
				differ++
			}
		}
		if differ != 1 {
			continue
		}
		if f := l.of(c).fit(); f == nil || f.left > limit || len(f.coefficients) != len(l.fit.coefficients) {
			continue
		}
		switch {
		case level:
			l.form.level, l.form.engine = "", l.form.engine && c.form.engine
		case kl:
			l.form.kl = anyKL
		case corrected:
			l.form.corrected = false
		case low:
			l.form.low = math.NaN()
		case high:
			l.form.high = math.NaN()
		}
	}
}

// among keeps the best of some forms.
func (l *lossForms) among(list []candidate, fit func(*wholes) *wholeFit) {
	for _, c := range list {
		f := fit(l.of(c))
		if f == nil || f.left > 1e-5 || !f.written() {
			continue
		}
		if l.fit != nil && (len(f.coefficients) > len(l.fit.coefficients) || f.left >= l.fit.left/8 && (f.left > 8*l.fit.left || f.digits() >= l.fit.digits())) {
			continue
		}
		l.fit, l.form = f, c.form
		if !(f.coefficients["kl.beta"] > 0) {
			l.form.kl = ""
		}
		if f.left <= 4*tol.U32 { // of those that fit as well the first is the commonest
			return
		}
	}
}

// boundOf returns a bound, NaN where it makes no difference.
func (l *lossForms) boundOf(level string, side, k int) float64 {
	if level == logLevel || level == detachedLevel || !l.acts[side][k] {
		return math.NaN()
	}
	return usualBounds[k]
}

// of returns the files with the terms of a form.
func (l *lossForms) of(c candidate) *wholes {
	w := l.whole
	if c.form.level == "seq_sum" { // e to a difference of two sums, 8 units being what a loss may be off by
		w.unit *= 1 + l.rowSum/8
	}
	w.has = [3]bool{true, l.kl, l.entropy}
	w.files = make([]wholeFile, len(l.files))
	for i := range l.files {
		f := &l.files[i]
		of := wholeFile{loss: f.loss, step: f.step, steps: f.steps, world: f.world, size: f.size[c.level][c.held], value: f.value, high: math.NaN()}
		if of.terms[0] = c.surrogate(f); l.kl {
			of.terms[1] = c.kl(f)
		}
		of.terms[2] = f.entropy
		w.files[i] = of
	}
	return &w
}

// written reports whether the coefficients have few digits: a number of many is what a wrong form needs to come near.
func (f *wholeFit) written() bool { return f.digits() <= 4*len(f.coefficients) }
