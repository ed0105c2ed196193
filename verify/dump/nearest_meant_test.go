package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Returns of whitened advantages, which no framework has, are a departure that nobody means; another column of the score may be meant.
func TestDeparturesThatNobodyMeans(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	for _, c := range []struct {
		id, option, from, to string
		want                 check.Verdict
		fault                string
	}{
		{"gae/returns", "returns.before_whiten", "true", "false", check.Fail, "GAE-RETURNS-AFTER-WHITENING"},
		{"reward/token", "score.index", "last_response", "last_column", check.Undetermined, "SCORE-INDEX"},
	} {
		from, err := convention.Parse(c.option, c.from)
		require.NoError(t, err)
		to, err := convention.Parse(c.option, c.to)
		require.NoError(t, err)
		d := &departure{profile: p, track: &track{check: stage.Find(c.id)}, change: stage.Change{Option: c.option, From: from, To: to}}
		res := check.Result{Check: c.id, Verdict: check.Pass}
		d.tell(&res)
		require.Equal(t, c.want, res.Verdict, c.option)
		require.Equal(t, c.fault, res.Explanations[0].Fault)
	}
}
