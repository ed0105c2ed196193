package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A ratio to the engine's log-probs, which verl's bypass mode has, does not leave a run undecided, as one without old log-probs does.
func TestWhatIsNoDeparture(t *testing.T) {
	for to, want := range map[string]check.Verdict{"engine": check.Warn, "stopgrad_new": check.Undetermined} {
		v, err := convention.Parse("ratio.old", to)
		require.NoError(t, err)
		from, err := convention.Parse("ratio.old", "stored")
		require.NoError(t, err)
		p, _, err := convention.Lookup("trl-grpo@1.16")
		require.NoError(t, err)
		d := &departure{profile: p, track: &track{check: stage.Find("token_loss/policy")}, change: stage.Change{Option: "ratio.old", From: from, To: v}}
		var res check.Result
		d.tell(&res)
		require.Equal(t, want, res.Verdict, to)
	}
}
