package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

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
