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

// generations returns the steps of a run in which every rollout feeds two updates: in each, the policy, its engine and its reference
// over the same tokens. edit changes a step before it is dumped.
func generations(rollouts int, edit func(rollout, update int, x map[string][]float64)) dump.Batches {
	const rows, cols = 8, 16
	r := rand.New(rand.NewPCG(9, 71))
	var list dump.Batches
	for rollout := range rollouts {
		first := map[string][]float64{}
		fill := func(name string, f func(i int) float64) {
			first[name] = make([]float64, rows*cols)
			for i := range first[name] {
				first[name][i] = float64(float32(f(i)))
			}
		}
		fill("logp_old", func(int) float64 { return -0.05 - r.ExpFloat64() })
		old := first["logp_old"]
		fill("logp_ref", func(i int) float64 { return old[i] + 0.2*float64(rollout)*r.NormFloat64() })
		fill("logp_gen", func(i int) float64 { return old[i] + 0.02*math.Expm1(old[i])*r.NormFloat64() })
		for update := range 2 {
			x := map[string][]float64{"logp_new": slices.Clone(old)}
			for name, y := range first {
				x[name] = slices.Clone(y)
			}
			if update == 1 {
				for i := range x["logp_new"] {
					x["logp_new"][i] = float64(float32(old[i] + 0.1*r.NormFloat64()))
				}
			}
			if edit != nil {
				edit(rollout, update, x)
			}
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: slices.Repeat([]bool{true}, rows*cols), Tensors: map[string]*dumpfile.Tensor{}}
			b.Meta = dumpfile.Meta{Step: 2*rollout + update + 1, WorldSize: 1, MicroBatches: 1, DLogpScale: 1}
			b.Files = []dumpfile.FileInfo{{Name: "step", Hi: rows, Cols: cols}}
			ids := make([]float64, rows)
			for row := range rows {
				b.Origin = append(b.Origin, dumpfile.Origin{Row: row})
				ids[row] = float64(rollout*rows + row)
			}
			put := func(name string, l dumpfile.Layout, shape []int, data []float64) {
				b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: l, Width: 1, Shape: shape, Data: data, Type: format.F32}
			}
			for name, y := range x {
				put(name, dumpfile.PerToken, []int{rows, cols}, y)
			}
			put("sample_id", dumpfile.PerRow, []int{rows}, ids)
			put("advantages", dumpfile.PerRow, []int{rows}, slices.Repeat([]float64{1}, rows))
			list = append(list, b)
		}
	}
	return list
}

// acrossVerdicts judges a run and returns the verdicts of the checks that hold its steps against each other.
func acrossVerdicts(t *testing.T, b dump.Batches, set ...string) map[string]check.Verdict {
	r, err := dump.Judge(context.Background(), b, dump.Options{Set: append([]string{"kl.beta=0.1", "ratio.old=stored"}, set...), Selection: check.Selection{Select: []string{"across/*", "agreement/*"}}})
	require.NoError(t, err)
	v := map[string]check.Verdict{}
	for _, res := range r.Results {
		v[res.Check] = res.Verdict
	}
	return v
}

func TestStepsOfAHealthyRunAgree(t *testing.T) {
	for id, v := range acrossVerdicts(t, generations(4, nil)) {
		require.Contains(t, []check.Verdict{check.Pass, check.NotSeen, check.Untested, check.Undetermined}, v, id)
	}
	require.Equal(t, check.Pass, acrossVerdicts(t, generations(4, nil))["across/old"])
	require.Equal(t, check.Pass, acrossVerdicts(t, generations(4, nil))["across/engine"])
}

func TestOldRecomputedAtALaterUpdate(t *testing.T) {
	b := generations(3, func(_, update int, x map[string][]float64) {
		if update == 1 {
			copy(x["logp_old"], x["logp_new"])
		}
	})
	require.Equal(t, check.Fail, acrossVerdicts(t, b)["across/old"])
}

// Rows without numbers are known again behind the other mini-batches of their rollout where it is declared to have so many.
func TestOldRecomputedBehindOtherMiniBatches(t *testing.T) {
	run := func(late bool) dump.Batches {
		b := generations(4, nil) // two steps of each of four sets of rows: two rollouts of two mini-batches, each used twice
		list := dump.Batches{b[0], b[2], b[1], b[3], b[4], b[6], b[5], b[7]}
		for i, s := range list {
			c := s.Without("sample_id")
			c.Tensors["response_ids"] = c.With("logp_gen", slices.Clone(c.Token("logp_old"))).Tensors["logp_gen"]
			for k := range c.Tensors["response_ids"].Data { // the first rows of two mini-batches are alike
				row := k/c.Cols + 8*int(min(float64(k/c.Cols), 1))*(i%2+2*(i/4))
				c.Tensors["response_ids"].Data[k] = float64(row*16 + k%c.Cols)
			}
			if late && i%4 > 1 {
				c = c.With("logp_old", c.Token("logp_new"))
			}
			c.Meta.Step = i + 1
			list[i] = c
		}
		return list
	}
	require.Equal(t, check.Pass, acrossVerdicts(t, run(false), "num_mini_batches=2")["across/old"])
	require.Equal(t, check.Fail, acrossVerdicts(t, run(true), "num_mini_batches=2")["across/old"])
	require.NotContains(t, acrossVerdicts(t, run(true)), "across/old", "rows that come again behind others may be of another rollout")
}

// A dump without tokens shows by what a rollout computes once that its rows come again.
func TestRowsWithoutTokens(t *testing.T) {
	recomputed := func(_, update int, x map[string][]float64) {
		if update == 1 {
			copy(x["logp_old"], x["logp_new"])
		}
	}
	steps := func(edit func(_, update int, x map[string][]float64)) dump.Batches {
		list := generations(3, edit)
		for _, b := range list {
			delete(b.Tensors, "sample_id")
		}
		return list
	}
	verdict := func(edit func(_, update int, x map[string][]float64)) check.Verdict {
		return acrossVerdicts(t, steps(edit))["across/old"]
	}
	without := func(edit func(_, update int, x map[string][]float64), names ...string) func(_, update int, x map[string][]float64) {
		return func(rollout, update int, x map[string][]float64) {
			if edit != nil {
				edit(rollout, update, x)
			}
			for _, name := range names {
				delete(x, name)
			}
		}
	}
	require.Equal(t, check.Pass, verdict(nil))
	require.Equal(t, check.Fail, verdict(recomputed))
	require.Equal(t, check.Fail, verdict(without(recomputed, "logp_ref")), "by the engine's log-probs")
	require.NotContains(t, []check.Verdict{check.Pass, check.Fail}, verdict(without(recomputed, "logp_ref", "logp_gen")), "nothing tells rows apart")
	uniform := func(rollout, update int, x map[string][]float64) {
		recomputed(rollout, update, x)
		for i := range x["logp_ref"] {
			x["logp_ref"][i] = -3.5
		}
		delete(x, "logp_gen")
	}
	require.NotContains(t, []check.Verdict{check.Pass, check.Fail}, verdict(uniform), "a reference that gives the same to all tokens tells none apart")
	again := func(rollout, update int, x map[string][]float64) {
		recomputed(rollout, update, x)
		for i := range x["logp_ref"] {
			x["logp_ref"][i] += 1e-6 * float64(update)
		}
	}
	require.NotContains(t, []check.Verdict{check.Pass, check.Fail}, verdict(again), "a reference that was computed again by other kernels tells nothing")
}

func TestReferenceThatFollowsThePolicy(t *testing.T) {
	follows := func(_, _ int, x map[string][]float64) { copy(x["logp_ref"], x["logp_old"]) }
	ofTRL := func(b dump.Batches) dump.Batches {
		for _, s := range b {
			s.Meta.Framework, s.Meta.Version, s.Meta.Algorithm = "trl", "1.16.0", "grpo"
		}
		return b
	}
	require.Equal(t, check.Fail, acrossVerdicts(t, ofTRL(generations(3, follows)))["across/reference"], "updates have left the old log-probs")
	require.Equal(t, check.Undetermined, acrossVerdicts(t, generations(3, follows))["across/reference"], "nobody says whether it is synchronised")
	require.NotEqual(t, check.Fail, acrossVerdicts(t, generations(1, follows))["across/reference"], "before any update the reference is the policy")
	still := func(_, _ int, x map[string][]float64) {
		copy(x["logp_ref"], x["logp_old"])
		copy(x["logp_new"], x["logp_old"])
	}
	require.NotEqual(t, check.Fail, acrossVerdicts(t, generations(2, still))["across/reference"], "a learning rate may begin at 0")
	require.Equal(t, check.Fail, acrossVerdicts(t, ofTRL(generations(4, still)))["across/reference"], "over three generations")
	moves := func(_, _ int, x map[string][]float64) { copy(x["logp_ref"], x["logp_new"]) }
	require.Equal(t, check.Fail, acrossVerdicts(t, generations(1, moves))["across/reference"], "within a rollout")
	synced := generations(4, follows)
	for _, b := range synced {
		b.Meta.Options = []dumpfile.Option{{Name: "sync_ref_model", Value: true}}
	}
	require.NotEqual(t, check.Fail, acrossVerdicts(t, synced)["across/reference"], "as declared")
}

func TestEngineThatKeepsItsWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 72))
	stale := func(rollout, update int, x map[string][]float64) {
		for i, old := range x["logp_old"] {
			if update == 0 {
				x["logp_gen"][i] = float64(float32(old + (0.02+0.4*float64(rollout))*math.Expm1(old)*r.NormFloat64()))
			}
		}
	}
	b := generations(4, stale)
	for i := 1; i < len(b); i += 2 {
		b[i].Tensors["logp_gen"].Data = b[i-1].Tensors["logp_gen"].Data
	}
	require.Equal(t, check.Fail, acrossVerdicts(t, b)["across/engine"])
	for _, s := range b {
		s.Meta.Options = []dumpfile.Option{{Name: "max_staleness", Value: 4.0}}
	}
	require.NotEqual(t, check.Fail, acrossVerdicts(t, b)["across/engine"], "asynchronous rollouts are declared")
}

func TestEngineLogProbsOfOtherRows(t *testing.T) {
	b := generations(2, func(_, update int, x map[string][]float64) {
		if update == 1 {
			x["logp_gen"][3], x["logp_gen"][40] = x["logp_gen"][40], x["logp_gen"][3]
		}
	})
	require.Equal(t, check.Fail, acrossVerdicts(t, b)["across/gen"])
	for length, want := range map[int]check.Verdict{2: check.Pass, 4: check.Fail} { // a response of two tokens may have been sampled again
		b := generations(2, func(_, update int, x map[string][]float64) { x["logp_gen"][0] -= 0.125 * float64(update) })
		for _, s := range b {
			delete(s.Tensors, "sample_id")
			for t := length; t < s.Cols; t++ {
				s.Mask[t] = false
			}
		}
		require.Equal(t, want, acrossVerdicts(t, b)["across/gen"], length)
	}
}

// What is dropped from memory is read again: no report depends on how much is remembered.
func TestRowsReadAgain(t *testing.T) {
	recomputed := func(rollout, update int, x map[string][]float64) {
		if rollout == 1 && update == 1 {
			copy(x["logp_old"], x["logp_new"])
		}
	}
	for name, b := range map[string]dump.Batches{"healthy": generations(4, nil), "faulty": generations(3, recomputed)} {
		var late dump.Batches // first all first updates, then all second ones
		for update := range 2 {
			for i := update; i < len(b); i += 2 {
				s := *b[i]
				s.Meta.Step = len(late) + 1
				late = append(late, &s)
			}
		}
		o := dump.Options{Set: []string{"kl.beta=0.1", "ratio.old=stored"}, Selection: check.Selection{Select: []string{"across/*"}}}
		want, err := dump.Judge(context.Background(), late, o)
		require.NoError(t, err)
		for _, cells := range []int{1, 300, 1000} {
			read := &counted{Batches: late}
			restore := dump.FreshCells(cells)
			got, err := dump.Judge(context.Background(), read, o)
			restore()
			require.NoError(t, err)
			require.Equal(t, want, got, "%s, %d cells", name, cells)
			require.Greater(t, read.n, len(late), "nothing was read again")
		}
	}
}

// counted counts the steps that are read.
type counted struct {
	dump.Batches
	n int
}

func (c *counted) Batch(ctx context.Context, step int) (*dumpfile.Batch, error) {
	c.n++
	return c.Batches.Batch(ctx, step)
}
