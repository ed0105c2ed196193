package dump_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// packing says which cells of the rows of a padded batch go where.
type packing struct {
	of    [][]int // rows of the batch in a packed row
	cells []int   // of a row: its response and one more, if there is one
	cols  int
}

// packed returns how the rows of b fit into rows of at least the given number of cells. Where padding counts, it is kept.
func packed(b *dumpfile.Batch, atLeast int, padding bool) packing {
	p := packing{of: [][]int{nil}}
	used := 0
	for r := range b.Rows {
		last := 0
		for t := range b.Cols {
			if padding || b.Mask[r*b.Cols+t] {
				last = t
			}
		}
		n := min(last+2, b.Cols)
		p.cells = append(p.cells, n)
		p.of[len(p.of)-1] = append(p.of[len(p.of)-1], r)
		used += n
		p.cols = max(p.cols, used)
		if used >= atLeast && r+1 < b.Rows {
			p.of, used = append(p.of, nil), 0
		}
	}
	return p
}

// rows gives a per-token tensor its place in the packed rows.
func (p packing) rows(x []float64, cols, width int) []float64 {
	y := make([]float64, len(p.of)*p.cols*width)
	for row, list := range p.of {
		at := row * p.cols * width
		for _, r := range list {
			at += copy(y[at:], x[r*cols*width:(r*cols+p.cells[r])*width])
		}
	}
	return y
}

// write writes b with its rows packed, their sequences told apart by segment_ids or by cu_seqlens.
func (p packing) write(t *testing.T, path string, b *dumpfile.Batch, by string) {
	t.Helper()
	m := b.Meta
	m.Scalars = b.Files[0].Scalars
	mask := make([]float64, len(b.Mask))
	for i, v := range b.Mask {
		if v {
			mask[i] = 1
		}
	}
	shape := []int{len(p.of), p.cols}
	tensors := []*dumpfile.Tensor{{Name: "response_mask", Shape: shape, Type: format.Bool, Data: p.rows(mask, b.Cols, 1)}}
	for _, name := range b.Names() {
		x := *b.Tensors[name]
		if x.Layout == dumpfile.PerToken {
			x.Data = p.rows(x.Data, b.Cols, max(x.Width, 1))
			x.Shape = slices.Concat(shape, x.Shape[2:])
		} else if x.Layout == dumpfile.PerFile {
			x.Shape = nil
		}
		tensors = append(tensors, &x)
	}
	most := 0
	for _, list := range p.of {
		most = max(most, len(list))
	}
	ids, ends := make([]float64, len(p.of)*p.cols), make([]float64, len(p.of)*(most+1))
	for row, list := range p.of {
		at := 0
		for i, r := range list {
			for range p.cells[r] {
				ids[row*p.cols+at] = float64(i + 1)
				at++
			}
			ends[row*(most+1)+i+1] = float64(at)
		}
		for i := len(list) + 1; i <= most; i++ {
			ends[row*(most+1)+i] = -1
		}
	}
	switch by {
	case "segment_ids":
		tensors = append(tensors, &dumpfile.Tensor{Name: by, Shape: shape, Type: format.I32, Data: ids})
	case "cu_seqlens":
		tensors = append(tensors, &dumpfile.Tensor{Name: by, Shape: []int{len(p.of), most + 1}, Type: format.I32, Data: ends})
	}
	require.NoError(t, dumpfile.WriteFile(path, m, tensors...))
}

// TestPackedAndPadded judges one batch in three forms: the verdicts and the numbers are the same, check by check.
func TestPackedAndPadded(t *testing.T) {
	for i, p := range convention.Profiles() {
		t.Run(p.Name, func(t *testing.T) {
			set := trainer.Complete(p, rand.New(rand.NewPCG(uint64(i), 79)))
			b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 16, Cols: 20, Seed: uint64(i), Holes: i%2 == 0})
			b = plant.Declared(b, set).Without("input_ids", "attention_mask", "prompt_len") // which have other columns
			if x := b.Tensors["kl"]; x != nil && x.Layout == dumpfile.PerRow {
				b = b.Without("kl")
			}
			padded := t.TempDir()
			writeFiles(t, padded, b)
			want := judgeFiles(t, dump.Options{}, padded)
			form := packed(b, 48, set.Value("mask.tokens").String() == "none")
			require.Less(t, len(form.of), b.Rows/2, "several rows in one")
			for _, by := range []string{"segment_ids", "cu_seqlens"} {
				path := filepath.Join(t.TempDir(), "step_000001_rank_0_mb_0.safetensors")
				form.write(t, path, b, by)
				sameResults(t, want, judgeFiles(t, dump.Options{}, path), by)
			}
		})
	}
}

func sameResults(t *testing.T, want, got *dump.Report, what string) {
	t.Helper()
	at := map[string]check.Result{}
	for _, r := range got.Results {
		at[r.Check] = r
	}
	for _, w := range want.Results {
		g, ok := at[w.Check]
		require.True(t, ok, "%s: no %s", what, w.Check)
		require.Equal(t, w.Verdict.String(), g.Verdict.String(), "%s: %s: %s, %s", what, w.Check, w.Reason, g.Reason)
		require.Equal(t, []float64{w.Measured, w.Limit}, []float64{g.Measured, g.Limit}, "%s: %s", what, w.Check)
		if w.Compared == g.Compared { // a gradient is judged in the cells of padding, too, and has a median over other cells
			require.Equal(t, w.Resolution, g.Resolution, "%s: %s", what, w.Check)
		}
	}
	require.Len(t, got.Results, len(want.Results))
}
