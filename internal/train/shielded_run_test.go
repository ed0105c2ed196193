package train_test

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/dataset"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
)

// A checkpoint holds the adapter alone; W_init stays beside it; a run without it, or under another basis, is not gone on with.
func TestShieldedCheckpoint(t *testing.T) {
	o := runShielded(t)
	for _, name := range []string{"final", "step_1"} {
		entries, err := os.ReadDir(filepath.Join(o.dir, name))
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		require.ElementsMatch(t, []string{"MANIFEST.json", "adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "shield.json", "state.json", "tokenizer.json"}, names)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(o.dir, "final")))
	other := shielded("basis.rank=4")
	require.ErrorContains(t, runIn(t, o.dir, other, nil).err, "was shielded by another basis")
	require.NoError(t, os.RemoveAll(filepath.Join(o.dir, "lora_init")))
	require.ErrorContains(t, runIn(t, o.dir, shielded(), nil).err, "lora_init, the adapter before training, is gone")

	dir := filepath.Join(t.TempDir(), "run")
	init := runIn(t, dir, shielded("init_only=true"), nil)
	require.NoError(t, init.err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2) // LOCK and lora_init
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors", "meta.json"} {
		_, err := os.Stat(filepath.Join(dir, "lora_init", name))
		require.NoError(t, err)
	}
	mine := runIn(t, dir, shielded(), nil)
	require.NoError(t, mine.err, "a run begins with the adapter that was written")
	require.Empty(t, mine.warned)

	dir = filepath.Join(t.TempDir(), "run")
	require.NoError(t, runIn(t, dir, shielded("init_only=true", "seed=43"), nil).err)
	other43 := runIn(t, dir, shielded(), nil)
	require.NoError(t, other43.err)
	require.Contains(t, strings.Join(other43.warned, "\n"), "which is not that of this configuration and seed")
}

// altered is a policy with a bug.
type altered struct {
	train.Policy
	score      func(train.Scores)
	accumulate func(train.Scores)
	params     func([]train.Param) []train.Param
}

func (a *altered) Score(b train.Batch) (train.Scores, error) {
	s, err := a.Policy.Score(b)
	if a.score != nil {
		a.score(s)
	}
	return s, err
}

func (a *altered) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	return a.Policy.Accumulate(b, func(s train.Scores) (train.Slopes, error) {
		if a.accumulate != nil {
			a.accumulate(s)
		}
		return loss(s)
	})
}

func (a *altered) Params() []train.Param {
	if a.params != nil {
		return a.params(a.Policy.Params())
	}
	return a.Policy.Params()
}

// What stops a run, by name and step.
func TestShieldedStops(t *testing.T) {
	stops := func(a altered, overrides ...string) (string, outcome) {
		o := runIn(t, filepath.Join(t.TempDir(), "run"), shielded(overrides...), func(p *bind.Language) train.Policy { a.Policy = p; return &a })
		require.Error(t, o.err)
		return o.err.Error(), o
	}
	zeros := func(s train.Scores) { clear(s.LogProbs) }
	text, o := stops(altered{score: zeros}, "dump.every=1")
	require.Contains(t, text, "step 1: the ratio of the first update from a rollout is")
	require.Contains(t, text, "(H1)")
	dumps, err := filepath.Glob(filepath.Join(o.dir, "dump", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, dumps, "the last dump is written")

	nan := func(s train.Scores) { s.LogProbs[2] = math.NaN() }
	text, _ = stops(altered{score: nan})
	require.Contains(t, text, "step 1: log-probabilities[2] is NaN")
	text, _ = stops(altered{accumulate: nan})
	require.Contains(t, text, "step 1: loss[0] is NaN")

	text, o = stops(altered{params: func([]train.Param) []train.Param { return nil }})
	require.Contains(t, text, "no trainable parameters (A10)")
	require.Equal(t, "no trainable parameters\n", o.out)

	text, _ = stops(altered{}, "lr=1e300")
	require.Regexp(t, `step [12]: .*lora_B\.weight\[\d+\] is (NaN|[+-]Inf)`, text)
}

// A prompt that is too long is cut on the left and counted; responses that end by length are counted.
func TestShieldedCounts(t *testing.T) {
	o := runShielded(t, "max_prompt_tokens=5", "max_new_tokens=2")
	line := o.lines(t)[0]
	require.EqualValues(t, 6, line["prompts_cut"])
	require.EqualValues(t, 6, line["unfinished"])
	require.EqualValues(t, 0, line["empty"])
	require.EqualValues(t, 12, line["tokens"])

	c := shielded()
	p, text := gptj(t, c)
	run, err := rundir.Create(t.TempDir(), rundir.Options{})
	require.NoError(t, err)
	defer run.Close()
	_, err = c.Train(context.Background(), train.ShieldedEnv{Env: train.Env{Policy: p, Tokenizer: text, Run: run, Out: io.Discard}})
	require.ErrorContains(t, err, "there are no prompts")
}

// Without steps a run makes its epochs, and the line at the end of each says what it was.
func TestShieldedEpochs(t *testing.T) {
	o := runShielded(t, "steps=0", "epochs=2", "ppo_batch=32", "sim_batch=32", "micro_batch_size=32", "max_new_tokens=2", "reward=clicks")
	lines := o.lines(t)
	require.Len(t, lines, 4) // 64 prompts, 32 a step
	for i, l := range lines {
		require.EqualValues(t, 1+i/2, l["epoch"])
		if i%2 == 0 {
			require.NotContains(t, l, "ctr")
			continue
		}
		require.InDelta(t, (lines[i-1]["ctr_step"].(float64)+l["ctr_step"].(float64))/2, l["ctr"], 1e-15)
		require.InDelta(t, (lines[i-1]["kl"].(float64)+l["kl"].(float64))/2, l["kl_epoch"], 1e-15)
		require.Contains(t, l, "epoch_time")
	}
}

func TestRewards(t *testing.T) {
	twenty := strings.Repeat("w ", 20)
	require.Equal(t, 0., train.WordsReward(twenty))
	require.Equal(t, 1., train.WordsReward(twenty+"w"))
	require.Equal(t, 0., train.WordsReward(""))
	for text, want := range map[string]float64{
		"": 0, "up at": .05, "up at.": .15, "so so so": .075 + .1, "so as like enjoy": .1 + .3,
		"a. b! c? d.": .1 + .2, "...": 1. / 40, strings.Repeat("x ", 100): .5,
		strings.Repeat("because I enjoy it. So similar! ", 10): 1,
	} {
		require.InDelta(t, want, train.ShapedReward(text), 1e-15, "%q", text)
	}
	require.Equal(t, 1., train.Click("", .049))
	require.Equal(t, 0., train.Click("", .051))
	require.Equal(t, 1., train.Click(strings.Repeat("because I enjoy it. So similar! ", 10), .949))
}

// The gradients of protected texts make a basis of either kind: along it the text's log-probability changes, off it it does not.
func TestProtectedGradients(t *testing.T) {
	c := shielded()
	p, text := gptj(t, c)
	prompts := dataset.ItemPrompts("books")
	e, d, err := train.ProtectedGradients(p, text, prompts, train.Flat)
	require.NoError(t, err)
	require.Equal(t, d, len(numbers(p)))
	require.Equal(t, 64, len(e)/d)
	side, width, err := train.ProtectedGradients(p, text, prompts[:2], train.Side)
	require.NoError(t, err)
	require.Equal(t, 64, width)
	require.Equal(t, 2*8*2, len(side)/width) // texts, layers, rank
	for _, q := range p.Params() {
		for _, g := range q.Grad {
			require.Zero(t, g, "gradients are left as they were found")
		}
	}
	b, err := train.NewBasis(e, d, 64)
	require.NoError(t, err)
	b.Kind, b.Order = train.Flat, train.Flattened(p.Params())
	s, err := train.NewShield(b, p.Params(), nil)
	require.NoError(t, err)
	first := e[:d]
	v := make([][]float64, len(p.Params()))
	for _, span := range b.Order {
		for i, q := range p.Params() {
			if "base_model.model."+q.Name == span.Name {
				v[i] = append([]float64(nil), first[:span.Len]...)
			}
		}
		first = first[span.Len:]
	}
	before := math.Sqrt(norm2(v))
	s.Project(v, 2)
	require.Less(t, math.Sqrt(norm2(v)), 1e-4*before)
}

func norm2(v [][]float64) (sum float64) {
	for _, x := range v {
		for _, e := range x {
			sum += e * e
		}
	}
	return sum
}
