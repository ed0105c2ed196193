package dump_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Old log-probs that are computed at the first use of a mini-batch are of a policy that has moved by then; those of a rollout are all of one.
func TestOldLogProbsOfFirstUses(t *testing.T) {
	run := func(late, mixed bool) dump.Batches {
		b := smallSteps(3, 2, func(int) float64 { return 0.007 })
		r := rand.New(rand.NewPCG(2, 3))
		for rollout := range 3 {
			use := b[4*rollout : 4*rollout+4] // two mini-batches, and both again
			for k, s := range use {
				old, gen := slices.Clone(s.Token("logp_old")), slices.Clone(s.Token("logp_gen"))
				for i := range old {
					if late && k%2 == 1 {
						gen[i] = float64(float32(use[k%2].Token("logp_old")[i] + 0.6*math.Expm1(old[i])*rand.New(rand.NewPCG(uint64(rollout), uint64(i))).NormFloat64()))
					}
				}
				x := slices.Clone(old)
				for i := range x {
					if k > 1 || k == 1 && !late {
						x[i] = float64(float32(old[i] + 0.3*math.Expm1(old[i])*r.NormFloat64()))
					}
				}
				step := s.Meta.Step
				c := s.With("logp_gen", gen).With("logp_new", x)
				c.Meta.Step = step
				use[k] = c
			}
			if mixed { // rows of both mini-batches in each step of the second epoch
				p, q := use[2], use[3]
				for _, name := range []string{"logp_old", "logp_gen", "logp_new", "sample_id"} {
					x, y := slices.Clone(p.Tensors[name].Data), slices.Clone(q.Tensors[name].Data)
					for i := range len(x) / 2 {
						x[i], y[i] = y[i], x[i]
					}
					p, q = p.With(name, x), q.With(name, y)
				}
				use[2], use[3] = p, q
			}
		}
		return b
	}
	res := engineOf(t, run(true, true))
	require.NotNil(t, res)
	require.Equal(t, check.Fail, res.Verdict)
	require.Equal(t, "OLD-RECOMPUTED", res.Explanations[0].Fault)
	require.Contains(t, res.Explanations[0].Title, "first used")
	require.Nil(t, engineOf(t, run(false, true)), "there are few tokens")
	require.Nil(t, engineOf(t, run(true, false)), "each mini-batch may be a rollout of its own, of an engine that lags")
}
