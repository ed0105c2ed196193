package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/golden"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
	"plumbline/verify/projection"
	"plumbline/verify/report"
)

// demoCase is one run of the demo and what it must find.
type demoCase struct {
	title string
	paths projection.Paths
	dump  string // a folder of dumps in place of paths
	plot  bool
	exit  int
	fault string // named by an explanation
	only  string // check of the projection; "" for all
}

var demoCases = []demoCase{
	{title: "dumps of a healthy run of TRL's GRPO", exit: check.ExitPass, dump: "dumps/clean"},
	{title: "the same with a bug patched in", exit: check.ExitFail, fault: "AGG-PAD-DENOMINATOR", dump: "dumps/pad_in_denominator"},
	{title: "a healthy basis, a gradient and its projection", exit: check.ExitPass, plot: true,
		paths: projection.Paths{Basis: "q.npy", Grads: []string{"g.npy"}, Projected: []string{"g_projected.npy"}}},
	{title: "a basis in which one column is scaled by 1.001", exit: check.ExitFail, fault: "BASIS-COLUMN-SCALED",
		paths: projection.Paths{Basis: "q_column_scaled.npy"}},
	{title: "a projection that does nothing", exit: check.ExitFail, fault: "H2", only: "projection/no-op",
		paths: projection.Paths{Basis: "q.npy", Grads: []string{"g.npy"}, Projected: []string{"g.npy"}}},
	{title: "an adapter trained by Adam on projected gradients", exit: check.ExitFail, fault: "H3a",
		paths: projection.Paths{Basis: "q.npy", Adapter: "lora_leak", Init: "lora_init"}},
	{title: "the same with the update projected", exit: check.ExitPass,
		paths: projection.Paths{Basis: "q.npy", Adapter: "lora_held", Init: "lora_init"}},
}

// demoProfile is the convention of the dumps.
const demoProfile = "trl-grpo@1.16"

func newDemo() *cobra.Command {
	var plot, keep string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "runs the main job on embedded data: healthy data pass, broken data are named, a picture is written",
		Long: `verify demo judges data that NumPy and TRL computed (golden/projection, golden/demo) and that are part of the program: a
healthy basis and projection, a broken basis, a projection that does nothing, two adapters, and the dumps of a healthy and of
a broken training run. Exit 0 if every finding is the expected one.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			if err := writable("--plot", plot); err != nil {
				return err
			}
			dir := keep
			if dir == "" {
				temp, err := os.MkdirTemp("", "plumbline-demo-")
				if err != nil {
					return err
				}
				defer os.RemoveAll(temp)
				dir = temp
			}
			if err := errors.Join(extract("projection", dir), extract("demo", filepath.Join(dir, "dumps"))); err != nil {
				return err
			}
			w := cli.Screen(cmd)
			defer w.Close()
			right := 0
			var summary []string
			for i, c := range demoCases {
				fmt.Fprintf(w, "── %d of %d: %s\n\n", i+1, len(demoCases), c.title)
				ok, err := runDemo(cmd, c, dir, plot, verbose)
				if err != nil {
					return err
				}
				found := "nothing failed"
				if c.fault != "" {
					found = c.fault
				}
				if ok {
					right++
					summary = append(summary, fmt.Sprintf("  %d  %s: %s", i+1, c.title, found))
				} else {
					summary = append(summary, fmt.Sprintf("  %d  %s: NOT AS EXPECTED, want exit %d %s", i+1, c.title, c.exit, c.fault))
					fmt.Fprintf(w, "NOT AS EXPECTED: want exit %d %s\n", c.exit, c.fault)
				}
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "── what was found\n\n%s\n\n", strings.Join(summary, "\n"))
			fmt.Fprintf(w, "demo: %d of %d as expected in %.1f s", right, len(demoCases), time.Since(started).Seconds())
			if plot != "" {
				fmt.Fprintf(w, "; the picture of the healthy projection is %s", plot)
			}
			fmt.Fprintln(w)
			if keep != "" {
				fmt.Fprintf(w, "the data are in %s; try: verify projection --basis %s, or verify dump %s --profile %s\n", keep, filepath.Join(keep, "q.npy"), filepath.Join(keep, "dumps", "pad_in_denominator"), demoProfile)
			}
			if right != len(demoCases) {
				return cli.Exit{Code: check.ExitFail}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&plot, "plot", "projection_viz.png", `the picture (.png, .svg or .html); "" for none`)
	cmd.Flags().StringVar(&keep, "keep", "", "write the embedded data to this folder and leave them there")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "every result, with all numbers")
	return cmd
}

func runDemo(cmd *cobra.Command, c demoCase, dir, plot string, verbose bool) (bool, error) {
	r := &report.Report{Command: "projection", Tool: report.Tool{Name: "verify", Version: cli.Version}}
	var err error
	if c.dump != "" {
		r.Command = "dump"
		err = demoDump(cmd, r, filepath.Join(dir, c.dump))
	} else {
		err = demoProjection(cmd, r, c, dir, plot)
	}
	if err != nil {
		return false, err
	}
	for i := range r.Inputs { // the temporary folder says nothing to the reader
		if rel, err := filepath.Rel(dir, r.Inputs[i].Path); err == nil {
			r.Inputs[i].Path = rel
		}
	}
	named := c.fault == ""
	clean := func(texts ...*string) {
		for _, t := range texts {
			*t = strings.ReplaceAll(*t, dir+string(filepath.Separator), "")
		}
	}
	for i := range r.Lines {
		clean(&r.Lines[i])
	}
	for i := range r.Results {
		res := &r.Results[i]
		clean(&res.Subject, &res.Where, &res.Reason)
		for _, e := range res.Explanations {
			named = named || res.Verdict == check.Fail && e.Fault == c.fault && !e.Lead
		}
	}
	if b := r.Brief; b != nil {
		clean(&b.Clean)
		for _, list := range [][]string{b.Head, b.Next} {
			for i := range list {
				clean(&list[i])
			}
		}
		for i := range b.Findings {
			clean(&b.Findings[i].Where, &b.Findings[i].Title, &b.Findings[i].Evidence)
		}
	}
	out, brief := cmd.OutOrStdout(), !verbose && c.dump == "" // with what passed it is more than a screen
	if err := r.Write(out, report.Options{Format: "human", Color: colored(cmd), Verbose: verbose, Quiet: brief, Details: brief, Width: cli.Columns(out), ASCII: cli.Terminal(out) && !utf8Locale()}); err != nil {
		return false, err
	}
	return r.Exit == c.exit && named, nil
}

func demoProjection(cmd *cobra.Command, r *report.Report, c demoCase, dir, plot string) error {
	paths := c.paths
	in := func(name *string) {
		if *name != "" {
			*name = filepath.Join(dir, *name)
		}
	}
	paths.Grads, paths.Projected = slices.Clone(paths.Grads), slices.Clone(paths.Projected)
	for _, p := range []*string{&paths.Basis, &paths.Adapter, &paths.Init} {
		in(p)
	}
	for _, list := range [][]string{paths.Grads, paths.Projected} {
		for i := range list {
			in(&list[i])
		}
	}
	if !c.plot {
		plot = ""
	}
	var out output
	if c.only != "" {
		out.sel.Select = []string{c.only}
	}
	return judgeFiles(cmd.Context(), cmd.ErrOrStderr(), paths, &out, r, func(*projection.Input) {}, func(in *projection.Input) error {
		return writeExtras(in, r, plot, "")
	})
}

func demoDump(cmd *cobra.Command, r *report.Report, folder string) error {
	run, err := dumpfile.Open(cmd.Context(), []string{folder})
	if err != nil {
		return err
	}
	return judgeRun(cmd.Context(), run, dump.Options{Profile: demoProfile}, nil, &output{}, r)
}

// extract writes the embedded golden folder to dir.
func extract(folder, dir string) error {
	return fs.WalkDir(golden.Data, folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(folder, filepath.FromSlash(name))
		if err != nil {
			return err
		}
		target := filepath.Join(dir, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o777)
		}
		data, err := golden.Data.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // a user's file is never replaced
		if errors.Is(err, fs.ErrExist) {
			return usageError{fmt.Sprintf("--keep: %s is there already", target)}
		}
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Close())
	})
}
