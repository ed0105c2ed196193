package stage

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
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
	adv := rowAdvantages(b)
	if len(score) != b.Rows || len(id) != b.Rows || len(adv) != b.Rows {
		return nil
	}
	groups := map[float64][]int{}
	for r, g := range id {
		groups[g] = append(groups[g], r)
	}
	if k := sumsOfKL(b); k != nil {
		if beta := penaltyOf(score, k, adv, groups); beta > 0 {
			left := eachOf(len(score), func(r int) float64 { return score[r] - float64(beta*k[r]) })
			for _, list := range formsOf(left, adv, groups) {
				lists = append(lists, append(list, word("kl.place", "sequence_reward_before_baseline"), amount("kl.beta", beta)))
			}
		}
	}
	return append(lists, formsOf(score, adv, groups)...)
}

// rowAdvantages are the advantages of the responses, those of their first tokens where they were dumped per token; nil of neither.
func rowAdvantages(b *dump.Batch) []float64 {
	if adv := b.Row("advantages"); len(adv) == b.Rows {
		return adv
	}
	if x := b.Token("advantages"); x != nil {
		return firstTokens(b, x)
	}
	return nil
}

// sumsOfKL are the sums over the tokens of each response of the dumped KL, or where none was dumped of log π − log π_ref; nil of neither.
func sumsOfKL(b *dump.Batch) []float64 {
	if k := b.Row("kl"); len(k) == b.Rows {
		return k
	}
	k, lp, ref := b.Token("kl"), b.Token("logp_old"), b.Token("logp_ref")
	if lp == nil {
		lp = b.Token("logp_new")
	}
	switch {
	case k != nil:
	case lp != nil && ref != nil:
		k = make([]float64, len(lp))
		for i := range k {
			k[i] = lp[i] - ref[i]
		}
	default:
		return nil
	}
	return rl.RowSums(nil, k, b.Mask, b.Rows, b.Cols)
}

// penaltyOf solves A = u·(s − s̄) − u·β·(K − K̄) in each group, whatever its scale u is, for β: the median of the groups, 0 where it is not that of
// three quarters of them to a hundredth, or fewer than four rows stand behind it for each that is solved.
func penaltyOf(score, kl, adv []float64, groups map[float64][]int) float64 {
	var all []float64
	rows := 0
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		ids := groups[g]
		var s, k, a float64
		for _, r := range ids {
			s, k, a = s+score[r]/float64(len(ids)), k+kl[r]/float64(len(ids)), a+adv[r]/float64(len(ids))
		}
		var ss, sk, kk, sa, ka float64
		for _, r := range ids {
			x, y, z := score[r]-s, kl[r]-k, adv[r]-a
			ss, sk, kk, sa, ka = ss+float64(x*x), sk+float64(x*y), kk+float64(y*y), sa+float64(x*z), ka+float64(y*z)
		}
		det := float64(ss*kk) - float64(sk*sk)
		u, v := (float64(kk*sa)-float64(sk*ka))/det, (float64(ss*ka)-float64(sk*sa))/det
		shows := math.Abs(v)*math.Sqrt(kk) > 1e-5*math.Abs(u)*math.Sqrt(ss) // more than what advantages in float32 are rounded by
		if beta := -v / u; len(ids) >= 4 && det > 1e-6*ss*kk && u > 0 && shows && !math.IsInf(beta, 0) {
			all, rows = append(all, beta), rows+len(ids)
		}
	}
	if len(all) == 0 || len(all) == 1 && rows < 6 {
		return 0
	}
	beta := middle(slices.Clone(all), 1)
	same := 0
	for _, x := range all {
		if math.Abs(x-beta) <= 0.01*math.Abs(beta) {
			same++
		}
	}
	if !(beta > 0) || 4*same < 3*len(all) {
		return 0
	}
	return written(beta, 2e-3)
}

// formsOf is [groupForms] of scores that may have lost a KL penalty.
func formsOf(score, adv []float64, groups map[float64][]int) (lists [][]assign) {
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
