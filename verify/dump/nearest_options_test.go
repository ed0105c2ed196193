package dump

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
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

// Of responses without holes every rule for holes gives the same numbers, also one that asks for an option to which the found one does not.
func TestAnOptionThatAppliesUnderTheOther(t *testing.T) {
	b := &dumpfile.Batch{Rows: 1, Cols: 3, Mask: []bool{true, true, true}, Tensors: map[string]*dumpfile.Tensor{}, Origin: make([]dumpfile.Origin, 1), Files: []dumpfile.FileInfo{{Name: "step", Hi: 1, Cols: 3}}}
	b.Meta = dumpfile.Meta{Step: 1, WorldSize: 1, MicroBatches: 1, DLogpScale: 1}
	for name, x := range map[string][]float64{"token_rewards": {0, 0, 1}, "values": {0.5, 0.25, 0.75}, "returns": {1, 1, 1}} {
		b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: dumpfile.PerToken, Width: 1, Shape: []int{1, 3}, Data: x, Type: format.F32}
	}
	s, err := newSession(Batches{b}, Options{})
	require.NoError(t, err)
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	var f stage.Fit
	for _, x := range []string{"adv.kind=gae", "gae.gamma=1", "gae.lambda=1", "gae.hole=cut_next", "gae.lambda_policy=none", "gae.truncated_bootstrap=none", "whiten.scope=none", "rewards.whiten=no", "returns.before_whiten=true"} {
		name, text, _ := strings.Cut(x, "=")
		v, err := convention.Parse(name, text)
		require.NoError(t, err)
		f.Changes = append(f.Changes, stage.Change{Option: name, From: p.Value(name), To: v})
	}
	hole := f.Changes[3]
	require.Equal(t, "zero_step", hole.From.String())
	require.Empty(t, s.needed(&track{check: stage.Find("gae/returns"), starts: []int{1}}, f, []stage.Change{hole}, p))
}
