package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/internal/train"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// bindDumps adds the flags of trainers that write dumps.
func (f *trainFlags) bindDumps(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.verify, "verify", false, "run verify dump on every update while training; what fails stops the run with exit code 1")
	cmd.Flags().StringVar(&f.dump, "dump", "", "write the numbers of every update into this folder (dump.dir=DIR dump.every=1)")
}

// dumps puts the flags into the configuration. Files that pass are kept where some are asked for.
func (f *trainFlags) dumps(d *train.Dump) {
	f.keep = f.dump != "" || d.Every > 0
	if f.dump != "" {
		d.Dir = f.dump
	}
	f.dump = d.Dir
	if d.Every == 0 && f.keep || f.verify {
		d.Every = 1
	}
}

// foreignDumps refuses a folder for dumps that holds some while the folder of the run is a new one: those of two runs would be judged
// as one.
func (f *trainFlags) foreignDumps(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "effective_config.yaml")); f.dump == "" || f.resume != "auto" && f.resume != "never" || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	entries, err := os.ReadDir(f.dump)
	if err != nil {
		return nil // there is none: it is made
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "step_") && filepath.Ext(e.Name()) == ".safetensors" {
			return usageError{fmt.Sprintf("--dump %s: holds the dumps of another run (%s): name another folder, or take them away", f.dump, e.Name())}
		}
	}
	return nil
}

// failedError says that a run did not pass its own checks.
type failedError struct{ msg string }

func (e failedError) Error() string { return e.msg }

// observer judges the files of an update as verify dump does, those of the first with the checks of a first step: the ratio is 1,
// KL is 0, nothing is clipped, there is a gradient.
func observer(ctx context.Context, keep bool) func(update int, files []string) error {
	ctx = context.WithoutCancel(ctx) // a run that is interrupted ends its step
	return func(update int, files []string) error {
		results, err := dump.CheckFiles(ctx, dump.Options{FirstStep: update == 1}, files...)
		if err != nil {
			return fmt.Errorf("update %d: %w", update, err)
		}
		switch check.Exit(results, check.Policy{Declared: true}) {
		case check.ExitFail:
			return failedError{fmt.Sprintf("update %d fails its own checks:\n%s\nthe files stay: verify dump %s%s", update, failures(results), filepath.Dir(files[0]),
				map[bool]string{true: " --first-step"}[update == 1])}
		case check.ExitNothing:
			return failedError{fmt.Sprintf("update %d: nothing of %s could be checked", update, strings.Join(files, " "))}
		}
		if keep {
			return nil
		}
		for _, name := range files {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	}
}

// failures returns a line for each check that failed: its id, the file, what is wrong, and the bug that would explain it.
func failures(results []check.Result) string {
	var lines []string
	for _, r := range results {
		if r.Verdict != check.Fail && r.Verdict != check.Convention {
			continue
		}
		line := fmt.Sprintf("  %v %s %s: %s", r.Verdict, r.Check, r.Subject, r.Reason)
		if r.Where != "" {
			line += " (" + r.Where + ")"
		}
		for _, e := range r.Explanations {
			line += fmt.Sprintf("; fits %s %s", e.Fault, e.Title)
			break
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
