package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// An entropy bonus that is a mean over tokens, whatever the aggregation of the policy loss, and a constant that sums are divided by beside a KL term,
// are what whole losses give. TRL 1.16's _compute_loss has the one, verl 0.9.1's agg_loss the other.
func TestTermsOfTheirOwnInWholeLosses(t *testing.T) {
	run := func(loss func(rows [][]float64, kl, h [][]float64) float64) *Losses {
		l := &Losses{}
		for f := range 8 {
			lengths := []int{1 + f%4, 4, 2}
			token := func(i int) float64 { return math.Sin(float64(7*i + f)) }
			b := lossFile(4, lengths, token, nil)
			b.Meta.MicroBatches = 2
			var x [3][][]float64
			kl, h := make([]float64, 12), make([]float64, 12)
			for i := range kl {
				kl[i], h[i] = 0.05*math.Abs(math.Cos(float64(5*i+2*f))), 2+math.Sin(float64(3*i-f))
			}
			for r, n := range lengths {
				x[0] = append(x[0], b.Token("token_loss")[4*r:4*r+n])
				x[1], x[2] = append(x[1], kl[4*r:4*r+n]), append(x[2], h[4*r:4*r+n])
			}
			for name, x := range map[string][]float64{"kl": kl, "entropy": h} {
				b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
			}
			b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(loss(x[0], x[1], x[2])))}, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		return l
	}
	sum := func(rows [][]float64) (s, n, means float64) {
		for _, row := range rows {
			of := 0.0
			for _, x := range row {
				of += x
			}
			s, n, means = s+of, n+float64(len(row)), means+of/float64(len(row))/float64(len(rows))
		}
		return s, n, means
	}
	l := run(func(x, _, h [][]float64) float64 {
		_, _, mean := sum(x)
		all, n, _ := sum(h)
		return mean/2 - 0.0159*all/n/2
	})
	require.Equal(t, map[string]float64{"entropy.coef": 0.0159}, l.Coefficients())
	require.Equal(t, "micro", l.Entropy())
	require.Zero(t, l.Constant())
	l = run(func(x, _, h [][]float64) float64 {
		s, _, _ := sum(x)
		all, n, _ := sum(h)
		return s/3/64 - 0.0159*all/n/2
	})
	require.Equal(t, map[string]float64{"entropy.coef": 0.0159}, l.Coefficients(), "the constant divides no mean of its own")
	require.Equal(t, 64.0, l.Constant())
	l = run(func(x, kl, _ [][]float64) float64 {
		s, _, _ := sum(x)
		k, _, _ := sum(kl)
		return (s + 0.0129*k) / 3 / 64
	})
	require.Equal(t, map[string]float64{"kl.beta": 0.0129}, l.Coefficients())
	require.Equal(t, 64.0, l.Constant())
}

// Losses of one rollout have the same tokens at every step: a sum over 4 rows of 6 tokens is 6 times their mean, and the coefficient with few digits is the
// one that was written. Where losses sum to 0 what is left is rounding, and no term.
func TestTermsOfWholeLossesThatCannotBeToldApart(t *testing.T) {
	run := func(coef, shift float64) map[string]float64 {
		l := &Losses{}
		for f := range 6 {
			token := func(i int) float64 { return math.Sin(float64(7*i+f))*math.Abs(shift) + shift }
			b := lossFile(8, []int{7, 5, 7, 5}, token, nil)
			h := make([]float64, 32)
			var s, all float64
			for i := range h {
				if h[i] = 2 + math.Sin(float64(3*i-f)); b.Mask[i] {
					s, all = s+b.Token("token_loss")[i], all+h[i]
				}
			}
			b.Tensors["entropy"] = &dump.Tensor{Data: h, Layout: dump.PerToken, Type: format.F32}
			b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(s/4/11 - coef*all/24))}, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		return l.Coefficients()
	}
	require.Equal(t, map[string]float64{"entropy.coef": 0.02}, run(0.02, 1))
	require.Empty(t, run(0, 1))
}

// The bonus of the tokens of high entropy, to which the policy term is restricted, is a mean over these (TRL 1.16, top_entropy_quantile, entropy_coef).
func TestBonusOfTheTokensOfHighEntropy(t *testing.T) {
	l := &Losses{}
	for f := range 6 {
		b := lossFile(6, []int{6, 5, 6}, func(int) float64 { return 0 }, nil)
		h, kl, adv, loss := make([]float64, 18), make([]float64, 18), make([]float64, 18), b.Token("token_loss")
		var s, high, n, rows float64
		for r, length := range []int{6, 5, 6} {
			s = 0
			for i := 6 * r; i < 6*r+length; i++ {
				h[i], kl[i], adv[i] = 2+math.Sin(float64(5*i-f)), 0.1+0.05*math.Cos(float64(11*i+f)), math.Cos(float64(2*r+f))
				if loss[i] = 0.04 * kl[i]; h[i] > 2.3 {
					loss[i] -= adv[i]
					high, n = high+h[i], n+1
				}
				s += loss[i] / float64(length)
			}
			rows += s / 3
		}
		for name, x := range map[string][]float64{"kl": kl, "entropy": h, "advantages": adv} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
		}
		b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(rows - 0.003*high/n))}, Layout: dump.PerFile, Type: format.F32}
		l.Add(b)
	}
	require.Equal(t, map[string]float64{"entropy.coef": 0.003}, l.Coefficients())
	require.Equal(t, "micro", l.Entropy())
}

// Of whole losses beside which the files have their value losses alone, both coefficients are solved for together, as of CleanRL's loss. Where all steps have
// as many tokens, as the rollouts of environments do, the loss is still that of its own step.
func TestCoefficientBesideAValueLoss(t *testing.T) {
	l := &Losses{}
	for f := range 8 {
		lengths := []int{4, 4, 4}
		b := lossFile(4, lengths, func(i int) float64 { return 0.1 * math.Sin(float64(7*i+f)) }, nil)
		h := make([]float64, 12)
		for i := range h {
			h[i] = 1 + 0.3*math.Sin(float64(3*i-f*f))
		}
		mean := func(x []float64) (m float64) {
			for _, v := range x {
				m += v / float64(len(x))
			}
			return m
		}
		value := float64(float32(3 + math.Cos(float64(5*f))))
		loss := mean(b.Token("token_loss")) - 0.013*mean(h) + 0.27*value
		b.Tensors["entropy"] = &dump.Tensor{Data: h, Layout: dump.PerToken, Type: format.F32}
		b.Tensors["value_loss"] = &dump.Tensor{Data: []float64{value}, Layout: dump.PerFile, Type: format.F32}
		b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(loss))}, Layout: dump.PerFile, Type: format.F32}
		b.Meta.Step = f
		l.Add(b)
	}
	require.Equal(t, map[string]float64{"entropy.coef": 0.013, "value.coef": 0.27}, l.Coefficients())
	require.Zero(t, l.Generation())
}

// Rows whose tokens are all masked count in a mean over rows where a program counts them (TRL 1.16, _compute_loss, mask_truncated_completions): a constant that sums
// are divided by beside an entropy bonus is found with them, where a mean over the rows with tokens has none.
func TestEmptyRowsInWholeLosses(t *testing.T) {
	for _, counted := range []bool{true, false} {
		l := &Losses{}
		for f := range 8 {
			lengths := []int{1 + f%4, 0, 4, f % 3}
			b := lossFile(4, lengths, func(i int) float64 { return math.Sin(float64(7*i + f)) }, nil)
			h := make([]float64, 16)
			var sum, bonus, n, rows float64
			for r, of := range lengths {
				for i := 4 * r; i < 4*r+of; i++ {
					h[i] = 2 + math.Cos(float64(3*i-f))
					sum, bonus, n = sum+b.Token("token_loss")[i], bonus+h[i], n+1
				}
				if counted || of > 0 {
					rows++
				}
			}
			b.Tensors["entropy"] = &dump.Tensor{Data: h, Layout: dump.PerToken, Type: format.F32}
			b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(sum/rows/16 - 0.01*bonus/n))}, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		require.Equal(t, map[string]float64{"entropy.coef": 0.01}, l.Coefficients(), "%v", counted)
		require.Equal(t, 16.0, l.Constant(), "%v", counted)
	}
}
