package train_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/optim"
)

// stub is a policy that shares nothing with those of the reference: a bigram model in float32, with an adapter and a value for every
// token, which samples by itself and hands out no logits.
//
//	z(next | last) = base[last, next] + Σ_r B[next, r]·A[r, last]
type stub struct {
	base   []float32 // [V, V]
	params []train.Param
	calls  map[string]int
}

const (
	stubVocab = 48
	stubRank  = 3
	stubEnd   = 0
)

func newStub(seed uint64) *stub {
	s := &stub{base: make([]float32, stubVocab*stubVocab), calls: map[string]int{}}
	for i := range s.base {
		s.base[i] = float32(rng.New(seed, 1).Normal(uint64(i)))
	}
	add := func(name string, size float64, shape ...int) {
		p := train.Param{Name: name, Shape: shape, Data: make([]float64, shape[0]*shape[1]), Grad: make([]float64, shape[0]*shape[1])}
		for i := range p.Data {
			p.Data[i] = float64(float32(size * rng.New(seed, uint64(2+len(s.params))).Normal(uint64(i))))
		}
		s.params = append(s.params, p)
	}
	add("model.layers.0.bigram.lora_A.weight", .3, stubRank, stubVocab)
	add("model.layers.0.bigram.lora_B.weight", 0, stubVocab, stubRank)
	add("v_head.summary.weight", .1, 1, stubVocab)
	return s
}

// logProbs returns those of the token after last, in float32.
func (s *stub) logProbs(last int, adapted bool) []float32 {
	z := slices.Clone(s.base[last*stubVocab : (last+1)*stubVocab])
	if adapted {
		a, b := s.params[0].Data, s.params[1].Data
		for i := range z {
			for r := range stubRank {
				z[i] += float32(b[i*stubRank+r]) * float32(a[r*stubVocab+last])
			}
		}
	}
	top, sum := slices.Max(z), float32(0)
	for _, v := range z {
		sum += float32(math.Exp(float64(v - top)))
	}
	for i := range z {
		z[i] -= top + float32(math.Log(float64(sum)))
	}
	return z
}

// each calls f for every response token that is real, with its place in [B, R], the token before it and its own id.
func each(b train.Batch, f func(at, last, id int)) {
	width := b.Prompt + b.Response
	for i := range b.Rows {
		for t := b.Prompt; t < width; t++ {
			if b.Real[i*width+t] {
				f(i*b.Response+t-b.Prompt, b.IDs[i*width+t-1], b.IDs[i*width+t])
			}
		}
	}
}

func (s *stub) Score(b train.Batch) (train.Scores, error) {
	s.calls["score"]++
	n := b.Rows * b.Response
	out := train.Scores{LogProbs: make([]float64, n), Entropy: make([]float64, n), Values: make([]float64, n)}
	each(b, func(at, last, id int) {
		lp := s.logProbs(last, true)
		out.LogProbs[at], out.Values[at] = float64(lp[id]), s.params[2].Data[last]
		for _, v := range lp {
			out.Entropy[at] -= math.Exp(float64(v)) * float64(v)
		}
	})
	return out, nil
}

func (s *stub) Reference(b train.Batch) ([]float64, error) {
	out := make([]float64, b.Rows*b.Response)
	each(b, func(at, last, id int) { out[at] = float64(s.logProbs(last, false)[id]) })
	return out, nil
}

func (s *stub) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	s.calls["accumulate"]++
	now, _ := s.Score(b)
	d, err := loss(now)
	if err != nil {
		return err
	}
	at := func(x []float64, i int) float64 {
		if x == nil {
			return 0
		}
		return x[i]
	}
	a, up := s.params[0], s.params[1]
	each(b, func(i, last, id int) {
		s.params[2].Grad[last] += at(d.Values, i)
		for k, lp := range s.logProbs(last, true) {
			p := math.Exp(float64(lp))
			dz := -p*at(d.LogProbs, i) - p*(float64(lp)+now.Entropy[i])*at(d.Entropy, i)
			if k == id {
				dz += at(d.LogProbs, i)
			}
			for r := range stubRank {
				up.Grad[k*stubRank+r] += dz * a.Data[r*stubVocab+last]
				a.Grad[r*stubVocab+last] += dz * up.Data[k*stubRank+r]
			}
		}
	})
	return nil
}

func (s *stub) Sample(ctx context.Context, prompts train.Batch, how train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) (ids [][]int, logp [][]float64, err error) {
	s.calls["sample"]++
	drawn := train.Drawn{Open: prompts.Rows}
	ids, logp = make([][]int, prompts.Rows), make([][]float64, prompts.Rows)
	for i := range prompts.Rows { // row by row, unlike the reference
		last := prompts.IDs[(i+1)*prompts.Prompt-1]
		for t := 0; t < how.MaxNew; t++ {
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			lp := s.logProbs(last, true)
			p, sum := make([]float64, stubVocab), 0.0
			for k, v := range lp {
				if k != eos || t >= how.MinNew {
					p[k] = math.Exp(float64(v) / temperature(how))
				}
				sum += p[k]
			}
			u, id := train.Uniform(stream, first+i, t)*sum, 0
			for acc := p[0]; acc <= u && id < stubVocab-1; acc += p[id] {
				id++
			}
			ids[i], logp[i] = append(ids[i], id), append(logp[i], float64(lp[id]))
			if !how.Raw {
				logp[i][t] = math.Log(p[id] / sum)
			}
			drawn.Tokens, drawn.Position, last = drawn.Tokens+1, max(drawn.Position, t+1), id
			if progress != nil {
				progress(drawn)
			}
			if id == eos {
				break
			}
		}
		drawn.Open--
	}
	return ids, logp, nil
}

func temperature(how train.Sampling) float64 {
	if how.Greedy {
		return 1e-3
	}
	return how.Temperature
}

func (s *stub) Params() []train.Param { return s.params }
func (s *stub) Fingerprint() string   { return "the base of the stub" }
func (s *stub) Variant() string       { return "stub-f32" }

func (s *stub) Files() ([]rundir.File, error) {
	var tensors []safetensors.Tensor
	for _, p := range s.params {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: p.Data})
	}
	return []rundir.File{{Name: "adapter_model.safetensors", Write: func(w io.Writer) error { return safetensors.Write(w, nil, tensors) }}}, nil
}

func (s *stub) Restore(dir string) error {
	f, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range s.params {
		if err := train.ReadTensor(f, p.Name, p.Shape, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// momentum is an optimiser that is none of the reference's: p ← p − lr·m with m ← 0.9·m + g, in float32.
type momentum struct {
	params  []train.Param
	m       [][]float64
	steps   int
	updates []train.Update
}

func newMomentum(params []train.Param) *momentum {
	o := &momentum{params: params}
	for _, p := range params {
		o.m = append(o.m, make([]float64, len(p.Data)))
	}
	return o
}

func (o *momentum) Step(u train.Update) (out train.Updated, err error) {
	o.steps++
	o.updates = append(o.updates, u)
	add := make([][]float64, len(o.params))
	for i, p := range o.params {
		add[i] = make([]float64, len(p.Data))
		for j, g := range p.Grad {
			out.Norm += g * g
			o.m[i][j] = float64(.9*float32(o.m[i][j]) + float32(g))
			add[i][j] = -u.Rule.LR * o.m[i][j]
		}
		clear(p.Grad)
	}
	out.Norm, out.Flow = math.Sqrt(out.Norm), make([]float64, len(o.params))
	if s := u.Shield; s != nil && s.Shield != nil && s.Mode == train.ProjectUpdate {
		out.Before = s.Leak(add)
		s.Project(add, s.Passes)
		out.After = s.Leak(add)
	}
	for i, p := range o.params {
		for j, v := range add[i] {
			p.Data[j] = float64(float32(p.Data[j] + v))
		}
	}
	return out, nil
}

func (o *momentum) File() rundir.File {
	var tensors []safetensors.Tensor
	for i, p := range o.params {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: o.m[i]})
	}
	return rundir.File{Name: "momentum.safetensors", Write: func(w io.Writer) error { return safetensors.Write(w, nil, tensors) }}
}

func (o *momentum) Restore(dir string, updates int) error {
	f, err := safetensors.Open(filepath.Join(dir, "momentum.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	o.steps = updates
	for i, p := range o.params {
		if err := train.ReadTensor(f, p.Name, p.Shape, o.m[i]); err != nil {
			return err
		}
	}
	return nil
}

// letters is a tokenizer of one token for a character.
type letters struct{}

func (letters) Encode(text string) (ids []int) {
	for _, c := range []byte(text) {
		ids = append(ids, 1+int(c)%(stubVocab-1))
	}
	return ids
}

func (letters) Decode(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		if id != stubEnd {
			b.WriteByte(byte(id - 1 + stubVocab - 1)) // 47 is /, 48 to 57 the digits
		}
	}
	return b.String()
}
func (letters) EOS() int { return stubEnd }
func (letters) Pad() int { return stubEnd }

// causalTrainers run every trainer of causal models for four steps with a checkpoint after each.
var causalTrainers = map[string]struct {
	updates int
	train   func(ctx context.Context, env train.Env) error
}{
	"ppo": {4 * 2, func(ctx context.Context, env train.Env) error {
		var c train.PPO
		override(c.Settings(), "training.device=cpu", "training.total_ppo_steps=4", "training.save_interval=1", "ppo.rollout_samples=8", "ppo.batch_size=4", "ppo.mini_batch_size=4",
			"ppo.gradient_accumulation_steps=2", "ppo.epochs=2", "ppo.learning_rate=0.05", "generation.max_new_tokens=6", "generation.top_k=0", "generation.top_p=1")
		_, err := c.Train(ctx, env)
		return err
	}},
	"grpo_causal": {4, func(ctx context.Context, env train.Env) error {
		var c train.GRPOCausal
		override(c.Settings(), "max_steps=4", "save_steps=1", "num_generations=4", "per_device_train_batch_size=8", "gradient_accumulation_steps=1", "max_completion_length=6",
			"reward_funcs=brevity", "learning_rate=0.05", "beta=0.1")
		_, err := c.Train(ctx, env)
		return err
	}},
	"sft": {4, func(ctx context.Context, env train.Env) error {
		var c train.SFT
		override(c.Settings(), "sft.steps=4", "training.save_interval=1", "sft.batch_size=4", "sft.eval_samples=4", "sft.learning_rate=0.05")
		_, err := c.Train(ctx, env)
		return err
	}},
	"shielded": {4, func(ctx context.Context, env train.Env) error {
		var c train.Shielded
		override(c.Settings(), "steps=4", "save_every=1", "ppo_batch=4", "sim_batch=2", "micro_batch_size=2", "max_new_tokens=6", "reward=shaped", "lr=0.05")
		q := orthonormalColumns(stubVocab, 2)
		_, err := c.Train(ctx, train.ShieldedEnv{Env: env, Prompts: dataset.ItemPrompts("books"), Basis: &train.Basis{Kind: train.Side, D: stubVocab, K: 2, Q: q}})
		return err
	}},
}

// override sets keys that are known to exist.
func override(s *config.Settings, list ...string) {
	for _, o := range list {
		if err := s.Override(o); err != nil {
			panic(err)
		}
	}
	if err := s.Resolve(); err != nil {
		panic(err)
	}
}

// orthonormalColumns are k columns of two numbers each.
func orthonormalColumns(d, k int) []float64 {
	q := make([]float64, d*k)
	for j := range k {
		q[(5*j+1)*k+j], q[(5*j+3)*k+j] = .6, .8
	}
	return q
}

// A policy and an optimiser that are not those of the reference run every causal trainer: through Sample, Step and Variant, with no
// logits. What is not theirs is not asked for, and a run that goes on from their checkpoints ends in the same bytes.
func TestAnotherPolicyAndOptimizer(t *testing.T) {
	for name, c := range causalTrainers {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s own optimiser %t", name, own), func(t *testing.T) {
				run := func(from *rundir.Checkpoint) (*stub, *momentum, string) {
					p, o := newStub(3), (*momentum)(nil)
					before := weights(p)
					dir := filepath.Join(t.TempDir(), "run")
					r, err := rundir.Create(dir, rundir.Options{})
					require.NoError(t, err)
					defer r.Close()
					env := train.Env{Policy: p, Tokenizer: letters{}, Questions: additions(), Run: r, From: from, Out: io.Discard, Warn: func(string, ...any) {}}
					if own {
						env.Optimizer = func(params []train.Param, _ bool) train.Optimizer { o = newMomentum(params); return o }
					}
					if from != nil && name == "shielded" { // W_init lies in the folder of the run
						require.NoError(t, copyInit(from.Path, dir))
					}
					require.NoError(t, c.train(context.Background(), env))
					require.NotEqual(t, before, weights(p), "it learns")
					return p, o, dir
				}
				p, o, dir := run(nil)
				require.Positive(t, p.calls["sample"])
				require.GreaterOrEqual(t, p.calls["accumulate"], c.updates)
				end, err := rundir.Verify(filepath.Join(dir, "final"))
				require.NoError(t, err)
				require.Equal(t, "stub-f32", end.Manifest.Variant)
				require.Equal(t, "the base of the stub", end.Manifest.BaseFingerprint)
				require.Equal(t, 4, end.Manifest.Step)
				require.Equal(t, own, end.Manifest.Files["momentum.safetensors"].Size > 0)
				require.Equal(t, !own, end.Manifest.Files["optimizer.safetensors"].Size > 0)
				if own {
					require.Equal(t, c.updates, o.steps)
					for _, u := range o.updates {
						require.Equal(t, name == "shielded", u.Shield != nil)
						require.Positive(t, u.Rule.LR+float64(u.Step))
					}
				}
				middle, err := rundir.Verify(filepath.Join(dir, "step_2"))
				require.NoError(t, err)
				again, o2, dir2 := run(middle)
				require.Equal(t, weights(p), weights(again), "from step 2")
				if own {
					require.Equal(t, o.m, o2.m)
				}
				end2, err := rundir.Verify(filepath.Join(dir2, "final"))
				require.NoError(t, err)
				require.Equal(t, end.Manifest.Files, end2.Manifest.Files)
			})
		}
	}
}

// A run that is asked to stop while it draws responses stops at the next token, is saved where it was before them, whatever its interval,
// and ends in the same bytes as if nothing had been: logs, too. Before its first step there is nothing to save.
func TestInterruptedInARollout(t *testing.T) {
	for name, c := range causalTrainers {
		if name == "sft" {
			continue // it draws nothing until it has ended
		}
		t.Run(name, func(t *testing.T) {
			drawn := 0
			run := func(dir string, stop func(train.Progress) bool) (*stub, error) {
				p := newStub(3)
				r, err := rundir.Create(dir, rundir.Options{})
				require.NoError(t, err)
				defer r.Close()
				from, _, err := rundir.Newest(dir)
				require.NoError(t, err)
				if from != nil {
					_, err := r.Resume(from)
					require.NoError(t, err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				return p, c.train(ctx, train.Env{Policy: p, Tokenizer: letters{}, Questions: additions(), Run: r, From: from, Out: io.Discard, Warn: func(string, ...any) {},
					Progress: func(at train.Progress) {
						if ctx.Err() != nil {
							drawn++
						}
						if stop(at) {
							cancel()
						}
					}})
			}
			never := func(train.Progress) bool { return false }
			whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
			want, err := run(whole, never)
			require.NoError(t, err)

			_, err = run(dir, func(at train.Progress) bool { return at.Tokens >= 5 })
			require.ErrorIs(t, err, train.ErrInterrupted)
			require.ErrorContains(t, err, "before its first step")
			c, _, err := rundir.Newest(dir)
			require.NoError(t, err)
			require.Nil(t, c)

			for step := 1; step < 4; step++ {
				_, err = run(dir, func(at train.Progress) bool { return at.Step == step && at.Share > .3 })
				require.Equal(t, train.ErrInterrupted, err)
				c, _, err := rundir.Newest(dir)
				require.NoError(t, err)
				require.Equal(t, step, c.Manifest.Step)
			}
			require.Zero(t, drawn, "tokens after the first that it could have stopped at")
			got, err := run(dir, never)
			require.NoError(t, err)
			require.Equal(t, weights(want), weights(got))
			require.Equal(t, logs(t, whole), logs(t, dir))
		})
	}
}

// logs returns metrics.jsonl and samples.jsonl without what is measured.
func logs(t testing.TB, dir string) (all string) {
	for _, name := range []string{"metrics.jsonl", "samples.jsonl"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		all += string(text)
	}
	require.NotEmpty(t, all)
	return regexp.MustCompile(`"(time_\w+|mem_\w+|\w+_time)":[^,}]+`).ReplaceAllString(all, "")
}

// A policy of another variant than the one that made a checkpoint goes on from it, with a warning.
func TestAnotherVariantIsWarnedOf(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	var warned []string
	run := func(p train.Policy, steps string) {
		r, err := rundir.Create(dir, rundir.Options{})
		require.NoError(t, err)
		defer r.Close()
		from, _, err := rundir.Newest(dir)
		require.NoError(t, err)
		var c train.SFT
		override(c.Settings(), "sft.steps="+steps, "sft.batch_size=2", "sft.eval_samples=0")
		_, err = c.Train(context.Background(), train.Env{Policy: p, Tokenizer: letters{}, Questions: additions(), Run: r, From: from, Out: io.Discard,
			Warn: func(f string, a ...any) { warned = append(warned, fmt.Sprintf(f, a...)) }})
		require.NoError(t, err)
	}
	run(newStub(3), "1")
	require.Empty(t, warned)
	run(renamed{newStub(3)}, "2")
	require.Len(t, warned, 1)
	require.Contains(t, warned[0], "was made by stub-f32 and the run goes on with other")
	end, _, err := rundir.Newest(dir)
	require.NoError(t, err)
	require.Equal(t, "other", end.Manifest.Variant)
	require.FileExists(t, filepath.Join(dir, "step_1", "MANIFEST.json"), "the end of the shorter run")
}

type renamed struct{ *stub }

func (renamed) Variant() string { return "other" }

func copyInit(checkpoint, dir string) error {
	return copyFolder(filepath.Join(filepath.Dir(checkpoint), "lora_init"), filepath.Join(dir, "lora_init"))
}

// The step of the shield with the optimiser of the reference is that of its parts: the increment of Adam, projected, added, rounded.
func TestStepProjectsTheIncrement(t *testing.T) {
	p := newStub(5)
	basis := &train.Basis{Kind: train.Side, D: stubVocab, K: 2, Q: orthonormalColumns(stubVocab, 2)}
	shield, err := train.NewShield(basis, p.params, nil)
	require.NoError(t, err)
	start := weights(p)
	initial := make([][]float64, len(p.params))
	for i, x := range p.params {
		initial[i] = slices.Clone(x.Data)
		for j := range x.Grad {
			x.Grad[j] = rng.New(9, uint64(i)).Normal(uint64(j))
		}
	}
	rule := optim.Adam{LR: .01, Beta1: .9, Beta2: .999, Eps: 1e-8}
	want := make([][]float64, len(p.params))
	for i, x := range p.params {
		to := slices.Clone(x.Data)
		rule.Step(to, x.Grad, optim.NewState(len(to)))
		want[i] = to
		for j := range to {
			want[i][j] -= x.Data[j]
		}
	}
	shield.Project(want, 2)
	o := train.NewAdam(p.params, false)
	moved, err := o.Step(train.Update{Step: 1, Rule: rule, Shield: &train.Shielding{Shield: shield, Mode: train.ProjectUpdate, Passes: 2, Initial: initial, Flow: true}})
	require.NoError(t, err)
	at := 0
	for i, x := range p.params {
		for j, v := range x.Data {
			require.Equal(t, float64(float32(start[at]+want[i][j])), v)
			require.Zero(t, x.Grad[j])
			at++
		}
	}
	require.Len(t, moved.Flow, 3)
	require.InDelta(t, math.Sqrt(2/math.Pi), moved.Flow[0], .2, "mean |g| of normal numbers")
	require.Less(t, moved.After, 1e-9*moved.Before)
	require.Less(t, moved.Drift, 1e-7)
	require.Less(t, moved.ProjectedNorm, moved.Norm)
	require.False(t, moved.Idle)
	off, err := o.Step(train.Update{Step: 2, Rule: rule, Shield: &train.Shielding{Shield: shield, Mode: train.ProjectOff, Passes: 2, Initial: initial}})
	require.NoError(t, err)
	require.True(t, math.IsNaN(off.Before) && math.IsNaN(off.After))
	require.Nil(t, off.Flow)
	p.params[1].Grad[7] = math.NaN()
	_, err = o.Step(train.Update{Step: 3, Rule: rule})
	require.ErrorContains(t, err, "step 3: gradient of model.layers.0.bigram.lora_B.weight[7] is NaN")
}

func copyFolder(from, to string) error { return os.CopyFS(to, os.DirFS(from)) }
