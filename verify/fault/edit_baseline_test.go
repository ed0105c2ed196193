package fault_test

import (
	"math/rand/v2"
	"strconv"
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

// A wrong baseline shows in the advantages of tokens that are returns of it and of the KL, where differences from it are clipped, too.
func TestBaselineBeforeReturns(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-group@0.11")
	require.NoError(t, err)
	for _, gamma := range []float64{1, 0.96} {
		set := trainer.Complete(p, rand.New(rand.NewPCG(4, 7)))
		for option, value := range map[string]string{
			"kl.place": "sequence_reward_after", "kl.beta": "0.05", "kl.kind": "k1", "adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "whiten.scope": "none",
			"gae.gamma": strconv.FormatFloat(gamma, 'g', -1, 64), "gae.hole": "zero_step", "reward.clip": "after_baseline", "reward.clip_range": "-1,0.5", "adv.multi": "sum_then_normalize", "eos.rule": "none",
		} {
			v, err := convention.Parse(option, value)
			require.NoError(t, err)
			set = set.With(option, v, "test")
		}
		b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 10, Seed: 4, DType: format.F32})
		delete(b.Tensors, "token_rewards")
		scores, group, kl := b.Row("scores"), b.Row("group_id"), b.Token("kl")
		sum, n := map[float64]float64{}, map[float64]float64{}
		for r, g := range group {
			sum[g], n[g] = sum[g]+scores[r], n[g]+1
		}
		judge := func(baseline func(g, own float64) float64) *stage.Outcome {
			for r, g := range group {
				a, behind := min(max(scores[r]-baseline(g, scores[r]), -1), 0.5), 0.0
				for i := (r+1)*b.Cols - 1; i >= r*b.Cols; i-- {
					if behind *= gamma; b.Mask[i] {
						behind, a = behind+a-0.05*kl[i], 0
						b.Tensors["advantages"].Data[i] = float64(float32(behind))
					}
				}
			}
			return stage.Judge(stage.Find("advantage/group"), b, set)
		}
		require.Equal(t, check.Pass, judge(func(g, own float64) float64 { return (sum[g] - own) / (n[g] - 1) }).Verdict)
		requireFirst(t, judge(func(g, _ float64) float64 { return sum[g] / (n[g] - 1) }), "ADV-CENTER", "the mean with the row itself, over n − 1")
	}
}
