package rl

import "math"

// NearZero is the bound below which the objective for masked language models calls all advantages, or all log-probs of
// sequences, zero: the two symptoms of a loss that is exactly 0.
const NearZero = 1e-8

// AdvScope is the set over which SequenceAdvantage takes the standard deviation.
type AdvScope int

const (
	AdvBatch AdvScope = iota // all samples of the batch, as the original has it
	AdvGroup                 // each group
)

var advScopes = enumeration[AdvScope]("adv_scope", "batch", "group")

func (s AdvScope) String() string { return advScopes.text(s) }

// ParseAdvScope reads a value of adv_scope.
func ParseAdvScope(s string) (AdvScope, error) { return advScopes.parse(s) }

// SequenceAdvantage stores in adv the advantages of the rewards r, of which each size neighbours are the samples of one
// input:
//
//	A = r − mean of the group,   then A ← (A − mean)/(σ + 1e-8) over the scope, ddof 1
//
// A group of equal rewards gets exactly 0. flat reports that max|r − mean| < NearZero, upon which all of adv is exactly 0:
// the judge gave every sample of a group the same reward. adv may be r. The error is ErrGroupOfOne for size 1.
//
// It is the advantage of this repository's GRPO for masked language models, after nanogpt-grpo at 1da2900, whose equal groups
// keep the rounding of their mean.
func SequenceAdvantage(adv, r []float64, size int, scope AdvScope) (a []float64, flat bool, err error) {
	need(scope == AdvBatch || scope == AdvGroup, badOption)
	group := GroupBlocks(len(r), size)
	centred, err := GroupAdvantage(nil, r, group, GroupOptions{ZeroStd: ZeroStdZero})
	if err != nil {
		return nil, false, err
	}
	flat = true
	for _, c := range centred {
		flat = flat && math.Abs(c) < NearZero
	}
	adv = output(adv, len(r))
	if flat {
		clear(adv)
		return adv, true, nil
	}
	o := GroupOptions{Scale: ScaleBatchStd, BatchCentred: true, DDof: 1, Eps: 1e-8, ZeroStd: ZeroStdZero}
	if scope == AdvGroup {
		o.Scale = ScaleGroupStd
	}
	adv, err = GroupAdvantage(adv, r, group, o)
	return adv, false, err
}

// ZeroStdRatio returns the share of the groups of size neighbours whose rewards have a standard deviation, ddof 1, below
// 1e-6: groups that teach nothing. It panics unless size divides the number of rewards, which must not be 0.
func ZeroStdRatio(r []float64, size int) float64 {
	need(size > 0 && len(r) > 0 && len(r)%size == 0, badGroup)
	zero := 0
	for lo := 0; lo < len(r); lo += size {
		if _, std := meanStd(r[lo:lo+size], 1, false, -1); std < 1e-6 {
			zero++
		}
	}
	return float64(zero) / float64(len(r)/size)
}

// SequenceOptions are the options of SequenceLoss.
type SequenceOptions struct {
	Beta float64   // kl_beta; 0.1 in the system
	KL   KLOptions // of each token: KLK3 in the system, KLK1 in the original
	// Mean divides the log-prob and the KL of a row by its number of tokens (loss_over masked_mean); by default they are
	// sums (masked_sum, the original).
	Mean bool
}

// SequenceResult is what SequenceLoss returns.
type SequenceResult struct {
	Policy float64 // pg_loss = −mean_i(S_i·A_i)
	KL     float64 // kl_penalty = β·mean_i(KL_i)
	Loss   float64 // their sum
	// SilentLogProbs: max|S| < NearZero, so that the policy term is 0 whatever the advantages are: no masked positions, or
	// log-probs of the wrong cells.
	SilentLogProbs bool
	Tokens         int       // the number of true cells
	DLogp          []float64 // ∂Loss/∂lp, rows×cols; 0 at masked cells
}

// SequenceLoss computes the loss of one update per sample, without ratio or clipping, on the log-probs lp of the sampled
// tokens, rows×cols:
//
//	Loss = −1/B·Σ_i S_i·A_i + β/B·Σ_i KL_i,   S_i = Σ_t lp·m,   KL_i = Σ_t kl(lp, ref)·m
//
// with one advantage per row, through which no gradient flows. Masked cells are never read. A row without a true cell adds
// 0 and counts in B = rows; without rows the loss is NaN. grad may be nil; it becomes DLogp.
//
// The sign of Policy says nothing, since the advantages have mean 0. k1 in the loss has expected gradient 0: it does not
// hold the policy near the reference (KLGrad).
//
// It is the objective of this repository's GRPO for masked language models, after nanogpt-grpo at 1da2900, which has k1; a
// test writes the same formula on the tape.
func SequenceLoss(grad, lp, ref, adv []float64, mask []bool, rows, cols int, o SequenceOptions) SequenceResult {
	checkGrid(rows, cols, mask, lp, ref)
	need(len(adv) == rows, badLength)
	res := SequenceResult{SilentLogProbs: true, DLogp: output(grad, rows*cols)}
	b := float64(rows)
	var policy, kl float64 // Σ_i S_i·A_i and Σ_i KL_i
	for i := range rows {
		n := count(cols, row(mask, i, cols))
		res.Tokens += int(n)
		c := 1.0
		if o.Mean && n > 0 {
			c = 1 / n
		}
		var s, d float64
		for k := i * cols; k < (i+1)*cols; k++ {
			res.DLogp[k] = 0
			if mask != nil && !mask[k] {
				continue
			}
			v, dv, dw := o.KL.at(lp[k]-ref[k], 1)
			s += lp[k]
			d += v
			res.DLogp[k] = float64(c/b) * (float64(o.Beta*(dv+dw)) - adv[i])
		}
		s, d = float64(c*s), float64(c*d)
		res.SilentLogProbs = res.SilentLogProbs && math.Abs(s) < NearZero
		policy += float64(s * adv[i])
		kl += d
	}
	res.Policy, res.KL = -policy/b, float64(o.Beta*kl)/b
	res.Loss = res.Policy + res.KL
	return res
}
