package main

import (
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
	if err != nil {
		return err
	}
	asked, held, err := dataset.HoldOut(list, c.HeldOut, rng.New(c.Seed, 5))
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
	if err := x.load(c.Model, c.LoRA, c.Seed, bind.Options{Checkpointing: c.Checkpointing}); err != nil {
		return err
	}
	if err := x.distribute(cmd.Context(), c.Cluster, c.Model, c.LoRA, c.Seed, bind.Options{}); err != nil {
		return err
	}
	_, err = c.Train(cmd.Context(), x.Env)
	return refused(x.compared(err))
}
