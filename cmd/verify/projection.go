package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
	"plumbline/verify/projection"
	"plumbline/verify/report"
)

func newProjection() *cobra.Command {
	var (
		out          output
		paths        projection.Paths
		tolerance    float64
		kind         string
		plot, repair string
		onePiece     bool
		maxInflated  string
	)
	cmd := &cobra.Command{
		Use:   "projection --basis Q [--grad G [--projected P]]... [--update U] [--adapter DIR [--init DIR]]",
		Short: "judges a gradient projection: the basis, projected gradients, updates, adapters",
		Long: `verify projection judges g − Q(Qᵀg): whether Q is a basis, and whether gradients, updates or the change of an adapter
have a component along it.

Files are .npy, .npz or .safetensors; FILE:NAME names one array of a file. A basis larger than memory is streamed.
--grad alone claims to be projected already. With --projected, --grad is the raw gradient and the other file its projection.
--adapter is judged by its change since --init, never by its raw weights.

The limit is relative: max|Qᵀv| / max(1, ‖v‖) < tol.`,
		Example: `  verify projection --basis q.npy
  verify projection --basis q.npy --grad raw.npy --projected projected.npy --plot projection_viz.png
  verify projection --basis basis.safetensors:Q --adapter out/step_100 --init out/lora_init
  verify projection --basis broken.npy --orthonormalize repaired.npy`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			if paths.Basis == "" {
				return usageError{"--basis is needed: the file of Q (verify projection --help)"}
			}
			if !(tolerance > 0) || tolerance >= 1 {
				return usageError{fmt.Sprintf("--tol %g: want a number between 0 and 1", tolerance)}
			}
			if !slices.Contains([]string{"", "flat", "side"}, kind) {
				return usageError{fmt.Sprintf("--kind %q: want flat or side%s", kind, near(kind, []string{"flat", "side"}))}
			}
			if err := out.validate(names(projection.Suite.Infos())); err != nil {
				return err
			}
			if plot != "" && !slices.ContainsFunc(report.PictureFormats, func(e string) bool { return strings.HasSuffix(plot, e) }) {
				return usageError{fmt.Sprintf("--plot %s: the name must end in one of %s", plot, strings.Join(report.PictureFormats, ", "))}
			}
			if repair != "" && !strings.HasSuffix(repair, ".npy") {
				return usageError{fmt.Sprintf("--orthonormalize %s: the name must end in .npy", repair)}
			}
			if err := errors.Join(writable("--plot", plot), writable("--orthonormalize", repair)); err != nil {
				return err
			}
			for _, o := range []struct{ flag, path string }{{"--output", out.file}, {"--plot", plot}, {"--orthonormalize", repair}} {
				if err := overInput(o.flag, o.path, paths.Names()); err != nil {
					return err
				}
			}
			budget, err := parseBytes(maxInflated)
			if err != nil {
				return usageError{"--max-uncompressed: " + err.Error()}
			}
			paths.Reader.MaxUncompressed = budget
			r := &report.Report{Command: "projection", Repeat: repeatCommand(cmd)}
			err = judgeFiles(cmd.Context(), cmd.ErrOrStderr(), paths, &out, r, func(in *projection.Input) {
				in.Tol, in.Kind, in.Reference = tolerance, projection.Kind(kind), onePiece
			}, func(in *projection.Input) error {
				return writeExtras(in, r, plot, repair)
			})
			return out.conclude(cmd, r, started, err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&paths.Basis, "basis", "", "the basis Q, d×K")
	f.StringArrayVar(&paths.Grads, "grad", nil, "a gradient, or all tensors of a .safetensors file; repeatable")
	f.StringArrayVar(&paths.Projected, "projected", nil, "the projection of the --grad of the same place")
	f.StringArrayVar(&paths.Updates, "update", nil, "an update that the optimiser applied; repeatable")
	f.StringVar(&paths.Adapter, "adapter", "", "folder with adapter_model.safetensors, or such a file")
	f.StringVar(&paths.Init, "init", "", "the adapter before training")
	f.Float64Var(&tolerance, "tol", projection.DefaultTol, "limit on max|QᵀQ − I| and on max|Qᵀv| / max(1, ‖v‖)")
	f.StringVar(&kind, "kind", "", "how the basis is applied: flat (to a vector of d numbers) or side (to the left of d×r matrices); default: by the file, else by the shapes")
	f.StringVar(&plot, "plot", "", "draw |Qᵀg| before and after to this file (.svg, .png or .html)")
	f.StringVar(&repair, "orthonormalize", "", "write an orthonormal basis of the same space to this .npy file (QR; needs the basis in memory)")
	f.BoolVar(&onePiece, "reference", false, "evaluate in one piece in memory, without blocks and threads")
	f.StringVar(&maxInflated, "max-uncompressed", "1GiB", "budget for compressed members of an .npz file")
	f.BoolVar(&paths.Reader.AssumeBF16, "assume-bf16", false, "read untyped two-byte elements (|V2) of .npy files as bfloat16")
	out.register(cmd)
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Sprintf("%s takes no arguments, got %q (%s --help)", cmd.Name(), args[0], cmd.CommandPath())}
	}
	return nil
}

// failuresOnly keeps what counts when a run ended early: a finding made before stands, a pass does not.
func failuresOnly(results []check.Result) []check.Result {
	out := []check.Result{}
	for _, r := range results {
		if r.Verdict == check.Fail {
			out = append(out, r)
		}
	}
	return out
}

// judgeFiles loads the files, applies prepare to the input, judges it, fills r and then runs extras.
func judgeFiles(ctx context.Context, stderr io.Writer, paths projection.Paths, out *output, r *report.Report, prepare func(*projection.Input), extras func(*projection.Input) error) error {
	loaded, err := projection.Load(ctx, paths)
	if err != nil {
		return err
	}
	defer loaded.Close()
	defer func() {
		for _, f := range loaded.Files {
			r.Inputs = append(r.Inputs, report.Input{Role: f.Role, Path: f.Path, Size: f.Size, SHA256: f.SHA256(), What: f.What})
		}
	}()
	in := loaded.Input
	prepare(in)
	show, end := progress(stderr, out.quiet, "rows")
	in.Progress = show
	r.Results, err = interruptible(ctx, func() ([]check.Result, error) { // a decomposition inside does not look at the context
		return projection.Suite.Run(in, out.sel)
	})
	end()
	r.Exit = check.Exit(r.Results, out.policy())
	if err != nil {
		return err
	}
	r.Lines = append(r.Lines, in.Lines()...)
	if out.format == "html" {
		if err := drawComponents(in, r); err != nil {
			return err
		}
	}
	return extras(in)
}

// drawComponents puts the bars of |Qᵀv| on the page.
func drawComponents(in *projection.Input, r *report.Report) error {
	const most = 400 // columns of the basis
	series, name, err := in.Components()
	if err != nil || series == nil {
		return err
	}
	c := check.Chart{Title: "Projection Components of " + name, X: "basis vector", Y: "|Qᵀv|", Log: true, Limit: &check.Limit{Name: "tolerance", Value: in.Limit()}}
	for _, s := range series {
		c.Series = append(c.Series, check.Series{Name: s.Name, Kind: check.Columns, Y: s.Values[:min(most, len(s.Values))]})
	}
	r.Pictures = &check.Pictures{Charts: []check.Chart{c}}
	return nil
}

// interruptible runs work, which writes no files, and returns when it ends or ctx does; then work is left behind, for the
// process to end. A panic in work is an error: run could not recover from it in another goroutine.
func interruptible[T any](ctx context.Context, work func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- outcome{err: fmt.Errorf("internal error: %v\n%s", p, debug.Stack())}
			}
		}()
		v, err := work()
		done <- outcome{v, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// writeExtras writes the picture and the repaired basis.
func writeExtras(in *projection.Input, r *report.Report, plot, repair string) error {
	if plot != "" {
		series, name, err := in.Components()
		if err != nil {
			return err
		}
		if series == nil {
			return usageError{"--plot: there are no components to draw; give --grad, --update or --adapter of the basis's length"}
		}
		r.Lines = append(r.Lines, "picture: components of "+name)
		b := report.Bars{Title: "Projection Components", XLabel: "Basis Vector Index", YLabel: "Absolute Projection Magnitude", Limit: in.Limit(), LimitName: "tolerance", Verdict: r.Verdict()}
		for _, s := range series {
			b.Series = append(b.Series, report.Series{Name: s.Name, Values: s.Values})
		}
		if err := format.WriteFile(plot, func(w io.Writer) error { return b.Write(w, plot) }); err != nil {
			return err
		}
		r.Files = append(r.Files, plot)
	}
	if repair != "" {
		type basis struct {
			q     []float64
			rank  int
			dtype format.DType
		}
		b, err := interruptible(in.Context, func() (b basis, err error) {
			b.q, b.rank, b.dtype, err = in.Orthonormalise()
			return b, err
		})
		if err != nil {
			return err
		}
		shape := []int{len(b.q) / b.rank, b.rank}
		if err := npy.WriteFile(repair, b.dtype, shape, b.q); err != nil {
			return err
		}
		r.Files = append(r.Files, fmt.Sprintf("%s (%d × %d %s)", repair, shape[0], shape[1], b.dtype))
	}
	return nil
}

func names(infos []check.Info) []string {
	out := make([]string, len(infos))
	for i, c := range infos {
		out[i] = c.Name
	}
	return out
}
