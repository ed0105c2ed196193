package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// OpenRLHF adds the KL of a token to token rewards whose score has the baseline of its group subtracted already. kl.place token_reward says the same of
// it, unless the token rewards hold the scores as they are.
func TestPlaceOfKLUnderABaseline(t *testing.T) {
	const rows, cols = 4, 3
	scores, kl, beta := []float64{1, 2, 4, 5}, []float64{0.5, -0.25, 1, 0.125}, 0.5
	batch := func(shift float64) *dumpfile.Batch {
		b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}, Origin: make([]dumpfile.Origin, rows), Files: make([]dumpfile.FileInfo, 1)}
		k, r := make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range k {
			b.Mask[i], k[i] = true, kl[i%4]
			if r[i] = -beta * k[i]; i%cols == cols-1 {
				r[i] += scores[i/cols] - shift
			}
		}
		for name, x := range map[string][]float64{"kl": k, "token_rewards": r} {
			b.Tensors[name] = &dumpfile.Tensor{Data: x, Layout: dumpfile.PerToken, Width: 1}
		}
		b.Tensors["scores"] = &dumpfile.Tensor{Data: scores, Layout: dumpfile.PerRow, Width: 1}
		return b
	}
	for _, c := range []struct {
		profile, declared string
		shift             float64
		want              string
	}{
		{"openrlhf-group@0.11", "token_reward", 3, "sequence_reward_after"},
		{"openrlhf-group@0.11", "token_reward", 0, "token_reward"}, // as it says
		{"openrlhf-group@0.11", "loss", 3, "loss"},
		{"openrlhf-ppo@0.11", "token_reward", 3, "token_reward"}, // has no baseline
		{"verl-grpo@0.9", "token_reward", 3, "token_reward"},     // nor after it
	} {
		p, _, err := convention.Lookup(c.profile)
		require.NoError(t, err)
		set := convention.FromProfile(p)
		for option, text := range map[string]string{"kl.place": c.declared, "kl.beta": "0.5", "reward.clip": "none"} {
			v, err := convention.Parse(option, text)
			require.NoError(t, err)
			set = set.With(option, v, "the dump")
		}
		got, _ := placeOfKL(batch(c.shift), set, p)
		require.Equal(t, c.want, got.Value("kl.place").String(), c.profile)
	}
}

// Rewards that have no KL in them fit a coefficient of 0 as well as none: they do not say that a KL, which the loss has, is in rewards.
func TestRewardsWithoutKLDecideNoPlace(t *testing.T) {
	word := func(option, text string) stage.Change {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		return stage.Change{Option: option, To: v}
	}
	zero := stage.Fit{Changes: []stage.Change{word("kl.place", "token_reward"), word("kl.beta", "0"), word("score.index", "eos")}}
	u := &track{check: stage.Find("reward/token"), searched: true, fits: []stage.Fit{zero}}
	require.Equal(t, []stage.Change{zero.Changes[2]}, u.decided())
	zero.Changes[1] = word("kl.beta", "0.1")
	require.Len(t, u.decided(), 3)
}
