package dump

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

// sequence is a row of a drawn batch: no column of it is padding.
type sequence struct {
	mask                 []bool
	logp, ids            []float64
	logits               [][3]float64
	score, group, prompt float64
	rewards              [2]float64
}

// drawSequences draws rows of different lengths, each with a token of the policy.
func drawSequences(t *rapid.T) []sequence {
	rows := make([]sequence, rapid.IntRange(1, 9).Draw(t, "rows"))
	value := rapid.Map(rapid.IntRange(-999, 999), func(n int) float64 { return float64(n) / 16 }) // exact in float32
	for i := range rows {
		s := &rows[i]
		n := rapid.IntRange(1, 7).Draw(t, "length")
		for range n {
			s.mask = append(s.mask, rapid.Bool().Draw(t, "mask"))
			s.logp = append(s.logp, value.Draw(t, "logp"))
			s.ids = append(s.ids, float64(rapid.IntRange(-100, 60_000).Draw(t, "id")))
			s.logits = append(s.logits, [3]float64{value.Draw(t, "logit"), value.Draw(t, "logit"), value.Draw(t, "logit")})
		}
		s.mask[rapid.IntRange(0, n-1).Draw(t, "one")] = true
		s.score, s.group, s.prompt = value.Draw(t, "score"), float64(rapid.IntRange(0, 3).Draw(t, "group")), float64(rapid.IntRange(0, 99).Draw(t, "prompt"))
		s.rewards = [2]float64{value.Draw(t, "reward"), value.Draw(t, "reward")}
	}
	return rows
}

// pack lays sequences into rows of cols columns; place gives row and first column of each.
func pack(seqs []sequence, rows, cols int, place [][2]int) []*Tensor {
	n := len(seqs)
	mask := make([]bool, rows*cols)
	logp := tensor("logp_new", format.F32, []int{rows, cols}, make([]float64, rows*cols)...)
	ids := tensor("response_ids", format.I32, []int{rows, cols}, make([]float64, rows*cols)...)
	input := tensor("input_ids", format.I64, []int{rows, cols}, make([]float64, rows*cols)...)
	logits := tensor("logits", format.F64, []int{rows, cols, 3}, make([]float64, 3*rows*cols)...)
	score := tensor("scores", format.F32, []int{n})
	group := tensor("group_id", format.I32, []int{n})
	prompt := tensor("prompt_len", format.U8, []int{n, 1})
	rewards := tensor("rewards_per_func", format.F32, []int{n, 2})
	for i, s := range seqs {
		at := place[i][0]*cols + place[i][1]
		copy(mask[at:], s.mask)
		copy(logp.Data[at:], s.logp)
		copy(ids.Data[at:], s.ids)
		copy(input.Data[at:], s.ids)
		for j, v := range s.logits {
			copy(logits.Data[3*(at+j):], v[:])
		}
		score.Data = append(score.Data, s.score)
		group.Data = append(group.Data, s.group)
		prompt.Data = append(prompt.Data, s.prompt)
		rewards.Data = append(rewards.Data, s.rewards[:]...)
	}
	return []*Tensor{NewMask("response_mask", rows, cols, mask), logp, ids, input, logits, score, group, prompt, rewards}
}

// pad lays sequences one to a row, as wide as the longest.
func pad(seqs []sequence) []*Tensor {
	cols := 0
	place := make([][2]int, len(seqs))
	for i, s := range seqs {
		cols = max(cols, len(s.mask))
		place[i] = [2]int{i, 0}
	}
	return pack(seqs, len(seqs), cols, place)
}

// requireSameBatch demands equal grids, tensors and metadata, wherever the rows come from.
func requireSameBatch(t require.TestingT, want, got *Batch) {
	require.Equal(t, []int{want.Rows, want.Cols}, []int{got.Rows, got.Cols})
	require.Equal(t, want.Mask, got.Mask)
	require.Equal(t, want.Names(), got.Names())
	for _, name := range want.Names() {
		if want.Tensors[name].Layout != PerFile {
			require.Equal(t, want.Tensors[name], got.Tensors[name])
		}
	}
	require.Equal(t, want.Meta.Options, got.Meta.Options)
	for row := range want.Rows {
		for col := range want.Cols {
			a, ok := want.TokenID(row, col)
			b, same := got.TokenID(row, col)
			if n := got.Origin[row].Cols; col < n { // behind it a wider file still has columns
				require.Equal(t, []any{a, ok}, []any{b, same})
			}
		}
	}
}

// checked is a rapid property in an empty folder of its own.
func checked(t *testing.T, law func(t *rapid.T, dir string)) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		law(t, dir)
	})
}

func load(t *rapid.T, patterns ...string) *Batch {
	r, err := Open(t.Context(), patterns)
	require.NoError(t, err)
	require.Len(t, r.Steps(), 1)
	b, err := r.Batch(t.Context(), r.Steps()[0])
	require.NoError(t, err)
	return b
}

// TestPoolingLaw: a batch cut into ranks and micro-batches, whatever the files are called, pools to the batch.
func TestPoolingLaw(t *testing.T) {
	checked(t, func(t *rapid.T, dir string) {
		seqs := drawSequences(t)
		meta := Meta{Step: 5, Options: []Option{{"beta", 0.5}, {"loss_type", "grpo"}}}
		whole := join(dir, "whole.safetensors")
		require.NoError(t, WriteFile(whole, meta, pad(seqs)...))

		cuts := rapid.SliceOfNDistinct(rapid.IntRange(1, max(1, len(seqs)-1)), 0, min(3, len(seqs)-1), rapid.ID[int]).Draw(t, "cuts")
		slices.Sort(cuts)
		var parts [][]sequence
		from := 0
		for _, cut := range append(cuts, len(seqs)) {
			parts = append(parts, seqs[from:cut])
			from = cut
		}
		perRank := rapid.IntRange(1, 3).Draw(t, "files per rank")
		names := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "names")
		pieces := join(dir, "pieces")
		require.NoError(t, os.Mkdir(pieces, 0o755))
		for i, part := range parts {
			meta.Rank, meta.MicroBatch = i/perRank, i%perRank
			require.NoError(t, WriteFile(join(pieces, fmt.Sprintf("%d.safetensors", names[i])), meta, pad(part)...))
		}
		want, got := load(t, whole), load(t, pieces)
		require.Len(t, got.Files, len(parts))
		require.Empty(t, got.Notes)
		require.Empty(t, got.Missing)
		requireSameBatch(t, want, got)
		for row, o := range got.Origin {
			require.Equal(t, len(pad(parts[o.File])[0].Data)/len(parts[o.File]), o.Cols)
			require.Equal(t, row, got.Files[o.File].Lo+o.Row)
		}
	})
}

// TestPackingLaw: sequences packed into rows give the batch of one sequence per row, by segment_ids or by cu_seqlens,
// in one file or in several.
func TestPackingLaw(t *testing.T) {
	checked(t, func(t *rapid.T, dir string) {
		seqs := drawSequences(t)
		meta := Meta{Step: 5}
		padded := join(dir, "padded.safetensors")
		require.NoError(t, WriteFile(padded, meta, pad(seqs)...))

		packed := join(dir, "packed")
		require.NoError(t, os.Mkdir(packed, 0o755))
		half := rapid.IntRange(1, len(seqs)).Draw(t, "in the first file")
		for i, part := range [][]sequence{seqs[:half], seqs[half:]} {
			if len(part) > 0 {
				meta.MicroBatch = i
				require.NoError(t, WriteFile(join(packed, fmt.Sprintf("%d.safetensors", i)), meta, drawPacked(t, part)...))
			}
		}
		want, got := load(t, padded), load(t, packed)
		require.Empty(t, got.Notes)
		requireSameBatch(t, want, got)
		for row, o := range got.Origin {
			require.Equal(t, len(seqs[row].mask), o.Cols)
		}
	})
}

// drawPacked packs sequences in order into rows, with padding behind them.
func drawPacked(t *rapid.T, seqs []sequence) []*Tensor {
	cols := rapid.IntRange(7, 20).Draw(t, "columns")
	place := make([][2]int, len(seqs))
	row, col := 0, 0
	for i, s := range seqs {
		if col+len(s.mask) > cols || col > 0 && rapid.IntRange(0, 3).Draw(t, "next row") == 0 {
			row, col = row+1, 0
		}
		place[i] = [2]int{row, col}
		col += len(s.mask)
	}
	rows := row + 1
	out := pack(seqs, rows, cols, place)
	if rapid.Bool().Draw(t, "by ends") {
		ends := tensor("cu_seqlens", format.I32, []int{rows, cols + 1}, make([]float64, rows*(cols+1))...)
		fill := rapid.Bool().Draw(t, "filled up with the last")
		for r := range rows {
			list := ends.Data[r*(cols+1) : (r+1)*(cols+1)]
			n, last := 1, 0.0
			for i, s := range seqs {
				if place[i][0] == r {
					last = float64(place[i][1] + len(s.mask))
					list[n] = last
					n++
				}
			}
			for ; n < len(list); n++ {
				if list[n] = -1; fill {
					list[n] = last
				}
			}
		}
		return append(out, ends)
	}
	ids := tensor("segment_ids", format.I64, []int{rows, cols}, slices.Repeat([]float64{float64(-rapid.IntRange(0, 1).Draw(t, "padding"))}, rows*cols)...)
	for i, s := range seqs {
		for j := range s.mask {
			ids.Data[place[i][0]*cols+place[i][1]+j] = float64(i + 1)
		}
	}
	return append(out, ids)
}

// TestRoundTrip: what WriteFile writes, Open reads: metadata and tensors of every type that it serves.
func TestRoundTrip(t *testing.T) {
	text := rapid.StringMatching(`[a-z0-9._/"\\é☃ -]{1,12}`)
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }), rapid.Map(text, func(s string) any { return s }),
		rapid.Map(rapid.Float64(), func(f float64) any { return f }), rapid.Map(rapid.IntRange(-1<<53, 1<<53), func(n int) any { return float64(n) }),
	)
	value := rapid.OneOf(leaf, rapid.Map(rapid.SliceOfN(leaf, 0, 3), func(l []any) any { return l }), rapid.Map(rapid.MapOfN(text, leaf, 0, 3), func(m map[string]any) any { return m }))
	types := rapid.SampledFrom([]format.DType{format.F64, format.F32, format.BF16, format.F16})
	checked(t, func(t *rapid.T, dir string) {
		m := Meta{
			Framework: text.Draw(t, "framework"), Algorithm: rapid.SampledFrom([]string{"", "ppo", "grpo"}).Draw(t, "algorithm"), Step: rapid.IntRange(0, maxPosition).Draw(t, "step"),
			WorldSize: rapid.IntRange(1, 9).Draw(t, "world"), DLogpScale: rapid.SampledFrom([]float64{1, 0.125, -3}).Draw(t, "scale"), Align: Align(rapid.IntRange(0, 1).Draw(t, "align")),
			ComputeDType: rapid.SampledFrom([]string{"", "bfloat16", "float32"}).Draw(t, "dtype"), ScalarsScope: rapid.SampledFrom([]string{"", "micro_batch"}).Draw(t, "scope"),
		}
		m.Rank = rapid.IntRange(0, m.WorldSize-1).Draw(t, "rank")
		if rapid.Bool().Draw(t, "say") {
			yes, fill := rapid.Bool().Draw(t, "includes"), rapid.Float64().Draw(t, "fill")
			m.TokenLossIncludesKL, m.MaskedFill = &yes, &fill
		}
		for _, name := range rapid.SliceOfNDistinct(text, 0, 5, rapid.ID[string]).Draw(t, "options") {
			m.Options = append(m.Options, Option{name, value.Draw(t, "value")})
			m.Scalars = append(m.Scalars, Scalar{name, rapid.Float64().Draw(t, "scalar")})
		}
		d := types.Draw(t, "type")
		logp := tensor("logp_new", d, []int{2, 3})
		for range 6 {
			logp.Data = append(logp.Data, format.Round(rapid.Float64().Draw(t, "logp"), d))
		}
		if logp.Casts = rapid.Bool().Draw(t, "cast"); logp.Casts {
			m.Lossy = []string{"logp_new"}
		}
		path := join(dir, "a.safetensors")
		in := m
		in.Lossy = nil
		require.NoError(t, WriteFile(path, in, NewMask("response_mask", 2, 3, []bool{false, true, true, false, true, false}), logp,
			tensor("group_id", rapid.SampledFrom([]format.DType{format.I32, format.I64, format.U8, format.F32}).Draw(t, "ids"), []int{2}, 3, 200)))
		b := load(t, path)
		require.Equal(t, m, b.Meta)
		logp.Width = 1
		require.Equal(t, logp, b.Tensors["logp_new"])
		require.Equal(t, []float64{3, 200}, b.Row("group_id"))
		require.Empty(t, b.Notes)

		first, err := os.ReadFile(path)
		require.NoError(t, err)
		again := join(dir, "b.safetensors")
		require.NoError(t, WriteFile(again, b.Meta, NewMask("response_mask", b.Rows, b.Cols, b.Mask), b.Tensors["logp_new"], b.Tensors["group_id"]))
		second, err := os.ReadFile(again)
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.Len(t, must(filepath.Glob(join(dir, "*"))), 2)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
