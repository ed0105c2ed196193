package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/report"
)

// output is the flags that every command with a report has.
type output struct {
	format, file   string
	failOn         string
	baseline       string
	verbose, quiet bool
	strict         bool
	declared       bool // options were: CONVENTION contradicts them
	sel            check.Selection
}

func (o *output) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.format, "format", "human", "form of the report: "+strings.Join(report.Formats, ", "))
	f.StringVarP(&o.file, "output", "o", "", "write the report to this file, whole or not at all, in place of stdout (-)")
	listVar(f, &o.sel.Select, "select", "only checks with these ids (a group such as basis, or a glob; see verify list)")
	listVar(f, &o.sel.Ignore, "ignore", "not the checks with these ids")
	listVar(f, &o.sel.Require, "require", "checks that must be decided: exit 6 if one is not")
	f.StringVar(&o.failOn, "fail-on", "fail", "what counts as a failure: fail, or warn for warnings too")
	f.BoolVar(&o.strict, "strict", false, "what could not be seen counts as undetermined (exit 6)")
	f.StringVar(&o.baseline, "baseline", "", "a JSON report of an earlier run: its findings are marked as known and change no exit code, verdicts that changed are listed")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "every result, with all numbers")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "only what did not pass")
}

// validate looks at the flags before anything is read.
func (o *output) validate(ids []string) error {
	if !slices.Contains(report.Formats, o.format) {
		return usageError{fmt.Sprintf("--format %q: want one of %s%s", o.format, strings.Join(report.Formats, ", "), near(o.format, report.Formats))}
	}
	if o.failOn != "fail" && o.failOn != "warn" {
		return usageError{fmt.Sprintf("--fail-on %q: want fail or warn%s", o.failOn, near(o.failOn, []string{"fail", "warn"}))}
	}
	if o.file == "-" { // as no file is
		o.file = ""
	}
	if err := o.sel.Validate(ids); err != nil {
		return usageError{err.Error()}
	}
	return writable("--output", o.file)
}

// writable refuses an output path in a folder that does not exist, before the work is done.
func writable(flag, path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return usageError{fmt.Sprintf("%s %s: is a directory", flag, path)}
	}
	if target, err := filepath.EvalSymlinks(path); err == nil { // /dev/stdout and /dev/fd/N, which may be pipes, lead nowhere
		if info, err := os.Lstat(target); err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
			return usageError{fmt.Sprintf("%s %s: is a FIFO or a socket, whose reader would be waited for: name a file, or write to stdout and pipe it", flag, path)}
		}
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return usageError{fmt.Sprintf("%s %s: there is no folder %s", flag, path, filepath.Dir(path))}
	}
	return nil
}

// overInput refuses an output that is one of the inputs.
func overInput(flag, path string, inputs []string) error {
	info, err := os.Stat(path)
	if path == "" || err != nil {
		return nil
	}
	for _, in := range inputs {
		if other, err := os.Stat(in); err == nil && os.SameFile(info, other) {
			return usageError{fmt.Sprintf("%s %s: is an input of this run", flag, path)}
		}
	}
	return nil
}

func (o *output) policy() check.Policy {
	return check.Policy{FailOnWarn: o.failOn == "warn", Strict: o.strict, Declared: o.declared}
}

// conclude reports a run that ended with err, nil at its end. A report in a file is not replaced by that of a run that was interrupted.
func (o *output) conclude(cmd *cobra.Command, r *report.Report, started time.Time, err error) error {
	if errors.Is(err, context.Canceled) {
		err = cli.ErrInterrupted
		if o.file != "" {
			return err
		}
	}
	if err != nil {
		r.Err = err.Error()
		r.Exit = check.Worse(exitCode(err), check.Exit(failuresOnly(r.Results), o.policy()))
		if o.format == "human" && len(r.Results) == 0 {
			return err
		}
	}
	return o.emit(cmd, r, started)
}

// emit writes the report to stdout or to the file asked for, and returns the exit code as an error.
func (o *output) emit(cmd *cobra.Command, r *report.Report, started time.Time) error {
	r.Tool = report.Tool{Name: "verify", Version: cli.Version}
	r.Run = report.Run{Started: started.UTC().Format(time.RFC3339), Seconds: time.Since(started).Seconds(),
		Machine: report.Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}}
	if o.baseline != "" && r.Err == "" { // of a run that ended early every later result would be gone
		all := check.Exit(r.Results, o.policy())
		changes, err := report.Changes(o.baseline, r)
		if r.Exit == all { // else something other than a finding decides
			r.Exit = check.Exit(r.Results, o.policy())
		}
		if err != nil {
			r.Err, r.Exit = err.Error(), check.Worse(exitCode(err), r.Exit)
		}
		r.Lines = append(r.Lines, changes...)
	}
	stdout := cmd.OutOrStdout()
	opt := report.Options{Format: o.format, Verbose: o.verbose, Quiet: o.quiet, Color: o.file == "" && colored(cmd), Width: cli.Columns(stdout), ASCII: o.file == "" && cli.Terminal(stdout) && !utf8Locale()}
	write := func(w io.Writer) error { return r.Write(w, opt) }
	var err error
	if o.file != "" {
		err = format.WriteFile(o.file, write)
	} else {
		err = write(stdout)
	}
	if err != nil {
		return err
	}
	onGitHub(cmd.ErrOrStderr(), r)
	if r.Exit != check.ExitPass {
		return cli.Exit{Code: r.Exit}
	}
	return nil
}

// progress returns a function that shows how far a long pass is: a line that is rewritten on a terminal, a plain line
// every 10 seconds elsewhere. A pass of less than a second shows nothing. What is counted is called what.
func progress(w io.Writer, quiet bool, what string) (show func(pass string, done, total int), end func()) {
	if quiet {
		return nil, func() {}
	}
	live := cli.Terminal(w) && os.Getenv("TERM") != "dumb"
	started := time.Now()
	last, drawn := started, false
	show = func(pass string, done, total int) {
		now := time.Now()
		every := 10 * time.Second
		if live {
			every = 200 * time.Millisecond
		}
		if now.Sub(started) < time.Second || now.Sub(last) < every {
			return
		}
		last = now
		line := fmt.Sprintf("%s: %d of %d %s (%.0f %%)", pass, done, total, what, 100*float64(done)/float64(total))
		if live {
			drawn = true
			fmt.Fprintf(w, "\r\x1b[K%s", line)
		} else {
			fmt.Fprintln(w, line)
		}
	}
	end = func() {
		if drawn {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
	return show, end
}
