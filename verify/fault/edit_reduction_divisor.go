package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// twiceByLength reports whether the sums of rows are divided by their tokens and their sum by the tokens of all rows: lengths count twice, which no reduction of
// TRL 1.16, verl 0.9, OpenRLHF 0.11 or transformers 5.23 has.
func (p *reductionParts) twiceByLength(at choice) bool {
	return at.keep == 0 && p.length[at.length].what == twice || at.keep == 0 && p.length[at.length].what == "its own tokens" && p.factor[at.factor].what != "its own tokens" &&
		slices.Contains([]string{"the tokens of the micro-batch", "the tokens of the rank", "the tokens of the step"}, p.count[at.count].what)
}

// ofNobody reports whether no program is configured to a reduction, whatever else it may be: lengths count twice, or their root, which differs from the lengths of
// responses that are not all as long.
func (p *reductionParts) ofNobody(at choice) bool {
	x := p.length[at.length]
	return p.twiceByLength(at) || x.what == root && len(x.x) > 0 && slices.Min(x.x) < slices.Max(x.x)
}

// packedRows returns 1 for the first sequence of every row of a file and 0 for the others, so that their sum counts the rows as they were packed; nil where
// every row has one sequence.
func packedRows(b *dump.Batch) []float64 {
	first, some := make([]float64, b.Rows), false
	for r := range first {
		if r > 0 && b.Origin[r].File == b.Origin[r-1].File && b.Origin[r].Row == b.Origin[r-1].Row && b.Origin[r].Col > 0 {
			some = true
			continue
		}
		first[r] = 1
	}
	if !some {
		return nil
	}
	return first
}

// otherDivisor is the edit of a sum that is divided by a whole number that counts nothing of the step: the tokens of the rollout batch where those of
// the mini-batch belong, of another step, or of another mask. The number is solved from each step; that it is whole, and one for all files, is the
// evidence.
func otherDivisor(o *stage.Outcome, declared part) (edit, bool) {
	if declared.what == "1" || len(declared.x) == 0 {
		return edit{}, false
	}
	for _, x := range declared.x {
		if x != declared.x[0] {
			return edit{}, false
		}
	}
	k, within := ratioOf(o.Pred, o.Got)
	n := declared.x[0] / k
	const chance = 0.02 // of a number to be whole by accident
	if !(k > 0) || math.Round(n) < 2 || math.Round(n) == declared.x[0] || n*within > chance || math.Abs(n-math.Round(n)) > n*within {
		return edit{}, false
	}
	title := fmt.Sprintf("the sum is divided by a whole number that counts nothing of the step, %.0f in the first that fails, not by %s, %.0f", n, declared.what, declared.x[0])
	return edit{id: "AGG-DENOMINATOR", title: title, changes: mostChanges, own: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		if p == nil {
			return nil
		}
		got := c.B.Token(ch.Output)
		if got == nil {
			got = c.B.PerFile(ch.Output)
		}
		k, within := ratioOf(p, got)
		rows := countsOf(c)
		for _, count := range rows.count {
			if count.what != declared.what || len(count.x) == 0 {
				continue
			}
			n := math.Round(count.x[0] / k)
			if !(k > 0) || n < 1 || math.Abs(count.x[0]/k-n) > n*within {
				return nil
			}
			by := slices.Repeat([]float64{count.x[0] / n}, c.B.Rows)
			return weighted(c.B, c, ch, by)
		}
		return nil
	}}, true
}

// ratioOf returns got/want of the element that tells it best, and how far it may be off, both relative.
func ratioOf(p *stage.Prediction, got []float64) (k, within float64) {
	within = math.Inf(1)
	if len(got) != len(p.Want) {
		return math.NaN(), within
	}
	for i, want := range p.Want {
		if p.Judge != nil && !p.Judge[i] || want == 0 || got[i] == 0 {
			continue
		}
		if off := p.Bound[i]/math.Abs(want) + 1e-7; off < within {
			k, within = got[i]/want, off
		}
	}
	return k, within
}
