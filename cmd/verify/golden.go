package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/golden"
	"plumbline/verify/report"
)

func newGolden() *cobra.Command {
	var out output
	var dir, entry string
	cmd := &cobra.Command{
		Use:   "golden [--dir DIR]",
		Short: "judges the reference by what released frameworks returned for the same inputs",
		Long: `verify golden recomputes recorded calls of TRL, verl, OpenRLHF, Liger, bitsandbytes, PEFT, transformers and PyTorch with
the reference, each under its function and options, and compares every number: to 1e-12 relative, and beyond only by a
float32 leak of the framework, which is named; whole models to 1e-10. Without --dir the set that is part of the program is
judged.

--dir names a folder of the same layout: SECTION.json with SECTION.safetensors, models with golden.json, and MANIFEST.json
with the sha256 of every file. What the reference does not know is UNDETERMINED and listed.`,
		Example: `  verify golden
  verify golden --dir golden_inputs
  verify golden --select golden/gae --entry gae/0012
  verify golden --entry 'PPOTrainer*' -v`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			if err := out.validate(names(golden.Suite.Infos())); err != nil {
				return err
			}
			if cmd.Flags().Changed("dir") && dir == "" {
				return usageError{"--dir: want a folder"}
			}
			r := &report.Report{Command: "golden", Repeat: repeatCommand(cmd)}
			if entry != "" { // every result names the entries that it is about
				r.Repeat = strings.Replace(r.Repeat, " --entry "+format.ShellQuote(entry), "", 1)
			}
			return out.conclude(cmd, r, started, judgeGolden(cmd.Context(), dir, entry, &out, r))
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "a folder of goldens, in place of the set in the program")
	f.StringVar(&entry, "entry", "", "only entries with this id, case, function or peer, or a glob of one")
	out.register(cmd)
	return cmd
}

// judgeGolden reads the set, judges it and fills r.
func judgeGolden(ctx context.Context, dir, entry string, out *output, r *report.Report) error {
	set, err := interruptible(ctx, func() (*golden.Set, error) {
		if dir == "" {
			return golden.Embedded(ctx)
		}
		return golden.Open(ctx, dir)
	})
	if err != nil {
		return err
	}
	defer set.Close()
	set.Pattern = entry
	if dir != "" {
		if err := overInput("--output", out.file, set.Paths()); err != nil {
			return err
		}
	}
	if entry != "" && set.Selected() == 0 {
		return usageError{fmt.Sprintf("--entry %q matches no id, case, function or peer; did you mean %q?", entry, check.Nearest(entry, set.IDs()))}
	}
	for _, f := range set.Files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		if dir == "" { // the manifests stand for all files of the set in the program
			if path = "golden/" + f.Name; !slices.Contains(set.Manifest.Files, f.Name) {
				continue
			}
		}
		if f.SHA256 == "" {
			continue // not read
		}
		r.Inputs = append(r.Inputs, report.Input{Role: "golden", Path: path, Size: f.Size, SHA256: f.SHA256, What: set.What(f.Name)})
	}

	r.Results, err = interruptible(ctx, func() ([]check.Result, error) { return golden.Suite.Run(set, out.sel) })
	r.Exit = check.Exit(r.Results, out.policy())
	if err != nil {
		return err
	}
	r.Lines = append(r.Lines, golden.Summary(r.Results))
	return set.Malformed()
}
