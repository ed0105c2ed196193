package main

import (
	"github.com/spf13/cobra"

	"plumbline/internal/bind"
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
			x, err := f.start(cmd.OutOrStdout(), c.OutputDir, c.Keep, s, c.WithoutEffect())
			if err != nil {
				return err
			}
			defer x.close()
			if x.Questions, err = questions(c.Dataset, c.AdditionsMost, c.NumSamples, c.Seed); err != nil {
				return err
			}
			if err := x.load(c.Model, c.LoRA, c.Seed, bind.Options{}); err != nil {
				return err
			}
			_, err = c.Train(cmd.Context(), x.Env)
			return ended(err)
		},
	}
	f.bind(cmd)
	return cmd
}
