//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sourceFault is an edit of the trainer's source: a program built with it must not get through a run with --verify.
type sourceFault struct {
	id       string // the row of the fault catalogue that it stands for
	file     string // under internal
	old, new string // the edit; old stands there once
	causal   bool
	args     []string
	says     string // what the program says of it
}

const grpoFile, causalFile, causalConfig = "train/grpo.go", "train/grpo_causal.go", "train/grpo_causal_config.go"

var sourceFaults = []sourceFault{
	{id: "B2 gather at the input", file: grpoFile, old: "rl.LogProbs(nil, l.Data[of:of+each], m.completions.row(i)", new: "rl.LogProbs(nil, l.Data[of:of+each], m.inputs.row(i/c.GroupSize)", says: "logp/new"},
	{id: "B2 the next position's logits", file: grpoFile, old: "rl.LogProbs(nil, l.Data[of:of+each], m.completions.row(i)",
		new: "rl.LogProbs(nil, append(l.Data[of+l.Vocab:of+each:of+each], l.Data[of:of+l.Vocab]...), m.completions.row(i)", says: "logp/new"},
	{id: "B2 the masks turned round", file: grpoFile, old: "		if !on {\n			lp[i] = 0", new: "		if on {\n			lp[i] = 0", says: "WARNING: All sequence_log_probs are near zero! num_masked="},
	{id: "logp.temperature", file: grpoFile, old: "m.completions.row(i), l.Vocab, rl.LogProbOptions{})...)", new: "m.completions.row(i), l.Vocab, rl.LogProbOptions{Temperature: 2})...)", says: "logp/new"},
	{id: "H5 in the model", file: "bind/masked.go", old: "	n := m.frozen.On(&ad.Tape{}, nil)\n	return logitsOf(x, n.Logits(n.Forward(input(x)).Hidden))",
		new: "	n := m.frozen.On(&ad.Tape{}, nil)\n	return logitsOf(x, n.Logits(ad.Slice(n.Forward(input(x)).Hidden, 1, x.Time-1, x.Time)))", says: "H5"},
	{id: "H6 CLS is lost", file: "bind/masked.go", old: "	in := m.model.Config.JudgeInput(input(x))\n", new: "	in := input(x)\n", says: "not with CLS"},
	{id: "B1 the judge says the same of all", file: grpoFile, old: "1 - min(max(y, 0), 1)", new: "1 - min(max(y, 1), 1)", args: []string{"fail_on_zero_loss=true"}, says: "the loss is exactly 0 (B11)"},
	{id: "B1 one stream for a group", file: grpoFile, old: "Uniform(stream, first+i, t)", new: "Uniform(stream, first+i/k, t)", says: "has no usable micro-step"},
	{id: "advantage over the batch's mean", file: grpoFile, old: "rl.SequenceAdvantage(nil, m.rewards, c.GroupSize,", new: "rl.SequenceAdvantage(nil, m.rewards, len(m.rewards),", says: "advantage/group"},
	{id: "policy and reference swapped", file: grpoFile, old: "rl.SequenceLoss(nil, m.logp, m.ref,", new: "rl.SequenceLoss(nil, m.ref, m.logp,", says: "gradient/dlogp"},
	{id: "H7c another KL estimator", file: "train/grpo_config.go", old: "rl.ParseKLKind(c.KLEstimator)", new: `rl.ParseKLKind("k1")`, says: "KL-KIND"},
	{id: "mean for sum", file: "train/grpo_config.go", old: `c.LossOver == "masked_mean"`, new: `c.LossOver != "masked_mean"`, says: "aggregate/"},
	{id: "B3 divided twice", file: "train/grpo_dump.go", old: `perFile("loss", m.result.Loss/n)`, new: `perFile("loss", m.result.Loss/n/n)`, says: "aggregate/loss"},
	{id: "the reference is another model", file: "bind/masked.go", old: "	n := m.frozen.On(&ad.Tape{}, nil)\n	return logitsOf(x, n.Logits(n.Forward(input(x)).Hidden))",
		new: "	n := m.frozen.On(&ad.Tape{}, nil)\n	return logitsOf(x, ad.Scale(n.Logits(n.Forward(input(x)).Hidden), 0.9))", says: "the KL of a model to its own copy"},

	{id: "adv.ddof", causal: true, file: causalConfig, old: "DDof: 1, Eps: 1e-4", new: "DDof: 0, Eps: 1e-4", says: "advantage/group"},
	{id: "adv.eps", causal: true, file: causalConfig, old: "DDof: 1, Eps: 1e-4", new: "DDof: 1, Eps: 1e-2", says: "advantage/group"},
	{id: "one group of all", causal: true, file: causalFile, old: "rl.GroupBlocks(n, c.Generations)", new: "rl.GroupBlocks(n, n)", says: "advantage/group"},
	{id: "padding in the denominator", causal: true, file: causalFile, old: "c.loss(float64(count(g.mask)))", new: "c.loss(float64(len(g.mask) + 1))", says: "aggregate/"},
	{id: "accumulation forgotten", causal: true, file: causalConfig, old: "Steps: float64(c.Accumulation)", new: "Steps: 1", args: []string{"loss_type=grpo"}, says: "AGG-GA-MISSING"},
	{id: "clip bounds swapped", causal: true, file: causalConfig, old: "Low: c.Epsilon, High: c.EpsilonHigh}, Tau", new: "Low: c.EpsilonHigh, High: c.Epsilon}, Tau", says: "token_loss/policy"},
	{id: "KL of the rollout's policy", causal: true, file: causalFile, old: "Ref: m.ref, Adv", new: "Ref: now.LogProbs, Adv", says: "token_loss/policy"},
	{id: "engine at another temperature", causal: true, file: causalFile, old: "Sampling{Temperature: 1,", new: "Sampling{Temperature: .5,", says: "FAIL"},
	{id: "weights of the rewards forgotten", causal: true, file: causalFile, old: "rl.MultiAdvantage(nil, g.funcs, c.weights,", new: "rl.MultiAdvantage(nil, g.funcs, []float64{1, 1},", says: "advantage/group"},
}

// run builds the program with the fault and trains with it, four steps with --verify.
func (f *sourceFault) run(t testing.TB) (out string, code int) {
	t.Helper()
	dir := t.TempDir()
	path, err := filepath.Abs(filepath.Join("../../internal", f.file))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	write(t, filepath.Join(dir, "edited.go"), strings.Replace(string(text), f.old, f.new, 1))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: filepath.Join(dir, "edited.go")}})
	require.NoError(t, err)
	write(t, filepath.Join(dir, "overlay.json"), string(overlay))
	build := exec.Command("go", "build", "-p", "1", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "train"), ".")
	errs, err := build.CombinedOutput()
	require.NoError(t, err, "%s: %s", f.id, errs)
	args := smallGRPO(filepath.Join(dir, "run"), append(f.args, "learning_rate=1e-2", "warmup_iters=0", "kl_beta=0.5", "--verify")...)
	if f.causal {
		args = smallCausal(filepath.Join(dir, "run"), append(append([]string{"beta=0.5", "learning_rate=1e-2", "warmup_steps=0", "num_iterations=4", "save_steps=0", "reward_funcs=answer,brevity", "epsilon=0.01",
			"max_completion_length=9", "epsilon_high=0.3", "reward_weights=1,0.5"}, f.args...), "--verify")...)
	}
	cmd := exec.Command(filepath.Join(dir, "train"), args...)
	all, _ := cmd.CombinedOutput()
	return string(all), cmd.ProcessState.ExitCode()
}

// caught demands that the fault does not get through.
func (f *sourceFault) caught(t *testing.T) {
	out, code := f.run(t)
	require.Contains(t, out, f.says, "exit %d", code)
	if !strings.Contains(f.says, "usable") { // a run without an update ends well, and says so
		require.NotZero(t, code)
	}
	fmt.Printf("%-36s exit %d, %s\n", f.id, code, f.says)
}
