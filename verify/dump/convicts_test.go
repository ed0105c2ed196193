package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

func verdictOf(t *testing.T, id string, change func(b *dumpfile.Batch)) check.Result {
	for _, r := range silent(t, change, id) {
		if r.Check == id {
			return r
		}
	}
	t.Fatalf("%s was not judged", id)
	return check.Result{}
}

// baselines writes rewards, and advantages with a baseline per group that no estimator of the catalogue has.
func baselines(b *dumpfile.Batch) {
	score, group := b.Tensors["scores"], b.Row("group_id")
	for r := range score.Data {
		score.Data[r] = single(4 + math.Sin(float64(3*r*r+b.Meta.Step)))
	}
	adv := make([]float64, len(b.Mask))
	cells(b, func(i, row, _ int) { adv[i] = single(score.Data[row] - 3.31 - 0.17*math.Sin(5*group[row]+1)) })
	b.Tensors["advantages"] = &dumpfile.Tensor{Name: "advantages", Data: adv, Width: 1, Layout: dumpfile.PerToken, Shape: []int{b.Rows, b.Cols}, Type: format.F32}
}

// Where nothing is declared, advantages with another baseline per group are those of an estimator that nobody has named: no bug.
func TestABaselineThatNobodyDeclaresIsNoBug(t *testing.T) {
	r := verdictOf(t, "advantage/group", baselines)
	require.Equal(t, check.Undetermined, r.Verdict, r.Reason)
	require.Contains(t, r.Reason, "nobody declares")
	require.NotEmpty(t, r.Explanations, "what it would be is still said")
	require.True(t, r.Explanations[0].Lead)
}

// Where the ratio is 1, every loss has a gradient of −A times a positive number: one of +A needs no declaration to be wrong. One that has a part of
// each row in it, as a KL term does, says nothing.
func TestAGradientOfTheSignOfTheAdvantageFails(t *testing.T) {
	for _, sign := range []float64{1, -1} {
		if sign < 0 && !cases.All {
			continue
		}
		r := verdictOf(t, "gradient/dlogp", func(b *dumpfile.Batch) {
			lp, old, adv, g := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("dlogp")
			n := 0.0
			cells(b, func(int, int, int) { n++ })
			cells(b, func(i, row, _ int) {
				old[i], g[i] = lp[i], single(sign*adv[row]/(3.7*n))
			})
			for _, name := range []string{"kl", "logp_ref", "token_loss", "loss"} {
				delete(b.Tensors, name)
			}
		})
		if sign < 0 {
			require.NotEqual(t, check.Fail, r.Verdict, r.Reason)
			continue
		}
		require.Equal(t, check.Fail, r.Verdict, r.Reason)
		require.Equal(t, []string{"ADV-SIGN", "RATIO-INVERTED"}, r.Class)
	}
}
