// Package sampling turns the logits of the next token into the distribution that it is drawn from.
package sampling

import (
	"cmp"
	"math"
	"slices"
)

// Options are what a distribution is made with. The zero value is greedy.
type Options struct {
	Temperature float64 // τ; 0: greedy, all mass on the largest logit
	TopK        int     // keep the k largest logits, and those equal to the k-th; 0 keeps all
	TopP        float64 // keep the most probable tokens up to this mass, in (0, 1); 0 and 1 keep all
}

// Distribution stores in p the probabilities of the V tokens with the given logits, in this order:
//
//	z = logits/τ
//	top-k  z_i ← −∞ where z_i is below the k-th largest
//	top-p  q = softmax(z); in increasing order of z, z_i ← −∞ where the sum of q up to and with i is at most 1 − topP;
//	       the largest stays
//	p = softmax(z)
//
// Of equal logits the one with the smaller index comes first in the order of top-p, and is the greedy choice. A logit of −∞
// has the probability 0. It returns false, and p holds NaN, if a logit is NaN or +∞ or all are −∞. p and logits may be the
// same slice. It panics if their lengths differ or are 0, or an option is out of range.
//
// The order and the thresholds are those of the warpers of transformers@5.23.0 (generation/logits_process.py,
// GenerationMixin._get_logits_processor); top-p is the nucleus of Holtzman et al. 2020 (https://arxiv.org/abs/1904.09751),
// Section 3.1.
func Distribution(p, logits []float64, o Options) bool {
	switch {
	case len(p) != len(logits) || len(p) == 0:
		panic("sampling: p and logits of different lengths, or empty")
	case !(o.Temperature >= 0) || math.IsInf(o.Temperature, 0):
		panic("sampling: temperature out of range")
	case o.TopK < 0:
		panic("sampling: negative top-k")
	case !(o.TopP >= 0 && o.TopP <= 1):
		panic("sampling: top-p out of range")
	}
	best := 0
	for i, z := range logits {
		if math.IsNaN(z) || math.IsInf(z, 1) {
			return undefined(p)
		}
		if z > logits[best] {
			best = i
		}
	}
	if math.IsInf(logits[best], -1) {
		return undefined(p)
	}
	if o.Temperature == 0 {
		clear(p)
		p[best] = 1
		return true
	}
	// Which logit is larger is decided by the logits: a difference may not survive what comes next.
	raw := slices.Clone(logits)
	top := logits[best]
	for i, z := range raw {
		// before the division, so that a small temperature does not turn a difference into ∞ − ∞
		p[i] = (z - top) / o.Temperature
	}
	if o.TopK > 0 && o.TopK < len(p) {
		keepTopK(p, raw, o.TopK)
	}
	if o.TopP > 0 && o.TopP < 1 {
		keepTopP(p, raw, o.TopP)
	}
	softmax(p, p)
	return true
}

func undefined(p []float64) bool {
	for i := range p {
		p[i] = math.NaN()
	}
	return false
}

func keepTopK(z, logits []float64, k int) {
	sorted := slices.Clone(logits)
	slices.Sort(sorted)
	least := sorted[len(sorted)-k]
	for i, v := range logits {
		if v < least {
			z[i] = math.Inf(-1)
		}
	}
}

func keepTopP(z, logits []float64, mass float64) {
	q := make([]float64, len(z))
	softmax(q, z)
	order := make([]int, len(z))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(logits[i], logits[j]) })
	sum := 0.0
	for _, i := range order[:len(order)-1] {
		if sum += q[i]; sum > 1-mass {
			break
		}
		z[i] = math.Inf(-1)
	}
}

// softmax stores exp(z)/Σexp(z) in p. The largest z is 0.
func softmax(p, z []float64) {
	sum := 0.0
	for i, v := range z {
		p[i] = math.Exp(v)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
}

// Draw returns the token at quantile u, in [0, 1), of the distribution p: the first whose cumulative probability, in the order
// of the indices, exceeds u·Σp. A token of probability 0 is never drawn. It panics if p has no mass.
func Draw(p []float64, u float64) int {
	sum := 0.0
	for _, v := range p {
		sum += v
	}
	if !(sum > 0) {
		panic("sampling: a distribution without mass")
	}
	bar, acc, last := float64(u*sum), 0.0, 0
	for i, v := range p {
		if v == 0 {
			continue
		}
		last = i
		if acc += v; acc > bar {
			break
		}
	}
	return last
}
