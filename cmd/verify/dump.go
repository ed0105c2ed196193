package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
	"plumbline/verify/dump"
	"plumbline/verify/report"
)

func newDump() *cobra.Command {
	var (
		out         output
		o           dump.Options
		configs     []string
		stepRange   string
		words       string
		maxInflated string
		part        string
		reader      npy.Options
	)
	cmd := &cobra.Command{
		Use:   "dump FILE|DIR|GLOB...",
		Short: "recomputes what a trainer dumped and says what is wrong, under whose convention it would be right, and which bug it is",
		Long: `verify dump recomputes everything that the files of a run allow: masks, log-probs, KL, rewards, advantages, ratios,
losses, denominators, gradients and logged numbers. Files are .safetensors or .npz with metadata: verify explain dump
prints their format.

Declarations, weakest first: the profile, options in the files, --config, --set. The profile is the one that --profile or the files
name, else that of their framework, version and algorithm; --profile none declares none. What is declared is judged; what is left
open is searched, and the options and profiles that fit are named. What fails is explained: by another legal option (CONVENTION),
by a bug of the catalogue, by a common factor, or by arithmetic in 16 bits.

Nothing is green by accident: files that are missing, names that nobody reads, files of two runs and a profile of another framework
are findings (input/…, exit 6; --ignore input takes them as they are), and a run of which nothing was judged but masks is exit 5.

Of a folder that holds run-… folders, as the hooks write them, the newest is judged, and with it the newest in critic/, if there is one.`,
		Example: `  verify dump run/ --profile trl-grpo@1.16
  verify dump run/step_000003.safetensors --set adv.ddof=0
  verify dump run/ --infer
  verify dump run/ --first-step --require gradient/dlogp`,
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			if len(args) == 0 {
				return usageError{"dump takes files, folders or globs (verify dump --help)"}
			}
			mine, to, err := out.forShard(part)
			if err != nil {
				return err
			}
			if err := out.validate(names(dump.Infos())); err != nil {
				return err
			}
			wanted, err := parseSteps(stepRange)
			if err != nil {
				return err
			}
			budget, err := parseBytes(maxInflated)
			if err != nil {
				return usageError{"--max-uncompressed: " + err.Error()}
			}
			reader.MaxUncompressed = budget
			o.Selection = out.sel
			if words != "" {
				if o.Text, err = texts(words); err != nil {
					return err
				}
			}
			r := &report.Report{Command: "dump", Repeat: repeatCommand(cmd, args...)}
			if len(configs) > 0 {
				if o.Config, err = readConfigs(configs, o.Profile, r); err != nil {
					return err
				}
			}
			show, end := progress(cmd.ErrOrStderr(), out.quiet, "steps")
			o.Progress = show
			err = func() error {
				run, err := dumpfile.OpenWith(cmd.Context(), args, reader)
				if errors.Is(err, fs.ErrNotExist) && slices.Contains(args, "-") {
					return usageError{"-: a dump is not read from stdin, since it is read in any order: name its file"}
				}
				if err != nil {
					return notDumps(args, err)
				}
				if err := overInput("--output", out.file, append(paths(run), configs...)); err != nil {
					return err
				}
				whole := run.Steps()
				if stepRange != "" {
					run = run.Only(wanted)
				}
				if len(run.Steps()) == 0 {
					has := fmt.Sprintf("step %d alone", whole[0])
					if n := len(whole); n > 1 {
						has = fmt.Sprintf("%d from %d to %d", n, whole[0], whole[n-1])
					}
					return usageError{fmt.Sprintf("--steps %s: the files have none of these, but %s", stepRange, has)}
				}
				if part != "" {
					return writeShard(cmd, run, o, mine, args, configs, to)
				}
				if err := judgeRun(cmd.Context(), run, o, configs, &out, r); err != nil {
					return err
				}
				if err := judgeCritic(cmd.Context(), args, reader, wanted, o, configs, &out, r); err != nil {
					return err
				}
				placeOptions(r.Results, configs)
				repeatSteps(r.Results, stepRange)
				return nil
			}()
			end()
			if part != "" {
				return err
			}
			if err != nil {
				if errors.Is(err, context.Canceled) {
					err = cli.ErrInterrupted
				}
				r.Err, r.Exit = err.Error(), exitCode(err)
				if out.format == "human" || r.Exit == check.ExitInterrupted && out.file != "" { // what an earlier run has left there stays
					return err
				}
			}
			return out.emit(cmd, r, started)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Profile, "profile", "", "the convention that the trainer follows (verify profiles prints all); default: the one that the files name, or that is of their framework, version and algorithm; none: search")
	f.StringArrayVar(&o.Set, "set", nil, "OPTION=VALUE, or a fact of the run such as num_mini_batches=4, stronger than any other declaration; repeatable")
	f.StringArrayVar(&configs, "config", nil, "a configuration of TRL, verl or OpenRLHF (YAML, JSON, arguments, the script that starts it), or lines of OPTION = VALUE; repeatable, the last is strongest")
	f.BoolVar(&o.Infer, "infer", false, "search all options, whatever the files declare")
	f.BoolVar(&o.FirstStep, "first-step", false, "the first step is the first update: demand ratio 1, KL 0, nothing clipped, a gradient")
	f.BoolVar(&o.Deep, "deep", false, "explain failures by pairs of bugs, too")
	f.StringVar(&stepRange, "steps", "", "only these steps: A..B, A.., ..B, A, or several of them with commas")
	f.BoolVar(&o.FirstFailure, "first-failure", false, "stop at the first step with a failure")
	f.BoolVar(&o.Redact, "redact", false, "no token ids and no text in the report")
	f.StringVar(&words, "tokenizer", "", "tokenizer.json: the page of --format html has tokens as text")
	f.StringVar(&maxInflated, "max-uncompressed", "1GiB", "budget for compressed members of an .npz file")
	f.StringVar(&part, "shard", "", "I/N: judge part I of N, 0 ≤ I < N, and write a partial for verify merge; I is auto for JOB_COMPLETION_INDEX or SLURM_ARRAY_TASK_ID")
	f.BoolVar(&reader.AssumeBF16, "assume-bf16", false, "read untyped two-byte elements (|V2) of .npz files as bfloat16")
	out.register(cmd)
	return cmd
}

// judgeRun judges a run and fills r.
func judgeRun(ctx context.Context, run *dumpfile.Run, o dump.Options, configs []string, out *output, r *report.Report) error {
	if err := dumpInputs(ctx, run, r); err != nil {
		return err
	}
	o.Brief, o.Pictures = true, out.format == "html"
	found, err := interruptible(ctx, func() (*dump.Report, error) {
		if list, ok := ctx.Value(merging{}).([]*partial); ok {
			return mergeRun(ctx, run, o, list, configs)
		}
		return dump.Judge(ctx, run, o)
	})
	if err != nil {
		return err
	}
	r.Results, r.Lines, r.Brief = found.Results, append(r.Lines, found.Lines...), found.Brief
	for _, s := range []report.Section{{Title: "options found by search", Items: found.Found, Whole: true}, {Title: "options taken from the configuration", Items: found.Taken}, {Title: "options that override weaker ones", Items: found.Overrides}} {
		if len(s.Items) > 0 {
			r.Lists = append(r.Lists, s)
		}
	}
	r.Pictures, out.declared = found.Pictures, found.Declared
	r.Exit = check.Exit(r.Results, out.policy())
	return nil
}

// dumpInputs lists the files of a run in a report: each of a few, else the first and how many there are.
func dumpInputs(ctx context.Context, run *dumpfile.Run, r *report.Report) error {
	const most = 64
	files := run.Files()
	for i, f := range files {
		if i == most {
			break
		}
		sum, err := f.SHA256(ctx)
		if err != nil {
			return err
		}
		r.Inputs = append(r.Inputs, report.Input{Role: fmt.Sprintf("step %d", f.Step), Path: f.Path, Size: f.Size, SHA256: sum, What: fmt.Sprintf("rank %d, micro-batch %d", f.Rank, f.MicroBatch)})
	}
	if len(files) > most {
		r.Lines = append(r.Lines, fmt.Sprintf("%d more files", len(files)-most))
	}
	return nil
}

// paths returns the names of the files of a run.
func paths(run *dumpfile.Run) []string {
	var list []string
	for _, f := range run.Files() {
		list = append(list, f.Path)
	}
	return list
}

// repeatSteps adds the steps that the run was restricted to, where a result does not restrict it further.
func repeatSteps(results []check.Result, steps string) {
	for i := range results {
		res := &results[i]
		if steps == "" || strings.Contains(res.Repeat, " --steps ") {
			continue
		}
		res.Repeat = cmp.Or(res.Repeat, "--select "+res.Check)
		res.Repeat += " --steps " + format.ShellQuote(steps)
	}
}

// parseSteps reads ranges such as A..B, A.., ..B and A, separated by commas.
func parseSteps(s string) (wanted func(step int) bool, err error) {
	if s == "" {
		return nil, nil
	}
	type bounds struct{ from, to int }
	var ranges []bounds
	for _, part := range strings.Split(s, ",") {
		a, b, isRange := strings.Cut(part, "..")
		if !isRange {
			b = a
		}
		r := bounds{0, math.MaxInt}
		for _, end := range []struct {
			text string
			into *int
		}{{a, &r.from}, {b, &r.to}} {
			if end.text == "" && isRange {
				continue
			}
			if *end.into, err = strconv.Atoi(strings.TrimSpace(end.text)); err != nil || *end.into < 0 {
				return nil, usageError{fmt.Sprintf("--steps %q: want A..B, A.., ..B or A, several with commas", s)}
			}
		}
		if r.from > r.to {
			return nil, usageError{fmt.Sprintf("--steps %s: %d is after %d", s, r.from, r.to)}
		}
		ranges = append(ranges, r)
	}
	return func(step int) bool {
		return slices.ContainsFunc(ranges, func(r bounds) bool { return r.from <= step && step <= r.to })
	}, nil
}
