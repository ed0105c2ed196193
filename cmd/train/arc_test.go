package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// smallArc is a run of a very small agent.
func smallArc(dir string, args ...string) []string {
	return merged([]string{"arc", "output_dir=" + dir, "epochs=1", "max_batches=3", "tasks=2", "model.channels=4", "model.prompt_dim=10", "policy.hidden=6", "save_every=0"}, args...)
}

func arcIn(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return program(t, smallArc(filepath.Join(t.TempDir(), "run"), args...)...)
}

// Bad input of systems D: what it says, and the exit code.
func TestArcRefuses(t *testing.T) {
	t.Setenv("ARC_DATA_DIR", "")
	data := func(output string) string {
		path := filepath.Join(t.TempDir(), "tasks.json")
		write(t, path, `{"0d3d703e": {"train": [{"input": [[1]], "output": [[1]]}, {"input": [[1]]`+output+`}], "test": [{"input": [[1]], "output": [[1]]}]}}`)
		return "data=" + path
	}
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{data(`, "output": [[1], [10]]`), `tasks.json: byte 93: task "0d3d703e", train pair 1, output, row 1, column 0: the colour 10 is not from 0 to 9`, 4},
		{data(`, "output": [[1, 2], [3]]`), `task "0d3d703e", train pair 1, output, row 1 has 1 cells, row 0 has 2`, 4},
		{data(`, "output": [[` + strings.Repeat("1,", 30) + `1]]`), `has more than 30 cells`, 4},
		{data(``), `task "0d3d703e", train pair 1: has no output`, 4},
		{data(`, "output": [[1.0]]`), `is no integer (D1): targets are classes, target.long() and not target.float()`, 4},
		{"data=/does/not/exist.json", "no ARC tasks: stat /does/not/exist.json: no such file or directory; data=FILE or data=DIR, ARC_DATA_DIR, or data=generated", 2},
		{"data=" + t.TempDir(), "has no file *.json with tasks", 4},
		{"curriculum=0.6,high", `curriculum: "high" is not a positive number`, 2},
		{"curriculum=", "curriculum: no factor", 2},
		{"agent_lr=-1", "want a number from 0", 2},
		{"agnt_lr=1", "agent_lr", 2},
		{"model.prompt_dim=9", "want an integer from 10", 2},
		{"encoder.name=tiny-gptj", "encoder.name tiny-gptj is no Qwen2 model", 2},
		{"encoder.train=lora lora.r=0", "an adapter has at least rank 1", 2},
		{"encoder.train=lora lora.targets=q_prj", "the model has no layer q_prj", 2},
		{"efe.bi=kl", "js", 2},
		{"agent_lr=1e300", "reduce qwen_lr from 5e-5 to 1e-5", 1},
		{"agent_lr=1e3 epochs=4 max_grad_norm=0", "reduce qwen_lr from 5e-5 to 1e-5 and agent_lr with it, check that gradients are clipped (max_grad_norm=1), and that there is no NaN in the prompt", 1},
	} {
		_, errs, code := arcIn(t, strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s\n%s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
	}
}

// What is legal and may not be meant.
func TestArcWarns(t *testing.T) {
	for args, says := range map[string]string{
		"device=cuda":          "WARNING: device cuda is not there: the run is on the CPU; --device cpu says so",
		"curriculum=1,0.5":     "the curriculum begins with 1 (D7)",
		"reward_scale=1":       "reward_scale 1 (D5)",
		"encoder.train=frozen": "encoder.train frozen: Qwen_grad is 0.00e+00 in every line, by design",
		"qwen_lr=0.01":         "qwen_lr 0.01 (D19)",
		"max_grad_norm=0":      "max_grad_norm 0 (D19)",
	} {
		_, errs, code := arcIn(t, append(strings.Fields(args), "max_batches=1")...)
		require.Zero(t, code, "%s\n%s", args, errs)
		require.Contains(t, errs, says, args)
		require.Equal(t, 1, strings.Count(errs, "WARNING"), errs)
	}
	_, errs, code := arcIn(t, "max_batches=1")
	require.Zero(t, code)
	require.Empty(t, errs)
}

// The flags of the source's command, with --resume alone and with a value.
func TestArcFlags(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	sizes := []string{"output_dir=" + dir, "tasks=2", "model.channels=4", "model.prompt_dim=10", "policy.hidden=6"}
	_, errs, code := program(t, append([]string{"arc", "--epochs", "1", "--agent_lr", "1e-5", "--qwen_lr=5e-5", "--device", "cuda", "--max_batches", "2", "--seed", "42", "--resume"}, sizes...)...)
	require.Zero(t, code, errs)
	text, err := os.ReadFile(filepath.Join(dir, "effective_config.json"))
	require.NoError(t, err)
	got := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &got))
	for key, want := range map[string]any{"epochs": 1., "agent_lr": 1e-5, "qwen_lr": 5e-5, "device": "cuda", "max_batches": 2., "seed": 42.} {
		require.Equal(t, want, got[key], key)
	}
	_, errs, code = program(t, append([]string{"arc", "--resume", "never"}, sizes...)...)
	require.Equal(t, 2, code)
	require.Contains(t, errs, "holds a run already")
	// More epochs, from the end of the first.
	more := append([]string{"arc", "--resume", filepath.Join(dir, "final"), "--allow-config-change", "epochs", "--epochs=2", "--agent_lr", "1e-5", "--qwen_lr=5e-5", "--max_batches", "2"}, sizes...)
	out, errs, code := program(t, more...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "resuming from "+filepath.Join(dir, "final")+", step 2")
	require.Contains(t, out, "[Epoch 1] Val Accuracy: ")
	require.NotContains(t, out, "[Epoch 0]")
}

// A run on real tasks: the files that it leaves, a dump that passes, a folder that verify checkpoint passes.
func TestArcRun(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	data, err := filepath.Abs("../../internal/dataset/testdata")
	require.NoError(t, err)
	t.Setenv("ARC_DATA_DIR", data)
	out, errs, code := program(t, smallArc(run, "data=arc", "epochs=2", "max_batches=0", "save_every=4", "--dump", filepath.Join(dir, "dump"), "grad_check=true")...)
	require.Zero(t, code, "%s%s", out, errs)
	for _, says := range []string{"data: 3 tasks, 10 training pairs, 3 validation pairs", "Creating models...\n  [OK] All models created\n", "\nStarting complete training...\n", "Epoch 0 (All Fixes):   0% 0/10\n",
		"Qwen gradients flowing? True\n", "[Epoch 1] Val Accuracy: ", "\nSummary\n", "  [OK] Qwen_grad: nonzero in "} {
		require.Contains(t, out, says)
	}
	require.Regexp(t, regexp.MustCompile(`(?m)^\[Batch    0\] Reward: [ -]\d\.\d{4} \| Loss: [ -]\d\.\d{4} \| Qwen_grad: \d\.\d\de[-+]\d\d \| Mask_ratio: \d\.\d{4}$`), out)
	for _, name := range []string{"final/model.safetensors", "final/config.json", "final/tokenizer.json", "final/optimizer.safetensors", "final/state.json", "final/arc.json", "final/efe_loss.safetensors",
		"metrics.jsonl", "best_metadata.json", "effective_config.yaml", "step_16/MANIFEST.json"} {
		_, err := os.Stat(filepath.Join(run, name))
		require.NoError(t, err, name)
	}
	in, err := checkpoint.Load(context.Background(), checkpoint.Paths{Dir: filepath.Join(run, "final")})
	require.NoError(t, err)
	results, err := checkpoint.Suite.Run(in, check.Selection{})
	require.NoError(t, err)
	require.Equal(t, check.ExitPass, check.Exit(results, check.Policy{}), "%v", results)

	files, err := filepath.Glob(filepath.Join(dir, "dump", "*.safetensors"))
	require.NoError(t, err)
	require.Len(t, files, 20)
	require.NoError(t, observer(context.Background(), true)(1, files))
	// every batch judged while training
	_, errs, code = arcIn(t, "--verify", "encoder.train=lora", "lora.r=2")
	require.Zero(t, code, errs)
	// again, with nothing left to do
	out, errs, code = program(t, smallArc(run, "data=arc", "epochs=2", "max_batches=0", "save_every=4")...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "resuming from "+filepath.Join(run, "final")+", step 20")
}

// The command of the source document, twice in a row, makes two runs; one that was not ended is gone on with.
func TestArcTwice(t *testing.T) {
	t.Chdir(t.TempDir())
	command := []string{"arc", "--epochs", "1", "--agent_lr", "1e-5", "--qwen_lr", "5e-5", "--device", "cpu", "--max_batches", "1", "tasks=2"}
	for _, dir := range []string{"outputs/arc", "outputs/arc-2", "outputs/arc-3"} {
		out := trains(t, command...)
		require.NotContains(t, out, "resuming")
		require.FileExists(t, filepath.Join(dir, "final", "MANIFEST.json"))
	}
	require.NoError(t, os.RemoveAll("outputs/arc-2/final"))
	out := trains(t, command...)
	require.Contains(t, out, "config output_dir=outputs/arc-2\n")
	require.FileExists(t, "outputs/arc-2/final/MANIFEST.json")
	require.NoDirExists(t, "outputs/arc-4")
}

// The shipped configuration is the small one of systems D, with the weights of the loss and the factors of the source.
func TestArcConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	_, errs, code := program(t, "arc", "output_dir="+dir, "epochs=0")
	require.Zero(t, code, errs)
	text, err := os.ReadFile(filepath.Join(dir, "effective_config.json"))
	require.NoError(t, err)
	got := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &got))
	for key, want := range map[string]any{"tasks": 20., "data": "generated", "model.channels": 32., "model.steps": 3., "reward_scale": 5., "cache_every": 10., "efe.risk": 1., "efe.ambiguity": 0.,
		"efe.step": .1, "efe.consistency": 1., "efe.bidirectional": .5, "efe.z": .2, "efe.prompt": .3, "efe.grid_norm": .1, "efe.bi": "js", "max_grad_norm": 1., "weight_decay": 1e-6,
		"save_every": 50., "log_every": 50., "keep": 5., "icm": 0., "encoder.name": "tiny", "curriculum": []any{"0.6", "0.3"}} {
		require.Equal(t, want, got[key], key)
	}
}
