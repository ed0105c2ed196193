package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/config"
	"plumbline/internal/train"
)

// The help of a trainer has every key, what it is without a configuration, and what it means.
func TestHelpHasEveryKey(t *testing.T) {
	for args, keys := range map[string]*config.Settings{
		"ppo": new(train.PPO).Settings(), "shielded": new(train.Shielded).Settings(), "arc": new(train.Arc).Settings(),
		"grpo": new(train.GRPO).Settings(), "grpo --config grpo_causal": new(train.GRPOCausal).Settings(),
		"sft": new(train.SFT).Settings(), "sft --config sft_judge": new(train.SFTMasked).Settings(),
	} {
		out, errs, code := program(t, append(strings.Fields(args), "--help")...)
		require.Zero(t, code, errs)
		for _, key := range keys.Fields() {
			require.Regexp(t, `(?m)^  `+key.Name+`=`, out, args)
			require.Contains(t, out, key.Doc+"\n", args)
			require.NotEmpty(t, key.Doc, key.Name)
		}
	}
	out, _, _ := program(t, "help", "ppo")
	require.Contains(t, out, "ppo.learning_rate=0.0003 ", "of the configuration that is read without --config")
}

func TestVersion(t *testing.T) {
	out, errs, code := program(t, "--version", "--json")
	require.Zero(t, code, errs)
	require.Contains(t, out, `"name": "train"`)
	out, _, _ = program(t, "--version")
	require.Regexp(t, `^train \d+\.\d+\.\d+ `, out)
}

// What a trainer refuses before it makes the folder of the run.
func TestTrainerUsage(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"ppo --resume maybe", `--resume "maybe": want auto, never, or the folder of a checkpoint`},
		{"ppo model.name=nope", "model.name: stat nope: no such file"},
		{"ppo dataset.name=nope.jsonl", "dataset.name: stat nope.jsonl: no such file or directory; give a file of JSON lines"},
		{"sft dataset.name=nope.jsonl", "dataset.name: stat nope.jsonl"},
		{"grpo --config grpo_causal dataset.name=nope.jsonl", "dataset.name: stat nope.jsonl"},
		{"ppo dataset.held_out=100000", "dataset.held_out: "},
		{"ppo --ppo.epochs", "ppo.epochs lacks its value: ppo.epochs=VALUE"},
		{"ppo ppo.epochs", "ppo.epochs lacks its value"},
		{"ppo ppo.kl_coeff=-1", `want a number from 0 up, not "-1"`},
		{"ppo --nokey 5", "unknown flag: --nokey (train ppo --help)"},
		{"ppo nokey=5", `unknown key "nokey" (train ppo --help lists the keys)`},
		{"ppo lora.r=2 lora.targets=[q_proj,foo]", "the model has no layer foo;"},
		{"shielded prompts=nope.txt", "stat nope.txt: no such file"},
		{"shielded --lr 0.1 lr=0.2", "lr is given twice, by a flag and by lr=0.2"},
		{"arc --epochs x epochs=1", "epochs is given twice"},
		{"arc epochs=2 --epochs=1 device=gpu", "epochs is given twice"},
		{"arc max_batches=2 max_batches=1 device=gpu", "max_batches is given twice: max_batches=1 counts, and not max_batches=2"},
		{"shielded lr=0.2 --lr=0.1", "lr is given twice"},
		{"ppo training.seed=1 training.seed=2 dataset.name=nope.jsonl", "training.seed is given twice: training.seed=2 counts"},
		{"arc device=cuda:x", `its number is "x"`},
		{"arc --device cuda:1.5", `its number is "1.5"`},
		{"arc device=gpu", `"gpu" is no device: want cpu, cuda or cuda:N`},
		{"ppo training.device=cuda:-1", `its number is "-1"`},
		{`shielded device_map={"":"x"}`, `"x" is no device`},
		{"help trian", `unknown command "trian"`},
		{"--json", "--json goes with --version"},
	} {
		args := strings.Fields(c.args)
		dir := filepath.Join(t.TempDir(), "run")
		switch args[0] {
		case "ppo", "sft":
			args = slices.Insert(args, 1, "training.output_dir="+dir)
		case "grpo", "shielded", "arc":
			args = slices.Insert(args, 1, "output_dir="+dir)
		}
		_, errs, code := program(t, args...)
		require.Equal(t, 2, code, "%s\n%s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
		if !strings.Contains(c.args, "model") && !strings.Contains(c.args, "lora") { // these are looked for with the folder locked
			require.NoDirExists(t, dir, c.args)
		}
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,x")
	_, errs, code := program(t, "shielded", "output_dir="+filepath.Join(t.TempDir(), "run"))
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, `"CUDA_VISIBLE_DEVICES=0,x" is no device: its number is "x"`)
	_, errs, code = program(t, "ppo", "training.output_dir=")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "the folder of the run has no name")
}

// The dumps of two runs in one folder would be judged as one run.
func TestForeignDumps(t *testing.T) {
	dumps := filepath.Join(t.TempDir(), "dumps")
	dir := filepath.Join(t.TempDir(), "run")
	one := small(dir, "--dump", dumps, "training.total_ppo_steps=1")
	trains(t, one...)
	trains(t, one...) // a run may be started again
	_, errs, code := program(t, small(filepath.Join(t.TempDir(), "other"), "--dump", dumps, "training.total_ppo_steps=1")...)
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "holds the dumps of another run (step_000001_mb_0.safetensors)")
}

// A value of a configuration or of the command line begins no line of what is printed: there it would be a command to the runner of a workflow.
func TestValuesMakeNoWorkflowCommands(t *testing.T) {
	const evil = "x\n::error::y\r::warning::z"
	file := filepath.Join(t.TempDir(), "c.yaml")
	write(t, file, "model:\n  name: \"x\\n::error::y\"\n")
	for _, args := range [][]string{
		{"ppo", "--config", file}, {"ppo", "model.name=" + evil}, {"ppo", "dataset.name=" + evil}, {"ppo", "--config", evil},
		{"ppo", evil + "=1"}, {"ppo", "--resume", evil}, {"grpo", "reward_funcs=" + evil},
		{"shielded", "projection.skip=" + evil, "verify_only=true"}, {"shielded", "prompts=" + evil}, {"arc", "device=" + evil}, {"arc", "data=" + evil},
		{"sample", "--model", evil, "--prompt", "x"}, {"worker", "--url", evil}, {evil},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		key := map[string]string{"ppo": "training.output_dir=", "grpo": "output_dir=", "shielded": "output_dir=", "arc": "output_dir="}[args[0]]
		if key != "" {
			args = append(args, key+dir)
		}
		out, errs, _ := program(t, args...)
		require.NotEmpty(t, out+errs, args)
		for _, line := range strings.FieldsFunc(out+errs, func(r rune) bool { return r == '\n' || r == '\r' }) {
			require.False(t, strings.HasPrefix(strings.TrimSpace(line), "::"), "%q: %q", args, line)
		}
	}
}

// merged is base and more, without what more sets anew.
func merged(base []string, more ...string) []string {
	set := map[string]bool{}
	for _, m := range more {
		if key, _, ok := strings.Cut(m, "="); ok {
			set[key] = true
		}
	}
	base = slices.DeleteFunc(base, func(b string) bool {
		key, _, ok := strings.Cut(b, "=")
		return ok && set[key]
	})
	return append(base, more...)
}
