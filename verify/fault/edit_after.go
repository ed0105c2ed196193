package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// afterEdits returns edits of advantages that something is done to once they are finished: they are normalised a second time, over the same rows or
// over others, or something of the response is added that belongs into the reward.
func afterEdits(o *stage.Outcome) []edit {
	if o.Check.Stage != convention.Advantage || o.Check.Output != "advantages" || len(o.Got) != len(o.Pred.Want) {
		return nil
	}
	return slices.Concat(againEdits(o), lengthPenalty(o), endPenalty(o), shapingEdits(o), overlongAfter(o), baselineAgain(o))
}

const rowsOfRank = "the rows of its rank"

// againScopes are the rows over which finished advantages are normalised again.
var againScopes = []struct {
	title string
	of    func(b *dump.Batch, row int) (key float64, ok bool)
}{
	{"all rows of the step", func(*dump.Batch, int) (float64, bool) { return 0, true }},
	{"the rows of its group", func(b *dump.Batch, row int) (float64, bool) {
		if id := b.Row("group_id"); len(id) == b.Rows {
			return id[row], true
		}
		return 0, false
	}},
	{"the rows of its micro-batch", func(b *dump.Batch, row int) (float64, bool) { return float64(b.File(row)), len(b.Files) > 1 }},
	{rowsOfRank, func(b *dump.Batch, row int) (float64, bool) {
		return float64(b.Files[b.File(row)].Rank), severalRanks(b)
	}},
}

// againForm is a second normalisation (A − m)/(s + eps) over the rows or over their tokens.
type againForm struct {
	scope   int
	tokens  bool
	centred bool
	spread  string // of spreadOf, "none" for nothing
	eps     float64
}

func againEdits(o *stage.Outcome) []edit {
	var list []edit
	// advantages that are not normalised yet are whitened then, as a program may be configured
	whitens := o.Case.Set.Value("adv.kind").String() == "raw" || o.Case.Set.Value("adv.scale").Kind() == convention.Enum && o.Case.Set.Value("adv.scale").Text() == "none"
	for scope := range againScopes {
		for _, tokens := range []bool{false, true} {
			for _, f := range []struct {
				words, spread string
				centred       bool
			}{
				{"the mean is subtracted, and they are divided by the deviation with n − 1", "std1", true}, {"the mean is subtracted, and they are divided by the deviation with n", "std0", true},
				{"they are divided by the deviation with n − 1", "std1", false}, {"they are divided by the deviation with n", "std0", false},
				{"they are divided by the root mean square", "rms", false}, {"they are divided by the largest magnitude", "max", false}, {"the mean is subtracted", "none", true},
			} {
				over := againScopes[scope].title
				if tokens {
					over = "the tokens of " + over
				}
				for _, eps := range append([]float64{0}, writtenEpsilons[:5]...) {
					form := againForm{scope: scope, tokens: tokens, centred: f.centred, spread: f.spread, eps: eps}
					if f.spread == "none" && eps != 0 || !nearBy(o, form.from(o.Case, o.Pred)) {
						continue
					}
					id, title := "ADV-NORMALISED-TWICE", "finished advantages are normalised once more, over "+over+": "+f.words
					if againScopes[scope].title == rowsOfRank && o.Case.Set.Value("adv.scale").String() == "none" {
						id, title = "ADV-GROUPS-PER-RANK", "advantages are normalised over "+over+": "+f.words
					}
					list = append(list, edit{id: id, title: title, changes: 1, own: whitens && f.centred && againScopes[scope].title == "all rows of the step",
						predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return form.from(c, under(sameInput, c, ch)) }})
					break
				}
			}
		}
	}
	return list
}

// nearBy reports whether all numbers that are judged are close to what a prediction says, before a bound is asked for.
func nearBy(o *stage.Outcome, p *stage.Prediction) bool {
	if p == nil || len(p.Want) != len(o.Got) {
		return false
	}
	for i, w := range p.Want {
		if o.Pred.Judge != nil && !o.Pred.Judge[i] || p.Judge != nil && !p.Judge[i] || len(p.Want) == len(o.Case.B.Mask) && !o.Case.B.Mask[i] {
			continue
		}
		if !(math.Abs(o.Got[i]-w) <= 4*o.Limit(i)+4*p.Bound[i]+1e-5*math.Abs(w)) {
			return false
		}
	}
	return true
}

// from returns what the second normalisation makes of finished advantages. A statistic of n numbers of at most m, off by e, is off by (n + 4)·u·m + e.
func (f againForm) from(c *stage.Case, p *stage.Prediction) *stage.Prediction {
	b := c.B
	if p == nil || b.Cols == 0 || len(p.Want) != b.Rows && len(p.Want) != len(b.Mask) {
		return nil
	}
	perRow := len(p.Want) == b.Rows && len(p.Want) != len(b.Mask)
	n, sets, keys := tokensOf(b, b.Mask), map[float64][]int{}, make([]float64, len(p.Want))
	var x []float64 // what the statistics are of; sets hold its indices
	var e float64
	for row := range b.Rows {
		key, ok := againScopes[f.scope].of(b, row)
		if !ok {
			return nil
		}
		lo, hi := row, row+1
		if !perRow {
			lo, hi = row*b.Cols, (row+1)*b.Cols
		}
		times := 1
		if perRow && f.tokens {
			times = int(n[row])
		}
		for i := lo; i < hi; i++ {
			if !perRow && !b.Mask[i] {
				continue
			}
			for range times {
				sets[key], x, e = append(sets[key], len(x)), append(x, p.Want[i]), max(e, p.Bound[i])
			}
			if !perRow && !f.tokens { // the first token stands for the row
				break
			}
		}
		for i := lo; i < hi; i++ {
			keys[i] = key
		}
	}
	q := &stage.Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want)), Judge: p.Judge, Scale: 1}
	type statistic struct{ m, s, off float64 }
	of := map[float64]statistic{}
	for key, at := range sets {
		size := spreadOf("max", x, at)
		t := statistic{s: spreadOf(f.spread, x, at)}
		if f.centred {
			t.m = centreOf("mean", x, at, at[0])
		}
		if f.spread != "none" {
			t.s += f.eps
		}
		if t.off = ((float64(len(at))+4)*c.Unit*size + 2*e) / t.s; !(t.s > 0) || len(at) < 2 {
			return nil
		}
		of[key] = t
	}
	for i, a := range p.Want {
		t, known := of[keys[i]]
		if !known || !perRow && !b.Mask[i] {
			continue
		}
		y := (a - t.m) / t.s
		q.Want[i], q.Bound[i] = y, t.off*(1+math.Abs(y))+8*c.Unit*math.Abs(y)
	}
	return q
}

// lengthPenalty returns the edit of advantages that have a penalty in them which is a function of the length of the response alone,
//
//	min(max(a·(n − n₀), −f), 0)
//
// whose numbers the rows show: it belongs into the reward, before the baseline (DAPO's soft punishment, Yu et al. 2025, Eq. 13).
func lengthPenalty(o *stage.Outcome) []edit {
	const lengths, rows = 3, 8 // at least so many lengths whose penalty differs, of so many rows
	b := o.Case.B
	n := tokensOf(b, b.Mask)
	at := map[float64]float64{} // what is added to a row of n tokens
	seen, told := 0, false
	for row := range b.Rows {
		i := row
		if len(o.Got) != b.Rows {
			i = max(firstOf(b, row), row*b.Cols)
		}
		if n[row] == 0 || i >= len(o.Got) || o.Pred.Judge != nil && !o.Pred.Judge[i] {
			continue
		}
		d := o.Got[i] - o.Pred.Want[i]
		was, known := at[n[row]]
		if !(math.Abs(d) < math.Inf(1)) || known && math.Abs(d-was) > 8*o.Limit(i) {
			return nil
		}
		at[n[row]], told = d, told || math.Abs(d) > apart*o.Limit(i)
		seen++
	}
	var sorted, sloped []float64
	least, most := math.Inf(1), math.Inf(-1)
	for length, d := range at {
		sorted = append(sorted, length)
		least, most = min(least, d), max(most, d)
	}
	if !(most-least > 1e-4*max(math.Abs(most), math.Abs(least))) {
		return nil // the same of every length is no penalty of it
	}
	slices.Sort(sorted)
	floor, held := math.Inf(-1), 0
	for _, length := range sorted {
		held += boolToInt(at[length]-least <= 1e-4*(most-least))
	}
	if held > 1 {
		floor = least // several lengths have the largest penalty
	}
	for _, length := range sorted {
		if d := at[length]; math.Abs(d) > 1e-4*(most-least) && d > floor+1e-4*(most-least) {
			sloped = append(sloped, length)
		}
	}
	if len(sloped) < lengths || seen < rows || !told {
		return nil
	}
	lo, hi := sloped[0], sloped[len(sloped)-1]
	a := (at[hi] - at[lo]) / (hi - lo)
	if a == 0 || math.IsNaN(a) {
		return nil
	}
	if by := 1 / a; math.Abs(rounded(by, 3)-by) <= 1e-4*math.Abs(by) {
		a = 1 / rounded(by, 3)
	}
	from := hi - at[hi]/a
	if short := math.Round(2*from) / 2; math.Abs(short-from) <= 1e-3 {
		from = short
	}
	penalty := func(n float64) float64 { return max(a*max(n-from, 0), floor) }
	if from <= sorted[0] { // all rows have it
		penalty = func(n float64) float64 { return max(a*(n-from), floor) }
	}
	title := fmt.Sprintf("%.6g for each token beyond %g is added to finished advantages: a penalty of the length belongs into the reward, before the baseline", a, from)
	return []edit{{id: "PENALTY-AFTER-BASELINE", title: title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		n := tokensOf(c.B, c.B.Mask)
		return addedByRow(under(sameInput, c, ch), c, func(row int) float64 { return penalty(n[row]) })
	}}}
}

// addedByRow returns advantages with a number of each row added to those of its tokens, or to its own.
func addedByRow(p *stage.Prediction, c *stage.Case, by func(row int) float64) *stage.Prediction {
	if p == nil || c.B.Cols == 0 {
		return nil
	}
	q := altered(p)
	for i := range q.Want {
		row := i
		if len(q.Want) == len(c.B.Mask) && len(q.Want) != c.B.Rows {
			if row = i / c.B.Cols; !c.B.Mask[i] {
				continue
			}
		}
		x := by(row)
		q.Want[i] += x
		q.Bound[i] += 16 * c.Unit * (math.Abs(x) + math.Abs(p.Want[i]))
	}
	return q
}

// endPenalty returns the edits of advantages that are off by one number that people write in the responses that have no EOS, or in those that have one.
func endPenalty(o *stage.Outcome) (list []edit) {
	const least = 3 // rows of either kind
	b := o.Case.B
	if o.Case.FactList("eos_token_id") == nil || b.Cols == 0 {
		return nil
	}
	ends := make([]bool, b.Rows)
	for r := range ends {
		ends[r] = ended(o.Case, r)
	}
	for _, with := range []bool{false, true} {
		var off []float64
		others, fits := 0, true
		for i := range o.Got {
			row := i
			if len(o.Got) == len(b.Mask) && len(o.Got) != b.Rows {
				if row = i / b.Cols; !b.Mask[i] {
					continue
				}
			}
			if o.Pred.Judge != nil && !o.Pred.Judge[i] {
				continue
			}
			switch d := o.Got[i] - o.Pred.Want[i]; {
			case ends[row] == with:
				off = append(off, d)
			default:
				others++
				fits = fits && math.Abs(d) <= 8*o.Limit(i)
			}
		}
		if !fits || len(off) < least || others < least {
			continue
		}
		slices.Sort(off)
		k := rounded(off[len(off)/2], 3)
		if k == 0 || math.IsNaN(k) || math.IsInf(k, 0) {
			continue
		}
		kind := "without EOS"
		if with {
			kind = "that end with EOS"
		}
		title := fmt.Sprintf("%+g is added to finished advantages of responses %s: it belongs into the reward, before the baseline", k, kind)
		list = append(list, edit{id: "PENALTY-AFTER-BASELINE", title: title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return addedByRow(under(sameInput, c, ch), c, func(row int) float64 { return k * float64(boolToInt(ended(c, row) == with)) })
		}})
	}
	return list
}

// baselineAgain returns edits of advantages per token from which the baseline of the group is subtracted once more, before they are whitened.
func baselineAgain(o *stage.Outcome) []edit {
	b := o.Case.B
	if b.Row("group_id") == nil || b.Row("scores") == nil || len(o.Got) != len(b.Mask) || len(o.Got) == b.Rows {
		return nil
	}
	var list []edit
	for _, f := range []struct {
		title string
		sign  float64
		mean  bool // of the returns of the group's tokens, not of its scores
	}{
		{"the mean score of the group is subtracted from the return of every token, which has the baseline in it", -1, false},
		{"the mean score of the group is added to the return of every token", 1, false},
		{"the mean of the returns of the group's tokens is subtracted from them", -1, true},
	} {
		list = append(list, edit{id: "ADV-BASELINE-TWICE", title: f.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return movedByGroup(f.sign, f.mean, c, ch) }})
	}
	return list
}

// movedByGroup predicts advantages whose raw numbers are moved by a number of their group before they are whitened as declared.
func movedByGroup(sign float64, returns bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, id, scores := c.B, c.B.Row("group_id"), c.B.Row("scores")
	raw, p := under(notWhitened, c, ch), under(sameInput, c, ch)
	if id == nil || scores == nil || raw == nil || p == nil || len(raw.Want) != len(b.Mask) || len(p.Want) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	lo, hi := math.Inf(-1), math.Inf(1)
	if v := c.Set.Value("reward.clip_range"); v.Kind() == convention.Tuple && c.EnumOr("reward.clip", "none") != "none" {
		lo, hi = v.Nums()[0], v.Nums()[1]
	}
	sum, n := map[float64]float64{}, map[float64]float64{}
	for r, g := range id {
		if !returns {
			sum[g], n[g] = sum[g]+min(max(scores[r], lo), hi), n[g]+1
			continue
		}
		for i := range b.TokensOf(r) {
			sum[g], n[g] = sum[g]+raw.Want[i], n[g]+1
		}
	}
	x, size, e := slices.Clone(raw.Want), 0.0, 0.0
	for i := range x {
		if g := id[i/b.Cols]; b.Mask[i] {
			x[i] += sign * sum[g] / max(n[g], 1)
			size, e = max(size, math.Abs(x[i])), max(e, raw.Bound[i])
		}
	}
	q := &stage.Prediction{Want: x, Bound: slices.Clone(raw.Bound), Judge: p.Judge, Scale: 1}
	scope, eps, ddof := c.Set.Value("whiten.scope"), numberOr(c, "whiten.eps", 0), numberOr(c, "whiten.ddof", 0)
	switch scope.String() {
	case "none", "–", "":
		for i := range q.Bound {
			q.Bound[i] += 64 * c.Unit * size
		}
		return q
	case "global":
	default:
		return nil
	}
	o := rl.WhitenOptions{Scope: rl.ScopeGlobal, Eps: eps, Var: rl.VarOptions{DDof: int(ddof)}}
	place, err := rl.ParseEpsPlace(c.Set.Value("whiten.eps_place").String())
	if err != nil {
		return nil
	}
	o.EpsPlace = place
	y, fail := rl.Whiten(nil, x, b.Mask, b.Rows, b.Cols, o)
	if fail != nil {
		return nil
	}
	var cells []int
	for i := range b.Tokens() {
		cells = append(cells, i)
	}
	s := spreadOf("std0", x, cells)
	if !(s > 0) {
		return nil
	}
	if q.Want = y; c.EnumOr("whiten.shift_mean", "true") == "false" {
		return nil
	}
	for _, i := range cells {
		q.Bound[i] = (2*e+64*c.Unit*size)/s*(1+math.Abs(y[i])) + 8*c.Unit*math.Abs(y[i])
	}
	return q
}
