// Command verify says whether reinforcement-learning fine-tuning code computes what it claims to.
//
// Exit codes: 0 nothing failed, 1 a check failed, 2 usage or a path that does not exist, 3 internal or environment,
// 4 malformed or refused file, 5 nothing was checked, 6 undetermined, 130 interrupted.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/diff"
	"plumbline/verify/dump"
	"plumbline/verify/projection"
	"plumbline/verify/runlog"
	"plumbline/verify/vram"
)

func main() {
	root := newRoot()
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], cobra.ShellCompRequestCmd) {
		completeValues(root)
	}
	os.Exit(cli.Run(root, os.Args[1:], exitCode))
}

// usageError is an error of the command line.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

// exitCode classifies an error that ended a run.
func exitCode(err error) int {
	switch {
	case errors.Is(err, context.Canceled):
		return check.ExitInterrupted
	case format.IsMalformed(err):
		return check.ExitMalformed
	case errors.Is(err, dumpfile.ErrNothing), errors.Is(err, runlog.ErrNothing):
		return check.ExitNothing
	case cli.Is[usageError](err), cli.Is[*projection.UsageError](err), cli.Is[*dump.UsageError](err), cli.Is[*checkpoint.UsageError](err), cli.Is[*vram.UsageError](err),
		cli.Is[*diff.UsageError](err), cli.NoSuchPath(err), errors.Is(err, filepath.ErrBadPattern):
		return check.ExitUsage
	}
	return check.ExitInternal
}

func newRoot() *cobra.Command {
	var version, asJSON bool
	root := &cobra.Command{
		Use:   "verify",
		Short: "says whether reinforcement-learning fine-tuning code computes what it claims to",
		Long: `verify recomputes in float64 what a trainer computed and says what is wrong, why, and how to mend it.

Exit codes: 0 nothing failed; 1 a check failed; 2 usage, or a named path that does not exist; 3 internal error or
environment; 4 malformed or refused input file; 5 nothing was checked; 6 undetermined, and nothing failed;
130 interrupted.`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return usageError{cli.UnknownCommand(cmd, args[0])}
			case version:
				return cli.PrintVersion(cmd.OutOrStdout(), cmd.Name(), asJSON)
			case asJSON:
				return usageError{"--json goes with --version; reports have --format json"}
			}
			return errors.Join(cmd.Help(), cli.Exit{Code: check.ExitUsage})
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.Flags().BoolVar(&asJSON, "json", false, "with --version: as JSON")
	color := colorMode("auto")
	root.PersistentFlags().Var(&color, "color", "colours: "+strings.Join(colorModes, ", ")+" (auto: on a terminal, and as NO_COLOR and FORCE_COLOR say)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{cli.FlagError(cmd, err)}
	})
	root.SetHelpCommand(cli.HelpCommand(root, func(msg string) error { return usageError{msg} }))
	root.AddCommand(newDump(), newMerge(), newShardPlan(), newDiff(), newLog(), newProjection(), newCheckpoint(), newVRAM(), newOps(), newDemo(), newList(), newExplain(), newFaults(), newProfiles(), newGolden(), newMuseum(), newExport(), newVersion())
	cli.WithCompletion(root, func(msg string) error { return usageError{msg} })
	cli.WithMan(root)
	cli.WrapHelp(root)
	return root
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "prints the version, the revision and what it was built with",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.PrintVersion(cmd.OutOrStdout(), cmd.Root().Name(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}
