package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// answerRowFaults are log-probs of answers whose tokens or masks are those of other rows, in any order, or which one number divides.
func answerRowFaults() []*Hypothesis {
	policy, reference := answerOutputs[:2], answerOutputs[2:]
	return []*Hypothesis{
		{ID: "DPO-PAIR-ROWS", Checks: policy, Title: "the policy's log-probs of answers are those of other rows of their micro-batch", Predict: answersOf(ownMask)},
		{ID: "DPO-REFERENCE-ROWS", Checks: reference, Title: "the reference's log-probs of answers are those of other rows of their micro-batch", Predict: answersOf(ownMask)},
		{ID: "DPO-PAIR-ROWS", Checks: policy, Title: "the policy's log-probs of an answer are summed over the mask of another one: their rows are in another order", Predict: answersOf(otherMask)},
		{ID: "DPO-REFERENCE-ROWS", Checks: reference, Title: "the reference's log-probs of an answer are summed over the mask of another one: its rows are in another order", Predict: answersOf(otherMask)},
		{ID: "DPO-TOKENS", Checks: answerOutputs, Title: "the log-probs of all answers of a micro-batch are divided by one number, as the padded width is, not by the tokens of each", Predict: oneWidth},
	}
}

// mostAnswers are the rows of a micro-batch of which every one is tried in the place of every other.
const mostAnswers = 256

// candidate is what row r of an output would be if it were made of row s: its log-prob and how far that may be off.
type candidate func(r, s int) (want, bound float64)

// ownMask is the log-prob of another answer: tokens and mask are those of row s.
func ownMask(c *stage.Case, ch *stage.Check, right *stage.Prediction) candidate {
	return func(_, s int) (float64, float64) { return right.Want[s], right.Bound[s] }
}

// otherMask is the sum of the tokens of row r over the mask of row s. Means of both are taken where the right ones are means.
func otherMask(c *stage.Case, ch *stage.Check, right *stage.Prediction) candidate {
	x, mask, cols := c.AnswerTokens(ch.Output)
	if x == nil || cols == 0 {
		return nil
	}
	return func(r, s int) (float64, float64) {
		var sum, size, own, n, m float64
		for t := range cols {
			if mask[s*cols+t] {
				sum, size, n = sum+x[r*cols+t], size+math.Abs(x[r*cols+t]), n+1
			}
			if mask[r*cols+t] {
				own, m = own+x[r*cols+t], m+1
			}
		}
		if m > 1 && math.Abs(own/m-right.Want[r]) < math.Abs(own-right.Want[r]) {
			sum, size = sum/n, size/n
		}
		return sum, float64(cols+2) * c.Unit * size
	}
}

// answersOf predicts an output each of whose rows is made of a row of the same micro-batch, itself or another one, and every one of which is used
// once: nil where most rows are their own, or where one has no such row.
func answersOf(of func(*stage.Case, *stage.Check, *stage.Prediction) candidate) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b := c.B
		right, got := under(sameInput, c, ch), b.Row(ch.Output)
		if right == nil || len(got) != b.Rows || len(right.Want) != b.Rows {
			return nil
		}
		from := of(c, ch, right)
		if from == nil {
			return nil
		}
		p := &stage.Prediction{Want: slices.Clone(right.Want), Bound: slices.Clone(right.Bound)}
		moved := 0
		for _, f := range b.Files {
			if f.Hi-f.Lo > mostAnswers {
				return nil
			}
			used := make([]bool, f.Hi-f.Lo)
			for r := f.Lo; r < f.Hi; r++ {
				nearest, least := -1, math.Inf(1)
				for s := f.Lo; s < f.Hi; s++ {
					want, bound := from(r, s)
					if off := math.Abs(got[r]-want) / (bound + 0x1p-24*math.Abs(want)); !used[s-f.Lo] && off < least {
						nearest, least = s, off
					}
				}
				if nearest < 0 || least > 4 {
					return nil
				}
				used[nearest-f.Lo] = true
				p.Want[r], p.Bound[r] = from(r, nearest)
				if nearest != r {
					moved++
				}
			}
		}
		if 2*moved < b.Rows || moved < 3 {
			return nil
		}
		return p
	}
}

// oneWidth predicts sums over the masks of answers that one whole number divides, at least the tokens of the longest, of every micro-batch. The number is solved
// from the answer that tells it best; that it is whole and the same for all answers is the evidence.
func oneWidth(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	x, mask, cols := c.AnswerTokens(ch.Output)
	got := b.Row(ch.Output)
	if x == nil || cols == 0 || len(got) != b.Rows {
		return nil
	}
	p := c.AnswerSum(x, mask, cols, false, nil)
	for _, f := range b.Files {
		width := wholeDivisor(p, got, f)
		if width < 2 || width < longestAnswer(mask, cols, f) || width > float64(4*cols) {
			return nil
		}
		for r := f.Lo; r < f.Hi; r++ {
			p.Want[r], p.Bound[r] = p.Want[r]/width, p.Bound[r]/width
		}
	}
	p.Terms = nil
	return p
}

// wholeDivisor returns what the largest of the sums is divided by, 0 where that is no whole number.
func wholeDivisor(p *stage.Prediction, got []float64, f dump.FileInfo) float64 {
	if f.Hi-f.Lo < 2 {
		return 0
	}
	best := f.Lo
	for r := f.Lo; r < f.Hi; r++ {
		if math.Abs(p.Want[r]) > math.Abs(p.Want[best]) {
			best = r
		}
	}
	k := p.Want[best] / got[best]
	if n := math.Round(k); math.Abs(k-n) <= 1e-4*n {
		return n
	}
	return 0
}

func longestAnswer(mask []bool, cols int, f dump.FileInfo) float64 {
	most := 0
	for r := f.Lo; r < f.Hi; r++ {
		n := 0
		for _, m := range mask[r*cols : (r+1)*cols] {
			n += boolToInt(m)
		}
		most = max(most, n)
	}
	return float64(most)
}
