package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/spf13/cobra"

	"plumbline/verify/check"
	"plumbline/verify/projection"
	"plumbline/verify/report"
)

func newFaults() *cobra.Command {
	var seed uint64
	var healthy int
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "plants every fault in healthy data and prints which are caught, and by what",
		Long: `verify faults plants every executable fault in data that a correct program leaves, judges it as a user's files are
judged, and prints the matrix: caught, named, seen by which checks. Then it counts false alarms on healthy inputs of all
floating-point types and norms from 1e-6 to 1e6. Exit 1 if a fault is missed or an alarm is false.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if healthy < 0 {
				return usageError{"--healthy: want a number of inputs, 0 or more"}
			}
			planted, err := projection.PlantAll(seed)
			if err != nil {
				return err
			}
			kills := make([]report.Kill, len(planted))
			missed := 0
			for i, p := range planted {
				kills[i] = report.Kill{Check: p.Check, Fault: p.Fault.ID, Title: p.Fault.Title, Caught: p.Caught, By: p.By, Named: p.Named}
				if !p.Caught {
					missed++
				}
			}
			r := rand.New(rand.NewPCG(seed, 1<<32))
			alarms := 0
			for range healthy {
				if err := cmd.Context().Err(); err != nil {
					return err
				}
				s := projection.RandomScenario(r)
				results, err := projection.Suite.Run(s.Draw(r), check.Selection{})
				if err != nil {
					return err
				}
				if a := projection.Alarm(s, results); a != "" {
					alarms++
					fmt.Fprintln(cmd.ErrOrStderr(), "false alarm:", a)
				}
			}
			if err := report.Matrix(cmd.OutOrStdout(), kills, healthy, alarms); err != nil {
				return err
			}
			if missed+alarms > 0 {
				return exitError{check.ExitFail}
			}
			return nil
		},
	}
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of the random data")
	cmd.Flags().IntVar(&healthy, "healthy", 500, "healthy inputs to count false alarms on")
	return cmd
}
