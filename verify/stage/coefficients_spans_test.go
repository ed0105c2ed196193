package stage

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
)

// remade is the run of eight files with losses that of makes of each batch and of the one beside it, of which each odd step has fewer tokens.
func remade(of func(b, beside *dump.Batch) float64) *Losses {
	list := boundBatches(1, true, false, func(boundToken) float64 { return 0 })
	for s, b := range list {
		for i := range b.Mask {
			b.Mask[i] = b.Mask[i] && (s%2 == 0 || i%16 < 9)
		}
	}
	l := &Losses{}
	for s, b := range list {
		b.Tensors["loss"].Data[0] = float64(float32(of(b, list[s^1])))
		l.Add(b)
	}
	return l
}

func formTexts(l *Losses) (has []string) {
	for _, change := range l.Form() {
		has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
	}
	return has
}

// tokensIn are the tokens of a batch.
func tokensIn(b *dump.Batch) (n float64) {
	for _, m := range b.Mask {
		if m {
			n++
		}
	}
	return n
}

// TestBoundsOfAGenerationBatchAreSolved divides sums over tokens by half the tokens of two steps, with weights of the engine and a KL times the ratio (TRL 1.16.0,
// GRPOTrainer, loss_type dapo).
func TestBoundsOfAGenerationBatchAreSolved(t *testing.T) {
	l := remade(func(b, beside *dump.Batch) (sum float64) {
		lp, old, ref, gen, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("logp_gen"), b.Token("advantages")
		for i, m := range b.Mask {
			if rho := math.Exp(lp[i] - old[i]); m {
				sum += math.Exp(old[i]-gen[i])*held(boundToken{adv: adv[i], rho: rho}, 0.2, 0.2, math.Inf(1)) + 0.03*rho*k3(lp[i]-ref[i])
			}
		}
		return 2 * sum / (tokensIn(b) + tokensIn(beside))
	})
	require.Subset(t, formTexts(l), []string{"clip.low=0.2", "clip.high=0.2", "tis.level=token", "tis.high=none", "kl.kind=k3", "kl.grad=is_corrected"})
	require.Equal(t, 2, l.Generation())
	require.InDelta(t, 0.03, l.Coefficients()["kl.beta"], 0)
}

// TestBoundsOfGeometricMeansAreSolved takes losses of rows with the geometric mean of bounded ratios (verl 0.9.1, compute_policy_loss_geo_mean).
func TestBoundsOfGeometricMeansAreSolved(t *testing.T) {
	l := remade(func(b, _ *dump.Batch) (loss float64) {
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")
		for r := range b.Rows {
			var sum, n float64
			for i := r * b.Cols; i < (r+1)*b.Cols && b.Mask[i]; i++ {
				d := lp[i] - old[i]
				if n++; adv[r*b.Cols] > 0 {
					sum += min(d, 0.12)
				} else {
					sum += max(d, -0.09)
				}
			}
			loss -= adv[r*b.Cols] * math.Exp(sum/n) / float64(b.Rows)
		}
		return loss
	})
	require.Equal(t, []string{"clip.low=0.09", "clip.high=0.12", "loss.kind=gmpo"}, formTexts(l))
}

// TestHugeRatiosTellNothing takes losses of no form, beside ratios of rows that a bound holds: what these would be without it is no size of the losses.
func TestHugeRatiosTellNothing(t *testing.T) {
	l := remade(func(b, _ *dump.Batch) float64 {
		for i, a := range b.Token("advantages") {
			b.Token("advantages")[i] = math.Abs(a)
			b.Token("logp_new")[i] = b.Token("logp_old")[i] + 2
		}
		return math.Sin(float64(7 * b.Meta.Step))
	})
	require.Empty(t, formTexts(l))
	require.Nil(t, l.fitted())
}

// TestBoundsOfAPlainLossComeBeforeUnboundedWeights reads the order of a search whose work is bounded.
func TestBoundsOfAPlainLossComeBeforeUnboundedWeights(t *testing.T) {
	at := func(weighted bool, uses ...int) int {
		return slices.IndexFunc(boundStages(true), func(s boundStage) bool {
			return s.kind == "" && (s.weights[0] != "") == weighted && slices.Equal(s.uses, uses)
		})
	}
	require.Less(t, at(false, paramLow, paramHigh, paramDual), at(true, paramLow, paramHigh))
	require.Less(t, at(true, paramBoth, paramCap), at(true, paramLow, paramHigh))
	require.Less(t, at(false, paramLow, paramHigh), at(true, paramBoth))
}
