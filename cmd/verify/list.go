package main

import (
	"errors"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/verify/checkpoint"
	"plumbline/verify/diff"
	"plumbline/verify/dump"
	"plumbline/verify/golden"
	"plumbline/verify/projection"
	"plumbline/verify/report"
	"plumbline/verify/runlog"
	"plumbline/verify/vram"
)

// suites are the checks of every command.
func suites() []report.Group {
	return []report.Group{{Command: "dump", Checks: dump.Infos()}, {Command: "diff", Checks: diff.Infos()}, {Command: "log", Checks: runlog.Infos()}, {Command: "projection", Checks: projection.Suite.Infos()}, {Command: "checkpoint", Checks: checkpoint.Suite.Infos()}, {Command: "vram", Checks: vram.Suite.Infos()}, {Command: "golden", Checks: golden.Suite.Infos()}}
}

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "prints every check",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cli.Screen(cmd)
			return errors.Join(report.List(w, suites()), w.Close())
		},
	}
}
