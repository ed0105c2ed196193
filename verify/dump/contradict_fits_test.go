package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// fittedTrack is a track of a check that one set of options fits.
func fittedTrack(t *testing.T, id, option, value string) *track {
	v, err := convention.Parse(option, value)
	require.NoError(t, err)
	return &track{check: stage.Find(id), searched: true, all: true, passed: 1, judged: 1, fits: []stage.Fit{{Changes: []stage.Change{{Option: option, To: v}}}}}
}

// A whole loss says how the terms beside the policy loss are aggregated where that one was dumped, and is right as its gradient is.
func TestAggregationOfThePolicyLoss(t *testing.T) {
	gradient := fittedTrack(t, "gradient/dlogp", "agg.denominator", "micro")
	mine := gradient.fits[0].Changes[0]
	for denominator, want := range map[string]bool{"micro": true, "global": false} {
		s := &session{tracks: []*track{gradient, fittedTrack(t, "aggregate/pg_loss", "agg.denominator", denominator)}}
		require.Equal(t, want, gradient.ofPolicyLoss(mine, s))
	}
	require.False(t, gradient.ofPolicyLoss(mine, &session{}))
	failing := fittedTrack(t, "aggregate/pg_loss", "agg.denominator", "micro")
	failing.failing = []int{1}
	require.False(t, gradient.ofPolicyLoss(mine, &session{tracks: []*track{failing}}))
}

// A gradient that is right with a KL term lacks none, whatever its coefficient in the loss.
func TestGradientWithAKL(t *testing.T) {
	gradient := fittedTrack(t, "gradient/dlogp", "kl.place", "loss")
	res := check.Result{Verdict: check.Pass}
	gradient.withoutKL(&res, &session{tracks: []*track{fittedTrack(t, "aggregate/loss", "kl.place", "loss")}})
	require.Equal(t, check.Pass, res.Verdict)
}
