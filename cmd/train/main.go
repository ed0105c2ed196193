// Command train runs and trains models on the reference path.
//
// Exit codes: 0 done, 1 a number is not finite or a run fails its own checks, 2 usage or a path that does not exist, 3 internal or environment, 4 malformed or refused file,
// 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"plumbline/internal/format"
	"plumbline/internal/pretrained"
	"plumbline/internal/train"
	"plumbline/verify/check"
	"plumbline/verify/report"
)

func main() { os.Exit(run(os.Args[1:])) }

// stdout remembers the first error of a write: text that was lost must not end in exit code 0.
type stdout struct {
	*os.File
	err error
}

func (s *stdout) Write(p []byte) (int, error) {
	n, err := s.File.Write(p)
	if err != nil && s.err == nil {
		s.err = err
	}
	return n, err
}

// usageError is an error of the command line.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

// shown is the error of a command that printed its help because it had nothing to do.
var shown = errors.New("help was printed")

func run(args []string) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process whatever it is doing
	defer func() {
		if p := recover(); p != nil { // a bug of ours: exit code 3 and a way to report it, not 2 as the runtime has it
			fmt.Fprintf(os.Stderr, "train: internal error: %v\n%s", p, debug.Stack())
			code = check.ExitInternal
		}
	}()
	debug.SetGCPercent(25) // memory is mostly the weights: collecting often is cheap and keeps the peak low
	out := &stdout{File: os.Stdout}
	root := newRoot()
	root.SetArgs(withOverrides(root, args))
	root.SetOut(out)
	err := root.ExecuteContext(ctx)
	if out.err != nil && err == nil {
		err = fmt.Errorf("writing the output: %w", out.err)
	}
	if err == nil {
		return check.ExitPass
	}
	if !errors.Is(err, shown) {
		complain(err.Error())
	}
	return exitCode(err)
}

// complain prints a message on stderr, without the control characters that a name in a file may have.
func complain(msg string) {
	lines := strings.Split(msg, "\n")
	for i := range lines {
		lines[i] = report.Printable(lines[i])
	}
	fmt.Fprintf(os.Stderr, "train: %s\n", strings.Join(lines, "\n"))
}

// exitCode classifies an error that ended a run.
func exitCode(err error) int {
	var bad usageError
	var failed failedError
	var notFinite *train.NotFiniteError
	var prompt *pretrained.PromptError
	var coded interface{ ExitCode() int }
	switch {
	case errors.Is(err, context.Canceled):
		return check.ExitInterrupted
	case errors.As(err, &failed), errors.As(err, &notFinite):
		return check.ExitFail
	case errors.As(err, &coded):
		return coded.ExitCode()
	case format.IsMalformed(err):
		return check.ExitMalformed
	case errors.As(err, &bad), errors.As(err, &prompt), errors.Is(err, pretrained.ErrTemplate), errors.Is(err, shown), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG): // paths that cannot exist
		return check.ExitUsage
	}
	return check.ExitInternal
}

func newRoot() *cobra.Command {
	var list bool
	root := &cobra.Command{
		Use:   "train",
		Short: "runs language models on the float64 reference",
		Long: `train runs language models on the float64 reference.

Exit codes: 0 done; 1 a number is not finite, or a run fails its own checks (--verify); 2 usage, or a named path that does not exist; 3 internal error or environment; 4 malformed or refused
input file; 130 interrupted.`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return listConfigs(cmd.OutOrStdout())
			}
			if len(args) > 0 {
				names := []string{"completion", "help"}
				for _, c := range cmd.Commands() {
					names = append(names, c.Name())
				}
				return usageError{fmt.Sprintf("unknown command %q; did you mean %q? (train --help)", args[0], check.Nearest(args[0], names))}
			}
			return errors.Join(cmd.Help(), shown)
		},
	}
	root.Flags().BoolVar(&list, "list-configs", false, "list the embedded configurations")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{flagError(cmd, err)} })
	root.AddCommand(newSample(), newPPO(), newShielded(), newGRPO(), newSFT())
	return root
}

// flagError adds the nearest flag to the message about an unknown one.
func flagError(cmd *cobra.Command, err error) string {
	msg := err.Error()
	_, name, unknown := strings.Cut(msg, "unknown flag: --")
	if !unknown {
		return msg + " (" + cmd.CommandPath() + " --help)"
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return fmt.Sprintf("%s; did you mean --%s? (%s --help)", msg, check.Nearest(name, names), cmd.CommandPath())
}
