package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/report"
)

func newCheckpoint() *cobra.Command {
	var (
		out           output
		paths         checkpoint.Paths
		size, maxSize string
		model, plan   string
		part          string
		needs         []string
		rank          int
		targets       []string
	)
	cmd := &cobra.Command{
		Use:   "checkpoint DIR [--base DIR [--merged DIR]] [--against DIR] [--size 26MB±15%]",
		Short: "judges a folder of weights before it is deployed or resumed from",
		Long: `verify checkpoint says whether a folder is what it says it is: an adapter of PEFT, a whole, sharded, merged or int8 model, the
state of a trainer, a checkpoint of TRL, verl or OpenRLHF, a run folder.

An adapter's bytes must be what r, targets and base give, its keys those that PEFT loads, its targets layers that the base
has, its B not zero. --merged demands merged = base + s·B·A within half a unit of the type. --against says how many numbers
moved since an earlier checkpoint. Elements are read once, in pieces. Pickles are listed by opcode and never loaded.

--plan MODEL prints which targets and ranks give which size, without a folder.`,
		Example: `  verify checkpoint out/adapter --base models/gpt-j-6b --size 26MB±15%
  verify checkpoint out/adapter --base models/qwen --merged out/merged
  verify checkpoint out/checkpoint-200 --against out/checkpoint-100
  verify checkpoint out/step_100 --needs value-head,tokenizer,optimizer
  verify checkpoint --plan gpt-j-6b --lora-r 4 --targets q_proj,v_proj,fc_in,fc_out`,
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			if plan != "" {
				if len(args) > 0 {
					return usageError{"--plan takes a model and no folder"}
				}
				return printPlan(cmd, plan, targets, rank, size)
			}
			if len(args) != 1 {
				return usageError{fmt.Sprintf("checkpoint takes one folder, got %d arguments (verify checkpoint --help)", len(args))}
			}
			if rank != 0 || targets != nil {
				return usageError{"--lora-r and --targets belong to --plan: of a folder they are read from adapter_config.json"}
			}
			if paths.Merged != "" && paths.Base == "" {
				return usageError{"--merged needs --base: merged − base is judged against s·B·A"}
			}
			paths.Dir = args[0]
			mine, to, err := out.forShard(part)
			if err != nil {
				return err
			}
			if err := out.validate(names(checkpoint.Suite.Infos())); err != nil {
				return err
			}
			for _, n := range needs {
				if !slices.Contains(checkpoint.Needable, n) {
					return usageError{fmt.Sprintf("--needs %q: want one of %s%s", n, strings.Join(checkpoint.Needable, ", "), near(n, checkpoint.Needable))}
				}
			}
			prepare, err := demands(size, maxSize, model, needs)
			if err != nil {
				return err
			}
			if err := notCheckpoint(cmd.Context(), paths.Dir); err != nil {
				return err
			}
			if part != "" {
				return scanShard(cmd, args, mine, paths, to)
			}
			r := &report.Report{Command: "checkpoint", Repeat: repeatCommand(cmd, args...)}
			return out.conclude(cmd, r, started, judgeFolders(cmd.Context(), cmd.ErrOrStderr(), paths, &out, r, prepare))
		},
	}
	f := cmd.Flags()
	f.StringVar(&paths.Base, "base", "", "folder of the model that the adapter was trained on, or that was quantised")
	f.StringVar(&model, "model", "", "in place of --base: "+strings.Join(arch.Names(), ", ")+", or a folder with a config.json")
	f.StringVar(&paths.Init, "init", "", "folder of the adapter before training")
	f.StringVar(&paths.Merged, "merged", "", "folder of the base with the adapter of DIR merged in (needs --base)")
	f.StringVar(&paths.Against, "against", "", "folder of an earlier checkpoint of the same run")
	f.StringVar(&size, "size", "", "bytes that the weights must have: 26MB±15%, 24.5MiB (±2 %)")
	f.StringVar(&maxSize, "max-size", "", "most bytes that the weights may have (default 100MB for an adapter without configuration)")
	listVar(f, &needs, "needs", "what the folder must hold: "+strings.Join(checkpoint.Needable, ", "))
	f.StringVar(&plan, "plan", "", "print the sizes of adapters of this model (a name or a folder) by targets and rank")
	f.StringVar(&part, "shard", "", "I/N: look at part I of N of the elements, 0 ≤ I < N, and write a partial for verify merge; I may be auto, as in verify dump")
	f.IntVar(&rank, "lora-r", 0, "with --plan: this rank only")
	listVar(f, &targets, "targets", "with --plan: these targets only")
	out.register(cmd)
	return cmd
}

// demands reads the flags that say what the folder must be.
func demands(size, maxSize, model string, needs []string) (func(*checkpoint.Input), error) {
	var want checkpoint.Size
	var most checkpoint.Size
	var stated *arch.Model
	var err error
	if size != "" {
		if want, err = checkpoint.ParseSize(size, parseBytes); err != nil {
			return nil, usageError{"--size: " + err.Error()}
		}
	}
	if maxSize != "" {
		if most, err = checkpoint.ParseSize(maxSize, parseBytes); err != nil {
			return nil, usageError{"--max-size: " + err.Error()}
		}
	}
	if model != "" {
		if stated, err = checkpoint.FindModel(model); err != nil {
			return nil, err
		}
	}
	return func(in *checkpoint.Input) {
		in.Size, in.MaxSize, in.Model, in.Needs = want, most.Want, stated, needs
	}, nil
}

// judgeFolders opens the folders, judges them and fills r.
func judgeFolders(ctx context.Context, stderr io.Writer, paths checkpoint.Paths, out *output, r *report.Report, prepare func(*checkpoint.Input)) error {
	in, err := interruptible(ctx, func() (*checkpoint.Input, error) { return checkpoint.Load(ctx, paths) })
	if err != nil {
		return err
	}
	defer in.Close()
	prepare(in)
	if list, ok := ctx.Value(merging{}).([]*partial); ok {
		if err := scanned(in, list); err != nil {
			return err
		}
	}
	show, end := progress(stderr, out.quiet, "pieces")
	in.Progress = show
	r.Results, err = interruptible(ctx, func() ([]check.Result, error) { return checkpoint.Suite.Run(in, out.sel) })
	end()
	r.Exit = check.Exit(r.Results, out.policy())
	if err != nil {
		return err
	}
	files, err := interruptible(ctx, in.ListFiles)
	if err != nil {
		return err
	}
	for _, f := range files {
		r.Inputs = append(r.Inputs, report.Input{Role: f.Role, Path: f.Path, Size: f.Size, SHA256: f.SHA256, What: f.What})
	}
	r.Lines = append(r.Lines, in.Lines()...)
	if in.Refused() != nil {
		r.Exit = check.Worse(r.Exit, check.ExitMalformed)
	}
	return nil
}

// scanShard looks at the elements of one shard and writes its partial.
func scanShard(cmd *cobra.Command, args []string, s shard, paths checkpoint.Paths, to string) error {
	ctx := cmd.Context()
	in, err := interruptible(ctx, func() (*checkpoint.Input, error) { return checkpoint.Load(ctx, paths) })
	if err != nil {
		return err
	}
	defer in.Close()
	inputs, err := filesOf(in)
	if err != nil {
		return err
	}
	found, err := interruptible(ctx, func() ([]checkpoint.Scanned, error) { return in.Shard(s.i, s.n) })
	if err != nil {
		return err
	}
	return writePartial(cmd, args, s, inputs, to, func(put func(any) error) error {
		for _, f := range found {
			if err := put(f); err != nil {
				return err
			}
		}
		return nil
	})
}

// filesOf names the files of the folders by name and size, and those that reports hash by their sums.
func filesOf(in *checkpoint.Input) (string, error) {
	files, err := in.ListFiles()
	text := fmt.Sprintf("%+v", files)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(text))), err
}

// scanned gives what all shards have found to a judgement.
func scanned(in *checkpoint.Input, list []*partial) error {
	inputs, err := filesOf(in)
	if err != nil {
		return err
	}
	if inputs != list[0].Inputs {
		return format.Malformed(list[0].path, `key "inputs"`, "is of other files than those of this folder: it has changed since, or this is another one")
	}
	in.Scanned = []checkpoint.Scanned{}
	for _, p := range list {
		for _, key := range slices.Sorted(maps.Keys(p.at)) {
			err := p.records(key, func(text []byte) error {
				var f checkpoint.Scanned
				err := strictly(text, &f)
				in.Scanned = append(in.Scanned, f)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// printPlan prints the sizes of adapters.
func printPlan(cmd *cobra.Command, name string, targets []string, rank int, size string) error {
	m, err := checkpoint.FindModel(name)
	if err != nil {
		return err
	}
	var sets [][]string
	if targets != nil {
		sets = [][]string{targets}
	}
	var ranks []int
	if rank != 0 {
		ranks = []int{rank}
	}
	rows, err := checkpoint.Plan(m, sets, ranks)
	if err != nil {
		return err
	}
	var want checkpoint.Size
	if size != "" {
		if want, err = checkpoint.ParseSize(size, parseBytes); err != nil {
			return usageError{"--size: " + err.Error()}
		}
	}
	header := []string{"targets", "r", "parameters", "float32 MB (MiB)", "16 bits MB (MiB)"}
	if want.Want > 0 {
		header = append(header, want.Text)
	}
	var table [][]string
	for _, p := range rows {
		row := []string{strings.Join(p.Targets, ","), fmt.Sprint(p.R), fmt.Sprint(p.Params)}
		fits := ""
		for _, width := range []int{4, 2} {
			n := p.Bytes(width)
			row = append(row, fmt.Sprintf("%.2f (%.2f)", float64(n)/1e6, float64(n)/(1<<20)))
			if off := float64(n - want.Want); want.Want > 0 && max(off, -off) <= want.Tolerance*float64(want.Want) {
				fits += map[int]string{4: "float32 ", 2: "16 bits"}[width]
			}
		}
		if want.Want > 0 {
			row = append(row, strings.TrimSpace(fits))
		}
		table = append(table, row)
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s: %d layers, hidden %d; an adapter has r·(in + out) numbers per module, and a header of about 130 bytes per tensor\n\n", m.Name, m.Layers, m.Hidden)
	return report.Table(w, header, table)
}
