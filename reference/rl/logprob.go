package rl

import (
	"cmp"
	"math"
)

// LogProbOptions scales logits before the softmax. The zero value leaves them as they are.
type LogProbOptions struct {
	Temperature float64 // logp.temperature: logits are divided by Temperature + TempEps; 0 means 1
	TempEps     float64 // logp.temp_eps: TRL PPO 1e-7, others 0
}

// divisor is what logits are divided by.
func (o *LogProbOptions) divisor() float64 {
	t := cmp.Or(o.Temperature, 1)
	return t + o.TempEps
}

// needLogits panics unless x holds n rows of vocab logits.
func needLogits(x []float64, n, vocab int) {
	need(vocab > 0 && len(x) == n*vocab, badLength)
}

// softmaxSum returns the largest of x/t and S = Σ exp(x/t − max); ln Σ exp(x/t) is max + ln S.
func softmaxSum(x []float64, t float64) (top, sum float64) {
	top = math.Inf(-1)
	for _, v := range x {
		top = max(top, v/t)
	}
	for _, v := range x {
		sum += math.Exp(v/t - top)
	}
	return top, sum
}

// LogProbs stores in dst, of length N, the log-probability of token ids[n] under row n of logits, N×vocab, with
// z = logits/(Temperature + TempEps):
//
//	lp = z_id − ln Σ_j exp(z_j), evaluated as (z_id − max z) − ln Σ exp(z_j − max z)
//
// A logit −Inf is a token of probability 0; a row with +Inf, NaN or only −Inf gives NaN. LogProbs panics if an id is
// outside 0 … vocab−1. A nil dst is allocated.
//
// Source: the golden section logprob_entropy pins verl 0.9.1, OpenRLHF 0.11.2 and TRL 1.16.0.
func LogProbs(dst, logits []float64, ids []int, vocab int, o LogProbOptions) []float64 {
	needLogits(logits, len(ids), vocab)
	needIDs(ids, vocab)
	dst = output(dst, len(ids))
	t := o.divisor()
	for n, id := range ids {
		x := logits[n*vocab : (n+1)*vocab]
		top, sum := softmaxSum(x, t)
		dst[n] = (x[id]/t - top) - math.Log(sum)
	}
	return dst
}

// LogProbsBackward adds to dlogits, N×vocab, the gradient of a loss with the gradient dlp with respect to the log-probs:
//
//	∂L/∂logits_j = ∂L/∂lp·(1[j = id] − p_j)/(Temperature + TempEps)
//
// Rows with dlp 0 stay as they are. A nil dlogits is allocated as zeros.
func LogProbsBackward(dlogits, dlp, logits []float64, ids []int, vocab int, o LogProbOptions) []float64 {
	needLogits(logits, len(ids), vocab)
	needIDs(ids, vocab)
	need(len(dlp) == len(ids), badLength)
	dlogits = output(dlogits, len(logits))
	t := o.divisor()
	for n, id := range ids {
		if dlp[n] == 0 {
			continue
		}
		x, dx := logits[n*vocab:(n+1)*vocab], dlogits[n*vocab:(n+1)*vocab]
		top, sum := softmaxSum(x, t)
		g := dlp[n] / t
		for j, v := range x {
			dx[j] -= float64(g * (math.Exp(v/t-top) / sum))
		}
		dx[id] += g
	}
	return dlogits
}

// needIDs panics unless every id is in the vocabulary.
func needIDs(ids []int, vocab int) {
	for _, id := range ids {
		need(0 <= id && id < vocab, "rl: token id outside the vocabulary")
	}
}

// SumPiSquared stores in dst, of length N, Σ_j p_j² of every row of logits, N×vocab, as verl's optimal token baseline needs
// it. A nil dst is allocated.
//
// Source: verl 0.9.1 calculate_sum_pi_squared_from_logits, pinned by the golden section logprob_entropy.
func SumPiSquared(dst, logits []float64, vocab int, o LogProbOptions) []float64 {
	need(vocab > 0 && len(logits)%vocab == 0, badLength)
	dst = output(dst, len(logits)/vocab)
	t := o.divisor()
	for n := range dst {
		x := logits[n*vocab : (n+1)*vocab]
		top, sum := softmaxSum(x, t)
		var s float64
		for _, v := range x {
			p := math.Exp(v/t-top) / sum
			s += float64(p * p)
		}
		dst[n] = s
	}
	return dst
}
