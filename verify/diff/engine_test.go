package diff

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// run is a run in memory.
type run []*dump.Batch

func (r run) Steps() (steps []int) {
	for _, b := range r {
		steps = append(steps, b.Meta.Step)
	}
	return steps
}

func (r run) Batch(_ context.Context, step int) (*dump.Batch, error) {
	return r[slices.Index(r.Steps(), step)], nil
}

func (r run) Common() dump.Meta { return r[0].Meta }

// cause is what a report names first, "" where it names nothing.
func cause(r *Report) string {
	if len(r.Brief.Findings) == 0 {
		return ""
	}
	return r.Brief.Findings[0].Name
}

// score plants every kind of difference in logits of three kinds, and counts for each how often the right cause is named first.
func score(t *testing.T, draws int) (right, all map[string]int) {
	ws := worlds(t)
	right, all = map[string]int{}, map[string]int{}
	for i := range draws {
		w := ws[i%len(ws)]
		for _, p := range kinds(rand.New(rand.NewPCG(uint64(i), 2))) {
			b := w.plant(rand.New(rand.NewPCG(uint64(i), 3)), p, i/len(ws)%2 == 0)
			r, err := Engine(t.Context(), run{b}, Options{})
			require.NoError(t, err)
			all[p.kind]++
			if got := cause(r); slices.Contains(p.want, got) {
				right[p.kind]++
			} else {
				t.Logf("%s in %s, draw %d: %q: %s", p.kind, w.name, i, got, r.Results[0].Reason)
			}
		}
	}
	return right, all
}

// The right cause is named first for nearly every plant, nothing for equal engines, and weights that differ as that family only.
func TestCauses(t *testing.T) {
	right, all := score(t, 3)
	sum, n := 0, 0
	for kind := range all {
		sum, n = sum+right[kind], n+all[kind]
	}
	require.GreaterOrEqual(t, float64(sum), 0.9*float64(n), "%v of %v", right, all)
	require.Equal(t, all["equal"], right["equal"], "a cause is named where there is none")
}

// one returns a batch of tokens drawn from one engine, with noise of bfloat16 on both sides, and its log-probs.
func one(t *testing.T, rows, cols int) (b batch, trainer, engine []float64) {
	r := rand.New(rand.NewPCG(7, 7))
	c := drawnLogits(r, rows, cols)
	p := c.plant(r, plant{make: func(r *rand.Rand, z []float64) (a, b, s []float64) {
		e := logSoftmax(noisy(r, z, 0.03), 1)
		return logSoftmax(noisy(r, z, 0.03), 1), e, e
	}}, false)
	return batch{p}, p.Token("logp_old"), p.Token("logp_gen")
}

// What cannot be judged is said, and never a pass.
func TestEngineHostile(t *testing.T) {
	judge := func(b batch) (check.Result, *Report) {
		r, err := Engine(t.Context(), run{b.Batch}, Options{})
		require.NoError(t, err)
		return r.Results[0], r
	}
	exit := func(b batch) int {
		_, r := judge(b)
		return check.Exit(r.Results, check.Policy{})
	}
	b, trainer, engine := one(t, 8, 40)
	require.Equal(t, check.ExitPass, exit(b))
	nan := slices.Clone(engine)
	nan[5] = math.NaN()
	b.token("logp_gen", nan)
	res, _ := judge(b)
	require.Equal(t, check.Fail, res.Verdict)
	require.Contains(t, res.Reason, "not finite")
	b.token("logp_gen", slices.Repeat([]float64{math.NaN()}, len(nan)))
	require.Equal(t, check.ExitFail, exit(b))
	b.token("logp_gen", slices.Clone(trainer))
	res, _ = judge(b)
	require.Equal(t, check.Untested, res.Verdict, "not two measurements")
	require.Equal(t, check.ExitNothing, exit(b))
	require.Equal(t, check.ExitNothing, exit(batch{b.Without("logp_gen")}))
	require.Equal(t, check.ExitNothing, exit(batch{b.Without("logp_old")}))
	b.token("logp_gen", engine)
	b.Mask = make([]bool, len(b.Mask))
	require.Equal(t, check.ExitNothing, exit(b), "a mask without a token")
	few, _, _ := one(t, 2, 20)
	res, _ = judge(few)
	require.Equal(t, check.Undetermined, res.Verdict)
	require.Contains(t, res.Reason, "fewer than 64")
}

// The sentence has the size, what rounding explains of it, and the temperatures.
func TestSentence(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	c := drawnLogits(r, 24, 40)
	p := c.plant(r, plant{make: func(r *rand.Rand, z []float64) (a, b, s []float64) {
		e := noisy(r, z, 0.02)
		return logSoftmax(noisy(r, z, 0.02), 1), logSoftmax(e, 0.7), logSoftmax(e, 0.7)
	}}, true)
	p.Meta.Options = []dump.Option{{Name: "logp.temperature", Value: 0.7}}
	rep, err := Engine(t.Context(), run{p}, Options{})
	require.NoError(t, err)
	require.Regexp(t, `engine and trainer differ by 0\.\d+ nats per token, \d.* × what bfloat16 explains; generation at 0\.7 against 1 of the trainer explains`, rep.Results[0].Reason)
	require.Contains(t, rep.Brief.Findings[0].Or[0], "the trainer lacks the temperature")
	require.Equal(t, -1, rep.Brief.Findings[0].First, "two passes over all tokens have no first step")
	var titles []string
	for _, s := range rep.Sections {
		titles = append(titles, s.Title)
	}
	require.Equal(t, []string{"Δ = logp_gen − logp_old, nats", "worst tokens", "by probability under trainer", "by token of the response", "causes tried"}, titles)

	// An engine that is declared to report log-probs before the temperature is none that is wrong.
	raw := c.plant(r, plant{make: func(r *rand.Rand, z []float64) (a, b, s []float64) {
		e := noisy(r, z, 0.02)
		return logSoftmax(noisy(r, z, 0.02), 0.7), logSoftmax(e, 1), logSoftmax(e, 0.7)
	}}, true)
	raw.Meta.Options = []dump.Option{{Name: "logp.temperature", Value: 0.7}}
	rep, err = Engine(t.Context(), run{raw}, Options{})
	require.NoError(t, err)
	require.Equal(t, "LOGP-TEMPERATURE", cause(rep))
	require.Contains(t, rep.Brief.Findings[0].Or[0], "not drawn from what the engine reports")
	raw.Meta.Options = append(raw.Meta.Options, dump.Option{Name: "logp.source", Value: "raw"})
	rep, err = Engine(t.Context(), run{raw}, Options{})
	require.NoError(t, err)
	require.Equal(t, check.Pass, rep.Results[0].Verdict)
}

// Worst tokens are the largest differences, in order, with their text, and without it where it is to be left out.
func TestWorstTokens(t *testing.T) {
	b, trainer, engine := one(t, 8, 40)
	engine = slices.Clone(engine)
	for k, i := range []int{50, 90, 130} {
		engine[i] = trainer[i] - 2 - float64(k)
	}
	b.token("logp_gen", engine)
	of := func(o Options) string {
		r, err := Engine(t.Context(), run{b.Batch}, o)
		require.NoError(t, err)
		return fmt.Sprint(r.Sections[1].Lines[1:4])
	}
	id := int(b.Token("response_ids")[130])
	text := of(Options{Text: func(id int) string { return fmt.Sprintf("<%d>", id) }})
	require.Regexp(t, fmt.Sprintf(`(?s)^\[ *1 +3 +10 +%d .*-4 +"<%d>" .*-3 .*-2 `, id, id), text)
	require.NotContains(t, of(Options{Redact: true, Text: func(int) string { return "secret" }}), "secret")
}
