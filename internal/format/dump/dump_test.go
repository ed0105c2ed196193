package dump

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// TestTRL reads two micro-batches of a GRPO step of TRL 1.16 (a run of gpt2 in float32 with four generations per prompt).
// The numbers were read from the files with safetensors 0.6 and NumPy 2.
func TestTRL(t *testing.T) {
	b := mustBatch(t, "testdata")
	require.Equal(t, []int{8, 40, 2}, []int{b.Rows, b.Cols, len(b.Files)})
	require.Empty(t, b.Missing)
	require.Empty(t, b.Notes)
	require.Equal(t, []string{
		"advantages", "attention_mask", "dlogp", "entropy", "group_id", "input_ids", "kl", "logp_gen", "logp_new", "logp_old", "logp_ref", "loss",
		"prompt_len", "response_ids", "rewards_per_func", "scores", "token_loss",
	}, b.Names())

	at := func(name string, row, col int) float64 { return b.Token(name)[row*b.Cols+col] }
	require.Equal(t, -0.000316619873046875, at("logp_new", 2, 3))
	require.Equal(t, 0.0024770654272288084, at("dlogp", 2, 3))
	require.Equal(t, 0.0018672840669751167, at("dlogp", 6, 3))
	require.Equal(t, 0.004154205322265625, at("entropy", 6, 3))
	require.Equal(t, -0.00038246947224251926, at("logp_gen", 6, 3))
	require.Equal(t, []float64{
		1.464545488357544, 1.4516605138778687, -0.7926609516143799, -0.3359423875808716,
		-0.3359423875808716, -0.1355876326560974, -0.5975309014320374, -0.7185418605804443,
	}, b.Row("advantages"))
	require.Equal(t, []float64{0, 1, 0, 0, 0, 1, 1, 1}, b.Row("group_id"))
	require.Equal(t, []float64{111, 106, 111, 111, 111, 106, 106, 106}, b.Row("prompt_len"))
	require.Equal(t, []float64{-0.22345031797885895, 0.22345033288002014}, b.PerFile("loss"))
	require.Equal(t, []int{8, 2}, b.Tensors["rewards_per_func"].Shape)
	require.Equal(t, 0.07065121084451675, b.Row("rewards_per_func")[15])
	require.Equal(t, []int{8, 151}, b.Tensors["input_ids"].Shape)
	sum := func(data []float64) (s float64) {
		for _, v := range data {
			s += v
		}
		return s
	}
	require.Equal(t, 1752048.0+1683952, sum(b.Row("input_ids")))
	require.Equal(t, 513.0+532, sum(b.Row("attention_mask")))
	var lengths []int
	for row := range b.Rows {
		n := 0
		for _, m := range b.Mask[row*b.Cols : (row+1)*b.Cols] {
			if m {
				n++
			}
		}
		lengths = append(lengths, n)
	}
	require.Equal(t, []int{11, 12, 40, 11, 11, 12, 40, 40}, lengths)
	for _, batch := range []*Batch{b, b.Without("response_ids")} {
		id, ok := batch.TokenID(2, 3)
		require.True(t, ok)
		require.Equal(t, 216, id)
		id, ok = batch.TokenID(6, 3)
		require.True(t, ok)
		require.Equal(t, 33, id)
	}
	_, ok := b.Without("response_ids", "input_ids").TokenID(2, 3)
	require.False(t, ok)

	m := b.Meta
	require.Equal(t, []any{"trl", "1.16.0", "grpo", "", 1, 0, 1, 0, 2}, []any{m.Framework, m.Version, m.Algorithm, m.Profile, m.Step, m.Rank, m.WorldSize, m.MicroBatch, m.MicroBatches})
	require.Equal(t, "optimizer_step", m.ScalarsScope)
	require.True(t, *m.TokenLossIncludesKL)
	require.Equal(t, 0.0, *m.MaskedFill)
	require.Equal(t, 1.0, m.DLogpScale)
	options := map[string]any{}
	for _, o := range m.Options {
		options[o.Name] = o.Value
	}
	require.Equal(t, 0.04, options["beta"])
	require.Equal(t, "group", options["scale_rewards"])
	require.Nil(t, options["min_p"])
	require.Equal(t, []any{1.0, 0.5}, options["reward_weights"])
	for name := range specials {
		require.NotContains(t, options, name)
	}
	require.Equal(t, Option{"loss_type", "grpo"}, m.Options[0])
	require.Equal(t, Scalar{"loss", 1.4901161193847656e-08}, b.Files[0].Scalars[0])
}

// TestPatterns opens runs by file, folder and glob.
func TestPatterns(t *testing.T) {
	dir := t.TempDir()
	m := mask("response_mask", "011")
	for step := range 3 {
		put(t, join(dir, fmt.Sprintf("b%d.safetensors", 2-step)), fmt.Sprintf(`{"schema":1,"step":%d}`, step), m)
	}
	putText(t, join(dir, "log.txt"), "x")
	putText(t, join(dir, "run.json"), "x")
	putText(t, join(dir, ".hidden.safetensors"), "x")
	require.NoError(t, os.MkdirAll(join(dir, "empty", "sub.npz"), 0o755))
	require.NoError(t, os.Mkdir(join(dir, "more"), 0o755))
	putText(t, join(dir, "empty", "x.pt"), "x")
	putNPZ(t, join(dir, "more", "a.npz"), `{"schema":1,"step":9}`, member{Name: "response_mask", DType: format.Bool, Shape: []int{1, 1}, Data: []float64{1}})
	for _, c := range []struct {
		patterns []string
		steps    []int
		ignored  int
	}{
		{[]string{dir}, []int{0, 1, 2}, 2},
		{[]string{join(dir, "b1.safetensors")}, []int{1}, 0},
		{[]string{join(dir, "b1.safetensors"), dir}, []int{0, 1, 2}, 2},
		{[]string{join(dir, "b[02]*")}, []int{0, 2}, 0},
		{[]string{join(dir, "*")}, []int{0, 1, 2, 9}, 3}, // run.json, log.txt, x.pt
		{[]string{dir, join(dir, "more")}, []int{0, 1, 2, 9}, 2},
		{[]string{join(dir, "mor?")}, []int{9}, 0},
	} {
		r, err := Open(t.Context(), c.patterns)
		require.NoError(t, err)
		require.Equal(t, c.steps, r.Steps())
		require.Equal(t, c.ignored, r.Ignored)
	}
	for pattern, want := range map[string]error{
		join(dir, "absent"):             fs.ErrNotExist,
		join(dir, "absent.safetensors"): fs.ErrNotExist,
		join(dir, "absent*"):            fs.ErrNotExist,
		join(dir, "empty"):              ErrNothing,
		join(dir, "l*g.txt"):            ErrNothing,
		join(dir, "empt*"):              ErrNothing,
	} {
		_, err := Open(t.Context(), []string{pattern})
		require.ErrorIs(t, err, want, pattern)
		require.ErrorContains(t, err, pattern)
		require.False(t, format.IsMalformed(err))
	}
	_, err := Open(t.Context(), []string{join(dir, "empty")})
	require.ErrorContains(t, err, "name one of the 1, such as "+join(dir, "empty", "sub.npz"))
	_, err = Open(t.Context(), nil)
	require.ErrorIs(t, err, ErrNothing)
}

// TestRun walks over the steps of a run.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	m := mask("response_mask", "011")
	for step := range 5 {
		for rank := range 2 {
			put(t, join(dir, fmt.Sprintf("%d-%d.safetensors", step, 1-rank)), fmt.Sprintf(`{"schema":1,"step":%d,"rank":%d,"world_size":2,"framework":"s%d"}`, 10-2*step, rank, step), m)
		}
	}
	r, err := Open(t.Context(), []string{dir})
	require.NoError(t, err)
	require.Equal(t, []int{2, 4, 6, 8, 10}, r.Steps())
	require.Equal(t, "s4", r.Common().Framework)
	require.Len(t, r.Files(), 10)
	require.Equal(t, []int{4, 6}, r.Range(3, 6).Steps())
	require.Len(t, r.Range(3, 6).Files(), 4)
	require.Empty(t, r.Range(11, 99).Steps())
	require.Empty(t, r.Range(6, 3).Steps())
	require.Equal(t, "s4", r.Range(8, 8).Common().Framework)
	var steps []int
	for b, err := range r.Range(4, 8).Batches(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, 0, b.Files[0].Rank)
		require.Equal(t, 1, b.Files[1].Rank)
		steps = append(steps, b.Meta.Step)
	}
	require.Equal(t, []int{4, 6, 8}, steps)
	_, err = r.Batch(t.Context(), 3)
	require.ErrorContains(t, err, "no file for step 3")

	// A file that is broken by now is an error of its step, and one that is another step's is found.
	require.NoError(t, os.Truncate(r.Of(4)[0].Path, 20))
	put(t, r.Of(6)[1].Path, `{"schema":1,"step":7,"rank":1,"world_size":2}`, m)
	var errs []error
	for _, err := range r.Batches(t.Context()) {
		errs = append(errs, err)
	}
	require.Len(t, errs, 5)
	require.True(t, format.IsMalformed(errs[1]))
	require.ErrorContains(t, errs[2], "has changed since the run was opened: it was of step 6, rank 1, micro-batch 0")
	for _, i := range []int{0, 3, 4} {
		require.NoError(t, errs[i])
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ctx, []string{dir})
	require.ErrorIs(t, err, context.Canceled)
	n := 0
	for _, err := range r.Batches(ctx) {
		require.ErrorIs(t, err, context.Canceled)
		n++
	}
	require.Equal(t, 1, n)
}

// TestSHA256 knows the digest of "abc" (FIPS 180-4).
func TestSHA256(t *testing.T) {
	path := join(t.TempDir(), "a.safetensors")
	putText(t, path, "abc")
	f := &FileInfo{source: File{Path: path, location: location{"", path}}}
	sum, err := f.SHA256(t.Context())
	require.NoError(t, err)
	require.Equal(t, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", sum)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.SHA256(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// TestPool pools two files of different widths by hand.
func TestPool(t *testing.T) {
	dir := t.TempDir()
	put(t, join(dir, "z.safetensors"), `{"schema":1,"step":3,"world_size":2,"options":{"beta":0.1},"scalars":{"loss":1,"kl":null},"lossy":["logp_new"]}`,
		mask("response_mask", "110", "011"), f32("logp_new", 1, 2, 3), f32("scores", 10, 2), f32("loss", 0.5), f32("values", 0, 2, 3),
		tensor("input_ids", format.I64, []int{2, 5}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), f32("advantages", 0, 2), f32("grad/a", 7, 2, 2), f32("grad/b", 7, 1),
		f32("is_weights", 1, 2, 1))
	put(t, join(dir, "a.safetensors"), `{"schema":1,"step":3,"rank":1,"world_size":2,"options":{"beta":0.1,"gamma":1},"scalars":{"loss":2}}`,
		mask("response_mask", "1"), tensor("logp_new", format.BF16, []int{1, 1}, 7), f32("scores", 12, 1, 1), f32("loss", 1.5, 1),
		tensor("input_ids", format.I32, []int{1, 2}, 11, 12), f32("advantages", 5, 1, 1), f32("grad/a", 1, 3), f32("extra", 0, 1), f32("is_weights", 9, 1, 1))
	b := mustBatch(t, dir)
	require.Equal(t, []int{3, 3}, []int{b.Rows, b.Cols})
	require.Equal(t, []bool{true, true, false, false, true, true, true, false, false}, b.Mask)
	require.Equal(t, []float64{1, 2, 3, 4, 5, 6, 7, 0, 0}, b.Token("logp_new"))
	require.Equal(t, format.BF16, b.Tensors["logp_new"].Type)
	require.True(t, b.Tensors["logp_new"].Casts)
	require.Equal(t, []float64{10, 11, 12}, b.Row("scores"))
	require.Equal(t, []float64{0, 1, 5}, b.Row("advantages"))
	require.Nil(t, b.Token("advantages"))
	require.Equal(t, []float64{1, 2, 9}, b.Row("is_weights"))
	require.Equal(t, []float64{0.5, 1.5}, b.PerFile("loss"))
	require.Equal(t, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0}, b.Row("input_ids"))
	require.Equal(t, []float64{7, 8, 9, 10}, b.Tensors["grad/a"].Data)
	require.Equal(t, Free, b.Tensors["grad/b"].Layout)
	require.Nil(t, b.Tensors["values"])
	require.Equal(t, []Origin{{0, 0, 0, 3}, {0, 1, 0, 3}, {1, 0, 0, 1}}, b.Origin)
	require.Equal(t, []int{0, 2, 2, 3}, []int{b.Files[0].Lo, b.Files[0].Hi, b.Files[1].Lo, b.Files[1].Hi})
	require.Equal(t, []int{3, 1}, []int{b.Files[0].Cols, b.Files[1].Cols})
	require.Equal(t, []Option{{"beta", 0.1}, {"gamma", 1.0}}, b.Meta.Options)
	require.True(t, math.IsNaN(b.Files[0].Scalars[1].Value))
	require.Equal(t, []string{
		join(dir, "a.safetensors") + ": only here the metadata say options, gamma; it is taken to hold for all files of the step",
		join(dir, "a.safetensors") + `: unknown tensors are ignored: ["extra"]`,
		join(dir, "z.safetensors") + ": grad is taken from here; " + join(dir, "a.safetensors") + " too has it",
		join(dir, "a.safetensors") + ": has no tensor values, which other files of the step have: it is left out",
	}, b.Notes)
	id, ok := b.TokenID(0, 2)
	require.True(t, ok)
	require.Equal(t, 5, id)
	id, ok = b.TokenID(2, 0)
	require.True(t, ok)
	require.Equal(t, 12, id)
	_, ok = b.TokenID(2, 1)
	require.False(t, ok)
}

// TestMissing names ranks and micro-batches that are declared and not there.
func TestMissing(t *testing.T) {
	const step = ": no file for step 3"
	type file struct{ rank, micro int }
	for _, c := range []struct {
		files         []file
		world, micros int
		want          []string
	}{
		{[]file{{0, 0}}, 0, 0, nil},
		{[]file{{0, 0}}, 1, 1, nil},
		{[]file{{0, 0}, {1, 0}, {3, 0}}, 4, 1, []string{"rank 2 of 4" + step}},
		{[]file{{1, 0}}, 8, 0, []string{"rank 0 of 8" + step, "ranks 2 to 7 of 8" + step}},
		{[]file{{0, 0}, {2, 0}}, 0, 0, []string{"rank 1" + step}},
		{[]file{{0, 1}, {1, 0}}, 2, 2, []string{"micro-batch 0 of 2 of rank 0" + step, "micro-batch 1 of 2 of rank 1" + step}},
		{[]file{{0, 3}}, 0, 0, []string{"micro-batches 0 to 2 of rank 0" + step}},
		{[]file{{0, 0}}, 1 << 40, 1 << 40, []string{"micro-batches 1 to 1099511627775 of 1099511627776 of rank 0" + step, "ranks 1 to 1099511627775 of 1099511627776" + step}},
	} {
		var files []FileInfo
		for _, f := range c.files {
			files = append(files, FileInfo{Rank: f.rank, MicroBatch: f.micro})
		}
		require.Equal(t, c.want, missing(files, &Meta{Step: 3, WorldSize: c.world, MicroBatches: c.micros}))
	}
	var files []FileInfo
	for i := range 100 {
		files = append(files, FileInfo{Rank: 2 * i})
	}
	lines := missing(files, &Meta{Step: 3})
	require.Len(t, lines, maxMissing+1)
	require.Equal(t, "… and more", lines[maxMissing])
}

// TestNotes lists what is read otherwise than it was written, or not at all.
func TestNotes(t *testing.T) {
	m := mask("response_mask", "011", "111")
	for _, c := range []struct {
		name, text string
		tensors    []*Tensor
		want       string
	}{
		{"no step", `{"schema":1}`, nil, "the metadata say no step: 0 is taken"},
		{"key", `{"schema":1,"step":0,"colour":"red","size":null}`, nil, `unknown keys of the metadata are ignored: ["colour"]`},
		{"tensor", `{"schema":1,"step":0}`, []*Tensor{f32("logp_new/x", 0, 1), f32("odd", 0, 1)}, `unknown tensors are ignored: ["logp_new/x" "odd"]`},
		{"integer gradient", `{"schema":1,"step":0}`, []*Tensor{tensor("grad/x", format.I64, []int{1}, 1)}, `"grad/x" has element type I64, want floating-point: ignored`},
		{"pairs", `{"schema":1,"step":0,"algorithm":"grpo"}`, []*Tensor{f32("logp_chosen", 0, 2)}, `not part of a dump of algorithm "grpo", ignored: ["logp_chosen"]`},
		{"second mask", `{"schema":1,"step":0,"algorithm":"grpo"}`, []*Tensor{mask("labels_mask", "1")}, `not part of a dump of algorithm "grpo", ignored: ["labels_mask"]`},
		{"response_mask in sft", `{"schema":1,"step":0,"algorithm":"sft"}`, nil, "response_mask is taken for the labels_mask of algorithm sft"},
		{"white space", ` {"schema":1,"step":0}`, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := put(t, join(t.TempDir(), "a.safetensors"), c.text, append(c.tensors, m)...)
			b := mustBatch(t, path)
			if c.want == "" {
				require.Empty(t, b.Notes)
				return
			}
			require.Equal(t, []string{path + ": " + c.want}, b.Notes)
		})
	}
	dir := t.TempDir()
	for rank := range 40 { // more than stay open
		put(t, join(dir, fmt.Sprintf("%d.safetensors", rank)), fmt.Sprintf(`{"schema":1,"step":1,"rank":%d,"options":{"seed":%d}}`, rank, rank), m, f32("odd", 0, 1), f32("scores", float64(2*rank), 2))
	}
	b := mustBatch(t, dir)
	require.Equal(t, []string{
		join(dir, "0.safetensors") + ` and 39 more: unknown tensors are ignored: ["odd"]`,
		join(dir, "1.safetensors") + ` and 38 more: options, seed differs from that of ` + join(dir, "0.safetensors") + ", as may be",
	}, b.Notes)
	require.Equal(t, 80, b.Rows)
	for i, v := range b.Row("scores") {
		require.Equal(t, float64(i), v)
	}
}

// TestKeep leaves tensors out that the caller does not want.
func TestKeep(t *testing.T) {
	path := put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0}`, mask("response_mask", "01"), f32("scores", 0, 1), f32("kl", 0, 1, 2))
	r, err := Open(t.Context(), []string{path})
	require.NoError(t, err)
	r.Keep = func(name string) bool { return name == "kl" }
	b, err := r.Batch(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, []string{"kl"}, b.Names())
	require.Empty(t, b.Notes)
}

// TestMergedMetadata: what only a later file says holds for the step.
func TestMergedMetadata(t *testing.T) {
	dir := t.TempDir()
	m := mask("response_mask", "011")
	put(t, join(dir, "a.safetensors"), `{"schema":1,"step":0,"lossy":["kl"]}`, m)
	yes, fill := true, -1.0
	want := Meta{
		Framework: "verl", Version: "0.5", Algorithm: "ppo", Profile: "verl", WorldSize: 3, Rank: 1, MicroBatches: 2, ScalarsScope: "micro_batch", ComputeDType: "bfloat16",
		DLogpScale: 1, TokenLossIncludesKL: &yes, MaskedFill: &fill, Options: []Option{{"clip", 0.2}}, Lossy: []string{"logp_new"},
	}
	require.NoError(t, WriteFile(join(dir, "b.safetensors"), want, m))
	b := mustBatch(t, dir)
	want.Rank, want.Lossy = 0, []string{"kl", "logp_new"}
	require.Equal(t, want, b.Meta)
	require.Len(t, b.Notes, 11)
	require.Equal(t, []string{
		"micro-batch 1 of 2 of rank 0: no file for step 0", "micro-batch 1 of 2 of rank 1: no file for step 0", "rank 2 of 3: no file for step 0",
	}, b.Missing)
}

// TestViews: batches that share all but what was changed.
func TestViews(t *testing.T) {
	dir := t.TempDir()
	put(t, join(dir, "a.safetensors"), `{"schema":1,"step":0,"logits_rows":[1]}`, mask("response_mask", "01", "11"), f32("kl", 0, 2, 2), f32("scores", 7, 2), f32("logits", 0, 1, 2, 2), f32("loss", 3))
	put(t, join(dir, "b.safetensors"), `{"schema":1,"step":0,"rank":1}`, mask("response_mask", "10"), f32("kl", 4, 1, 2), f32("scores", 9, 1), f32("logits", 50, 1, 2, 2), f32("loss", 4))
	b := mustBatch(t, dir)
	s := b.Select([]int{1, 2})
	requireSound(t, s)
	require.Equal(t, []float64{2, 3, 4, 5}, s.Token("kl"))
	require.Equal(t, []float64{8, 9}, s.Row("scores"))
	require.Equal(t, []bool{true, true, true, false}, s.Mask)
	require.Equal(t, []int{0, 1, 1, 2}, []int{s.Files[0].Lo, s.Files[0].Hi, s.Files[1].Lo, s.Files[1].Hi})
	require.Equal(t, []int{0, 1}, s.Tensors["logits"].Rows)
	s = b.Select([]int{0, 2})
	requireSound(t, s)
	require.Equal(t, []int{1}, s.Tensors["logits"].Rows)
	require.Equal(t, []float64{50, 51, 52, 53}, s.Tensors["logits"].Data)
	require.Equal(t, 1, s.File(1))

	other := make([]float64, 6)
	w := b.With("kl", other).With("new", other).WithMask(make([]bool, 6))
	require.Equal(t, other, w.Token("kl"))
	require.Equal(t, other, w.Token("new"))
	requireSound(t, w.Without("new").Select([]int{0, 1, 2}))
	require.Equal(t, []float64{0, 1, 2, 3, 4, 5}, b.Token("kl"))
	require.True(t, b.Mask[1])
	require.Nil(t, b.Tensors["new"])
}
