package rl

import "math"

// This file holds the advantages of verl's other outcome estimators. All of them take rewards per sequence and groups as
// GroupAdvantage does, or rewards per token, and are pinned by the golden group_advantages (verl 0.9.1).

// Broadcast stores in dst, rows×cols, x[i] at the true cells of row i and 0 at the others: the advantage of a sequence as
// that of each of its tokens.
func Broadcast(dst, x []float64, mask []bool, rows, cols int) []float64 {
	need(rows >= 0 && cols >= 0 && len(x) == rows, badLength)
	need(mask == nil || len(mask) == rows*cols, badLength)
	dst = output(dst, rows*cols)
	for i, v := range x {
		for t := range cols {
			k := i*cols + t
			if mask == nil || mask[k] {
				dst[k] = v
			} else {
				dst[k] = 0
			}
		}
	}
	return dst
}

// PassKAdvantage stores in adv the advantage for the best of a group: the sample with the highest reward, the first of
// several, gets (r₍₁₎ − r₍₂₎)/(σ + eps), all others 0, where r₍₁₎ ≥ r₍₂₎ are the two highest rewards and σ has ddof 1. With
// scale false the difference is not divided. adv may be r. The error is ErrGroupOfOne.
//
// Source: compute_grpo_passk_outcome_advantage of verl 0.9.1, after Tang et al. 2025 (arXiv 2503.19595); ε is 1e-6
// there.
func PassKAdvantage(adv, r []float64, group []int, scale bool, eps float64) ([]float64, error) {
	starts, members := byGroup(group, len(r))
	adv = output(adv, len(r))
	var rewards []float64
	for g := range len(starts) - 1 {
		ids := members[starts[g]:starts[g+1]]
		if len(ids) == 0 {
			continue
		}
		if len(ids) == 1 {
			return nil, ErrGroupOfOne
		}
		rewards = rewards[:0]
		best := 0
		for k, i := range ids {
			rewards = append(rewards, r[i])
			if r[i] > rewards[best] {
				best = k
			}
		}
		second := math.Inf(-1)
		for k, v := range rewards {
			if k != best {
				second = max(second, v)
			}
		}
		a := rewards[best] - second
		if scale {
			_, std := meanStd(rewards, 1, false, -1)
			a /= std + eps
		}
		for k, i := range ids {
			adv[i] = 0
			if k == best {
				adv[i] = a
			}
		}
	}
	return adv, nil
}

// OPOAdvantage stores in adv r_i minus the length-weighted mean of the group, Σ len·r / Σ len: the baseline of least variance
// when every token's gradient has the same size. A group of one has baseline 0. adv may be r.
//
// It implements Hao et al. 2025 (arXiv 2505.23585) as compute_opo_outcome_advantage of verl 0.9.1.
func OPOAdvantage(adv, r, length []float64, group []int) []float64 {
	need(len(length) == len(r), badLength)
	starts, members := byGroup(group, len(r))
	adv = output(adv, len(r))
	for g := range len(starts) - 1 {
		ids := members[starts[g]:starts[g+1]]
		var sum, weight float64
		for _, i := range ids {
			sum += float64(r[i] * length[i])
			weight += length[i]
		}
		base := sum / weight
		if len(ids) == 1 {
			base = 0
		}
		for _, i := range ids {
			adv[i] = r[i] - base
		}
	}
	return adv
}

// GPGAdvantage stores in adv (r_i − μ_g)·N/max(1, N₊)/norm, where N is the number of rewards, N₊ that of those that are not
// 0, and μ_g the mean of the group, 0 for a group of one. adv may be r.
//
// It implements Chu et al. 2025 (arXiv 2504.02546) as compute_gpg_outcome_advantage of verl 0.9.1, where norm is f_norm = 1.
func GPGAdvantage(adv, r []float64, group []int, norm float64) []float64 {
	nonzero := 0
	for _, v := range r {
		if v != 0 {
			nonzero++
		}
	}
	alpha := float64(len(r)) / float64(max(nonzero, 1))
	adv, err := GroupAdvantage(adv, r, group, GroupOptions{Singleton: SingletonRaw})
	if err != nil {
		panic(err) // SingletonRaw has no error
	}
	for i, a := range adv {
		adv[i] = float64(alpha*a) / norm
	}
	return adv
}

// ReMaxAdvantage stores in adv and ret the advantages and returns per token, rows×cols: the return is the sum of the rewards
// from the token on, and baseline holds for each row the reward of the greedy response, which is subtracted at true cells.
// adv may be reward.
//
// It implements Li et al. 2024 (arXiv 2310.10505) as compute_remax_outcome_advantage of verl 0.9.1, where masked cells keep
// the return of the next true cell as advantage.
func ReMaxAdvantage(adv, ret, reward, baseline []float64, mask []bool, rows, cols int) (advantages, returns []float64) {
	needMatrix(reward, mask, rows, cols)
	need(len(baseline) == rows, badLength)
	adv, ret = output(adv, len(reward)), output(ret, len(reward))
	RewardToGo(ret, reward, mask, rows, cols, 1, HoleCarry)
	for i := range rows {
		for t := range cols {
			k := i*cols + t
			adv[k] = ret[k]
			if mask == nil || mask[k] {
				adv[k] -= baseline[i]
			}
		}
	}
	return adv, ret
}

// OptimalTokenBaseline stores in adv, rows×cols, the return-to-go of each token minus the baseline of its column in its
// group,
//
//	b_t = Σ_i G_it·W_it·m_it / (Σ_i W_it·m_it + eps),   W_it = Σ_{s≤t} (1 − 2π_s + q_s)·w_s·m_s,   π_s = exp(old_s)
//
// where G is the sum of the rewards from the token on and W the squared norm of the score function of the response so far,
// with q_s the sum of the squared probabilities at step s and w_s, nil for 1, the squared importance weight of an engine's token.
// Masked cells are 0. A group of one has baseline 0; so has the longest response of a group, if it is the only one of its length, from the
// column on that the second length names: it would be compared with itself only. Lengths are numbers of true cells, also of rows with holes, whose cells then reach further than their length.
//
// Source: compute_optimal_token_baseline_advantage of verl 0.9.1 with handle_zero_tail, ε = 1e-8. adv must not be an input.
func OptimalTokenBaseline(adv, reward, old, sumPiSquared, weight []float64, mask []bool, group []int, rows, cols int, eps float64) []float64 {
	needMatrix(reward, mask, rows, cols)
	need(weight == nil || len(weight) == len(reward), badLength)
	need(len(old) == len(reward) && len(sumPiSquared) == len(reward), badLength)
	starts, members := byGroup(group, rows)
	adv = RewardToGo(adv, reward, mask, rows, cols, 1, HoleCarry) // G
	Remask(adv, adv, mask)
	norm := make([]float64, len(reward)) // W
	for i := range rows {
		var w float64
		for t := range cols {
			k := i*cols + t
			if mask == nil || mask[k] {
				x := 1 - float64(2*math.Exp(old[k])) + sumPiSquared[k]
				if weight != nil {
					x *= weight[k]
				}
				w += x
			}
			norm[k] = w
		}
	}
	for g := range len(starts) - 1 {
		ids := members[starts[g]:starts[g+1]]
		if len(ids) < 2 {
			continue
		}
		longest, first, second := -1, -1.0, -1.0 // the first of the longest rows, its length and the second length
		for _, i := range ids {
			l := count(cols, row(mask, i, cols))
			if l > first {
				longest, first, second = i, l, first
			} else {
				second = max(second, l)
			}
		}
		for t := range cols {
			var sum, weight float64
			for _, i := range ids {
				if k := i*cols + t; mask == nil || mask[k] {
					sum += float64(adv[k] * norm[k])
					weight += norm[k]
				}
			}
			base := sum / (weight + eps)
			for _, i := range ids {
				if k := i*cols + t; (mask == nil || mask[k]) && !(i == longest && first > second && float64(t) >= second) {
					adv[k] -= base
				}
			}
		}
	}
	return adv
}

// ReinforceMode is how REINFORCE++ makes token advantages (rfpp.mode).
type ReinforceMode int

const (
	ReturnToGo      ReinforceMode = iota // the discounted sum of the rewards from the token on: verl, OpenRLHF
	BroadcastReward                      // "broadcast": the sum of the rewards at every token: NeMo-RL
)

var reinforceModes = enumeration[ReinforceMode]("rfpp.mode", "return_to_go", "broadcast")

func (m ReinforceMode) String() string { return reinforceModes.text(m) }

// ParseReinforceMode reads a value of rfpp.mode.
func ParseReinforceMode(s string) (ReinforceMode, error) { return reinforceModes.parse(s) }

// ReinforcePlusPlus stores in adv and ret, rows×cols, the advantages and returns of REINFORCE++: the returns that mode
// names of the token rewards, and these whitened as w says. gamma and hole are for ReturnToGo, see RewardToGo. adv and ret
// must differ; either may be reward.
//
// verl 0.9.1 carries across holes and whitens with ddof 1 and 1e-8 inside the root; OpenRLHF has zero_step, and ddof 0 with
// 1e-8 as floor; NeMo-RL broadcasts, and whitens as OpenRLHF. Hu 2025 (arXiv 2501.03262); golden group_advantages and gae.
func ReinforcePlusPlus(adv, ret, reward []float64, mask []bool, rows, cols int, mode ReinforceMode, gamma float64, hole Hole, w WhitenOptions) (advantages, returns []float64, err error) {
	needMatrix(reward, mask, rows, cols)
	ret = output(ret, len(reward))
	switch mode {
	case ReturnToGo:
		RewardToGo(ret, reward, mask, rows, cols, gamma, hole)
	case BroadcastReward:
		Broadcast(ret, RowSums(nil, reward, mask, rows, cols), mask, rows, cols)
	default:
		panic(badOption)
	}
	adv, err = Whiten(adv, ret, mask, rows, cols, w)
	if err != nil {
		return nil, nil, err
	}
	return adv, ret, nil
}
