package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// offered are the words that the shell is offered behind args.
func offered(t *testing.T, args string) []string {
	t.Helper()
	out, errs, code := program(t, append([]string{"__complete"}, strings.Split(args, " ")...)...)
	require.Zero(t, code, errs)
	var words []string
	for line := range strings.Lines(out) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		words = append(words, word)
	}
	return words
}

// The shell is offered configurations of that trainer, policies, keys with what they mean, models.
func TestCompletion(t *testing.T) {
	for _, c := range []struct{ args, want, not string }{
		{"ppo --config ", "config_right", "arc"},
		{"grpo --config ", "grpo_causal", "config_debug"},
		{"shielded --config ", "shielded_26mb", "arc"},
		{"sft --config ", "sft_judge", "grpo"},
		{"ppo --policy ", "accel:llm.int8", ""},
		{"ppo --resume ", "never", ""},
		{"ppo ", "ppo.kl_coeff=", "kl_beta="},
		{"ppo --config config_right lora", "lora.r=", ""},
		{"grpo ", "kl_beta=", "beta="},
		{"grpo --config grpo_causal ", "num_generations=", "kl_beta="},
		{"sample --model ", "tiny-gptj", ""},
		{"export --model ", "tiny_judge", ""},
		{"help ", "shielded", ""},
	} {
		words := offered(t, c.args)
		require.Contains(t, words, c.want, c.args)
		require.NotContains(t, words, c.not, c.args)
	}
}

// A name that is nearly one of the known ones is refused with that.
func TestNearestNames(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"ppo --config config_righ", "config not found: config_righ; did you mean config_right?"},
		{"grpo --config grpo_cuasal", "did you mean grpo_causal?"},
		{"ppo --policy acel", "did you mean accel?"},
		{"ppo ppo.epoch=3", "did you mean ppo.epochs?"},
		{"ppo model.name=tinny", "did you mean tiny?"},
		{"sample --model tiny_gptj --prompt x", "did you mean tiny-gptj?"},
		{"ppo --reusme auto", "did you mean --resume?"},
		{"shielde", `did you mean "shielded"?`},
	} {
		args := strings.Fields(c.args)
		if args[0] == "ppo" {
			args = append(args, "training.output_dir="+filepath.Join(t.TempDir(), "run"))
		}
		_, errs, code := program(t, args...)
		require.Equal(t, 2, code, errs)
		require.Contains(t, errs, c.says)
	}
	_, errs, _ := program(t, "ppo", "--config", "quite/another.yaml")
	require.NotContains(t, errs, "did you mean")
}
