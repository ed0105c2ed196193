package rl

import "math"

// TISLevel is the set of tokens that share one engine-mismatch weight. It is the option tis.level.
type TISLevel int

const (
	TISNone   TISLevel = iota // every weight 1
	TISToken                  // exp(old − gen) of the token
	TISSeqSum                 // exp(Σ over the row): TRL sequence_*, verl sequence, NeMo-RL
	TISSeqGeo                 // exp(mean over the row): OpenRLHF seq, open-instruct
)

var tisLevels = enumeration[TISLevel]("tis.level", "none", "token", "seq_sum", "seq_geo")

func (l TISLevel) String() string { return tisLevels.text(l) }

// ParseTISLevel reads a value of tis.level.
func ParseTISLevel(s string) (TISLevel, error) { return tisLevels.parse(s) }

// TISRule is what becomes of a weight outside its bounds. It is the option tis.rule. With x the statistic (see [TISGate])
// and w the weight of the level:
type TISRule int

const (
	TISTruncateUpper TISRule = iota // min(x, High): verl
	TISClamp                        // clip(x, Low, High): TRL *_truncate, OpenRLHF clip, NeMo-RL tis
	TISZeroOutside                  // w where Low ≤ x ≤ High, else 0: TRL *_mask, OpenRLHF token mask (icepop)
	TISSeqFilter                    // the token's exp(old − gen) where Low ≤ x ≤ High, else 0: OpenRLHF seq mask
)

var tisRules = enumeration[TISRule]("tis.rule", "truncate_upper", "clamp", "zero_outside", "seq_filter")

func (r TISRule) String() string { return tisRules.text(r) }

// ParseTISRule reads a value of tis.rule.
func ParseTISRule(s string) (TISRule, error) { return tisRules.parse(s) }

// TISGate is the statistic x that the bounds judge (OpenRLHF's is_correction_gating). A sequence level takes the mean of the
// token's divergence over the row.
type TISGate int

const (
	TISRatio    TISGate = iota // the weight itself
	TISBinaryKL                // p·ln(p/q) + (1−p)·ln((1−p)/(1−q)), p = e^gen, q = e^old, both clipped to [1e-6, 1 − 1e-6]
	TISTV                      // |p − q|
)

var tisGates = enumeration[TISGate]("tis.gate", "ratio", "binary_kl", "tv")

func (g TISGate) String() string { return tisGates.text(g) }

// ParseTISGate reads a name of OpenRLHF's gating.
func ParseTISGate(s string) (TISGate, error) { return tisGates.parse(s) }

// TISOptions selects the weights between inference engine and trainer. The zero value is 1 everywhere.
type TISOptions struct {
	Level     TISLevel // tis.level
	Rule      TISRule  // tis.rule
	Gate      TISGate
	Low, High float64 // tis.low, tis.high: bounds of the statistic; truncate_upper reads High only

	LogClamp  float64 // tis.log_clamp: bounds the log-ratio of the level in nats, ±; 0 means none. verl 20, open-instruct 10
	Normalize bool    // tis.normalize: divide by the mean of the whole batch (verl's rollout_is_batch_normalize)
}

// ISWeights stores in dst, rows×cols, the weight by which the loss of every token is multiplied because the inference engine
// gave the sampled tokens the log-probs gen, the trainer old. Weights are constants: no gradient passes them. Masked cells
// hold 0 and are not read. A nil mask takes every cell, a nil dst is allocated; dst may alias old or gen.
//
//	token    w = exp(clamp(old − gen))
//	seq_sum  w = exp(clamp(Σ (old − gen)·m)),   seq_geo  w = exp(clamp(Σ (old − gen)·m / n))
//
// then the rule. A statistic of NaN is outside its bounds. Normalize divides by the mean over the true cells, at the level of sequences by
// that over the rows with a token of the mean of each, and not at all where it is at most 1e-8.
//
// Source: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy Training; OpenRLHF 0.11.2 PolicyLoss,
// pinned by the golden section policy_loss; verl 0.9.1 rollout_corr_helper, TRL 1.16.0.
func ISWeights(dst, old, gen []float64, mask []bool, rows, cols int, o TISOptions) []float64 {
	checkGrid(rows, cols, mask, old, gen)
	need(tisLevels.has(o.Level) && tisRules.has(o.Rule) &&
		tisGates.has(o.Gate), badOption)
	dst = output(dst, rows*cols)
	var total, count float64
	for r := range rows {
		var sum, stat, n, own float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask == nil || mask[i] {
				n++
				sum += old[i] - gen[i]
				stat += o.divergence(old[i], gen[i])
			}
		}
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask != nil && !mask[i] {
				dst[i] = 0
				continue
			}
			token := math.Exp(o.bounded(old[i] - gen[i]))
			w, x := token, o.divergence(old[i], gen[i])
			switch o.Level {
			case TISNone:
				w = 1
			case TISSeqSum:
				w, x = math.Exp(o.bounded(sum)), stat/n
			case TISSeqGeo:
				w, x = math.Exp(o.bounded(sum/n)), stat/n
			}
			dst[i] = o.weigh(w, x, token)
			own += dst[i]
		}
		switch {
		case n == 0:
		case o.bySequence():
			total, count = total+own/n, count+1
		default:
			total, count = total+own, count+n
		}
	}
	if mean := total / count; o.Normalize && !(mean <= 1e-8) {
		for i := range dst {
			if mask == nil || mask[i] {
				dst[i] /= mean
			}
		}
	}
	return dst
}

// bySequence reports whether all tokens of a row have the weight of the row, so that Normalize counts rows.
func (o *TISOptions) bySequence() bool { return o.Level == TISSeqSum || o.Level == TISSeqGeo }

// weigh applies the rule to the weight w of the level, the divergence x and the token's own weight.
func (o *TISOptions) weigh(w, x, token float64) float64 {
	if o.Level == TISNone {
		return w
	}
	if o.Gate == TISRatio {
		x = w
	}
	inside := o.Low <= x && x <= o.High
	switch {
	case o.Rule == TISTruncateUpper:
		return min(x, o.High)
	case o.Rule == TISClamp:
		return max(min(x, o.High), o.Low)
	case !inside:
		return 0
	case o.Rule == TISSeqFilter:
		return token
	}
	return w
}

// bounded clamps a log-ratio.
func (o *TISOptions) bounded(d float64) float64 {
	if o.LogClamp > 0 {
		return max(min(d, o.LogClamp), -o.LogClamp)
	}
	return d
}

// divergence is the token's statistic for gates other than ratio.
func (o *TISOptions) divergence(old, gen float64) float64 {
	if o.Gate == TISRatio {
		return 0
	}
	p := max(min(math.Exp(gen), 1-1e-6), 1e-6)
	q := max(min(math.Exp(old), 1-1e-6), 1e-6)
	if o.Gate == TISTV {
		return math.Abs(p - q)
	}
	return float64(p*math.Log(p/q)) + float64((1-p)*math.Log((1-p)/(1-q)))
}

// OffPolicyMask stores in dst, rows×cols, 0 in the cells with A < 0 of a row whose mean of old − lp over the true cells, an
// estimate of KL(old‖π), exceeds threshold, else 1. It multiplies the policy term like an importance weight. A nil mask
// takes every cell, a nil dst is allocated.
//
// Source: DeepSeek-V3.2, section 3.1; TRL 1.16.0 off_policy_mask_threshold, pinned by the golden section policy_loss.
func OffPolicyMask(dst, lp, old, adv []float64, mask []bool, rows, cols int, threshold float64) []float64 {
	checkGrid(rows, cols, mask, lp, old, adv)
	dst = output(dst, rows*cols)
	for r := range rows {
		var sum, n float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask == nil || mask[i] {
				sum += old[i] - lp[i]
				n++
			}
		}
		far := !(sum/max(n, 1) <= threshold)
		for i := r * cols; i < (r+1)*cols; i++ {
			a := adv[i]
			dst[i] = 1
			if far && !(a >= 0) {
				dst[i] = 0
			}
		}
	}
	return dst
}
