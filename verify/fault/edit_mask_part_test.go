package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A value loss over the last two tokens of every response is named from the loss alone, one over every third cell by its gradients.
func TestMasksOfTheValueLoss(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"value.coef": "0.5", "value.clip": "none", "value.mask": "response"} {
		set = set.With(name, parsed(name, x), "test")
	}
	judge := func(gradients bool, in func(i, col int) bool) *stage.Outcome {
		r := rand.New(rand.NewPCG(47, 48))
		b := updated(func(float64, float64) float64 { return 0 })
		n, loss, counted := len(b.Mask), 0.0, 0.0
		v, ret, g := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range v {
			if v[i], ret[i] = float64(float32(r.NormFloat64())), float64(float32(r.NormFloat64())); in(i, i%b.Cols) {
				counted++
			}
		}
		for i := range v {
			if in(i, i%b.Cols) {
				loss, g[i] = loss+0.5*(v[i]-ret[i])*(v[i]-ret[i])/counted, float64(float32(0.5*(v[i]-ret[i])/counted))
			}
		}
		x := map[string][]float64{"values_new": v, "returns": ret}
		if gradients {
			x["dvalues"] = g
		}
		for name, data := range x {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: data, Type: format.F32}
		}
		b.Tensors["value_loss"] = &dump.Tensor{Name: "value_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
		b.Meta.DLogpScale = 1
		return stage.Judge(stage.Find("aggregate/value_loss"), b, set)
	}
	require.Equal(t, check.Pass, judge(true, func(int, int) bool { return true }).Verdict)
	requireName(t, judge(false, func(_, col int) bool { return col >= 4 }), "LOSS-MASK-OTHER", "only the last 2 tokens")
	requireName(t, judge(true, func(i, _ int) bool { return i%3 != 1 }), "LOSS-MASK-OTHER", "16 of 48 tokens")
}

// Sums over responses that their lengths divide twice are named so, not by a mask of one of their tokens.
func TestLengthOfResponsesTwice(t *testing.T) {
	set := clippedLoss(t, "agg.kind", "seq_mean_token_mean", "agg.empty_rows", "counted", "mean.eps", "0", "agg.len_eps", "0")
	for power, verdict := range map[int]check.Verdict{1: check.Pass, 2: check.Fail} {
		b := summed(func(x []float64, mask []bool, rows, cols int) (loss float64) {
			for r := range rows {
				sum, n := 0.0, 0.0
				for i := r * cols; i < (r+1)*cols; i++ {
					sum, n = sum+x[i]*float64(boolToInt(mask[i])), n+float64(boolToInt(mask[i]))
				}
				loss += sum / math.Pow(n, float64(power)) / float64(rows)
			}
			return loss
		})
		b.Tensors["logp_old"] = b.Tensors["logp_new"]
		b.Meta.DLogpScale = 1
		o := stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
		if require.Equal(t, verdict, o.Verdict, o.Lacking()); verdict == check.Fail {
			requireName(t, o, "AGG-LENGTH-TWICE", "twice")
		}
	}
}

// Tokens without a gradient whose values have all moved far are held by a clip, whichever it is, and left out by no mask.
func TestValuesThatAreHeldAreNoMask(t *testing.T) {
	b := updated(func(float64, float64) float64 { return 0 })
	r := rand.New(rand.NewPCG(47, 49))
	old, v := make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
	far, third := make([]bool, len(b.Mask)), make([]bool, len(b.Mask))
	for i := range v {
		v[i] = r.NormFloat64()
		far[i], third[i] = math.Abs(v[i]) <= 1, i%3 != 1
	}
	for name, data := range map[string][]float64{"values_new": v, "values": old} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: data, Type: format.F32}
	}
	require.True(t, heldValues(b, far))
	require.False(t, heldValues(b, third))
	require.False(t, heldValues(b, b.Mask), "all count")
}
