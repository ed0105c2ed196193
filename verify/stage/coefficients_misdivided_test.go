package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// misdividedRun is four steps of three files each of a run whose rollouts are two of them, of lengths that differ: loss makes each file's of its sums, the
// tokens of its step and those of its rollout. The policy is that of the rollout in the first step of each, and in all of them where it stays.
func misdividedRun(token, stays bool, world int, loss func(sum, means, own, step, both float64) float64) *Losses {
	const files, rows, cols = 3, 4, 6
	l := &Losses{}
	length := func(step, r int) int { return 1 + (5*step+3*r+r*r)%cols }
	tokens := func(step int) (n float64) {
		for r := range files * rows {
			n += float64(length(step, r))
		}
		return n
	}
	for step := range 4 {
		var lengths []int
		for r := range files * rows {
			lengths = append(lengths, length(step, r))
		}
		b := lossFile(cols, lengths, func(i int) float64 { return math.Sin(float64(7*i + step)) }, nil)
		b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize = step+1, files, world
		lp, old, adv, x := make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), b.Token("token_loss")
		for i := range lp {
			if old[i], adv[i] = -1-math.Abs(math.Cos(float64(i+step))), math.Sin(float64(3*(i/cols)+step)); !stays && step%2 == 1 {
				lp[i] = 0.01 * math.Sin(float64(5*i))
			}
			if lp[i] += old[i]; !token {
				x[i] = -adv[i] * math.Exp(lp[i]-old[i])
			}
		}
		b.Files = nil
		var losses []float64
		for f := range files {
			b.Files = append(b.Files, dump.FileInfo{MicroBatch: f, Lo: f * rows, Hi: (f + 1) * rows, Cols: cols})
			var sum, means, own float64
			for i := f * rows * cols; i < (f+1)*rows*cols; i++ {
				if b.Mask[i] {
					sum, own, means = sum+x[i], own+1, means+x[i]/float64(lengths[i/cols])/rows
				}
			}
			losses = append(losses, float64(float32(loss(sum, means, own, tokens(step), tokens(step)+tokens(step^1)))))
		}
		for name, x := range map[string][]float64{"logp_new": lp, "logp_old": old, "advantages": adv} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
		}
		if b.Tensors["loss"] = (&dump.Tensor{Data: losses, Layout: dump.PerFile, Type: format.F32}); !token {
			delete(b.Tensors, "token_loss")
		}
		l.Add(b)
	}
	return l
}

// TestMisdividedLosses divides sums once more by the three accumulation steps, or by the tokens of both steps of a rollout that are not rescaled to one.
func TestMisdividedLosses(t *testing.T) {
	reduced := func(kind, where, divided string) []string {
		return []string{"agg.kind=" + kind, "agg.denominator=" + where, "agg.div_ga=" + divided}
	}
	for _, token := range []bool{true, false} {
		for _, c := range []struct {
			what, id string
			steps    int
			want     []string
			loss     func(sum, means, own, step, both float64) float64
		}{
			{"twice", "AGG-GA-TWICE", 0, reduced("token", "micro", "true"), func(sum, _, own, _, _ float64) float64 { return sum / own / 9 }},
			{"twice, rows", "AGG-GA-TWICE", 0, reduced("seq_mean_token_mean", "micro", "true"), func(_, means, _, _, _ float64) float64 { return means / 9 }},
			{"of the step, and divided", "AGG-GA-TWICE", 0, reduced("token", "global", "false"), func(sum, _, _, step, _ float64) float64 { return sum / step / 3 }},
			{"of both steps, and divided", "AGG-GA-TWICE", 2, reduced("token", "global", "false"), func(sum, _, _, _, both float64) float64 { return 2 * sum / both / 3 }},
			{"of both steps, not rescaled", "AGG-NUM-ITEMS-GENERATION", 2, reduced("token", "global", "false"), func(sum, _, _, _, both float64) float64 { return sum / both }},
			{"once", "", 0, nil, func(sum, _, own, _, _ float64) float64 { return sum / own / 3 }},
			{"of both steps", "", 2, nil, func(sum, _, _, _, both float64) float64 { return 2 * sum / both }},
			{"by a number of nobody's", "", 0, nil, func(sum, _, own, _, _ float64) float64 { return sum / own / 7 }},
		} {
			l := misdividedRun(token, false, 1, c.loss)
			require.Equal(t, c.id, l.Misdivided(), c.what)
			require.Equal(t, c.steps, l.Generation(), c.what)
			require.Subset(t, append(formTexts(l), ""), append(c.want, ""), c.what)
		}
		unscaled := func(sum, _, _, _, both float64) float64 { return sum / both }
		require.Empty(t, misdividedRun(token, true, 1, unscaled).Misdivided(), "both steps may be one of the optimiser")
		require.Empty(t, misdividedRun(token, false, 3, func(sum, _, own, _, _ float64) float64 { return sum / own / 9 }).Misdivided(), "gradients may be summed over three ranks")
	}
}

// TestCoarseLogProbsOfOnPolicyLosses divides advantages by lengths beneath a mean over rows of means, of a policy that is its own rollout: of bfloat16 log-probs
// nothing is in such losses.
func TestCoarseLogProbsOfOnPolicyLosses(t *testing.T) {
	l := &Losses{}
	for f := range 6 {
		lengths, adv, loss := []int{1 + f%3, 5, 2 + f%2}, make([]float64, 3), 0.0
		for r, n := range lengths {
			adv[r] = math.Sin(float64(3*r + 5*f))
			loss -= adv[r] / float64(n) / 3 / 2
		}
		b := lossFile(6, lengths, func(i int) float64 { return -math.Round(100*(1+math.Cos(float64(i)))) / 128 }, map[string]float64{"loss": float64(float32(loss))})
		b.Tensors["logp_new"], b.Meta.MicroBatches = b.Tensors["token_loss"], 2
		delete(b.Tensors, "token_loss")
		b.Tensors["advantages"] = &dump.Tensor{Data: adv, Layout: dump.PerRow, Width: 1, Type: format.F32}
		l.Add(b)
	}
	require.Equal(t, []string{"agg.kind=seq_mean_token_mean", "agg.denominator=micro", "agg.div_ga=true"}, formTexts(l), "beneath the lengths")
}
