// Package cli is what the commands have in common: signals, output that must not be lost, messages and exit codes.
package cli

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

	"plumbline/verify/check"
	"plumbline/verify/report"
)

// Exit is the error of a command that has said all there is to say and ends with a code.
type Exit struct{ Code int }

func (e Exit) Error() string { return fmt.Sprintf("exit %d", e.Code) }

// ErrInterrupted is [context.Canceled] in words for the user.
var ErrInterrupted error = interrupted{}

type interrupted struct{}

func (interrupted) Error() string { return "interrupted" }
func (interrupted) Unwrap() error { return context.Canceled }

// output remembers the first error of a write: text that was lost must not end in exit code 0.
type output struct {
	*os.File
	err error
}

func (s *output) Write(p []byte) (int, error) {
	n, err := s.File.Write(p)
	if err != nil && s.err == nil {
		s.err = err
	}
	return n, err
}

// Run runs a command until it ends or is interrupted, and returns its exit code: that of an [Exit], or what exitCode says of
// another error, which is printed.
func Run(root *cobra.Command, args []string, exitCode func(error) int) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process whatever it is doing
	defer func() {
		if p := recover(); p != nil { // a bug of ours: exit code 3 and a way to report it, not 2 as the runtime has it
			fmt.Fprintf(os.Stderr, "%s: internal error: %v\n%s", root.Name(), p, debug.Stack())
			code = check.ExitInternal
		}
	}()
	pace()
	out := &output{File: os.Stdout}
	root.SetArgs(args)
	root.SetOut(out)
	err := root.ExecuteContext(ctx)
	var done Exit
	if out.err != nil && (err == nil || errors.As(err, &done)) {
		err = fmt.Errorf("writing the output: %w", out.err)
	}
	switch {
	case err == nil:
		return check.ExitPass
	case errors.As(err, &done):
		return done.Code
	}
	if errors.Is(err, context.Canceled) && !errors.Is(err, ErrInterrupted) {
		err = ErrInterrupted
	}
	Complain(root.Name(), err.Error())
	return exitCode(err)
}

// Complain prints a message on stderr, without the control characters that a name in a file may have. Further lines begin with a
// bar: a line that begins with "::" is a command to the runner of a workflow.
func Complain(name, msg string) {
	lines := strings.Split(msg, "\n")
	for i := range lines {
		lines[i] = report.Printable(lines[i])
	}
	w := report.NewWrapper(os.Stderr, Columns(os.Stderr))
	fmt.Fprintf(w, "%s: %s\n", name, strings.Join(lines, "\n  | "))
	w.Close()
}

// Is reports whether err is an error of type E, or wraps one.
func Is[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// NoSuchPath reports whether err says that a named path does not exist, or cannot.
func NoSuchPath(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

// UnknownCommand is the message about a command that root does not have.
func UnknownCommand(root *cobra.Command, name string) string {
	names := []string{"completion", "help"}
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	msg := fmt.Sprintf("unknown command %q", name)
	if near := check.Similar(name, names); near != "" {
		msg += fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Sprintf("%s (%s --help)", msg, root.Name())
}

// FlagError is the message about a flag, for one that is unknown with the nearest.
func FlagError(cmd *cobra.Command, err error) string {
	msg := err.Error()
	_, name, unknown := strings.Cut(msg, "unknown flag: --")
	if !unknown {
		return msg + " (" + cmd.CommandPath() + " --help)"
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	name, _, _ = strings.Cut(name, "=")
	if near := check.Similar(name, names); near != "" {
		msg += fmt.Sprintf("; did you mean --%s?", near)
	}
	return fmt.Sprintf("%s (%s --help)", msg, cmd.CommandPath())
}

// HelpCommand is help [COMMAND] of root. That of cobra answers a command that root does not have with success.
func HelpCommand(root *cobra.Command, usage func(msg string) error) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "prints the help of a command",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range root.Commands() {
				if len(args) == 0 && c.IsAvailableCommand() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(args) > 0 && cmd == root {
				return usage(UnknownCommand(root, args[0]))
			}
			if len(rest) > 0 {
				return usage(fmt.Sprintf("help takes one command, got %q too", rest[0]))
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// WithCompletion adds the command completion of cobra, made to refuse a shell that it does not know: that of cobra prints its help
// and succeeds. It comes after the other commands.
func WithCompletion(root *cobra.Command, usage func(msg string) error) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		var shells []string
		for _, shell := range c.Commands() {
			shells = append(shells, shell.Name())
		}
		want := fmt.Sprintf("want one of %s (%s --help)", strings.Join(shells, ", "), c.CommandPath())
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("completion takes the name of a shell; " + want)
			}
			return usage(fmt.Sprintf("unknown shell %q; %s", args[0], want))
		}
	}
}
