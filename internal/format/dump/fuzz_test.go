package dump

import (
	"os"
	"runtime/metrics"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// requireSound demands what every batch keeps: grid, origins and tensors fit each other.
func requireSound(t *testing.T, b *Batch) {
	require.Positive(t, b.Rows)
	require.Positive(t, b.Cols)
	require.Len(t, b.Mask, b.Rows*b.Cols)
	require.Len(t, b.Origin, b.Rows)
	for row, o := range b.Origin {
		f := b.Files[o.File]
		require.True(t, f.Lo <= row && row < f.Hi && 0 < o.Cols && o.Cols <= f.Cols && f.Cols <= b.Cols && o.Row < f.Stored[0] && o.Col+o.Cols <= f.Stored[1])
		for col := range b.Cols {
			if col >= o.Cols {
				require.False(t, b.Mask[row*b.Cols+col])
			}
			b.TokenID(row, col)
		}
	}
	for name, x := range b.Tensors {
		require.Equal(t, name, x.Name)
		size := 1
		for _, d := range x.Shape {
			size *= d
		}
		require.Len(t, x.Data, size)
		switch x.Layout {
		case PerToken:
			require.Equal(t, b.Rows*b.Cols*x.Width, size)
		case PerRow:
			require.Equal(t, b.Rows*x.Width, size)
		case PerFile:
			require.Equal(t, len(b.Files), size)
		case Slice:
			require.Equal(t, len(x.Rows)*b.Cols*x.Width, size)
		}
	}
}

// FuzzDump reads one file, with its metadata inside or beside it. Whatever they are, there is a batch that is sound and
// comes back from being written, or an error that says that the content was refused.
func FuzzDump(f *testing.F) {
	dir := f.TempDir()
	seed := func(text string, tensors ...*Tensor) {
		for _, beside := range []string{"", text} {
			inside := text
			if beside != "" {
				inside = ""
			}
			f.Add(image(f, inside, tensors...), beside)
		}
	}
	m := mask("response_mask", "011010", "001100")
	ids := tensor("segment_ids", format.I32, []int{2, 6}, 1, 1, 1, 2, 2, 0, 7, 7, 7, 7, -1, -1)
	seed(`{"schema":1,"step":3,"options":{"beta":0.04,"w":[1,null,{"a":true}]},"scalars":{"kl":null,"loss":0.5}}`, m, f32("logp_new", 0, 2, 6), f32("advantages", 0, 2), f32("loss", 1))
	seed(`{"schema":1}`, m, ids, f32("logp_new", 0, 2, 6), f32("scores", 0, 3), tensor("input_ids", format.U8, []int{2, 6}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
	seed(`{"schema":1}`, m, tensor("cu_seqlens", format.I64, []int{2, 4}, 0, 3, 5, 5, 0, 4, -1, -1), f32("is_weights", 0, 3, 1), f32("rewards_per_func", 0, 3, 2))
	seed(`{"schema":1,"logits_rows":[1],"lossy":["kl"],"bf16":["kl"]}`, m, f32("logits", 0, 1, 6, 2), tensor("kl", format.BF16, []int{2, 6}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
	seed(`{"schema":1,"algorithm":"dpo"}`, f32("logp_chosen", 1, 2), f32("logp_rejected", 1, 2), f32("grad/x", 1, 3))
	seed(`{"schema":1,"algorithm":"sft","align":"unshifted"}`, mask("labels_mask", "011"), tensor("input_ids", format.I64, []int{1, 3}, 1, 2, 3))
	for _, m := range []member{{Name: "logp_new", DType: format.U16, Shape: []int{1, 2}, Raw: make([]byte, 4)}, {Name: "kl", DType: format.BF16, Shape: []int{1, 2}, Data: []float64{1, 2}}} {
		f.Add(archive(f, member{Name: "response_mask", DType: format.Bool, Shape: []int{1, 2}, Data: []float64{0, 1}}, m), `{"schema":1,"bf16":["logp_new","kl"]}`)
	}
	f.Fuzz(func(t *testing.T, file []byte, beside string) {
		path, json := join(dir, "a.safetensors"), join(dir, "a.json")
		if len(file) > 2 && string(file[:2]) == "PK" {
			path = join(dir, "a.npz")
		}
		require.NoError(t, os.WriteFile(path, file, 0o644))
		os.Remove(json)
		if beside != "" {
			require.NoError(t, os.WriteFile(json, []byte(beside), 0o644))
		}
		before := allocated()
		b, err := batch(t, path)
		require.Less(t, allocated()-before, int64(4*(len(file)+len(beside))+16<<20+2*8*smallValues))
		if err != nil {
			require.True(t, format.IsMalformed(err), err)
			require.Contains(t, err.Error(), dir)
			return
		}
		requireSound(t, b)
		if b.Meta.Algorithm == "dpo" || b.Meta.Align == AlignUnshifted && b.Files[0].Packed {
			return
		}
		name := responseMask
		if b.Meta.Algorithm == "sft" {
			name = labelsMask
		}
		tensors := []*Tensor{NewMask(name, b.Rows, b.Cols, b.Mask)}
		for _, n := range b.Names() {
			if x := b.Tensors[n]; x.Layout != Slice && x.Type.Float() {
				tensors = append(tensors, x)
			}
		}
		again := join(dir, "again.safetensors")
		text, err := b.Meta.appendJSON(nil)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(again, image(t, string(text), tensors...), 0o644)) // WriteFile would wait for the disk
		c, err := batch(t, again)
		require.NoError(t, err)
		require.Equal(t, b.Mask, c.Mask)
		require.Equal(t, len(tensors)-1, len(c.Tensors))
	})
}

// allocated returns the bytes allocated so far.
func allocated() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
