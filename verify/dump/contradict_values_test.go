package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A mean over tokens of a value loss is one by either of its names, so that its gradient is that of the loss.
func TestTokenMeansOfValuesByEitherName(t *testing.T) {
	changes := func(list ...string) []stage.Fit {
		var f stage.Fit
		for i := 0; i < len(list); i += 2 {
			v, err := convention.Parse(list[i], list[i+1])
			require.NoError(t, err)
			f.Changes = append(f.Changes, stage.Change{Option: list[i], To: v})
		}
		return []stage.Fit{f}
	}
	for agg, want := range map[string]check.Verdict{"token": check.Pass, "same": check.Fail} {
		loss := &track{check: stage.Find("aggregate/value_loss"), searched: true, all: true, passed: 1, fits: changes("agg.kind", "seq_mean_token_mean", "value.agg", agg)}
		grad := &track{check: stage.Find("gradient/dvalues"), searched: true, all: true, passed: 1, worst: &stage.Outcome{}, fits: changes("agg.kind", "token")}
		res := check.Result{Verdict: check.Pass, Steps: &check.Steps{}}
		grad.contradicted(&res, &session{tracks: []*track{loss, grad}})
		require.Equal(t, want, res.Verdict, "value.agg=%s: %s", agg, res.Reason)
	}
}
