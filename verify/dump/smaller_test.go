package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// The smaller of two losses is named whatever the bounds and the coefficient of the KL beside it are.
func TestSmallerOfTwoLossesUnderBoundsThatNobodyDeclares(t *testing.T) {
	judged := false
	for _, r := range silent(t, func(b *dumpfile.Batch) {
		lp, old, adv, kl, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("kl"), b.Token("token_loss")
		cells(b, func(i, row, _ int) {
			ratio := math.Exp(lp[i] - old[i])
			loss[i] = single(min(-adv[row]*ratio, -adv[row]*min(max(ratio, 1-0.17), 1+0.23)) + 0.0317*kl[i])
		})
	}, "token_loss/policy") {
		if r.Check != "token_loss/policy" {
			continue
		}
		judged = true
		require.Equal(t, check.Fail, r.Verdict, r.Reason)
		require.Equal(t, "CLIP-MIN-MAX", r.Explanations[0].Fault)
	}
	require.True(t, judged)
}
