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
