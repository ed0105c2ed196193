package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// wrong is a result of a check that failed in its first step, explained by bugs.
func wrong(id string, v check.Verdict, bugs ...string) check.Result {
	res := check.Result{Check: id, Verdict: v, Steps: &check.Steps{Bad: 1, Judged: 1}}
	for _, b := range bugs {
		res.Explanations = append(res.Explanations, check.Explanation{Fault: b})
	}
	return res
}

// names of the findings of results, and where each is seen.
func findingsOf(results ...check.Result) [][]string {
	s := &session{}
	var list [][]string
	for _, f := range s.brief(&Report{Results: results}).Findings {
		list = append(list, append([]string{f.Name}, f.Seen...))
	}
	return list
}

// What one cause breaks behind it is one finding; a second bug stays one of its own.
func TestOneCauseIsOneFinding(t *testing.T) {
	const fail, open, warn = check.Fail, check.Undetermined, check.Warn
	for _, c := range []struct {
		name    string
		results []check.Result
		want    [][]string
	}{
		{"a loss of pairs that nothing explains, and its gradients", []check.Result{wrong("preference/pair_loss", fail), wrong("preference/dlogp_chosen", fail), wrong("preference/dlogp_rejected", fail)},
			[][]string{{"preference/pair_loss", "preference/pair_loss", "preference/dlogp_chosen", "preference/dlogp_rejected"}}},
		{"a gradient with a bug of its own", []check.Result{wrong("preference/pair_loss", fail), wrong("preference/dlogp_chosen", fail, "DPO-SIGN")},
			[][]string{{"preference/pair_loss", "preference/pair_loss"}, {"DPO-SIGN", "preference/dlogp_chosen"}}},
		{"a gradient that a bug of its loss does not explain", []check.Result{wrong("preference/pair_loss", fail, "DPO-BETA"), wrong("preference/dlogp_chosen", fail)},
			[][]string{{"DPO-BETA", "preference/pair_loss"}, {"preference/dlogp_chosen", "preference/dlogp_chosen"}}},
		{"what is undecided", []check.Result{wrong("token_loss/policy", open), wrong("aggregate/loss", open), wrong("gradient/dlogp", open), wrong("scalars/clip_fraction", open)},
			[][]string{{"token_loss/policy", "token_loss/policy", "aggregate/loss", "gradient/dlogp", "scalars/clip_fraction"}}},
		{"what is undecided behind a bug", []check.Result{wrong("token_loss/policy", fail, "CLIP-MIN-MAX"), wrong("gradient/dlogp", open)}, [][]string{{"CLIP-MIN-MAX", "token_loss/policy", "gradient/dlogp"}}},
		{"what is undecided before a bug of the gradient", []check.Result{wrong("aggregate/value_loss", open), wrong("gradient/dvalues", fail, "VALUE-CLIP-MIN")},
			[][]string{{"VALUE-CLIP-MIN", "gradient/dvalues", "aggregate/value_loss"}}},
		{"an advantage and a loss", []check.Result{wrong("advantage/group", fail), wrong("token_loss/policy", fail)}, [][]string{{"advantage/group", "advantage/group"}, {"token_loss/policy", "token_loss/policy"}}},
		{"two bugs of one stage", []check.Result{wrong("logp/new", fail, "LOGP-TEMPERATURE"), wrong("logp/entropy", fail, "ENTROPY-FORM")}, [][]string{{"LOGP-TEMPERATURE", "logp/new"}, {"ENTROPY-FORM", "logp/entropy"}}},
		{"a temperature of both", []check.Result{wrong("logp/new", fail, "LOGP-TEMPERATURE"), wrong("logp/entropy", fail, "ENTROPY-TEMPERATURE")}, [][]string{{"LOGP-TEMPERATURE", "logp/new", "logp/entropy"}}},
		{"a temperature, and an entropy that it does not explain", []check.Result{wrong("logp/new", fail, "LOGP-TEMPERATURE"), wrong("logp/entropy", fail)},
			[][]string{{"LOGP-TEMPERATURE", "logp/new"}, {"logp/entropy", "logp/entropy"}}},
		{"a range before the formula that leaves it", []check.Result{wrong("logp/entropy_range", fail), wrong("logp/new", check.Pass), wrong("logp/entropy", fail, "ENTROPY-FORM")},
			[][]string{{"ENTROPY-FORM", "logp/entropy", "logp/entropy_range"}}},
		{"moments of advantages that were whitened otherwise", []check.Result{wrong("gae/advantage", fail, "WHITEN-PADS"), wrong("advantage/moments", warn)}, [][]string{{"WHITEN-PADS", "gae/advantage", "advantage/moments"}}},
		{"rewards that were whitened otherwise", []check.Result{wrong("reward/token", fail), wrong("gae/advantage", check.Convention, "WHITEN-REWARDS-MISSING")}, [][]string{{"reward/token", "reward/token", "gae/advantage"}}},
		{"a recursion that takes other rewards", []check.Result{wrong("reward/token", fail, "KL-SIGN"), wrong("gae/advantage", check.Convention, "WHITEN-REWARDS-MISSING")},
			[][]string{{"KL-SIGN", "reward/token"}, {"WHITEN-REWARDS-MISSING", "gae/advantage"}}},
		{"a mask, and the count of its tokens", []check.Result{wrong("masks/position", fail, "MASK-PAST-EOS"), wrong("aggregate/num_items", fail)}, [][]string{{"MASK-PAST-EOS", "masks/position", "aggregate/num_items"}}},
		{"logged numbers of pairs", []check.Result{wrong("scalars/rewards_chosen", fail), wrong("scalars/rewards_margins", fail)}, [][]string{{"scalars/rewards_chosen", "scalars/rewards_chosen", "scalars/rewards_margins"}}},
		{"a temperature of the old pass, and what the engine says of it", []check.Result{wrong("agreement/old", fail, "LOGP-TEMPERATURE"), wrong("agreement/drift", warn, "GEN-TEMPERATURE-TWICE"), wrong("agreement/engine", fail, "OLD-OTHER-PASS")},
			[][]string{{"LOGP-TEMPERATURE", "agreement/old", "agreement/drift", "agreement/engine"}}},
		{"a temperature of a pass, and one of the engine", []check.Result{wrong("agreement/old", fail, "LOGP-TEMPERATURE"), wrong("agreement/drift", warn, "GEN-TEMPERATURE-TWICE")},
			[][]string{{"LOGP-TEMPERATURE", "agreement/old"}, {"GEN-TEMPERATURE-TWICE", "agreement/drift"}}},
	} {
		require.Equal(t, c.want, findingsOf(c.results...), c.name)
	}
}

// A likeness of a temperature in a later step is told under a bug of the loss before it, if the log-probs are those of the logits.
func TestPatternsOfAPolicyThatLearned(t *testing.T) {
	for _, c := range []struct {
		logp  check.Verdict
		first int
		want  int
	}{{check.Pass, 5, 1}, {check.Pass, 1, 2}, {check.NotSeen, 5, 2}} {
		results := []check.Result{wrong("logp/new", c.logp), wrong("token_loss/policy", check.Fail, "CLIP-ABSENT"), wrong("agreement/temperature", check.Fail, "LOGP-TEMPERATURE")}
		found := []check.Finding{{Name: "CLIP-ABSENT", Verdict: check.Fail, First: 2, Seen: []string{"token_loss/policy"}, Results: []int{1}},
			{Name: "LOGP-TEMPERATURE", Verdict: check.Fail, Pattern: true, First: c.first, Seen: []string{"agreement/temperature"}, Results: []int{2}}}
		found = underLearned(found, results)
		require.Len(t, found, c.want)
		require.Equal(t, "CLIP-ABSENT", found[0].Name)
	}
}

// Terms of a loss that are wrong by the same factor in every file go through one wrong sum; by other factors they do not.
func TestTermsOfOneSum(t *testing.T) {
	term := func(id string, want, got []float64) *track {
		tally := tol.Tally{}
		return &track{check: stage.Find(id), seen: true, failing: []int{1}, starts: []int{1},
			first: &stage.Outcome{Check: stage.Find(id), Verdict: check.Fail, Case: &stage.Case{B: &dumpfile.Batch{}}, Got: got, Pred: &stage.Prediction{Want: want}, Tally: &tally}}
	}
	for _, c := range []struct {
		got  []float64
		want int
	}{{[]float64{.5, 3}, 1}, {[]float64{.5, 4}, 2}} {
		s := &session{tracks: []*track{term("aggregate/pg_loss", []float64{2, 1}, []float64{1, 3}), term("aggregate/loss", []float64{1, 1}, c.got)}}
		r := &Report{Results: []check.Result{wrong("aggregate/pg_loss", check.Fail, "AGG-LOCAL-DENOMINATOR"), wrong("aggregate/loss", check.Fail, "AGG-DENOMINATOR")}}
		require.Len(t, s.brief(r).Findings, c.want)
	}
}

// A mask that would stand right one position on is told under log-probs that are read from the next position; one that would not is a bug of its own.
func TestMasksOfLabelsThatAreNotShifted(t *testing.T) {
	for from, want := range map[int]int{3: 1, 2: 2} { // of six tokens, of which the last is padding
		b := &dumpfile.Batch{Rows: 1, Cols: 6, Mask: make([]bool, 6), Tensors: map[string]*dumpfile.Tensor{}, Origin: []dumpfile.Origin{{}}, Files: []dumpfile.FileInfo{{Hi: 1, Cols: 6}}}
		b.Meta.Algorithm = "sft"
		for i := from; i < 6; i++ {
			b.Mask[i] = true
		}
		attended := []float64{1, 1, 1, 1, 1, 0}
		if from == 2 {
			attended = []float64{1, 1, 0, 1, 0, 0}
		}
		for name, x := range map[string][]float64{"attention_mask": attended, "input_ids": {5, 6, 7, 8, 9, 0}} {
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: dumpfile.PerRow, Width: 6, Shape: []int{1, 6}, Data: x}
		}
		ch := stage.Find("masks/position")
		o := stage.Judge(ch, b, &convention.Set{})
		require.Equal(t, check.Fail, o.Verdict)
		s := &session{tracks: []*track{{check: ch, seen: true, first: o, failing: []int{1}}}}
		r := &Report{Results: []check.Result{wrong("masks/position", check.Fail, "MASK-PAST-EOS"), wrong("logp/new", check.Fail, "LOGP-SAME-POSITION")}}
		require.Len(t, s.brief(r).Findings, want)
	}
}

// A run that declares nothing agrees with what the search found of it, which is said: a bug may be a legal number.
func TestCleanRunSaysWhatWasFound(t *testing.T) {
	s := &session{tracks: []*track{{searched: true, fits: fitsBy(t, "clip.low", "none")}, {searched: true, fits: fitsBy(t, "adv.ddof", "0")}}}
	require.Contains(t, s.convention(), "nothing is declared: adv.ddof=0, clip.low=none …")
	require.Equal(t, "what is declared", (&session{declared: true}).convention())
}
