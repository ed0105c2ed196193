package rl

// ScoreIndex is the token that gets the score of a response (score.index).
type ScoreIndex int

const (
	ScoreLastResponse ScoreIndex = iota // the last true cell of the mask: verl, OpenRLHF, NeMo-RL
	ScoreEOS                            // the EOS token, or the last true cell of a row without one
	ScoreEOSPlus1                       // the cell after the last true one if the row has it, else the last one: TRL PPO
	ScoreLastColumn                     // the last column: OpenAI
)

var scoreIndexes = enumeration[ScoreIndex]("score.index", "last_response", "eos", "eos_plus_1", "last_column")

func (s ScoreIndex) String() string { return scoreIndexes.text(s) }

// ParseScoreIndex reads a value of score.index.
func ParseScoreIndex(s string) (ScoreIndex, error) { return scoreIndexes.parse(s) }

// EOSRule is what happens to the score of a response without EOS (eos.rule).
type EOSRule int

const (
	EOSNone     EOSRule = iota // nothing
	EOSSubtract                // score − penalty: TRL PPO missing_eos_penalty
	EOSReplace                 // penalty: OpenAI penalty_reward_value
	EOSScale                   // score·penalty if penalty ≥ 0, else penalty: OpenRLHF stop_properly_penalty_coef
)

var eosRules = enumeration[EOSRule]("eos.rule", "none", "subtract", "replace", "scale")

func (r EOSRule) String() string { return eosRules.text(r) }

// ParseEOSRule reads a value of eos.rule.
func ParseEOSRule(s string) (EOSRule, error) { return eosRules.parse(s) }

// MissingEOS stores in dst the scores, one per row, changed by the rule where finished is false. Whether a row is finished
// (eos.test) is for the caller to say. dst may be score.
func MissingEOS(dst, score []float64, finished []bool, rule EOSRule, penalty float64) []float64 {
	need(len(finished) == len(score), badLength)
	need(rule >= EOSNone && rule <= EOSScale, badOption)
	dst = output(dst, len(score))
	for i, s := range score {
		if !finished[i] {
			switch {
			case rule == EOSSubtract:
				s -= penalty
			case rule == EOSReplace, rule == EOSScale && penalty < 0:
				s = penalty
			case rule == EOSScale:
				s = float64(s * penalty)
			}
		}
		dst[i] = s
	}
	return dst
}

// ClipRewards stores in dst the rewards bounded to [lo, hi] (reward.clip); NaN stays NaN. dst may be reward.
func ClipRewards(dst, reward []float64, lo, hi float64) []float64 {
	need(lo <= hi, badOption)
	dst = output(dst, len(reward))
	for i, r := range reward {
		dst[i] = min(max(r, lo), hi)
	}
	return dst
}

// OverlongPenalty returns DAPO's soft penalty of a response of length tokens,
//
//	−factor · min(max(0, length − (maximum − buffer)), buffer) / buffer,
//
// which is added to its reward: 0 up to maximum − buffer tokens, then linear down to −factor at maximum. It panics unless
// 0 < buffer ≤ maximum.
//
// It implements Yu et al. 2025 (arXiv 2503.14476), Eq. 13, which gives −1 above the maximum, as do OpenRLHF and verl.
func OverlongPenalty(length, maximum, buffer int, factor float64) float64 {
	need(buffer > 0 && buffer <= maximum && length >= 0, badOption)
	over := min(max(0, length-(maximum-buffer)), buffer)
	if over == 0 {
		return 0
	}
	return -float64(float64(over) / float64(buffer) * factor)
}

// RewardOptions are the options of TokenRewards.
type RewardOptions struct {
	Beta  float64    // kl.beta, 0 (default) leaves the KL term out without reading it
	Index ScoreIndex // score.index

	// KLEverywhere subtracts β·kl at masked cells too, as OpenRLHF's compute_reward does, which relies on kl being 0 there.
	// By default it is subtracted at true cells only, and masked cells get 0.
	KLEverywhere bool

	// EmptyLastColumn puts the score of a row without a true cell into the last column, as OpenRLHF does by accident of
	// argmax. By default such a row gets no score. It is not asked for ScoreLastColumn.
	EmptyLastColumn bool
}

// TokenRewards stores in dst, rows×cols, the per-token rewards
//
//	r_t = −β·kl_t,  plus the row's score at the cell that o.Index names.
//
// score has one element per row. kl is rows×cols, nil for β = 0. eos holds for each row the column of its EOS token or −1;
// it is read by ScoreEOS only, and may be nil otherwise. A mask that is nil is true everywhere. dst may be kl.
//
// Source: the rollout statements of PPOTrainer.train in TRL 1.12.0, compute_reward in OpenRLHF 0.11.2, apply_kl_penalty in
// verl; goldens gae and kl.
func TokenRewards(dst, score, kl []float64, mask []bool, eos []int, rows, cols int, o RewardOptions) []float64 {
	need(rows >= 0 && cols >= 0 && len(score) == rows, badLength)
	need(mask == nil || len(mask) == rows*cols, badLength)
	need(kl == nil && o.Beta == 0 || len(kl) == rows*cols, badLength)
	need(o.Index >= ScoreLastResponse && o.Index <= ScoreLastColumn, badOption)
	need(o.Index != ScoreEOS || len(eos) == rows, badLength)
	if o.Index == ScoreEOS {
		for _, at := range eos {
			need(at < cols, badLength)
		}
	}
	dst = output(dst, rows*cols)
	for k := range dst {
		r := 0.0
		if o.Beta != 0 && (o.KLEverywhere || mask == nil || mask[k]) {
			r = -float64(o.Beta * kl[k])
		}
		dst[k] = r
	}
	for i := range rows {
		at := scoreColumn(row(mask, i, cols), cols, o)
		if o.Index == ScoreEOS && eos[i] >= 0 {
			at = eos[i]
		}
		if at >= 0 {
			dst[i*cols+at] += score[i]
		}
	}
	return dst
}

// scoreColumn returns the column of the score of a row, −1 for none; that of ScoreEOS is for a row without EOS.
func scoreColumn(mask []bool, cols int, o RewardOptions) int {
	last := lastTrue(mask, cols)
	switch {
	case o.Index == ScoreLastColumn, last < 0 && o.EmptyLastColumn:
		return cols - 1
	case last < 0:
		return -1
	case o.Index == ScoreEOSPlus1:
		return min(last+1, cols-1)
	}
	return last
}
