package stage

import (
	"cmp"
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// groupForm is a way to centre and to scale the scores of a group, and the ε that advantages of that form show.
type groupForm struct {
	center, scale string
	ddof          int
	eps, spread   float64
}

// groupForms proposes how advantages A = c/(σ + ε) of responses are made of the scores of their groups: of every centre, scale and ddof of
// which c/A − σ is one number for all rows, those of the least spread, with that number.
func groupForms(b *dump.Batch) (lists [][]assign) {
	score, id := b.Row("scores"), b.Row("group_id")
	adv := b.Row("advantages")
	if len(adv) != b.Rows {
		if x := b.Token("advantages"); x != nil {
			adv = firstTokens(b, x)
		}
	}
	if len(score) != b.Rows || len(id) != b.Rows || len(adv) != b.Rows {
		return nil
	}
	groups := map[float64][]int{}
	for r, g := range id {
		groups[g] = append(groups[g], r)
	}
	for _, center := range []string{"mean", "loo"} {
		if f, ok := groupEps(score, adv, groups, center, "none", 0); ok && math.Abs(f.eps-1) <= 1e-2 {
			lists = append(lists, []assign{word("adv.kind", "group"), word("adv.center", center), word("adv.scale", "none"), word("whiten.scope", "none")})
		}
	}
	var forms []groupForm
	for _, center := range []string{"mean", "loo"} {
		for _, scale := range []string{"group_std", "batch_std"} {
			for ddof := range 2 {
				if f, ok := groupEps(score, adv, groups, center, scale, ddof); ok {
					forms = append(forms, f)
				}
			}
		}
	}
	all := slices.Clone(forms)
	forms = slices.DeleteFunc(forms, func(f groupForm) bool { // one σ of all rows is that of the other ddof and a part of it
		return f.scale == "batch_std" && slices.ContainsFunc(all, func(g groupForm) bool {
			return g.scale == f.scale && g.center == f.center && math.Abs(g.eps) < math.Abs(f.eps)
		})
	})
	slices.SortStableFunc(forms, func(x, y groupForm) int { return cmp.Compare(x.spread, y.spread) })
	var long [][]assign // of one group some ε is right in every form: one that people write comes before those that nobody does
	for i, f := range forms {
		if i >= 2 && f.spread > 4*forms[1].spread {
			break
		}
		list := []assign{word("adv.kind", "group"), word("adv.center", f.center), word("adv.scale", f.scale), word("adv.ddof", []string{"0", "1"}[f.ddof]), word("whiten.scope", "none")}
		if f.eps <= f.spread {
			lists = append(lists, list) // no ε shows: that of a release
			continue
		}
		for _, eps := range []float64{written(f.eps, 2e-2), written(f.eps, 1e-3)} {
			lists = append(lists, append(slices.Clone(list), amount("adv.eps", eps)))
		}
		long = append(long, append(list, amount("adv.eps", f.eps)))
	}
	return append(lists, long...)
}

// groupEps returns the median of c/A − σ of a form and the median distance from it, and whether that is below a hundredth of σ in all but a few. Of
// one σ for all rows any number is c/A − σ, that of another ddof, too, so that it has to be small there.
func groupEps(score, adv []float64, groups map[float64][]int, center, scale string, ddof int) (groupForm, bool) {
	all := momentsOf(score, nil, ddof, 0, 0)
	var x []float64
	size := 0.0
	for _, ids := range groups {
		n := float64(len(ids))
		if n < 2 {
			continue
		}
		m := momentsOf(gather(Input{X: score}, ids).X, nil, ddof, 0, 0)
		sigma := math.Sqrt(m.v)
		switch scale {
		case "batch_std":
			sigma = math.Sqrt(all.v)
		case "none":
			sigma = 0
		}
		for _, r := range ids {
			c := score[r] - m.mean
			if center == "loo" {
				c *= n / (n - 1)
			}
			if e := c/adv[r] - sigma; adv[r] != 0 && c != 0 && !math.IsNaN(e) && !math.IsInf(e, 0) {
				x = append(x, e)
				size = max(size, sigma, math.Abs(c/adv[r]))
			}
		}
	}
	if len(x) < 4 {
		return groupForm{}, false
	}
	eps := middle(slices.Clone(x), 1)
	for i := range x {
		x[i] = math.Abs(x[i] - eps)
	}
	slices.Sort(x)
	return groupForm{center, scale, ddof, eps, x[len(x)/2]}, x[len(x)*3/4] <= 0.01*size && eps >= -0.01*size && (scale != "batch_std" || math.Abs(eps) <= 0.02*size)
}
