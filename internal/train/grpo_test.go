package train_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/assets"
	"plumbline/internal/bind"
	"plumbline/internal/format/dump"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/rl"
)

// maskedRun is a trainer of masked models in a new folder, and what it prints.
type maskedRun struct {
	train.GRPO
	env      train.MaskedEnv
	out      bytes.Buffer
	warnings []string
}

// newMasked returns a short run of the embedded models: text of 16 characters, two inputs, groups of four, no warm-up.
func newMasked(t testing.TB, overrides ...string) *maskedRun {
	t.Helper()
	r := &maskedRun{}
	s := r.Settings()
	for _, o := range append([]string{"block_size=16", "batch_size=2", "group_size=4", "gradient_accumulation_steps=2", "max_iters=2", "warmup_iters=0", "learning_rate=1e-3",
		"temperature=1.0", "top_p=1.0", "eval_samples=0", "dump.every=1", "mask_ratio=0.6"}, overrides...) {
		require.NoError(t, s.Override(o))
	}
	require.NoError(t, s.Resolve())
	folder, err := bind.OpenGenerator(bind.TinyMasked, 1)
	require.NoError(t, err)
	g, err := bind.NewMasked(folder, nil)
	require.NoError(t, err)
	folder, err = bind.OpenJudge(bind.TinyJudge, 1)
	require.NoError(t, err)
	j, err := bind.NewMasked(folder, nil)
	require.NoError(t, err)
	run, err := rundir.Create(t.TempDir(), rundir.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { run.Close() })
	r.env = train.MaskedEnv{Generator: g, Judge: j, Text: assets.Sonnets, Clock: func() float64 { return 0 }, Memory: func() float64 { return 0 },
		Env: train.Env{Run: run, Out: &r.out, Warn: func(format string, a ...any) { r.warnings = append(r.warnings, fmt.Sprintf(format, a...)) }}}
	return r
}

func (r *maskedRun) train() ([]rl.Metric, error) { return r.Train(context.Background(), r.env) }

// batch returns the dump of a step.
func (r *maskedRun) batch(t testing.TB, step int) *dump.Batch {
	t.Helper()
	d, err := dump.Open(context.Background(), []string{filepath.Join(r.env.Run.Path(), "dump")})
	require.NoError(t, err)
	b, err := d.Batch(context.Background(), step)
	require.NoError(t, err)
	return b
}

func value(list []rl.Metric, name string) float64 {
	for _, m := range list {
		if m.Name == name {
			return m.Value
		}
	}
	return math.NaN()
}

// faulty is a generator with a fault.
type faulty struct {
	train.MaskedPolicy
	logits    func(train.Logits) train.Logits
	reference func(train.Logits) train.Logits
	now       func(train.Logits) train.Logits
}

func (f faulty) Logits(x train.Texts) train.Logits {
	l := f.MaskedPolicy.Logits(x)
	if f.logits != nil {
		l = f.logits(l)
	}
	return l
}

func (f faulty) Reference(x train.Texts) train.Logits {
	l := f.MaskedPolicy.Reference(x)
	if f.reference != nil {
		l = f.reference(l)
	}
	return l
}

func (f faulty) Accumulate(x train.Texts, loss func(train.Logits) ([]float64, error)) error {
	return f.MaskedPolicy.Accumulate(x, func(l train.Logits) ([]float64, error) {
		if f.now != nil {
			l = f.now(l)
		}
		return loss(l)
	})
}

// lastOnly is nanoGPT's forward without targets.
func lastOnly(l train.Logits) train.Logits {
	out := train.Logits{Rows: l.Rows, Time: 1, Vocab: l.Vocab}
	for i := range l.Rows {
		end := (i + 1) * l.Time * l.Vocab
		out.Data = append(out.Data, l.Data[end-l.Vocab:end]...)
	}
	return out
}

// judged is a judge with other verdicts.
type judged struct {
	train.Judge
	verdict func(y float64) float64
}

func (j judged) Score(x train.Texts) ([]float64, int) {
	y, cut := j.Judge.Score(x)
	for i := range y {
		y[i] = j.verdict(y[i])
	}
	return y, cut
}

func TestGRPOLog(t *testing.T) {
	r := newMasked(t)
	last, err := r.train()
	require.NoError(t, err)
	number, signed := `\d+\.\d{3}`, `-?\d+\.\d{6}`
	micro := func(k int) string {
		return strings.ReplaceAll(`\[Micro K\] 0\. Batch fetched: mem=\d+ MB, time=`+number+`s
\[Micro K\] 1\. Iteration start: mem=\d+ MB, time=0\.000s
\[Micro K\] 2\. Samples generated: mem=\d+ MB, time=`+number+`s
\[Micro K\] 3\. Samples scored: mem=\d+ MB, time=`+number+`s, rewards=\d\.\d{4}±\d\.\d{4}
\[Micro K\] 4\. Loss computed: mem=\d+ MB, time=`+number+`s, pg_loss=`+signed+`, kl=`+signed+`, total=`+signed+`
`, "K", fmt.Sprint(k))
	}
	iter := micro(0) + micro(1) + `5\. Optimizer step finished: mem=\d+ MB, time=` + number + `s total
iter N: loss (-?\d+\.\d{4}) \(main (-?\d+\.\d{4}), critic 0\.0000\), time \d+\.\d{2}ms
`
	want := `^2 inputs x group of 4 = 8 samples per micro-step, 16 per iteration; 8 forward passes per iteration \(sampling, judge, current, reference\)
` + strings.ReplaceAll(iter, "N", "0") + strings.ReplaceAll(iter, "N", "1") + "slowest phase: "
	require.Regexp(t, regexp.MustCompile(want), r.out.String())

	lines, err := rundir.ReadLog(filepath.Join(r.env.Run.Path(), "metrics.jsonl"))
	require.NoError(t, err)
	require.Len(t, lines, 2)
	for _, key := range []string{"loss", "loss_last", "pg_loss", "kl_penalty", "mean_reward", "std_reward", "mean_advantage", "mean_kl", "mean_log_prob", "iter", "lr", "time_ms",
		"mem_resident_mb", "zero_std_ratio", "num_masked", "mfu_pct", "time_fetch_ms", "time_backward_ms", "skipped_micro_steps", "identical_completions", "grad_norm"} {
		require.Contains(t, string(lines[1].Text), `"`+key+`":`)
	}
	require.NotZero(t, value(last, "mean_kl"), "the policy has moved from the reference")
	require.InDelta(t, value(last, "loss"), value(last, "pg_loss")+value(last, "kl_penalty"), 1e-12)
}

// mfu_pct by hand: 2 iterations of 2 micro-steps of 2 rows of 16 characters, five forward passes' worth each, in 0.2 s of 1 GFLOPS.
func TestGRPOUtilisation(t *testing.T) {
	r := newMasked(t, "peak_flops=1e9")
	n := 0
	for _, p := range r.env.Generator.Params() {
		n += len(p.Data)
	}
	at := 0.0
	r.env.Clock = func() float64 { return at }
	r.env.Observe = func(int, []string) error { at += .2; return nil }
	_, err := r.train()
	require.NoError(t, err)
	lines, err := rundir.ReadLog(filepath.Join(r.env.Run.Path(), "metrics.jsonl"))
	require.NoError(t, err)
	for _, l := range lines {
		var line struct {
			MFU float64 `json:"mfu_pct"`
		}
		require.NoError(t, json.Unmarshal(l.Text, &line))
		const layers, channels = 2, 64
		require.InEpsilon(t, 100*5*2*2*16*(2*float64(n)+4*layers*channels*16)/.2/1e9, line.MFU, 1e-9)
	}
}

// The weights that decay are matrices: with a gradient of zero they alone move.
func TestDecayOfMatrices(t *testing.T) {
	r := newMasked(t, "weight_decay=0.5", "max_iters=1", "kl_beta=0")
	r.env.Generator = numb{r.env.Generator}
	before := map[string][]float64{}
	for _, p := range r.env.Generator.Params() {
		before[p.Name] = slices.Clone(p.Data)
	}
	_, err := r.train()
	require.NoError(t, err)
	vectors := 0
	for _, p := range r.env.Generator.Params() {
		if len(p.Shape) < 2 {
			vectors++
			require.Equal(t, before[p.Name], p.Data, p.Name)
			continue
		}
		for i, v := range before[p.Name] {
			require.Equal(t, float64(float32(v*(1-.5e-3))), p.Data[i], p.Name)
		}
	}
	require.Positive(t, vectors)
}

// numb is a generator whose gradient is zero.
type numb struct{ train.MaskedPolicy }

func (n numb) Accumulate(x train.Texts, loss func(train.Logits) ([]float64, error)) error {
	err := n.MaskedPolicy.Accumulate(x, loss)
	for _, p := range n.Params() {
		clear(p.Grad)
	}
	return err
}

// What was done to a batch is what the chapter says, by its own formulas.
func TestGRPOBatch(t *testing.T) {
	r := newMasked(t, "kl_estimator=k1", "kl_beta=0.5")
	_, err := r.train()
	require.NoError(t, err)
	v := r.env.Generator.Vocabulary()
	for step := 1; step <= 2; step++ {
		b := r.batch(t, step)
		ids, adv, scores, lp, ref := b.Token("response_ids"), b.Row("advantages"), b.Row("scores"), b.Token("logp_new"), b.Token("logp_ref")
		x := train.Texts{Rows: b.Rows, Time: b.Cols}
		for _, id := range ids {
			require.True(t, 0 <= id && int(id) < v.Characters, "a special token was sampled, or a mask was left: %v", id)
			x.IDs = append(x.IDs, int(id))
		}
		verdicts, _ := r.env.Judge.Score(x)
		for i, y := range verdicts {
			require.Equal(t, 1-y, scores[i], "the reward is 1 − judge")
		}
		// Two micro-steps of two groups of four: the standard deviation is that of a micro-step.
		for m := 0; m < b.Rows; m += 8 {
			var loss, sum float64
			for i := m; i < m+8; i++ {
				var s, kl float64
				for k := i * b.Cols; k < (i+1)*b.Cols; k++ {
					if b.Mask[k] {
						s += lp[k]
						kl += lp[k] - ref[k]
					}
				}
				loss += (-s*adv[i] + .5*kl) / 8 / 2
				sum += adv[i]
			}
			require.InDelta(t, 0, sum, 1e-9)
			require.InDelta(t, b.PerFile("loss")[m/8], loss, 1e-9)
		}
	}
	// the rows of a group differ at masks only
	b := r.batch(t, 1)
	for i := range b.Rows {
		for k := range b.Cols {
			first := i / 4 * 4
			require.Equal(t, b.Mask[first*b.Cols+k], b.Mask[i*b.Cols+k])
			if !b.Mask[i*b.Cols+k] {
				require.Equal(t, b.Token("response_ids")[first*b.Cols+k], b.Token("response_ids")[i*b.Cols+k])
			}
		}
	}
}

// The gradient that reaches the weights is that of the loss that is printed: along its own direction a small step of plain descent
// changes the loss by −|g|²·h.
func TestGRPOGradient(t *testing.T) {
	if testing.Short() {
		t.Skip("several runs, in the long tests only")
	}
	loss := func(shift []float64, h float64) (float64, []float64) {
		r := newMasked(t, "max_iters=1", "learning_rate=0", "min_lr=0", "weight_decay=0", "grad_clip=0", "kl_beta=0.3", "gradient_accumulation_steps=1")
		at := 0
		for _, p := range r.env.Generator.Params() {
			for i := range p.Data {
				if shift != nil {
					p.Data[i] += h * shift[at]
				}
				at++
			}
		}
		// The samples are those of the unshifted model: what is drawn does not depend on the step.
		fixed := newMasked(t).env.Generator
		recorder := &gradients{MaskedPolicy: r.env.Generator, sampler: fixed}
		r.Frozen = "another" // the shifted model is not its own reference
		r.env.Generator = recorder
		last, err := r.train()
		require.NoError(t, err)
		return value(last, "loss"), recorder.grad
	}
	_, g := loss(nil, 0)
	norm := 0.0
	for _, v := range g {
		norm += v * v
	}
	require.NotZero(t, norm)
	h := 1e-6 / math.Sqrt(norm)
	up, _ := loss(g, h)
	down, _ := loss(g, -h)
	require.InEpsilon(t, norm, (up-down)/(2*h), 1e-4)
}

// gradients keeps the gradient of the first micro-step, and samples from another model.
type gradients struct {
	train.MaskedPolicy
	sampler train.MaskedPolicy
	grad    []float64
}

func (g *gradients) Logits(x train.Texts) train.Logits    { return g.sampler.Logits(x) }
func (g *gradients) Reference(x train.Texts) train.Logits { return g.sampler.Reference(x) }
func (g *gradients) Accumulate(x train.Texts, loss func(train.Logits) ([]float64, error)) error {
	err := g.MaskedPolicy.Accumulate(x, loss)
	g.grad = nil
	for _, p := range g.Params() {
		g.grad = append(g.grad, p.Grad...)
	}
	return err
}

// 2 inputs × 2 micro-steps and the same inputs in other partitions: the advantages of a group-wise scope do not see the partition,
// so the gradient is the same but for the order of its sums, 1e-12 of it at most for these few dozen terms.
func TestGRPOPartition(t *testing.T) {
	if testing.Short() {
		t.Skip("several runs, in the long tests only")
	}
	update := func(batch, accumulation int) (norm float64, grad []float64) {
		r := newMasked(t, "adv_scope=group", "max_iters=1", "grad_clip=0", "learning_rate=0", "min_lr=0", fmt.Sprint("batch_size=", batch), fmt.Sprint("gradient_accumulation_steps=", accumulation))
		g := &gradients{MaskedPolicy: r.env.Generator, sampler: r.env.Generator}
		r.env.Generator = g
		_, err := r.train()
		require.NoError(t, err)
		lines, err := rundir.ReadLog(filepath.Join(r.env.Run.Path(), "metrics.jsonl"))
		require.NoError(t, err)
		var line struct {
			GradNorm float64 `json:"grad_norm"`
		}
		require.NoError(t, json.Unmarshal(lines[0].Text, &line))
		for _, v := range g.grad { // before the division by the micro-steps
			grad = append(grad, v/float64(accumulation))
		}
		return line.GradNorm, grad
	}
	norm, want := update(1, 4)
	require.NotZero(t, norm)
	for _, p := range [][2]int{{4, 1}, {2, 2}} {
		n, got := update(p[0], p[1])
		require.InEpsilon(t, norm, n, 1e-12, "%d inputs x %d", p[0], p[1])
		for i := range want {
			require.InDelta(t, want[i], got[i], 1e-12*norm)
		}
	}
}

func TestGRPOStops(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(r *maskedRun)
		says  string
	}{
		"H5 in sampling":  {func(r *maskedRun) { r.env.Generator = faulty{MaskedPolicy: r.env.Generator, logits: lastOnly} }, "H5: the model returned logits of shape [2, 1, 67] for ids of shape [2, 16]"},
		"H5 in reference": {func(r *maskedRun) { r.env.Generator = faulty{MaskedPolicy: r.env.Generator, reference: lastOnly} }, "H5"},
		"H5 in loss":      {func(r *maskedRun) { r.env.Generator = faulty{MaskedPolicy: r.env.Generator, now: lastOnly} }, "H5"},
		"another reference at the start": {func(r *maskedRun) {
			r.env.Generator = faulty{MaskedPolicy: r.env.Generator, reference: func(l train.Logits) train.Logits {
				l.Data = slices.Clone(l.Data)
				for i := range l.Data {
					l.Data[i] *= .9 // a temperature
				}
				return l
			}}
		}, "the KL of a model to its own copy"},
		"reward NaN": {func(r *maskedRun) {
			r.env.Judge = judged{r.env.Judge, func(float64) float64 { return math.NaN() }}
		}, "rewards[0] is NaN"},
		"logits NaN": {func(r *maskedRun) {
			r.env.Generator = faulty{MaskedPolicy: r.env.Generator, logits: func(l train.Logits) train.Logits {
				l.Data = slices.Repeat([]float64{math.NaN()}, len(l.Data))
				return l
			}}
		}, "not finite"},
		"weight NaN in the loss": {func(r *maskedRun) {
			r.env.Generator = faulty{MaskedPolicy: r.env.Generator, now: func(l train.Logits) train.Logits {
				l.Data = slices.Repeat([]float64{math.NaN()}, len(l.Data))
				return l
			}}
		}, "loss[0] is NaN"},
		"group of one": {func(r *maskedRun) { r.GroupSize = 1 }, "group_size 1"},
		"long block":   {func(r *maskedRun) { r.BlockSize = 65 }, "block_size 65 is above"},
		"short text":   {func(r *maskedRun) { r.env.Text = "Shall I compare thee" }, "has no window"},
		"strange text": {func(r *maskedRun) { r.env.Text = "αβγ" }, "is not in it"},
		"the time":     {func(r *maskedRun) { r.TimeLimit, r.env.Clock = 1, clock(10) }, "B11"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newMasked(t)
			c.plant(r)
			_, err := r.train()
			require.ErrorContains(t, err, c.says)
		})
	}
}

// clock advances by so many seconds each time that it is read.
func clock(by float64) func() float64 {
	now := 0.0
	return func() float64 { now += by; return now }
}

func TestGRPOWarnings(t *testing.T) {
	// B1: one verdict for all. The KL is all that is left of the loss, and it is 0 at first.
	r := newMasked(t, "fail_on_zero_loss=true")
	r.env.Judge = judged{r.env.Judge, func(float64) float64 { return .25 }}
	_, err := r.train()
	require.ErrorContains(t, err, "the loss is exactly 0 (B11)")
	require.Contains(t, r.out.String(), "WARNING: All advantages are near zero! rewards_grouped=[0.7500 0.7500")
	require.Regexp(t, `iter 0: loss -?0\.0000 `, r.out.String())
	require.Len(t, r.warnings, 1)
	require.Contains(t, r.warnings[0], "B1: the judge gives all completions of an input the same score")

	// No masks at all: every micro-step is skipped, there is no update, and no loss of 0.
	r = newMasked(t, "mask_ratio=1e-9")
	before := slices.Clone(r.env.Generator.Params()[0].Data)
	last, err := r.train()
	require.NoError(t, err)
	require.Contains(t, r.out.String(), "[Micro 1] skipped: no position is masked")
	require.Contains(t, r.out.String(), "iter 1: loss n/a (main n/a, critic 0.0000)")
	require.Len(t, r.warnings, 1, "cause and fix are said once")
	require.NotContains(t, r.out.String(), "loss 0.0000")
	require.Equal(t, 2., value(last, "skipped_micro_steps"))
	require.Equal(t, before, r.env.Generator.Params()[0].Data)

	// All completions the same: the likeliest token alone is left.
	r = newMasked(t, "top_p=1e-9")
	last, err = r.train()
	require.NoError(t, err)
	require.Contains(t, r.out.String(), "skipped: all completions of an input are identical")
	require.Equal(t, 2., value(last, "skipped_micro_steps"))

	// H6: no room for CLS. The text is cut, and the judge reads on.
	r = newMasked(t)
	r.env.Judge = short{r.env.Judge}
	_, err = r.train()
	require.NoError(t, err)
	require.Len(t, r.warnings, 1)
	require.Contains(t, r.warnings[0], "(H6)")
}

// short is a judge that says that it has room for 16 tokens.
type short struct{ train.Judge }

func (s short) Vocabulary() train.Vocabulary {
	v := s.Judge.Vocabulary()
	v.BlockSize = 16
	return v
}

// A skipped micro-step does not count: the one that is used gives the whole update.
func TestGRPOSkipped(t *testing.T) {
	weights := func(seed, accumulation int) (w []float64, out string) {
		r := newMasked(t, "batch_size=1", "max_iters=1", "mask_ratio=0.03", fmt.Sprint("seed=", seed), fmt.Sprint("gradient_accumulation_steps=", accumulation))
		_, err := r.train()
		require.NoError(t, err)
		for _, p := range r.env.Generator.Params() {
			w = append(w, p.Data...)
		}
		return w, r.out.String()
	}
	for seed := 1; seed < 200; seed++ {
		got, out := weights(seed, 3)
		if strings.Contains(out, "[Micro 0] skipped") || !strings.Contains(out, "[Micro 1] skipped") || !strings.Contains(out, "[Micro 2] skipped") {
			continue
		}
		want, _ := weights(seed, 1)
		require.Equal(t, want, got, "seed %d", seed)
		return
	}
	t.Fatal("no seed has one micro-step with masks, the first")
}

// What a sample gets depends on its number and the seed, not on its neighbours or the size of the micro-step.
func TestGRPOSamples(t *testing.T) {
	ids := func(batch, accumulation int) []float64 {
		r := newMasked(t, "max_iters=1", fmt.Sprint("batch_size=", batch), fmt.Sprint("gradient_accumulation_steps=", accumulation))
		_, err := r.train()
		require.NoError(t, err)
		return r.batch(t, 1).Token("response_ids")
	}
	require.Equal(t, ids(1, 4), ids(4, 1))
}
