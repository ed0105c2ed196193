package stage

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/rl"
	"plumbline/verify/check"
)

// What a hook in the loss has of a rollout are values, returns and whitened advantages, and no rewards: the returns hold the advantages as they
// were, and whitening is judged by them. Without whitening returns are judged by the advantages, once.
func TestAdvantagesOfReturns(t *testing.T) {
	const cols = 9
	lengths := []int{9, 4, 7, 9, 1, 6}
	text := "adv.kind=gae gae.gamma=1 gae.lambda=0.95 gae.hole=carry returns.before_whiten=true whiten.shift_mean=true whiten.mask=response " +
		"whiten.eps=1e-8 whiten.eps_place=inside_sqrt whiten.ddof=1 mean.eps=0 "
	white, plain := set(t, text+"whiten.scope=local_batch"), set(t, text+"whiten.scope=none")
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 9))
		g := newGrid(cols, lengths...)
		n := len(g.Mask)
		raw, value, ret := make([]float64, n), make([]float64, n), make([]float64, n)
		for i, m := range g.Mask {
			if m {
				raw[i], value[i] = float64(float32(0.3+r.NormFloat64())), float64(float32(r.NormFloat64()))
				ret[i] = float64(float32(raw[i]) + float32(value[i]))
			}
		}
		o := rl.WhitenOptions{Scope: rl.ScopeLocalBatch, Eps: 1e-8}
		o.Var.DDof = 1
		whitened := func(o rl.WhitenOptions) []float64 {
			y, err := rl.Whiten(nil, raw, g.Mask, g.Rows, cols, o)
			require.NoError(t, err)
			for i, x := range y {
				y[i] = float64(float32(x))
			}
			return y
		}
		g.token("values", value...).token("returns", ret...).token("advantages", whitened(o)...)
		require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, white).Verdict)
		require.Equal(t, check.Skip, Judge(Find("gae/returns"), g.Batch, white).Verdict, "nothing is left to judge them by")
		o.Var.DDof = 0
		fails(t, "gae/advantage", g.token("advantages", whitened(o)...).Batch, white)
		g.token("advantages", raw...)
		require.Equal(t, check.Skip, Judge(Find("gae/advantage"), g.Batch, plain).Verdict)
		require.Equal(t, check.Pass, Judge(Find("gae/returns"), g.Batch, plain).Verdict)
		ret[0]++
		fails(t, "gae/returns", g.token("returns", ret...).Batch, plain)
		lacks(t, "gae/advantage", g.row("scores", 1, 0, 1, 0, 1, 0).Batch, plain, "token_rewards")
	}
}

// Returns may be the discounted rewards from each token on, beside advantages that have λ (Spinning Up, PPOBuffer.finish_path).
func TestReturnsOfRewardsToGo(t *testing.T) {
	b := ppoBatch(3, rewardsOf(0, 0), gaeOf(0.98, 0.9))
	toGo := ppoBatch(3, rewardsOf(0, 0), gaeOf(0.98, 1))
	b.Tensors["returns"] = toGo.Tensors["returns"]
	of := func(word string) check.Verdict {
		return Judge(Find("gae/returns"), b, set(t, "adv.kind=gae gae.gamma=0.98 gae.lambda=0.9 gae.hole=carry whiten.scope=none rewards.whiten=no returns.of="+word)).Verdict
	}
	require.Equal(t, check.Pass, of("reward_to_go"))
	require.Equal(t, check.Fail, of("gae"))
}
