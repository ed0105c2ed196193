package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// otherInput is an input of policy losses that a program may read in another's place, or in another way than it is meant.
type otherInput struct {
	name string
	of   func(b *dump.Batch, x []float64) []float64 // nil of what is not there
}

// inPlace is an input of which each number is read in another way.
func inPlace(name string, of func(x float64) float64) otherInput {
	return otherInput{name, func(_ *dump.Batch, x []float64) []float64 { return mapped(x, of) }}
}

// otherInputs are tried in this order.
func otherInputs() []otherInput {
	list := []otherInput{
		inPlace("entropy", func(x float64) float64 { return -x }),
		inPlace("advantages", math.Abs),
		inPlace("advantages", func(x float64) float64 { return -x }),
	}
	for _, from := range []string{"logp_ref", "logp_gen"} {
		list = append(list, otherInput{"logp_old", func(b *dump.Batch, _ []float64) []float64 { return b.Token(from) }})
	}
	for _, by := range []int{1, -1} {
		list = append(list, otherInput{"logp_old", func(b *dump.Batch, x []float64) []float64 { return rolledBy(b, x, by) }})
	}
	for _, t := range carriedRatios {
		list = append(list, otherInput{"logp_old", func(b *dump.Batch, _ []float64) []float64 { return carried(b, t.back) }})
	}
	for _, n := range []func(b *dump.Batch, file dump.FileInfo, tokens []float64) float64{
		func(b *dump.Batch, _ dump.FileInfo, _ []float64) float64 { return float64(b.Cols) },
		func(_ *dump.Batch, file dump.FileInfo, tokens []float64) float64 {
			return meanOf(tokens[file.Lo:file.Hi])
		},
	} {
		list = append(list, otherInput{"logp_old", func(b *dump.Batch, x []float64) []float64 { return dividedBy(b, x, n) }})
	}
	return list
}

// dividedBy are old log-probs whose mean log-ratio in a row is the sum of the log-ratios of the row divided by another number than that of its tokens.
func dividedBy(b *dump.Batch, old []float64, by func(b *dump.Batch, file dump.FileInfo, tokens []float64) float64) []float64 {
	lp := b.Token("logp_new")
	if len(lp) != len(b.Mask) || len(old) != len(lp) || b.Cols == 0 {
		return nil
	}
	n, x := tokensOf(b, b.Mask), slices.Clone(old)
	for i := range x {
		if k := by(b, b.Files[b.File(i/b.Cols)], n); k > 0 {
			x[i] = lp[i] - (lp[i]-old[i])*n[i/b.Cols]/k
		}
	}
	return x
}

// SolvedUnder returns the options under which policy losses are right in all steps, as [stage.Solve] does, where an input of them is read in another way, or is
// another one: those of each of these that there are any for.
func SolvedUnder(ch *stage.Check, steps []stage.Step) (solved [][]stage.Change) {
	if len(steps) == 0 || ch.ID != "token_loss/policy" {
		return nil
	}
	for _, o := range otherInputs() {
		var in []stage.Step
		for _, s := range steps {
			t := s.B.Tensors[o.name]
			if t == nil {
				break
			}
			x := o.of(s.B, t.Data)
			if len(x) != len(t.Data) {
				break
			}
			in = append(in, stage.Step{B: s.B.With(o.name, x), Set: s.Set})
		}
		if len(in) < len(steps) {
			continue
		}
		if fits := stage.Solve(ch, in); len(fits) > 0 {
			solved = append(solved, fits[0].Changes)
		}
	}
	return solved
}
