package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// unrefutedBatch is six rows in two groups with tensors of tokens.
func unrefutedBatch(seed uint64, tensors func(rng *rand.Rand, x map[string][]float64)) *dump.Batch {
	const rows, cols = 6, 12
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	b.Meta = dump.Meta{Step: 1, WorldSize: 1, MicroBatches: 1}
	x := map[string][]float64{}
	rng := rand.New(rand.NewPCG(seed, 11))
	for _, name := range []string{"logp_old", "logp_gen", "is_weights", "values", "returns", "advantages", "token_rewards"} {
		x[name] = make([]float64, rows*cols)
	}
	for i := range b.Mask {
		b.Mask[i] = i%cols < 8+i/cols%3
	}
	tensors(rng, x)
	for name, v := range x {
		b.Tensors[name] = &dump.Tensor{Data: v, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}}
	}
	b.Tensors["group_id"] = &dump.Tensor{Data: []float64{0, 0, 0, 1, 1, 1}, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
	return b
}

// failed is an outcome of a check that failed on a batch.
func failed(id string, b *dump.Batch) *Outcome {
	return &Outcome{Check: Find(id), Case: &Case{B: b, Set: nil}, Pred: &Prediction{}, Verdict: check.Fail}
}

// Weights that are the right ones times one number may be divided by a mean; weights of other powers may not.
func TestWeightsDividedByAMean(t *testing.T) {
	for power, want := range map[float64][]string{1: {"tis.normalize"}, 0.5: nil, -1: nil} {
		b := unrefutedBatch(1, func(rng *rand.Rand, x map[string][]float64) {
			for i := range x["logp_old"] {
				x["logp_old"][i] = -2 * rng.Float64()
				x["logp_gen"][i] = x["logp_old"][i] + 0.1*rng.NormFloat64()
				x["is_weights"][i] = math.Exp(power*(x["logp_old"][i]-x["logp_gen"][i])) / 1.0154
			}
		})
		require.Equal(t, want, Unrefuted(failed("ratio/is_weights", b)), "power %g", power)
	}
	for mean, want := range map[float64][]string{0.9996: {"tis.normalize"}, 1: nil} { // half of them held by a bound before
		b := unrefutedBatch(1, func(rng *rand.Rand, x map[string][]float64) {
			for i := range x["logp_old"] {
				x["logp_old"][i] = -2 * rng.Float64()
				x["logp_gen"][i] = x["logp_old"][i] + 0.1*rng.NormFloat64()
				x["is_weights"][i] = min(math.Exp(x["logp_old"][i]-x["logp_gen"][i]), 1) / mean
			}
		})
		require.Equal(t, want, Unrefuted(failed("ratio/is_weights", b)), "mean %g", mean)
	}
}

// Advantages that are a line of R − V may have been whitened after the returns; others may not.
func TestReturnsBeforeAWhitening(t *testing.T) {
	for bend, want := range map[float64][]string{0: {"whiten.scope"}, 0.1: nil} {
		b := unrefutedBatch(2, func(rng *rand.Rand, x map[string][]float64) {
			for i := range x["values"] {
				x["values"][i], x["returns"][i] = rng.NormFloat64(), rng.NormFloat64()
				d := x["returns"][i] - x["values"][i]
				x["advantages"][i] = 0.7*d - 0.2 + bend*d*d
			}
			delete(x, "token_rewards")
		})
		require.Equal(t, want, Unrefuted(failed("gae/returns", b)), "bend %g", bend)

		// Each of two ranks may have a line of its own.
		adv, half := b.Token("advantages"), b.Rows/2
		for i := half * b.Cols; i < len(adv); i++ {
			adv[i] = 2*adv[i] + 0.1
		}
		b.Files = []dump.FileInfo{{Hi: half, Cols: b.Cols}, {Lo: half, Hi: b.Rows, Cols: b.Cols, Rank: 1}}
		require.Equal(t, want, Unrefuted(failed("gae/returns", b)), "bend %g, two ranks", bend)
	}
}

// A baseline of a group's step, whatever its weights, is that of an estimator which the data may not let try; one of a row is not.
func TestBaselinesOfSteps(t *testing.T) {
	for ofRow, want := range map[float64][]string{0: {"adv.kind"}, 0.1: nil} {
		b := unrefutedBatch(3, func(rng *rand.Rand, x map[string][]float64) {
			for row := range 6 {
				last := row*12 + 7 + row%3
				x["token_rewards"][last] = float64(row % 2)
				for i := row * 12; i <= last; i++ {
					x["advantages"][i] = float64(row%2) - 0.3 - 0.01*float64(i%12)*float64(1+row/3) - ofRow*float64(row)
				}
			}
		})
		require.Equal(t, want, Unrefuted(failed("advantage/return", b)), "of a row %g", ofRow)
	}
}

// With tools in a response a step may be a token of the policy by its number; rows that have a number of their own at one of them have no such baseline.
func TestBaselinesOfNumberedTokens(t *testing.T) {
	for odd, want := range map[float64][]string{0: {"adv.kind"}, 0.1: nil} {
		b := unrefutedBatch(4, func(rng *rand.Rand, x map[string][]float64) {
			for row := range 6 {
				x["token_rewards"][row*12+7+row%3] = float64(row % 2)
				n := 0
				for i := row * 12; i <= row*12+7+row%3; i++ {
					if i-row*12 == 2+row%3 { // a tool's
						continue
					}
					x["advantages"][i] = float64(row%2) - 0.3 - 0.01*float64(n)*float64(1+row/3)
					n++
				}
				x["advantages"][row*12] += odd * float64(row)
			}
		})
		for row := range 6 {
			b.Mask[row*12+2+row%3] = false
		}
		require.Equal(t, want, Unrefuted(failed("advantage/return", b)), "odd %g", odd)
	}
}

// Scores that a range holds and that a rule changes where responses are as long as the longest may be meant; another score of a response that ended may not.
func TestScoresOfAnyShape(t *testing.T) {
	for name, want := range map[string][]string{"held": {"reward.clip", "eos.rule"}, "other": nil} {
		b := unrefutedBatch(4, func(*rand.Rand, map[string][]float64) {})
		score := []float64{0.2, 1.7, 0.9, -0.4, 2.1, 0.6} // of rows of 8, 9 and 10 tokens in turn
		b.Tensors["scores"] = &dump.Tensor{Data: score, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{b.Rows}}
		o := failed("reward/token", b)
		o.Pred = &Prediction{Want: make([]float64, len(b.Mask)), Bound: make([]float64, len(b.Mask))}
		o.Got = make([]float64, len(b.Mask))
		o.Case.Set = &convention.Set{}
		for r, s := range score {
			i := r*b.Cols + o.Case.last(r)
			o.Pred.Want[i] = s
			if o.Got[i] = math.Min(s, 1); r%3 == 2 { // the longest
				o.Got[i] = s / 2
			}
			if name == "other" && r == 0 {
				o.Got[i] = 0.7
			}
		}
		require.Equal(t, want, Unrefuted(o), name)
	}
}
