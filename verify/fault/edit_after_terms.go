package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// shapingTerms are numbers of a response that a reward is shaped by, each with a coefficient.
var shapingTerms = []struct {
	words string
	of    func(c *stage.Case, row int) float64
}{
	{"token of the response", func(c *stage.Case, row int) float64 { return count(c.B.Mask[row*c.B.Cols : (row+1)*c.B.Cols]) }},
	{"response without EOS", func(c *stage.Case, row int) float64 { return float64(boolToInt(!ended(c, row))) }},
}

// shaped is a shaping term k·t of responses that is added to advantages behind the baseline.
type shaped struct {
	term     int
	k        float64
	amount   string // k in words
	inScores bool   // the scores have it, too: advantages are those of scores without it
}

// shapingAdded reads from the rows which shaping term group advantages have behind the baseline. With a baseline m and a divisor D of the group
//
//	A = (s − m)/D + k·t          ⇒  Δs = D·ΔA − k·D·Δt
//	A = (s − k·t − m)/D + k·t    ⇒  Δs = D·ΔA − k·(D − 1)·Δt   where the scores s have the term
//
// between any two rows of it. Both are linear in D and in the factor of Δt, so that no option of the advantages need be known: each group gives k, and all must give one.
func shapingAdded(c *stage.Case) (found []shaped) {
	b := c.B
	score, id, adv := b.Row("scores"), b.Row("group_id"), firstAdvantages(b, "advantages")
	if len(score) != b.Rows || len(id) != b.Rows || len(adv) != b.Rows || b.Cols == 0 {
		return nil
	}
	groups := map[float64][]int{}
	for r, g := range id {
		groups[g] = append(groups[g], r)
	}
	for at, term := range shapingTerms {
		if at == 1 && c.FactList("eos_token_id") == nil {
			continue
		}
		t := eachOf(b.Rows, func(r int) float64 { return term.of(c, r) })
		var ks [2][]float64
		fits := true
		for _, rows := range groups {
			d, v, solved, ok := divisorAndFactor(rows, score, adv, t)
			if fits = fits && ok; !fits {
				break
			}
			if solved {
				ks[0] = append(ks[0], -v/d)
				if math.Abs(d-1) > 0.05 {
					ks[1] = append(ks[1], -v/(d-1))
				}
			}
		}
		for i, list := range ks {
			if k, amount := writtenFactor(c, list); fits && k != 0 {
				found = append(found, shaped{term: at, k: k, amount: amount, inScores: i == 1})
			}
		}
	}
	return found
}

// divisorAndFactor solves Δs = d·ΔA + v·Δt of the rows of a group by least squares. ok is false where no numbers do; solved where they are determined, and v is told from 0.
func divisorAndFactor(rows []int, score, adv, term []float64) (d, v float64, solved, ok bool) {
	const least, rounding = 4, 1e-5 // rows, of two unknowns and a mean; of numbers in float32
	centred := func(x []float64) []float64 {
		mean := 0.0
		for _, r := range rows {
			mean += x[r] / float64(len(rows))
		}
		return eachOf(len(rows), func(i int) float64 { return x[rows[i]] - mean })
	}
	s, a, t := centred(score), centred(adv), centred(term)
	aa, at, tt, as, ts, ss := dot(a, a), dot(a, t), dot(t, t), dot(a, s), dot(t, s), dot(s, s)
	det := aa*tt - at*at
	if len(rows) < least || !(det > 1e-4*aa*tt) {
		return 0, 0, false, !math.IsNaN(det)
	}
	d, v = (tt*as-at*ts)/det, (aa*ts-at*as)/det
	off := ss - d*as - v*ts
	size := d*d*aa + v*v*tt + ss
	return d, v, v*v*tt > 1e6*rounding*rounding*size, off <= rounding*rounding*100*size && d > 0
}

func dot(x, y []float64) (sum float64) {
	for i, v := range x {
		sum += float64(v * y[i])
	}
	return sum
}

// writtenFactor is the number of two digits that all of the list are, or one divided by a length that people divide by, and its words; 0 where there is none.
func writtenFactor(c *stage.Case, list []float64) (k float64, words string) {
	const least, near = 3, 2e-3 // groups; of each
	if len(list) < least {
		return 0, ""
	}
	slices.Sort(list)
	m := list[len(list)/2]
	for _, x := range list {
		if !(math.Abs(x-m) <= near*math.Abs(m)) {
			return 0, ""
		}
	}
	longest := 0.0
	for _, n := range tokensOf(c.B, c.B.Mask) {
		longest = max(longest, n)
	}
	for _, l := range []struct {
		words string
		x     float64
	}{{"", 1}, {"max_completion_length", c.FactOr("max_completion_length", math.NaN())}, {"the padded width", float64(c.B.Cols)}, {"the longest response", longest}} {
		if x := rounded(m*l.x, 2); x != 0 && math.Abs(x-m*l.x) <= 2e-4*math.Abs(x) {
			if words = fmt.Sprintf("%+g", x); l.words != "" {
				words += "/" + l.words
			}
			return x / l.x, words
		}
	}
	return 0, ""
}

// unshaped returns the batch whose advantages, and scores where they have it, are without the term.
func (s shaped) unshaped(c *stage.Case) *dump.Batch {
	b := c.B
	of := func(r int) float64 { return s.k * shapingTerms[s.term].of(c, r) }
	b = b.With("advantages", eachOf(len(b.Tensors["advantages"].Data), func(i int) float64 {
		if x := b.Tensors["advantages"].Data[i]; len(b.Tensors["advantages"].Data) == b.Rows {
			return x - of(i)
		} else if b.Mask[i] {
			return x - of(i/b.Cols)
		}
		return 0
	}))
	if s.inScores {
		b = b.With("scores", s.scores(c))
	}
	return b
}

// scores are those without the term.
func (s shaped) scores(c *stage.Case) []float64 {
	return eachOf(c.B.Rows, func(r int) float64 { return float64(float32(c.B.Row("scores")[r] - s.k*shapingTerms[s.term].of(c, r))) })
}

// shapingEdits returns edits of group advantages that have a shaping term behind the baseline.
func shapingEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "advantage/group" {
		return nil
	}
	for _, s := range shapingAdded(o.Case.Of(o.Case.B, o.Case.Set)) {
		where := ""
		if s.inScores {
			where = ", which the scores have,"
		}
		title := fmt.Sprintf("%s for each %s%s is added to finished advantages: it belongs into the reward, before the baseline", s.amount, shapingTerms[s.term].words, where)
		list = append(list, edit{id: "PENALTY-AFTER-BASELINE", title: title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if len(c.B.Row("scores")) != c.B.Rows {
				return nil
			}
			in := sameInput
			if s.inScores {
				in = func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
					return c.B.With("scores", s.scores(c)), c.Set, true
				}
			}
			return addedByRow(under(in, c, ch), c, func(row int) float64 { return s.k * shapingTerms[s.term].of(c, row) })
		}})
	}
	return list
}
