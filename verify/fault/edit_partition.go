package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// partitionEdits returns the edit of a baseline that is the mean over rows which are no group, whichever they are. Under the spread of its own group the
// baseline of a row is
//
//	m = r − A·(s + ε)
//
// so that rows of one baseline stand together: that it is their mean is the evidence.
func partitionEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "advantage/group" {
		return nil
	}
	const title = "the baseline of a row is the mean of rows of other groups, and the spread that of its own"
	return []edit{{id: "ADV-WRONG-GROUPS", title: title, changes: mostChanges, predict: otherPartition}}
}

func otherPartition(c *stage.Case, ch *stage.Check) *stage.Prediction {
	id, score, got := c.B.Row("group_id"), c.Row("scores").X, c.B.Row(ch.Output)
	p := under(sameInput, c, ch)
	if p == nil || len(id) != c.B.Rows || len(score) != len(id) || len(got) != len(id) || len(p.Want) != len(id) {
		return nil
	}
	base, slope := make([]float64, len(id)), make([]float64, len(id))
	scale := 0.0
	for r, g := range id {
		low, high := r, r
		for i := range id {
			if id[i] == g && score[i] < score[low] {
				low = i
			}
			if id[i] == g && score[i] > score[high] {
				high = i
			}
		}
		if score[low] == score[high] {
			return nil // its spread is ε
		}
		slope[r] = (p.Want[high] - p.Want[low]) / (score[high] - score[low])
		if base[r] = score[r] - got[r]/slope[r]; math.IsNaN(base[r]) || math.IsInf(base[r], 0) {
			return nil // other scores are held at one number, and say nothing of a baseline
		}
		scale = max(scale, math.Abs(score[r]))
	}
	order := inOrder(len(id))
	slices.SortFunc(order, func(i, j int) int { return compare(base[i], base[j]) })
	q := &stage.Prediction{Want: make([]float64, len(id)), Bound: make([]float64, len(id)), Scale: p.Scale}
	classes, mixed := 0, 0
	const near = 1e-5 // of the scores: float32 and its sums
	for lo := 0; lo < len(order); {
		hi, sum := lo, 0.0
		groups := map[float64]bool{}
		for hi < len(order) && base[order[hi]]-base[order[lo]] <= near*scale {
			sum += score[order[hi]]
			groups[id[order[hi]]] = true
			hi++
		}
		classes++
		mixed += boolToInt(len(groups) > 1)
		mean := sum / float64(hi-lo)
		for _, r := range order[lo:hi] {
			q.Want[r] = (score[r] - mean) * slope[r]
			q.Bound[r] = 8*p.Bound[r]*(1+math.Abs(q.Want[r])) + 8*c.Unit*math.Abs(slope[r])*scale
		}
		lo = hi
	}
	if classes < 2 || 2*classes > len(id) || 2*mixed < classes {
		return nil
	}
	return q
}

// engineOldEdits returns the edit of importance weights that are of other old log-probs than those of the dump, which are the engine's bit by bit: of
// these every weight is 1.
func engineOldEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "ratio/is_weights" {
		return nil
	}
	const title = "logp_old is logp_gen bit by bit, of which every weight is 1, and the weights are of other old log-probs: the ratio is taken to the engine's"
	return []edit{{id: "OLD-IS-GEN", title: title, changes: mostChanges, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		const least = 16 // tokens
		b := c.B
		old, gen, p := b.Token("logp_old"), b.Token("logp_gen"), under(sameInput, c, ch)
		got := b.Tensors[ch.Output]
		if old == nil || gen == nil || p == nil || got == nil || len(got.Data) != len(p.Want) {
			return nil
		}
		n := 0
		for i, m := range b.Mask {
			if m && old[i] != gen[i] {
				return nil
			}
			n += boolToInt(m)
		}
		if n < least {
			return nil
		}
		q := *p
		q.Want, q.Bound, q.Alt = slices.Clone(got.Data), slices.Clone(p.Bound), nil // that they differ from 1 says it
		return &q
	}}}
}
