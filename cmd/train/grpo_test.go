//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// The small runs of the trainers behind grpo and sft, four steps with a checkpoint after each second one.
func smallGRPO(dir string, more ...string) []string {
	return merged([]string{"grpo", "out_dir=" + dir, "max_iters=4", "save_interval=2", "block_size=16", "batch_size=2", "group_size=3", "gradient_accumulation_steps=2",
		"mask_ratio=0.5", "eval_samples=0"}, more...)
}

func smallCausal(dir string, more ...string) []string {
	return merged([]string{"grpo", "--config", "grpo_causal", "output_dir=" + dir, "max_steps=4", "save_steps=2", "num_generations=3", "per_device_train_batch_size=6",
		"gradient_accumulation_steps=2", "max_completion_length=4", "dataset.held_out=0"}, more...)
}

func smallSFT(config, dir string, more ...string) []string {
	return merged([]string{"sft", "--config", config, "training.output_dir=" + dir, "sft.steps=4", "training.save_interval=2", "sft.batch_size=2", "dataset.block_size=16",
		"sft.eval_samples=4"}, more...)
}

// measured is a field that says how long something took and how much memory there was.
var measured = regexp.MustCompile(`"(time_\w+|mem_\w+|\w+_time|mfu_pct)":[^,}]+`)

// timeless returns metrics.jsonl and samples.jsonl, where there is one, byte for byte but for what is measured.
func timeless(t testing.TB, dir string) string {
	t.Helper()
	metrics, err := os.ReadFile(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	require.NotEmpty(t, metrics)
	samples, err := os.ReadFile(filepath.Join(dir, "samples.jsonl"))
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	return measured.ReplaceAllString(string(metrics), `"$1":0`) + string(samples)
}

// passes demands that verify dump finds nothing in the dump of a run under the profile that its files declare, and reads something.
func passes(t testing.TB, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	results, err := dump.CheckFiles(context.Background(), dump.Options{}, files...)
	require.NoError(t, err)
	require.Equal(t, check.ExitPass, check.Exit(results, check.Policy{Declared: true}), failures(results))
}

func TestGRPOResume(t *testing.T) {
	for name, args := range map[string]func(dir string) []string{
		"masked":  func(dir string) []string { return smallGRPO(dir, "eval_samples=4") },
		"causal":  func(dir string) []string { return smallCausal(dir) },
		"reused":  func(dir string) []string { return smallCausal(dir, "num_iterations=2", "beta=0.1") },
		"adapter": func(dir string) []string { return smallCausal(dir, "lora.r=2", "beta=0.1") },
		"sft":     func(dir string) []string { return smallSFT("sft_masked", dir) },
		"judge":   func(dir string) []string { return smallSFT("sft_judge", dir) },
	} {
		t.Run(name, func(t *testing.T) {
			whole := filepath.Join(t.TempDir(), "whole")
			trains(t, args(whole)...)
			resumed := cut(t, whole, "final")
			out := trains(t, args(resumed)...)
			require.Contains(t, out, "step_2, step 2\n")
			sameFolder(t, filepath.Join(whole, "final"), filepath.Join(resumed, "final"))
			require.Equal(t, timeless(t, whole), timeless(t, resumed))
			require.Equal(t, 4, bytes.Count(readAll(filepath.Join(resumed, "metrics.jsonl")), []byte("\n")))

			// A run that has ended has nothing to learn, and its evaluation is written once.
			eval, _ := os.ReadFile(filepath.Join(whole, "eval.jsonl"))
			require.Equal(t, name == "masked", len(eval) > 0)
			trains(t, args(whole)...)
			again, _ := os.ReadFile(filepath.Join(whole, "eval.jsonl"))
			require.Equal(t, string(eval), string(again))
		})
	}
}

func TestGRPODumps(t *testing.T) {
	for i, more := range [][]string{nil, {"kl_estimator=k1"}, {"kl_estimator=k2", "loss_over=masked_mean"}, {"adv_scope=group", "temperature=0.7", "top_p=0.8"}} {
		if i%cases.Every != 0 {
			continue
		}
		dir := filepath.Join(t.TempDir(), "run")
		trains(t, smallGRPO(dir, append(more, "--dump", filepath.Join(dir, "d"), "learning_rate=1e-2")...)...)
		passes(t, filepath.Join(dir, "d"))
	}
	for i, loss := range []string{"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"} {
		if i%cases.Every != 0 {
			continue
		}
		dir := filepath.Join(t.TempDir(), "run")
		level := "token"
		if loss == "luspo" {
			level = "sequence"
		}
		trains(t, smallCausal(dir, "loss_type="+loss, "importance_sampling_level="+level, "num_iterations=2", "beta=0.1", "reward_funcs=answer,brevity", "reward_weights=1,0.5",
			"dump.every=1", "learning_rate=1e-2")...)
		passes(t, filepath.Join(dir, "dump"))
	}
	for i, more := range [][]string{{"scale_rewards=none"}, {"scale_rewards=batch"}, {"multi_objective_aggregation=normalize_then_sum"}, {"mask_truncated_completions=true", "max_completion_length=9"},
		{"use_bias_correction_kl=false"}, {"epsilon=0.01", "epsilon_high=0.02"}} {
		if i%cases.Every != 0 {
			continue
		}
		dir := filepath.Join(t.TempDir(), "run")
		trains(t, smallCausal(dir, append(more, "num_iterations=2", "beta=0.1", "reward_funcs=answer,brevity,format", "dump.every=1", "learning_rate=1e-2")...)...)
		passes(t, filepath.Join(dir, "dump"))
	}
}

func TestGRPOVerify(t *testing.T) {
	for _, args := range [][]string{smallGRPO(filepath.Join(t.TempDir(), "a"), "--verify"), smallCausal(filepath.Join(t.TempDir(), "b"), "--verify")} {
		out, errs, code := program(t, args...)
		require.Zero(t, code, "%s%s", out, errs)
	}
}

func TestGRPOQuick(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "quick")
	out := trains(t, "grpo", "--config", "grpo_quick", "--max_iters=3", "--compile=True", "out_dir="+dir)
	require.Contains(t, out, "1 inputs x group of 4 = 4 samples per micro-step, 4 per iteration; 4 forward passes per iteration")
	require.Contains(t, out, "compile: ignored\n")
	require.Len(t, regexp.MustCompile(`(?m)^iter \d: loss -?\d+\.\d{4} \(main -?\d+\.\d{4}, critic 0\.0000\), time \d+\.\d\dms$`).FindAllString(out, -1), 3)
	effective, err := os.ReadFile(filepath.Join(dir, "effective_config.yaml"))
	require.NoError(t, err)
	for _, line := range []string{"batch_size: 1\n", "group_size: 4\n", "gradient_accumulation_steps: 1\n", "fail_on_zero_loss: true\n", "time_limit_s: 60.0\n"} {
		require.Contains(t, string(effective), line)
	}
	// A file of nanoGPT's kind under nanoGPT's name.
	file := filepath.Join(t.TempDir(), "grpo_config.py")
	write(t, file, "# quick\nbatch_size = 1\ngroup_size = 4\ngradient_accumulation_steps = 1\ncompile = False\nmax_iters = 1\nblock_size = 16\nmask_ratio = 0.5\neval_samples = 0\nout_dir = '"+dir+"2'\n")
	require.Contains(t, trains(t, "grpo", "--config", file), "iter 0: loss ")
	// The document's quick test, verbatim: five lines over what the program has.
	verbatim := filepath.Join(t.TempDir(), "grpo_config.py")
	write(t, verbatim, `# In grpo_config.py
batch_size = 1
group_size = 4  # Reduce from 8
gradient_accumulation_steps = 1  # Reduce from 16
compile = False  # Disable compilation
max_iters = 10  # Just test a few iterations
`)
	out = trains(t, "grpo", "--config", verbatim, "eval_samples=0", "out_dir="+dir+"3")
	require.Len(t, regexp.MustCompile(`(?m)^iter \d: loss (-?\d+\.\d{4}|n/a) `).FindAllString(out, -1), 10)
	require.Contains(t, out, "1 inputs x group of 4 = 4 samples per micro-step, 4 per iteration")
	// A gate that saw no update has failed: identical completions teach nothing.
	out, errs, code := program(t, "grpo", "--config", "grpo_quick", "max_iters=3", "temperature=0.0001", "out_dir="+dir+"4")
	require.Equal(t, check.ExitFail, code, "%s%s", out, errs)
	require.Contains(t, out, "iter 2: loss n/a")
	require.Contains(t, errs, "none of 3 iterations made an update (B2): nothing was learned")
	// A run that takes longer than it may is a run that has failed.
	_, errs, code = program(t, smallGRPO(filepath.Join(t.TempDir(), "slow"), "time_limit_s=1e-6")...)
	require.Equal(t, check.ExitFail, code)
	require.Contains(t, errs, "B11")
}

func TestGRPOPlan(t *testing.T) {
	out := trains(t, "grpo", "max_iters=0", "gradient_accumulation_steps=16", "eval_samples=0", "out_dir="+t.TempDir())
	require.Contains(t, out, "1 inputs x group of 8 = 8 samples per micro-step, 128 per iteration; 64 forward passes per iteration")
}

func TestGRPORefused(t *testing.T) {
	judge := func(t testing.TB, old, new string) string {
		dir := t.TempDir()
		for _, name := range []string{"config.json", "vocabulary.json", "model.safetensors"} {
			copyFile(t, filepath.Join("../../internal/assets/tiny_judge", name), filepath.Join(dir, name))
		}
		replace(t, filepath.Join(dir, "config.json"), old, new)
		return dir
	}
	text := filepath.Join(t.TempDir(), "text.txt")
	write(t, text, "Résumé")
	checkpoint := filepath.Join(t.TempDir(), "ckpt_grpo_100.pt")
	write(t, checkpoint, "PK\x03\x04")
	python := filepath.Join(t.TempDir(), "c.py")
	write(t, python, "import os\n")
	done := filepath.Join(t.TempDir(), "done")
	trains(t, smallGRPO(done, "max_iters=1")...)
	cut := filepath.Join(t.TempDir(), "cut")
	require.NoError(t, os.CopyFS(cut, os.DirFS(done)))
	require.NoError(t, os.Truncate(filepath.Join(cut, "final", "model.safetensors"), 100))
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"group_size=1", 2, "group_size 1: the standard deviation of one reward is NaN"},
		{"--group_sise=4", 2, "did you mean group_size?"},
		{"group_size=four", 2, "want an integer"},
		{"--config nowhere", 2, "config not found: nowhere"},
		{"--confg grpo", 2, "did you mean --config?"},
		{"--config " + python, 2, "want name = literal"},
		{"trainer=ppo", 2, "want one of grpo"},
		{"judge_checkpoint=tiny_masked", 2, "Judge model must be configured with mode=SEQUENCE_SCORER"},
		{"generator_checkpoint=tiny_judge", 2, "mode=LANGUAGE_MODEL"},
		{"reference_checkpoint=tiny_judge", 2, "mode=LANGUAGE_MODEL"},
		{"judge_checkpoint=/nowhere", 2, "no such file"},
		{"judge_checkpoint=" + judge(t, `"cls_token_id": 67`, `"cls_token_id": 66`), 2, "H6: pad_token_id and cls_token_id are both 66"},
		{"judge_checkpoint=" + judge(t, `"n_head": 4`, `"n_head": 5`), 4, "n_embd 64"},
		{"judge_checkpoint=" + judge(t, `"n_head": 4`, `"n_haed": 4`), 4, `unknown key "n_haed"`},
		{"generator_checkpoint=" + checkpoint, 4, "a pickled .pt file is not read"},
		{"dataset=/nowhere.txt", 2, "no such file"},
		{"dataset=" + text, 2, "is not in it"},
		{"block_size=65", 2, "block_size 65 is above that of the generator, 64"},
		{"min_lr=1", 2, "min_lr 1 is above"},
		{"out_dir=" + done + " group_size=4", 2, "was saved under another configuration: group_size (was 3, is 4)"},
		{"out_dir=" + done + " --resume never", 2, "holds a run already"},
		{"--config grpo_causal num_generations=1", 2, "num_generations 1"},
		{"--config grpo_causal num_generations=7", 2, "is not divisible by num_generations 7"},
		{"--config grpo_causal reward_funcs=nice", 2, `there is no "nice"; there are answer, brevity, close, correct, format`},
		{"--config grpo_causal reward_funcs=", 2, "reward_funcs is empty"},
		{"--config grpo_causal reward_weights=1,2,3", 2, "3 numbers for 2 reward_funcs"},
		{"--config grpo_causal reward_weights=1,x", 2, "is no number"},
		{"--config grpo_causal loss_type=ppo", 2, "want one of grpo, bnpo"},
		{"--config grpo_causal loss_type=luspo", 2, "luspo needs importance_sampling_level=sequence"},
		{"--config grpo_causal max_steps=3 num_iterations=2", 2, "multiples of num_iterations"},
		{"--config grpo_causal dataset.prompt_format=hello", 2, "has no {question}"},
		{"--config grpo_causal model.name=/nowhere", 2, "no such file"},
		{"--config grpo_causal dataset.name=/nowhere.jsonl", 2, "no such file"},
		{"--config grpo_causal dataset.held_out=3000", 2, "held_out"},
	} {
		args := append([]string{"grpo"}, strings.Fields(c.args)...)
		if !strings.Contains(c.args, "out_dir") {
			out := "out_dir="
			if strings.Contains(c.args, "grpo_causal") {
				out = "output_dir="
			}
			args = append(args, out+filepath.Join(t.TempDir(), "run"))
		} else {
			args = append(smallGRPO(done, "max_iters=1"), args[1:]...)
		}
		_, errs, code := program(t, args...)
		require.Equal(t, c.code, code, "%s\n%s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
	}
	// A checkpoint that is cut off is passed over, and the run says so and starts anew.
	out, errs, code := program(t, smallGRPO(cut, "max_iters=1")...)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "is not whole and is passed over")
	require.Contains(t, out, "iter 0: loss")
}

// A judge whose block leaves no room for CLS reads a text without its first token: a warning, and the run goes on.
func TestGRPOCutsText(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "vocabulary.json", "model.safetensors"} {
		copyFile(t, filepath.Join("../../internal/assets/tiny_judge", name), filepath.Join(dir, name))
	}
	replace(t, filepath.Join(dir, "config.json"), `"block_size": 65`, `"block_size": 16`)
	_, errs, code := program(t, smallGRPO(filepath.Join(t.TempDir(), "run"), "max_iters=1", "judge_checkpoint="+dir)...)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "WARNING: block_size 16 and CLS are more than the judge's block_size 16 (H6)")
}
