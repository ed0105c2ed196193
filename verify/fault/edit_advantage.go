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

// A group advantage is (x_r − b)/s of the rewards x: a baseline b over some rows, and a spread s over some rows. Its edits replace the
// rewards, the rows or the statistics.
type advantageForm struct {
	x         string // what stands for the rewards
	rows      string // the rows of the baseline
	centre    string
	spreadOf  string // the rows of the spread
	spread    string
	spreadX   string // what stands for the rewards in the spread; empty: what does in the baseline
	eps, sign float64
	rooted    bool    // eps is added under the root
	lo, hi    float64 // what the rewards are held within before the baseline is subtracted; both 0: nothing
	moved     int     // 1 + the order in rowMoves in which the differences x_r − b stand in their micro-batch; 0: their own
}

// writtenEpsilons are what people add to a deviation.
var writtenEpsilons = []float64{1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1}

// declaredForm returns the form of the declared options, false where it is another kind of formula.
func declaredForm(c *stage.Case) (f advantageForm, ok bool) {
	text := func(name string) string { return c.Set.Value(name).String() }
	if k := text("adv.kind"); k != "group" {
		return f, false
	}
	if w := text("whiten.scope"); w == "row" || w == "minibatch" || w == "local_batch" || w == "global" {
		return f, false
	}
	if v := c.Set.Value("adv.multi"); v.Kind() == convention.Enum && v.Text() == "normalize_then_sum" {
		return f, false
	}
	f = advantageForm{x: "rewards", rows: "group", spreadOf: "group", sign: 1}
	switch text("adv.center") {
	case "mean":
		f.centre = "mean"
	case "loo":
		f.centre = "loo"
	case "none":
		f.centre = "none"
	default:
		return f, false
	}
	std := "std1"
	if v := c.Set.Value("adv.ddof"); v.Kind() == convention.Number && v.Num() == 0 {
		std = "std0"
	}
	switch text("adv.scale") {
	case "none", "–":
		f.spread = "none"
	case "group_std":
		f.spread = std
	case "batch_std":
		f.spread, f.spreadOf = std, "all"
	default:
		return f, false
	}
	if v := c.Set.Value("adv.eps"); v.Kind() == convention.Number && f.spread != "none" {
		f.eps = v.Num()
	}
	return f, true
}

// advantageEdits returns the edits of a group advantage.
func advantageEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "advantage/group" {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	declared, ok := declaredForm(c)
	in := newFormInputs(c, o.Check)
	if !ok || in == nil {
		return nil
	}
	type change struct {
		id, title string
		apply     func(*advantageForm)
		foreign   bool
	}
	var rewards, baselines, subtracted, spreadRows, divided []change
	for _, s := range sources[1:] {
		rewards = append(rewards, change{s.id, s.title, func(f *advantageForm) { f.x = s.name }, false})
	}
	for _, s := range scopes {
		if s.name != "group" && s.name != "solved" && declared.centre != "none" {
			baselines = append(baselines, change{s.id, "the baseline is taken over " + s.title, func(f *advantageForm) { f.rows = s.name }, false})
		}
		if s.name == "solved" && declared.spread == "none" && declared.centre == "mean" {
			baselines = append(baselines, change{s.id, "the groups are " + s.title, func(f *advantageForm) { f.rows = s.name }, false})
		}
		if s.name != declared.spreadOf && s.name != "solved" && declared.spread != "none" {
			id := s.id
			if s.name == "all" {
				id = "ADV-BATCH-STD"
			} else if s.name == "group" {
				id = "ADV-GROUP-STD"
			}
			spreadRows = append(spreadRows, change{id, "the spread is taken over " + s.title, func(f *advantageForm) { f.spreadOf = s.name }, false})
		}
		if s.name != "group" && declared.centre != "none" && declared.spread != "none" && declared.spreadOf == "group" { // one wrong grouping is one change
			baselines = append(baselines, change{s.id, "the groups are " + s.title, func(f *advantageForm) { f.rows, f.spreadOf = s.name, s.name }, false})
		}
	}
	for _, s := range centres {
		if s.name != declared.centre {
			subtracted = append(subtracted, change{"ADV-CENTER", s.title + " of the group is subtracted where it should be " + titleOf(centres, declared.centre), func(f *advantageForm) { f.centre = s.name }, in.foreignCentre(s.name)})
		}
	}
	for _, s := range spreads {
		if s.name != declared.spread {
			id := "ADV-SPREAD"
			switch {
			case s.name == "none":
				id = "ADV-NOT-SCALED"
			case strings.HasPrefix(s.name, "std") && strings.HasPrefix(declared.spread, "std"):
				id = "ADV-DDOF"
			}
			divided = append(divided, change{id, "they are divided by " + s.title + " where it should be " + titleOf(spreads, declared.spread), func(f *advantageForm) { f.spread = s.name }, foreignSpreads[s.name]})
		}
	}
	epsilons := []change{}
	if declared.spread != "none" && declared.eps != 0 {
		epsilons = append(epsilons, change{"ADV-EPS", "the epsilon is missing", func(f *advantageForm) { f.eps = 0 }, false})
	}
	var alone []change // numbers, of which one beside another change fits too much
	for _, e := range writtenEpsilons {
		if declared.spread != "none" && e != declared.eps {
			alone = append(alone, change{"ADV-EPS", fmt.Sprintf("the epsilon is %g where it should be %g", e, declared.eps), func(f *advantageForm) { f.eps = e }, e >= 1e-2})
		}
	}
	if strings.HasPrefix(declared.spread, "std") && declared.eps != 0 {
		alone = append(alone, change{"ADV-EPS", "the epsilon is added to the variance, under the root", func(f *advantageForm) { f.rooted = true }, false})
	}
	if declared.spread != "none" {
		for _, x := range in.beside {
			alone = append(alone, change{"ADV-SPREAD", "they are divided by the deviation of " + x.title + ", not of the rewards they are made of", func(f *advantageForm) { f.spreadX = x.title }, true})
		}
	}
	for _, b := range heldRanges(in.r) {
		alone = append(alone, change{"REWARD-CLIP-MISSING", "the rewards are held " + b.title + " before their baseline is taken", func(f *advantageForm) { f.lo, f.hi = b.lo, b.hi }, false})
	}
	signs := []change{{"ADV-SIGN", "they have the wrong sign", func(f *advantageForm) { f.sign = -1 }, false}}
	var orders []change
	if declared.spread != "none" { // else all of the advantage is moved
		for i, m := range rowMoves {
			orders = append(orders, change{"ADV-ROWS-OF-OTHERS", "their differences from the baseline are those of " + m.title + ", over their own spread", func(f *advantageForm) { f.moved = i + 1 }, false})
		}
	}
	families := [][]change{rewards, baselines, subtracted, spreadRows, divided, epsilons, signs, orders}
	var list []edit
	add := func(changes ...change) {
		f := declared
		for _, x := range changes {
			x.apply(&f)
		}
		if f == declared || !f.near(o, in) {
			return
		}
		title, foreign := changes[0].title, changes[0].foreign
		for _, x := range changes[1:] {
			title, foreign = title+"; and "+x.title, foreign || x.foreign
		}
		foreign = foreign && !(f.centre == "none" && f.spread == "rms") // rewards in units of their size, as a program may scale them
		list = append(list, edit{id: changes[0].id, title: title, changes: len(changes), foreign: foreign, own: changes[0].id == "REWARD-CLIP-MISSING", predict: f.predict})
	}
	for _, a := range alone {
		add(a)
	}
	for i, first := range families {
		for _, a := range first {
			add(a)
			if o.Half() {
				continue
			}
			for _, second := range families[i+1:] {
				for _, b := range second {
					add(a, b)
				}
			}
		}
	}
	return list
}

func titleOf(list []struct{ name, title string }, name string) string {
	return list[slices.IndexFunc(list, func(s struct{ name, title string }) bool { return s.name == name })].title
}

// near reports whether all numbers are close to what the form gives, before a bound is asked for.
func (f advantageForm) near(o *stage.Outcome, in *formInputs) bool {
	p := f.from(in)
	if p == nil || len(p.Want) != len(o.Got) {
		return false
	}
	for i, w := range p.Want {
		if o.Pred.Judge != nil && !o.Pred.Judge[i] {
			continue
		}
		if !(math.Abs(o.Got[i]-w) <= 4*o.Limit(i)+4*p.Bound[i]+1e-5*math.Abs(w)) {
			return false
		}
	}
	return true
}

// formInputs are what forms are made of.
type formInputs struct {
	c      *stage.Case
	raw    *stage.Prediction
	r, e   []float64 // rewards and their errors
	got    []float64
	perRow bool
	groups [][]int
	scopes map[string][][]int
	x      map[string][]float64
	beside []titled
	lo, hi float64 // what differences from the baseline are held within
}

// clippedAfter returns the range that rewards are held within once their baseline is subtracted.
func clippedAfter(c *stage.Case) (lo, hi float64, ok bool) {
	if v := c.Set.Value("reward.clip_range"); c.Set.Value("reward.clip").String() == "after_baseline" && v.Kind() == convention.Tuple {
		return v.Nums()[0], v.Nums()[1], true
	}
	return math.Inf(-1), math.Inf(1), false
}

func newFormInputs(c *stage.Case, ch *stage.Check) *formInputs {
	of := option("adv.kind", "raw")
	lo, hi, clipped := clippedAfter(c)
	if clipped {
		of = both(of, option("reward.clip", "none"))
	}
	raw := under(of, c, ch)
	group := scopeRows(c, "group")
	if raw == nil || c.B.Cols == 0 || group == nil {
		return nil
	}
	b := c.B
	in := &formInputs{c: c, raw: raw, r: make([]float64, b.Rows), e: make([]float64, b.Rows), scopes: map[string][][]int{}, x: map[string][]float64{},
		lo: lo, hi: hi}
	in.got = b.Tensors[ch.Output].Data
	in.perRow = len(raw.Want) == b.Rows && !(b.Cols == 1 && c.B.Tensors[ch.Output].Layout == dump.PerToken)
	for i := range in.r {
		at := i
		if !in.perRow {
			at = max(firstOf(b, i), i*b.Cols)
		}
		in.r[i], in.e[i] = raw.Want[at], raw.Bound[at]
	}
	for i, g := range group {
		if g[0] == i {
			in.groups = append(in.groups, g)
		}
	}
	for _, s := range scopes {
		in.scopes[s.name] = scopeRows(c, s.name)
	}
	in.scopes["solved"] = in.sharedBaselines(ch)
	for _, s := range sources {
		in.x[s.name] = s.of(in.r, in.groups)
	}
	means := make([]float64, b.Rows)
	for _, g := range in.groups {
		for _, i := range g {
			means[i] = centreOf("mean", in.r, g, i)
		}
	}
	in.beside = append(besideRewards(b), titled{"the means of the groups, one for every row", means})
	for _, x := range in.beside {
		in.x[x.title] = x.x
	}
	return in
}

// sharedBaselines returns the sets of rows whose advantages are one line A = (r − b)/s of their rewards, of n ≥ 3 rows each, and whose
// mean is that line's zero: the groups that were taken. nil where the rows do not fall into such sets, or group_id has the same.
func (in *formInputs) sharedBaselines(ch *stage.Check) [][]int {
	b := in.c.B
	t := b.Tensors[ch.Output]
	if t == nil || b.Rows < 6 || b.Rows > 512 {
		return nil
	}
	adv := make([]float64, b.Rows)
	for r := range adv {
		at := r
		if !in.perRow {
			at = max(firstOf(b, r), r*b.Cols)
		}
		if at >= len(t.Data) {
			return nil
		}
		adv[r] = t.Data[at]
	}
	const tolerance = 1e-4 // of the sizes in a row; what is found is judged within the bounds
	of := make([][]int, b.Rows)
	other := false
	for r := range of {
		if of[r] != nil {
			continue
		}
		for s := r + 1; s < b.Rows && of[r] == nil; s++ {
			if of[s] != nil || math.Abs(in.r[r]-in.r[s]) < 1e-6 {
				continue
			}
			slope := (adv[r] - adv[s]) / (in.r[r] - in.r[s])
			if !(slope > 0) {
				continue
			}
			var rows []int
			var sum, size float64
			for k := range of {
				if of[k] == nil && math.Abs(adv[k]-adv[r]-slope*(in.r[k]-in.r[r])) <= tolerance*(math.Abs(adv[k])+math.Abs(adv[r])+slope*math.Abs(in.r[k]-in.r[r])) {
					rows = append(rows, k)
					sum, size = sum+adv[k], size+math.Abs(adv[k])
				}
			}
			if len(rows) < 3 || math.Abs(sum) > tolerance*size {
				continue
			}
			for _, k := range rows {
				of[k] = rows
			}
		}
		if of[r] == nil {
			return nil
		}
		other = other || !slices.Equal(of[r], in.scopes["group"][r])
	}
	if !other {
		return nil
	}
	return of
}

func (f advantageForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	in := newFormInputs(c, ch)
	if in == nil {
		return nil
	}
	return f.from(in)
}

// equalBut reports whether what stands for the rewards of some rows is one number, where the rewards are not.
func equalBut(x, rewards []float64, rows []int) bool {
	same := true
	for _, i := range rows {
		if x[i] != x[rows[0]] {
			return false
		}
		same = same && rewards[i] == rewards[rows[0]]
	}
	return !same
}

// ofOne fills in the advantage of a row that is alone in its set, which has no deviation: 0 where what is no number is replaced or the mean is the reward, and
// where one row has the mean 0 and the deviation 1 the reward (verl 0.9.1, compute_grpo_outcome_advantage). It reports whether the dump has one of them.
func (f advantageForm) ofOne(in *formInputs, p *stage.Prediction, i int) bool {
	b := in.c.B
	lo, hi := i, i+1
	if !in.perRow {
		lo, hi = i*b.Cols, (i+1)*b.Cols
	}
	for k := lo; k < hi; k++ {
		if !in.perRow && !b.Mask[k] {
			continue
		}
		whole := f.sign * in.x[f.x][i] / (1 + f.eps)
		bound := 4*in.e[i] + 8*in.c.Unit*math.Abs(whole)
		switch {
		case k >= len(in.got):
			return false
		case in.got[k] == 0:
		case math.Abs(in.got[k]-whole) <= bound:
			p.Want[k], p.Bound[k] = whole, bound
		default:
			return false
		}
	}
	return true
}

// from returns the advantages of the form. With m the largest |x| of the rows of a statistic of n rows, both it and the difference
// are off by (n + 4)·u·m and the errors of the rewards; the quotient by that over s, and once more for its own size, and 8 roundings.
func (f advantageForm) from(in *formInputs) *stage.Prediction {
	c, b, x := in.c, in.c.B, in.x[f.x]
	if f.lo < f.hi {
		x = mapped(x, func(v float64) float64 { return min(max(v, f.lo), f.hi) })
	}
	of := x
	if f.spreadX != "" {
		of = in.x[f.spreadX]
	}
	rows, spreadRows := in.scopes[f.rows], in.scopes[f.spreadOf]
	if rows == nil || spreadRows == nil {
		return nil
	}
	p := &stage.Prediction{Want: make([]float64, len(in.raw.Want)), Bound: make([]float64, len(in.raw.Want)), Judge: in.raw.Judge, Scale: 1}
	if p.Judge != nil {
		p.Judge = slices.Clone(p.Judge)
	}
	alone := 0
	for i := range x {
		if len(rows[i]) < 2 || len(spreadRows[i]) < 2 {
			if alone++; 2*alone > len(x) || !f.ofOne(in, p, i) {
				return nil
			}
			continue
		}
		var size, e float64
		for _, set := range [][]int{rows[i], spreadRows[i]} {
			for _, j := range set {
				size, e = max(size, math.Abs(x[j]), math.Abs(of[j])), max(e, in.e[j])
			}
		}
		n := float64(max(len(rows[i]), len(spreadRows[i])))
		s := 1.0
		if f.spread != "none" {
			s = in.spreadOf(f.spread, of, spreadRows[i]) + f.eps
			if f.rooted {
				s = math.Sqrt(float64((s-f.eps)*(s-f.eps)) + f.eps)
			}
			if strings.HasPrefix(f.spread, "1/") { // times what they should be divided by, its epsilon with it
				s = 1 / (1/spreadOf(f.spread, of, spreadRows[i]) + f.eps)
			}
		}
		from := i
		if f.moved > 0 {
			file := b.Files[b.File(i)]
			from = file.Lo + rowMoves[f.moved-1].from(i-file.Lo, file.Hi-file.Lo)
			for _, j := range rows[from] {
				size = max(size, math.Abs(x[j]))
			}
		}
		a := f.sign * (x[from] - centreOf(f.centre, x, rows[from], from)) / s
		off := ((n+4)*c.Unit*size + 2*e) / math.Abs(s)
		bound := off*(1+math.Abs(a)) + 8*c.Unit*math.Abs(a)
		a = min(max(a, in.lo), in.hi)
		lo, hi := i, i+1
		if !in.perRow {
			lo, hi = i*b.Cols, (i+1)*b.Cols
		}
		for k := lo; k < hi; k++ {
			if in.perRow || b.Mask[k] {
				p.Want[k], p.Bound[k] = a, bound
			}
			if p.Judge != nil && f.spread != "none" && equalBut(x, in.r, spreadRows[i]) { // 0, or what rounding leaves of it over ε
				p.Want[k], p.Bound[k] = 0, 0
				p.Judge[k] = p.Judge[k] && len(in.got) == len(p.Want) && in.got[k] == 0
			}
		}
	}
	return p
}
