package trainer

import (
	"math"
	"slices"
)

// advantage computes advantages and returns.
func (r *run[F]) advantage() {
	r.groups = slices.Clone(r.group)
	if r.plant == "ADV-GROUP-OF-ONE" {
		for i := range r.groups {
			r.groups[i] = i
		}
	}
	switch r.o.advKind {
	case "gae":
		r.gae()
	case "rfpp":
		r.reinforcePlusPlus()
	case "remax":
		r.returns = r.toGo(r.token, 1, "carry")
		r.adv = slices.Clone(r.returns)
		for i := range r.adv {
			if r.mask[i] {
				r.adv[i] = r.sub(r.adv[i], r.num(r.values[i/r.cols*r.cols])) // any number of the row serves as greedy reward
			}
		}
	case "optimal_token_baseline":
		r.tokenBaseline()
	case "group":
		if r.o.normalizeThenSum && r.functions > 1 {
			r.rowAdv = r.normalizeThenSum()
		} else {
			r.rowAdv = r.grouped(r.sequence, r.o.singleton)
		}
		r.clipAdvantages(r.rowAdv)
		if r.plant == "KL-AFTER-BASELINE" {
			for i := range r.rowAdv {
				r.rowAdv[i] = r.sub(r.rowAdv[i], r.mul(r.beta(), r.rowKL(i)))
			}
		}
		if r.o.klPlace == "sequence_reward_after" && r.o.beta != 0 {
			r.afterBaseline()
		}
	case "batch_baseline", "rfpp_baseline":
		r.baselined()
	case "raw":
		r.rowAdv = slices.Clone(r.sequence)
		r.clipAdvantages(r.rowAdv)
	case "opo", "passk", "gpg":
		r.exotic()
		r.clipAdvantages(r.rowAdv)
	}
	if r.plant == "ADV-ROW-FROM-SPAN" {
		for i := range r.cols {
			if r.rowAdv == nil {
				r.adv[i] = r.sub(r.adv[i], 0.5)
			}
		}
		if r.rowAdv != nil {
			r.rowAdv[0] = r.sub(r.rowAdv[0], 0.5)
		}
	}
	if r.rowAdv != nil {
		r.adv = r.spread(r.rowAdv)
		if !r.broadcast { // what has one number per row multiplies every cell of it
			for i := range r.adv {
				r.adv[i] = r.rowAdv[i/r.cols]
			}
		}
	}
}

// clipAdvantages clips rewards that have their baseline, where the options say so.
func (r *run[F]) clipAdvantages(a []F) {
	if r.o.rewardClip == "after_baseline" {
		for i := range a {
			a[i] = r.clipReward(a[i])
		}
	}
}

// spread gives every token of a row its advantage, 0 to the others.
func (r *run[F]) spread(x []F) []F {
	y := make([]F, r.cells())
	for i := range y {
		if r.counts(i) {
			y[i] = x[i/r.cols]
		}
	}
	return y
}

// members returns the rows that share a baseline, group by group.
func (r *run[F]) members() [][]int {
	at := map[[2]int]int{}
	var rows [][]int
	file := 0
	for i, g := range r.groups {
		key := [2]int{g, 0}
		for r.spans[file].hi <= i {
			file++
		}
		switch r.plant {
		case "ADV-WRONG-GROUPS":
			key[0] = g / 2
		case "ADV-GROUP-SPLIT":
			key[1] = file
		}
		k, seen := at[key]
		if !seen {
			k = len(rows)
			at[key] = k
			rows = append(rows, nil)
		}
		rows[k] = append(rows[k], i)
	}
	return rows
}

// grouped centres and scales rewards by their groups.
func (r *run[F]) grouped(x []F, single string) []F {
	a := make([]F, len(x))
	ddof := r.o.advDDof
	scale := r.o.scale
	switch r.plant {
	case "ADV-DDOF":
		ddof = 1 - ddof
	case "ADV-BATCH-STD":
		scale = "batch_std"
	case "ADV-GROUP-STD":
		scale = "group_std"
	}
	eps := r.num(r.o.advEps)
	zero := make([]bool, len(x)) // equal rewards that count as exactly 0
	for _, rows := range r.members() {
		of := make([]F, len(rows))
		for k, i := range rows {
			of[k] = x[i]
		}
		n := F(len(rows))
		flat := slices.Max(of) == slices.Min(of)
		if len(rows) == 1 && r.plant != "ADV-GROUP-OF-ONE" {
			switch single {
			case "raw":
				a[rows[0]] = of[0]
				if scale == "group_std" || scale == "loo_std" {
					a[rows[0]] = r.div(of[0], r.add(1, eps))
				}
			case "nan":
				a[rows[0]] = F(math.NaN())
			}
			continue
		}
		sum := r.sum(of)
		for k, i := range rows {
			switch r.o.center {
			case "mean":
				a[i] = r.sub(of[k], r.div(sum, n))
			case "loo":
				a[i] = r.sub(of[k], r.div(r.sub(sum, of[k]), n-1))
			default:
				a[i] = of[k]
			}
			var sigma F
			switch scale {
			case "group_std":
				sigma = r.std(of, ddof)
				if r.plant == "ADV-ONE-PASS" {
					sigma = r.onePass(of, ddof)
				}
			case "loo_std":
				others := slices.Delete(slices.Clone(of), k, k+1)
				if len(others) > ddof {
					sigma = r.std(others, ddof)
				}
			default:
				if flat && r.o.zeroStd == "zero" {
					a[i], zero[i] = 0, true
				}
				continue
			}
			rule := r.o.zeroStd
			if r.plant == "ADV-LOO-ZERO-STD" {
				rule = "divide_eps"
			}
			switch {
			case rule == "skip" && sigma == 0:
			case rule == "zero" && (flat && scale == "group_std" || sigma == 0):
				a[i] = 0
			default:
				a[i] = r.div(a[i], r.add(sigma, eps))
			}
		}
	}
	if scale == "batch_std" {
		of := x
		var mean F
		if r.o.stdOf == "centred" {
			of = slices.Clone(a)
			mean = r.div(r.sum(of), F(len(of)))
		}
		sigma := r.add(r.std(of, ddof), eps)
		for i := range a {
			if !zero[i] {
				a[i] = r.div(r.sub(a[i], mean), sigma)
			}
		}
	}
	return a
}

// onePass is the standard deviation by E[x²] − μ², which float32 cannot hold where the mean is large.
func (r *run[F]) onePass(x []F, ddof int) F {
	var s, s2 F
	for _, v := range x {
		s += v
		s2 += F(v * v)
	}
	n := F(len(x))
	v := F(s2/n) - F(F(s/n)*F(s/n))
	return r.sqrt(max(F(v*n)/(n-F(ddof)), 0))
}

// normalizeThenSum normalises every reward function in its group, adds them up and normalises in the batch.
func (r *run[F]) normalizeThenSum() []F {
	total := make([]F, r.rows)
	x := make([]F, r.rows)
	for f := range r.functions {
		for i := range x {
			x[i] = r.rewards[i*r.functions+f]
		}
		z := r.grouped(x, "zero")
		for i := range z {
			w := r.num(r.weights[f])
			if r.plant == "REWARD-WEIGHTS-IGNORED" {
				w = 1
			}
			total[i] = r.add(total[i], r.mul(w, z[i]))
		}
	}
	mean := r.div(r.sum(total), F(r.rows))
	sigma := r.add(r.std(total, r.o.advDDof), r.num(r.o.advEps))
	for i := range total {
		total[i] = r.div(r.sub(total[i], mean), sigma)
	}
	return total
}

// baselined subtracts a baseline, the batch's or the group's mean, and whitens: the rows of batch_baseline, the tokens of
// rfpp_baseline.
func (r *run[F]) baselined() {
	a := slices.Clone(r.sequence)
	if r.o.advKind == "rfpp_baseline" {
		for _, rows := range r.members() {
			of := make([]F, len(rows))
			for k, i := range rows {
				of[k] = r.sequence[i]
			}
			mean := r.div(r.sum(of), F(len(of)))
			for k, i := range rows {
				a[i] = r.sub(of[k], mean)
			}
		}
		r.clipAdvantages(a)
		r.adv = r.spread(a)
		if r.o.whitenScope != "none" && r.o.whitenScope != "" {
			r.adv = r.whiten(r.adv, r.o.whitenShift)
		}
		return
	}
	mean := r.div(r.sum(a), F(len(a)))
	for i := range a {
		a[i] = r.sub(a[i], mean)
	}
	r.clipAdvantages(a)
	r.rowAdv = a
	if r.o.whitenScope != "none" && r.o.whitenScope != "" {
		r.rowAdv = r.whitenRows(a)
	}
}

// exotic are verl's estimators of rows beside GRPO.
func (r *run[F]) exotic() {
	x := r.sequence
	r.rowAdv = make([]F, r.rows)
	var solved F
	for _, s := range x {
		if s != 0 {
			solved++
		}
	}
	for _, rows := range r.members() {
		of, long := make([]F, len(rows)), make([]F, len(rows))
		for k, i := range rows {
			of[k] = x[i]
			long[k] = F(count(r.mask[i*r.cols : (i+1)*r.cols]))
		}
		switch r.o.advKind {
		case "opo": // the baseline is weighted by length
			terms := make([]F, len(rows))
			for k := range terms {
				terms[k] = r.mul(long[k], of[k])
			}
			base := r.div(r.sum(terms), r.sum(long))
			if len(rows) == 1 {
				base = 0
			}
			for k, i := range rows {
				r.rowAdv[i] = r.sub(of[k], base)
			}
		case "gpg": // r − μ, times the rewards over the non-zero ones
			mean := r.div(r.sum(of), F(len(of)))
			if len(rows) == 1 {
				mean = 0
			}
			alpha := r.div(F(r.rows), max(solved, 1))
			for k, i := range rows {
				r.rowAdv[i] = r.mul(alpha, r.sub(of[k], mean))
			}
		case "passk": // the best gets the distance to the second best
			best := slices.Index(of, slices.Max(of))
			others := slices.Delete(slices.Clone(of), best, best+1)
			gap := r.sub(of[best], slices.Max(others))
			if r.o.scale == "group_std" {
				gap = r.div(gap, r.add(r.std(of, 1), r.num(r.o.advEps)))
			}
			r.rowAdv[rows[best]] = gap
		}
	}
}

// afterBaseline subtracts the KL term from rewards that have their baseline, token by token as OpenRLHF does: the advantage of
// a token is what is left of the row's reward from there on.
func (r *run[F]) afterBaseline() {
	r.token = r.tokenRewards(r.rowAdv)
	r.adv = r.toGo(r.token, 1, "zero_step")
	r.rowAdv = nil
}
