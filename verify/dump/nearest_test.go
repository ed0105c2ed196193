package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// scaledOnly writes advantages without a baseline, score/(std + 1e-4), and all that TRL makes of advantages is left as it is.
func scaledOnly(b *dumpfile.Batch) {
	adv, score, id := b.Row("advantages"), b.Row("scores"), b.Row("group_id")
	sum, square, n := map[float64]float64{}, map[float64]float64{}, map[float64]float64{}
	for r, g := range id {
		sum[g], square[g], n[g] = sum[g]+score[r], square[g]+score[r]*score[r], n[g]+1
	}
	for r, g := range id {
		spread := math.Sqrt(max(0, square[g]-sum[g]*sum[g]/n[g]) / (n[g] - 1))
		adv[r] = single(score[r] / (spread + 1e-4))
	}
}

// One thing that no configuration of TRL does, in a run that is TRL's in all else and declares nothing, is meant or a bug: nobody knows.
func TestOneDepartureFromAFrameworkIsUndecided(t *testing.T) {
	for _, departs := range []bool{false, true} {
		found := false
		for _, r := range silent(t, func(b *dumpfile.Batch) {
			if departs {
				scaledOnly(b)
			}
		}, "advantage/group", "kl/token") {
			if r.Check != "advantage/group" {
				continue
			}
			found = true
			if !departs {
				require.Equal(t, check.Pass, r.Verdict, r.Reason)
				continue
			}
			require.Equal(t, check.Undetermined, r.Verdict, r.Reason)
			require.Len(t, r.Explanations, 1)
			require.Equal(t, "ADV-CENTER", r.Explanations[0].Fault)
			require.Contains(t, r.Fix, "--set adv.center=none")
		}
		require.True(t, found)
	}
}

// A run of which a loss is of no formula is like no framework in all else, so that nothing of it is a departure from one.
func TestNoDepartureBesideALossThatNothingExplains(t *testing.T) {
	for _, r := range silent(t, func(b *dumpfile.Batch) {
		scaledOnly(b)
		lp, old := b.Token("logp_new"), b.Token("logp_old")
		x := b.Token("token_loss")
		cells(b, func(i, _, col int) { x[i] = single(math.Sin(float64(i*i)) + lp[i]*old[i]) })
	}, "advantage/group", "token_loss/policy") {
		if r.Check == "advantage/group" {
			require.Equal(t, check.Pass, r.Verdict, r.Reason)
		}
	}
}

// A coefficient of the KL in rewards that a controller changes from one batch to the next is no number of the run, and no bug.
func TestCoefficientsOfAController(t *testing.T) {
	judged := false
	for _, r := range silentIn(t, "testdata/runs/ppo", func(b *dumpfile.Batch) {
		r, kl := b.Token("token_rewards"), b.Token("kl")
		cells(b, func(i, _, _ int) { r[i] -= 0.01 * float64(b.Meta.Step) * kl[i] })
	}, "reward/token").Results {
		if r.Check == "reward/token" {
			judged = true
			require.Equal(t, check.Pass, r.Verdict, r.Reason)
		}
	}
	require.True(t, judged)
}
