package stage

import (
	"cmp"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Shown returns what the numbers of an output give of its options in closed form where nobody declares them, the likeliest first: each a start for a
// search of the others. It proposes only.
func Shown(ch *Check, b *dump.Batch, set *convention.Set) [][]Change {
	var lists [][]assign
	switch {
	case ch.Output == "returns":
		lists = append(decays(b), impliedRewardForms(b, set)...)
	case ch.ID == "gae/advantage":
		if lists = decays(b); len(lists) > 0 {
			for i, white := 0, whitening(b); i < len(lists) && white != nil; i++ {
				if slices.Contains(white, word("whiten.scope", "minibatch")) && slices.Contains(lists[i], word("rewards.whiten", "shift_mean_false")) {
					lists[i] = append(lists[i], word("rewards.whiten_scope", "global")) // one line of all rows told it
				}
				lists[i] = append(lists[i], white...)
			}
		} else {
			lists = impliedRewardForms(b, set)
			if in := withReturnsImplied(b, rewardEstimates(b, set)); in != nil { // the returns may be of another recursion, or of none
				lists = append(lists, impliedRewardForms(in, set)...)
			}
		}
		if b.Token("returns") != nil { // they may be of another recursion than the advantages
			lists = append(lists, decays(b.Without("returns"))...)
		}
		if white := ofUnitDeviation(b); white != nil {
			for i := range lists {
				lists[i] = append(slices.Clip(lists[i]), white...)
			}
		}
		if set.Value("adv.kind").Kind() == convention.Unknown {
			for i := range lists {
				lists[i] = append(slices.Clip(lists[i]), word("adv.kind", "gae"))
			}
		}
	case ch.ID == "advantage/group" || ch.ID == "advantage/return":
		if lists = estimators(b); ch.ID == "advantage/return" {
			lists = append(impliedRewardForms(b, set), lists...)
		} else {
			lists = slices.Concat(heldAdvantages(b), penalisedAdvantages(b), lists)
		}
	case ch.ID == "kl/token":
		lists = klBounds(b)
	case ch.ID == "ratio/is_weights":
		lists = weightForms(b)
	case ch.ID == "gradient/dlogp":
		lists = gradientForms(b)
	case ch.ID == "reward/token":
		lists = rewardTerms(b, set)
	case ch.ID == "logp/new":
		lists = temperatures(b)
	case ch.ID == "aggregate/value_loss" || ch.ID == "gradient/dvalues":
		lists = valueClips(b, set, valueForms[0])
	}
	return openOf(lists, set)
}

// openOf returns the changes that lists make of a set, those that contradict nothing and have legal values only.
func openOf(lists [][]assign, set *convention.Set) (shown [][]Change) {
	for _, list := range lists {
		var changes []Change
		open := true
		for _, a := range list {
			v := set.Value(a.option)
			switch {
			case v.Kind() == convention.Unknown:
				changes = append(changes, Change{a.option, v, a.value})
			case v != a.value:
				open = false
			}
			if _, err := convention.Parse(a.option, a.value.String()); err != nil {
				open = false
			}
		}
		if open && len(changes) > 0 && !slices.ContainsFunc(shown, func(other []Change) bool { return slices.Equal(other, changes) }) {
			shown = append(shown, changes)
		}
	}
	return shown
}

// TellsByGradient reports whether ShownByGradient has anything to search.
func TellsByGradient(ch *Check, b *dump.Batch) bool {
	return (ch.ID == "aggregate/pg_loss" || ch.ID == "aggregate/loss") && b.Token("token_loss") == nil && b.Token("dlogp") != nil
}

// ShownByGradient returns what a search finds of the gradient of a policy loss whose tokens were not dumped: one number of a file tells little of
// them. Where ratios stop a gradient tells to lie between two tokens, and the loss exactly, so that bounds are searched again.
func ShownByGradient(ch *Check, b *dump.Batch, set *convention.Set) (shown [][]Change) {
	const most = 3
	if !TellsByGradient(ch, b) {
		return nil
	}
	fits, _ := Complete(Find("gradient/dlogp"), b, set)
	for _, f := range fits[:min(most, len(fits))] {
		if f.Outcome.Verdict == check.Pass {
			shown = append(shown, f.Changes)
			if free := slices.DeleteFunc(slices.Clone(f.Changes), func(c Change) bool { return c.Option == "clip.low" || c.Option == "clip.high" }); len(free) < len(f.Changes) {
				shown = append(shown, free)
			}
		}
	}
	return shown
}

// observations are rows of n numbers and the y that a linear form of them gives.
type observations struct {
	n int
	x []float64 // of n + 1 numbers each, y last
}

func (o *observations) add(row ...float64) {
	for _, v := range row {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return
		}
	}
	o.x = append(o.x, row...)
}

func (o *observations) len() int { return len(o.x) / (o.n + 1) }

// solve returns the coefficients of y = Σ w·x by least squares, and the RMS of what they leave. Rows that are off by more than 16 times the
// median are left out, at most a quarter of all: another rule made them. w is nil where the rows determine no coefficients.
func (o *observations) solve() (w []float64, left float64) {
	m := o.n + 1
	kept := slices.Repeat([]bool{true}, o.len())
	off := make([]float64, o.len())
	for range 6 {
		a := make([]float64, o.n*m)
		rows := 0
		for r := range kept {
			if !kept[r] {
				continue
			}
			rows++
			x := o.x[r*m : (r+1)*m]
			for i := range o.n {
				for j := range m {
					a[i*m+j] += float64(x[i] * x[j])
				}
			}
		}
		if rows < 2*m {
			return nil, 0
		}
		if w = eliminate(a, o.n); w == nil {
			return nil, 0
		}
		left = 0
		for r := range off {
			x := o.x[r*m : (r+1)*m]
			off[r] = x[o.n]
			for i := range o.n {
				off[r] -= float64(w[i] * x[i])
			}
			if off[r] = math.Abs(off[r]); kept[r] {
				left += float64(off[r] * off[r])
			}
		}
		left = math.Sqrt(left / float64(rows))
		limit := 16 * middle(slices.Clone(off), 1)
		changed, out := false, 0
		for r, d := range off {
			keep := d <= limit
			if !keep {
				out++
			}
			changed = changed || keep != kept[r]
			kept[r] = keep
		}
		if !changed || 4*out > len(off) {
			break
		}
	}
	return w, left
}

// decays proposes γ and λ of GAE. Between two tokens of a response one after the other, with R the returns,
//
//	R_t = r_t + γ(1 − λ)·V_{t+1} + γλ·R_{t+1}
//
// and with rewards that were whitened to a·r + b, where the dump has them before, a·r_t + b in place of r_t. Of advantages that a file whitens to
// a·A + b, where there are no returns,
//
//	A_t = a·(r_t − V_t) + aγ·V_{t+1} + γλ·A_{t+1} + (1 − γλ)·b
func decays(b *dump.Batch) (lists [][]assign) {
	r, v, ret, adv := b.Token("token_rewards"), b.Token("values"), b.Token("returns"), b.Token("advantages")
	if r == nil || v == nil || ret == nil && adv == nil {
		return nil
	}
	done := b.Token("dones")
	pairs := func(lo, hi int, add func(i int)) {
		for i := lo * b.Cols; i < hi*b.Cols; i++ {
			if (i+1)%b.Cols != 0 && b.Mask[i] && b.Mask[i+1] && (done == nil || done[i] == 0 && done[i+1] == 0) {
				add(i)
			}
		}
	}
	if ret != nil {
		two, three, four := observations{n: 2}, observations{n: 3}, observations{n: 4}
		low, high := math.Inf(1), math.Inf(-1)
		pairs(0, b.Rows, func(i int) {
			two.add(v[i+1], ret[i+1], ret[i]-r[i])
			three.add(v[i+1], ret[i+1], 1, ret[i])
			four.add(v[i+1], ret[i+1], r[i], 1, ret[i])
			low, high = min(low, r[i]), max(high, r[i])
		})
		whitened := &four
		if low == high { // of rewards that are one number where both tokens are, a·r is a part of b
			whitened = &three
		}
		size := rms(ret, func(i int) bool { return b.Mask[i] })
		if w, left := two.solve(); w != nil && left <= size/64 {
			if fit := lineOfSurprise(b, 0, b.Rows); math.Abs(w[0]) <= 1e-4 && fit != nil && fit.left > fit.size/64 { // of rewards alone: advantages are no part of them
				for _, list := range decaysOfAdvantages(b, pairs) {
					lists = append(lists, append(list, word("returns.of", "reward_to_go")))
				}
			}
			if beyond(w) { // what carries A_{t+1} is λ alone
				lists = append(lists, []assign{amount("gae.gamma", written(w[0]+w[1], 1e-3)), amount("gae.lambda", written(w[1], 1e-3))})
			}
			for _, g := range gammas(two, w) {
				lists = append(lists, []assign{amount("gae.gamma", g[0]), amount("gae.lambda", g[1])})
			}
			if left <= 1e-5*size {
				return lists
			}
		}
		if w, left := whitened.solve(); w != nil && left <= size/64 {
			for _, tol := range []float64{1e-5, 1e-3} {
				g := unit(w[0] + w[1])
				lists = append(lists, []assign{word("rewards.whiten", "shift_mean_false"), amount("gae.gamma", written(g, tol)), amount("gae.lambda", written(unit(w[1]/g), tol))})
			}
		}
		return lists
	}
	return decaysOfAdvantages(b, pairs)
}

// decaysOfAdvantages is [decays] of advantages alone.
func decaysOfAdvantages(b *dump.Batch, pairs func(lo, hi int, add func(i int))) (lists [][]assign) {
	r, v, adv := b.Token("token_rewards"), b.Token("values"), b.Token("advantages")
	if adv == nil {
		return nil
	}
	var gs, ls []float64
	white := false
	for _, f := range b.Files {
		o := observations{n: 4}
		pairs(f.Lo, f.Hi, func(i int) { o.add(r[i]-v[i], v[i+1], adv[i+1], 1, adv[i]) })
		if w, left := o.solve(); w != nil && w[0] > 0 && left < 1./64 {
			gs, ls = append(gs, w[1]/w[0]), append(ls, w[2]/(w[1]/w[0]))
			white = white || math.Abs(w[0]-1) > 1e-4 || math.Abs(w[3]) > 1e-4 // a is not 1, or b not 0
		}
	}
	if len(gs) == 0 {
		return nil
	}
	g, l := middle(gs, 1), middle(ls, 1)
	for _, tol := range []float64{1e-5, 1e-3} {
		list := []assign{amount("gae.gamma", written(unit(g), tol)), amount("gae.lambda", written(unit(l), tol))}
		if !white {
			list = append(list, word("whiten.scope", "none"))
		}
		lists = append(lists, list)
	}
	return lists
}

// whitening proposes what advantages that are A = a·(R − V) + b of the returns say of how they were whitened: not at all where a is 1 and b is 0,
// without a division where a is 1; over each file where each has a line of its own.
func whitening(b *dump.Batch) []assign {
	fit := lineOfSurprise(b, 0, b.Rows)
	switch {
	case fit == nil:
		return nil
	case fit.left > fit.size/64:
		for _, f := range b.Files {
			if own := lineOfSurprise(b, f.Lo, f.Hi); own == nil || own.left > own.size/1000 {
				return nil
			}
		}
		return []assign{word("whiten.scope", "minibatch")}
	case math.Abs(fit.a-1) > 1e-4+fit.left/fit.size:
		return nil
	case math.Abs(fit.b) <= 1e-4*fit.size+fit.left:
		return []assign{word("whiten.scope", "none")}
	}
	return []assign{word("whiten.eps_place", "no_std")}
}

// ofUnitDeviation proposes the deviation that advantages were divided by where their mean is 0 and it is 1: with n or with n − 1, over each file, over the rows of each
// step, or over all.
func ofUnitDeviation(b *dump.Batch) []assign {
	of := func(lo, hi int) (ddof string) {
		var mean, square, n float64
		adv := b.Token("advantages")
		for i := range b.TokensIn(lo, hi) {
			mean, square, n = mean+adv[i], square+float64(adv[i]*adv[i]), n+1
		}
		const near = 1e-5
		switch mean, square = mean/n, square/n-float64(mean/n*(mean/n)); {
		case !(math.Abs(mean) <= near) || 1/n < 16*near:
		case math.Abs(square-1) <= near:
			return "0"
		case math.Abs(square*n/(n-1)-1) <= near:
			return "1"
		}
		return ""
	}
	if b.Token("advantages") == nil {
		return nil
	}
	ofEach := func(runs [][2]int) string {
		ddof := of(runs[0][0], runs[0][1])
		for _, r := range runs {
			if of(r[0], r[1]) != ddof {
				return ""
			}
		}
		return ddof
	}
	files := make([][2]int, len(b.Files))
	for i, f := range b.Files {
		files[i] = [2]int{f.Lo, f.Hi}
	}
	scope, ddof := "minibatch", "" // sets that are white each are together, too
	for _, runs := range [][][2]int{files, StepsOfRanks(b)} {
		if len(runs) > 1 {
			ddof = cmp.Or(ddof, ofEach(runs))
		}
	}
	if ddof == "" {
		scope, ddof = "global", of(0, b.Rows)
	}
	if ddof == "" {
		return nil
	}
	return []assign{word("whiten.scope", scope), word("whiten.mask", "response"), word("whiten.ddof", ddof), word("whiten.shift_mean", "true")}
}

// surpriseFit is the line A = a·(R − V) + b through advantages, over what returns exceed values by.
type surpriseFit struct {
	a, b  float64
	left  float64 // what it leaves, as a root of the mean square
	size  float64 // that of the advantages
	cells int
}

// lineOfSurprise fits the line of rows lo to hi, nil where it cannot be fitted.
func lineOfSurprise(of *dump.Batch, lo, hi int) *surpriseFit {
	v, ret, adv := of.Token("values"), of.Token("returns"), of.Token("advantages")
	if v == nil || ret == nil || adv == nil {
		return nil
	}
	o := observations{n: 2}
	for i := range of.TokensIn(lo, hi) {
		o.add(ret[i]-v[i], 1, adv[i])
	}
	w, left := o.solve()
	if w == nil {
		return nil
	}
	return &surpriseFit{a: w[0], b: w[1], left: left, size: rms(adv[:hi*of.Cols], func(i int) bool { return i >= lo*of.Cols && of.Mask[i] }), cells: o.len()}
}

// unit returns the nearest number of [0, 1].
func unit(x float64) float64 { return min(max(x, 0), 1) }

// gammas returns the pairs of γ and λ that leave no more than a tenth over what w = (γ(1 − λ), γλ) leaves, those with the fewest digits first, three
// at most. λ is solved again for each γ: both were solved together, and the error of one is in the other.
func gammas(o observations, w []float64) (pairs [][2]float64) {
	type pair struct {
		of   [2]float64
		left float64
	}
	var list []pair
	least := math.Inf(1)
	at := func(g, l float64) {
		p := pair{of: [2]float64{g, l}}
		var off []float64
		for k := 0; k < len(o.x); k += 3 {
			off = append(off, math.Abs(o.x[k+2]-g*((1-l)*o.x[k]+l*o.x[k+1])))
		}
		slices.Sort(off)
		for _, d := range off[:len(off)-len(off)/4] { // the others may be of another rule
			p.left += d * d
		}
		p.left = math.Sqrt(p.left)
		least = min(least, p.left)
		list = append(list, p)
	}
	for _, tg := range []float64{3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 0} {
		g := unit(written(w[0]+w[1], tg))
		one := observations{n: 1}
		for k := 0; k < len(o.x); k += 3 {
			one.add(g*(o.x[k+1]-o.x[k]), o.x[k+2]-g*o.x[k])
		}
		of, _ := one.solve()
		if of == nil {
			at(g, 1) // V and R are the same: no λ shows
			continue
		}
		for _, tl := range []float64{3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 0} {
			at(g, unit(written(of[0], tl)))
		}
	}
	const most = 3
	for _, p := range list {
		if p.left <= 1.1*least+8*tol.U32 && !slices.Contains(pairs, p.of) && len(pairs) < most {
			pairs = append(pairs, p.of)
		}
	}
	return pairs
}
