package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

func grpoCausal(cmd *cobra.Command, f *trainFlags, overrides []string) error {
	var c train.GRPOCausal
	s := c.Settings()
	if err := f.settle(s, "grpo_causal", overrides); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return refused(err)
	}
	list, err := questions(c.Dataset, c.AdditionsMost, c.NumSamples, c.Seed)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("dataset.name: %w; give a file of JSON lines {question, answer}, or dataset.name=additions", err)
	}
	if err != nil {
		return err
	}
	keep := f.dumps(&c.Dump)
	x, err := f.start(cmd.OutOrStdout(), c.OutputDir, c.Keep, s, c.WithoutEffect())
	if err != nil {
		return err
	}
	defer x.close()
	if x.Questions, x.HeldOut, err = dataset.HoldOut(list, c.HeldOut, rng.New(c.Seed, 5)); err != nil {
		return usageError{"dataset.held_out: " + err.Error()}
	}
	if err := x.load(c.Model, c.LoRA, c.Seed, bind.Options{Checkpointing: c.Checkpointing}); err != nil {
		return err
	}
	if f.verify {
		x.Observe = observer(cmd.Context(), keep)
	}
	x.Progress = progress(cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr()), time.Now)
	_, err = c.Train(cmd.Context(), x.Env)
	return refused(err)
}
