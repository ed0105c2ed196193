package dump_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// convicts requires that a check of a run that declares nothing fails, and that a bug stands first.
func convicts(t *testing.T, id, fault string, change func(b *dumpfile.Batch)) {
	r := verdictOf(t, id, change)
	require.Equal(t, check.Fail, r.Verdict, r.Reason)
	require.NotEmpty(t, r.Explanations)
	require.Equal(t, fault, r.Explanations[0].Fault)
}

// The median of a group is no baseline of any estimator, and nobody adds 0.01 to a deviation: what fits exactly needs no declaration to be wrong.
func TestAFormOfNoProgramConvicts(t *testing.T) {
	grouped := func(median bool, eps float64) func(b *dumpfile.Batch) {
		return func(b *dumpfile.Batch) {
			score, group := b.Row("scores"), b.Row("group_id")
			rows := map[float64][]float64{}
			for r, g := range group {
				score[r] = single(math.Sin(float64(3*r*r + b.Meta.Step)))
				rows[g] = append(rows[g], score[r])
			}
			delete(b.Tensors, "rewards_per_func")
			adv := b.Row("advantages")
			for r, g := range group {
				x := slices.Sorted(slices.Values(rows[g]))
				var mean, square float64
				for _, s := range x {
					mean += s / float64(len(x))
				}
				for _, s := range x {
					square += (s - mean) * (s - mean) / float64(len(x)-1)
				}
				if median {
					mean = x[(len(x)-1)/2]
				}
				adv[r] = single((score[r] - mean) / (math.Sqrt(square) + eps))
			}
		}
	}
	convicts(t, "advantage/group", "ADV-CENTER", grouped(true, 1e-4))
	convicts(t, "advantage/group", "ADV-EPS", grouped(false, 1e-2))
}

// The weights of CISPO multiply a gradient of their own where they are not detached. What clips them is right in the losses by several options, which
// only together say what the gradient is.
func TestAGradientUnderTheFitsOfItsLosses(t *testing.T) {
	convicts(t, "gradient/dlogp", "CISPO-NOT-DETACHED", func(b *dumpfile.Batch) {
		lp, old, adv, loss, g := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss"), b.Token("dlogp")
		n, total := make([]float64, len(b.Files)), make([]float64, len(b.Files))
		cells(b, func(_, row, _ int) { n[b.File(row)]++ })
		cells(b, func(i, row, _ int) {
			ratio, f := math.Exp(lp[i]-old[i]), b.File(row)
			loss[i] = single(-adv[row] * lp[i] * min(ratio, 1.25))
			if g[i] = single(-adv[row] * 1.25 / n[f]); ratio < 1.25 {
				g[i] = single(-adv[row] * ratio * (1 + lp[i]) / n[f])
			}
			total[f] += loss[i]
		})
		delete(b.Tensors, "kl")
		delete(b.Tensors, "logp_ref")
		delete(b.Tensors, "logp_gen")
		for f := range n {
			b.Tensors["loss"].Data[f] = single(total[f] / n[f])
		}
	})
}

// The coefficient of the entropy is not declared: of an entropy that is added, no coefficient is right, and one makes all steps what they are.
func TestTheSignOfATermWhoseCoefficientNobodyDeclares(t *testing.T) {
	convicts(t, "aggregate/loss", "ENTROPY-SIGN", func(b *dumpfile.Batch) {
		h, of := make([]float64, len(b.Mask)), b.Token("token_loss")
		sum, n := make([]float64, len(b.Files)), make([]float64, len(b.Files))
		cells(b, func(i, row, col int) {
			h[i] = single(2 + math.Sin(float64(row*row+3*col+5*b.Meta.Step)))
			f := b.File(row)
			sum[f], n[f] = sum[f]+of[i]+0.0217*h[i], n[f]+1
		})
		b.Tensors["entropy"] = &dumpfile.Tensor{Name: "entropy", Data: h, Width: 1, Layout: dumpfile.PerToken, Shape: []int{b.Rows, b.Cols}, Type: format.F32}
		for f := range sum {
			b.Tensors["loss"].Data[f] = single(sum[f] / n[f])
		}
	})
}

// A cell outside the response mask has no gradient, whatever the loss is.
func TestGradientsOutsideTheMask(t *testing.T) {
	r := verdictOf(t, "gradient/dlogp", func(b *dumpfile.Batch) {
		g := b.Token("dlogp")
		for i, m := range b.Mask {
			if g[i] = single(math.Sin(float64(i))); m {
				g[i] = single(math.Sin(float64(7 * i)))
			}
		}
	})
	require.Equal(t, check.Fail, r.Verdict, r.Reason)
	require.Contains(t, r.Reason, "outside response_mask")
}

// Where the old policy is the reference, as in a first rollout, eˣ − 1 is an estimate of KL that leaves x out and one that takes it of the old policy. Other steps
// tell which, and an edit convicts where what the catalogue has does not hold there.
func TestWhatOneStepDoesNotTellIsTriedAsAnEdit(t *testing.T) {
	convicts(t, "kl/token", "KL-FORMULA", func(b *dumpfile.Batch) {
		lp, ref, kl := b.Token("logp_new"), b.Token("logp_ref"), b.Token("kl")
		old := b.Token("logp_old")
		cells(b, func(i, row, col int) {
			old[i] = single(lp[i] + 0.3*math.Sin(float64(row*row+7*col)))
			if ref[i] = old[i]; b.Meta.Step == 3 {
				ref[i] = single(lp[i] - 0.4*math.Sin(float64(3*row+col*col)))
			}
			kl[i] = single(math.Exp(ref[i]-lp[i]) - (ref[i] - old[i]) - 1)
		})
	})
}
