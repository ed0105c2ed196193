package dump_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// smallSteps returns a run whose rollouts of 40 tokens feed two steps of 20 each, and, with epochs, feed them again. noise gives the
// logit noise between engine and trainer at a rollout.
func smallSteps(rollouts, epochs int, noise func(rollout int) float64) dump.Batches {
	const rows, cols = 4, 5
	r := rand.New(rand.NewPCG(9, 73))
	var list dump.Batches
	for rollout := range rollouts {
		var half dump.Batches
		for part := range 2 {
			old, gen, ids := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows)
			for i := range old {
				old[i] = float64(float32(-0.05 - r.ExpFloat64()))
				gen[i] = float64(float32(old[i] + noise(rollout)*math.Expm1(old[i])*r.NormFloat64()))
			}
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: slices.Repeat([]bool{true}, rows*cols), Tensors: map[string]*dumpfile.Tensor{}}
			b.Meta = dumpfile.Meta{WorldSize: 1, MicroBatches: 1, DLogpScale: 1}
			b.Files = []dumpfile.FileInfo{{Name: "step", Hi: rows, Cols: cols}}
			for row := range rows {
				b.Origin = append(b.Origin, dumpfile.Origin{Row: row})
				ids[row] = float64((2*rollout+part)*rows + row)
			}
			put := func(name string, l dumpfile.Layout, shape []int, data []float64) {
				b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: l, Width: 1, Shape: shape, Data: data, Type: format.F32}
			}
			put("logp_old", dumpfile.PerToken, []int{rows, cols}, old)
			put("logp_new", dumpfile.PerToken, []int{rows, cols}, slices.Clone(old))
			put("logp_gen", dumpfile.PerToken, []int{rows, cols}, gen)
			put("sample_id", dumpfile.PerRow, []int{rows}, ids)
			half = append(half, b)
		}
		for range epochs {
			for _, b := range half {
				again := *b
				again.Meta.Step = len(list) + 1
				list = append(list, &again)
			}
		}
	}
	return list
}

// engineOf judges a run and returns what is said of the engine over its steps, nil where nothing is.
func engineOf(t *testing.T, b dump.Batches, set ...string) *check.Result {
	r, err := dump.Judge(context.Background(), b, dump.Options{Set: append(set, "ratio.old=stored"), Selection: check.Selection{Select: []string{"across/*", "agreement/*"}}})
	require.NoError(t, err)
	for i := range r.Results {
		if r.Results[i].Check == "across/engine" && r.Results[i].Compared > 0 {
			return &r.Results[i]
		}
	}
	return nil
}

func TestEngineFrozenFromTheFirstStepInSmallSteps(t *testing.T) {
	frozen := func(rollout int) float64 {
		if rollout < 2 {
			return 0.007 // the first weights, in bfloat16
		}
		return 0.6 * float64(rollout-1)
	}
	b := smallSteps(8, 1, frozen)
	res := engineOf(t, b)
	require.NotNil(t, res)
	require.Equal(t, check.Fail, res.Verdict)
	require.Equal(t, "GEN-UNADAPTED", res.Explanations[0].Fault)
	require.Greater(t, res.Measured, 0.5)
	require.Equal(t, "--select "+res.Check, res.Repeat)
	require.True(t, slices.ContainsFunc(dump.Infos(), func(i check.Info) bool { return i.Name == res.Check }), "the command that repeats it runs")

	res = engineOf(t, b, "tis.level=token", "tis.rule=truncate_upper", "tis.high=2")
	require.Equal(t, check.Undetermined, res.Verdict, "importance weights may correct for the lag of an asynchronous engine")
	require.Contains(t, res.Reason, "asynchronous")
	require.Greater(t, res.Measured, 0.5)
	require.True(t, res.Explanations[0].Lead)

	for _, s := range b {
		s.Meta.Framework, s.Meta.Version, s.Meta.Algorithm = "trl", "1.16.0", "grpo"
	}
	res = engineOf(t, b, "tis.level=token", "tis.rule=truncate_upper", "tis.high=2")
	require.Equal(t, check.Fail, res.Verdict, "TRL sends the weights before every rollout, and its importance weights correct for rounding")

	for _, s := range b {
		s.Meta.Options = []dumpfile.Option{{Name: "max_staleness", Value: 1.0}}
	}
	require.Nil(t, engineOf(t, b), "the lag is declared")
}

// An engine that is a rollout behind is no further behind later, where the weights of it that are never sent are.
func TestEngineThatLagsEvenly(t *testing.T) {
	behind := func(rollout int) float64 {
		if rollout < 2 {
			return 0.007
		}
		return 1.2
	}
	b := smallSteps(8, 1, behind)
	weights := []string{"tis.level=token", "tis.rule=truncate_upper", "tis.high=2"}
	require.Equal(t, check.Warn, engineOf(t, b, weights...).Verdict)
	require.Equal(t, check.Undetermined, engineOf(t, b).Verdict, "nothing is known to correct for it")
	for _, c := range []struct {
		behind []float64
		want   check.Verdict
	}{
		{[]float64{0.007, 0.007, 0.6, 0.6, 1, 1, 0.95, 0.95}, check.Warn},           // two rollouts
		{[]float64{0.007, 0.007, 0.6, 0.6, 1.2, 1.2, 1.8, 1.8}, check.Undetermined}, // weights that are never sent
		{[]float64{0.007, 0.007, 0.6, 0.6, 1.2, 1.2}, check.Undetermined},
	} {
		grows := smallSteps(len(c.behind), 1, func(rollout int) float64 { return c.behind[rollout] })
		require.Equal(t, c.want, engineOf(t, grows, weights...).Verdict, c.behind)
	}
	for _, step := range b[6:] { // a step of rollout 3, and all of those behind it, are of a rollout that began at the step before
		lp := step.Token("logp_new")
		for i := range lp {
			lp[i] += 0.1 * float64(1-2*(i%2))
		}
	}
	require.Equal(t, check.Undetermined, engineOf(t, b, weights...).Verdict, "the lag of one rollout says nothing of the next")
}

func TestHealthyEngineInSmallSteps(t *testing.T) {
	healthy := func(int) float64 { return 0.01 }
	res := engineOf(t, smallSteps(8, 1, healthy))
	require.NotNil(t, res)
	require.Equal(t, check.Pass, res.Verdict)
	require.Equal(t, 320, res.Compared, "four pools of 80 tokens")
}

// Tokens that a later epoch uses again are no more of them.
func TestEngineOverEpochsOfFewTokens(t *testing.T) {
	apart := func(rollout int) float64 { return 0.007 + float64(rollout) }
	require.Nil(t, engineOf(t, smallSteps(2, 4, apart)), "80 tokens are one pool")
}
