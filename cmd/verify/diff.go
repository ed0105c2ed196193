package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/internal/format/npy"
	"plumbline/internal/tokenizer"
	"plumbline/verify/check"
	"plumbline/verify/diff"
	"plumbline/verify/report"
)

func newDiff() *cobra.Command {
	var (
		out         output
		o           diff.Options
		relation    string
		words       string
		maxInflated string
		reader      npy.Options
	)
	cmd := &cobra.Command{
		Use:   "diff RUN [RUN]",
		Short: "says how far engine and trainer of a run are apart, or two runs, whether that is rounding, and what it is otherwise",
		Long: `verify diff takes one run (a file, a folder or a glob of dumps) and compares what the engine reported (logp_gen) with what the
trainer computed (logp_old, else logp_new) for the same tokens: in a sentence, then as a histogram, the worst tokens, Δ by probability,
position and step. A temperature on either side, the mass of top-p, a shift, rows of others, filled values and storing in bfloat16 are
told from rounding without a model. Which side is off, and older weights from a missing adapter, two tensors cannot tell.

Of two runs it says up to which step and tensor they are equal, and of log-probs that differ why. With --relation they are judged:
repeat, partition, padding, permute and resume must agree, up to rounding with a mean of 0; toggle=OPTION must differ.`,
		Example: `  verify diff run/
  verify diff run/ --tokenizer model/tokenizer.json
  verify diff run_a/ run_b/ --tensor logp_new
  verify diff 1x16/ 2x8/ --relation partition
  verify diff whole/ resumed/ --relation resume
  verify diff plain/ changed/ --relation toggle=kl.beta`,
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			if len(args) == 0 || len(args) > 2 {
				return usageError{fmt.Sprintf("diff takes one run or two, not %d (verify diff --help)", len(args))}
			}
			if err := out.validate(names(diff.Infos())); err != nil {
				return err
			}
			if cmd.Flags().Changed("relation") {
				var err error
				if o.Relation, err = diff.ParseRelation(relation); err != nil {
					return err
				}
			}
			if len(args) == 1 && (o.Relation.Name != "" || o.Tensor != "") {
				return usageError{"--relation and --tensor are of two runs: name the second"}
			}
			budget, err := parseBytes(maxInflated)
			if err != nil {
				return usageError{"--max-uncompressed: " + err.Error()}
			}
			reader.MaxUncompressed = budget
			if words != "" {
				if o.Text, err = texts(words); err != nil {
					return err
				}
			}
			o.Selection = out.sel
			r := &report.Report{Command: "diff", Repeat: repeatCommand(cmd, args...)}
			show, end := progress(cmd.ErrOrStderr(), out.quiet, "steps")
			o.Progress = show
			err = diffRuns(cmd.Context(), args, reader, o, &out, r)
			end()
			return out.conclude(cmd, r, started, err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&relation, "relation", "", "what two runs must keep: repeat, partition, padding, packing, permute, resume; or break: toggle=OPTION")
	f.StringVar(&o.Tensor, "tensor", "", "of two runs: the log-probs that are compared token by token (default: logp_new, else logp_old, else logp_gen)")
	f.StringVar(&words, "tokenizer", "", "tokenizer.json: the worst tokens are printed as text, too")
	f.BoolVar(&o.Redact, "redact", false, "no token ids and no text in the report")
	f.StringVar(&maxInflated, "max-uncompressed", "1GiB", "budget for compressed members of an .npz file")
	f.BoolVar(&reader.AssumeBF16, "assume-bf16", false, "read untyped two-byte elements (|V2) of .npz files as bfloat16")
	out.register(cmd)
	return cmd
}

// diffRuns opens the runs, compares them and fills r.
func diffRuns(ctx context.Context, args []string, reader npy.Options, o diff.Options, out *output, r *report.Report) error {
	var runs []*dumpfile.Run
	var files []string
	for _, arg := range args {
		run, err := dumpfile.OpenWith(ctx, []string{arg}, reader)
		if errors.Is(err, fs.ErrNotExist) && arg == "-" {
			return usageError{"-: a dump is not read from stdin, since it is read in any order: name its file"}
		}
		if err != nil {
			return err
		}
		runs = append(runs, run)
		files = append(files, paths(run)...)
	}
	if err := overInput("--output", out.file, files); err != nil {
		return err
	}
	for i, run := range runs {
		n := len(r.Inputs)
		if err := dumpInputs(ctx, run, r); err != nil {
			return err
		}
		if len(runs) > 1 {
			for k := n; k < len(r.Inputs); k++ {
				r.Inputs[k].Role = string(rune('A'+i)) + ", " + r.Inputs[k].Role
			}
		}
	}
	found, err := interruptible(ctx, func() (*diff.Report, error) {
		if len(runs) == 1 {
			return diff.Engine(ctx, runs[0], o)
		}
		return diff.Runs(ctx, runs[0], runs[1], o)
	})
	if err != nil {
		return err
	}
	r.Results, r.Brief, r.Lines, r.Pictures = found.Results, found.Brief, append(r.Lines, found.Lines...), &check.Pictures{Charts: found.Charts}
	for _, s := range found.Sections {
		r.Lists = append(r.Lists, report.Section{Title: s.Title, Items: s.Lines, Whole: true})
	}
	r.Exit = check.Exit(r.Results, out.policy())
	return nil
}

// texts returns what tokens read as, by a tokenizer.json.
func texts(path string) (func(id int) string, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := tokenizer.Read(f)
	if err != nil {
		return nil, err
	}
	return func(id int) string {
		text, ok := t.Token(id)
		if !ok {
			return ""
		}
		if raw, err := t.Bytes([]int{id}, tokenizer.DecodeOptions{}); err == nil && len(raw) > 0 {
			text = string(raw)
		}
		return strings.ToValidUTF8(text, "�")
	}, nil
}
