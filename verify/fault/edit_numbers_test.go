package fault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A dual clip with another bound than the declared one is named with both numbers; a number that nobody writes has no name of this kind.
func TestBoundEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"clip.low": "0.2", "clip.high": "0.2", "clip.dual": "10", "kl.beta": "0"} {
		set = set.With(name, parsed(name, x), "test")
	}
	loss := func(dual float64) func(d, a float64) float64 {
		return func(d, a float64) float64 {
			ratio := math.Exp(3 * d)
			l := -math.Min(ratio*a, math.Max(0.8, math.Min(ratio, 1.2))*a)
			if a < 0 {
				l = math.Min(l, -a*dual)
			}
			return l
		}
	}
	wide := func(dual float64) *stage.Outcome { // ratios up to e
		b := updated(loss(dual))
		lp, old := b.Tensors["logp_new"].Data, b.Tensors["logp_old"].Data
		for i := range old {
			old[i] = float64(float32(lp[i] - 3*(lp[i]-old[i])))
			b.Tensors["token_loss"].Data[i] = float64(float32(loss(dual)((lp[i]-old[i])/3, b.Tensors["advantages"].Data[i/b.Cols])))
		}
		return stage.Judge(stage.Find("token_loss/policy"), b, set)
	}
	require.Equal(t, check.Pass, wide(10).Verdict)
	requireName(t, wide(1.5), "CLIP-DUAL", "clip.dual is 1.5 where it should be 10")
	for _, e := range Explain(wide(1.37)) {
		require.NotContains(t, e.Hypothesis.Title, "where it should be 10")
	}
}

// A reference of other rows is found whatever the permutation, by its numbers; one that is no row of the step is not.
func TestRowEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).With("kl.beta", parsed("kl.beta", "0.1"), "test")
	judged := func(source func(row int) int) *stage.Outcome {
		g := rand.New(rand.NewPCG(4, 4))
		const rows, cols = 8, 7
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
			Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		lp, ref, kl := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range lp {
			lp[i], ref[i] = float64(float32(-1-g.Float64())), float64(float32(-1-g.Float64()))
			b.Mask[i] = i%cols < 7-i/cols%3
		}
		for i := range kl {
			d := g.NormFloat64()
			if s := source(i / cols); s >= 0 {
				d = ref[s*cols+i%cols] - lp[i]
			}
			kl[i] = float64(float32(math.Exp(d) - d - 1))
		}
		for name, x := range map[string][]float64{"logp_new": lp, "logp_old": lp, "logp_ref": ref, "kl": kl} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
		}
		return stage.Judge(stage.Find("kl/token"), b, set)
	}
	require.Equal(t, check.Pass, judged(func(row int) int { return row }).Verdict)
	requireName(t, judged(func(row int) int { return []int{5, 2, 7, 0, 1, 6, 4, 3}[row] }), "KL-REFERENCE-ROWS", "other rows")
	requireNoName(t, judged(func(int) int { return -1 }))
	requireNoName(t, judged(func(row int) int { // one row is of no row of the step
		if row == 3 {
			return -1
		}
		return 7 - row
	}))
}

// Advantages that were not permuted with the rows of a rollout are those of rows of another step; numbers of no row are nobody's.
func TestRowsOfOtherSteps(t *testing.T) {
	set := clippedLoss(t)
	other := updated(func(float64, float64) float64 { return 0 })
	for i, a := range other.Row("advantages") {
		other.Row("advantages")[i] = float64(float32(0.7*a + 0.1))
	}
	beside := func(int) []*dump.Batch { return []*dump.Batch{other} }
	judged := func(of func(row int) float64) *stage.Outcome {
		i := -1
		b := perTokenOf(updated(func(float64, float64) float64 { return 0 }), "token_loss", func(lp, old, _ float64) float64 {
			i++
			a, r := of(i/other.Cols), math.Exp(lp-old)
			return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
		})
		return stage.Judge(stage.Find("token_loss/policy"), b, set)
	}
	found := ExplainRows(judged(func(row int) float64 { return other.Row("advantages")[7-row] }), beside)
	require.NotEmpty(t, found)
	require.Equal(t, "ADV-ROWS-OF-OTHERS", found[0].Hypothesis.ID)
	require.Contains(t, found[0].Hypothesis.Title, "of other steps")
	require.Empty(t, ExplainRows(judged(func(row int) float64 { return 0.31 * float64(row+1) }), beside))
	own := updated(func(float64, float64) float64 { return 0 }).Row("advantages")
	other.Row("advantages")[2] = 0
	require.Empty(t, ExplainRows(judged(func(row int) float64 { // rows that a mask leaves out have the advantage of one that has none
		if row < 4 {
			return 0
		}
		return own[row]
	}), beside))
}

// Scores of several reward functions whose weights are others are named by what the weights are.
func TestRewardWeights(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	weights := []float64{1, 0.5, 0.25}
	set := convention.FromProfile(p).WithFact("reward_weights", []any{1.0, 0.5, 0.25})
	for words, w := range map[string][]float64{"": weights, "reverse order": {0.25, 0.5, 1}, "rolled": {0.5, 0.25, 1}, "sum of the weights": {1 / 1.75, 0.5 / 1.75, 0.25 / 1.75},
		"number of reward functions": {1.0 / 3, 0.5 / 3, 0.25 / 3}, "squared": {1, 0.25, 0.0625}, "function 2 alone, without": {0, 1, 0}, "function 1 is left out": {0, 0.5, 0.25}, "function 3 has its weight with": {1, 0.5, -0.25}, "are 0.9, 0.1, 0.7": {0.9, 0.1, 0.7}, "none": {0.9, 0.1, 0.7}} {
		g := rand.New(rand.NewPCG(6, 1))
		const rows, cols = 12, 2
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
			Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		rewards, scores := make([]float64, 3*rows), make([]float64, rows)
		for i := range rewards {
			rewards[i] = float64(float32(g.NormFloat64()))
			if scores[i/3] += w[i%3] * rewards[i]; words == "none" {
				scores[i/3] += 0.1 * rewards[i] * rewards[i] // no sum of them
			}
		}
		for r := range scores {
			scores[r], b.Mask[r*cols] = float64(float32(scores[r])), true
		}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: scores, Type: format.F32}
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 3, Shape: []int{rows, 3}, Data: rewards, Type: format.F32}
		o := stage.Judge(stage.Find("reward/scores"), b, set)
		switch words {
		case "":
			require.Equal(t, check.Pass, o.Verdict)
		case "none":
			requireNoName(t, o)
		default:
			requireName(t, o, "REWARD-WEIGHTS", words)
		}
	}
}

// The bug of every row that is read for another is known.
func TestRowEditsAreKnown(t *testing.T) {
	for _, f := range rowed {
		require.NotNil(t, bug.Find(f.id), fmt.Sprint(f))
	}
}

// That a bound is another number is a difference from a declaration: of a bound that nobody declares it is what it is.
func TestBoundsAreAgainstADeclaration(t *testing.T) {
	for _, name := range bounds {
		require.NotEmpty(t, bug.MustFind(optionID(name, "")).Against, name)
	}
}
