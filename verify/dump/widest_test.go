package dump

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// A loss that is twice the right one at a step where its policy term is 0 fits under twice the β; its gradient, which has that term, does not.
func TestFitsGiveWay(t *testing.T) {
	change := func(option, from, to string) stage.Fit {
		a, err := convention.Parse(option, from)
		require.NoError(t, err)
		b, err := convention.Parse(option, to)
		require.NoError(t, err)
		return stage.Fit{Changes: []stage.Change{{Option: option, From: a, To: b}}}
	}
	failed := func(id string, factor string, fits ...stage.Fit) *track {
		u := &track{check: stage.Find(id), first: &stage.Outcome{}, failing: []int{1}}
		u.why.fits = fits
		if factor != "" {
			u.why.faults = []fault.Explanation{{Hypothesis: fault.Find("KL-TWICE")}, {Hypothesis: fault.Find("FACTOR"), Factor: factor}}
		}
		return u
	}
	beta, ga := change("kl.beta", "0.02", "0.04"), change("agg.div_ga", "true", "false")
	loss, slope := failed("aggregate/loss", "× 2", beta), failed("gradient/dlogp", "× 2")
	slope.why.faults = slope.why.faults[1:]
	loss.giveWay([]*track{loss, slope})
	require.Empty(t, loss.why.fits)
	require.Equal(t, "FACTOR", loss.why.faults[0].Hypothesis.ID)

	loss, slope = failed("aggregate/loss", "× 2", beta), failed("gradient/dlogp", "× 3")
	slope.why.faults = slope.why.faults[1:]
	loss.giveWay([]*track{loss, slope})
	require.Len(t, loss.why.fits, 1) // another factor explains nothing of both

	loss, slope = failed("aggregate/loss", "× 2", beta, ga), failed("gradient/dlogp", "× 2", ga)
	loss.giveWay([]*track{loss, slope})
	require.Len(t, loss.why.fits, 2)
	require.Equal(t, ga.Changes, sharedFirst(loss.why.fits, loss.kin([]*track{loss, slope}))[0].Changes)
	require.Empty(t, loss.kin([]*track{loss, failed("gae/advantage", "× 2", ga)}))

	// The same options, changed in another order and beside a third.
	mask := change("mask.tokens", "none", "response")
	both := stage.Fit{Changes: slices.Concat(ga.Changes, beta.Changes)}
	more := stage.Fit{Changes: slices.Concat(mask.Changes, beta.Changes, ga.Changes)}
	loss, slope = failed("aggregate/loss", "× 2", both), failed("gradient/dlogp", "× 2", more)
	slope.why.faults = slope.why.faults[1:]
	loss.giveWay([]*track{loss, slope})
	require.Len(t, loss.why.fits, 1)
}
