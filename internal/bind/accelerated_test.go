package bind_test

import (
	"bytes"
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/lora"
	"plumbline/internal/bind"
	"plumbline/internal/cases"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

var modes = []lora.Mode{lora.W8A16, lora.W8A8, lora.F32, lora.BF16, lora.LLMInt8}

// accelOptions opens a base with an adapter of rank 2 on every linear layer of the blocks, none of whose factors is 0.
func accelOptions(t *testing.T, name string) (*bind.Base, bind.Options) {
	b, err := bind.OpenBare(name)
	if !strings.Contains(name, "/") {
		b, err = bind.OpenBase(name, 3)
	}
	require.NoError(t, err)
	t.Cleanup(b.Close)
	var targets []string
	for _, l := range b.Config.Linears() {
		if l.Layer >= 0 && !slices.Contains(targets, l.Last()) {
			targets = append(targets, l.Last())
		}
	}
	a, err := bind.NewAdapter(b.Reference(), 2, 3, targets, 3)
	require.NoError(t, err)
	for name, f := range a {
		for i := range f.B {
			f.B[i] = float64(float32(0.05 * rng.New(uint64(len(name)), 1).Normal(uint64(i))))
		}
	}
	return b, bind.Options{Adapter: a, ValueHead: true, Seed: 3}
}

// accelBatch is of three rows with padding on both sides.
func accelBatch(vocab int, seed uint64) train.Batch {
	b := train.Batch{Rows: 3, Prompt: 4, Response: 5}
	words := rng.New(seed, 0)
	for r := range b.Rows {
		for i := range b.Prompt + b.Response {
			b.IDs = append(b.IDs, int(words.Word(uint64(9*r+i))%uint64(vocab)))
			b.Real = append(b.Real, i >= r && i < 9-r)
		}
	}
	return b
}

// slopesOf are derivatives of a loss by the scores of the tokens of a batch; padding has none.
func slopesOf(seed uint64, b train.Batch) train.Slopes {
	n := b.Rows * b.Response
	s := train.Slopes{LogProbs: make([]float64, n), Entropy: make([]float64, n), Values: make([]float64, n)}
	for i := range n {
		at := i/b.Response*(b.Prompt+b.Response) + b.Prompt + i%b.Response
		if !b.Real[at] || !b.Real[at-1] {
			continue
		}
		s.LogProbs[i], s.Entropy[i], s.Values[i] = rng.New(seed, 1).Normal(uint64(i)), 0.3*rng.New(seed, 2).Normal(uint64(i)), rng.New(seed, 3).Normal(uint64(i))
	}
	return s
}

// follow runs one update in lockstep and returns the report with its error.
func follow(t *testing.T, l *bind.Lockstep, vocab int, seed uint64) (string, error) {
	b := accelBatch(vocab, seed)
	_, err := l.Score(b)
	require.NoError(t, err)
	_, err = l.Reference(b)
	require.NoError(t, err)
	require.NoError(t, l.Accumulate(b, func(train.Scores) (train.Slopes, error) { return slopesOf(seed, b), nil }))
	var out bytes.Buffer
	err = l.Report(&out)
	return out.String(), err
}

// TestAccelerated holds log-probabilities, entropies, values and the gradients of every factor and of the value head against the reference on the
// same quantised weights, in every mode and for models of all families from their files.
func TestAccelerated(t *testing.T) {
	for i, name := range []string{"../../golden/models/gpt2/base", "../../golden/models/gptj/base", "../../golden/models/llama/base", "../../golden/models/qwen2/base",
		"../../golden/models/qwen2b/base", bind.Tiny, bind.TinyGPTJInit} {
		for k, mode := range modes {
			if (i+k)%cases.Every != 0 { // every model, and every mode
				continue
			}
			t.Run(name+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				base, o := accelOptions(t, name)
				l, err := bind.NewLockstep(base, mode, o)
				require.NoError(t, err)
				report, err := follow(t, l, base.Config.Vocab, 7)
				require.NoError(t, err, report)
				for _, kind := range []string{"log-probabilities", "reference log-probabilities", "entropies", "values", "gradients of A", "gradients of B", "gradients of the value head"} {
					require.Contains(t, report, kind)
				}
			})
		}
	}
}

// TestLockstepParts plants what lockstep is there to find: kernels on other weights, or on an update that is scaled by a thousandth more.
func TestLockstepParts(t *testing.T) {
	for what, plant := range map[string]func(o *bind.Options){
		"scale": func(o *bind.Options) {
			for name, f := range o.Adapter {
				f.Scale *= 1.001
				o.Adapter[name] = f
			}
		},
		"one layer": func(o *bind.Options) {
			f := o.Adapter["model.layers.1.self_attn.v_proj"]
			f.Scale *= 1.01
			o.Adapter["model.layers.1.self_attn.v_proj"] = f
		},
	} {
		t.Run(what, func(t *testing.T) {
			base, o := accelOptions(t, bind.Tiny)
			l, err := bind.NewLockstep(base, lora.F32, o)
			require.NoError(t, err)
			bad := o
			plant(&bad)
			fast, err := bind.NewAccelerated(base, lora.F32, bad)
			require.NoError(t, err)
			bind.ReplaceFast(l, fast)
			report, err := follow(t, l, base.Config.Vocab, 7)
			var parted bind.PartedError
			require.ErrorAs(t, err, &parted, report)
			require.Contains(t, report, "PARTS at step 1")
		})
	}
	base, o := accelOptions(t, bind.Tiny)
	l, err := bind.NewLockstep(base, lora.F32, o)
	require.NoError(t, err)
	var untested bind.UntestedError
	require.ErrorAs(t, l.Report(&bytes.Buffer{}), &untested)
	l.Params()[0].Data[0] = math.NaN()
	report, err := follow(t, l, base.Config.Vocab, 7)
	require.Error(t, err, report)
}

// TestLockstepUntested demands that what had nothing to compare does not read as if it agreed: a batch of padding alone, and the factors A while
// the factors B are 0.
func TestLockstepUntested(t *testing.T) {
	base, o := accelOptions(t, bind.Tiny)
	for _, f := range o.Adapter {
		clear(f.B)
	}
	l, err := bind.NewLockstep(base, lora.W8A16, o)
	require.NoError(t, err)
	empty := train.Batch{Rows: 1, Prompt: 2, Response: 2, IDs: []int{1, 2, 0, 0}, Real: []bool{true, true, false, false}}
	_, err = l.Score(empty)
	require.NoError(t, err)
	var out bytes.Buffer
	var untested bind.UntestedError
	require.ErrorAs(t, l.Report(&out), &untested, out.String())
	require.Contains(t, out.String(), "log-probabilities                0 compared, 1 empty or zero on both sides: UNTESTED")
	require.NotContains(t, out.String(), "within")

	report, err := follow(t, l, base.Config.Vocab, 7)
	require.NoError(t, err, report)
	require.Regexp(t, `gradients of A +0 compared, \d+ empty or zero on both sides: UNTESTED`, report)
	require.Regexp(t, `gradients of B +\d+ compared, worst err/bound [\d.]+ .*: within`, report)
	require.Contains(t, report, "bf16.W8A16DX") // the variant of every kernel that ran
}

// TestAcceleratedSamples demands that a response depends on its prompt and its number alone, that Score gives what was drawn the log-probability that
// was reported, and that the reference on the same weights draws the same.
func TestAcceleratedSamples(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, mode := range modes {
		base, o := accelOptions(t, bind.Tiny)
		p, err := bind.NewAccelerated(base, mode, o)
		require.NoError(t, err)
		exact, err := p.Exact()
		require.NoError(t, err)
		batch := accelBatch(base.Config.Vocab, 5)
		prompts := train.Batch{Rows: 3, Prompt: 4}
		for r := range 3 {
			prompts.IDs, prompts.Real = append(prompts.IDs, batch.IDs[9*r:9*r+4]...), append(prompts.Real, batch.Real[9*r:9*r+4]...)
		}
		how := train.Sampling{Temperature: 1, TopP: 0.95, MaxNew: 12, Raw: true}
		draw := func(p train.Policy, b train.Batch, first int) ([][]int, [][]float64) {
			ids, lp, err := p.Sample(context.Background(), b, how, rng.New(5, 1), first, base.Text.EOS(), nil)
			require.NoError(t, err)
			return ids, lp
		}
		runtime.GOMAXPROCS(1)
		ids, lp := draw(p, prompts, 40)
		runtime.GOMAXPROCS(8)
		again, lpAgain := draw(p, prompts, 40)
		require.Equal(t, ids, again)
		require.Equal(t, lp, lpAgain)
		for r := range 3 {
			one := train.Batch{Rows: 1, Prompt: 4, IDs: prompts.IDs[4*r : 4*r+4], Real: prompts.Real[4*r : 4*r+4]}
			alone, lpAlone := draw(p, one, 40+r)
			require.Equal(t, ids[r], alone[0])
			require.Equal(t, lp[r], lpAlone[0])
			one.Response = len(ids[r])
			one.IDs, one.Real = append(slices.Clone(one.IDs), ids[r]...), append(slices.Clone(one.Real), slices.Repeat([]bool{true}, len(ids[r]))...)
			s, err := p.Score(one)
			require.NoError(t, err)
			for j, v := range s.LogProbs {
				require.InDelta(t, lp[r][j], v, 1e-6, "%v: row %d, token %d: scored and drawn", mode, r, j)
			}
		}
		if mode == lora.F32 {
			want, _ := draw(exact, prompts, 40)
			require.Equal(t, want, ids)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, _, err = p.Sample(ctx, prompts, how, rng.New(5, 1), 0, 0, nil)
		require.ErrorIs(t, err, context.Canceled)
	}
}

// TestAcceleratedInt8 demands the codes of bitsandbytes where a run asks for them: float16 first.
func TestAcceleratedInt8(t *testing.T) {
	base, o := accelOptions(t, bind.TinyGPTJInit)
	o.Int8 = true
	p, err := bind.NewAccelerated(base, lora.W8A16, o)
	require.NoError(t, err)
	m, _, err := bind.Open(bind.TinyGPTJInit, 3)
	require.NoError(t, err)
	codes, err := bind.Int8Base(m.Base)
	require.NoError(t, err)
	for name, q := range codes {
		w := p.Weight(name + ".weight")
		for i, v := range w {
			row := i / q.Cols
			require.InDelta(t, float64(q.Codes[i]), v*127/max(q.AbsMax[row], 1e-30), 1e-4, "%s, element %d", name, i)
		}
	}
	require.Equal(t, "accel w8a16", p.Variant())
}

func TestAcceleratedRefuses(t *testing.T) {
	base, o := accelOptions(t, bind.Tiny)
	o.Adapter = nil
	_, err := bind.NewAccelerated(base, lora.W8A16, o)
	require.ErrorContains(t, err, "lora.r=8")
	_, err = bind.OpenBase("nowhere", 1)
	require.Error(t, err)
	gpt2, o := accelOptions(t, "../../golden/models/gpt2/base")
	o.Int8 = true
	_, err = bind.NewAccelerated(gpt2, lora.W8A16, o)
	require.ErrorContains(t, err, "[in, out]")
	p, err := bind.NewAccelerated(base, lora.W8A16, func() bind.Options { _, o := accelOptions(t, bind.Tiny); return o }())
	require.NoError(t, err)
	b := accelBatch(base.Config.Vocab, 1)
	b.IDs[4] = base.Config.Vocab
	_, err = p.Score(b)
	require.ErrorContains(t, err, "vocabulary")
	_, err = p.Reference(b)
	require.Error(t, err)
	require.Error(t, p.Accumulate(b, func(train.Scores) (train.Slopes, error) { return train.Slopes{}, nil }))
	require.True(t, strings.HasPrefix(p.Variant(), "accel"))
}

// TestAcceleratedIsAPolicy holds the kernels to the laws of a policy. Sums of float32 leave about 1e-6 of a log-probability, so a difference
// over steps of 1e-2 is a slope to about 1e-3; behind padding not a bit changes.
func TestAcceleratedIsAPolicy(t *testing.T) {
	for _, name := range []string{bind.Tiny, bind.TinyGPTJ} {
		t.Run(name, func(t *testing.T) {
			open := func() train.Policy {
				base, err := bind.OpenBase(name, 3)
				require.NoError(t, err)
				defer base.Close()
				a, err := bind.NewAdapter(base.Reference(), 2, 4, []string{"q_proj", "v_proj"}, 5)
				require.NoError(t, err)
				p, err := bind.NewAccelerated(base, lora.F32, bind.Options{Adapter: a, PEFT: bind.AdapterConfig(name, train.LoRA{R: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}})})
				require.NoError(t, err)
				return p
			}
			policyLaws(t, open, 257, 256, policyBounds{padding: 0, sampled: 1e-6, gradient: 1e-2, h: 1e-2})
		})
	}
}
