// Command verify says whether reinforcement-learning fine-tuning code computes what it claims to.
//
// Exit codes: 0 nothing failed, 1 a check failed, 2 usage or a path that does not exist, 3 internal or environment,
// 4 malformed or refused file, 5 nothing was checked, 6 undetermined, 130 interrupted.
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
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/dump"
	"plumbline/verify/projection"
	"plumbline/verify/report"
	"plumbline/verify/vram"
)

func main() { os.Exit(run(os.Args[1:])) }

// stdout remembers the first error of a write: a report that was lost must not end in exit code 0.
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

// exitError carries the exit code of a command that has reported already.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// usageError is an error of the command line.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

func run(args []string) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process whatever it is doing
	defer func() {
		if p := recover(); p != nil { // a bug of ours: exit code 3 and a way to report it, not 2 as the runtime has it
			fmt.Fprintf(os.Stderr, "verify: internal error: %v\n%s", p, debug.Stack())
			code = check.ExitInternal
		}
	}()
	debug.SetGCPercent(25) // memory is mostly a few large arrays: collecting often is cheap and keeps the peak low
	out := &stdout{File: os.Stdout}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	err := root.ExecuteContext(ctx)
	if out.err != nil && (err == nil || errors.As(err, new(exitError))) {
		err = fmt.Errorf("writing the report: %w", out.err)
	}
	var done exitError
	switch {
	case err == nil:
		return check.ExitPass
	case errors.As(err, &done):
		return done.code
	}
	code = exitCode(err)
	var lines []string
	for _, l := range strings.Split(err.Error(), "\n") {
		lines = append(lines, report.Printable(l))
	}
	fmt.Fprintf(os.Stderr, "verify: %s\n", strings.Join(lines, "\n"))
	return code
}

// exitCode classifies an error that ended a run.
func exitCode(err error) int {
	var bad usageError
	var names *projection.UsageError
	var declared *dump.UsageError
	var folders *checkpoint.UsageError
	var setup *vram.UsageError
	switch {
	case errors.Is(err, context.Canceled):
		return check.ExitInterrupted
	case format.IsMalformed(err):
		return check.ExitMalformed
	case errors.Is(err, dumpfile.ErrNothing):
		return check.ExitNothing
	case errors.As(err, &bad), errors.As(err, &names), errors.As(err, &declared), errors.As(err, &folders), errors.As(err, &setup), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG): // paths that cannot exist
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
				return usageError{fmt.Sprintf("unknown command %q; did you mean %q? (verify --help)", args[0], check.Nearest(args[0], commandNames(cmd)))}
			case version:
				return printVersion(cmd.OutOrStdout(), asJSON)
			}
			return errors.Join(cmd.Help(), exitError{check.ExitUsage})
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.Flags().BoolVar(&asJSON, "json", false, "with --version: as JSON")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{flagError(cmd, err)}
	})
	root.AddCommand(newProjection(), newDump(), newCheckpoint(), newVRAM(), newDemo(), newList(), newExplain(), newFaults(), newProfiles(), newGolden(), newExport())
	return root
}

func commandNames(root *cobra.Command) []string {
	names := []string{"completion", "help"}
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return names
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
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return fmt.Sprintf("%s; did you mean --%s? (%s --help)", msg, check.Nearest(name, names), cmd.CommandPath())
}
