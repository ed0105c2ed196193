package train_test

import (
	"context"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/rl"
)

// watched records what a trainer asks of its policy.
type watched struct {
	*bind.Language
	batches []train.Batch    // that were learned from
	grads   [][]float64      // of all parameters after each of them, as accumulated so far
	scores  []train.Scores   // of these batches
	before  func(w *watched) // called before each
}

func (w *watched) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	if w.before != nil {
		w.before(w)
	}
	err := w.Language.Accumulate(b, func(s train.Scores) (train.Slopes, error) { w.scores = append(w.scores, s); return loss(s) })
	w.batches = append(w.batches, b)
	w.grads = append(w.grads, flat(w.Params(), func(p train.Param) []float64 { return p.Grad }))
	return err
}

func flat(params []train.Param, of func(train.Param) []float64) (all []float64) {
	for _, p := range params {
		all = append(all, of(p)...)
	}
	return all
}

func weights(p train.Policy) []float64 {
	return flat(p.Params(), func(p train.Param) []float64 { return p.Data })
}

func tiny(t testing.TB, seed uint64) (*watched, *bind.Text) {
	m, extra, err := bind.Open(bind.Tiny, seed)
	require.NoError(t, err)
	text, err := bind.NewText(m)
	require.NoError(t, err)
	l, err := bind.NewLanguage(m.Base, bind.Options{ValueHead: true, Seed: seed, Extra: extra})
	require.NoError(t, err)
	return &watched{Language: l}, text
}

// settings is a step of 8 responses in one update.
func settings() *train.PPO {
	var c train.PPO
	c.Settings()
	c.Device, c.Adam8bit, c.Steps, c.Epochs, c.SaveInterval = "cpu", false, 1, 1, 0
	c.RolloutSamples, c.BatchSize, c.MiniBatch, c.Accumulation = 8, 8, 8, 1
	c.LearningRate, c.Scheduler, c.Warmup = 1e-3, "constant", 0
	c.MaxNew, c.MinNew, c.Temperature, c.TopK, c.TopP = 4, 0, 1, 0, 1
	return &c
}

func trainWith(t testing.TB, c *train.PPO, p train.Policy, text *bind.Text, questions []dataset.Question) ([]rl.Metric, *rundir.Run) {
	run, err := rundir.Create(filepath.Join(t.TempDir(), "run"), rundir.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { run.Close() })
	m, err := c.Train(context.Background(), train.Env{Policy: p, Tokenizer: text, Questions: questions, Run: run, Out: io.Discard})
	require.NoError(t, err)
	return m, run
}

func additions() []dataset.Question { return dataset.Additions(rng.New(1, 4), 50, 9) }

func metric(t testing.TB, m []rl.Metric, name string) float64 {
	i := slices.IndexFunc(m, func(m rl.Metric) bool { return m.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return m[i].Value
}

func norm(x []float64) (n float64) {
	for _, v := range x {
		n += v * v
	}
	return math.Sqrt(n)
}

// Responses of one length make the mean over micro-batches that over rows, so the gradient is the same however the rows are
// divided, but for the 1e-8 that the document's masked mean adds to the number of cells: a micro-batch of n cells has n/(n + 1e-8)
// of the gradient. Every element passes fewer than 100 sums of fewer than 256·12 terms, each of which may lose half a unit in the
// last place of the sum of magnitudes, which the norm bounds here up to the square root of the number of rows.
func TestPartitionInvariance(t *testing.T) {
	gradient := func(mini, accumulation int) []float64 {
		c := settings()
		c.MinNew, c.MiniBatch, c.Accumulation = c.MaxNew, mini, accumulation
		p, text := tiny(t, 1)
		trainWith(t, c, p, text, additions())
		require.Len(t, p.grads, 8/mini)
		return p.grads[len(p.grads)-1]
	}
	want := gradient(8, 1)
	require.Positive(t, norm(want))
	bound := math.Sqrt(8) * 100 * 256 * 12 * 0x1p-53 * norm(want)
	for _, part := range [][2]int{{1, 8}, {2, 4}, {4, 2}} {
		got := gradient(part[0], part[1])
		cells, all := float64(4*part[0]), 32.0
		for i := range got {
			got[i] = got[i]*(cells+1e-8)/cells - want[i]*(all+1e-8)/all
		}
		t.Logf("%d rows × %d: |Δ| = %.2g, bound %.2g", part[0], part[1], norm(got), bound)
		require.LessOrEqual(t, norm(got), bound, "%v", part)
	}
}

// How many prompts are generated from at once changes no bit: it is not part of what a checkpoint is guarded by.
func TestBatchSizeIsWithoutEffect(t *testing.T) {
	var want []float64
	for _, size := range []int{8, 3, 1} {
		c := settings()
		c.BatchSize = size
		p, text := tiny(t, 1)
		trainWith(t, c, p, text, additions())
		if want == nil {
			want = weights(p)
		}
		require.Equal(t, want, weights(p), "ppo.batch_size %d", size)
	}
}

// A learning rate of 0 changes nothing, bit for bit; rewards that are all 0 are learned from: KL and values have gradients.
func TestZeroReward(t *testing.T) {
	for _, lr := range []float64{0, 1e-3} {
		c := settings()
		c.LearningRate, c.MaxNew = lr, 1 // one token has no number
		p, text := tiny(t, 1)
		before := slices.Clone(weights(p))
		m, _ := trainWith(t, c, p, text, additions())
		require.Zero(t, metric(t, m, "rollout/reward_mean"))
		require.Equal(t, lr == 0, slices.Equal(before, weights(p)))
	}
}

// What stands in masked cells, prompt padding and response padding alike, matters neither to the scores of others nor to a gradient.
func TestMaskedCells(t *testing.T) {
	p, _ := tiny(t, 1)
	ids := []int{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	real := []bool{false, true, true, true, true, false, true, true, true, true, true, true} // 2 rows, prompts of 2 and 3, responses of 2 and 3
	grad := func(ids []int) ([]float64, train.Scores) {
		for _, q := range p.Params() {
			clear(q.Grad)
		}
		b := train.Batch{Rows: 2, Prompt: 3, Response: 3, IDs: ids, Real: real}
		require.NoError(t, p.Accumulate(b, func(s train.Scores) (train.Slopes, error) {
			slopes := func(k float64) (d []float64) {
				for i := range 6 {
					d = append(d, k*float64(i+1))
				}
				d[2] = 0 // masked
				return d
			}
			return train.Slopes{LogProbs: slopes(1), Entropy: slopes(.1), Values: slopes(.3)}, nil
		}))
		return flat(p.Params(), func(p train.Param) []float64 { return slices.Clone(p.Grad) }), p.scores[len(p.scores)-1]
	}
	want, a := grad(ids)
	other := slices.Clone(ids)
	other[0], other[5] = 40, 41
	got, b := grad(other)
	require.Equal(t, want, got)
	for i := range 6 {
		if i != 2 {
			require.Equal(t, a.LogProbs[i], b.LogProbs[i])
			require.Equal(t, a.Values[i], b.Values[i])
		}
	}
	changed := slices.Clone(ids)
	changed[4]++ // a token that is real
	got, _ = grad(changed)
	require.NotEqual(t, want, got, "the test can fail")
}

// The value head: one linear layer, weights of standard deviation 0.01 and a bias of 0; a value's gradient reaches the trunk.
func TestValueHead(t *testing.T) {
	p, _ := tiny(t, 1)
	params := p.Params()
	w, bias := params[len(params)-2], params[len(params)-1]
	require.Equal(t, "v_head.summary.weight", w.Name)
	require.Equal(t, []int{1, 64}, w.Shape)
	require.Equal(t, "v_head.summary.bias", bias.Name)
	require.Equal(t, []float64{0}, bias.Data)
	deviation := norm(w.Data) / 8
	require.InDelta(t, 0.01, deviation, 3*0.01/math.Sqrt(2*64), "three standard errors of a standard deviation of 64 numbers")
	b := train.Batch{Rows: 1, Prompt: 2, Response: 2, IDs: []int{5, 6, 7, 8}, Real: []bool{true, true, true, true}}
	require.NoError(t, p.Accumulate(b, func(s train.Scores) (train.Slopes, error) {
		require.Len(t, s.Values, 2)
		return train.Slopes{Values: []float64{1, 1}}, nil
	}))
	for _, q := range params {
		// The last state before a response is the third: nothing else of the last layer's output is used.
		require.Equal(t, !strings.Contains(q.Name, "lm_head"), norm(q.Grad) > 0, q.Name)
	}
}

// The first mini-batch: the ratio is 1 and KL is 0, and the rows are those of fresh prompts in every step.
func TestFirstUpdateAndFreshPrompts(t *testing.T) {
	c := settings()
	c.Steps = 3
	p, text := tiny(t, 1)
	trainWith(t, c, p, text, additions())
	require.Len(t, p.batches, 3)
	var prompts []string
	for _, b := range p.batches {
		var all []string
		for r := range b.Rows {
			row := b.IDs[r*(b.Prompt+b.Response) : r*(b.Prompt+b.Response)+b.Prompt]
			require.True(t, b.Real[r*(b.Prompt+b.Response)+b.Prompt-1], "padded on the left")
			all = append(all, text.Decode(row))
		}
		slices.Sort(all)
		prompts = append(prompts, strings.Join(all, "|"))
	}
	require.NotEqual(t, prompts[0], prompts[1])
	require.NotEqual(t, prompts[1], prompts[2])

	c = settings()
	p, text = tiny(t, 1)
	m, _ := trainWith(t, c, p, text, additions())
	require.Zero(t, metric(t, m, "params/approx_kl"))
	require.Zero(t, metric(t, m, "params/policy_clip_frac"))
}

// Micro-batches that are left over have an update of their own with their own divisor, and no gradient stays behind.
func TestLeftovers(t *testing.T) {
	c := settings()
	c.RolloutSamples, c.MiniBatch, c.Accumulation, c.Epochs = 6, 2, 2, 2
	p, text := tiny(t, 1)
	starts := 0
	p.before = func(w *watched) {
		if norm(flat(w.Params(), func(p train.Param) []float64 { return p.Grad })) == 0 {
			starts++
		}
	}
	trainWith(t, c, p, text, additions())
	require.Len(t, p.batches, 6)
	require.Equal(t, 4, starts, "updates begin without a gradient: 2 and 1 micro-batches, twice")
	require.Zero(t, norm(flat(p.Params(), func(p train.Param) []float64 { return p.Grad })))
}

// The loss terms can be switched off one by one, and each changes the update.
func TestAblations(t *testing.T) {
	update := func(change func(c *train.PPO)) []float64 {
		c := settings()
		c.Epochs, c.MiniBatch = 2, 4
		change(c)
		p, text := tiny(t, 1)
		trainWith(t, c, p, text, additions())
		return weights(p)
	}
	whole := update(func(*train.PPO) {})
	for name, change := range map[string]func(*train.PPO){
		"kl_coeff":         func(c *train.PPO) { c.KLCoeff = 0; c.Steps = 2 }, // KL is 0 in the first step
		"clip_ratio":       func(c *train.PPO) { c.ClipRatio = 1e-9 },
		"clip_range_value": func(c *train.PPO) { c.ClipValue = 1e-9 },
		"vf_coeff":         func(c *train.PPO) { c.VFCoeff = 0 },
		"entropy_coeff":    func(c *train.PPO) { c.EntropyCoeff = 0 },
		"epochs":           func(c *train.PPO) { c.Epochs = 1 },
		"lam":              func(c *train.PPO) { c.Lambda = 0 },
		"max_grad_norm":    func(c *train.PPO) { c.MaxGradNorm = 1e-9 },
	} {
		base := whole
		if name == "kl_coeff" {
			base = update(func(c *train.PPO) { c.Steps = 2 })
		}
		require.NotEqual(t, base, update(change), name)
	}
}

func TestWarnings(t *testing.T) {
	c := settings()
	c.Wandb.Report, c.Model.TrustRemoteCode, c.Model.DType, c.Epochs = false, false, "float32", 2
	require.Empty(t, c.Warnings())
	for id, change := range map[string]func(c *train.PPO){
		"C1": func(c *train.PPO) { c.Device = "cuda" }, "C2": func(c *train.PPO) { c.Device, c.Adam8bit = "cuda", true },
		"C16": func(c *train.PPO) { c.MaxGradNorm = 0 }, "C17": func(c *train.PPO) { c.DoSample = false },
		"C18": func(c *train.PPO) { c.Epochs = 1 }, "H13g": func(c *train.PPO) { c.Model.DType = "bfloat16" },
	} {
		d := *c
		change(&d)
		require.Contains(t, strings.Join(d.Warnings(), "\n"), id)
	}
	c.Adam8bit = true
	require.True(t, c.Uses8bit())
	c.Device = "cuda"
	require.False(t, c.Uses8bit(), "AdamW where the device is not there")
}

// A rollout counts prompts that were cut and responses without an end, and a response may be empty.
func TestCutAndUnfinished(t *testing.T) {
	c := settings()
	c.Dataset.MaxPrompt = 5
	p, text := tiny(t, 1)
	_, run := trainWith(t, c, p, text, additions())
	require.Equal(t, 5, p.batches[0].Prompt)
	lines, err := rundir.ReadLog(filepath.Join(run.Path(), "metrics.jsonl"))
	require.NoError(t, err)
	require.Contains(t, string(lines[0].Text), `"rollout/prompts_cut":8`)
	samples, err := rundir.ReadLog(filepath.Join(run.Path(), "samples.jsonl"))
	require.NoError(t, err)
	require.Len(t, samples, 3)
}

// λ = 1 is Monte Carlo and varies at least as much as λ = 0 on the same rollout, before whitening: returns less values.
func TestVarianceOfLambda(t *testing.T) {
	variance := func(lambda float64) float64 {
		r := rng.New(9, 9)
		rows, cols := 64, 6
		mask, values, kl, scores := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows)
		for i := range mask {
			mask[i] = true
			values[i] = 0.2 + 0.05*r.Normal(uint64(i))
			kl[i] = 0.05 * 0.1 * r.Normal(uint64(1000+i))
		}
		for i := range scores {
			scores[i] = []float64{0, 0.1, 0.1, 1}[int(4*r.Uniform(uint64(5000+i)))]
		}
		_, returns, err := rl.ComputeGAEAdvantages(scores, kl, values, mask, rows, cols, .99, lambda)
		require.NoError(t, err)
		var sum, squares float64
		for i := range returns {
			a := returns[i] - values[i]
			sum, squares = sum+a, squares+a*a
		}
		n := float64(len(returns))
		return squares/n - sum/n*sum/n
	}
	require.GreaterOrEqual(t, variance(1), variance(0))
}
