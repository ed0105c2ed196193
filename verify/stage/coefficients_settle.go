package stage

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// settle replaces what was solved for by numbers that people write, and reports whether these leave no more of the losses than limit. A number of three
// digits that a wrong form needs leaves more.
func (t *boundTokens) settle(f *boundForm, terms map[[2]int][]float64, limit float64) bool {
	for _, near := range []float64{1e-2, 1e-3} {
		g := *f
		short := func(x float64) float64 {
			for digits := range 3 {
				unit := math.Pow(10, math.Floor(math.Log10(x))-float64(digits))
				if to := math.Round(x/unit) * unit; math.Abs(to-x) <= near*x {
					return written(to, 1e-9)
				}
			}
			return math.NaN()
		}
		for _, k := range g.uses {
			if !g.idle[k] {
				g.at[k] = short(g.at[k])
			}
		}
		if g.free() {
			g.scale = 1 / math.Round(1/g.scale)
			if t.padded(&g) {
				return false
			}
		}
		for _, k := range g.terms {
			if !(g.coef[k] > 0) {
				return false
			}
			g.coef[k] = short(f.coefficient(k)) * g.beneath(k)
		}
		list, y := t.columns(&g, terms)
		x := make([]float64, len(list))
		shows := true
		for j, c := range list {
			switch {
			case c.term == -2:
				x[j] = g.scale
			case c.term >= 0:
				x[j] = g.coef[c.term]
				shows = shows && x[j]*maxAbs(c.x) > 64*limit
			}
		}
		left := residual(list, y, x)
		if math.IsInf(g.scale, 0) || !shows || !(left <= limit) {
			continue
		}
		g.left = left / g.sizeOf()
		*f = g
		return true
	}
	return false
}

// beneath is the scale that a term has with the policy loss.
func (f *boundForm) beneath(term int) float64 {
	if f.free() && term < 2 {
		return f.scale
	}
	return 1
}

// coefficient is that of a term before the sums are divided.
func (f *boundForm) coefficient(term int) float64 { return f.coef[term] / f.beneath(term) }

// padded reports whether the constant of a form is the width of all files, or their cells: a mean over padding has it, too.
func (t *boundTokens) padded(f *boundForm) bool {
	return !slices.ContainsFunc(t.files, func(of boundFile) bool {
		n := of.cols
		if f.kind == ofPlain {
			n *= of.height
		}
		return math.Round(1/f.scale) != n
	})
}

func maxAbs(x []float64) (largest float64) {
	for _, v := range x {
		largest = max(largest, math.Abs(v))
	}
	return largest
}

// unknowns is the number of what was solved for.
func (f *boundForm) unknowns() int {
	n := len(f.terms)
	if f.free() {
		n++
	}
	for _, k := range f.uses {
		if !f.idle[k] {
			n++
		}
	}
	return n
}

// engineLevels are the levels of [boundTokens.engine] (tis.level).
var engineLevels = []string{"token", "seq_sum", "seq_geo"}

// boundSets are the parameters that forms of a kind of loss have, the fewest first, without those of values and weights.
var boundSets = []struct {
	kind string
	uses [][]int
}{
	{"", [][]int{{}, {paramBoth}, {paramHigh}, {paramLow}, {paramLow, paramHigh}, {paramBoth, paramDual}, {paramHigh, paramDual}, {paramLow, paramHigh, paramDual}}},
	{logKind, [][]int{{}}},
	{"cispo", [][]int{{}, {paramHigh}, {paramBoth}, {paramLow, paramHigh}}},
	{"sapo", [][]int{{paramTauPos, paramTauNeg}}},
	{geometric, [][]int{{paramBoth}, {paramLow, paramHigh}}},
}

// boundStage are forms of one kind of loss with the same parameters.
type boundStage struct {
	kind    string
	uses    []int
	weights []string // levels between engine and trainer, "" for none
	slip    int      // of boundSlips, from 1 on
}

// boundStages are the forms in the order in which they are tried, those of few parameters first. Weights between engine and trainer that nothing bounds rank
// behind one parameter more: their many forms come after the bounds of a plain loss.
func boundStages(engine bool) (stages []boundStage) {
	for _, s := range boundSets {
		for _, uses := range s.uses {
			stages = append(stages, boundStage{kind: s.kind, uses: uses, weights: []string{""}})
			if engine && s.kind != geometric {
				capped := append(slices.Clone(uses), paramCap)
				stages = append(stages, boundStage{kind: s.kind, uses: uses, weights: engineLevels}, boundStage{kind: s.kind, uses: capped, weights: engineLevels},
					boundStage{kind: s.kind, uses: append(slices.Clone(capped), paramFloor), weights: engineLevels})
			}
		}
	}
	rank := func(s boundStage) int {
		switch {
		case s.weights[0] == "":
			return 2 * len(s.uses)
		case slices.Contains(s.uses, paramCap):
			return 2*len(s.uses) + 1
		}
		return 2*len(s.uses) + 3
	}
	slices.SortStableFunc(stages, func(a, b boundStage) int { return cmp.Compare(rank(a), rank(b)) })
	return stages
}

// mostTokenSteps bounds the work of a search, in tokens.
const mostTokenSteps = 200e6

// search returns the forms that explain the losses of all files with the fewest unknowns, the likeliest first: those of aggregations over the files and
// steps, then those over the steps of a generation batch, slips, and stray reductions.
func (t *boundTokens) search() []boundForm {
	if !t.solvable() {
		return nil
	}
	stages := boundStages(t.hasEngine)
	var work float64
	if found := t.among(stages, t.kinds(), mostTokenSteps, &work); len(found) > 0 {
		return found
	}
	if found := t.among(stages, t.generations(), mostTokenSteps/2, &work); len(found) > 0 {
		return found
	}
	if t.hasOld {
		if found := t.among(slipStages(), t.kinds(), mostTokenSteps/2, &work); len(found) > 0 {
			return found
		}
	}
	return t.among(stages, t.strays(), mostTokenSteps/2, &work)
}

// solvable reports whether there are files enough, and not too many tokens.
func (t *boundTokens) solvable() bool { return !t.over && len(t.files) >= 4 && len(t.lp) <= mostBound }

// among is search of some aggregations and stages with so much work at most, which it adds to what was done.
func (t *boundTokens) among(stages []boundStage, kinds []int, most float64, done *float64) []boundForm {
	terms := map[[2]int][]float64{}
	likely := map[boundFamily][]boundForm{}
	spent := 0.0
	defer func() { *done += spent }()
	spend := func() bool {
		spent += 6 * float64(len(t.lp))
		return spent <= most
	}
	for _, s := range stages {
		var found []boundForm
		family := s.family()
		if _, ok := likely[family]; !ok {
			likely[family] = t.likely(&s, kinds, terms, &spent)
		}
		for _, base := range likely[family] {
			if base.level == detachedLevel && slices.ContainsFunc(s.uses, func(k int) bool { return k != paramCap && k != paramFloor }) {
				continue // its ratios are 1
			}
			base.uses = append(slices.Clone(s.uses), base.uses...)
			for k := range boundStarts[0] {
				if !spend() {
					return found
				}
				f := base
				for _, p := range f.uses {
					f.at[p] = t.start(&f, p, k)
				}
				if t.solve(&f, terms) {
					found = append(found, f)
					break
				}
			}
		}
		if len(found) > 0 {
			slices.SortStableFunc(found, func(a, b boundForm) int { return cmp.Compare(a.unknowns(), b.unknowns()) })
			return found
		}
	}
	return nil
}

// levels are those of the ratios that a stage has: of log-probs of a rollout, or 1 where there are none. Weights between engine and trainer multiply ratios
// to a detached copy where the ratios would be to the engine.
func (t *boundTokens) levels(s *boundStage, weights string) []string {
	switch {
	case s.kind == logKind:
		return levelsOfRatios[:1]
	case t.hasOld && !(t.toEngine && weights != ""):
		return levelsOfRatios
	case s.kind != "":
		return nil
	}
	return []string{detachedLevel}
}

// start returns the k-th value from which a parameter is solved. A bound of weights that holds none of them, or a dual clip of ratios, has no slope to
// follow, so that one which holds a part of them takes its place.
func (t *boundTokens) start(f *boundForm, p, k int) float64 {
	at := boundStarts[p][k]
	var x []float64
	switch level := slices.Index(engineLevels, f.weights); {
	case (p == paramCap || p == paramFloor) && level >= 0:
		x = slices.Clone(t.engine[level])
	case p == paramDual:
		for i, r := range t.ratio(f.level) {
			if t.adv[i] < 0 && r > 1 {
				x = append(x, r)
			}
		}
	}
	if len(x) == 0 {
		return at
	}
	slices.Sort(x)
	share := []float64{0.8, 0.6, 0.95}[k]
	if p == paramFloor {
		share = 1 - share
		if at <= x[0] {
			return x[int(share*float64(len(x)))]
		}
	} else if at >= x[len(x)-1] {
		return x[int(share*float64(len(x)))]
	}
	return at
}

// estimates yields those of the KL: each, and each times the ratio of its token; that which was dumped.
func (t *boundTokens) estimates() iter.Seq[int] {
	return func(yield func(int) bool) {
		for k := range 2 * len(klForms) {
			if k >= len(klForms) && (!t.hasOld || t.toEngine) {
				return // an estimate is never taken to the engine
			}
			if (t.hasRef || t.given != nil) && (t.given == nil || k%len(klForms) == 0) && !yield(k) {
				return
			}
		}
	}
}

// kinds are the aggregations over the files and steps that the files can tell apart.
func (t *boundTokens) kinds() (kinds []int) {
	for k := range aggregations + 1 {
		if !slices.ContainsFunc(kinds, func(o int) bool {
			sameWay := (o >= ofRows && o < ofSums) == (k >= ofRows && k < ofSums) && (o >= ofSums) == (k >= ofSums)
			return sameWay && !slices.ContainsFunc(t.files, func(f boundFile) bool { return f.factor[o] != f.factor[k] })
		}) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// bases are the forms that have the terms and some aggregations.
func (t *boundTokens) bases(kinds []int) (list []boundForm) {
	for _, kind := range kinds {
		plain := boundForm{kind: kind}
		if !t.besideKL {
			list = append(list, plain)
		}
		var entropies [][]int
		entropies = append(entropies, nil)
		if t.hasEntropy {
			entropies = append(entropies, []int{1})
		}
		for _, e := range entropies {
			f := plain
			if f.terms = e; e != nil && !t.besideKL {
				list = append(list, f)
			}
			for k := range t.estimates() {
				f := plain
				f.terms, f.estimate = append([]int{0}, e...), k
				if f.kl, f.corrected = klForms[k%len(klForms)].kind, k >= len(klForms); t.given != nil {
					f.kl = anyKL
				}
				list = append(list, f)
			}
			if t.hasValue && !t.besideKL {
				for k := range valueMasks {
					f := plain
					f.terms, f.mask = append(slices.Clone(e), 2), k
					list = append(list, f)
					f.uses = []int{paramClip}
					list = append(list, f)
				}
			}
		}
	}
	return list
}

// solved returns what the forms say together.
func (t *boundTokens) solved() (*wholeFit, *boundForm) { return t.together(t.search()) }

// together returns what forms say: the first, less what another of them that leaves as little says otherwise.
func (t *boundTokens) together(found []boundForm) (*wholeFit, *boundForm) {
	if len(found) == 0 {
		return nil, nil
	}
	f := found[0]
	switch f.kindOf {
	case geometric: // its ratios are of tokens and of rows
		f.level = ""
	case logKind:
		f.level, f.kindOf = logLevel, ""
	}
	low, high, dual, limit := f.bounds()
	idle := func(k int, x float64) float64 {
		if both := k == paramLow || k == paramHigh; f.idle[k] || math.IsInf(x, 0) || both && f.has(paramBoth) && f.idle[paramBoth] {
			return math.NaN()
		}
		return x
	}
	f.low, f.high = idle(paramLow, low), idle(paramHigh, high)
	if (f.kindOf == "" && f.level != logLevel || f.kindOf == "cispo") && !f.has(paramBoth) {
		low, high := t.unbound(&f)
		if !f.has(paramLow) {
			f.low = low
		}
		if !f.has(paramHigh) {
			f.high = high
		}
	}
	f.at[paramDual], f.at[paramCap], f.at[paramClip] = idle(paramDual, dual), idle(paramCap, limit), idle(paramClip, f.clip())
	for _, k := range []int{paramTauPos, paramTauNeg, paramFloor} {
		if f.at[k] = idle(k, f.at[k]); !f.has(k) {
			f.at[k] = math.NaN()
		}
	}
	for _, g := range found[1:] {
		if g.unknowns() > f.unknowns() || g.left > max(16*f.left, 64*tol.U32) {
			continue
		}
		if g.level != f.level {
			f.level, f.engine = "", f.engine && g.engine
		}
		if g.kl != f.kl {
			f.kl = anyKL
		}
		if g.corrected != f.corrected {
			f.corrected = false
		}
		if g.mask != f.mask {
			f.mask = -1
		}
		if g.weights != f.weights {
			f.weights = anyKL
		}
	}
	fit := &wholeFit{coefficients: map[string]float64{}, left: f.left}
	for _, k := range f.terms {
		fit.coefficients[[3]string{"kl.beta", "entropy.coef", "value.coef"}[k]] = written(f.coefficient(k), 1e-9)
	}
	switch {
	case f.kind >= ofStrays:
		fit.kind, fit.misdivided = strayReductions[f.kind-ofStrays].right, strayReductions[f.kind-ofStrays].id
	case f.kind > ofPlain:
		fit.span = f.kind - ofGenerations
	case f.kind == ofPlain && f.scale == 1: // agg.kind token_sum
	case f.kind == ofPlain:
		fit.divisor = 1 / f.scale
	case f.free():
		fit.constant = 1 / f.scale
	}
	return fit, &f
}

// unbound returns the bounds of a form that has none: none of a side where some ratio would be held, else nothing is told of it.
func (t *boundTokens) unbound(f *boundForm) (low, high float64) {
	const least = 1e-2 // a bound that is usual
	low, high = math.NaN(), math.NaN()
	for i, x := range t.ratio(f.level) {
		switch a, both := t.adv[i], f.kindOf == "cispo"; {
		case (a > 0 || both) && x > 1+least:
			high = math.Inf(1)
		case (a < 0 || both) && x < 1-least:
			low = math.Inf(1)
		}
	}
	return low, high
}

// options are those of the form that [lossForm] has not.
func (f *boundForm) options() (list []assign) {
	switch {
	case f.kind == ofPlain && f.scale == 1:
		list = append(list, word("agg.kind", "token_sum"))
	case f.kind == ofPlain:
		list = append(list, word("agg.kind", "token"), word("agg.denominator", "constant"))
	}
	if f.slip > 0 || f.wrong || f.kind >= ofStrays {
		list = append(list, f.reduction()...)
	}
	number := func(option string, x float64) {
		if !math.IsNaN(x) {
			list = append(list, amount(option, x))
		}
	}
	if f.kindOf != "" {
		list = append(list, word("loss.kind", f.kindOf))
	}
	if f.kindOf == "cispo" && !math.IsNaN(f.high) {
		list = append(list, word("clip.high_is_absolute", "false"))
	}
	number("sapo.tau_pos", f.at[paramTauPos])
	number("sapo.tau_neg", f.at[paramTauNeg])
	number("clip.dual", f.at[paramDual])
	if number("value.clip", f.at[paramClip]); slices.Contains(f.terms, 2) {
		list = append(list, amount("value.factor", 0.5))
		if f.mask >= 0 {
			list = append(list, word("value.mask", valueMasks[f.mask]))
		}
	}
	if f.weights == "" || f.weights == anyKL {
		return list
	}
	list = append(list, word("tis.level", f.weights))
	if x := f.at[paramFloor]; math.IsNaN(x) {
		list = append(list, word("tis.rule", "truncate_upper"))
	} else {
		list = append(list, word("tis.rule", "clamp"), amount("tis.low", x))
	}
	if x := f.at[paramCap]; math.IsNaN(x) {
		list = append(list, word("tis.high", "none"))
	} else {
		list = append(list, amount("tis.high", x))
	}
	return list
}
