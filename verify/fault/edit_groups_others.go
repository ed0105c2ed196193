package fault

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// otherMeans are the numbers that a program may take for the mean of the other rows of a group, or of their squares: sum is that of the others, own the row's,
// of n rows in all.
var otherMeans = []struct {
	title string
	of    func(sum, own, n float64) float64
}{
	{"the mean of the other rows", func(sum, _, n float64) float64 { return sum / (n - 1) }},
	{"the sum of the other rows over the number of all", func(sum, _, n float64) float64 { return sum / n }},
	{"the mean of all rows", func(sum, own, n float64) float64 { return (sum + own) / n }},
	{"the sum of all rows over the number of the others", func(sum, own, n float64) float64 { return (sum + own) / (n - 1) }},
	{"0", func(float64, float64, float64) float64 { return 0 }},
}

// otherCounts are what the variance of the other rows, k of them, may be multiplied by, to be one over degrees of freedom.
var otherCounts = []struct {
	title string
	of    func(k float64) float64
}{
	{"k/(k − 1)", func(k float64) float64 { return k / (k - 1) }},
	{"1", func(float64) float64 { return 1 }},
	{"(k + 1)/k, of all rows", func(k float64) float64 { return (k + 1) / k }},
	{"(k − 1)/k", func(k float64) float64 { return (k - 1) / k }},
	{"k − 1", func(k float64) float64 { return k - 1 }},
	{"1/(k − 1)", func(k float64) float64 { return 1 / (k - 1) }},
}

// othersMoments returns edits of advantages A = (r − m)/(s + ε) with m and s of the other rows of a group (adv.center loo, adv.scale loo_std), where a program
// makes the variance of moments, as NeMo-RL does,
//
//	s² = (E[r²] − m²)·k/(k − 1)
//
// and has one of the baseline, E[r²], m and the count wrong, or the baseline and m, which are one variable, alike.
func othersMoments(o *stage.Outcome) (list []edit) {
	c := o.Case
	if o.Check.ID != "advantage/group" || c.Set.Value("adv.center").String() != "loo" || c.Set.Value("adv.scale").String() != "loo_std" || !plainGroupsOf(c.Of(c.B, c.Set), o.Check, "loo_std") {
		return nil
	}
	right := 1 - int(numberOr(c.Of(c.B, c.Set), "adv.ddof", 1))
	add := func(id, title string, baseline, square, mean, count int) {
		list = append(list, edit{id: id, title: title, changes: 1, foreign: count == right || count > 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return byOtherMoments(c, ch, baseline, square, mean, count)
		}})
	}
	for k := 1; k < len(otherMeans); k++ {
		what := otherMeans[k].title
		add("ADV-CENTER", what+" stands for the mean of the other rows, in the baseline and in the variance of the others", k, 0, k, right)
		add("ADV-SPREAD", what+" stands for the mean of the other rows in the variance of the others, E[r²] − m²", 0, 0, k, right)
		if k < len(otherMeans)-1 {
			add("ADV-SPREAD", "E[r²] of the variance of the others is not that of the other rows but, of their squares, "+what, 0, k, 0, right)
			add("ADV-SPREAD", what+" stands for that of the other rows in the variance of the others, of the rewards and of their squares", 0, k, k, right)
			add("ADV-CENTER", what+" stands for that of the other rows in the baseline and in the variance of the others, there of the squares, too", k, k, k, right)
		}
	}
	for k := range otherCounts {
		if k != right {
			add("ADV-DDOF", "the variance of the k other rows, E[r²] − m², is multiplied by "+otherCounts[k].title, 0, 0, 0, k)
		}
	}
	return list
}

// plainGroupsOf is [plainGroups] of advantages that have another scale.
func plainGroupsOf(c *stage.Case, ch *stage.Check, scale string) bool {
	if v := c.Set.Value("adv.scale"); v.Kind() != convention.Enum || v.Text() != scale {
		return false
	}
	return plainGroups(c.Of(c.B, c.Set.With("adv.scale", parsed("adv.scale", "none"), "hypothesis")), ch)
}

// byOtherMoments predicts advantages of these moments. The variance cancels: it is off by n + 4 roundings of E[r²] and m².
func byOtherMoments(c *stage.Case, ch *stage.Check, baseline, square, mean, count int) *stage.Prediction {
	id, score := c.B.Row("group_id"), c.B.Row("scores")
	eps, skip := numberOr(c, "adv.eps", 0), c.EnumOr("adv.zero_std", "divide_eps") == "skip"
	members := membersOf(id)
	adv, bound := make([]float64, len(id)), make([]float64, len(id))
	for _, rows := range members {
		n := float64(len(rows))
		if n < 3 {
			return nil
		}
		var all, squares, size float64
		for _, r := range rows {
			all, squares, size = all+score[r], squares+score[r]*score[r], size+math.Abs(score[r])
		}
		for _, r := range rows {
			own := score[r]
			a := own - otherMeans[baseline].of(all-own, own, n)
			e2, m := otherMeans[square].of(squares-own*own, own*own, n), otherMeans[mean].of(all-own, own, n)
			by := otherCounts[count].of(n - 1)
			v := max((e2-m*m)*by, 0)
			off := (n + 4) * c.Unit * (e2 + m*m) * by
			s := math.Sqrt(v)
			d := s + eps
			if s == 0 && skip {
				d = 1
			}
			if !(d > 0) {
				return nil
			}
			eS := math.Sqrt(off)
			if s > 0 {
				eS = min(eS, off/s)
			}
			adv[r] = a / d
			bound[r] = (n+4)*c.Unit*(size+math.Abs(own))/d + math.Abs(adv[r])*(eS/d+8*c.Unit)
		}
	}
	return perRowOrToken(adv, bound, c, ch)
}
