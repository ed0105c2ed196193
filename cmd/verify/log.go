package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/report"
	"plumbline/verify/runlog"
)

func newLog() *cobra.Command {
	var (
		out     output
		o       runlog.Options
		configs []string
		set     []string
		follow  bool
		part    string
		stall   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "log FILE|DIR|-...",
		Short: "reads what a trainer logged and says which numbers cannot be, which are unhealthy, why, and what to dump next",
		Long: `verify log reads printed logs, JSON lines and dictionaries of TRL, verl and OpenRLHF, trainer_state.json, histories of W&B (JSON, CSV), CSV,
event files of TensorBoard, nvidia-smi, and the lines of the four systems of this project. The form is told by each line; a folder is
one run. Lines that are not understood are counted.

Numbers that cannot be come first: NaN, k3 < 0, entropy above ln V, a share above 1, a reward that is not the sum of its parts, a total
that is not pg + kl. Then what is unhealthy, then trends. A finding has the cause that the guide of its program gives, the one that is
more likely, the numbers that decide, the fix, and which step to dump. verify explain ID prints what a symptom is, verify explain NAME
what a metric of that name is in each program.`,
		Example: `  verify log train.log
  verify log outputs/run1/
  python train.py 2>&1 | tee train.log | verify log -
  verify log trainer_state.json --vocab 151936
  verify log run/ --format json | jq '.findings[0].name'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			if len(args) == 0 {
				return usageError{"log takes files, folders, or - for stdin (verify log --help)"}
			}
			mine, to, err := out.forShard(part)
			if err != nil {
				return err
			}
			if part != "" && (follow || slices.Contains(args, "-")) {
				return usageError{"--shard takes logs that are files: neither stdin nor --follow goes with it"}
			}
			if err := out.validate(names(runlog.Infos())); err != nil {
				return err
			}
			if !slices.Contains(runlog.Kinds, o.Kind) {
				return usageError{fmt.Sprintf("--kind %q: want one of %s%s", o.Kind, strings.Join(runlog.Kinds, ", "), near(o.Kind, runlog.Kinds))}
			}
			if o.Vocab < 0 || o.Vocab == 1 {
				return usageError{fmt.Sprintf("--vocab %d: want the size of a vocabulary", o.Vocab)}
			}
			if stall < 0 {
				return usageError{fmt.Sprintf("--stall %s: want a time of at least 0", stall)}
			}
			o.Config, o.Places = map[string]string{}, map[string]check.FileLine{}
			for _, path := range configs {
				text, err := readConfigText(path)
				if err != nil {
					return err
				}
				if bytes.IndexByte(text, 0) >= 0 {
					return usageError{fmt.Sprintf("--config %q: a NUL byte in a configuration", path)}
				}
				values, lines := runlog.ParseConfig(string(text))
				if len(values) == 0 {
					return usageError{fmt.Sprintf("--config %q: no line is OPTION=VALUE, and it is no YAML or JSON with a value", path)}
				}
				for k, v := range values {
					o.Config[k], o.Places[k] = v, check.FileLine{Path: path, Number: lines[k]}
				}
			}
			for _, s := range set {
				key, value, ok := strings.Cut(s, "=")
				if !ok {
					return usageError{fmt.Sprintf("--set %q: want OPTION=VALUE", s)}
				}
				o.Config[key] = value
				delete(o.Places, key)
			}
			if err := overInput("--output", out.file, args); err != nil {
				return err
			}
			if part != "" {
				return shardLogs(cmd, mine, args, configs, to)
			}
			o.Selection, o.Stdin = out.sel, cmd.InOrStdin()
			r := &report.Report{Command: "log", Repeat: repeatCommand(cmd, args...)}
			var found *runlog.Report
			if list, ok := cmd.Context().Value(merging{}).([]*partial); ok {
				if found, err = mergeLogs(cmd.Context(), args, configs, o, list); found == nil && err != nil {
					return err
				}
			} else if follow {
				if slices.Contains(args, "-") {
					return usageError{"--follow takes files and folders; stdin is judged at its end"}
				}
				found, err = runlog.Follow(cmd.Context(), args, o, stall, time.Second, func(f check.Finding) {
					if !out.quiet {
						fmt.Fprintf(cmd.ErrOrStderr(), "%s  %s: %s. %s\n", f.Verdict, f.Name, report.Printable(f.Title), report.Printable(f.Evidence))
					}
				})
			} else {
				found, err = runlog.Judge(cmd.Context(), args, o)
			}
			if found == nil {
				return out.conclude(cmd, r, started, err)
			}
			r.Results, r.Brief, r.Pictures = found.Results, found.Brief, &check.Pictures{Charts: found.Charts}
			for _, in := range found.Inputs {
				r.Inputs = append(r.Inputs, report.Input{Role: "log", Path: in.Path, Size: in.Size, What: in.What})
			}
			for _, l := range found.Lists {
				r.Lists = append(r.Lists, report.Section{Title: l.Title, Items: l.Items})
			}
			r.Exit = check.Exit(r.Results, out.policy())
			if err != nil {
				return out.conclude(cmd, r, started, err)
			}
			return out.emit(cmd, r, started)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Kind, "kind", "auto", "program that wrote the log: "+strings.Join(runlog.Kinds, ", "))
	f.StringArrayVar(&configs, "config", nil, "options of the run: YAML, JSON, or lines of OPTION=VALUE; effective_config.yaml beside a log is read without it")
	f.StringArrayVar(&set, "set", nil, "OPTION=VALUE, stronger than any other: kl_beta=0.1, reward_weights=[1,0.5]")
	f.IntVar(&o.Vocab, "vocab", 0, "size of the vocabulary: an entropy is at most its logarithm")
	f.BoolVar(&follow, "follow", false, "watch logs that grow: findings go to stderr as they are seen, the report comes at an interrupt or a stall, with its own exit code")
	f.DurationVar(&stall, "stall", time.Minute, "with --follow: nothing written for so long is a finding, and the end; 0 waits for ever")
	f.StringVar(&part, "shard", "", "I/N: read part I of N of the logs, 0 ≤ I < N, each of them whole, and write a partial for verify merge; I may be auto, as in verify dump")
	out.register(cmd)
	return cmd
}

// logFiles names the logs by their sizes, and the configurations by their texts.
func logFiles(paths, configs []string) (string, error) {
	logs, beside, err := runlog.Files(paths)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, path := range logs {
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d\n", path, info.Size())
	}
	return withConfigs(h, append(beside, configs...))
}

// shardLogs reads the logs of one shard and writes its partial. A malformed one ends it with an error, after all were read.
func shardLogs(cmd *cobra.Command, s shard, args, configs []string, to string) error {
	inputs, err := logFiles(args, configs)
	if err != nil {
		return err
	}
	var bad *format.Error
	err = writePartial(cmd, args, s, inputs, to, func(put func(any) error) (err error) {
		bad, err = runlog.Shard(cmd.Context(), args, s.i, s.n, func(r runlog.Record) error { return put(r) })
		return err
	})
	if err == nil && bad != nil {
		return bad
	}
	return err
}

// logNotes are the rows that all shards have read.
type logNotes []*partial

// Each implements [runlog.Notes].
func (list logNotes) Each(key string, read func(runlog.Record) error) error {
	for _, p := range list {
		err := p.records(key, func(text []byte) error {
			var r runlog.Record
			if err := strictly(text, &r); err != nil {
				return err
			}
			return read(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mergeLogs judges logs by the rows that shards have read.
func mergeLogs(ctx context.Context, args, configs []string, o runlog.Options, list []*partial) (*runlog.Report, error) {
	inputs, err := logFiles(args, configs)
	if err != nil {
		return nil, err
	}
	if inputs != list[0].Inputs {
		return nil, format.Malformed(list[0].path, `key "inputs"`, "is of other logs or configurations than those that are there: they have changed since, or this is another folder")
	}
	return runlog.Merge(ctx, args, o, logNotes(list))
}
