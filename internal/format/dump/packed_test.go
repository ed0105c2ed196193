package dump

import (
	"archive/zip"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
)

// TestPacked takes two packed rows apart: sequences of three and two tokens with a cell of padding, and one of four.
func TestPacked(t *testing.T) {
	ids := tensor("segment_ids", format.I32, []int{2, 6}, 1, 1, 1, 2, 2, 0, 7, 7, 7, 7, -1, -1)
	ends := tensor("cu_seqlens", format.I64, []int{2, 4}, 0, 3, 5, 5, 0, 4, -1, -1)
	for name, by := range map[string][]*Tensor{"segment_ids": {ids}, "cu_seqlens": {ends}, "both": {ids, ends}} {
		t.Run(name, func(t *testing.T) {
			path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0}`, append(by,
				mask("response_mask", "011010", "001100"), f32("logp_new", 0, 2, 6), f32("scores", 1, 3), f32("rewards_per_func", 1, 3, 2),
				f32("advantages", 0, 2, 6), f32("is_weights", 5, 3, 1), tensor("input_ids", format.I32, []int{2, 6}, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21),
				f32("logits", 0, 2, 6, 2), f32("loss", 1))...)
			b := mustBatch(t, path)
			require.Empty(t, b.Notes)
			require.Equal(t, []int{3, 4}, []int{b.Rows, b.Cols})
			require.Equal(t, []Origin{{0, 0, 0, 3}, {0, 0, 3, 2}, {0, 1, 0, 4}}, b.Origin)
			require.Equal(t, []bool{false, true, true, false, false, true, false, false, false, false, true, true}, b.Mask)
			require.Equal(t, []float64{0, 1, 2, 0, 3, 4, 0, 0, 6, 7, 8, 9}, b.Token("logp_new"))
			require.Equal(t, b.Token("logp_new"), b.Token("advantages"))
			require.Equal(t, []float64{1, 2, 3}, b.Row("scores"))
			require.Equal(t, []float64{5, 6, 7}, b.Row("is_weights"))
			require.Equal(t, []float64{1, 2, 3, 4, 5, 6}, b.Row("rewards_per_func"))
			require.Equal(t, []float64{10, 11, 12, 0, 13, 14, 0, 0, 16, 17, 18, 19}, b.Row("input_ids"))
			require.Equal(t, []int{3, 4, 2}, b.Tensors["logits"].Shape)
			require.Equal(t, []float64{0, 1, 2, 3, 4, 5, 0, 0, 6, 7, 8, 9, 0, 0, 0, 0, 12, 13, 14, 15, 16, 17, 18, 19}, b.Token("logits"))
			require.True(t, b.Files[0].Packed)
			require.Equal(t, [2]int{2, 6}, b.Files[0].Stored)
			require.Equal(t, 4, b.Files[0].Cols)
			id, ok := b.TokenID(1, 1)
			require.True(t, ok)
			require.Equal(t, 14, id)
			_, ok = b.TokenID(1, 2)
			require.False(t, ok)
		})
	}
}

// TestSegments splits rows by their numbers alone.
func TestSegments(t *testing.T) {
	for _, c := range []struct {
		ids  []float64
		mask string
		want []segment
	}{
		{[]float64{0, 0, 1, 1}, "0101", []segment{{0, 0, 2}, {0, 2, 4}}},                 // numbers from 0, no padding
		{[]float64{1, 1, 0, 0}, "0100", []segment{{0, 0, 2}}},                            // padding 0
		{[]float64{0, 0, 1, 1}, "0001", []segment{{0, 2, 4}}},                            // padding on the left
		{[]float64{-1, 3, 3, -1}, "0010", []segment{{0, 1, 3}}},                          // padding −1
		{[]float64{1, 2, 1, 1}, "1111", []segment{{0, 0, 1}, {0, 1, 2}, {0, 2, 4}}},      // a change begins another, whatever the number
		{[]float64{1, 1, 2, 2}, "1100", []segment{{0, 0, 2}, {0, 2, 4}}},                 // a sequence without a response
		{[]float64{-5, -5, -5, -5}, "1000", []segment{{0, 0, 4}}},                        // a negative number with a response
		{[]float64{-1, -1, -2, -2}, "0001", []segment{{0, 2, 4}}},                        // and beside padding
		{[]float64{4, 4, 4, 4}, "0000", []segment{{0, 0, 4}}},                            // a row without a response
		{[]float64{1, 0, 0, 2}, "1001", []segment{{0, 0, 1}, {0, 3, 4}}},                 // padding in between
		{[]float64{9, 9, 8, 0x1p53}, "1111", []segment{{0, 0, 2}, {0, 2, 3}, {0, 3, 4}}}, // any numbers
	} {
		m := mask("response_mask", c.mask)
		path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0}`, m, tensor("segment_ids", format.F64, []int{1, 4}, c.ids...))
		var got []segment
		for _, o := range mustBatch(t, path).Origin {
			got = append(got, segment{o.Row, o.Col, o.Col + o.Cols})
		}
		require.Equal(t, c.want, got, c.ids)
	}
}

// TestAlign gives every column its token: shifted ones the next, unshifted ones their own.
func TestAlign(t *testing.T) {
	ids := tensor("input_ids", format.I64, []int{1, 4}, 10, 11, 12, 13)
	packed := tensor("segment_ids", format.I64, []int{1, 3}, 1, 1, 2)
	for _, c := range []struct {
		align   string
		tensors []*Tensor
		row     int
		want    []int
	}{
		{"shifted", []*Tensor{ids, mask("response_mask", "011")}, 0, []int{11, 12, 13}},
		{"unshifted", []*Tensor{ids, mask("response_mask", "0011")}, 0, []int{10, 11, 12, 13}},
		{"response", []*Tensor{ids, mask("response_mask", "11")}, 0, []int{12, 13}},
		{"response", []*Tensor{ids, mask("response_mask", "11111")}, 0, nil}, // fewer tokens than columns: not to be told
		{"shifted", []*Tensor{ids, mask("response_mask", "011"), packed}, 1, []int{13}},
	} {
		path := put(t, join(t.TempDir(), "a.safetensors"), fmt.Sprintf(`{"schema":1,"step":0,"align":%q}`, c.align), c.tensors...)
		b := mustBatch(t, path)
		require.Equal(t, c.align, b.Meta.Align.String())
		var got []int
		for col := -1; col <= b.Cols; col++ {
			if id, ok := b.TokenID(c.row, col); ok {
				got = append(got, id)
			}
		}
		require.Equal(t, c.want, got)
	}
	// Columns of a packed row that input_ids do not share.
	path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0}`, ids, mask("response_mask", "011"), packed)
	b := mustBatch(t, path)
	require.Equal(t, []string{path + ": input_ids cannot be given to the sequences of packed rows, since it has other columns than response_mask: ignored"}, b.Notes)
	_, ok := b.TokenID(0, 0)
	require.False(t, ok)
}

// TestLogitsOfSomeRows reads logits that not all rows have.
func TestLogitsOfSomeRows(t *testing.T) {
	dir := t.TempDir()
	m := mask("response_mask", "01", "11", "01")
	put(t, join(dir, "a.safetensors"), `{"schema":1,"step":0,"options":{"logits_rows":[0,2]}}`, m, f32("logits", 0, 2, 2, 2))
	put(t, join(dir, "b.safetensors"), `{"schema":1,"step":0,"rank":1}`, mask("response_mask", "111"))
	put(t, join(dir, "c.safetensors"), `{"schema":1,"step":0,"rank":2}`, mask("response_mask", "1"), f32("logits", 90, 1, 1, 2))
	b := mustBatch(t, dir)
	l := b.Tensors["logits"]
	require.Equal(t, Slice, l.Layout)
	require.Nil(t, b.Token("logits"))
	require.Equal(t, []int{0, 2, 4}, l.Rows)
	require.Equal(t, []int{3, 3, 2}, l.Shape)
	require.Equal(t, []float64{0, 1, 2, 3, 0, 0, 4, 5, 6, 7, 0, 0, 90, 91, 0, 0, 0, 0}, l.Data)
	require.Empty(t, b.Notes)
	require.Empty(t, b.Meta.Options)

	b = mustBatch(t, join(dir, "c.safetensors"))
	require.Equal(t, PerToken, b.Tensors["logits"].Layout)
	require.Equal(t, []float64{90, 91}, b.Token("logits"))
}

// TestDPO reads a dump of direct preference optimisation, a row per pair.
func TestDPO(t *testing.T) {
	path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0,"algorithm":"DPO"}`,
		f32("logp_chosen", 1, 2), f32("logp_rejected", 3, 2, 1), f32("ref_chosen", 5, 2), f32("loss", 9), f32("logp_new", 0, 4, 7), mask("response_mask", "01"))
	b := mustBatch(t, path)
	require.Equal(t, []int{2, 1}, []int{b.Rows, b.Cols})
	require.Equal(t, []bool{true, true}, b.Mask)
	require.Equal(t, []float64{3, 4}, b.Row("logp_rejected"))
	require.Equal(t, []string{"logp_chosen", "logp_rejected", "loss", "ref_chosen"}, b.Names())
	require.Equal(t, []string{path + `: not part of a dump of algorithm "dpo", ignored: ["logp_new" "response_mask"]`}, b.Notes)
	require.Equal(t, "dpo", b.Meta.Algorithm)
	_, ok := b.TokenID(0, 0)
	require.False(t, ok)

	// no algorithm is said: pairs are told by what they have, unless tokens are there, too
	path = put(t, join(t.TempDir(), "b.safetensors"), `{"schema":1,"step":0}`, f32("logp_chosen", 1, 2), f32("logp_rejected", 3, 2, 1), f32("loss", 9))
	b = mustBatch(t, path)
	require.Equal(t, "dpo", b.Meta.Algorithm)
	require.Equal(t, []float64{3, 4}, b.Row("logp_rejected"))
	require.Equal(t, []string{path + `: the metadata say no algorithm: the rows are pairs, as ["logp_chosen" "logp_rejected"] are`}, b.Notes)
	path = put(t, join(t.TempDir(), "c.safetensors"), `{"schema":1,"step":0}`, f32("logp_chosen", 1, 2), f32("logp_rejected", 3, 2, 1), f32("logp_new", 0, 2, 1), mask("response_mask", "1", "1"))
	require.Empty(t, mustBatch(t, path).Meta.Algorithm)
}

// TestSFT takes labels_mask for the grid.
func TestSFT(t *testing.T) {
	path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0,"algorithm":"sft","align":"shifted"}`, mask("labels_mask", "0110"), f32("logp_new", 0, 1, 4), f32("loss", 9))
	b := mustBatch(t, path)
	require.Equal(t, []bool{false, true, true, false}, b.Mask)
	require.Equal(t, []string{"logp_new", "loss"}, b.Names())
	require.Empty(t, b.Notes)
}

// TestNonFinite keeps NaN and infinities, inside the mask and outside.
func TestNonFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0}`, mask("response_mask", "01"), tensor("logp_new", format.F32, []int{1, 2}, nan, inf), tensor("loss", format.F32, nil, nan))
	b := mustBatch(t, path)
	require.True(t, math.IsNaN(b.Token("logp_new")[0]))
	require.Equal(t, inf, b.Token("logp_new")[1])
	require.True(t, math.IsNaN(b.PerFile("loss")[0]))
}

// TestNPZ reads an archive: a mask in Fortran order, a view of bfloat16 as uint16 and as two bytes without a type.
func TestNPZ(t *testing.T) {
	path := join(t.TempDir(), "a.npz")
	f, err := os.Create(path)
	require.NoError(t, err)
	z := zip.NewWriter(f)
	w, err := z.Create("response_mask.npy")
	require.NoError(t, err)
	dict := fmt.Sprintf("%-117s\n", "{'descr': '|b1', 'fortran_order': True, 'shape': (2, 3), }")
	_, err = w.Write(append([]byte("\x93NUMPY\x01\x00\x76\x00"), dict+"\x01\x00\x01\x01\x01\x00"...)) // columns 10 11 10
	require.NoError(t, err)
	bf16 := format.Encode(nil, []float64{1, 2, 3, 4, 5, -0.5}, format.BF16)
	for _, m := range []member{
		{Name: "logp_new", DType: format.U16, Shape: []int{2, 3}, Raw: bf16},
		{Name: "logp_old", DType: format.BF16, Shape: []int{2, 3}, Raw: bf16},
		{Name: "unread", DType: format.U8, Shape: []int{2}, Raw: []byte{1, 2}},
	} {
		w, err := z.Create(m.Name + ".npy")
		require.NoError(t, err)
		_, err = w.Write(append(npy.Header(m.DType, m.Shape), m.Raw...))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())
	putText(t, join(path[:len(path)-len(extNPZ)]+extJSON), `{"schema":1,"step":4,"bf16":["logp_old","logp_new","logp_ref"]}`)
	b := mustBatch(t, path)
	require.Equal(t, []bool{true, true, true, false, true, false}, b.Mask)
	require.Equal(t, []float64{1, 2, 3, 4, 5, -0.5}, b.Token("logp_new"))
	require.Equal(t, b.Token("logp_new"), b.Token("logp_old"))
	require.Equal(t, format.BF16, b.Tensors["logp_new"].Type)
	require.Equal(t, []string{
		path + ": response_mask is stored in Fortran order and was transposed",
		path + `: logp_old: "|V2" is taken to be bfloat16`,
		path + `: unknown tensors are ignored: ["unread"]`,
	}, b.Notes)
	_, err = OpenWith(t.Context(), []string{path}, npy.Options{MaxUncompressed: 10})
	require.NoError(t, err)
	r, err := OpenWith(t.Context(), []string{path}, npy.Options{MaxUncompressed: 10})
	require.NoError(t, err)
	_, err = r.Batch(t.Context(), 4)
	require.ErrorContains(t, err, "--max-uncompressed")
}
