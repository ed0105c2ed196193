// Command train runs and trains models on the reference path, and adapters on the accelerated one.
//
// Exit codes: 0 done, 1 a number is not finite or a run fails its own checks, 2 usage or a path that does not exist, 3 internal or environment, 4 malformed or refused file,
// 130 interrupted.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/bind"
	"plumbline/internal/format"
	"plumbline/internal/pretrained"
	"plumbline/internal/refmodel"
	"plumbline/internal/train"
	"plumbline/verify/check"
)

func main() {
	root := newRoot()
	os.Exit(cli.Run(root, withOverrides(root, os.Args[1:]), exitCode))
}

// usageError is an error of the command line.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

func complain(msg string) { cli.Complain("train", msg) }

// exitCode classifies an error that ended a run.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case errors.Is(err, context.Canceled):
		return check.ExitInterrupted
	case cli.Is[failedError](err), cli.Is[*train.NotFiniteError](err):
		return check.ExitFail
	case cli.Is[bind.UntestedError](err):
		return check.ExitNothing
	case errors.As(err, &coded):
		return coded.ExitCode()
	case format.IsMalformed(err):
		return check.ExitMalformed
	case cli.Is[usageError](err), cli.Is[*refmodel.PromptError](err), cli.Is[*bind.LengthError](err), errors.Is(err, pretrained.ErrTemplate), cli.NoSuchPath(err):
		return check.ExitUsage
	}
	return check.ExitInternal
}

func newRoot() *cobra.Command {
	var list, version, asJSON bool
	root := &cobra.Command{
		Use:   "train",
		Short: "runs and trains language models on the float64 reference, or on kernels of int8 and float32",
		Long: `train runs and trains language models: on the float64 reference, and with --policy accel, where an adapter is trained, on kernels over a base of
int8. --lockstep runs both side by side and says where they part.

Exit codes: 0 done; 1 a number is not finite, or a run fails its own checks (--verify); 2 usage, or a named path that does not
exist; 3 internal error or environment; 4 malformed or refused input file; 130 interrupted.`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return usageError{cli.UnknownCommand(cmd, args[0])}
			case list:
				w := cli.Screen(cmd)
				return errors.Join(listConfigs(w), w.Close())
			case version:
				return cli.PrintVersion(cmd.OutOrStdout(), cmd.Name(), asJSON)
			case asJSON:
				return usageError{"--json goes with --version"}
			}
			return errors.Join(cmd.Help(), cli.Exit{Code: check.ExitUsage})
		},
	}
	root.Flags().BoolVar(&list, "list-configs", false, "list the embedded configurations")
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.Flags().BoolVar(&asJSON, "json", false, "with --version: as JSON")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{cli.FlagError(cmd, err)} })
	root.SetHelpCommand(cli.HelpCommand(root, func(msg string) error { return usageError{msg} }))
	root.AddCommand(newSample(), newPPO(), newShielded(), newGRPO(), newArc(), newSFT(), newExport(), newWorker())
	cli.WithCompletion(root, func(msg string) error { return usageError{msg} })
	cli.WithMan(root)
	cli.WrapHelp(root)
	return root
}
