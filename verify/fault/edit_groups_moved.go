package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// statisticMoves are orders in which the statistics of rows, one for each answer of a rollout, may stand against the rewards: the position that the statistics
// of the answer at k of n·g are taken from.
var statisticMoves = []struct {
	title string
	from  func(k, n, g int) int
}{
	{"the answer before, of the first that of the last", func(k, n, g int) int { return (k + n*g - 1) % (n * g) }},
	{"the answer behind, of the last that of the first", func(k, n, g int) int { return (k + 1) % (n * g) }},
	{"the answer before, of the first its own", func(k, _, _ int) int { return max(k-1, 0) }},
	{"the answer behind, of the last its own", func(k, n, g int) int { return min(k+1, n*g-1) }},
	{"the group before, of the first those of the last", func(k, n, g int) int { return (k + n*g - g) % (n * g) }},
	{"the group behind, of the last those of the first", func(k, n, g int) int { return (k + g) % (n * g) }},
	{"the answers in reversed order", func(k, n, g int) int { return n*g - 1 - k }},
}

// statisticParts are what is moved, where the rest stays.
var statisticParts = []struct {
	title           string
	mean, deviation bool
}{{"baselines are", true, false}, {"deviations are", false, true}, {"baselines and deviations are", true, true}}

// movedStatistics returns edits of group advantages A = (r − b)/s whose b, s or both, which stand at each answer, are moved against the rewards.
func movedStatistics(o *stage.Outcome) (list []edit) {
	if rolloutOf(o.Case, o.Check) == nil {
		return nil
	}
	scaled := o.Case.Set.Value("adv.scale").String() == "group_std"
	for _, m := range statisticMoves {
		for _, part := range statisticParts {
			if part.deviation && !scaled {
				continue
			}
			list = append(list, edit{id: "ADV-OTHER-GROUP", title: part.title + " those of " + m.title, changes: 1, foreign: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return withMoved(m.from, part.mean, part.deviation, c, ch)
				}})
		}
	}
	return list
}

func withMoved(from func(k, n, g int) int, mean, deviation bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	r := rolloutOf(c, ch)
	if r == nil || c.Set.Value("reward.clip").String() == "after_baseline" {
		return nil
	}
	score := c.B.Row("scores")
	loo, scaled := c.Set.Value("adv.center").String() == "loo", c.Set.Value("adv.scale").String() == "group_std"
	eps, ddof := numberOr(c, "adv.eps", 0), numberOr(c, "adv.ddof", 1)
	base, by, size := make([]float64, len(r.rows)), make([]float64, len(r.rows)), make([]float64, len(r.rows)) // by position
	for lo := 0; lo < len(r.rows); lo += r.g {
		var x []float64
		for _, row := range r.rows[lo : lo+r.g] {
			x = append(x, score[row])
		}
		m, square, most := meanOf(x), 0.0, 0.0
		for _, v := range x {
			square, most = square+(v-m)*(v-m), max(most, math.Abs(v))
		}
		for k, v := range x {
			base[lo+k], by[lo+k], size[lo+k] = m, 1, most
			if loo {
				base[lo+k] = (m*float64(r.g) - v) / float64(r.g-1)
			}
			if scaled {
				by[lo+k] = math.Sqrt(square/max(float64(r.g)-ddof, 1)) + eps
			}
		}
	}
	adv, bound := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	for k, row := range r.rows {
		at, of := k, k
		if mean {
			at = from(k, r.n, r.g)
		}
		if deviation {
			of = from(k, r.n, r.g)
		}
		if !(by[of] > 0) {
			return nil
		}
		adv[row] = (score[row] - base[at]) / by[of]
		bound[row] = 8*c.Unit*(math.Abs(score[row])+2*size[at])/by[of] + 8*c.Unit*math.Abs(adv[row])*(1+size[of]/by[of])
	}
	return perRowOrToken(adv, bound, c, ch)
}

// acrossEdits returns the edit of group advantages whose means and deviations are those of sets that a table of scores is cut into along another axis than the
// one that they are given back by, where nothing shows the order of the answers.
func acrossEdits(o *stage.Outcome) []edit {
	if !plainGroups(o.Case, o.Check) || o.Case.Set.Value("adv.center").String() != "mean" || acrossGroups(o.Case, o.Check) == nil {
		return nil
	}
	return []edit{{id: "ADV-WRONG-GROUPS", title: "mean and deviation of each group are those of other rows, each of which is in one such set: a table of scores is cut into groups along one axis and given back along another",
		changes: mostChanges, foreign: true, predict: acrossGroups}}
}

// acrossGroups predicts advantages A = (r − m)/(s + ε) with m and s of sets of rows that are no groups. The answers of a group are on a line of their rewards,
// which shows its m and s. Where the groups have G rows each and the sets are another partition of the rows into as many sets of G,
//
//	Σ G·m = Σ r   and, of deviations, Σ ((G − ddof)·s² + G·m²) = Σ r²
//
// over the groups. Nil where these do not hold, where rows of a group are on no line, or where each m is that of some group: then rows have those of others.
func acrossGroups(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const least, near = 3, 2e-6 // groups; of the sizes of the sums
	id, score, got := c.B.Row("group_id"), c.B.Row("scores"), firstAdvantages(c.B, ch.Output)
	g, same := groupSize(id)
	if !plainGroups(c, ch) || !same || len(got) != len(id) || g < 4 || len(id)/g < least || slices.ContainsFunc(got, func(x float64) bool { return math.IsNaN(x - x) }) {
		return nil
	}
	eps, ddof, scaled := numberOr(c, "adv.eps", 0), numberOr(c, "adv.ddof", 1), c.Set.Value("adv.scale").String() == "group_std"
	members := membersOf(id)
	adv, bound := make([]float64, len(id)), make([]float64, len(id))
	var sums, squares, all, allSquares, size float64
	var shown, right []float64
	for _, of := range slices.Compact(slices.Sorted(slices.Values(id))) {
		rows := members[of]
		low, high := extremes(rows, func(r int) float64 { return score[r] })
		own := 0.0
		for _, r := range rows {
			own, all, allSquares, size = own+score[r]/float64(g), all+score[r], allSquares+score[r]*score[r], max(size, math.Abs(score[r]))
		}
		a := 1.0
		if scaled {
			a = (got[high] - got[low]) / (score[high] - score[low])
		}
		s := 1/a - eps
		if !(a > 0) || math.IsInf(a, 0) || scaled && !(s > 0) {
			return nil
		}
		m := (score[low] + score[high] - (got[low]+got[high])/a) / 2
		for _, r := range rows {
			adv[r], bound[r] = a*(score[r]-m), 16*c.Unit*(a*(math.Abs(score[r])+math.Abs(m))+math.Abs(got[low])+math.Abs(got[high]))
		}
		shown, right = append(shown, m), append(right, own)
		sums, squares = sums+float64(g)*m, squares+(float64(g)-ddof)*s*s+float64(g)*m*m
	}
	slices.Sort(shown)
	slices.Sort(right)
	dealt := true
	for k, m := range shown {
		dealt = dealt && math.Abs(m-right[k]) <= 8*near*size
	}
	n := float64(len(id))
	if dealt || math.Abs(sums-all) > near*n*size || scaled && math.Abs(squares-allSquares) > 4*near*n*size*size {
		return nil
	}
	return perRowOrToken(adv, bound, c, ch)
}

// othersTwice returns edits of advantages that are divided by the deviation of the other rows of their group (adv.scale loo_std), which is in them more than once,
// or not as a divisor. With a the difference from the baseline and A = a/(s + ε), a/A is s + ε.
func othersTwice(o *stage.Outcome) (list []edit) {
	if v := o.Case.Set.Value("adv.scale"); o.Check.ID != "advantage/group" || v.Kind() != convention.Enum || v.Text() != "loo_std" {
		return nil
	}
	for _, f := range []struct {
		id, title string
		of        func(a, q float64) float64
	}{
		{"ADV-NORMALISED-TWICE", "they are divided by the deviation of the others twice", func(a, q float64) float64 { return q * q / a }},
		{"ADV-SPREAD", "they are multiplied by the deviation of the others, where they should be divided by it", func(a, q float64) float64 { return a * a / q }},
		{"ADV-SPREAD", "they are divided by the root of the deviation of the others", func(a, q float64) float64 { return math.Copysign(math.Sqrt(a*q), a) }},
	} {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			a, p := under(option("adv.scale", "none"), c, ch), under(sameInput, c, ch)
			if a == nil || p == nil || len(a.Want) != len(p.Want) {
				return nil
			}
			q := altered(p)
			q.Scale = 1
			for i, x := range a.Want {
				if x == 0 || p.Want[i] == 0 {
					continue
				}
				q.Want[i] = f.of(x, p.Want[i])
				off := 2*a.Bound[i]/math.Abs(x) + 2*p.Bound[i]/math.Abs(p.Want[i])
				q.Bound[i] = (off + 8*c.Unit) * math.Abs(q.Want[i])
			}
			return q
		}})
	}
	return list
}

// centredSpreads returns edits of advantages a/(s + ε) whose s is that of the differences a from the baselines, over all rows (adv.std_of centred): what is
// subtracted, the number that divides or the rows that it is of is another.
func centredSpreads(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "advantage/group" || c.Set.Value("adv.scale").String() != "batch_std" || c.Set.Value("adv.std_of").String() != "centred" {
		return nil
	}
	raw := under(option("adv.scale", "none"), c, o.Check)
	if raw == nil {
		return nil
	}
	own := map[bool]string{true: "std0", false: "std1"}[numberOr(c, "adv.ddof", 1) == 0]
	for scope, over := range againScopes {
		for _, centred := range []bool{true, false} {
			for _, s := range append([]struct{ name, title string }{{"moment", "the mean square"}, {"√std1", "the root of the deviation"}}, spreads[1:]...) {
				words := "the differences from the baseline are divided by " + s.title + ", over " + over.title
				if !centred {
					words += ", and their mean is not subtracted"
				}
				if scope == 0 && centred && s.name == own {
					continue
				}
				for _, eps := range []float64{numberOr(c, "adv.eps", 0), 0} {
					form := againForm{scope: scope, centred: centred, spread: s.name, eps: eps}
					if !nearBy(o, form.from(c, raw)) {
						continue
					}
					list = append(list, edit{id: "ADV-SPREAD", title: words, changes: 1, foreign: foreignSpreads[s.name] || s.name == "moment" || s.name == "√std1",
						predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
							return form.from(c, under(option("adv.scale", "none"), c, ch))
						}})
					break
				}
			}
		}
	}
	return list
}
