package rl

import (
	"math"
	"slices"
)

// EntropyLogits is what an entropy is taken of. It is the option entropy.logits.
type EntropyLogits int

const (
	EntropyScaled     EntropyLogits = iota // logits divided by the temperature: TRL, verl, open-instruct
	EntropyUnscaled                        // the raw logits: OpenRLHF, ppo-gsm8k
	EntropyMonteCarlo                      // sampled tokens only, [MonteCarloEntropy]: NeMo-RL
)

var entropyLogits = enumeration[EntropyLogits]("entropy.logits", "scaled", "unscaled", "monte_carlo")

func (e EntropyLogits) String() string { return entropyLogits.text(e) }

// ParseEntropyLogits reads a value of entropy.logits.
func ParseEntropyLogits(s string) (EntropyLogits, error) { return entropyLogits.parse(s) }

// EntropyOptions selects the entropy over the vocabulary; for entropy.logits unscaled leave LogProbOptions zero.
type EntropyOptions struct {
	LogProbOptions

	// ZeroTimesInf computes Σ p·z with the product 0·(−∞) = NaN, so that one logit −Inf makes the entropy of its row and all
	// its gradients NaN, as every framework does; else a token of probability 0 adds 0.
	ZeroTimesInf bool
}

// Entropy stores in dst, of length N, the entropy in nats of every row of logits, N×vocab, with p = softmax(z):
//
//	H = ln Σ_j exp(z_j) − Σ_j p_j·z_j = −Σ_j p_j·ln p_j
//
// evaluated with z − max z for z. A nil dst is allocated.
//
// Source: the golden section logprob_entropy pins verl 0.9.1, OpenRLHF 0.11.2 and TRL 1.16.0.
func Entropy(dst, logits []float64, vocab int, o EntropyOptions) []float64 {
	need(vocab > 0 && len(logits)%vocab == 0, badLength)
	dst = output(dst, len(logits)/vocab)
	for n := range dst {
		_, _, dst[n] = o.row(logits[n*vocab : (n+1)*vocab])
	}
	return dst
}

// row returns max z, S = Σ exp(z − max z) and the entropy of one row.
func (o *EntropyOptions) row(x []float64) (top, sum, h float64) {
	t := o.divisor()
	top, sum = softmaxSum(x, t)
	for _, v := range x {
		d := v/t - top
		if math.IsInf(d, -1) && !o.ZeroTimesInf {
			continue
		}
		h -= float64(math.Exp(d) / sum * d)
	}
	return top, sum, h + math.Log(sum)
}

// EntropyBackward adds to dlogits, N×vocab, the gradient of a loss with the gradient dh with respect to the entropies:
//
//	∂L/∂logits_j = −∂L/∂H·p_j·(ln p_j + H)/(Temperature + TempEps)
//
// Rows with dh 0 stay as they are. A nil dlogits is allocated as zeros.
func EntropyBackward(dlogits, dh, logits []float64, vocab int, o EntropyOptions) []float64 {
	needLogits(logits, len(dh), vocab)
	dlogits = output(dlogits, len(logits))
	t := o.divisor()
	for n, g := range dh {
		if g == 0 {
			continue
		}
		x, dx := logits[n*vocab:(n+1)*vocab], dlogits[n*vocab:(n+1)*vocab]
		top, sum, h := o.row(x)
		logSum := math.Log(sum)
		for j, v := range x {
			d := v/t - top
			if math.IsInf(d, -1) && !o.ZeroTimesInf {
				continue
			}
			dx[j] -= float64(g / t * (math.Exp(d) / sum) * (d - logSum + h))
		}
	}
	return dlogits
}

// EntropyBonus returns the term −coef·Agg(H) that an entropy coefficient (entropy.coef) adds to the loss, and stores in dh,
// rows×cols, its derivative with respect to the entropies. TRL takes the token mean of the micro-batch, whatever the
// aggregation of its policy loss.
//
// Source: TRL 1.16.0 entropy_coef, pinned by the golden section policy_loss.
func EntropyBonus(dh, entropy []float64, mask []bool, rows, cols int, coef float64, o AggOptions) (loss float64, d []float64, err error) {
	loss, dh, err = Aggregate(dh, entropy, mask, rows, cols, o)
	for i := range dh {
		dh[i] = float64(-coef * dh[i])
	}
	return float64(-coef * loss), dh, err
}

// MonteCarloEntropy returns the estimate −Σ exp(lp − gen)·lp·m/(Σm + eps) of the entropy from sampled tokens: the weight
// makes up for sampling under gen. It is a metric, NeMo-RL's approx_entropy, with eps 1e-8. NaN where Σm + eps is 0; a nil
// mask takes every cell.
func MonteCarloEntropy(lp, gen []float64, mask []bool, eps float64) float64 {
	need(len(lp) == len(gen) && (mask == nil || len(mask) == len(lp)), badLength)
	var sum, n float64
	for i, x := range lp {
		if mask == nil || mask[i] {
			n++
			sum -= float64(math.Exp(x-gen[i]) * x)
		}
	}
	return sum / (n + eps)
}

// HighEntropyMask stores in dst 1 for the true cells whose entropy is at least the (1 − top)-quantile of all true cells,
// else 0. The quantile interpolates linearly between neighbours, as torch.quantile does. A nil mask takes every cell, a nil
// dst is allocated. It multiplies the policy term like an importance weight.
//
// Source: Wang et al. 2025, Beyond the 80/20 Rule; TRL 1.16.0 top_entropy_quantile, which takes the quantile over the
// entropies of all processes, in float32; pinned by the golden section policy_loss.
func HighEntropyMask(dst, entropy []float64, mask []bool, top float64) []float64 {
	need(mask == nil || len(mask) == len(entropy), badLength)
	need(0 <= top && top <= 1, badOption)
	dst = output(dst, len(entropy))
	kept := make([]float64, 0, len(entropy))
	for i, h := range entropy {
		if mask == nil || mask[i] {
			kept = append(kept, h)
		}
	}
	threshold := math.NaN()
	if len(kept) > 0 {
		slices.Sort(kept)
		at := float64(float64(len(kept)-1) * (1 - top))
		lo := int(at)
		hi := min(lo+1, len(kept)-1)
		threshold = kept[lo] + float64((at-float64(lo))*(kept[hi]-kept[lo]))
	}
	for i, h := range entropy {
		dst[i] = 0
		if h >= threshold && (mask == nil || mask[i]) {
			dst[i] = 1
		}
	}
	return dst
}
