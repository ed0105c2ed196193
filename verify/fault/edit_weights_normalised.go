package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// normalisedWeights predicts importance weights of which those of every file are k times the right ones, with the k that half of them are above. One number that
// explains sixteen weights, a dozen of them different, is no accident; it is nil where a file shows fewer, or where k is 1 in all.
func normalisedWeights(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const enough, several = 16, 12
	p, b, t := under(sameInput, c, ch), c.B, c.B.Tensors[ch.Output]
	if p == nil || t == nil || len(t.Data) != len(p.Want) || b.Cols == 0 || len(p.Want)%b.Rows != 0 {
		return nil
	}
	w := len(p.Want) / b.Rows
	q := altered(p)
	other := false
	for _, file := range b.Files {
		var k []float64
		differ := map[float64]bool{}
		for i := file.Lo * w; i < file.Hi*w; i++ {
			if (p.Judge == nil || p.Judge[i]) && (w != b.Cols || b.Mask[i]) && p.Want[i] > 0 && !math.IsNaN(t.Data[i]) {
				k = append(k, t.Data[i]/p.Want[i])
				differ[p.Want[i]] = true
			}
		}
		if len(k) < enough || len(differ) < several {
			return nil
		}
		slices.Sort(k)
		by := k[len(k)/2]
		if !(by > 0) || math.IsInf(by, 0) {
			return nil
		}
		other = other || math.Abs(by-1) > 1e-5
		for i := file.Lo * w; i < file.Hi*w; i++ {
			q.Want[i] *= by
			q.Bound[i] = by*q.Bound[i] + 8*c.Unit*math.Abs(q.Want[i])
		}
	}
	if !other {
		return nil
	}
	return q
}
