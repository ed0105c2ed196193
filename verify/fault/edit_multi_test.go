package fault

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Rewards of two functions, one of which scores not every response, are normalised each, added and normalised again: other rows of a statistic, and what a missing
// reward counts for, are named.
func TestFormsOfNormalisedRewards(t *testing.T) {
	const rows, groups, size, eps = 16, 4, 4, 1e-4
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", float64(size)).WithFact("reward_weights", []any{1.0, 0.5}).
		With("adv.multi", parsed("adv.multi", "normalize_then_sum"), "test").With("adv.scale", parsed("adv.scale", "group_std"), "test")
	place := func(i int) int { return i * 5 % rows } // of a row in the order of the samples
	stats := func(x []float64, in func(k int) bool, zero bool) (mean, std float64) {
		var of []float64
		for k, v := range x {
			if in(k) && !math.IsNaN(v) {
				of = append(of, v)
			} else if in(k) && zero {
				of = append(of, 0)
			}
		}
		return meanOf(of), math.Sqrt(squares(of) / float64(len(of)-1))
	}
	own := func(i int) func(k int) bool { return func(k int) bool { return k/size == i/size } }
	across := func(i int) func(k int) bool { return func(k int) bool { return k%size == i%size } }
	every := func(int) func(k int) bool { return func(int) bool { return true } }
	for words, f := range map[string]struct {
		centre, spread, again func(i int) func(k int) bool
		zeroMean, zeroSpread  bool
	}{
		"": {own, own, every, false, false},
		"divided by the deviation of the answers of the same place":      {own, across, every, false, false},
		"the mean of the answers of the same place":                      {across, own, every, false, false},
		"divided by its deviation over the batch":                        {own, every, every, false, false},
		"normalised over the group, not over the batch":                  {own, own, own, false, false},
		"a missing reward counts as 0 in the mean of its function":       {own, own, every, true, false},
		"a missing reward counts as 0 in the deviation of its function":  {own, own, every, false, true},
		"a missing reward counts as 0 in mean and deviation of its func": {own, own, every, true, true},
		"the deviation of the weighted sum of the rewards as they are":   {own, own, every, false, false},
		"as they are, without their weights":                             {own, own, every, false, false},
	} {
		var rewards [2][rows]float64 // by place
		sums := make([]float64, rows)
		b := rewarded(func([]float64, []int, int) float64 { return 0 })
		for k := range rows {
			rewards[0][k], rewards[1][k] = float64(float32(math.Sin(float64(k*k)))), float64(float32(1+math.Cos(float64(3*k))))
			if k%5 == 2 {
				rewards[1][k] = math.NaN()
			}
		}
		for k := range rows {
			for i, w := range []float64{1, 0.5} {
				mean, _ := stats(rewards[i][:], f.centre(k), f.zeroMean)
				_, std := stats(rewards[i][:], f.spread(k), f.zeroSpread)
				if z := (rewards[i][k] - mean) / (std + eps); !math.IsNaN(z) {
					sums[k] += w * z
				}
			}
		}
		per, adv, id, sample, score := make([]float64, 2*rows), make([]float64, rows), make([]float64, rows), make([]float64, rows), make([]float64, rows)
		for i := range rows {
			k := place(i)
			mean, std := stats(sums, f.again(k), false)
			if weight := map[bool]float64{true: 1, false: 0.5}[strings.Contains(words, "without")]; strings.Contains(words, "as they are") {
				plain := make([]float64, rows)
				for k := range plain {
					if plain[k] = rewards[0][k]; !math.IsNaN(rewards[1][k]) {
						plain[k] += weight * rewards[1][k]
					}
				}
				_, std = stats(plain, f.again(k), false)
			}
			per[2*i], per[2*i+1], adv[i], id[i], sample[i] = rewards[0][k], rewards[1][k], float64(float32((sums[k]-mean)/(std+eps))), float64(k/size), float64(k)
			if score[i] = per[2*i]; !math.IsNaN(per[2*i+1]) {
				score[i] += 0.5 * per[2*i+1]
			}
		}
		for name, x := range map[string][]float64{"advantages": adv, "group_id": id, "sample_id": sample, "scores": score, "rewards_per_func": per} {
			w := len(x) / rows
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: w, Shape: []int{rows, w}[:min(w, 2)], Data: x, Type: format.F32}
		}
		o := stage.Judge(stage.Find("advantage/group"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		t.Run(words, func(t *testing.T) { requireName(t, o, "ADV-MULTI", words) })
	}
}
