package train_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/assets"
	"plumbline/internal/bind"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
)

// supervised runs the supervised training of an untrained model and returns what it prints and the gradients of its batches.
func supervised(t testing.TB, trainer string, change func(*bind.MaskedFolder, *bind.Masked), overrides ...string) (out string, loss float64, seen *supervisedGradients) {
	t.Helper()
	var c train.SFTMasked
	s := c.Settings()
	for _, o := range append([]string{"trainer=" + trainer, "dataset.block_size=16", "sft.batch_size=4", "sft.warmup_steps=0"}, overrides...) {
		require.NoError(t, s.Override(o))
	}
	require.NoError(t, s.Resolve())
	name, open := bind.TinyMasked, bind.OpenGenerator
	if trainer == train.TrainerJudge {
		name, open = bind.TinyJudge, bind.OpenJudge
	}
	folder, err := open(bind.Untrained(name), 1)
	require.NoError(t, err)
	m, err := bind.NewMasked(folder, nil)
	require.NoError(t, err)
	if change != nil {
		change(folder, m)
	}
	run, err := rundir.Create(t.TempDir(), rundir.Options{})
	require.NoError(t, err)
	defer run.Close()
	var b bytes.Buffer
	seen = &supervisedGradients{Masked: m}
	env := train.MaskedEnv{Generator: seen, Judge: seen, Text: assets.Sonnets, Env: train.Env{Run: run, Out: &b, Warn: func(string, ...any) {}}}
	loss, err = c.Train(context.Background(), env)
	require.NoError(t, err)
	return b.String(), loss, seen
}

// supervisedGradients keeps the gradient of the last batch.
type supervisedGradients struct {
	*bind.Masked
	grad []float64
}

func (g *supervisedGradients) keep(err error) error {
	g.grad = nil
	for _, p := range g.Params() {
		g.grad = append(g.grad, p.Grad...)
	}
	return err
}

func (g *supervisedGradients) Accumulate(x train.Texts, loss func(train.Logits) ([]float64, error)) error {
	return g.keep(g.Masked.Accumulate(x, loss))
}

func (g *supervisedGradients) AccumulateScore(x train.Texts, loss func([]float64) ([]float64, error)) error {
	return g.keep(g.Masked.AccumulateScore(x, loss))
}

// The gradient is that of the loss: along its own direction the loss changes by |g|²·h.
func TestSFTMaskedGradient(t *testing.T) {
	if testing.Short() {
		t.Skip("several runs, in the long tests only")
	}
	for _, trainer := range []string{train.TrainerGenerator, train.TrainerJudge} {
		_, _, seen := supervised(t, trainer, nil, "sft.steps=1", "sft.eval_samples=0", "sft.learning_rate=0")
		norm := 0.0
		for _, g := range seen.grad {
			norm += g * g
		}
		require.NotZero(t, norm)
		at := func(h float64) float64 {
			_, loss, _ := supervised(t, trainer, func(_ *bind.MaskedFolder, m *bind.Masked) {
				k := 0
				for _, p := range m.Params() {
					for i := range p.Data {
						p.Data[i] += h * seen.grad[k]
						k++
					}
				}
			}, "sft.steps=1", "sft.eval_samples=0", "sft.learning_rate=0")
			return loss
		}
		h := 1e-5 / math.Sqrt(norm)
		require.InEpsilon(t, norm, (at(h)-at(-h))/(2*h), 1e-4, trainer)
	}
}

// An untrained generator is as good as a guess among its 67 tokens, and training soon tells it the frequencies of the letters; the
// verdict ½ of an untrained judge is wrong by the variance of the target, 0.09, and the square of its mean's distance, 0.2.
func TestSFTMaskedLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("several runs, in the long tests only")
	}
	heldOut := func(trainer string, steps int) float64 {
		out, _, _ := supervised(t, trainer, nil, fmt.Sprint("sft.steps=", steps), "sft.learning_rate=3e-3")
		m := regexp.MustCompile(`held-out loss (\d+\.\d+) over 64 rows`).FindStringSubmatch(out)
		require.NotNil(t, m, out)
		x, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		return x
	}
	require.InDelta(t, math.Log(67), heldOut(train.TrainerGenerator, 0), .1)
	require.Less(t, heldOut(train.TrainerGenerator, 20), 3.5)
	require.InDelta(t, .13, heldOut(train.TrainerJudge, 0), .04)
	require.Less(t, heldOut(train.TrainerJudge, 20), .11)
}

func TestSFTMaskedRefused(t *testing.T) {
	var c train.SFTMasked
	s := c.Settings()
	require.NoError(t, s.Override("dataset.block_size=65"))
	require.NoError(t, s.Resolve())
	folder, err := bind.OpenGenerator(bind.TinyMasked, 1)
	require.NoError(t, err)
	m, err := bind.NewMasked(folder, nil)
	require.NoError(t, err)
	_, err = c.Train(context.Background(), train.MaskedEnv{Generator: m, Text: assets.Sonnets})
	require.ErrorContains(t, err, "dataset.block_size 65 is above that of the model, 64")
}
