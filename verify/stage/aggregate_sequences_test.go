package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// TRL's RLOOTrainer takes the mean of −min(ρA, clip(ρ)A) over all rows, ρ = exp(Σ(lp − old)·m): a row without a token has ρ = 1.
func TestRowsWithoutATokenOfALossOfSequences(t *testing.T) {
	set := options(t, "loss.kind=ppo", "ratio.level=seq_sum", "ratio.old=stored", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none",
		"kl.place=none", "tis.level=none", "value.coef=0", "entropy.coef=0", "mask.tokens=response")
	set = reduction{kind: "seq_mean_token_mean", where: "micro", counted: true}.set(t, set)
	emptied := 0
	for seed := range cases(60) {
		tr := newTrainer(uint64(seed))
		b := tr.b
		tr.logprobs(0.05)
		lp, old := b.Token("logp_new"), b.Token("logp_old")
		adv := tr.perRow("advantages", func(int) float64 { return tr.r.NormFloat64() })
		rowLoss := make([]float64, b.Rows)
		mean := func(empty float32) (loss []float64) {
			for _, f := range b.Files {
				var sum float32
				for r := f.Lo; r < f.Hi; r++ {
					var d float32
					for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
						if b.Mask[i] {
							d += float32(lp[i]) - float32(old[i])
						}
					}
					a, rho := float32(adv[r]), tr.exp32(d)
					if length(b, r) == 0 {
						a *= empty
					}
					rowLoss[r] = float64(max(-a*rho, -a*min(max(rho, 1-.2), 1+.2)))
					sum += float32(rowLoss[r])
				}
				loss = append(loss, float64(sum/float32(f.Hi-f.Lo)))
			}
			return loss
		}
		mean(1)
		if seed%2 == 0 { // a program may give the loss of a response to each of its tokens
			tr.grid("token_loss", func(i int) float64 { return rowLoss[i/b.Cols] })
		}
		tr.perFile("loss", mean(1))
		o := judged32(t, "aggregate/loss", b, set)
		require.Equal(t, check.Pass, o.Verdict, "%d: %s", seed, o.Lacking())
		for r := range b.Rows {
			if length(b, r) == 0 {
				emptied++
				tr.perFile("loss", mean(0))
				want := check.Fail
				if seed%2 == 0 { // a program that takes a mean of such losses over the mask has nothing of the row
					want = check.Pass
				}
				require.Equal(t, want, judged32(t, "aggregate/loss", b, set).Verdict, seed)
				break
			}
		}
	}
	require.Positive(t, emptied)
}
