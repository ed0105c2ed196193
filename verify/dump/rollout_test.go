package dump_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// rollouts is a run of TRL of four steps, two to a rollout batch, whose rows are shuffled over both.
func rollouts(t *testing.T) dump.Batches {
	t.Helper()
	run, err := dumpfile.Open(context.Background(), []string{"../../golden/dumps/trl-grpo/clean/dapo_truncated_masked"})
	require.NoError(t, err)
	var steps dump.Batches
	for b, err := range run.Batches(context.Background()) {
		require.NoError(t, err)
		steps = append(steps, b)
	}
	require.Len(t, steps, 4)
	return steps
}

func advantages(t *testing.T, run dump.Source, assignments ...string) (check.Result, *dump.Report) {
	t.Helper()
	r, err := dump.Judge(context.Background(), run, dump.Options{Profile: "trl-grpo@1.16", Set: assignments})
	require.NoError(t, err)
	i := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "advantage/group" })
	require.GreaterOrEqual(t, i, 0)
	return r.Results[i], r
}

func TestGroupsOverSteps(t *testing.T) {
	steps := rollouts(t)
	rows := 0
	for _, b := range steps {
		rows += b.Rows
	}
	res, r := advantages(t, steps)
	require.Equal(t, check.Pass, res.Verdict, res.Reason)
	require.Equal(t, "2 rollouts", res.Subject)
	require.Equal(t, rows, res.Compared)
	require.Empty(t, bad(r), describe(bad(r)))

	// Statistics of the whole batch need every step, too.
	res, _ = advantages(t, steps, "adv.scale=batch_std", "adv.std_of=rewards")
	require.Equal(t, check.Convention, res.Verdict)
	require.Contains(t, res.Explanations[0].Title, "adv.scale group_std")
	res, _ = advantages(t, steps, "adv.ddof=0")
	require.Equal(t, check.Convention, res.Verdict)
	require.Contains(t, res.Explanations[0].Title, "adv.ddof 1")
}

// A bug in the second rollout batch only is found there, in the file that has it.
func TestBugInOneRollout(t *testing.T) {
	steps := rollouts(t)
	b := steps[3]
	wrong := slices.Clone(b.Row("advantages"))
	wrong[1] += 0.125
	steps[3] = b.With("advantages", wrong)
	res, _ := advantages(t, steps)
	require.Equal(t, check.Fail, res.Verdict)
	require.Equal(t, "step 3 (1 of 2 rollouts)", res.Subject)
	require.Equal(t, []int{1, 3, 2}, []int{res.Steps.Bad, res.Steps.First, res.Steps.Judged})
	require.Contains(t, res.Where, "step_0004")
	require.Contains(t, res.Where, "row 1")
	require.Contains(t, res.Reason, "1 of 16 compared elements")
}

// What a dump has of a rollout batch is judged if it is all of it; the beginning and the end of a dump may lack some.
func TestRolloutsThatAreCut(t *testing.T) {
	said := func(r *dump.Report, text string) bool {
		return slices.ContainsFunc(r.Lines, func(l string) bool { return strings.Contains(l, text) })
	}
	const cut = "1 step of rollout batches that are not in the dump as a whole (step 2, …)"
	steps := rollouts(t)
	res, r := advantages(t, steps[1:])
	require.Equal(t, check.Pass, res.Verdict)
	require.Equal(t, "1 rollout", res.Subject)
	require.True(t, said(r, cut), "%q", r.Lines)

	res, r = advantages(t, dump.Batches{steps[0], steps[1], steps[3]})
	require.Equal(t, check.Pass, res.Verdict)
	require.True(t, said(r, "1 step of rollout batches that are not in the dump as a whole (step 4, …)"), "%q", r.Lines)

	for _, some := range []dump.Batches{steps[1:3], steps[:1], {steps[0], steps[2]}} { // no rollout batch is there as a whole
		res, r = advantages(t, some)
		require.Equal(t, check.Undetermined, res.Verdict, res.Reason)
		require.Contains(t, res.Reason, "a complete group")
		require.False(t, said(r, "not judged"))
	}
	// Of a wrong number among them nothing may be said.
	b := steps[1]
	wrong := slices.Clone(b.Row("advantages"))
	wrong[0]++
	res, _ = advantages(t, dump.Batches{b.With("advantages", wrong), steps[2]})
	require.Equal(t, check.Undetermined, res.Verdict)
}

// Ids that begin anew with every rollout batch do not make groups of rows of two of them.
func TestIDsThatBeginAnew(t *testing.T) {
	steps := rollouts(t)
	for i, b := range steps {
		least := slices.Min(b.Row("group_id"))
		if i%2 == 1 {
			least = slices.Min(steps[i-1].Row("group_id"))
		}
		ids := slices.Clone(b.Row("group_id"))
		for j := range ids {
			ids[j] -= least
		}
		steps[i] = b.With("group_id", ids)
	}
	res, _ := advantages(t, steps)
	require.Equal(t, check.Pass, res.Verdict)
	res, _ = advantages(t, steps[1:3])
	require.Equal(t, check.Undetermined, res.Verdict, res.Reason)
	// Without the prompts only the beginning of the run tells where rollout batches begin.
	for i, b := range steps {
		steps[i] = b.Without("input_ids")
	}
	res, _ = advantages(t, steps)
	require.Equal(t, check.Pass, res.Verdict)
	for _, some := range []dump.Batches{steps[1:3], steps[2:]} {
		res, _ = advantages(t, some)
		require.Equal(t, check.Undetermined, res.Verdict)
	}
}

// cutInto returns a step as n steps of equally many rows, shuffled, and says so.
func cutInto(t *testing.T, folder string, n int) dump.Batches {
	t.Helper()
	run, err := dumpfile.Open(context.Background(), []string{"../../golden/dumps/" + folder})
	require.NoError(t, err)
	b, err := run.Batch(context.Background(), run.Steps()[0])
	require.NoError(t, err)
	rows := make([][]int, n)
	for r := range b.Rows {
		k := (r*5 + r/n) % n
		rows[k] = append(rows[k], r)
	}
	var steps dump.Batches
	for k := range rows {
		s := b.Select(rows[k])
		s.Meta.Step = k + 1
		s.Meta.Options = append(slices.Clone(b.Meta.Options), dumpfile.Option{Name: "num_mini_batches", Value: float64(n)}, dumpfile.Option{Name: "num_generations", Value: 4.0})
		steps = append(steps, s)
	}
	return steps
}

// Mini-batches of a rollout batch, as verl and OpenRLHF shuffle them, are judged together: moments over all rows, and groups.
func TestMiniBatchesOfARollout(t *testing.T) {
	for folder, c := range map[string][3]string{
		"verl/clean/ppo":            {"verl-ppo@0.9", "gae/advantage", "whiten.ddof"},
		"verl/clean/grpo":           {"verl-grpo@0.9", "advantage/group", "adv.ddof"},
		"verl/clean/grpo_two_ranks": {"verl-grpo@0.9", "advantage/group", "adv.ddof"},
		"openrlhf/clean/ppo":        {"openrlhf-ppo@0.11", "gae/advantage", "whiten.ddof"},
		"openrlhf/clean/group_norm": {"openrlhf-group@0.11", "advantage/group", "adv.ddof"},
	} {
		steps := cutInto(t, folder, 2)
		o := dump.Options{Profile: c[0], Selection: check.Selection{Select: []string{c[1]}}}
		judged := func(run dump.Batches) check.Result {
			r, err := dump.Judge(context.Background(), run, o)
			require.NoError(t, err, folder)
			require.Len(t, r.Results, 1, folder)
			return r.Results[0]
		}
		res := judged(steps)
		require.Equal(t, check.Pass, res.Verdict, "%s: %s", folder, res.Reason)
		require.Equal(t, "1 rollout", res.Subject, folder)
		require.Equal(t, check.Undetermined, judged(steps[1:]).Verdict, "%s: half of a rollout", folder)
		o.Set = []string{map[string]string{"whiten.ddof": "whiten.ddof=" + map[string]string{"verl-ppo@0.9": "0", "openrlhf-ppo@0.11": "1"}[c[0]], "adv.ddof": "adv.ddof=0"}[c[2]]}
		res = judged(steps)
		require.Equal(t, check.Convention, res.Verdict, "%s: %s", folder, res.Reason)
		require.Contains(t, res.Explanations[0].Title, c[2], folder)
	}
}

// Token rewards that a baseline was subtracted from hold the mean of groups whose rows are in several steps, whether a KL in them says so or not
// (OpenRLHF 0.11.2, reinforce_baseline with the KL in the loss).
func TestBaselineOfARolloutInTokenRewards(t *testing.T) {
	steps := cutInto(t, "openrlhf/clean/group_norm", 2)
	sum, n := map[float64]float64{}, map[float64]float64{}
	for _, b := range steps {
		for r, id := range b.Row("group_id") {
			sum[id], n[id] = sum[id]+b.Row("scores")[r], n[id]+1
		}
	}
	verdict := func(by float64) check.Verdict {
		var run dump.Batches
		for _, b := range steps {
			rewards, id := make([]float64, len(b.Mask)), b.Row("group_id")
			_, last := ends(b)
			for r, score := range b.Row("scores") {
				rewards[r*b.Cols+last[r]] = score - by*sum[id[r]]/n[id[r]]
			}
			run = append(run, perToken(b, "token_rewards", rewards))
		}
		r, err := dump.Judge(context.Background(), run, dump.Options{Profile: "openrlhf-group@0.11", Set: []string{"adv.kind=rfpp_baseline", "kl.place=loss"}, Selection: check.Selection{Select: []string{"reward/token"}}})
		require.NoError(t, err)
		require.Len(t, r.Results, 1)
		return r.Results[0].Verdict
	}
	require.Equal(t, check.Pass, verdict(1))
	require.Equal(t, check.Fail, verdict(1.25))
}

func perToken(b *dumpfile.Batch, name string, data []float64) *dumpfile.Batch {
	c := b.With(name, data)
	x := c.Tensors[name]
	x.Layout, x.Type, x.Shape = dumpfile.PerToken, format.F64, []int{b.Rows, b.Cols}
	return c
}

// Importance weights are divided by their mean over all steps of a rollout, where that is declared; the mean of a step is another number.
func TestWeightsDividedByTheMeanOfARollout(t *testing.T) {
	steps := rollouts(t)
	weigh := func(pooled bool) dump.Batches {
		out := slices.Clone(steps)
		for at := 0; at < len(out); at += 2 {
			var raw [2][]float64
			var sum, n [2]float64
			for k := range raw {
				b := out[at+k]
				old := b.Token("logp_old")
				gen, w := slices.Clone(old), make([]float64, len(old))
				for i, m := range b.Mask {
					if gen[i] = old[i] - 0.25*float64(i%3-1) - 0.125*float64(k); m {
						w[i] = min(math.Exp(old[i]-gen[i]), 1.25)
						sum[k], n[k] = sum[k]+w[i], n[k]+1
					}
				}
				raw[k], out[at+k] = w, perToken(b, "logp_gen", gen)
			}
			for k, w := range raw {
				mean := sum[k] / n[k]
				if pooled {
					mean = (sum[0] + sum[1]) / (n[0] + n[1])
				}
				for i := range w {
					w[i] /= mean
				}
				out[at+k] = perToken(out[at+k], "is_weights", w)
			}
		}
		return out
	}
	declared := dump.Options{Profile: "trl-grpo@1.16", Set: []string{"tis.level=token", "tis.rule=truncate_upper", "tis.high=1.25", "tis.normalize=true"}}
	judged := func(run dump.Source, name string, o dump.Options) check.Result {
		r, err := dump.Judge(context.Background(), run, o)
		require.NoError(t, err)
		i := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == name })
		require.GreaterOrEqual(t, i, 0)
		return r.Results[i]
	}
	judge := func(run dump.Source, name string) check.Result { return judged(run, name, declared) }
	require.Equal(t, check.Pass, judge(weigh(true), "ratio/is_weights").Verdict)
	require.Equal(t, check.Fail, judge(weigh(false), "ratio/is_weights").Verdict)

	open := dump.Options{Profile: "none", Set: []string{"num_mini_batches=2"}, Selection: check.Selection{Select: []string{"ratio/is_weights"}}}
	found := judged(weigh(true), "ratio/is_weights", open)
	require.Equal(t, check.Pass, found.Verdict, found.Reason)
	require.Contains(t, found.Reason, "tis.normalize=true")
	require.Equal(t, check.Undetermined, judged(weigh(false), "ratio/is_weights", open).Verdict)

	undumped := weigh(true)
	for k, b := range undumped {
		undumped[k] = b.Without("is_weights", "token_loss")
	}
	loss := judge(undumped, "gradient/dlogp")
	require.Equal(t, check.NotSeen, loss.Verdict)
	require.Equal(t, "dlogp is not judged: not in the dump: is_weights", loss.Reason)
}

// Rows that were shuffled are in no blocks of groups: without what says whose group a row is, their advantages are not judged, and left undecided where one asks for them.
func TestShuffledRowsWithoutGroups(t *testing.T) {
	var steps dump.Batches
	for _, b := range rollouts(t) {
		var rows []int
		for i := range b.Rows {
			rows = append(rows, i)
		}
		of := b.Select(rows)
		for _, name := range []string{"group_id", "input_ids", "attention_mask", "prompt_ids", "prompt_mask", "completion_ids"} {
			delete(of.Tensors, name)
		}
		steps = append(steps, of)
	}
	res, r := advantages(t, steps)
	require.Equal(t, check.NotSeen, res.Verdict, res.Reason)
	require.Contains(t, res.Reason, "group_id")
	require.Empty(t, bad(r), describe(bad(r)))
	r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "trl-grpo@1.16", Selection: check.Selection{Select: []string{"advantage/group"}}})
	require.NoError(t, err)
	require.Equal(t, check.Undetermined, r.Results[len(r.Results)-1].Verdict)
}
