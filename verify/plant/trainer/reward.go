package trainer

import (
	"math"
	"strings"

	"plumbline/internal/rng"
)

// reward turns scores into the rewards of rows and tokens: weights, the rule for a missing EOS, clipping, the KL term.
func (r *run[F]) reward() {
	r.rewards, r.sequence = make([]F, r.rows*r.functions), make([]F, r.rows)
	for i, s := range r.scores {
		if r.plant == "SCORES-CONSTANT" {
			s = 0.5
		}
		r.rewards[i] = r.num(s)
	}
	for i := range r.rows {
		s := r.weighted(i, r.plant != "REWARD-WEIGHTS-IGNORED")
		if r.plant == "SCORE-ZERO-MISSING" && s == 0 {
			s = -1
		}
		s = r.ended(s, i)
		if r.o.rewardClip == "before_baseline" || r.o.rewardClip == "after_baseline" && r.tokenwise() {
			s = r.clipReward(s)
		}
		if r.o.klPlace == "sequence_reward_before_baseline" && r.o.beta != 0 && r.plant != "KL-AFTER-BASELINE" {
			s = r.sub(s, r.mul(r.beta(), r.rowKL(i)))
		}
		r.sequence[i] = s
	}
	if r.tokenwise() {
		r.token = r.tokenRewards(r.sequence)
		if r.o.rewardsWhiten {
			bug := r.plant
			if strings.HasPrefix(bug, "WHITEN-") { // those sit where advantages are whitened
				r.plant = ""
			}
			r.token = r.whiten(r.token, "false_add_back")
			r.plant = bug
		}
	}
}

// tokenwise reports whether advantages come from the rewards of tokens.
func (r *run[F]) tokenwise() bool { return r.o.kind("gae", "rfpp", "remax", "optimal_token_baseline") }

// weighted returns the weighted sum of a row's rewards.
func (r *run[F]) weighted(row int, weights bool) F {
	if r.functions == 1 {
		return r.rewards[row]
	}
	terms := make([]F, r.functions)
	for f := range terms {
		terms[f] = r.rewards[row*r.functions+f]
		if weights {
			terms[f] = r.mul(r.num(r.weights[f]), terms[f])
		}
	}
	return r.sum(terms)
}

// ended applies the rule for responses without EOS.
func (r *run[F]) ended(s F, row int) F {
	finished := r.eosAt[row] >= 0
	switch r.plant {
	case "EOS-PENALTY-MISSING":
		return s
	case "EOS-INVERTED":
		finished = !finished
	}
	if finished || math.IsNaN(r.o.eosPenalty) {
		return s
	}
	p := r.num(r.o.eosPenalty)
	switch r.o.eosRule {
	case "subtract":
		return r.sub(s, p)
	case "replace":
		return p
	case "scale":
		if p < 0 {
			return p
		}
		return r.mul(s, p)
	}
	return s
}

func (r *run[F]) clipReward(s F) F {
	if r.plant == "REWARD-CLIP-MISSING" {
		return s
	}
	return clip(s, r.num(r.o.rewardLow), r.num(r.o.rewardHigh))
}

// rowKL returns the sum of the KL estimates of a row.
func (r *run[F]) rowKL(row int) F {
	return r.sum(picked(r.kl[row*r.cols:(row+1)*r.cols], r.mask[row*r.cols:(row+1)*r.cols]))
}

// tokenRewards puts scores where they belong and subtracts the KL term.
func (r *run[F]) tokenRewards(scores []F) []F {
	x := make([]F, r.cells())
	if r.o.scoreIndex == "" { // steps of an environment
		s := rng.New(r.seed, drawScores)
		for i := range x {
			x[i] = r.num(0.3 * s.Normal(uint64(i)))
		}
		return x
	}
	kl := (r.o.klPlace == "token_reward" || r.o.klPlace == "sequence_reward_after") && r.o.beta != 0
	for i := range r.rows {
		lo := i * r.cols
		if kl {
			for t := range r.cols {
				if r.counts(lo+t) || r.plant == "KL-PADS-IN-RETURNS" {
					x[lo+t] = -r.mul(r.beta(), r.kl[lo+t])
				}
			}
		}
		at := r.scoreAt(i)
		if at >= 0 && r.plant != "SCORE-LOST" {
			x[lo+at] = r.add(x[lo+at], scores[i])
		}
	}
	return x
}

// counts reports whether a cell is one of the tokens that count.
func (r *run[F]) counts(cell int) bool { return r.o.maskAll || r.mask[cell] }

// scoreAt returns the column of the score of a row, −1 if it has none.
func (r *run[F]) scoreAt(row int) int {
	_, last := ends(r.mask[row*r.cols : (row+1)*r.cols])
	if r.o.maskAll {
		last = r.cols - 1
	}
	if last < 0 {
		return -1
	}
	next := min(last+1, r.cols-1)
	shifted := r.plant == "SCORE-SHIFT"
	switch r.o.scoreIndex {
	case "last_column":
		return r.cols - 1
	case "eos_plus_1":
		if shifted {
			return last
		}
		return next
	case "eos":
		if e := r.eosAt[row]; e >= 0 {
			last = e
		}
	}
	if shifted {
		return min(last+1, r.cols-1)
	}
	return last
}
