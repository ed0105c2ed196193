package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
const partialSchema = 2

// maxRecord bounds a line of a partial.
const maxRecord = 1 << 28

// partial is the head of what one shard writes. Its file is one JSON object of a line each for the head, every record and the end, so
// that neither who writes nor who reads it has all records in memory.
type partial struct {
	Schema  int         `json:"plumbline_partial"`
	Tool    report.Tool `json:"tool"`
	Build   string      `json:"build"` // of the program: sha256 of the executable
	Command string      `json:"command"`
	Args    []string    `json:"args"` // of the command, without flags of shards and of presentation
	Shard   int         `json:"shard"`
	Of      int         `json:"of"`
	Inputs  string      `json:"inputs"` // sha256 over names and sizes of all files of the run, and the text of configurations

	path string
	at   map[string][]span // of the records, by their keys
}

// span is bytes of a file.
type span struct {
	from int64
	n    int
}

const (
	recordsKey = `,"records":[`
	sumKey     = `],"sha256":"`
)

// write writes a partial; records calls put for each record.
func (p *partial) write(w io.Writer, records func(put func(record any) error) error) error {
	head, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%s%s\n", head[:len(head)-1], recordsKey); err != nil {
		return err
	}
	h, between := sha256.New(), ""
	err = records(func(record any) error {
		text, err := json.Marshal(record)
		if err != nil {
			return err
		}
		h.Write(text)
		_, err = fmt.Fprintf(w, "%s%s", between, text)
		between = ",\n"
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%s%x\"}\n", sumKey, h.Sum(nil))
	return err
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

// writePartial writes the partial of a shard to a file, a folder or, for "", stdout.
func writePartial(cmd *cobra.Command, args []string, s shard, inputs, file string, records func(put func(record any) error) error) error {
	p := partial{Schema: partialSchema, Tool: report.Tool{Name: "verify", Version: cli.Version}, Command: cmd.Name(), Args: judgingArgs(cmd, args), Shard: s.i, Of: s.n, Inputs: inputs}
	var err error
	if p.Build, err = build(); err != nil {
		return err
	}
	if info, serr := os.Stat(file); serr == nil && info.IsDir() {
		file = filepath.Join(file, fmt.Sprintf("shard-%d-of-%d.json", s.i, s.n))
	}
	if file == "" {
		return p.write(cmd.OutOrStdout(), records)
	}
	return format.WriteFile(file, func(w io.Writer) error { return p.write(w, records) })
}

// readPartial reads what a shard wrote: the head, and where its records lie. It looks at each record.
func readPartial(path string) (*partial, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	var offset int64
	var line []byte
	next := func() error {
		line = line[:0]
		for {
			part, err := in.ReadSlice('\n')
			if line = append(line, part...); len(line) > maxRecord {
				return format.Malformed(path, format.Offset(offset), "has a line of more than %d bytes", maxRecord)
			}
			if err == nil || err == io.EOF && len(line) > 0 {
				return nil
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return err
			}
		}
	}
	none := func(err error) error { return format.Malformed(path, "", "is no partial of a shard: %v", err) }
	if err := next(); err != nil {
		return nil, none(err)
	}
	var schema struct {
		Schema int `json:"plumbline_partial"`
	}
	p := &partial{path: path, at: map[string][]span{}}
	head, ours := bytes.CutSuffix(bytes.TrimSpace(line), []byte(recordsKey))
	if ours {
		head = append(slices.Clone(head), '}')
	}
	if err := json.Unmarshal(head, &schema); err != nil {
		return nil, none(err)
	}
	if schema.Schema != partialSchema {
		return nil, format.Malformed(path, `key "plumbline_partial"`, "is %d, this program reads %d", schema.Schema, partialSchema)
	}
	if err := strictly(head, p); err != nil {
		return nil, none(err)
	}
	h := sha256.New()
	for {
		offset += int64(len(line))
		if err := next(); err != nil {
			return nil, format.Malformed(path, format.Offset(offset), "ends before its sum: the file is damaged")
		}
		if sum, end := bytes.CutPrefix(line, []byte(sumKey)); end {
			if string(bytes.TrimSpace(sum)) != fmt.Sprintf("%x\"}", h.Sum(nil)) {
				return nil, format.Malformed(path, `key "sha256"`, "is not the sum of its records: the file is damaged")
			}
			if offset+int64(len(line)) != f.Size {
				return nil, format.Malformed(path, "", "has more behind the partial")
			}
			return p, nil
		}
		text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte(","))
		if len(text) == 0 { // there is no record
			continue
		}
		var record struct {
			Key string `json:"key"`
		}
		if err := json.Unmarshal(text, &record); err != nil {
			return nil, format.Malformed(path, format.Offset(offset), "is no record: the file is damaged: %v", err)
		}
		h.Write(text)
		p.at[record.Key] = append(p.at[record.Key], span{offset, len(text)})
	}
}

// strictly reads JSON without names that nobody knows.
func strictly(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// records reads the records of a key again, each by read.
func (p *partial) records(key string, read func(text []byte) error) error {
	at := p.at[key]
	if len(at) == 0 {
		return nil
	}
	f, err := format.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, s := range at {
		text := make([]byte, s.n)
		if _, err = f.ReadAt(text, s.from); err == nil {
			err = read(text)
		}
		if err != nil {
			return format.Malformed(p.path, format.Offset(s.from), "was a record and is none now: %v", err)
		}
	}
	return nil
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
