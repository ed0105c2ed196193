package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// The bounds of a recipe in each other's place are a bug where nobody declares them; other bounds of which the wider one is below are a configuration.
func TestBoundsOfARecipeInEachOthersPlace(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      check.Verdict
	}{{0.28, 0.2, check.Fail}, {0.2, 0.28, check.Pass}, {0.3, 0.2, check.Pass}} {
		judged := false
		for _, r := range silent(t, func(b *dumpfile.Batch) {
			lp, old, adv, kl, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("kl"), b.Token("token_loss")
			cells(b, func(i, row, _ int) {
				ratio := math.Exp(lp[i] - old[i])
				loss[i] = single(max(-adv[row]*ratio, -adv[row]*min(max(ratio, 1-c.low), 1+c.high)) + 0.04*kl[i])
			})
		}, "token_loss/policy") {
			if r.Check != "token_loss/policy" {
				continue
			}
			judged = true
			require.Equal(t, c.want, r.Verdict, "%v: %s", c, r.Reason)
			if c.want == check.Fail {
				require.Equal(t, "CLIP-SIDES-SWAPPED", r.Explanations[0].Fault)
				require.Contains(t, r.Fix, "--set clip.low=0.28")
			}
		}
		require.True(t, judged)
	}
}

// A penalty of responses without an end that is added to their scores is one that nobody means; one that is subtracted is a configuration.
func TestPenaltiesThatReward(t *testing.T) {
	for by, want := range map[float64]check.Verdict{1: check.Fail, -1: check.Pass} {
		judged := false
		for _, r := range silentIn(t, "testdata/runs/ppo", func(b *dumpfile.Batch) {
			_, last := ends(b)
			kl, r := b.Token("kl"), b.Token("token_rewards")
			cells(b, func(i, row, col int) {
				if r[i] = -0.05 * kl[i]; col == last[row] {
					score := math.Sin(float64(7*row + b.Meta.Step))
					b.Row("scores")[row], r[i] = score, r[i]+score
					if id, _ := b.TokenID(row, col); id != 256 { // a response without an end
						r[i] += by
					}
				}
			})
		}, "reward/token").Results {
			if r.Check != "reward/token" {
				continue
			}
			judged = true
			require.Equal(t, want, r.Verdict, "%v: %s", by, r.Reason)
			if want == check.Fail {
				require.Equal(t, "EOS-PENALTY-SIGN", r.Explanations[0].Fault)
				require.Contains(t, r.Fix, "--set eos.penalty=-1")
			}
		}
		require.True(t, judged)
	}
}
