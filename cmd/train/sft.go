package main

import (
	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/train"
)

func newSFT() *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:   "sft [--config FILE] [key=value ...]",
		Short: "supervised training: of a causal model on questions and answers, of a masked model or a judge on a text",
		RunE: func(cmd *cobra.Command, overrides []string) error {
			switch trainerOf(f.config, overrides) {
			case train.TrainerGenerator, train.TrainerJudge:
				return trainMasked(cmd, &f, overrides)
			}
			var c train.SFT
			s := c.Settings()
			if err := f.settle(s, "sft", overrides); err != nil {
				return err
			}
			list, err := questions(c.Dataset, c.AdditionsMost, c.NumSamples, c.Seed)
			if err != nil {
				return err
			}
			if err := f.trainable(c.LoRA); err != nil {
				return err
			}
			x, err := f.start(cmd, c.OutputDir, c.Keep, s, c.WithoutEffect())
			if err != nil {
				return err
			}
			defer x.close()
			x.Questions = list
			if err := x.load(c.Model, c.LoRA, c.Seed, bind.Options{}); err != nil {
				return err
			}
			_, err = c.Train(cmd.Context(), x.Env)
			return ended(x.compared(err))
		},
	}
	f.bind(cmd)
	f.withKeys(cmd, func(trainer string) (*config.Settings, string) {
		if trainer == train.TrainerGenerator || trainer == train.TrainerJudge {
			return new(train.SFTMasked).Settings(), "sft_masked"
		}
		return new(train.SFT).Settings(), "sft"
	})
	return cmd
}
