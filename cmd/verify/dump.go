package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	"plumbline/verify/report"
)

func newDump() *cobra.Command {
	var (
		out         output
		o           dump.Options
		config      string
		stepRange   string
		maxInflated string
		reader      npy.Options
	)
	cmd := &cobra.Command{
		Use:   "dump FILE|DIR|GLOB...",
		Short: "recomputes what a trainer dumped and says what is wrong, under whose convention it would be right, and which bug it is",
		Long: `verify dump recomputes everything that the files of a run allow: masks, log-probs, KL, rewards, advantages, ratios,
losses, denominators, gradients and logged numbers. Files are .safetensors or .npz with metadata as described in the README.

Declarations, weakest first: --profile, options in the files, --config, --set. What is declared is judged; what is left open
is searched, and the options and profiles that fit are named. What fails is explained: by another legal option (CONVENTION),
by a bug of the catalogue, by a common factor, or by arithmetic in 16 bits.`,
		Example: `  verify dump run/ --profile trl-grpo@1.16
  verify dump run/step_000003.safetensors --set adv.ddof=0
  verify dump run/ --infer
  verify dump run/ --first-step --require gradient/dlogp`,
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			if len(args) == 0 {
				return usageError{"dump takes files, folders or globs (verify dump --help)"}
			}
			if err := out.validate(names(dump.Infos())); err != nil {
				return err
			}
			from, to, err := parseSteps(stepRange)
			if err != nil {
				return err
			}
			if config != "" {
				if o.Config, err = readConfig(config); err != nil {
					return err
				}
			}
			budget, err := parseBytes(maxInflated)
			if err != nil {
				return usageError{"--max-uncompressed: " + err.Error()}
			}
			reader.MaxUncompressed = budget
			o.Selection = out.sel
			r := &report.Report{Command: "dump", Repeat: repeatCommand(cmd, args...)}
			show, end := progress(cmd.ErrOrStderr(), out.quiet, "steps")
			o.Progress = show
			err = func() error {
				run, err := dumpfile.OpenWith(cmd.Context(), args, reader)
				if err != nil {
					return err
				}
				run = run.Range(from, to)
				if len(run.Steps()) == 0 {
					return usageError{fmt.Sprintf("--steps %s: the files have none of these", stepRange)}
				}
				if err := dumpInputs(cmd.Context(), run, r); err != nil {
					return err
				}
				found, err := interruptible(cmd.Context(), func() (*dump.Report, error) { return dump.Judge(cmd.Context(), run, o) })
				if err != nil {
					return err
				}
				r.Results, r.Lines = found.Results, found.Lines
				policy := out.policy()
				policy.Declared = found.Declared
				r.Exit = check.Exit(r.Results, policy)
				return nil
			}()
			end()
			if err != nil {
				if errors.Is(err, context.Canceled) {
					return fmt.Errorf("interrupted: %w", err)
				}
				r.Err, r.Exit = err.Error(), exitCode(err)
				if out.format == "human" {
					return err
				}
			}
			return out.emit(cmd, r, started)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Profile, "profile", "", "the convention that the trainer follows (verify profiles prints all); default: the one the files name")
	f.StringArrayVar(&o.Set, "set", nil, "OPTION=VALUE, stronger than any other declaration; repeatable")
	f.StringVar(&config, "config", "", "a file of options: JSON, or lines of OPTION = VALUE")
	f.BoolVar(&o.Infer, "infer", false, "search all options, whatever the files declare")
	f.BoolVar(&o.FirstStep, "first-step", false, "the first step is the first update: demand ratio 1, KL 0, nothing clipped, a gradient")
	f.BoolVar(&o.Deep, "deep", false, "explain failures by pairs of bugs, too")
	f.StringVar(&stepRange, "steps", "", "only these steps: A..B, A.., ..B or A")
	f.BoolVar(&o.FirstFailure, "first-failure", false, "stop at the first step with a failure")
	f.BoolVar(&o.Redact, "redact", false, "no token ids in the report")
	f.StringVar(&maxInflated, "max-uncompressed", "1GiB", "budget for compressed members of an .npz file")
	f.BoolVar(&reader.AssumeBF16, "assume-bf16", false, "read untyped two-byte elements (|V2) of .npz files as bfloat16")
	out.register(cmd)
	return cmd
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

// parseSteps reads A..B, A.., ..B or A; "" is every step.
func parseSteps(s string) (from, to int, err error) {
	const all = int(^uint(0) >> 1)
	if s == "" {
		return 0, all, nil
	}
	a, b, isRange := strings.Cut(s, "..")
	if !isRange {
		b = a
	}
	from, to = 0, all
	if a != "" {
		if from, err = strconv.Atoi(a); err != nil {
			return 0, 0, usageError{fmt.Sprintf("--steps %q: want A..B, A.., ..B or A", s)}
		}
	}
	if b != "" {
		if to, err = strconv.Atoi(b); err != nil {
			return 0, 0, usageError{fmt.Sprintf("--steps %q: want A..B, A.., ..B or A", s)}
		}
	}
	if from > to {
		return 0, 0, usageError{fmt.Sprintf("--steps %s: %d is after %d", s, from, to)}
	}
	return from, to, nil
}

// readConfig reads a file of options.
func readConfig(file string) (*convention.Declared, error) {
	options, framework, err := convention.ReadOptions(file)
	if err != nil {
		return nil, err
	}
	return convention.Declare(framework, "", options, file)
}
