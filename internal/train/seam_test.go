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
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/optim"
)

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
