package golden

import (
	"math"

	"plumbline/reference/rl"
)

// scored reads the rewards of TRL's reward functions, [rows, functions], their weights, and the groups.
func scored(c *call) (reward, weight []float64, group []int) {
	reward, rows, functions := c.grid("rewards_per_func")
	weight = c.shaped("reward_weights", functions)
	size := c.size("num_generations", max(rows, 1))
	if c.ok() {
		group = rl.GroupBlocks(rows, size)
	}
	return reward, weight, group
}

// trlGroups is the advantages of GRPO: rewards weighted and summed, then normalised, or the other way round.
func trlGroups(c *call) []answer {
	reward, weight, group := scored(c)
	by := c.conventions(trlGRPOProfile, native{{Name: "scale_rewards", Value: c.text("scale_rewards")},
		{Name: "multi_objective_aggregation", Value: c.text("multi_objective_aggregation")}})
	o := by.Group()
	o.SkipNaN = true
	how, _ := rl.ParseMultiReward(by.Word("adv.multi"))
	if c.said(by); !c.ok() {
		return nil
	}
	adv, err := rl.MultiAdvantage(nil, reward, weight, group, how, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	leaked, err := multiBessel(reward, weight, group, how, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	return []answer{leaking("advantages", adv, leaked, LeakBessel)}
}

// multiBessel is rl.MultiAdvantage under the float32 Bessel factors.
func multiBessel(reward, weight []float64, group []int, how rl.MultiReward, o rl.GroupOptions) ([]float64, error) {
	n, f := len(group), len(weight)
	total := rl.WeightedReward(nil, reward, weight, n)
	if how == rl.SumThenNormalize {
		return groupBessel(total, group, o)
	}
	sum, column := make([]float64, n), make([]float64, n)
	for k, w := range weight {
		for i := range n {
			column[i] = reward[i*f+k]
		}
		z, err := groupBessel(column, group, o)
		if err != nil {
			return nil, err
		}
		for i, v := range z {
			sum[i] += float64(v * w)
		}
	}
	for i, t := range total {
		if t != t {
			sum[i] = math.NaN() // no function scored it
		}
	}
	return groupBessel(sum, nil, o)
}

// trlLeaveOneOut is the advantages of RLOO: the reward less β times the KL of the row, against the mean of the others.
func trlLeaveOneOut(c *call) []answer {
	reward, weight, group := scored(c)
	rows := len(group)
	old, cols := c.tensor("old_per_token_logps"), 0
	if len(old.Shape) == 2 {
		cols = old.Shape[1]
	}
	oldLP, ref := c.shaped("old_per_token_logps", rows, cols), c.shaped("ref_per_token_logps", rows, cols)
	mask := c.mask("completion_mask", rows, cols)
	lo, hi, clips := c.bounds("reward_clip_range")
	by := c.conventions(trlRLOOProfile, native{{Name: "beta", Value: c.value("beta")}, {Name: "normalize_advantages", Value: c.flag("normalize_advantages")},
		{Name: "reward_clip_range", Value: c.option("reward_clip_range")}})
	beta, o := by.Number("kl.beta"), by.Group()
	o.SkipNaN, o.Singleton = true, rl.SingletonNaN
	if c.said(by); !c.ok() {
		return nil
	}
	score := rl.WeightedReward(nil, reward, weight, rows)
	if clips {
		rl.ClipRewards(score, score, lo, hi)
	}
	if beta != 0 {
		d := make([]float64, len(ref))
		for i := range d {
			d[i] = oldLP[i] - ref[i]
		}
		for i, kl := range rl.RowSums(nil, d, mask, rows, cols) {
			score[i] -= float64(beta * kl)
		}
	}
	adv, err := rl.GroupAdvantage(nil, score, group, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	leaked, err := groupBessel(score, group, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	return []answer{leaking("advantages", adv, leaked, LeakBessel)}
}
