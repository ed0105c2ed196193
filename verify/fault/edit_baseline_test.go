package fault_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// OpenRLHF's token rewards are made of scores behind their baseline: a wrong baseline shows there, and the advantages are right for what they are
// made of.
func TestBaselineOfTokenRewards(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-group@0.11")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(4, 7)))
	for option, value := range map[string]string{
		"kl.place": "sequence_reward_after", "kl.beta": "0.05", "kl.kind": "k1", "adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "whiten.scope": "none", "gae.gamma": "1", "reward.clip": "none",
	} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 10, Seed: 4})
	require.Equal(t, check.Pass, stage.Judge(stage.Find("reward/token"), b, set).Verdict)
	scores, group := b.Row("scores"), b.Row("group_id")
	sum, n := map[float64]float64{}, map[float64]float64{}
	for r, g := range group {
		sum[g], n[g] = sum[g]+scores[r], n[g]+1
	}
	reward, adv := b.Token("token_rewards"), b.Token("advantages")
	for r, g := range group {
		others := sum[g] - scores[r]
		last := -1
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				last = i
			}
		}
		if last < 0 {
			continue
		}
		by := others/(n[g]-1) - others/n[g] // the mean of the others over the number of all
		reward[last] = float64(float32(reward[last] + by))
		for i := r * b.Cols; i <= last; i++ {
			if b.Mask[i] && !math.IsNaN(adv[i]) {
				adv[i] = float64(float32(adv[i] + by))
			}
		}
	}
	o := stage.Judge(stage.Find("reward/token"), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	found := fault.Explain(o)
	require.NotEmpty(t, found)
	require.Equal(t, "ADV-CENTER", found[0].Hypothesis.ID)
	require.Equal(t, check.Pass, stage.Judge(stage.Find("advantage/group"), b, set).Verdict)
}
