package dump

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// TestRefusedMetadata demands that what a file says of itself is refused with the key, whatever its tensors.
func TestRefusedMetadata(t *testing.T) {
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	for _, c := range []struct{ name, text, want string }{
		{"no schema", `{"step":1}`, "key schema: is missing, want 1"},
		{"schema 3", `{"schema":3}`, `key "schema", byte 10: is 3, want 1 to 2`},
		{"schema as text", `{"schema":"1"}`, `key "schema", byte 10: found a string, want a number`},
		{"schema null", `{"schema":null}`, `key "schema", byte 10: found null, want a number`},
		{"schema with a point", `{"schema":1.0}`, "found 1.0, want an integer"},
		{"not an object", `[1]`, "found an array, want an object"},
		{"not JSON", `{'schema':1}`, "want a key in quotes"},
		{"cut", `{"schema":1`, "found the end of the data"},
		{"text behind it", `{"schema":1} x`, "after the end of the JSON document"},
		{"duplicate key", `{"schema":1,"step":1,"step":2}`, `duplicate key "step"`},
		{"duplicate option", `{"schema":1,"options":{"beta":1,"beta":1}}`, `duplicate key "beta"`},
		{"too deep", `{"schema":1,"options":{"a":` + deep + `}}`, "nested deeper than 64"},
		{"step negative", `{"schema":1,"step":-1}`, `key "step", byte 19: is -1, want at least 0`},
		{"step 2⁶²", `{"schema":1,"step":4611686018427387904}`, "want at most 2⁵³"},
		{"step as text", `{"schema":1,"step":"3"}`, `key "step", byte 19: found a string`},
		{"step 1.5", `{"schema":1,"step":1.5}`, "found 1.5, want an integer"},
		{"world_size 0", `{"schema":1,"world_size":0}`, "is 0, want at least 1"},
		{"rank beyond world_size", `{"schema":1,"rank":4,"world_size":4}`, "key rank: is 4, but world_size is 4"},
		{"micro_batch beyond", `{"schema":1,"micro_batch":2,"micro_batches":2}`, "key micro_batch: is 2, but micro_batches is 2"},
		{"align", `{"schema":1,"align":"left"}`, `is "left", want response, shifted or unshifted`},
		{"framework a number", `{"schema":1,"framework":1}`, `key "framework"`},
		{"version a number", `{"schema":1,"version":1.16}`, `key "version", byte 22: found a number, want a string`},
		{"options an array", `{"schema":1,"options":[]}`, `key "options", byte 22: found an array, want an object`},
		{"scalars an array", `{"schema":1,"scalars":[]}`, `key "scalars", byte 22: found an array`},
		{"scalar as text", `{"schema":1,"scalars":{"loss":"nan"}}`, `key "scalars", "loss", byte 30: found a string, want a number`},
		{"scalar NaN", `{"schema":1,"scalars":{"loss":NaN}}`, "a number that is not finite is written as null"},
		{"scalar -Infinity", `{"schema":1,"scalars":{"loss":-Infinity}}`, "a number that is not finite is written as null"},
		{"scalar 1e999", `{"schema":1,"scalars":{"loss":1e999}}`, "does not fit a float64"},
		{"bf16 a name", `{"schema":1,"bf16":"logp_new"}`, `key "bf16", byte 19: found a string, want an array`},
		{"lossy holds a number", `{"schema":1,"lossy":[1]}`, `key "lossy", byte 21: found a number`},
		{"dlogp_scale 0", `{"schema":1,"dlogp_scale":0}`, "would leave nothing of the gradients"},
		{"scope", `{"schema":1,"scalars_scope":"step"}`, "want optimizer_step or micro_batch"},
		{"token_loss_includes_kl 1", `{"schema":1,"options":{"token_loss_includes_kl":1}}`, `key "options", "token_loss_includes_kl", byte 48: found a number, want a boolean`},
		{"fill said twice", `{"schema":1,"masked_fill":0,"options":{"masked_fill":1}}`, `key "options", "masked_fill", byte 53: is 1 among the options and 0`},
		{"scale said twice", `{"schema":1,"options":{"dlogp_scale":2},"dlogp_scale":4}`, `key "dlogp_scale"`},
		{"rows decreasing", `{"schema":1,"logits_rows":[1,0]}`, "0 after 1, want increasing rows"},
		{"invalid UTF-8", "{\"schema\":1,\"framework\":\"\xff\"}", "invalid UTF-8"},
		{"many values", `{"schema":1,"options":{"a":[` + strings.Repeat("0,", maxValues) + `0]}}`, "more than 65536 values"},
		{"large", `{"schema":1,"framework":"` + strings.Repeat("x", maxMetadata) + `"}`, "want at most 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := putNPZ(t, join(t.TempDir(), "a.npz"), c.text, member{Name: "response_mask", DType: format.Bool, Shape: []int{1, 1}, Data: []float64{1}})
			_, err := Open(t.Context(), []string{path})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "a.json: ")
			require.True(t, format.IsMalformed(err))
		})
	}
}

// TestRefusedTensors demands that tensors of one file which are not what dump.md says are refused with name, index and
// numbers.
func TestRefusedTensors(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	m := mask("response_mask", "011", "111")
	type list = []*Tensor
	for _, c := range []struct {
		name, keys string
		tensors    list
		want       string
	}{
		{"no mask", "", list{f32("logp_new", 0, 2, 3)}, `no tensor response_mask, which every dump needs; it has ["logp_new"]`},
		{"no mask, but labels", "", list{mask("labels_mask", "1")}, "labels_mask stands for it only where"},
		{"no mask, but pairs", "", list{f32("logp_chosen", 0, 2)}, `where the metadata say "algorithm": "dpo"`},
		{"no mask in sft", `"algorithm":"sft"`, list{f32("logp_new", 0, 2, 3)}, "no tensor labels_mask"},
		{"mask 0.5", "", list{tensor("response_mask", format.F32, []int{2, 2}, 0, 1, 0.5, 1)}, ":response_mask: [1, 0]: found 0.5, want 0 or 1"},
		{"mask NaN", "", list{tensor("response_mask", format.F32, []int{1, 2}, 0, nan)}, ":response_mask: [0, 1]: found NaN, want 0 or 1"},
		{"mask 2", "", list{tensor("response_mask", format.I64, []int{1, 2}, 2, 1)}, ":response_mask: [0, 0]: found 2, want 0 or 1"},
		{"mask -1", "", list{tensor("response_mask", format.I32, []int{1, 2}, 1, -1)}, ":response_mask: [0, 1]: found -1, want 0 or 1"},
		{"mask of rank 1", "", list{tensor("response_mask", format.Bool, []int{2}, 1, 1)}, "has shape (2,), want [B, T]"},
		{"mask of rank 3", "", list{tensor("response_mask", format.Bool, []int{1, 1, 1}, 1)}, "has shape (1, 1, 1), want [B, T]"},
		{"no rows", "", list{tensor("response_mask", format.Bool, []int{0, 4})}, "has shape (0, 4): no rows"},
		{"no columns", "", list{tensor("response_mask", format.Bool, []int{4, 0})}, "has shape (4, 0): no columns"},
		{"columns", "", list{m, f32("logp_new", 0, 2, 2)}, ":logp_new: has shape (2, 2), which does not fit response_mask of shape (2, 3): want [B, T]"},
		{"rows", "", list{m, f32("values", 0, 3, 3)}, ":values: has shape (3, 3), which does not fit response_mask of shape (2, 3)"},
		{"transposed", "", list{m, f32("dlogp", 0, 3, 2)}, ":dlogp: has shape (3, 2), which does not fit response_mask of shape (2, 3)"},
		{"flat", "", list{m, f32("kl", 0, 6)}, ":kl: has shape (6,)"},
		{"scores", "", list{m, f32("scores", 0, 3)}, ":scores: has shape (3,), which does not fit response_mask of shape (2, 3): want [B]"},
		{"rewards of rank 1", "", list{m, f32("rewards_per_func", 0, 2)}, "want [B, F]"},
		{"rewards without functions", "", list{m, tensor("rewards_per_func", format.F32, []int{2, 0})}, "want [B, F]"},
		{"advantages", "", list{m, f32("advantages", 0, 2, 2)}, ":advantages: has shape (2, 2), which does not fit response_mask of shape (2, 3): want [B] or [B, T]"},
		{"is_weights", "", list{m, f32("is_weights", 0, 1, 3)}, ":is_weights: has shape (1, 3)"},
		{"logits", "", list{m, f32("logits", 0, 2, 2, 5)}, "want [B, T, V]"},
		{"logits of some rows", "", list{m, f32("logits", 0, 1, 3, 5)}, "want [B, T, V]"},
		{"logits of other rows", `"logits_rows":[0,1]`, list{m, f32("logits", 0, 1, 3, 5)}, "want [2, T, V]"},
		{"logits of rows that are not", `"logits_rows":[2]`, list{m, f32("logits", 0, 1, 3, 5)}, "key logits_rows: has row 2, but the grid has 2 rows"},
		{"loss of two", "", list{m, f32("loss", 0, 2)}, ":loss: has shape (2,), want a scalar"},
		{"input_ids of rank 1", "", list{m, tensor("input_ids", format.I64, []int{4}, 1, 2, 3, 4)}, ":input_ids: has shape (4,)"},
		{"input_ids of other rows", "", list{m, tensor("input_ids", format.I64, []int{1, 2}, 1, 2)}, ":input_ids: has shape (1, 2), which does not fit"},
		{"attention_mask", "", list{m, tensor("input_ids", format.I64, []int{2, 2}, 1, 2, 3, 4), tensor("attention_mask", format.I64, []int{2, 1}, 1, 1)}, ":attention_mask: has shape (2, 1), but input_ids (2, 2)"},
		{"attention_mask 2", "", list{m, tensor("attention_mask", format.I64, []int{2, 1}, 1, 2)}, ":attention_mask: [1, 0]: found 2, want 0 or 1"},
		{"dones 3", "", list{m, tensor("dones", format.I64, []int{2, 3}, 0, 0, 1, 0, 3, 0)}, ":dones: [1, 1]: found 3, want 0 or 1"},
		{"ids 1.5", "", list{m, tensor("response_ids", format.F32, []int{2, 3}, 1, 2, 3, 4, 1.5, 6)}, ":response_ids: [1, 1]: found 1.5, want an integer"},
		{"ids NaN", "", list{m, tensor("response_ids", format.F32, []int{2, 3}, nan, 2, 3, 4, 5, 6)}, ":response_ids: [0, 0]: found NaN, want an integer"},
		{"ids infinite", "", list{m, tensor("group_id", format.F32, []int{2}, 1, inf)}, ":group_id: [1]: found +Inf, want an integer"},
		{"group_id a hash", "", list{m, tensor("group_id", format.I64, []int{2}, 1, 0x1p60)}, ":group_id: [1]: found 1152921504606846976, want an integer of at most 2⁵³"},
		{"group_id a negative hash", "", list{m, tensor("group_id", format.I64, []int{2}, 1, -0x1p60)}, ":group_id: [1]: found -1152921504606846976, want an integer of at most 2⁵³"},
		{"prompt_len", "", list{m, tensor("prompt_len", format.I64, []int{2}, 1, -1)}, ":prompt_len: [1]: found -1, want at least 0"},
		{"integer log-probabilities", "", list{m, tensor("logp_new", format.I32, []int{2, 3}, 0, 0, 0, 0, 0, 0)}, ":logp_new: element type I32, want float64, float32, bfloat16 or float16"},
		{"boolean rewards", "", list{m, tensor("scores", format.Bool, []int{2}, 0, 1)}, ":scores: element type BOOL"},
		{"shifted, as many columns", `"align":"shifted"`, list{m, tensor("input_ids", format.I64, []int{2, 3}, 1, 2, 3, 4, 5, 6)}, "want [B, S] with one column more"},
		{"unshifted, one more column", `"align":"unshifted"`, list{mask("response_mask", "011", "011"), f32("logp_new", 0, 2, 3), tensor("input_ids", format.I64, []int{2, 4}, 1, 2, 3, 4, 5, 6, 7, 8)}, "want [B, S] with as many columns"},
		{"unshifted, dummy of the second sequence in the mask", `"align":"unshifted"`, list{mask("response_mask", "0101"), tensor("segment_ids", format.I64, []int{1, 4}, 1, 1, 2, 2)}, ""},
		{"unshifted, first token of the second sequence in the mask", `"align":"unshifted"`, list{mask("response_mask", "0110"), tensor("segment_ids", format.I64, []int{1, 4}, 1, 1, 2, 2)}, ":response_mask: [0, 2]: is 1, but with align unshifted"},
		{"unshifted, dummy in the mask", `"align":"unshifted"`, list{m}, ":response_mask: [1, 0]: is 1, but with align unshifted"},
		{"bf16 of float32", `"bf16":["logp_new"]`, list{m, f32("logp_new", 0, 2, 3)}, ":logp_new: the metadata call it bf16, but it is stored as F32: want uint16"},
		{"dpo without rejected", `"algorithm":"dpo"`, list{f32("logp_chosen", 0, 2)}, "no tensor logp_rejected, which algorithm dpo needs"},
		{"dpo, other rows", `"algorithm":"dpo"`, list{f32("logp_chosen", 0, 2), f32("logp_rejected", 0, 3)}, ":logp_rejected: has shape (3,), which does not fit logp_chosen of shape (2,)"},
		{"dpo per token", `"algorithm":"dpo"`, list{f32("logp_chosen", 0, 2, 4), f32("logp_rejected", 0, 2, 4)}, ":logp_chosen: has shape (2, 4), want [B]"},
		{"dpo, integers", `"algorithm":"dpo"`, list{tensor("logp_chosen", format.I64, []int{1}, 1), f32("logp_rejected", 0, 1)}, ":logp_chosen: element type I64"},
		{"dpo, no rows", `"algorithm":"dpo"`, list{f32("logp_chosen", 0, 0), f32("logp_rejected", 0, 0)}, "no rows"},
		{"segments of another shape", "", list{m, tensor("segment_ids", format.I64, []int{2, 2}, 1, 1, 1, 1)}, ":segment_ids: has shape (2, 2), which does not fit"},
		{"segments 0.5", "", list{m, tensor("segment_ids", format.F32, []int{2, 3}, 1, 1, 1, 1, 0.5, 1)}, ":segment_ids: [1, 1]: found 0.5, want an integer"},
		{"a score per row, three sequences", "", list{m, tensor("segment_ids", format.I64, []int{2, 3}, 1, 1, 1, 1, 2, 2), f32("scores", 0, 2)}, ":scores: has shape (2,), which does not fit response_mask of shape (2, 3): want [B] with a value for each of the 3 sequences"},
		{"all cells padding", "", list{mask("response_mask", "000"), tensor("segment_ids", format.I64, []int{1, 3}, 0, 0, -1)}, "no rows: every cell is padding"},
		{"ends do not begin with 0", "", list{m, tensor("cu_seqlens", format.I64, []int{2, 2}, 1, 3, 0, 3)}, ":cu_seqlens: [0, 0]: is 1, want 0"},
		{"ends decrease", "", list{m, tensor("cu_seqlens", format.I64, []int{2, 3}, 0, 2, 1, 0, 3, 3)}, ":cu_seqlens: [0, 2]: is 1, want more than 2"},
		{"ends beyond the row", "", list{m, tensor("cu_seqlens", format.I64, []int{2, 2}, 0, 4, 0, 3)}, ":cu_seqlens: [0, 1]: is 4, want more than 0, the end before it, and at most 3 columns"},
		{"an empty sequence between", "", list{m, tensor("cu_seqlens", format.I64, []int{2, 4}, 0, 1, 1, 3, 0, 3, 3, 3)}, ":cu_seqlens: [0, 3]: is 3, want no further sequence"},
		{"a token outside of all", "", list{m, tensor("cu_seqlens", format.I64, []int{2, 2}, 0, 3, 0, 2)}, ":response_mask: [1, 2]: is 1, but cu_seqlens end the last sequence of the row at column 2"},
		{"ends of other rows", "", list{m, tensor("cu_seqlens", format.I64, []int{3}, 0, 3, 3)}, ":cu_seqlens: has shape (3,)"},
		{"segments and ends differ", "", list{m, tensor("segment_ids", format.I64, []int{2, 3}, 1, 1, 1, 1, 1, 1), tensor("cu_seqlens", format.I64, []int{2, 3}, 0, 1, 3, 0, 3, 3)}, "segment_ids give 2 sequences, cu_seqlens 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys := ""
			if c.keys != "" {
				keys = "," + c.keys
			}
			path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":1`+keys+`}`, c.tensors...)
			_, err := batch(t, path)
			if c.want == "" { // the healthy twin of a case
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
			require.True(t, format.IsMalformed(err), err)
		})
	}
}

// TestContradictions demands that two files of a step which disagree are refused by both names and the key.
func TestContradictions(t *testing.T) {
	m := mask("response_mask", "011", "111")
	for _, c := range []struct{ name, a, b, want string }{
		{"two of one place", `"step":1`, `"step":1`, "is of step 1, rank 0, micro-batch 0 like %s"},
		{"two of one rank", `"step":1,"rank":1,"world_size":2`, `"step":1,"rank":1,"world_size":2`, "is of step 1, rank 1, micro-batch 0 like %s"},
		{"world_size", `"world_size":2`, `"rank":1,"world_size":4`, "key world_size: is 4, but 2 in %s, which is of the same step 0"},
		{"micro_batches", `"micro_batches":2`, `"micro_batch":1,"micro_batches":3`, "key micro_batches: is 3, but 2 in %s"},
		{"align", ``, `"micro_batch":1,"align":"shifted"`, `key align: is "shifted", but "response" in %s`},
		{"algorithm", `"algorithm":"ppo"`, `"micro_batch":1,"algorithm":"grpo"`, `key algorithm: is "grpo", but "ppo" in %s`},
		{"profile", `"profile":"trl-grpo@1.16"`, `"micro_batch":1,"profile":"dapo"`, `key profile: is "dapo", but "trl-grpo@1.16" in %s`},
		{"framework", `"framework":"trl"`, `"micro_batch":1,"framework":"verl"`, `key framework: is "verl"`},
		{"version", `"version":"1"`, `"micro_batch":1,"version":"2"`, `key version: is "2"`},
		{"option", `"options":{"beta":0.04}`, `"micro_batch":1,"options":{"beta":0.4}`, "key options, beta: is 0.4, but 0.04 in %s"},
		{"option null", `"options":{"beta":0.04}`, `"micro_batch":1,"options":{"beta":null}`, "key options, beta: is null, but 0.04 in %s"},
		{"option list", `"options":{"w":[1,2]}`, `"micro_batch":1,"options":{"w":[1,3]}`, "key options, w: is [1 3], but [1 2] in %s"},
		{"dlogp_scale", ``, `"micro_batch":1,"dlogp_scale":2`, "key dlogp_scale: is 2, but 1 in %s"},
		{"masked_fill", `"masked_fill":1`, `"micro_batch":1,"options":{"masked_fill":0}`, "key masked_fill: is 0, but 1 in %s"},
		{"token_loss_includes_kl", `"token_loss_includes_kl":true`, `"micro_batch":1,"token_loss_includes_kl":false`, "key token_loss_includes_kl: is false, but true"},
		{"compute_dtype", `"compute_dtype":"bf16"`, `"micro_batch":1,"compute_dtype":"torch.float32"`, `key compute_dtype: is "float32", but "bfloat16"`},
		{"scalars_scope", `"scalars_scope":"micro_batch"`, `"micro_batch":1,"scalars_scope":"optimizer_step"`, "key scalars_scope"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			text := func(keys string) string { return strings.Replace(`{"schema":1,`+keys+`}`, ",}", "}", 1) }
			a := put(t, join(dir, "a.safetensors"), text(c.a), m)
			b := put(t, join(dir, "b.safetensors"), text(c.b), m)
			_, err := batch(t, dir)
			want := c.want
			if strings.Contains(want, "%s") {
				want = fmt.Sprintf(want, a)
			}
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, b)
			require.True(t, format.IsMalformed(err))
		})
	}
}

// TestUnpoolable demands that tensors of two files which cannot stand below each other are refused by both shapes.
func TestUnpoolable(t *testing.T) {
	m := mask("response_mask", "011", "111")
	for _, c := range []struct {
		name string
		a, b *Tensor
		want string
	}{
		{"functions", f32("rewards_per_func", 0, 2, 2), f32("rewards_per_func", 0, 2, 3), ":rewards_per_func: has shape (2, 3), but (2, 2) in %s"},
		{"vocabulary", f32("logits", 0, 2, 3, 4), f32("logits", 0, 2, 3, 5), ":logits: has shape (2, 3, 5), but (2, 3, 4) in %s"},
		{"advantages", f32("advantages", 0, 2), f32("advantages", 0, 2, 3), ":advantages: has shape (2, 3), but (2,) in %s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			a := put(t, join(dir, "a.safetensors"), `{"schema":1}`, m, c.a)
			put(t, join(dir, "b.safetensors"), `{"schema":1,"micro_batch":1}`, m, c.b)
			_, err := batch(t, dir)
			require.ErrorContains(t, err, filepath.Join(dir, "b.safetensors")+fmt.Sprintf(c.want, a))
			require.True(t, format.IsMalformed(err))
		})
	}
}

// TestTooWide demands that a small file whose rows would be filled up to far more than it holds is refused before memory
// is taken: n sequences of one token beside one of n tokens.
func TestTooWide(t *testing.T) {
	for n, ok := range map[int]bool{1000: true, 5000: false, 50_000: false} {
		ids, m := make([]float64, 2*n), make([]bool, 2*n)
		for i := range ids {
			ids[i], m[i] = 1, true
			if i >= n {
				ids[i] = float64(i)
			}
		}
		path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":7}`, NewMask("response_mask", 1, 2*n, m), f32("logp_new", 0, 1, 2*n), tensor("segment_ids", format.I32, []int{1, 2 * n}, ids...))
		_, err := batch(t, path)
		if ok {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, fmt.Sprintf("the rows of step 7, filled up to one width, make a grid of %d rows and %d columns", n+1, n))
		require.True(t, format.IsMalformed(err))
	}
}

// TestChangedWhileRead demands an error where a file of a large step is another by the time its tensors are read, and that
// the files of such a step are not open all at once.
func TestChangedWhileRead(t *testing.T) {
	const files = 2 * maxOpen
	m := mask("response_mask", "011")
	for name, c := range map[string]struct {
		now  []*Tensor
		want string
	}{
		"shape":  {[]*Tensor{m, f32("kl", 0, 1, 2)}, ":kl: has changed while it was read"},
		"type":   {[]*Tensor{m, tensor("kl", format.F64, []int{1, 3}, 0, 1, 2)}, ":kl: has changed while it was read"},
		"absent": {[]*Tensor{m}, ":kl: has changed while it was read"},
		"same":   {[]*Tensor{m, f32("kl", 0, 1, 3)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for rank := range files {
				put(t, join(dir, fmt.Sprintf("%d.safetensors", rank)), fmt.Sprintf(`{"schema":1,"step":0,"rank":%d}`, rank), m, f32("kl", 0, 1, 3))
			}
			r, err := Open(t.Context(), []string{dir})
			require.NoError(t, err)
			asked, before := 0, openFiles()
			r.Keep = func(string) bool {
				if asked++; asked == files { // the first has been looked at
					put(t, r.Files()[0].Path, `{"schema":1,"step":0}`, c.now...)
					require.LessOrEqual(t, openFiles()-before, maxOpen)
				}
				return true
			}
			_, err = r.Batch(t.Context(), 0)
			require.Equal(t, files, asked)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.True(t, format.IsMalformed(err))
		})
	}
}

// openFiles returns the number of open files of the process, 0 where the system does not tell.
func openFiles() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

// TestRefusedContainers demands that the metadata are found in one place, and views of bfloat16 where they are named.
func TestRefusedContainers(t *testing.T) {
	m := mask("response_mask", "011")
	ones := member{Name: "response_mask", DType: format.Bool, Shape: []int{1, 3}, Data: []float64{1, 1, 1}}
	for _, c := range []struct {
		name string
		make func(dir string) string
		want string
	}{
		{"nothing in it, nothing beside it", func(dir string) string { return put(t, join(dir, "a.safetensors"), "", m) }, "no metadata: __metadata__ has no entry plumbline, and there is no "},
		{"npz alone", func(dir string) string { return putNPZ(t, join(dir, "a.npz"), "", ones) }, "no metadata: there is no "},
		{"differ", func(dir string) string {
			putText(t, join(dir, "a.json"), `{"schema":1,"step":2}`)
			return put(t, join(dir, "a.safetensors"), `{"schema":1,"step":1}`, m)
		}, "differ: step is 1 and 2"},
		{"differ in an option", func(dir string) string {
			putText(t, join(dir, "a.json"), `{"schema":1,"options":{"beta":0.1}}`)
			return put(t, join(dir, "a.safetensors"), `{"schema":1,"options":{"beta":0.2}}`, m)
		}, "differ: options, beta is 0.2 and 0.1"},
		{"differ in a scalar", func(dir string) string {
			putText(t, join(dir, "a.json"), `{"schema":1,"scalars":{"loss":0.1}}`)
			return put(t, join(dir, "a.safetensors"), `{"schema":1,"scalars":{"loss":0.2}}`, m)
		}, "differ: their scalars"},
		{"one says more", func(dir string) string {
			putText(t, join(dir, "a.json"), `{"schema":1}`)
			return put(t, join(dir, "a.safetensors"), `{"schema":1,"options":{"beta":0.2}}`, m)
		}, "differ: only one says options, beta"},
		{"beside it no JSON", func(dir string) string {
			putText(t, join(dir, "a.json"), `hello`)
			return put(t, join(dir, "a.safetensors"), `{"schema":1}`, m)
		}, "a.json: byte 0: found 'h', want an object"},
		{"empty beside it", func(dir string) string {
			putText(t, join(dir, "a.json"), "")
			return putNPZ(t, join(dir, "a.npz"), "", ones)
		}, "found the end of the data"},
		{"large beside it", func(dir string) string {
			putText(t, join(dir, "a.json"), strings.Repeat(" ", maxMetadata+1))
			return putNPZ(t, join(dir, "a.npz"), "", ones)
		}, "a.json: metadata of 1048577 bytes"},
		{"bf16 of float32", func(dir string) string {
			return putNPZ(t, join(dir, "a.npz"), `{"schema":1,"bf16":["logp_new"]}`, ones, member{Name: "logp_new", DType: format.F32, Shape: []int{1, 3}, Data: []float64{1, 2, 3}})
		}, ":logp_new: the metadata call it bf16, but it is stored as <f4"},
		{"bf16 not named", func(dir string) string {
			return putNPZ(t, join(dir, "a.npz"), `{"schema":1}`, ones, member{Name: "logp_new", DType: format.BF16, Shape: []int{1, 3}, Data: []float64{1, 2, 3}})
		}, `"bf16": ["logp_new"] in the metadata reads it so`},
		{"uint16 not named", func(dir string) string {
			return putNPZ(t, join(dir, "a.npz"), `{"schema":1}`, ones, member{Name: "logp_new", DType: format.U16, Shape: []int{1, 3}, Raw: make([]byte, 6)})
		}, ":logp_new: element type <u2, want float64"},
		{"large inside", func(dir string) string {
			return put(t, join(dir, "a.safetensors"), `{"schema":1,"framework":"`+strings.Repeat("x", maxMetadata)+`"}`, m)
		}, "want at most 1048576"},
		{"no zip", func(dir string) string {
			putText(t, join(dir, "a.npz"), "PK")
			return join(dir, "a.npz")
		}, "not a zip archive"},
		{"empty file", func(dir string) string {
			putText(t, join(dir, "a.safetensors"), "")
			return join(dir, "a.safetensors")
		}, "has 0 bytes"},
		{"a pickle", func(dir string) string { putText(t, join(dir, "a.pt"), "PK"); return join(dir, "a.pt") }, "refused: a pickle, which is never loaded"},
		{"an array", func(dir string) string { putText(t, join(dir, "a.npy"), "x"); return join(dir, "a.npy") }, "holds one array"},
		{"a text", func(dir string) string { putText(t, join(dir, "a.txt"), "x"); return join(dir, "a.txt") }, "a dump is a .safetensors or .npz file, by its name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := batch(t, c.make(t.TempDir()))
			require.ErrorContains(t, err, c.want)
			require.True(t, format.IsMalformed(err), err)
		})
	}
}

// Lists of names that differ from file to file are joined in a time and memory that grow with their length.
func TestLongLossyLists(t *testing.T) {
	dir := t.TempDir()
	size := 0
	for rank := range 3 {
		var names strings.Builder
		for i := range 60_000 {
			fmt.Fprintf(&names, `,"%d%c"`, i, 'a'+rank)
		}
		text := fmt.Sprintf(`{"schema":1,"rank":%d,"lossy":["kl"%s]}`, rank, names.String())
		size += len(text)
		require.NoError(t, os.WriteFile(join(dir, fmt.Sprintf("%d.safetensors", rank)), image(t, text, mask("response_mask", "01"), f32("kl", 0, 1, 2)), 0o644))
	}
	started, before := time.Now(), allocated()
	b, err := batch(t, dir)
	require.NoError(t, err)
	require.Less(t, time.Since(started), time.Minute)
	require.Less(t, allocated()-before, int64(64<<20+16*size))
	require.True(t, b.Tensors["kl"].Casts)
	require.Len(t, b.Meta.Lossy, 3*60_000+1)
}
