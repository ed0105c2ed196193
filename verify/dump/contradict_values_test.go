package dump

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// fitsBy is a fit of options, name and value after each other.
func fitsBy(t *testing.T, list ...string) []stage.Fit {
	var f stage.Fit
	for i := 0; i < len(list); i += 2 {
		v, err := convention.Parse(list[i], list[i+1])
		require.NoError(t, err)
		f.Changes = append(f.Changes, stage.Change{Option: list[i], To: v})
	}
	return []stage.Fit{f}
}

// A mean over tokens of a value loss is one by either of its names, so that its gradient is that of the loss.
func TestTokenMeansOfValuesByEitherName(t *testing.T) {
	changes := func(list ...string) []stage.Fit { return fitsBy(t, list...) }
	for agg, want := range map[string]check.Verdict{"token": check.Pass, "same": check.Fail} {
		loss := &track{check: stage.Find("aggregate/value_loss"), searched: true, all: true, passed: 1, fits: changes("agg.kind", "seq_mean_token_mean", "value.agg", agg)}
		grad := &track{check: stage.Find("gradient/dvalues"), searched: true, all: true, passed: 1, worst: &stage.Outcome{}, fits: changes("agg.kind", "token")}
		res := check.Result{Verdict: check.Pass, Steps: &check.Steps{}}
		grad.contradicted(&res, &session{tracks: []*track{loss, grad}})
		require.Equal(t, want, res.Verdict, "value.agg=%s: %s", agg, res.Reason)
	}
}

// A critic with a loss of its own may have another aggregation than the policy: only a loss that holds its value loss is the one that its gradient is of.
func TestGradientOfACriticBesideThePolicy(t *testing.T) {
	for coef, want := range map[string]check.Verdict{"0": check.Pass, "–": check.Pass, "0.5": check.Fail} {
		v, err := convention.Parse("value.coef", coef)
		require.NoError(t, err)
		c := stage.NewCase(&dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}}, (&convention.Set{}).With("value.coef", v, "search"), 0)
		loss := &track{check: stage.Find("aggregate/loss"), searched: true, all: true, passed: 1, fits: fitsBy(t, "agg.kind", "seq_mean_token_mean"), worst: &stage.Outcome{Case: c}}
		grad := &track{check: stage.Find("gradient/dvalues"), searched: true, all: true, passed: 1, worst: &stage.Outcome{}, fits: fitsBy(t, "agg.kind", "token")}
		res := check.Result{Verdict: check.Pass, Steps: &check.Steps{}}
		grad.contradicted(&res, &session{tracks: []*track{loss, grad}})
		require.Equal(t, want, res.Verdict, "value.coef=%s: %s", coef, res.Reason)
	}
}

// A loss whose ratio is 1 for ever clips nothing, whatever range is declared, and a policy that has left the old log-probs would be clipped.
func TestRatioOfOneWhereAClipRangeIsDeclared(t *testing.T) {
	judged := func(clipBy, old string, moved bool, tensors ...string) check.Verdict {
		set := (&convention.Set{}).With("clip.low", convention.NumberValue(.2), clipBy)
		b := &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}}
		for _, name := range tensors {
			b.Tensors[name] = &dumpfile.Tensor{Name: name}
		}
		loss := &track{check: stage.Find("aggregate/pg_loss"), searched: true, all: true, passed: 3, fits: fitsBy(t, "ratio.old", old),
			worst: &stage.Outcome{Case: stage.NewCase(b, set, 0x1p-24)}}
		res := check.Result{Verdict: check.Pass, Steps: &check.Steps{}}
		loss.unclipped(&res, &session{history: history{moved: moved}}, nil)
		if res.Verdict == check.Fail {
			require.Equal(t, "OLD-RECOMPUTED", res.Explanations[0].Fault)
		}
		return res.Verdict
	}
	require.Equal(t, check.Fail, judged("the dump", "stopgrad_new", true))
	require.Equal(t, check.Pass, judged("the dump", "stored", true))
	require.Equal(t, check.Pass, judged("the dump", "stopgrad_new", false), "the policy has not moved")
	require.Equal(t, check.Pass, judged("search", "stopgrad_new", true), "nobody declares a clip range")
	require.Equal(t, check.Pass, judged("verl-grpo@0.9", "stopgrad_new", true), "a profile has it")
	require.Equal(t, check.Pass, judged("the dump", "stopgrad_new", true, "is_weights"), "weights of the engine may bound the policy")
}

// Where nobody declares a clip range, token losses of a ratio of 1 fail if updates use their rows again, with the old log-probs of the first.
func TestRatioOfOneWhereRowsAreUsedAgain(t *testing.T) {
	judged := func(id string, again int, failing []int) check.Verdict {
		b := &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}}
		loss := &track{check: stage.Find(id), searched: true, all: true, passed: 3, fits: fitsBy(t, "ratio.old", "stopgrad_new"),
			worst: &stage.Outcome{Case: stage.NewCase(b, &convention.Set{}, 0x1p-24)}}
		old := &track{check: acrossChecks[0], passed: again, failing: failing}
		res := check.Result{Verdict: check.Pass, Steps: &check.Steps{}}
		loss.unclipped(&res, &session{history: history{moved: true}, tracks: []*track{old, loss}}, nil)
		return res.Verdict
	}
	require.Equal(t, check.Fail, judged("token_loss/policy", 2, nil))
	require.Equal(t, check.Pass, judged("token_loss/policy", 0, nil), "rows are used once, as by a REINFORCE program")
	require.Equal(t, check.Pass, judged("token_loss/policy", 2, []int{4}), "another check says that they were recomputed")
	require.Equal(t, check.Pass, judged("aggregate/loss", 2, nil), "many formulas give one number")
}

// Rewards that are logged with another β than the losses are right with fail where nobody declares one; without β they are a matter of taste.
func TestRewardsOfAnotherBeta(t *testing.T) {
	judged := func(beta float64, by string, lossFails bool) *check.Result {
		set := (&convention.Set{}).With("dpo.beta", convention.NumberValue(0.09), by)
		fit := stage.Fit{Changes: []stage.Change{{Option: "dpo.beta", From: convention.NumberValue(0.09), To: convention.NumberValue(beta)}}}
		rewards := &track{check: stage.Find("scalars/rewards_chosen"), why: explanation{fits: []stage.Fit{fit}},
			first: &stage.Outcome{Case: stage.NewCase(&dumpfile.Batch{}, set, 0)}}
		loss := &track{check: stage.Find("preference/pair_loss"), passed: 3}
		if lossFails {
			loss.failing = []int{2}
		}
		res := &check.Result{Verdict: check.Convention, Explanations: []check.Explanation{{Fault: "METRIC-REWARD-BETA"}}}
		rewards.undeclared(res, &session{tracks: []*track{loss, rewards}})
		return res
	}
	require.Equal(t, check.Fail, judged(0.3, "search", false).Verdict)
	require.False(t, judged(0.3, "search", false).Explanations[0].Lead)
	require.True(t, judged(0.3, "search", true).Explanations[0].Lead, "the losses are of no β")
	require.Equal(t, check.Convention, judged(1, "search", false).Verdict, "log-ratios are logged")
	require.Equal(t, check.Convention, judged(0.3, "--set", false).Verdict, "a declared β is what the log is held against")
}

// The mean of the entropies of a loss that is divided by the accumulation steps has half the coefficient of one that is not, and nobody declares either.
func TestCoefficientsThatAGradientDecides(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var steps Batches
	for step := range 3 {
		const rows, cols = 8, 6
		b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: slices.Repeat([]bool{true}, rows*cols), Origin: make([]dumpfile.Origin, rows), Tensors: map[string]*dumpfile.Tensor{},
			Files: []dumpfile.FileInfo{{Name: "a", Hi: 4, Cols: cols}, {Name: "b", MicroBatch: 1, Lo: 4, Hi: rows, Cols: cols}}}
		b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize, b.Meta.DLogpScale = step+1, 2, 1, 1
		x := map[string][]float64{}
		for _, name := range []string{"logp_new", "logp_old", "entropy", "dlogp"} {
			x[name] = make([]float64, rows*cols)
		}
		pg, loss, h, adv := make([]float64, 2), make([]float64, 2), make([]float64, 2), make([]float64, rows)
		for i := range rows * cols {
			if i%cols == 0 {
				adv[i/cols] = float64(float32(rng.NormFloat64()))
			}
			a, f, n := adv[i/cols], i/cols/4, float64(rows*cols/2)
			old := float64(float32(-1 - rng.Float64()))
			lp := float64(float32(old + 0.05*rng.NormFloat64()))
			x["logp_old"][i], x["logp_new"][i], x["entropy"][i] = old, lp, float64(float32(1+rng.Float64()))
			r := math.Exp(lp - old)
			x["dlogp"][i] = -a * r / n / 2
			pg[f] -= a * r / n / 2
			h[f] += x["entropy"][i] / n
		}
		for f := range loss {
			loss[f] = pg[f] - 0.02*h[f]/2
		}
		for name, data := range x {
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Data: data, Layout: dumpfile.PerToken, Width: 1, Type: format.F32, Shape: []int{rows, cols}}
		}
		for name, data := range map[string][]float64{"loss": loss, "pg_loss": pg, "entropy_loss": h} {
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Data: data, Layout: dumpfile.PerFile, Width: 1, Type: format.F32, Shape: []int{1}}
		}
		b.Tensors["advantages"] = &dumpfile.Tensor{Name: "advantages", Data: adv, Layout: dumpfile.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
		steps = append(steps, b)
	}
	r, err := Judge(context.Background(), steps, Options{Set: []string{"loss.kind=ppo", "kl.place=none", "agg.kind=token", "agg.denominator=micro"}, Profile: "none"})
	require.NoError(t, err)
	for _, res := range r.Results {
		require.NotContains(t, []check.Verdict{check.Fail, check.Convention}, res.Verdict, "%s: %s", res.Check, res.Reason)
	}
}
