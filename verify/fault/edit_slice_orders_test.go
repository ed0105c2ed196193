package fault_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// noise is a number of float32 that is another one for every i.
func noise(i int) float64 { return float64(float32(math.Sin(float64(i*i)*1.3 + 0.7))) }

// everyCell is the mask of rows that are all tokens.
func everyCell(n int) []bool {
	m := make([]bool, n)
	for i := range m {
		m[i] = true
	}
	return m
}

// Old values that stand in the order in which the rollout was sampled, and those that another epoch's mini-batch has, beside mini-batches that were permuted.
func TestValuesInAnotherOrder(t *testing.T) {
	const rows, cols = 4, 6
	set := declared(t, map[string]string{"agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": "false", "value.clip": "0.2", "value.factor": "0.5", "value.mask": "response", "mean.eps": "0"})
	at := []int{5, 2, 7, 0, 3, 6, 1, 4} // the row of the rollout in each place of the two steps
	step := func(s int, from func(place int) int) *dump.Batch {
		v, old, ret, id, loss := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows), 0.0
		for i := range v {
			place := (s-1)*rows + i/cols
			cell := at[place]*cols + i%cols
			read := noise(from(place)*cols + i%cols)
			id[i/cols], old[i], v[i], ret[i] = float64(at[place]), noise(cell), noise(cell)+0.3*noise(cell+91), noise(cell+57)
			held := max(read-0.2, min(v[i], read+0.2))
			loss += 0.5 * max((v[i]-ret[i])*(v[i]-ret[i]), (held-ret[i])*(held-ret[i])) / (rows * cols)
		}
		b := written("ppo", rows, cols, everyCell(rows*cols), map[string][]float64{"values_new": v, "values": old, "returns": ret, "sample_id": id})
		b.Tensors["value_loss"] = &dump.Tensor{Name: "value_loss", Layout: dump.PerFile, Data: []float64{float64(float32(loss))}}
		b.Meta.Step, b.Files[0].Step = s, s
		return b
	}
	for words, from := range map[string]func(place int) int{"": func(k int) int { return at[k] }, "the order in which it was sampled": func(k int) int { return k }} {
		o := stage.Judge(stage.Find("aggregate/value_loss"), step(1, from), set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		found := fault.ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{step(2, from)} })
		require.NotEmpty(t, found, words)
		require.Equal(t, "VALUES-OF-OTHER-ROWS", found[0].Hypothesis.ID)
		require.Contains(t, found[0].Hypothesis.Title, words)
	}
}

// Advantages that are whitened in their mini-batch and were cut by the permutation of the epoch before.
func TestAdvantagesOfAnotherEpoch(t *testing.T) {
	const rows, cols = 4, 6
	set := declared(t, map[string]string{"adv.kind": "gae", "gae.gamma": "1", "gae.lambda": "1", "gae.hole": "none", "gae.truncated_bootstrap": "none", "gae.value_mask": "response", "whiten.scope": "minibatch", "whiten.ddof": "0",
		"whiten.eps": "1e-8", "whiten.eps_place": "add_std", "whiten.mask": "response", "whiten.shift_mean": "true", "rewards.whiten": "no", "kl.place": "none", "reward.clip": "none"})
	step := func(s int, order, adv []int) *dump.Batch {
		reward, v, sum, a, id := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows)
		mean, square := 0.0, 0.0
		for i := rows*cols - 1; i >= 0; i-- { // A = Σ r − V
			row, cell := i/cols, adv[i/cols]*cols+i%cols
			id[row], reward[i], v[i] = float64(order[row]), noise(order[row]*cols+i%cols), noise(order[row]*cols+i%cols+300)
			if sum[i] = noise(cell); i%cols < cols-1 {
				sum[i] += sum[i+1]
			}
			a[i] = sum[i] - noise(cell+300)
			mean, square = mean+a[i]/(rows*cols), square+a[i]*a[i]/(rows*cols)
		}
		for i := range a {
			a[i] = (a[i] - mean) / (math.Sqrt(square-mean*mean) + 1e-8)
		}
		b := written("ppo", rows, cols, everyCell(rows*cols), map[string][]float64{"token_rewards": reward, "values": v, "advantages": a, "sample_id": id})
		b.Meta.Step, b.Files[0].Step = s, s
		return b
	}
	first, second := []int{3, 0, 2, 1}, []int{1, 2, 0, 3}
	before := step(1, first, first)
	require.Equal(t, check.Pass, stage.Judge(stage.Find("gae/advantage"), before, set).Verdict, stage.Judge(stage.Find("gae/advantage"), before, set).Lacking())
	o := stage.Judge(stage.Find("gae/advantage"), step(2, second, first), set)
	require.Equal(t, check.Fail, o.Verdict)
	found := fault.ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{before} })
	require.NotEmpty(t, found)
	require.Equal(t, "ADV-ROWS-OF-OTHERS", found[0].Hypothesis.ID)
	require.Contains(t, found[0].Hypothesis.Title, "1 steps before")
}
