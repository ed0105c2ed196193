package fault_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
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
		"kl.place": "sequence_reward_after", "kl.beta": "0.05", "kl.kind": "k1", "adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "whiten.scope": "none", "gae.gamma": "1",
		"reward.clip": "none", "adv.multi": "sum_then_normalize", "eos.rule": "none", "score.index": "last_response",
	} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 10, Seed: 4, DType: format.F64})
	o := stage.Judge(stage.Find("reward/token"), b, set)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	scores, group := b.Row("scores"), b.Row("group_id")
	sum, n := map[float64]float64{}, map[float64]float64{}
	for r, g := range group {
		sum[g], n[g] = sum[g]+scores[r], n[g]+1
	}
	adv, reward := b.Token("advantages"), b.Token("token_rewards")
	for r, g := range group {
		by := (sum[g] - scores[r]) * (1/(n[g]-1) - 1/n[g]) // the sum of the others over the number of all
		last := -1
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				adv[i] += by
				last = i
			}
		}
		reward[last] += by
	}
	o = stage.Judge(stage.Find("reward/token"), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	found := fault.Explain(o)
	require.NotEmpty(t, found)
	require.Equal(t, "ADV-CENTER", found[0].Hypothesis.ID)
	require.Equal(t, check.Pass, stage.Judge(stage.Find("advantage/group"), b, set).Verdict)
}
