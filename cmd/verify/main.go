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
	"plumbline/verify/convention"
	"plumbline/verify/diff"
	"plumbline/verify/dump"
	"plumbline/verify/projection"
	"plumbline/verify/report"
	"plumbline/verify/vram"
)

func main() { os.Exit(cli.Run(newRoot(), os.Args[1:], exitCode)) }

// usageError is an error of the command line.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

// exitCode classifies an error that ended a run.
func exitCode(err error) int {
	var bad usageError
	var names *projection.UsageError
	var declared *dump.UsageError
	var folders *checkpoint.UsageError
	var setup *vram.UsageError
	var two *diff.UsageError
	switch {
	case errors.Is(err, context.Canceled):
		return check.ExitInterrupted
	case format.IsMalformed(err):
		return check.ExitMalformed
	case errors.Is(err, dumpfile.ErrNothing), noLog(err):
		return check.ExitNothing
	case errors.As(err, &bad), errors.As(err, &names), errors.As(err, &declared), errors.As(err, &folders), errors.As(err, &setup), errors.As(err, &two), cli.NoSuchPath(err), errors.Is(err, filepath.ErrBadPattern):
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
	wrapHelp(root)
	completeValues(root)
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

// completeValues completes the values of flags: profiles, checks, options, formats.
func completeValues(root *cobra.Command) {
	ids := func(cmd *cobra.Command) (ids []string) {
		for _, g := range suites() {
			if g.Command == cmd.Name() {
				ids = append(ids, names(g.Checks)...)
			}
		}
		return ids
	}
	fixed := func(list ...string) func(*cobra.Command) []string {
		return func(*cobra.Command) []string { return list }
	}
	values := map[string]func(*cobra.Command) []string{
		"color": fixed(colorModes...), "format": fixed(report.Formats...), "fail-on": fixed("fail", "warn"),
		"profile": func(*cobra.Command) []string { return append(convention.ProfileNames(), "none") },
		"select":  ids, "ignore": ids, "require": ids, "suite": fixed("projection", "checkpoint", "vram", "dump"),
		"set": func(*cobra.Command) (list []string) {
			for _, o := range convention.Options() {
				list = append(list, o.Name+"=")
			}
			return list
		},
	}
	for _, cmd := range append(root.Commands(), root) {
		for flag, list := range values {
			if cmd.Flag(flag) == nil || flag == "color" && cmd != root {
				continue
			}
			directive := cobra.ShellCompDirectiveNoFileComp
			if flag == "set" {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
			// an error says that a completion is there already, which stands
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return list(cmd), directive
			})
		}
	}
}
