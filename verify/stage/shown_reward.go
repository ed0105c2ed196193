package stage

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// rewardTerm is an estimate of the KL that rewards of tokens hold, and the line r = slope·k + mean that they make between the ends of responses.
type rewardTerm struct {
	list              []assign // place and kind
	k                 []float64
	slope, base, left float64
	white             bool
}

// rewardTerms proposes the coefficient and the estimator of the KL in rewards of tokens, and the penalty for responses without an end. Before the
// end of a response r_t = −β·kl_t, or where rewards were whitened to a·r + b, −aβ·kl_t + b; where the score s is, r = a·(s − β·kl) + b tells a,
// and of rows that it misses by one number −a·c, c is the penalty.
func rewardTerms(b *dump.Batch, set *convention.Set) (lists [][]assign) {
	return rewardTermsOf(b, set, longestRows)
}

// rewardTermsOf is rewardTerms where a penalty may be that of the rows that penalised reports.
func rewardTermsOf(b *dump.Batch, set *convention.Set, penalised penalisable) (lists [][]assign) {
	return rewardTermsIn(b, rewardEstimates(b, set), penalised)
}

// rewardTermsIn is rewardTermsOf by these estimates.
func rewardTermsIn(b *dump.Batch, estimates []rewardTerm, penalised penalisable) (lists [][]assign) {
	r := b.Token("token_rewards")
	if r == nil {
		return nil
	}
	inner := make([]bool, len(r))
	for i := range r {
		inner[i] = b.Mask[i] && (i+1)%b.Cols != 0 && b.Mask[i+1]
	}
	var terms []rewardTerm
	size := rms(r, func(i int) bool { return inner[i] })
	for _, t := range estimates {
		one, two := observations{n: 1}, observations{n: 2}
		for i, in := range inner {
			if in {
				one.add(t.k[i], r[i])
				two.add(t.k[i], 1, r[i])
			}
		}
		if rms(t.k, func(i int) bool { return inner[i] }) < 1e-6 { // the line is its constant, but for roundings
			var x []float64
			for i, in := range inner {
				if in {
					x = append(x, r[i])
				}
			}
			if t.base = middle(x, 1); t.base != 0 && spreadOf(x, t.base) <= size/64 {
				t.white = true
				terms = append(terms, t)
			}
			break
		}
		if w, left := one.solve(); w != nil && left <= size/64 {
			t.slope, t.left = w[0], left/size
			terms = append(terms, t)
		} else if w, left := two.solve(); w != nil && left <= size/64 && math.Abs(w[0])*rms(t.k, func(i int) bool { return inner[i] }) <= 1e-6*size {
			terms = []rewardTerm{{list: []assign{word("kl.place", "none")}, k: make([]float64, len(r)), base: w[1], white: true}} // the KL shows in none
			break
		} else if w != nil && left <= size/64 {
			t.slope, t.base, t.left, t.white = w[0], w[1], left/size, true
			terms = append(terms, t)
		}
	}
	slices.SortStableFunc(terms, func(x, y rewardTerm) int { return cmp.Compare(x.left, y.left) })
	for i, t := range terms {
		if i > 0 && t.left > 4*terms[0].left {
			break
		}
		lists = append(lists, t.heldAfterBaseline(b, r)...)
		a, more := t.ends(b, r, penalised)
		if !(a > 0) {
			continue
		}
		list := t.list
		if t.white {
			list = append(slices.Clone(list), word("rewards.whiten", "shift_mean_false"))
		}
		for _, rule := range more {
			if t.slope == 0 {
				lists = append(lists, slices.Concat(list, rule))
			}
			for _, tol := range []float64{1e-5, 1e-3, 5e-3} {
				if beta := written(-t.slope/a, tol); beta > 0 && !math.IsInf(beta, 0) {
					lists = append(lists, slices.Concat(list, []assign{amount("kl.beta", beta)}, rule))
				}
			}
		}
	}
	if len(terms) == 0 && size == 0 { // no KL shows
		_, more := (rewardTerm{k: make([]float64, len(r))}).ends(b, r, penalised)
		lists = append(lists, slices.DeleteFunc(more, func(rule []assign) bool { return rule == nil })...)
	}
	return lists
}

// rewardEstimates returns the estimates that rewards may hold: the dumped one, or those that the log-probs of the rollout give.
func rewardEstimates(b *dump.Batch, set *convention.Set) (terms []rewardTerm) {
	if v := set.Value("kl.place"); v.Kind() == convention.Enum && v.Text() != "token_reward" {
		return nil
	}
	place := word("kl.place", "token_reward")
	if k := b.Token("kl"); k != nil {
		terms = append(terms, rewardTerm{list: []assign{place}, k: k})
	}
	old, ref := b.Token("logp_old"), b.Token("logp_ref")
	if old == nil || ref == nil || b.Token("kl") != nil {
		return terms
	}
	for _, kind := range []string{"k1", "k3", "k2", "abs"} {
		k := make([]float64, len(old))
		for i := range k {
			switch d := old[i] - ref[i]; kind {
			case "k1":
				k[i] = d
			case "k3":
				k[i] = math.Expm1(-d) + d
			case "k2":
				k[i] = d * d / 2
			case "abs":
				k[i] = math.Abs(d)
			}
		}
		terms = append(terms, rewardTerm{list: []assign{place, word("kl.kind", kind)}, k: k})
	}
	return terms
}

// ends returns a of a term, 1 where rewards are not whitened, and what the rows may say of a penalty or of a range of the scores, one rule at least, which
// may be none: of the last token of a response, or of the cell behind it, whichever the scores explain. Where the longest responses alone are beyond
// the range both have the same numbers in one batch.
func (t rewardTerm) ends(b *dump.Batch, r []float64, penalised penalisable) (a float64, more [][]assign) {
	score := b.Row("scores")
	c := NewCase(b, &convention.Set{}, 0)
	best := math.Inf(1)
	may, some := penalised(c)
	fixed := !some // responses of one length need no end
	a, more = 1, [][]assign{nil}
	if len(score) != b.Rows {
		if t.white {
			return math.NaN(), nil
		}
		return a, more
	}
	for _, behind := range []int{0, 1} {
		o := observations{n: 1}
		var y []float64
		moved := behind == 0 || fixed
		for row := range b.Rows {
			last := c.last(row)
			at := min(last+behind, c.width(row)-1)
			if last < 0 {
				y = append(y, math.NaN())
				continue
			}
			i := row*b.Cols + at
			x := r[i] - t.base
			if b.Mask[i] {
				x -= t.slope * t.k[i]
			}
			y = append(y, x)
			moved = moved || !may[row] && at != last
			if !may[row] || fixed { // the others may have no end
				o.add(score[row], x)
			}
		}
		of := 1.0
		left := 0.0
		if t.white {
			w, l := o.solve()
			if w == nil {
				continue
			}
			of, left = w[0], l/math.Abs(w[0]) // in scores
		} else {
			var ended, all []float64 // what the longest are off by may be the penalty
			for row, x := range y {
				if math.IsNaN(x) {
					continue
				}
				if all = append(all, math.Abs(x-score[row])); !may[row] {
					ended = append(ended, math.Abs(x-score[row]))
				}
			}
			if left = middle(all, 1); len(ended) > 0 {
				left = middle(ended, 1)
			}
		}
		if left < best || !moved && len(more) == 1 && more[0] == nil { // without room behind them the others say nothing of the column
			best, a = left, of
			more = penalties(y, score, of, func(row int) bool { return may[row] })
			if rule := heldWithin(y, score, of); rule != nil {
				more = append(more, rule)
			}
			if more == nil && !t.white && !fixed {
				if rule := penaltyWithin(b, y, score, func(row int) bool { return may[row] }); rule != nil {
					more = append(more, rule)
				}
			}
			if more == nil {
				more = [][]assign{nil}
			}
		}
	}
	return a, more
}

// heldWithin returns the range that scores are held in where ends are y and a·s was due: those above hi, and no others, are hi, and those below lo are lo, two of a
// side at least, or one of a number of two digits. Of a side on which no score is held it is the other one's mirror, or none where scores are beyond that.
func heldWithin(y, score []float64, a float64) []assign {
	var low, high []float64
	largest := 0.0
	for _, x := range y {
		if !math.IsNaN(x) {
			largest = max(largest, math.Abs(x/a))
		}
	}
	free := func(row int) bool { // a score of 0 has a rest of the KL beside it
		return math.Abs(y[row]/a-score[row]) <= 1e-4*math.Abs(score[row])+1e-6*largest
	}
	lowest, highest := math.Inf(1), math.Inf(-1) // of the scores that are not held
	for row, x := range y {
		switch {
		case math.IsNaN(x):
		case free(row):
			lowest, highest = min(lowest, score[row]), max(highest, score[row])
		case score[row] > x/a:
			high = append(high, x/a)
		default:
			low = append(low, x/a)
		}
	}
	side := func(held []float64) (end float64, ok bool) {
		if slices.Max(held)-slices.Min(held) > 1e-3*max(math.Abs(slices.Max(held)), 1e-3*largest) {
			return 0, false
		}
		end = written(middle(slices.Clone(held), 1), 1e-3)
		short, err := strconv.ParseFloat(strconv.FormatFloat(end, 'g', 2, 64), 64)
		return end, len(held) > 1 || err == nil && short == end
	}
	const none = 1e30 // a bound that nothing reaches
	lo, hi, ok := -none, none, true
	if len(low) > 0 {
		lo, ok = side(low)
	}
	if ok && len(high) > 0 {
		hi, ok = side(high)
	}
	if len(low)+len(high) == 0 || !ok || lowest < lo-1e-3*math.Abs(lo) || highest > hi+1e-3*math.Abs(hi) {
		return nil
	}
	if len(low) == 0 && hi > 0 && lowest >= -hi {
		lo = -hi
	}
	if len(high) == 0 && lo < 0 && highest <= -lo {
		hi = -lo
	}
	return heldIn(lo, hi)
}

// heldIn are the options of scores that are held in a range, nil where it is none.
func heldIn(lo, hi float64) []assign {
	v, err := convention.Parse("reward.clip_range", fmt.Sprintf("%g,%g", lo, hi))
	if err != nil || !(lo < hi) {
		return nil
	}
	return []assign{word("reward.clip", "before_baseline"), {"reward.clip_range", v}}
}

// rewards proposes ranges that scores in the rewards of tokens are held in, of which each step may show one side, or none.
func (s *solver) rewards() {
	var forms [][]assign
	var lows, highs []float64
	for _, step := range s.steps {
		for _, list := range rewardTerms(step.B, step.Set) {
			i := slices.IndexFunc(list, func(a assign) bool { return a.option == "reward.clip_range" })
			if i < 0 {
				continue
			}
			lows, highs = append(lows, list[i].value.Nums()[0]), append(highs, list[i].value.Nums()[1])
			list = slices.DeleteFunc(slices.Clone(list), func(a assign) bool { return strings.HasPrefix(a.option, "reward.clip") })
			if !slices.ContainsFunc(forms, func(f []assign) bool { return sameAssigns(f, list) }) {
				forms = append(forms, list)
			}
		}
	}
	slices.Sort(lows)
	slices.Sort(highs)
	lows, highs = slices.Compact(lows), slices.Compact(highs)
	for _, form := range forms {
		for _, lo := range slices.Backward(lows) { // the narrowest that is right
			for _, hi := range highs {
				if held := heldIn(lo, hi); held != nil && s.try(slices.Concat(form, held)) {
					return
				}
			}
		}
	}
}

func sameAssigns(a, b []assign) bool {
	return slices.EqualFunc(a, b, func(x, y assign) bool { return x.option == y.option && x.value.String() == y.value.String() })
}

// penalties returns the rules for responses without an end under which ends that are y where a·s was due are right: one number that some of the
// longest lack, that stands in place of their scores, or that these are multiplied by, and no others. The likeliest is first: one response has several, and scores that are alike, too.
func penalties(y, score []float64, a float64, longest func(row int) bool) (rules [][]assign) {
	largest := 0.0
	for row, x := range y {
		if !math.IsNaN(x) {
			largest = max(largest, math.Abs(score[row]))
		}
	}
	var lack, stand, share []float64
	for row, x := range y {
		if d := score[row] - x/a; math.Abs(d) > 0.02*largest {
			if !longest(row) {
				return nil
			}
			lack, stand, share = append(lack, d), append(stand, x/a), append(share, x/a/score[row])
		}
	}
	if len(lack) == 0 {
		return nil
	}
	type form struct {
		rule []assign
		off  float64 // how far apart the responses have the number, relative to it
	}
	var forms []form
	add := func(how string, x []float64, most float64, is func(c float64) bool) {
		slices.Sort(x)
		c := x[len(x)/2]
		if off := (x[len(x)-1] - x[0]) / math.Abs(c); off <= most && is(c) {
			forms = append(forms, form{endRule{rule: how}.by(written(c, 1e-2)), off})
		}
	}
	add("subtract", lack, 0.05, func(c float64) bool { return c > 0 })
	add("scale", share, 0.01, func(c float64) bool { return c > 0 && c < 1 })
	add("replace", stand, 0.01, func(float64) bool { return len(stand) > 1 })
	slices.SortStableFunc(forms, func(x, y form) int { return cmp.Compare(x.off, y.off) })
	for _, f := range forms {
		rules = append(rules, f.rule)
	}
	return rules
}

// EndToken returns the token that ends responses, where the rows of a batch that declares none show it: every response that is shorter than the
// longest ends with it, two at least, and it stands nowhere else in a response.
func EndToken(b *dump.Batch) (id int, ok bool) {
	c := NewCase(b, &convention.Set{}, 0)
	spans, longest := c.spans()
	id = -1
	ended := 0
	for r := range b.Rows {
		last := c.last(r)
		if last < 0 || spans[r] == longest {
			continue
		}
		at, known := b.TokenID(r, last)
		if !known || id >= 0 && at != id {
			return 0, false
		}
		id = at
		ended++
	}
	if ended < 2 {
		return 0, false
	}
	for i := range b.Tokens() {
		if at, _ := b.TokenID(i/b.Cols, i%b.Cols); at == id && c.last(i/b.Cols) != i%b.Cols {
			return 0, false
		}
	}
	return id, true
}

// spans returns how many columns each response takes, from its first token to its last, and the longest of them: where a response begins is no part of
// its length, since a grid may hold the prompts too.
func (c *Case) spans() (of []int, longest int) {
	of = make([]int, c.B.Rows)
	for r := range of {
		first := -1
		for t := range c.B.Cols {
			if c.B.Mask[r*c.B.Cols+t] {
				if first < 0 {
					first = t
				}
				of[r] = t - first + 1
			}
		}
		longest = max(longest, of[r])
	}
	return of, longest
}

// spreadOf returns the RMS of x − c.
func spreadOf(x []float64, c float64) float64 {
	var sum float64
	for _, v := range x {
		sum += float64((v - c) * (v - c))
	}
	return math.Sqrt(sum / float64(max(1, len(x))))
}

// WhitenedRewards reports whether the rewards of tokens show that they were whitened: between the ends of responses they are a constant besides
// the KL.
func WhitenedRewards(b *dump.Batch) bool {
	for _, list := range rewardTerms(b, &convention.Set{}) {
		return slices.Contains(list, word("rewards.whiten", "shift_mean_false"))
	}
	return false
}

// CentredRewards reports whether the rewards at the ends of responses are other than the scores by more than a KL term makes those of other tokens: a
// baseline of the group was subtracted (OpenRLHF 0.11.2, reinforce_baseline and dr_grpo shape the rewards of a rollout before the KL).
func CentredRewards(b *dump.Batch) bool {
	r, score := b.Token("token_rewards"), b.Row("scores")
	if r == nil || score == nil || b.Row("group_id") == nil {
		return false
	}
	var ends, others, rows, tokens float64
	for row := range b.Rows {
		end := -1
		for i := (row+1)*b.Cols - 1; i >= row*b.Cols; i-- {
			switch {
			case !b.Mask[i]:
			case end < 0:
				end = i
			default:
				others, tokens = others+math.Abs(r[i]), tokens+1
			}
		}
		if end >= 0 {
			ends, rows = ends+math.Abs(r[end]-score[row]), rows+1
		}
	}
	return rows > 0 && ends/rows > 8*others/max(tokens, 1)+1e-4
}
