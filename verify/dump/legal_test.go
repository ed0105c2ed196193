package dump_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// What a bug would be under a declaration is a configuration where nobody declares the option: rewards within a range before a baseline of the others, which no
// profile has beside it. A declaration makes a bug of it.
func TestABugOfAnOptionIsAConfiguration(t *testing.T) {
	const rows, group, cols = 32, 4, 3 // of two steps, over which groups are dealt
	score, adv, id := make([]float64, rows), make([]float64, rows), make([]float64, rows)
	for i := range score {
		score[i], id[i] = math.Round(16*(-1.25+1.7*math.Pow(math.Sin(float64(3*i+1)), 4)))/16, float64(5*i%rows/group)
	}
	held := func(x float64) float64 { return max(min(x, 0.5), -0.5) }
	for i := range adv {
		sum := 0.0
		for k, x := range score {
			if id[k] == id[i] && k != i {
				sum += held(x)
			}
		}
		adv[i] = float64(float32(held(score[i]) - sum/(group-1)))
	}
	judged := func(options map[string]any) check.Result {
		var steps []dump.Step
		for k := range 2 {
			lo, hi := k*rows/2, (k+1)*rows/2
			steps = append(steps, dump.Step{Number: k + 1, Rows: rows / 2, Cols: cols, Mask: slices.Repeat([]bool{true}, rows/2*cols), Framework: "torch", Options: options,
				PerRow: map[string][]float64{"scores": score[lo:hi], "advantages": adv[lo:hi], "group_id": id[lo:hi]}})
		}
		results, err := dump.Check(context.Background(), dump.Options{}, steps...)
		require.NoError(t, err)
		i := slices.IndexFunc(results, func(r check.Result) bool { return r.Check == "advantage/group" })
		require.GreaterOrEqual(t, i, 0)
		return results[i]
	}
	r := judged(nil)
	require.Equal(t, check.Pass, r.Verdict, r.Reason)
	require.Contains(t, r.Reason, "reward.clip=before_baseline, reward.clip_range=-0.5,0.5")
	r = judged(map[string]any{"adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "reward.clip": "none", "whiten.scope": "none"})
	require.Contains(t, []check.Verdict{check.Fail, check.Convention}, r.Verdict, r.Reason)
}
