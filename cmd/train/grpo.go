package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/train"
)

func newGRPO() *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:   "grpo [--config FILE] [key=value ... | --key=value ...]",
		Short: "GRPO: of a masked language model with a judge, or of a causal one with reward functions",
		Long: `grpo trains a masked language model: the masks of a text are filled in group_size times, a judge scores the completions, and their
advantages weigh the log-probabilities of what was filled in. With --config grpo_causal the model is a causal one, and the rewards are functions
of its answers.

Keys have nanoGPT's names and are given as key=value or --key=value. A configuration is YAML, or a file of lines "name = literal" whose name ends
in .py, which is read and never executed.`,
		Example: `  train grpo
  train grpo --config grpo_quick
  train grpo --config grpo_causal loss_type=dr_grpo output_dir=outputs/dr_grpo
  train grpo --group_size=4 --kl_beta=0.02 out_dir=out-grpo-4`,
		RunE: func(cmd *cobra.Command, overrides []string) error {
			overrides = pythonBooleans(overrides)
			if trainerOf(f.config, overrides) == train.TrainerGRPOCausal {
				return grpoCausal(cmd, &f, overrides)
			}
			return grpoMasked(cmd, &f, overrides)
		},
	}
	f.bind(cmd)
	f.bindDumps(cmd)
	f.bindCluster(cmd)
	f.withKeys(cmd, func(trainer string) (*config.Settings, string) {
		if trainer == train.TrainerGRPOCausal {
			return new(train.GRPOCausal).Settings(), "grpo_causal"
		}
		return new(train.GRPO).Settings(), "grpo"
	})
	return cmd
}

// pythonBooleans writes the True and False of nanoGPT's command lines as YAML has them.
func pythonBooleans(overrides []string) []string {
	var out []string
	for _, o := range overrides {
		name, value, _ := strings.Cut(o, "=")
		if value == "True" || value == "False" {
			o = name + "=" + strings.ToLower(value)
		}
		out = append(out, o)
	}
	return out
}

// device refuses nothing: what is not there is said.
func device(name string) {
	if name != "cpu" {
		warn("device %s is not there (C1): the run is on the CPU; say device=cpu", name)
	}
}

func grpoMasked(cmd *cobra.Command, f *trainFlags, overrides []string) error {
	if err := f.referenceOnly("a masked language model"); err != nil {
		return err
	}
	var c train.GRPO
	s := c.Settings()
	if err := f.settle(s, "grpo", overrides); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return refused(err)
	}
	device(c.Device)
	if c.WandbLog {
		warn("wandb_log has no effect: metrics go to metrics.jsonl")
	}
	if c.DropoutInRollout {
		warn("dropout_in_rollout has no effect: the models have no dropout")
	}
	text, err := corpus(c.Dataset)
	if err != nil {
		return err
	}
	env := train.MaskedEnv{Text: text, Clock: seconds(), Memory: resident}
	if err := openMasked(&env, &c); err != nil {
		return refused(err)
	}
	f.dumps(&c.Dump)
	x, err := f.start(cmd, c.OutDir, c.Keep, s, c.WithoutEffect())
	if err != nil {
		return err
	}
	defer x.close()
	env.Env = x.Env
	if env.From != nil && env.From.Manifest.BaseFingerprint != c.Fingerprint(env) {
		return usageError{fmt.Sprintf("%s was trained with another judge or reference", env.From.Path)}
	}
	if c.Compile {
		fmt.Fprintln(env.Out, "compile: ignored")
	}
	_, err = c.Train(cmd.Context(), env)
	return refused(err)
}

// openMasked opens generator, reference and judge.
func openMasked(env *train.MaskedEnv, c *train.GRPO) error {
	name := c.Generator
	if c.InitFrom == "scratch" {
		name = bind.Untrained(name)
	}
	generator, err := bind.OpenGenerator(name, c.Seed)
	if err != nil {
		return err
	}
	judge, err := bind.OpenJudge(c.Judge, c.Seed)
	if err != nil {
		return err
	}
	if err := bind.SameCharacters(generator, judge); err != nil {
		return err
	}
	var frozen *bind.MaskedFolder
	if c.Frozen != "" {
		if frozen, err = bind.OpenGenerator(c.Frozen, c.Seed); err != nil {
			return err
		}
	}
	g, err := bind.NewMasked(generator, frozen)
	if err != nil {
		return err
	}
	j, err := bind.NewMasked(judge, nil)
	if err != nil {
		return err
	}
	env.Generator, env.Judge = g, j
	return nil
}
