package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
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

// forShard reads --shard and returns where the partial goes: -o, which may be a folder.
func (o *output) forShard(text string) (s shard, to string, err error) {
	if text == "" {
		return s, o.file, nil
	}
	if s, err = parseShard(text, os.Getenv); err != nil {
		return s, "", err
	}
	if o.format != "human" || o.baseline != "" {
		return s, "", usageError{"--shard writes a partial: --format and --baseline go with verify merge"}
	}
	to = o.file
	if strings.HasSuffix(to, "/") {
		if err := os.MkdirAll(to, 0o777); err != nil {
			return s, "", err
		}
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		o.file = "" // a folder takes the partials of all shards
	}
	return s, to, nil
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
	return withConfigs(h, configs)
}

// withConfigs adds the paths and texts of configurations to a digest and returns it.
func withConfigs(h hash.Hash, configs []string) (string, error) {
	for _, path := range configs {
		text, err := readConfigText(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %x\n", path, sha256.Sum256(text))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// writeShard judges the steps of one shard and writes its partial. A malformed file ends it, after what it found before.
func writeShard(cmd *cobra.Command, run *dumpfile.Run, o dump.Options, s shard, args, configs []string, file string) error {
	inputs, err := inputsOf(run, configs)
	if err != nil {
		return err
	}
	var bad *format.Error
	err = writePartial(cmd, args, s, inputs, file, func(put func(any) error) error {
		_, err := interruptible(cmd.Context(), func() (struct{}, error) {
			var err error
			bad, err = dump.Shard(cmd.Context(), run, o, s.i, s.n, func(r dump.Record) error {
				if r.Step != nil {
					for _, f := range run.Of(r.Step.Step) {
						sum, err := f.SHA256(cmd.Context())
						if err != nil {
							return err
						}
						r.Step.Files = append(r.Step.Files, sum)
					}
				}
				return put(r)
			})
			return struct{}{}, err
		})
		return err
	})
	if err == nil && bad != nil {
		return bad
	}
	return err
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
			what := "the files of the run were not the same"
			if p.Command == "ops" {
				what = "the machines have other features, or VERIFY_REQUIRE was another"
			}
			return usageError{fmt.Sprintf("%s and %s are of different inputs: %s", p.path, first.path, what)}
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

// shardables are the commands that have --shard.
var shardables = []string{"dump", "checkpoint", "log", "ops"}

// shardable returns one of them, nil for another name.
func shardable(root *cobra.Command, name string) *cobra.Command {
	for _, c := range root.Commands() {
		if c.Name() == name && slices.Contains(shardables, name) {
			return c
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
		Long: `verify merge reads what verify dump, checkpoint, log or ops wrote with --shard I/N for every I, and gives the report that the command
without --shard gives, with its exit code. It runs in the folder in which the shards ran: it opens the files of a run, reads those
steps again that the partials do not settle (the first ones, the one with the largest error of each check, what is to be explained), one at a
time, and looks whether these are as they were. Logs are not read again, and no op is run again.

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
			root := newRoot()
			one := shardable(root, list[0].Command)
			if one == nil {
				return format.Malformed(list[0].path, `key "command"`, "is %q, want one of %s", list[0].Command, strings.Join(shardables, ", "))
			}
			again := append([]string{list[0].Command}, list[0].Args...)
			for _, f := range [][2]string{{"format", out.format}, {"output", out.file}, {"baseline", out.baseline}, {"verbose", strconv.FormatBool(out.verbose)}, {"quiet", strconv.FormatBool(out.quiet)}} {
				if one.Flag(f[0]) != nil {
					again = append(again, "--"+f[0]+"="+f[1])
				} else if cmd.Flags().Changed(f[0]) {
					return usageError{fmt.Sprintf("verify %s has no --%s", list[0].Command, f[0])}
				}
			}
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

// shardNotes are the notes of all shards.
type shardNotes []*partial

// Records implements [dump.Notes].
func (list shardNotes) Records(key string) (found []dump.Record, err error) {
	for _, p := range list {
		err := p.records(key, func(text []byte) error {
			var r dump.Record
			err := strictly(text, &r)
			if err == nil && r.Key != key {
				err = fmt.Errorf("its key is %q, want %q", r.Key, key)
			}
			found = append(found, r)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// judged is a run of which shards have judged the steps: what is read again must be what they read.
type judged struct {
	*dumpfile.Run
	notes shardNotes
}

// Batch reads a step whose files have not changed.
func (j *judged) Batch(ctx context.Context, step int) (*dumpfile.Batch, error) {
	known, err := j.notes.Records(dump.StepKey(step))
	if err != nil {
		return nil, err
	}
	if len(known) > 0 && known[0].Step != nil {
		sums := known[0].Step.Files
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
	return dump.Merge(ctx, &judged{run, list}, o, shardNotes(list))
}
