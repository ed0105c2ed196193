package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/dump"
	"plumbline/verify/report"
)

// partialSchema is the version of the form of a partial.
const partialSchema = 1

// maxPartial bounds the size of a partial that is read.
const maxPartial = 1 << 30

// partial is what one shard of a run writes.
type partial struct {
	Schema  int         `json:"plumbline_partial"`
	Tool    report.Tool `json:"tool"`
	Build   string      `json:"build"` // of the program: sha256 of the executable
	Command string      `json:"command"`
	Args    []string    `json:"args"` // of the command, without flags of shards and of presentation
	Shard   int         `json:"shard"`
	Of      int         `json:"of"`
	Inputs  string      `json:"inputs"` // sha256 over names and sizes of all files of the run, and the text of configurations
	Sum     string      `json:"sha256"` // of the notes
	Notes   dump.Notes  `json:"notes"`

	path string
}

// shard is the part of a run that a process judges.
type shard struct{ i, n int }

// parseShard reads I/N. An I that is "auto" comes from the engine that started the process, and so does an N that is left out.
func parseShard(text string, env func(string) string) (s shard, err error) {
	bad := usageError{fmt.Sprintf("--shard %q: want I/N with 0 ≤ I < N, or auto/N under a Kubernetes Indexed Job or a Slurm array, or auto under the latter", text)}
	index, count, given := strings.Cut(text, "/")
	if index == "auto" {
		for _, e := range []struct{ index, first, count string }{{"JOB_COMPLETION_INDEX", "", ""}, {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"}} {
			if index = env(e.index); index == "" {
				continue
			}
			if first, err := strconv.Atoi(env(e.first)); err == nil && e.first != "" {
				if i, err := strconv.Atoi(index); err == nil {
					index = strconv.Itoa(i - first)
				}
			}
			if !given {
				count = env(e.count)
			}
			break
		}
		if index == "" {
			return s, usageError{fmt.Sprintf("--shard %s: neither JOB_COMPLETION_INDEX nor SLURM_ARRAY_TASK_ID is set", text)}
		}
	}
	if s.i, err = strconv.Atoi(index); err != nil {
		return s, bad
	}
	if s.n, err = strconv.Atoi(count); err != nil || s.i < 0 || s.i >= s.n || s.n > 100_000 {
		return s, bad
	}
	return s, nil
}

// build names the executable by its bytes.
func build() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return runtime.GOARCH + " " + hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// judgingArgs are the arguments of a command that decide what it finds.
func judgingArgs(cmd *cobra.Command, args []string) []string {
	told := []string{"shard", "output", "format", "verbose", "quiet", "color", "baseline"}
	list := slices.Clone(args)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(told, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if v, ok := f.Value.(pflag.SliceValue); ok {
			values = v.GetSlice()
		}
		for _, v := range values {
			list = append(list, "--"+f.Name+"="+v)
		}
	})
	return list
}

// inputsOf names the files of a run and the configurations that go with it.
func inputsOf(run *dumpfile.Run, configs []string) (string, error) {
	h := sha256.New()
	for _, f := range run.Files() {
		fmt.Fprintf(h, "%q %d %d %d %d\n", f.Path, f.Size, f.Step, f.Rank, f.MicroBatch)
	}
	for _, path := range configs {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %x\n", path, sha256.Sum256(text))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// writeShard judges the steps of one shard and writes its partial. A malformed file ends it, after what it found before.
func writeShard(cmd *cobra.Command, run *dumpfile.Run, o dump.Options, s shard, args, configs []string, file string) error {
	p := partial{Schema: partialSchema, Tool: report.Tool{Name: "verify", Version: cli.Version}, Command: cmd.Name(), Args: judgingArgs(cmd, args), Shard: s.i, Of: s.n}
	var err error
	if p.Build, err = build(); err != nil {
		return err
	}
	if p.Inputs, err = inputsOf(run, configs); err != nil {
		return err
	}
	notes, bad := interruptible(cmd.Context(), func() (*dump.Notes, error) { return dump.Shard(cmd.Context(), run, o, s.i, s.n) })
	if notes == nil {
		return bad
	}
	for _, n := range notes.Steps {
		for _, f := range run.Of(n.Step) {
			sum, err := f.SHA256(cmd.Context())
			if err != nil {
				return err
			}
			n.Files = append(n.Files, sum)
		}
	}
	p.Notes = *notes
	if p.Sum, err = notesSum(&p.Notes); err != nil {
		return err
	}
	write := func(w io.Writer) error { return json.NewEncoder(w).Encode(&p) }
	if info, serr := os.Stat(file); serr == nil && info.IsDir() {
		file = filepath.Join(file, fmt.Sprintf("shard-%d-of-%d.json", s.i, s.n))
	}
	if file == "" {
		err = write(cmd.OutOrStdout())
	} else {
		err = format.WriteFile(file, write)
	}
	if err != nil {
		return err
	}
	return bad
}

func notesSum(n *dump.Notes) (string, error) {
	text, err := json.Marshal(n)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// readPartial reads what a shard wrote.
func readPartial(path string) (*partial, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := f.ReadAll(maxPartial)
	if err != nil {
		return nil, err
	}
	p := &partial{path: path}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return nil, format.Malformed(path, "", "is no partial of a shard: %v", err)
	}
	if p.Schema != partialSchema {
		return nil, format.Malformed(path, `key "plumbline_partial"`, "is %d, this program reads %d", p.Schema, partialSchema)
	}
	if dec.More() {
		return nil, format.Malformed(path, "", "has more behind the partial")
	}
	if sum, err := notesSum(&p.Notes); err != nil || sum != p.Sum {
		return nil, format.Malformed(path, `key "sha256"`, "is not the sum of its notes: the file is damaged")
	}
	return p, nil
}

// belong demands that partials are those of all shards of one run, by this program.
func belong(list []*partial) error {
	first := list[0]
	mine, err := build()
	if err != nil {
		return err
	}
	have := map[int]string{}
	for _, p := range list {
		switch {
		case p.Tool.Version != cli.Version || p.Build != mine:
			return usageError{fmt.Sprintf("%s was written by verify %s, build %s; this is verify %s, build %s: merge with the program that judged", p.path, p.Tool.Version, p.Build, cli.Version, mine)}
		case p.Command != first.Command || !slices.Equal(p.Args, first.Args):
			return usageError{fmt.Sprintf("%s is of verify %s %s, and %s of verify %s %s", p.path, p.Command, strings.Join(p.Args, " "), first.path, first.Command, strings.Join(first.Args, " "))}
		case p.Inputs != first.Inputs:
			return usageError{fmt.Sprintf("%s and %s are of different inputs: the files of the run were not the same", p.path, first.path)}
		case p.Of != first.Of:
			return usageError{fmt.Sprintf("%s is of %d shards, and %s of %d", p.path, p.Of, first.path, first.Of)}
		case p.Shard < 0 || p.Shard >= p.Of:
			return format.Malformed(p.path, `key "shard"`, "is %d of %d", p.Shard, p.Of)
		case have[p.Shard] != "":
			return usageError{fmt.Sprintf("shard %d of %d is there twice: %s and %s", p.Shard, p.Of, have[p.Shard], p.path)}
		}
		have[p.Shard] = p.path
	}
	for i := range first.Of {
		if have[i] == "" {
			return usageError{fmt.Sprintf("shard %d of %d is missing", i, first.Of)}
		}
	}
	return nil
}

// merging is the key of the partials that a command makes its report of.
type merging struct{}

func newMerge() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "merge PARTIAL...",
		Short: "makes of the partials of all shards the report of one process",
		Long: `verify merge reads what verify dump --shard I/N wrote for every I, and gives the report that verify dump without --shard gives, with its
exit code. It runs in the folder in which the shards ran: it opens the files of the run, reads those steps again that the partials do
not settle (the first ones, the one with the largest error of each check, what is to be explained), one at a time, and looks whether
these are as they were.

A shard that is missing or there twice, and partials of different programs, options or files, are refused (exit 2), a damaged partial
or a file of the run that has changed since (exit 4).`,
		Example: `  verify dump run/ --shard 0/2 -o part-0.json
  verify dump run/ --shard 1/2 -o part-1.json
  verify merge part-0.json part-1.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{"merge takes the partials of all shards (verify merge --help)"}
			}
			var list []*partial
			for _, path := range args {
				p, err := readPartial(path)
				if err != nil {
					return err
				}
				list = append(list, p)
			}
			if err := belong(list); err != nil {
				return err
			}
			if list[0].Command != "dump" {
				return format.Malformed(list[0].path, `key "command"`, "is %q, want dump", list[0].Command)
			}
			again := append([]string{list[0].Command}, list[0].Args...)
			again = append(again, "--format="+out.format, "--output="+out.file, "--baseline="+out.baseline, fmt.Sprintf("--verbose=%t", out.verbose), fmt.Sprintf("--quiet=%t", out.quiet))
			root := newRoot()
			root.SetArgs(again)
			root.SetIn(cmd.InOrStdin())
			root.SetOut(cmd.OutOrStdout())
			root.SetErr(cmd.ErrOrStderr())
			return root.ExecuteContext(context.WithValue(cmd.Context(), merging{}, list))
		},
	}
	f := cmd.Flags()
	f.StringVar(&out.format, "format", "human", "form of the report: "+strings.Join(report.Formats, ", "))
	f.StringVarP(&out.file, "output", "o", "", "write the report to this file, whole or not at all, in place of stdout (-)")
	f.StringVar(&out.baseline, "baseline", "", "a JSON report of an earlier run: verdicts that changed since are listed")
	f.BoolVarP(&out.verbose, "verbose", "v", false, "every result, with all numbers")
	f.BoolVarP(&out.quiet, "quiet", "q", false, "only what did not pass")
	return cmd
}

// judged is a run of which shards have judged the steps: what is read again must be what they read.
type judged struct {
	*dumpfile.Run
	sums map[int][]string
}

// Batch reads a step whose files have not changed.
func (j *judged) Batch(ctx context.Context, step int) (*dumpfile.Batch, error) {
	if sums, known := j.sums[step]; known {
		for i, f := range j.Run.Of(step) {
			sum, err := f.SHA256(ctx)
			if err != nil {
				return nil, err
			}
			if i >= len(sums) || sums[i] != sum {
				return nil, format.Malformed(f.Path, "", "has changed since a shard judged it")
			}
		}
	}
	return j.Run.Batch(ctx, step)
}

// mergeRun judges a run by the notes of its shards.
func mergeRun(ctx context.Context, run *dumpfile.Run, o dump.Options, list []*partial, configs []string) (*dump.Report, error) {
	inputs, err := inputsOf(run, configs)
	if err != nil {
		return nil, err
	}
	if inputs != list[0].Inputs {
		return nil, format.Malformed(list[0].path, `key "inputs"`, "is of other files than %s: the run has changed since, or this is another folder", filepath.Dir(run.Files()[0].Path))
	}
	j := &judged{run, map[int][]string{}}
	var notes []*dump.Notes
	for _, p := range list {
		notes = append(notes, &p.Notes)
		for _, n := range p.Notes.Steps {
			j.sums[n.Step] = n.Files
		}
	}
	return dump.Merge(ctx, j, o, notes...)
}
