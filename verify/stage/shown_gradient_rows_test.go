package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// rowSurrogates are batches of surrogates of one ratio for a row without the losses of their tokens: A·s, which of returns with the slope of a
// token and the loss of a row.
func rowSurrogates(of func(adv float64, d []float64) (slope []float64, loss float64)) (batches []*dump.Batch) {
	for seed := range uint64(12) {
		b := gradientOf(20+seed, 0.1, func(float64, float64) float64 { return 0 })
		losses := 0.0
		b = without(b, func(row []int, adv, _ []float64, i int) float64 {
			d := make([]float64, len(row))
			lp, old := b.Token("logp_new"), b.Token("logp_old")
			at := 0
			for k, j := range row {
				if d[k] = lp[j] - old[j]; j == i {
					at = k
				}
			}
			slope, loss := of(adv[i], d)
			losses += loss / float64(len(row)*b.Rows)
			return slope[at]
		})
		b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(losses))}, Layout: dump.PerFile, Type: format.F32, Shape: []int{1}}
		batches = append(batches, b)
	}
	return batches
}

func meanOf(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// gspo stops rows at 0.969 and 1.043, numbers that no program has by default.
func gspo(adv float64, d []float64) (slope []float64, loss float64) {
	return gspoUpTo(0.031, 0.043)(adv, d)
}

func gspoUpTo(low, high float64) func(adv float64, d []float64) (slope []float64, loss float64) {
	return func(adv float64, d []float64) (slope []float64, loss float64) {
		s := math.Exp(meanOf(d))
		clipped := min(max(s, 1-low), 1+high)
		slope = make([]float64, len(d))
		if s*adv <= clipped*adv {
			for i := range slope {
				slope[i] = -adv * s
			}
		}
		return slope, -min(s*adv, clipped*adv)
	}
}

// gmpo stops tokens at log-ratios of 0.11.
func gmpo(adv float64, d []float64) (slope []float64, loss float64) {
	slope, c := make([]float64, len(d)), make([]float64, len(d))
	for i, x := range d {
		if c[i] = x; math.Copysign(1, adv)*x > 0.11 {
			c[i] = math.Copysign(0.11, adv)
		} else {
			slope[i] = 1
		}
	}
	s := math.Exp(meanOf(c))
	for i := range slope {
		slope[i] *= -adv * s
	}
	return slope, -adv * s
}

// The gradients and losses of several steps show the bounds of a surrogate of one ratio for a row.
func TestGradientsShowRatiosOfRows(t *testing.T) {
	for _, tt := range []struct {
		of   func(adv float64, d []float64) ([]float64, float64)
		want map[string]string
	}{
		{gspo, map[string]string{"ratio.level": "seq_mean", "clip.low": "0.031", "clip.high": "0.043"}},
		{gmpo, map[string]string{"loss.kind": "gmpo", "clip.low": "0.11", "clip.high": "0.11"}},
		{gspoUpTo(1e9, 0.043), map[string]string{"ratio.level": "seq_mean", "clip.high": "0.043"}},
		{gspoUpTo(0.031, 1e9), map[string]string{"ratio.level": "seq_mean", "clip.low": "0.031"}},
	} {
		var s RowSurrogate
		for _, b := range rowSurrogates(tt.of) {
			s.Add(b)
		}
		shown := s.Changes(&convention.Set{})
		require.NotEmpty(t, shown)
		require.Equal(t, tt.want, texts(shown[0]))
	}
}

// Gradients of tokens with ratios of their own show no ratio of rows, in whichever step.
func TestGradientsOfTokensShowNoRatioOfRows(t *testing.T) {
	var s RowSurrogate
	for _, b := range rowSurrogates(gspo) {
		s.Add(b)
	}
	s.Add(gradientOf(5, 0.1, func(float64, float64) float64 { return 0 }))
	require.Empty(t, s.Changes(&convention.Set{}))
}

func TestShortDecimals(t *testing.T) {
	require.Equal(t, []float64{0.03, 0.04, 0.025, 0.026}, shortDecimals(0.0245, 0.0405)[:4])
	require.Empty(t, shortDecimals(0.0311, 0.0319))
	require.Contains(t, shortDecimals(0, 0.25), 0.2)
}
