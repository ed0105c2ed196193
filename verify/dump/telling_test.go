package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// The weights of reward functions that nobody declares are those that the scores give, and scores that no weights give are no failure.
func TestWeightsThatNobodyDeclaresAreSolved(t *testing.T) {
	weighted := func(change func(r int, score float64) float64) []check.Result {
		return silent(t, func(b *dumpfile.Batch) {
			per := make([]float64, 2*b.Rows)
			score := b.Row("scores")
			for r := range b.Rows {
				per[2*r], per[2*r+1] = single(math.Sin(float64(3*r+1))), single(math.Cos(float64(5*r*r)))
				score[r] = change(r, single(0.7*per[2*r]+0.03*per[2*r+1]))
			}
			b.Tensors["rewards_per_func"] = &dumpfile.Tensor{Data: per, Width: 2, Shape: []int{b.Rows, 2}, Layout: dumpfile.PerRow, Type: b.Tensors["scores"].Type}
		}, "reward/scores")
	}
	verdict := func(results []check.Result) check.Verdict {
		for _, r := range results {
			if r.Check == "reward/scores" {
				return r.Verdict
			}
		}
		return 0
	}
	require.Equal(t, check.Pass, verdict(weighted(func(_ int, score float64) float64 { return score })))
	require.Equal(t, check.Undetermined, verdict(weighted(func(r int, score float64) float64 { return score + math.Sin(float64(r*r)) })))
	first := true // a function that scores no row of the first step tells its weight in the others
	require.Equal(t, check.Pass, verdict(silent(t, func(b *dumpfile.Batch) {
		per, score := make([]float64, 2*b.Rows), b.Row("scores")
		for r := range b.Rows {
			per[2*r], per[2*r+1] = single(math.Sin(float64(3*r+1))), single(math.Cos(float64(5*r*r)))
			score[r] = single(0.7*per[2*r] + 0.03*per[2*r+1])
			if first {
				per[2*r+1], score[r] = math.NaN(), single(0.7*per[2*r])
			}
		}
		first = false
		b.Tensors["rewards_per_func"] = &dumpfile.Tensor{Data: per, Width: 2, Shape: []int{b.Rows, 2}, Layout: dumpfile.PerRow, Type: b.Tensors["scores"].Type}
	}, "reward/scores")))
}

// A loss of the wrong sign fails although nothing is declared: where the ratio is 1, no number of a configuration makes it right. That of
// the log-probability, whose sign is the other one, is a legal formula.
func TestSignOfTheLossNeedsNoDeclaration(t *testing.T) {
	verdict := func(of func(a, lp float64) float64) check.Result {
		for _, r := range silent(t, func(b *dumpfile.Batch) {
			no := false
			b.Meta.TokenLossIncludesKL = &no
			lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss")
			cells(b, func(i, row, _ int) {
				old[i] = lp[i]
				loss[i] = single(of(adv[row], lp[i]))
			})
		}, "token_loss/policy") {
			if r.Check == "token_loss/policy" {
				return r
			}
		}
		return check.Result{}
	}
	wrong := verdict(func(a, _ float64) float64 { return a })
	require.Equal(t, check.Fail, wrong.Verdict, wrong.Reason)
	require.Equal(t, "ADV-SIGN", wrong.Explanations[0].Fault)
	if cases.All {
		require.NotEqual(t, check.Fail, verdict(func(a, lp float64) float64 { return -a * lp }).Verdict)
	}
}
