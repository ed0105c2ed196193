package dump_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// preferences are steps of eight pairs, whose reference is the policy before the first update, or the policy of every step.
func preferences(steps int, follows bool, options ...dumpfile.Option) (all dump.Batches) {
	const pairs = 8
	for step := range steps {
		b := &dumpfile.Batch{Rows: pairs, Tensors: map[string]*dumpfile.Tensor{}, Files: []dumpfile.FileInfo{{Step: step + 1, Hi: pairs}},
			Meta: dumpfile.Meta{Algorithm: "dpo", Step: step + 1, WorldSize: 1, MicroBatches: 1, DLogpScale: 1, Options: options}}
		put := func(name string, of func(r int) float64) {
			data := make([]float64, pairs)
			for r := range data {
				data[r] = float64(float32(of(r)))
			}
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Type: format.F32, Layout: dumpfile.PerRow, Width: 1, Shape: []int{pairs}, Data: data}
		}
		for r := range pairs {
			b.Origin = append(b.Origin, dumpfile.Origin{Row: r})
		}
		for k, answer := range []string{"chosen", "rejected"} {
			start := func(r int) float64 { return -10.1 - float64(3*step+k) - 1.7*float64(r) }
			moved := func(r int) float64 { return start(r) + 0.013*float64(step*(r+1)) }
			put("logp_"+answer, moved)
			if put("ref_"+answer, start); follows {
				put("ref_"+answer, moved)
			}
			put("dlogp_"+answer, func(int) float64 { return -0.05 })
		}
		all = append(all, b)
	}
	return all
}

func TestReferenceOfPairs(t *testing.T) {
	require.Equal(t, check.Fail, acrossVerdicts(t, preferences(3, true))["across/pairs"])
	require.Equal(t, check.Pass, acrossVerdicts(t, preferences(3, false))["across/pairs"])
	require.NotEqual(t, check.Fail, acrossVerdicts(t, preferences(1, true))["across/pairs"], "before any update the reference is the policy")
	synced := preferences(3, true, dumpfile.Option{Name: "sync_ref_model", Value: true})
	require.NotEqual(t, check.Fail, acrossVerdicts(t, synced)["across/pairs"], "as declared")
}

// The slope of a preference loss is not 0 where the reference is the policy, so that nobody needs to have dumped it.
func TestReferenceOfPairsWithoutGradients(t *testing.T) {
	for _, follows := range []bool{true, false} {
		run := preferences(4, follows)
		for _, b := range run {
			delete(b.Tensors, "dlogp_chosen")
			delete(b.Tensors, "dlogp_rejected")
		}
		require.Equal(t, follows, acrossVerdicts(t, run)["across/pairs"] == check.Fail)
	}
}

// References that were computed once and joined in another order: of the pairs of the step.
func TestReferenceOfOtherPairs(t *testing.T) {
	put := func(b *dumpfile.Batch, of func(r int) (from *dumpfile.Batch, row int)) {
		for _, answer := range []string{"chosen", "rejected"} {
			x := make([]float64, b.Rows)
			for r := range x {
				from, row := of(r)
				x[r] = from.Row("logp_" + answer)[row]
			}
			copy(b.Row("ref_"+answer), x)
		}
	}
	run := preferences(2, false)
	put(run[0], func(r int) (*dumpfile.Batch, int) { return run[0], (r + 3) % 8 })
	require.Equal(t, check.Fail, acrossVerdicts(t, run)["across/pairs"])
	run = preferences(2, false)
	put(run[0], func(r int) (*dumpfile.Batch, int) { return run[1], r })
	require.NotEqual(t, check.Fail, acrossVerdicts(t, run)["across/pairs"], "another model")
	run = preferences(2, false)
	chosen, rejected := run[0].Row("ref_chosen"), run[0].Row("ref_rejected")
	for r := range chosen {
		chosen[r], rejected[r] = rejected[r], chosen[r]
	}
	require.Equal(t, check.Fail, acrossVerdicts(t, run)["across/pairs"], "halves exchanged")
	run = preferences(2, false) // two pairs alike
	put(run[0], func(r int) (*dumpfile.Batch, int) { return run[0], max(r, 1) })
	require.NotEqual(t, check.Fail, acrossVerdicts(t, run)["across/pairs"])
}
