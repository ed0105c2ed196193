package rl

import "math"

// MultiReward is how several reward functions become one advantage (adv.multi).
type MultiReward int

const (
	SumThenNormalize MultiReward = iota // the weighted sum is normalised: GRPO
	NormalizeThenSum                    // each is normalised in its group, the weighted sum in the batch: GDPO
)

var multiRewards = enumeration[MultiReward]("adv.multi", "sum_then_normalize", "normalize_then_sum")

func (m MultiReward) String() string { return multiRewards.text(m) }

// ParseMultiReward reads a value of adv.multi.
func ParseMultiReward(s string) (MultiReward, error) { return multiRewards.parse(s) }

// WeightedReward stores in dst[i] Σ_f weight_f·reward_{i,f} over the functions that scored sample i, and NaN if none did.
// reward is samples×functions, with NaN for "could not score".
//
// Source: GRPOTrainer of TRL 1.16.0; golden group_advantages.
func WeightedReward(dst, reward, weight []float64, samples int) []float64 {
	f := len(weight)
	need(samples >= 0 && len(reward) == samples*f, badLength)
	dst = output(dst, samples)
	for i := range samples {
		var sum float64
		scored := false
		for k, v := range row(reward, i, f) {
			if !math.IsNaN(v) {
				sum += float64(v * weight[k])
				scored = true
			}
		}
		if !scored {
			sum = math.NaN()
		}
		dst[i] = sum
	}
	return dst
}

// MultiAdvantage stores in adv, one element per sample, the advantage of samples that several functions have scored; reward
// is samples×functions with NaN for "could not score", weight has one element per function.
//
// SumThenNormalize is GroupAdvantage of WeightedReward. NormalizeThenSum is GDPO:
//
//	z_{i,f} = (r_{i,f} − μ_{g,f})/(σ_{g,f} + eps)    s_i = Σ_f weight_f·z_{i,f}    adv_i = (s_i − μ_s)/(σ_s + eps)
//
// where o describes the first normalisation, and the second takes mean and standard deviation of the batch with the same
// ddof, eps and rule for zero. A z that is NaN, as of the only scored sample of a group, adds nothing. o.SkipNaN is implied
// for NormalizeThenSum.
//
// Source: GRPOTrainer of TRL 1.16.0, multi_objective_aggregation; golden group_advantages.
func MultiAdvantage(adv, reward, weight []float64, group []int, how MultiReward, o GroupOptions) ([]float64, error) {
	f := len(weight)
	need(f > 0 && len(reward)%f == 0, badLength)
	n := len(reward) / f
	adv = output(adv, n)
	switch how {
	case SumThenNormalize:
		WeightedReward(adv, reward, weight, n)
		return GroupAdvantage(adv, adv, group, o)
	case NormalizeThenSum:
	default:
		panic(badOption)
	}
	o.SkipNaN = true
	sum, z := make([]float64, n), make([]float64, n)
	for k, w := range weight {
		for i := range n {
			z[i] = reward[i*f+k]
		}
		if _, err := GroupAdvantage(z, z, group, o); err != nil {
			return nil, err
		}
		for i, v := range z {
			sum[i] += float64(v * w)
		}
	}
	WeightedReward(adv, reward, weight, n) // NaN where nothing scored
	for i, s := range sum {
		if !math.IsNaN(adv[i]) {
			adv[i] = s
		}
	}
	batch := GroupOptions{Center: CenterMean, Scale: ScaleGroupStd, DDof: o.DDof, Eps: o.Eps, ZeroStd: o.ZeroStd, Singleton: SingletonZero, SkipNaN: true}
	return GroupAdvantage(adv, adv, nil, batch)
}
