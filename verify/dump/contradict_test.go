package dump_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// The profile of verl 0.8 does not say whether a loss is divided by the accumulation steps; its gradient is that of the same loss.
func TestGradientOfAnotherLoss(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{"../../golden/dumps/verl/clean/ppo"})
	require.NoError(t, err)
	for _, name := range []string{"", "dvalues", "dlogp"} {
		var steps dump.Batches
		for b, err := range run.Batches(context.Background()) {
			require.NoError(t, err)
			if name != "" {
				half := slices.Clone(b.Token(name))
				for i := range half {
					half[i] /= 2
				}
				b = b.With(name, half)
			}
			steps = append(steps, b)
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "verl-ppo@0.8"})
		require.NoError(t, err)
		if name == "" {
			require.Empty(t, bad(r), describe(bad(r)))
			continue
		}
		require.Len(t, bad(r), 1, describe(bad(r)))
		res := bad(r)[0]
		require.Equal(t, check.Fail, res.Verdict)
		require.Equal(t, "gradient/"+name, res.Check)
		require.Contains(t, res.Reason, "it is right only with agg.div_ga=true, and aggregate/")
		require.NotZero(t, res.Where)
	}
}

// A KL that is 0 at the first step, where policy and reference are one, has k1's gradient there all the same: that the loss has its KL is seen
// in a later step, and the gradient without it is that of a detached KL.
func TestKLOfALaterStep(t *testing.T) {
	const beta = 0.05
	run, err := dumpfile.Open(context.Background(), []string{verlGRPO})
	require.NoError(t, err)
	for _, slope := range []float64{1, 0} {
		var steps dump.Batches
		for _, step := range run.Steps() {
			b, err := run.Batch(context.Background(), step)
			require.NoError(t, err)
			for i, o := range b.Meta.Options {
				if o.Name == "kl.kind" {
					b.Meta.Options[i].Value = "k1"
				}
			}
			lp, ref, kl, g := b.Token("logp_new"), b.Token("logp_ref"), b.Token("kl"), b.Token("dlogp")
			old, adv, token, loss := b.Token("logp_old"), b.Token("advantages"), b.Token("token_loss"), b.PerFile("loss")
			n := 0.0
			cells(b, func(_, _, _ int) { n++ })
			cells(b, func(i, row, _ int) {
				f := slices.IndexFunc(b.Files, func(f dumpfile.FileInfo) bool { return row < f.Hi })
				loss[f] -= beta * (math.Expm1(ref[i]-lp[i]) - (ref[i] - lp[i])) / n
				g[i] = 0 // where the clipped term is the larger one
				if plain := -adv[i] * math.Exp(lp[i]-old[i]); math.Abs(plain-token[i]) < 1e-5*math.Abs(plain) {
					g[i] = plain / n
				}
				if step == run.Steps()[0] {
					ref[i] = lp[i]
				}
				kl[i] = single(lp[i] - ref[i])
				g[i] = single(g[i] + slope*beta/n)
				loss[f] += beta * kl[i] / n
			})
			delete(b.Tensors, "kl_loss")
			steps = append(steps, b)
		}
		for _, profile := range []string{"verl-grpo@0.9", dump.NoProfile} {
			if profile == dump.NoProfile {
				for _, b := range steps {
					b.Meta.Framework, b.Meta.Version, b.Meta.Profile, b.Meta.Options = "", "", "", nil
				}
			}
			r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: profile, Selection: check.Selection{Select: []string{"aggregate/*", "gradient/*"}}})
			require.NoError(t, err)
			if slope == 1 {
				require.Empty(t, bad(r), describe(bad(r)))
				continue
			}
			require.Len(t, bad(r), 1, describe(bad(r)))
			require.Equal(t, check.Fail, bad(r)[0].Verdict, describe(bad(r)))
			require.NotEmpty(t, bad(r)[0].Explanations, bad(r)[0].Reason)
			require.Equal(t, "KL-DETACHED", bad(r)[0].Explanations[0].Fault, describe(bad(r)))
		}
	}
}

// A temperature of one pass is there at the first update of a rollout, too; a policy that its updates made sharper begins as it was.
func TestSharpenedPolicyIsNoTemperature(t *testing.T) {
	sharper := func(always bool) func(rollout, update int, x map[string][]float64) {
		return func(_, update int, x map[string][]float64) {
			for i, old := range x["logp_old"] {
				if x["logp_new"][i] = old; always || update == 1 {
					x["logp_new"][i] = float64(float32(old + 0.2*(old+0.9)))
				}
			}
		}
	}
	require.Equal(t, check.Fail, acrossVerdicts(t, generations(3, sharper(true)))["agreement/temperature"])
	require.Equal(t, check.Warn, acrossVerdicts(t, generations(3, sharper(false)))["agreement/temperature"])
	const near = "logp.temperature=1.2" // which the run declares
	require.Equal(t, check.Fail, acrossVerdicts(t, generations(3, sharper(true)), near)["agreement/old"])
	require.Equal(t, check.Warn, acrossVerdicts(t, generations(3, sharper(false)), near)["agreement/old"])
}

// What the engine reports does not change in a run: where it agrees with the trainer in one step, other weights make the difference of another.
func TestEngineThatAgreedHasOtherWeightsLater(t *testing.T) {
	worst := func(from int, options ...dumpfile.Option) (v check.Verdict) {
		r := rand.New(rand.NewPCG(3, 5))
		b := generations(3, func(rollout, _ int, x map[string][]float64) {
			if rollout >= from {
				for i, old := range x["logp_old"] {
					x["logp_gen"][i] = float64(float32(min(0.2*old-0.8+0.5*r.NormFloat64(), -1e-3)))
				}
			}
		})
		for _, s := range b {
			s.Meta.Options = options
		}
		all := acrossVerdicts(t, b)
		for _, id := range []string{"agreement/engine", "agreement/drift"} {
			if all[id] == check.Fail || all[id] == check.Warn && v != check.Fail {
				v = all[id]
			}
		}
		return v
	}
	require.Equal(t, check.Fail, worst(0))
	require.Equal(t, check.Warn, worst(1))
	require.NotContains(t, []check.Verdict{check.Fail, check.Warn}, worst(1, dumpfile.Option{Name: "async_rollout", Value: true}))
}

// Returns of whitened advantages are right with advantages that are not whitened, too, which the advantages beside them refute.
func TestReturnsOfWhitenedAdvantages(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{"../../golden/dumps/openrlhf/clean/ppo"})
	require.NoError(t, err)
	var steps dump.Batches
	for b, err := range run.Batches(context.Background()) {
		require.NoError(t, err)
		ret, adv, v := slices.Clone(b.Token("returns")), b.Token("advantages"), b.Token("values")
		for i := range ret {
			ret[i] = single(adv[i] + v[i])
		}
		steps = append(steps, b.With("returns", ret).Without("token_rewards"))
	}
	r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "openrlhf-ppo@0.11", Selection: check.Selection{Select: []string{"gae/returns", "gae/advantage"}}})
	require.NoError(t, err)
	require.Len(t, bad(r), 1, describe(bad(r)))
	require.Equal(t, "gae/returns", bad(r)[0].Check)
	require.Equal(t, "GAE-RETURNS-AFTER-WHITENING", bad(r)[0].Explanations[0].Fault)
	require.NotContains(t, describe(bad(r)), "WHITEN-MISSING")
}
