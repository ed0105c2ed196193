package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// What a profile that nobody declared says is no declaration: of fits that change it, what is left of their changes is told, and the one
// that contradicts the fewest declarations leads.
func TestFitsOfARunWithoutAProfile(t *testing.T) {
	change := func(option, from, to string) stage.Change {
		c := stage.Change{Option: option}
		var err error
		c.From, err = convention.Parse(option, from)
		require.NoError(t, err)
		c.To, err = convention.Parse(option, to)
		require.NoError(t, err)
		return c
	}
	place, scope := change("whiten.eps_place", "add_std", "no_std"), change("whiten.scope", "minibatch", "none")
	undeclared := change("rewards.whiten", "shift_mean_false", "no")
	set := (&convention.Set{}).With(place.Option, place.From, "the dump").With(scope.Option, scope.From, "the dump").
		With(undeclared.Option, undeclared.From, "oai@2019")
	tr := &track{first: &stage.Outcome{Case: stage.NewCase(nil, set, 0)}}
	fits := tr.declared([]stage.Fit{{Changes: []stage.Change{place, scope}}, {Changes: []stage.Change{undeclared, scope}}, {Changes: []stage.Change{scope}}})
	require.Len(t, fits, 2)
	require.Equal(t, []stage.Change{scope}, fits[0].Changes)
	require.Equal(t, []stage.Change{place, scope}, fits[1].Changes)
	require.Len(t, tr.declared([]stage.Fit{{Changes: []stage.Change{undeclared}}}), 1, "what nothing else explains stays")
	name, ok := fault.OfChange(change("gae.lambda", "0.95", "1"))
	require.True(t, ok)
	require.Equal(t, "GAE-NO-LAMBDA", name.ID)
}

// A bug that explains more of the failing checks leads one that explains a single one of them: KL of the engine's old log-probs is KL under the
// weights, too, and the token losses say which it is.
func TestBugOfMostChecksLeads(t *testing.T) {
	by := func(ids ...string) *track {
		tr := &track{}
		for _, id := range ids {
			tr.why.faults = append(tr.why.faults, fault.Explanation{Hypothesis: &fault.Hypothesis{ID: id}})
		}
		return tr
	}
	kl, loss := by("KL-TIMES-WEIGHTS", "OLD-IS-GEN"), by("OLD-IS-GEN")
	kl.widestFirst([]*track{kl, loss})
	require.Equal(t, "OLD-IS-GEN", kl.why.faults[0].Hypothesis.ID)
	alone := by("KL-TIMES-WEIGHTS", "OLD-IS-GEN")
	alone.widestFirst([]*track{alone})
	require.Equal(t, "KL-TIMES-WEIGHTS", alone.why.faults[0].Hypothesis.ID)
	factor := by("FACTOR", "OLD-IS-GEN")
	factor.why.faults[0].Factor = "× 2 (2)"
	factor.widestFirst([]*track{factor, loss})
	require.Equal(t, "FACTOR", factor.why.faults[0].Hypothesis.ID)
}

// What exchanged rows lead to is told under them; another bug beside them is not.
func TestConsequencesAreNoFindings(t *testing.T) {
	failed := func(id string, faults ...string) check.Result {
		res := check.Result{Check: id, Verdict: check.Fail}
		for _, f := range faults {
			res.Explanations = append(res.Explanations, check.Explanation{Fault: f})
		}
		return res
	}
	results := []check.Result{failed("agreement/old", "ROWS-SWAPPED"), failed("agreement/temperature", "LOGP-TEMPERATURE"), failed("reward/token"),
		failed("scalars/ppo_kl", "METRIC-UPDATE-KL"), failed("reward/token", "KL-SIGN"), failed("aggregate/num_items", "AGG-COUNTS-MASKED")}
	found := []check.Finding{{Name: "ROWS-SWAPPED", Verdict: check.Fail, Results: []int{0}, Seen: []string{"agreement/old"}}}
	s := &session{}
	for i, want := range []bool{true, true, true, false, false} {
		require.Equal(t, want, s.causeOf(found, results, &results[i+1]) != nil, results[i+1].Check)
	}
	shift := []check.Result{failed("masks/position", "MASK-SHIFT"), results[5]}
	found = []check.Finding{{Name: "MASK-SHIFT", Verdict: check.Fail, Results: []int{0}, Seen: []string{"masks/position"}}}
	require.NotNil(t, s.causeOf(found, shift, &shift[1]))
	old := []check.Result{failed("aggregate/kl_loss", "KL-OF-OLD"), failed("gradient/dlogp", "KL-DETACHED"), failed("gradient/dlogp", "ADV-SIGN"), failed("gradient/dlogp")}
	found = []check.Finding{{Name: "KL-OF-OLD", Verdict: check.Fail, Results: []int{0}, Seen: []string{"aggregate/kl_loss"}}}
	require.NotNil(t, s.causeOf(found, old, &old[1]))
	require.Nil(t, s.causeOf(found, old, &old[2]))
	require.NotNil(t, s.causeOf(found, old, &old[3]))
}

// A loss without a name is told under the bug of the mask that its gradient has, before or behind it; under another bug it is not.
func TestLossesUnderTheirGradients(t *testing.T) {
	results := []check.Result{{Check: "aggregate/pg_loss", Verdict: check.Fail}, {Check: "gradient/dlogp", Verdict: check.Fail, Explanations: []check.Explanation{{Fault: "LOSS-MASK-SHIFT"}}}}
	of := func(name string) []check.Finding {
		return []check.Finding{{Name: "aggregate/pg_loss", Verdict: check.Fail, Results: []int{0}, Seen: []string{"aggregate/pg_loss"}},
			{Name: name, Verdict: check.Fail, Results: []int{1}, Seen: []string{"gradient/dlogp"}}}
	}
	found := underGradients(of("LOSS-MASK-SHIFT"), results)
	require.Len(t, found, 1)
	require.Equal(t, []string{"gradient/dlogp", "aggregate/pg_loss"}, found[0].Seen)
	turned := of("LOSS-MASK-SHIFT")
	turned[0], turned[1] = turned[1], turned[0]
	require.Equal(t, found, underGradients(turned, results))
	require.Len(t, underGradients(of("KL-DETACHED"), results), 2)
	results[0].Explanations = []check.Explanation{{Fault: "ADV-SIGN"}}
	require.Len(t, underGradients(of("LOSS-MASK-SHIFT"), results), 2)
}

// A KL that has a loss is not said to stand elsewhere where a bug gives its numbers.
func TestKLStaysInItsLoss(t *testing.T) {
	require.True(t, movesKL(fitsBy(t, "kl.place", "token_reward")[0]))
	require.False(t, movesKL(fitsBy(t, "kl.place", "loss")[0]), "a profile without a KL loss is not that of the run")
	require.False(t, movesKL(fitsBy(t, "kl.kind", "k2")[0]))
}

// What a program shall compute with instead is told by its value, where one is declared.
func TestDeclaredValuesAreTold(t *testing.T) {
	require.Equal(t, ", whiten.ddof=1, gae.gamma=0.99", valueOf([]check.OptionChange{{Option: "whiten.ddof", Value: "0", Declared: "1"}, {Option: "gae.gamma", Value: "1", Declared: "0.99"}}))
	require.Empty(t, valueOf([]check.OptionChange{{Option: "whiten.ddof", Value: "0", Declared: "?"}}))
}
