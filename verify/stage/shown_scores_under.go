package stage

import (
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// ScoresUnder returns what the rows of a batch show of the options of their advantages, as [GroupScores] of one step does, where a bug is in them: the sum of the
// KL of a row is another number of its tokens, or what the differences from the baseline are divided by is no deviation.
func ScoresUnder(b *dump.Batch, set *convention.Set) (shown [][]Change) {
	own := GroupScores{}
	if own.Add(b); own.other || len(own.forms()) > 0 {
		return nil
	}
	for _, sums := range otherSumsOfKL(b) {
		c := *b
		c.Tensors = maps.Clone(b.Tensors)
		c.Tensors["kl"] = &dump.Tensor{Name: "kl", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: sums}
		s := GroupScores{}
		s.Add(&c)
		s.plain = own.plain
		shown = append(shown, s.Changes(set)...)
	}
	shown = append(append(shown, own.permuted(set)...), own.anySpread(set)...)
	if ofRanks := groupsOfRanks(b); len(shown) == 0 && ofRanks != nil {
		s := GroupScores{}
		s.Add(ofRanks)
		s.plain = own.plain
		shown = s.anySpread(set)
	}
	return shown
}

// groupsOfRanks is b with the rows of each rank in groups of their own: what the differences of rows are divided by may be that of their rank. It is nil of one rank.
func groupsOfRanks(b *dump.Batch) *dump.Batch {
	id := b.Row("group_id")
	if len(id) != b.Rows || !slices.ContainsFunc(b.Files, func(f dump.FileInfo) bool { return f.Rank != b.Files[0].Rank }) {
		return nil
	}
	own, known := make([]float64, b.Rows), map[[2]float64]float64{}
	for r := range own {
		key := [2]float64{id[r], float64(b.Files[b.Origin[r].File].Rank)}
		if _, there := known[key]; !there {
			known[key] = float64(len(known))
		}
		own[r] = known[key]
	}
	return b.With("group_id", own)
}

// otherSumsOfKL are numbers of the rows that stand for the sum of their KL where a program goes wrong: the sum with the other sign, its mean over the tokens, and over
// the columns, and its sum over all columns, padding included.
func otherSumsOfKL(b *dump.Batch) (list [][]float64) {
	sums, kl := sumsOfKL(b), b.Token("kl")
	if sums == nil || b.Cols == 0 || len(b.Row("kl")) == b.Rows {
		return nil
	}
	minus, tokens, columns := make([]float64, b.Rows), make([]float64, b.Rows), make([]float64, b.Rows)
	for r := range sums {
		n := 0.0
		for _, in := range b.Mask[r*b.Cols : (r+1)*b.Cols] {
			if in {
				n++
			}
		}
		w := b.Cols
		if o := b.Origin[r]; o.Cols > 0 {
			w = o.Cols
		}
		minus[r], tokens[r], columns[r] = -sums[r], sums[r]/max(n, 1), sums[r]/float64(w)
	}
	list = append(list, minus, tokens, columns)
	lp, ref := b.Token("logp_old"), b.Token("logp_ref")
	if kl == nil && lp != nil && ref != nil {
		kl = make([]float64, len(lp))
		for i := range kl {
			kl[i] = lp[i] - ref[i]
		}
	}
	if kl != nil {
		every := slices.Repeat([]bool{true}, len(kl))
		list = append(list, rl.RowSums(nil, kl, every, b.Rows, b.Cols))
	}
	return list
}

// anySpread are the options that rows show whose differences are in proportion within a step, or within each group, though no deviation with an ε gives what they
// are divided by: the base of another spread.
func (s *GroupScores) anySpread(set *convention.Set) [][]Change {
	var lists [][]assign
	for _, scale := range []string{"batch_std", "group_std"} {
		f := scoreForm{scale: scale}
		if !s.solveScaled(&f) {
			continue
		}
		for _, center := range []string{"loo", "mean"} {
			list := append(s.shownOf(&f), word("adv.center", center), word("adv.scale", scale))
			if scale == "batch_std" {
				lists = append(lists, append(list[:len(list):len(list)], word("adv.std_of", "centred")), append(list[:len(list):len(list)], word("adv.std_of", "rewards")))
			} else {
				lists = append(lists, list)
			}
		}
		break // what is one number in a step is one in its groups
	}
	return openOf(lists, set)
}

// permuted are the options under which the advantages of a step are right as a set, in other rows than theirs: of a = c(s) − β·c(K), c a centring of what a row
// has within its group, Σa² gives β, and all of them tell. Scores may be held at a bound that people write.
func (s *GroupScores) permuted(set *convention.Set) [][]Change {
	const least, near = 8, 2e-6 // rows; of the largest
	if len(s.steps) != 1 || len(s.steps[0].rows) < least {
		return nil
	}
	var lists [][]assign
	for _, hi := range append([]float64{math.Inf(1)}, 0.5, 1, 1.5, 2, 3, 5, 10) {
		if !math.IsInf(hi, 1) && s.steps[0].largest <= hi {
			continue
		}
		for _, center := range []string{"loo", "mean"} {
			f := scoreForm{center: center, scale: "none", lo: -hi, hi: hi}
			var adv, score, kl []float64
			for _, rows := range s.steps[0].groups {
				n := float64(len(rows))
				by, x, k := 1.0, 0.0, 0.0
				if center == "loo" {
					by = n / (n - 1)
				}
				for _, r := range rows {
					x, k = x+min(max(r.score, f.lo), f.hi)/n, k+r.kl/n
				}
				for _, r := range rows {
					adv, score, kl = append(adv, r.adv), append(score, by*(min(max(r.score, f.lo), f.hi)-x)), append(kl, by*(r.kl-k))
				}
			}
			var a, b, c float64
			for i, x := range adv {
				a, b, c = a+float64(kl[i]*kl[i]), b+float64(score[i]*kl[i]), c+float64(score[i]*score[i])-float64(x*x)
			}
			slices.Sort(adv)
			for _, sign := range []float64{1, -1} {
				if f.beta = written((b+sign*math.Sqrt(b*b-a*c))/a, 2e-3); !(f.beta > 0) || math.IsInf(f.beta, 0) {
					continue
				}
				due := eachOf(len(adv), func(i int) float64 { return score[i] - float64(f.beta*kl[i]) })
				slices.Sort(due)
				if !slices.ContainsFunc(adv, math.IsNaN) && nearAllOf(adv, due, near*maxAbs(due)) {
					lists = append(lists, append(s.shownOf(&f), word("adv.center", center), word("adv.scale", "none")))
				}
			}
		}
	}
	return openOf(lists, set)
}

// nearAllOf reports whether no two numbers of a place are further apart than near.
func nearAllOf(x, y []float64, near float64) bool {
	for i := range x {
		if !(math.Abs(x[i]-y[i]) <= near) {
			return false
		}
	}
	return true
}
