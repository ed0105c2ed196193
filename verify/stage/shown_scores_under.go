package stage

import (
	"maps"

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
	return append(shown, own.anySpread(set)...)
}

// otherSumsOfKL are numbers of the rows that stand for the sum of their KL where a program goes wrong: its mean over the tokens, and over the columns, and its sum
// over all columns, padding included.
func otherSumsOfKL(b *dump.Batch) (list [][]float64) {
	sums, kl := sumsOfKL(b), b.Token("kl")
	if sums == nil || b.Cols == 0 || len(b.Row("kl")) == b.Rows {
		return nil
	}
	tokens, columns := make([]float64, b.Rows), make([]float64, b.Rows)
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
		tokens[r], columns[r] = sums[r]/max(n, 1), sums[r]/float64(w)
	}
	list = append(list, tokens, columns)
	lp, ref := b.Token("logp_old"), b.Token("logp_ref")
	if kl == nil && lp != nil && ref != nil {
		kl = make([]float64, len(lp))
		for i := range kl {
			kl[i] = lp[i] - ref[i]
		}
	}
	if kl != nil {
		every := make([]bool, len(kl))
		for i := range every {
			every[i] = true
		}
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
