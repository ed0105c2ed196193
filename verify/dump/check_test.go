package dump_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// recorder is a test that is not a test.
type recorder struct{ failed string }

func (r *recorder) Helper()                        {}
func (r *recorder) Context() context.Context       { return context.Background() }
func (r *recorder) Fatalf(format string, a ...any) { r.failed += fmt.Sprintf(format, a...) }

func TestRequire(t *testing.T) {
	const dumps = "../../golden/dumps/trl-grpo/"
	o := dump.Options{Profile: "trl-grpo@1.16"}
	for path, want := range map[string]string{
		dumps + "clean/bnpo_batch_std":               "",
		dumps + "faulty/clip_max_for_min":            "exit code 1\nFAIL",
		dumps + "faulty/adv_group_batch_std_swapped": "CONVENTION  advantage/group",
		dumps + "nowhere":                            "no such file",
	} {
		var r recorder
		dump.Require(&r, o, path)
		if want == "" {
			require.Empty(t, r.failed)
			continue
		}
		require.Contains(t, r.failed, want)
		require.Contains(t, r.failed, path)
	}
	var r recorder
	dump.Require(&r, dump.Options{Profile: "nobody"}, dumps+"clean/bnpo_batch_std")
	require.Contains(t, r.failed, "nobody")
	dump.Require(t, o, dumps+"clean/bnpo_batch_std")
}

func TestCheckSteps(t *testing.T) {
	good := dump.Step{Rows: 2, Cols: 1, Mask: []bool{true, true}, PerRow: map[string][]float64{"scores": {1, 0}, "group_id": {0, 0}}, Losses: map[string]float64{"loss": 0.5},
		Logged: map[string]float64{"loss": 0.5}, Framework: "trl", Algorithm: "grpo", Type: "float32"}
	results, err := dump.Check(context.Background(), dump.Options{}, good)
	require.NoError(t, err)
	require.NotEmpty(t, results)
	for _, r := range results {
		require.Empty(t, r.Repeat)
	}
	second := good
	second.Number = 1
	_, err = dump.Check(context.Background(), dump.Options{}, good, second)
	require.NoError(t, err)

	for name, c := range map[string]struct {
		change func(*dump.Step)
		want   string
	}{
		"mask":         {func(s *dump.Step) { s.Mask = s.Mask[:1] }, "Mask has 1 elements, want 2 × 1"},
		"length":       {func(s *dump.Step) { s.Tokens = map[string][]float64{"logp_new": {0}} }, "logp_new has 1 elements, want 2"},
		"type":         {func(s *dump.Step) { s.Type = "int8" }, `type "int8"`},
		"shape":        {func(s *dump.Step) { s.PerRow = map[string][]float64{"logp_new": {0, 0}} }, "logp_new"},
		"mask of 0.5":  {func(s *dump.Step) { s.Tokens = map[string][]float64{"dones": {0.5, 0}} }, "dones"},
		"option value": {func(s *dump.Step) { s.Options = map[string]any{"adv.ddof": 7.0} }, "adv.ddof"},
	} {
		step := good
		c.change(&step)
		_, err := dump.Check(context.Background(), dump.Options{}, step)
		require.ErrorContains(t, err, c.want, name)
	}
	_, err = dump.Check(context.Background(), dump.Options{}, good, good)
	require.ErrorContains(t, err, "want one file for each")
	_, err = dump.Check(context.Background(), dump.Options{})
	require.ErrorIs(t, err, dumpfile.ErrNothing)
	_, err = dump.CheckFiles(context.Background(), dump.Options{}, "nowhere")
	require.True(t, errors.Is(err, fs.ErrNotExist), err)
}

// Advantages without the scores that they are made of are not judged, whatever the options would be: it is the dump that lacks something, and not the options.
func TestWithoutScores(t *testing.T) {
	step := dump.Step{Rows: 2, Cols: 1, Mask: []bool{true, true}, PerRow: map[string][]float64{"advantages": {1, -1}}, Framework: "torch"}
	results, err := dump.Check(context.Background(), dump.Options{}, step)
	require.NoError(t, err)
	i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "advantage/group" })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, check.NotSeen, results[i].Verdict)
	require.Equal(t, "the advantages are not judged: not in the dump: scores", results[i].Reason)
}

// Rows of two scores that were shuffled may have the advantages of blocks of rows in another order: without group_id that is no bug, and with it it is.
func TestRowsInAnotherOrderWithoutGroups(t *testing.T) {
	const rows, size = 16, 4
	scores := []float64{1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0}
	adv, id := make([]float64, rows), make([]float64, rows)
	for i := range adv {
		mean, square := 0.0, 0.0
		for _, x := range scores[i/size*size : i/size*size+size] {
			mean += x / size
		}
		for _, x := range scores[i/size*size : i/size*size+size] {
			square += (x - mean) * (x - mean)
		}
		adv[i*5%rows], id[i] = float64(float32((scores[i]-mean)/(math.Sqrt(square/(size-1))+1e-4))), float64(i/size)
	}
	mask := slices.Repeat([]bool{true}, rows)
	step := dump.Step{Number: 1, Rows: rows, Cols: 1, Mask: mask, PerRow: map[string][]float64{"scores": scores, "advantages": adv}, Framework: "trl", Version: "1.16.0", Algorithm: "grpo",
		Options: map[string]any{"num_generations": float64(size)}}
	judge := func() check.Result {
		results, err := dump.Check(context.Background(), dump.Options{}, step)
		require.NoError(t, err)
		return results[slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "advantage/group" })]
	}
	require.Equal(t, check.NotSeen, judge().Verdict)
	step.PerRow["group_id"] = id
	require.Equal(t, check.Fail, judge().Verdict)
}

// A loss with an entropy bonus is not judged without entropies, which a hook may leave out; it is undetermined where the check is demanded.
func TestLossWithoutEntropies(t *testing.T) {
	step := dump.Step{Rows: 2, Cols: 1, Mask: []bool{true, true}, Framework: "torch", Losses: map[string]float64{"loss": 0.25},
		Tokens:  map[string][]float64{"token_loss": {0.5, 0.25}},
		Options: map[string]any{"loss.kind": "ppo", "kl.place": "none", "agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": false, "mean.eps": 0.0, "entropy.coef": 0.1}}
	for demanded, want := range map[bool]check.Verdict{false: check.NotSeen, true: check.Undetermined} {
		o := dump.Options{}
		if demanded {
			o.Selection.Require = []string{"aggregate/loss"}
		}
		results, err := dump.Check(context.Background(), o, step)
		require.NoError(t, err)
		i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "aggregate/loss" })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, want, results[i].Verdict, results[i].Reason)
		require.Contains(t, results[i].Reason, "not in the dump: entropy")
	}
}

// Numbers of no configuration that is known here: with nothing declared a right program may give them, and what is declared in part is broken.
func TestNumbersOfNothingKnown(t *testing.T) {
	old, gen, w, mask := make([]float64, 64), make([]float64, 64), make([]float64, 64), make([]bool, 64)
	for i := range old {
		old[i] = -1 - math.Abs(math.Sin(float64(3*i)))
		gen[i], mask[i] = old[i]+0.1*math.Cos(float64(7*i)), true
		w[i] = 1 + 0.2*math.Sin(float64(11*i*i))
	}
	step := dump.Step{Rows: 8, Cols: 8, Mask: mask, Framework: "torch", Tokens: map[string][]float64{"logp_old": old, "logp_gen": gen, "is_weights": w}}
	for level, want := range map[string]check.Verdict{"": check.Undetermined, "token": check.Fail} {
		if step.Options = nil; level != "" {
			step.Options = map[string]any{"tis.level": level, "tis.rule": "clamp", "tis.gate": "ratio", "tis.low": "none", "tis.high": "none", "tis.log_clamp": "none", "tis.normalize": false}
		}
		results, err := dump.Check(context.Background(), dump.Options{Selection: check.Selection{Select: []string{"ratio/is_weights"}}}, step)
		require.NoError(t, err)
		i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "ratio/is_weights" })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, want, results[i].Verdict, results[i].Reason)
	}
}

// Advantages that differ within rows are of values or of rewards of tokens: where the dump has neither they are not judged, if nobody says how they are made.
func TestEstimatorsThatCannotBeTried(t *testing.T) {
	const rows, cols = 4, 6
	adv, lp, mask := make([]float64, rows*cols), make([]float64, rows*cols), make([]bool, rows*cols)
	for i := range adv {
		adv[i], lp[i], mask[i] = math.Sin(float64(3*i)), -1-math.Abs(math.Cos(float64(i))), true
	}
	judge := func(o dump.Options, alike bool) check.Result {
		x := slices.Clone(adv)
		for i := range x {
			if alike {
				x[i] = adv[i-i%cols]
			}
		}
		step := dump.Step{Rows: rows, Cols: cols, Mask: mask, Framework: "torch", Tokens: map[string][]float64{"advantages": x, "logp_new": lp, "logp_old": lp},
			PerRow: map[string][]float64{"scores": {1, 0, 0.5, 0.25}, "group_id": {0, 0, 1, 1}}}
		results, err := dump.Check(context.Background(), o, step)
		require.NoError(t, err)
		for _, r := range results {
			if (r.Check == "advantage/return" || r.Check == "advantage/group") && r.Verdict != check.Skip {
				return r
			}
		}
		return check.Result{}
	}
	r := judge(dump.Options{}, false)
	require.Equal(t, check.NotSeen, r.Verdict, r.Reason)
	require.Contains(t, r.Reason, "not in the dump: values")
	require.Equal(t, check.Undetermined, judge(dump.Options{}, true).Verdict, "one number of a response")
}

// What the dump lacks under every value of the options that nobody declares is the dump's, and no doubt about the options.
func TestWithoutTensorsUnderEveryOption(t *testing.T) {
	step := dump.Step{Rows: 2, Cols: 2, Mask: []bool{true, true, true, true}, Framework: "torch", Losses: map[string]float64{"loss": 0.25},
		Tokens: map[string][]float64{"token_loss": {0.5, 0.25, 1, 2}, "advantages": {0.5, 0.25, 1, 2}, "token_rewards": {0, 1, 0, 2}}}
	for _, c := range []struct {
		check   string
		options map[string]any
		tensors string
	}{
		{"aggregate/loss", map[string]any{"loss.kind": "ppo", "kl.place": "none", "agg.kind": "token", "agg.denominator": "micro", "mean.eps": 0.0, "entropy.coef": 0.1}, "entropy"},
		{"gae/advantage", map[string]any{"adv.kind": "gae", "gae.gamma": 1.0, "gae.lambda": 0.9, "gae.hole": "none", "whiten.scope": "none"}, "values"},
	} {
		step.Options = c.options
		results, err := dump.Check(context.Background(), dump.Options{}, step)
		require.NoError(t, err)
		i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == c.check })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, check.NotSeen, results[i].Verdict, results[i].Reason)
		require.Contains(t, results[i].Reason, "not judged: not in the dump: "+c.tensors)
	}
}

// A loss of token losses alone is explained without the log-probs that these are of.
func TestLossOfTokenLossesAlone(t *testing.T) {
	step := dump.Step{Rows: 2, Cols: 3, Mask: []bool{true, true, false, true, true, true}, Framework: "torch", Losses: map[string]float64{"loss": 2 * 4.75 / 5},
		Tokens:  map[string][]float64{"token_loss": {0.5, 0.25, 0, 1, 2, 1}},
		Options: map[string]any{"loss.kind": "ppo", "kl.place": "none", "agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": false, "mean.eps": 0.0, "entropy.coef": 0.0}}
	results, err := dump.Check(context.Background(), dump.Options{}, step)
	require.NoError(t, err)
	i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "aggregate/loss" })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, check.Fail, results[i].Verdict, results[i].Reason)
	require.NotEmpty(t, results[i].Explanations)

}

// A loss that nothing explains may have a bonus of entropies that the dump lacks, where nobody says that it has none and nothing else says what its policy term is.
func TestLossWithTermsThatAreNotDumped(t *testing.T) {
	const rows, cols = 4, 4
	old, lp, mask := make([]float64, rows*cols), make([]float64, rows*cols), make([]bool, rows*cols)
	for i := range old {
		old[i] = -1 - math.Abs(math.Sin(float64(3*i)))
		lp[i], mask[i] = old[i]+0.1*math.Cos(float64(7*i)), true
	}
	judge := func(options map[string]any, more map[string][]float64) check.Result {
		tokens := map[string][]float64{"logp_new": lp, "logp_old": old}
		for name, x := range more {
			tokens[name] = x
		}
		step := dump.Step{Rows: rows, Cols: cols, Mask: mask, Framework: "torch", Tokens: tokens, Options: options, Losses: map[string]float64{"loss": 0.7351},
			PerRow: map[string][]float64{"advantages": {1, -1, 0.5, -0.5}}}
		results, err := dump.Check(context.Background(), dump.Options{}, step)
		require.NoError(t, err)
		i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "aggregate/loss" })
		require.GreaterOrEqual(t, i, 0)
		return results[i]
	}
	r := judge(nil, nil)
	require.Equal(t, check.NotSeen, r.Verdict, r.Reason)
	require.Contains(t, r.Reason, "the loss is not judged: not in the dump: entropy")
	require.Equal(t, check.Undetermined, judge(nil, map[string][]float64{"entropy": make([]float64, rows*cols)}).Verdict, "entropies of 0 add nothing")
	said := map[string]any{"loss.kind": "ppo", "ratio.level": "token", "clip.low": 0.2, "clip.high": 0.2, "kl.place": "none", "kl.beta": 0.0, "agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": false}
	require.NotEqual(t, check.NotSeen, judge(said, nil).Verdict, "the loss is declared")
}
