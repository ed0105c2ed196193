package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Rewards that hold a KL of the token behind are told with their coefficient where nobody declares one: no value of it makes the right KL fit.
func TestAnEditUnderACoefficientThatNobodyDeclares(t *testing.T) {
	const rows, cols, beta = 6, 8, 0.13
	rewarded := func(of func(kl []float64, i int) float64) *dump.Batch {
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{},
			Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Hi: rows, Cols: cols}}}
		put := func(name string, layout dump.Layout, x []float64) {
			shape := []int{rows, cols}
			if layout == dump.PerRow {
				shape = shape[:1]
			}
			b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Width: 1, Layout: layout, Shape: shape, Type: format.F32}
		}
		kl, scores, rewards := make([]float64, rows*cols), make([]float64, rows), make([]float64, rows*cols)
		for i := range kl {
			b.Mask[i], kl[i] = true, float64(float32(0.3*math.Sin(float64(i*i))))
		}
		for r := range scores {
			scores[r] = float64(float32(1 + math.Cos(float64(r))))
		}
		for i := range rewards {
			rewards[i] = float64(float32(-beta * of(kl[i/cols*cols:i/cols*cols+cols], i%cols)))
			if i%cols == cols-1 {
				rewards[i] = float64(float32(rewards[i] + scores[i/cols]))
			}
		}
		put("kl", dump.PerToken, kl)
		put("scores", dump.PerRow, scores)
		put("token_rewards", dump.PerToken, rewards)
		return b
	}
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	number := func(name string) convention.Value {
		v, err := convention.Parse(name, "none")
		require.NoError(t, err)
		return v
	}
	place, err := convention.Parse("kl.place", "token_reward")
	require.NoError(t, err)
	set := convention.FromProfile(p).With("kl.place", place, "test").With("kl.beta", convention.NumberValue(0.05), "profile")
	set = set.With("reward.clip_range", number("reward.clip_range"), "test")
	open := func(option string) bool { return option == "kl.beta" }
	explained := func(of func(kl []float64, i int) float64) (*stage.Outcome, []Explanation) {
		o := stage.Judge(stage.Find("reward/token"), rewarded(of), set)
		require.Equal(t, check.Fail, o.Verdict)
		return ExplainOpen([]*stage.Outcome{o}, open)
	}
	o, found := explained(func(kl []float64, i int) float64 { return kl[(i+1)%cols] })
	require.NotEmpty(t, found)
	require.Equal(t, "OTHER-TENSOR", found[0].Hypothesis.ID, found[0].Hypothesis.Title)
	require.False(t, found[0].Hypothesis.Relative)
	require.InDelta(t, beta, o.Case.Set.Value("kl.beta").Num(), 1e-6)
	_, found = explained(func(kl []float64, i int) float64 { return math.Sin(kl[i] + float64(i*i%5)) })
	require.Empty(t, found, "of what is no estimate of the dump")
}

// A failure that no edit gives has none.
func TestNoEdits(t *testing.T) {
	in := perTokenOf(unclipped(), "token_loss", func(lp, old, a float64) float64 { return math.Sin(1e4*lp) + math.Cos(3e4*old*a) })
	o := stage.Judge(stage.Find("token_loss/policy"), in, clippedLoss(t))
	require.Equal(t, check.Fail, o.Verdict)
	require.Empty(t, Edits(o))
}
