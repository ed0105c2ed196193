package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// A loss of a policy, a value and an entropy term, one of which is reduced by another aggregation than the others, is named by the term and its own.
func TestTermsReducedApart(t *testing.T) {
	set := clippedLoss(t, "mean.eps", "0", "entropy.coef", "0.1", "entropy.agg", "same",
		"value.coef", "0.5", "value.factor", "0.5", "value.clip", "none", "value.mask", "response", "value.agg", "same")
	token := func(_, tokens float64) float64 { return 1 / tokens }
	judge := func(policy, value func(n, tokens float64) float64) *stage.Outcome {
		b := updated(func(d, a float64) float64 { return -a * math.Exp(d) })
		r := rand.New(rand.NewPCG(31, 32))
		for row := range b.Rows {
			for col := b.Cols - row%4; col < b.Cols; col++ {
				b.Mask[row*b.Cols+col] = false
			}
		}
		v, ret, n := make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), tokensOf(b, b.Mask)
		var loss float64
		for i, m := range b.Mask {
			if v[i], ret[i] = float64(float32(r.NormFloat64())), float64(float32(r.NormFloat64())); m {
				own, tokens := n[i/b.Cols], count(b.Mask)
				loss += policy(own, tokens)*b.Token("token_loss")[i] + 0.25*value(own, tokens)*(v[i]-ret[i])*(v[i]-ret[i]) - 0.1*token(own, tokens)*v[i]*v[i]
			}
		}
		for name, x := range map[string][]float64{"values_new": v, "returns": ret, "entropy": mapped(v, func(x float64) float64 { return x * x })} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
		b.Meta.DLogpScale = 1
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	require.Equal(t, check.Pass, judge(token, token).Verdict)
	for words, by := range map[string]func(n, tokens float64) float64{
		"the mean of the means of the responses": func(n, _ float64) float64 { return 1 / (n * 8) },
		"the mean of the sums of the responses":  func(_, _ float64) float64 { return 1. / 8 },
	} {
		requireName(t, judge(token, by), "AGG-KIND", "the value term is reduced in its own way: "+words)
		requireName(t, judge(by, token), "AGG-KIND", "the policy term is reduced in its own way: "+words)
	}
}

// A coefficient that multiplies another term than its own is named by both.
func TestExchangedCoefficients(t *testing.T) {
	set := clippedLoss(t, "mean.eps", "0", "entropy.coef", "0.1", "entropy.agg", "same", "value.coef", "0.5", "value.factor", "0.5", "value.clip", "none", "value.mask", "response")
	judge := func(policy, value, entropy float64) *stage.Outcome {
		b := updated(func(d, a float64) float64 { return -a * math.Exp(d) })
		r := rand.New(rand.NewPCG(31, 32))
		x, n, loss := map[string][]float64{}, count(b.Mask), 0.
		for _, name := range []string{"values_new", "returns", "entropy"} {
			x[name] = mapped(b.Token("token_loss"), func(float64) float64 { return float64(float32(math.Abs(r.NormFloat64()))) })
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x[name], Type: format.F32}
		}
		for i := range b.Tokens() {
			d := x["values_new"][i] - x["returns"][i]
			loss += (policy*b.Token("token_loss")[i] + value*d*d/2 - entropy*x["entropy"][i]) / n
		}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
		b.Meta.DLogpScale = 1
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	require.Equal(t, check.Pass, judge(1, 0.5, 0.1).Verdict)
	requireName(t, judge(0.5, 1, 0.1), "COEFFICIENT-EXCHANGED", "the coefficient of the value term multiplies the policy term, and the value term has none")
	requireName(t, judge(0.1, 0.5, 1), "COEFFICIENT-EXCHANGED", "the coefficient of the entropy term multiplies the policy term, and the entropy term has none")
	requireName(t, judge(1, 0.1, 0.5), "COEFFICIENT-EXCHANGED", "the coefficients of the entropy term and of the value term are exchanged")
	requireName(t, judge(0.5, 0.5, 0.1), "COEFFICIENT-EXCHANGED", "the coefficient of the value term multiplies the policy term, too")
}
