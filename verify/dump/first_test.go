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

// atFirst judges the first updates of a run, and returns the verdict and the bug that is named.
func atFirst(t *testing.T, b dump.Batches) (check.Verdict, string) {
	t.Helper()
	r, err := dump.Judge(context.Background(), b, dump.Options{Set: []string{"ratio.old=stored"}, Selection: check.Selection{Select: []string{"across/first"}}})
	require.NoError(t, err)
	for _, res := range r.Results {
		if res.Check == "across/first" {
			if len(res.Explanations) > 0 {
				return res.Verdict, res.Explanations[0].Fault
			}
			return res.Verdict, ""
		}
	}
	return check.NotSeen, ""
}

// others puts the log-probs of other tokens in place of the old ones of some rows.
func others(r *rand.Rand, x []float64, rows ...int) {
	for _, row := range rows {
		for i := row * 16; i < (row+1)*16; i++ {
			x[i] = float64(float32(-0.05 - 2*r.ExpFloat64()))
		}
	}
}

func TestFirstUpdateOfARollout(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, e := range []struct {
		name  string
		edit  func(r *rand.Rand, rollout, update int, x map[string][]float64)
		want  check.Verdict
		fault string
	}{
		{"healthy", nil, check.Pass, ""},
		{"the old log-probs of another batch, in all of the run", func(r *rand.Rand, _, _ int, x map[string][]float64) { others(r, x["logp_old"], all...) }, check.Fail, "OLD-OTHER-BATCH"},
		{"from the second rollout on", func(r *rand.Rand, rollout, _ int, x map[string][]float64) {
			if rollout > 0 {
				others(r, x["logp_old"], all...)
			}
		}, check.Fail, "OLD-OTHER-BATCH"},
		{"in one row", func(r *rand.Rand, rollout, _ int, x map[string][]float64) {
			if rollout == 1 {
				others(r, x["logp_old"], 5)
			}
		}, check.Fail, "OLD-ROWS-ROLLED"},
		{"the new log-probs of other positions, and the engine with the old ones", func(r *rand.Rand, _, _ int, x map[string][]float64) { others(r, x["logp_new"], all...) }, check.Fail, "NEW-OTHER-PASS"},
		{"in one row", func(r *rand.Rand, rollout, _ int, x map[string][]float64) {
			if rollout == 1 {
				others(r, x["logp_new"], 5)
			}
		}, check.Fail, "NEW-OTHER-PASS"},
		{"in one row, by another temperature", func(r *rand.Rand, rollout, _ int, x map[string][]float64) {
			for i := 5 * 16; rollout == 1 && i < 6*16; i++ {
				x["logp_old"][i] *= 2.5
			}
		}, check.Fail, "OLD-OTHER-PASS"},
		{"a pass in bfloat16", func(r *rand.Rand, _, update int, x map[string][]float64) {
			for i := range x["logp_old"] {
				if update == 0 {
					x["logp_new"][i] += 0.3 * math.Expm1(x["logp_old"][i]) * r.NormFloat64()
				}
			}
		}, check.Pass, ""},
		{"dropout", func(r *rand.Rand, _, update int, x map[string][]float64) {
			for i := range x["logp_old"] {
				if update == 0 {
					x["logp_new"][i] += 0.9 * math.Expm1(x["logp_old"][i]) * r.NormFloat64()
				}
			}
		}, check.Fail, "OLD-OTHER-PASS"},
		{"the old log-probs of the policy before the last rollout", func(r *rand.Rand, rollout, _ int, x map[string][]float64) {
			for i := range x["logp_old"] {
				if rollout > 0 {
					x["logp_old"][i] += float64(float32(0.25 * math.Expm1(x["logp_old"][i]) * r.NormFloat64()))
				}
			}
		}, check.Fail, "OLD-STALE"},
		{"the log-probs of the reference", func(r *rand.Rand, rollout, _ int, x map[string][]float64) {
			x["logp_old"] = slices.Clone(x["logp_ref"])
			if rollout == 0 {
				x["logp_new"] = slices.Clone(x["logp_ref"])
			}
		}, check.Fail, "OLD-IS-REF"},
		{"a reference that is the policy", func(r *rand.Rand, rollout, update int, x map[string][]float64) {
			x["logp_ref"] = slices.Clone(x["logp_old"])
			for i := range x["logp_old"] {
				if update == 0 {
					x["logp_new"][i] += 0.1 * math.Expm1(x["logp_old"][i]) * r.NormFloat64()
				}
			}
		}, check.Pass, ""},
		{"updates that go far", func(r *rand.Rand, _, update int, x map[string][]float64) {
			for i := range x["logp_old"] {
				if update == 1 {
					x["logp_new"][i] -= 2 * r.ExpFloat64()
				}
			}
		}, check.Pass, ""},
	} {
		r := rand.New(rand.NewPCG(16, 1))
		b := generations(3, func(rollout, update int, x map[string][]float64) {
			if e.edit != nil {
				e.edit(r, rollout, update, x)
			}
		})
		v, fault := atFirst(t, b)
		require.Equal(t, e.want, v, e.name)
		require.Equal(t, e.fault, fault, e.name)
	}
}

// Where nobody says over how many steps a rollout is shuffled, one of new rows may be a later one.
func TestUpdateThatMayBeALaterOne(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 2))
	once := func(edit func(rollout int, x map[string][]float64)) dump.Batches {
		b := generations(4, func(rollout, update int, x map[string][]float64) {
			if rollout > 0 {
				edit(rollout, x)
			}
		})
		for i := range 4 {
			b[i] = b[2*i]
			b[i].Meta.Step = i + 1
		}
		return b[:4]
	}
	moves := once(func(_ int, x map[string][]float64) {
		for i := range x["logp_old"] {
			x["logp_new"][i] += 0.8 * r.NormFloat64() * math.Expm1(x["logp_old"][i])
		}
	})
	v, _ := atFirst(t, moves)
	require.Equal(t, check.Pass, v, "the rows may be those of a second mini-batch")
	other := func(_ int, x map[string][]float64) { others(r, x["logp_old"], 0, 1, 2, 3, 4, 5, 6, 7) }
	v, _ = atFirst(t, once(other))
	require.Equal(t, check.Undetermined, v)
	known := func(epochs float64) (check.Verdict, string) {
		b := once(other)
		for _, step := range b {
			step.Meta.Options = []dumpfile.Option{{Name: "num_mini_batches", Value: 1.0}, {Name: "optim.epochs", Value: epochs}}
		}
		return atFirst(t, b)
	}
	v, _ = known(2)
	require.Equal(t, check.Undetermined, v, "the first epoch may not have been dumped")
	v, fault := known(1)
	require.Equal(t, check.Fail, v)
	require.Equal(t, "OLD-OTHER-BATCH", fault)
}

// Old log-probs that were those of an earlier rollout are told by their bits, whatever update it is.
func TestOldLogProbsOfTheRolloutBefore(t *testing.T) {
	run := func(stale bool) dump.Batches {
		b := generations(4, nil)
		r := rand.New(rand.NewPCG(16, 3))
		for i := range 4 {
			b[i] = b[2*i]
			b[i].Meta.Step = 11 + i
			ids := make([]float64, len(b[i].Mask))
			for k := range ids {
				ids[k] = float64(r.IntN(500))
			}
			b[i].Tensors["response_ids"] = &dumpfile.Tensor{Name: "response_ids", Layout: dumpfile.PerToken, Width: 1, Shape: []int{b[i].Rows, b[i].Cols}, Data: ids, Type: format.I32}
		}
		if stale {
			b[3].Tensors["logp_old"].Data = slices.Clone(b[2].Tensors["logp_old"].Data)
		}
		return b[:4]
	}
	v, _ := atFirst(t, run(false))
	require.Equal(t, check.Pass, v)
	v, fault := atFirst(t, run(true))
	require.Equal(t, check.Fail, v)
	require.Equal(t, "OLD-OTHER-BATCH", fault)
}
