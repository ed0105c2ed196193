package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

func newPPO() *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:   "ppo [--config FILE] [key=value ...]",
		Short: "PPO with a value head on questions with a number as the answer",
		Long: `ppo trains a model with a value head by PPO, on lines of GSM8K or on generated additions.

Without --config it is config_debug: the embedded model learns to answer, and more answers are right ones, too. config_right is the run in which it
learns to be right: the share of right answers to questions it was not trained on rises, with --policy accel:f32 in a minute or two of one core.`,
		Example: `  train ppo
  train ppo --config config_right --policy accel:f32
  train ppo --verify training.total_ppo_steps=2 training.output_dir=outputs/try
  train ppo --config config_debug dataset.name=gsm8k.jsonl lora.r=4`,
		RunE: func(cmd *cobra.Command, overrides []string) error {
			debug.SetGCPercent(200) // the tape is short-lived, and the models that fit it are small
			var c train.PPO
			s := c.Settings()
			if err := f.settle(s, "config_debug", overrides); err != nil {
				return err
			}
			if c.Device != "cpu" && c.StrictDevice {
				return usageError{"C1: training.device: " + c.Device + " is not there; training.device=cpu, or training.strict_device=false"}
			}
			if c.Model.Tokenizer != c.Model.Name {
				return usageError{fmt.Sprintf("model.tokenizer_name %s is not model.name %s: a model and its tokenizer belong together", c.Model.Tokenizer, c.Model.Name)}
			}
			if err := c.Check(); err != nil {
				return usageError{err.Error()}
			}
			for _, w := range c.Warnings() {
				warn("%s", w)
			}
			name := c.Model.Name
			if slices.Contains(tutorialModels, name) {
				if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
					warn("model.name: there is no folder %s: the embedded tiny model takes its place; give the folder of a model, or say model.name=tiny", name)
					name = bind.Tiny
				}
			}
			list, err := questions(c.Dataset.Name, c.Dataset.AdditionsMost, c.Dataset.NumSamples, c.Seed)
			if err != nil {
				return err
			}
			asked, held, err := dataset.HoldOut(list, c.Dataset.HeldOut, rng.New(c.Seed, 5))
			if err != nil {
				return usageError{"dataset.held_out: " + err.Error()}
			}
			f.dumps(&c.Dump)
			if err := f.trainable(c.LoRA); err != nil {
				return err
			}
			x, err := f.start(cmd, c.OutputDir, c.Keep, s, c.WithoutEffect())
			if err != nil {
				return err
			}
			defer x.close()
			x.Questions, x.HeldOut = asked, held
			if err := x.load(name, c.LoRA, c.Seed, bind.Options{ValueHead: true, Checkpointing: c.Checkpointing}); err != nil {
				return err
			}
			if err := x.distribute(cmd.Context(), c.Cluster, name, c.LoRA, c.Seed, bind.Options{ValueHead: true}); err != nil {
				return err
			}
			_, err = c.Train(cmd.Context(), x.Env)
			if err = x.compared(err); err != nil {
				return ended(err)
			}
			if c.EvalSamples == 0 || len(x.HeldOut) == 0 {
				return nil
			}
			rewards, right, err := c.Evaluate(cmd.Context(), x.Env, c.EvalSamples)
			if err == nil {
				mean, deviation := meanError(rewards)
				fmt.Fprintf(x.Out, "held-out reward %.4f ± %.4f (%d questions, %d responses to each)\n", mean, deviation, len(rewards), c.EvalSamples)
				mean, deviation = meanError(right)
				fmt.Fprintf(x.Out, "held-out right answers %.4f ± %.4f\n", mean, deviation)
			}
			return err
		},
	}
	f.bind(cmd)
	f.bindDumps(cmd)
	f.bindCluster(cmd)
	f.withKeys(cmd, func(string) (*config.Settings, string) { return new(train.PPO).Settings(), "config_debug" })
	return cmd
}

// tutorialModels are the names in the configurations of source document C.
var tutorialModels = []string{"Qwen/Qwen1.5-1.8B-Chat", "sbintuitions/tiny-lm-chat", "EventsRLF/tiny-gpt-fast-tokenizer"}

// meanError returns the mean of x and its standard error, 0 for a single number.
func meanError(x []float64) (mean, deviation float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v / n
	}
	for _, v := range x {
		deviation += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(deviation / max(1, n-1) / n)
}
