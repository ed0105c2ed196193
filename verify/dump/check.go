package dump

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Step is what a trainer computed in one optimisation step, in memory: dump.md names the tensors. What is not there is left
// out, never filled with zeros.
type Step struct {
	Number     int
	Rows, Cols int
	Mask       []bool               // [Rows, Cols], the response_mask
	Tokens     map[string][]float64 // [Rows, Cols]: "logp_new", "advantages", …
	PerRow     map[string][]float64 // [Rows]: "scores", "group_id", "advantages", …
	Losses     map[string]float64   // scalars as back-propagated: "loss", "pg_loss", …
	Logged     map[string]float64   // what the trainer logged: "kl", "clip_frac", …
	Type       string               // in which the numbers were computed: "float64", "float32", "bfloat16", "float16"; "" is float64

	Framework, Version, Algorithm string         // free text, see dump.md
	Options                       map[string]any // under plumbline's names or the framework's: bool, float64, string, nil, []any
}

// Check judges steps in memory, as [CheckFiles] judges files.
//
// Errors: a tensor that has another length than its shape, a name that dump.md does not have, two steps of one number.
func Check(ctx context.Context, o Options, steps ...Step) ([]check.Result, error) {
	dir, err := os.MkdirTemp("", "verify-dump-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for i := range steps {
		if err := steps[i].write(filepath.Join(dir, fmt.Sprintf("step_%06d.safetensors", i))); err != nil {
			return nil, fmt.Errorf("step %d: %w", steps[i].Number, err)
		}
	}
	results, err := CheckFiles(ctx, o, dir)
	for i := range results {
		results[i].Repeat = "" // the files are gone
	}
	return results, err
}

// CheckFiles judges dumps: files, folders whose files are taken, and globs.
func CheckFiles(ctx context.Context, o Options, paths ...string) ([]check.Result, error) {
	run, err := dump.Open(ctx, paths)
	if err != nil {
		return nil, err
	}
	r, err := Judge(ctx, run, o)
	if err != nil {
		return nil, err
	}
	return r.Results, nil
}

// T is what [Require] needs of a *testing.T.
type T interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// Require fails the test unless the dumps pass: something decisive was checked, nothing failed, and nothing that is there
// was left undecided. CONVENTION fails, since a test declares what it wants.
func Require(t T, o Options, paths ...string) {
	t.Helper()
	results, err := CheckFiles(t.Context(), o, paths...)
	if err != nil {
		t.Fatalf("verify dump %s: %v", strings.Join(paths, " "), err)
		return
	}
	if code := check.Exit(results, check.Policy{Declared: true}); code != check.ExitPass {
		t.Fatalf("verify dump %s: exit code %d\n%s", strings.Join(paths, " "), code, findings(results))
	}
}

// findings writes what did not pass, a finding in a few lines.
func findings(results []check.Result) string {
	var b strings.Builder
	for _, r := range results {
		if r.Verdict != check.Fail && r.Verdict != check.Convention && r.Verdict != check.Undetermined {
			continue
		}
		fmt.Fprintf(&b, "%s  %s  %s", r.Verdict, r.Check, r.Subject)
		if r.Metric != "" {
			fmt.Fprintf(&b, "  %s = %.4g, limit %.4g", r.Metric, r.Measured, r.Limit)
		}
		b.WriteByte('\n')
		line := func(name, text string) {
			if text != "" {
				fmt.Fprintf(&b, "      %-12s %s\n", name, text)
			}
		}
		line("finding", r.Reason)
		line("where", r.Where)
		for _, e := range r.Explanations {
			line("explanation", strings.TrimPrefix(e.Fault+": "+e.Title, ": "))
		}
		line("fix", r.Fix)
	}
	if b.Len() == 0 {
		return "nothing decisive was checked"
	}
	return b.String()
}

// write writes a step as a file.
func (s *Step) write(path string) error {
	types := map[string]format.DType{"": format.F64, "float64": format.F64, "float32": format.F32, "bfloat16": format.BF16, "float16": format.F16}
	dtype, known := types[s.Type]
	if !known {
		return fmt.Errorf("type %q: want float64, float32, bfloat16 or float16", s.Type)
	}
	if len(s.Mask) != s.Rows*s.Cols {
		return fmt.Errorf("field Mask has %d elements, want %d × %d", len(s.Mask), s.Rows, s.Cols)
	}
	m := dump.Meta{Framework: s.Framework, Version: s.Version, Algorithm: s.Algorithm, Step: s.Number, DLogpScale: 1, ComputeDType: s.Type}
	for _, name := range slices.Sorted(maps.Keys(s.Options)) {
		m.Options = append(m.Options, dump.Option{Name: name, Value: s.Options[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Logged)) {
		m.Scalars = append(m.Scalars, dump.Scalar{Name: name, Value: s.Logged[name]})
	}
	tensors := []*dump.Tensor{dump.NewMask("response_mask", s.Rows, s.Cols, s.Mask)}
	add := func(name string, data []float64, shape ...int) error {
		want := 1
		for _, n := range shape {
			want *= n
		}
		if len(data) != want {
			return fmt.Errorf("%s has %d elements, want %d of the shape %v", name, len(data), want, shape)
		}
		t := &dump.Tensor{Name: name, Width: 1, Shape: shape, Data: data, Type: dtype}
		if integers[name] {
			t.Type = format.I64
		}
		tensors = append(tensors, t)
		return nil
	}
	for _, group := range []struct {
		of    map[string][]float64
		shape []int
	}{{s.Tokens, []int{s.Rows, s.Cols}}, {s.PerRow, []int{s.Rows}}} {
		for _, name := range slices.Sorted(maps.Keys(group.of)) {
			if err := add(name, group.of[name], group.shape...); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Losses)) {
		if err := add(name, []float64{s.Losses[name]}); err != nil {
			return err
		}
	}
	return dump.WriteFile(path, m, tensors...)
}

// integers are the tensors that hold whole numbers.
var integers = map[string]bool{"response_ids": true, "group_id": true, "prompt_len": true, "segment_ids": true, "dones": true}
