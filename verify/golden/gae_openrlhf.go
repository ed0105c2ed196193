package golden

import (
	"math"

	"plumbline/reference/rl"
)

// openrlhfDriver repeats compute_advantages_and_returns: baseline of the group, clip, placement of the score, −β·kl, GAE or
// reward-to-go, whitening over all experiences.
func openrlhfDriver(c *call) []answer {
	_, rows, cols := c.grid("action_mask")
	m := c.mask("action_mask", rows, cols)
	score, kl, values := c.shaped("rewards", rows), c.shaped("kl", rows, cols), c.shaped("values", rows, cols)
	beta := c.scalar("kl_coef")
	size := c.size("n_samples_per_prompt", max(rows, 1))
	group := promptGroups(c, rows, size)
	estimator := c.text("estimator")
	given := native{{Name: "estimator", Value: estimator}, {Name: "gamma", Value: c.scalar("gamma")}, {Name: "lambd", Value: c.scalar("lam")},
		{Name: "no_std_norm", Value: c.flag("no_std_norm")}, {Name: "clip_range", Value: c.option("reward_clip_range")}}
	lo, hi, clips := c.bounds("reward_clip_range")
	c.ignore("experience_split") // how the rows were cut before they were put together again

	profile := openrlhfGroupProfile
	if estimator == "gae" {
		profile = openrlhfPPOProfile
	}
	by := c.conventions(profile, given)
	g := rl.GAEOptions{Gamma: 1, Hole: rl.HoleZeroStep} // of the other estimators: the framework warns, and sets γ
	o := rl.GroupOptions{Center: rl.CenterNone}
	switch kind := by.Word("adv.kind"); kind {
	case "gae":
		g = by.GAE()
	case "rfpp":
		g.Gamma = by.Number("gae.gamma")
	case "batch_baseline":
		group = nil
		fallthrough
	default:
		o = by.Group()
		if o.Singleton = rl.SingletonNaN; o.Scale == rl.ScaleNone && o.Center == rl.CenterMean {
			o.Singleton = rl.SingletonZero // r − r
		}
	}
	var w rl.WhitenOptions
	if scope := by.Word("whiten.scope"); scope != "" && scope != "none" {
		w = by.Whiten(rl.ScopeGlobal)
	}
	c.said(by)
	if !c.ok() {
		return nil
	}
	score, err := rl.GroupAdvantage(nil, score, group, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	if clips {
		rl.ClipRewards(score, score, lo, hi)
	}
	tokens := rl.TokenRewards(nil, score, kl, m, nil, rows, cols, rl.RewardOptions{Beta: max(beta, 0), KLEverywhere: true, EmptyLastColumn: true})

	var adv, ret []float64
	if estimator == "gae" {
		adv, ret = rl.GAE(nil, nil, rl.Rollout{Rows: rows, Cols: cols, Reward: tokens, Value: values, Mask: m}, g)
	} else {
		ret = rl.RewardToGo(nil, tokens, m, rows, cols, g.Gamma, g.Hole)
		adv = ret
	}
	out := []answer{plain("returns", ret...)}
	if w.Scope == rl.ScopeNone {
		return append(out, plain("advantages", adv...))
	}
	return append(out, whitenStatistics(adv, m, rows, cols, w))
}

// promptGroups returns the prompt of each row. The rows were shuffled: index holds the place of each before, where the
// samples of a prompt are neighbours.
func promptGroups(c *call, rows, size int) []int {
	index := c.ints("index", 0, rows, rows)
	if !c.ok() {
		return nil
	}
	seen := make([]bool, len(index))
	group := make([]int, len(index))
	for i, k := range index {
		if seen[k] {
			c.malformed("input index: element %d is %d for the second time", i, k)
			break
		}
		seen[k] = true
		group[i] = k / size
	}
	return group
}

// whitenStatistics whitens as OpenRLHF does, or only centres: (A − μ)/√max(v, ε) with ddof 0, where μ and v are taken of
// the advantages rounded to float32. With u its roundoff and n the number of true cells,
//
//	|δμ| ≤ Σ u|A|/n + u|μ|,   |δd| ≤ u(|A| + |μ| + |d|) + |δμ|,   |δv| ≤ Σ (2|d||δd| + δd² + 2u·d²)/n + u·v
//
// and the root is taken at both ends of v ± δv. Sums in float32 are not allowed for: the masks are float64, and so are the
// sums.
func whitenStatistics(adv []float64, m []bool, rows, cols int, o rl.WhitenOptions) answer {
	mean, _ := rl.MaskedMean(adv, m, o.Var.Mean) // NaN for an empty mask, no error
	var n, errMean float64
	for i, a := range adv {
		if m[i] {
			n++
			errMean += float64(u32 * math.Abs(a))
		}
	}
	errMean = errMean/n + float64(u32*math.Abs(mean))
	got, bound := make([]float64, len(adv)), make([]float64, len(adv))
	if o.EpsPlace == rl.NoStd {
		for i, a := range adv {
			got[i], bound[i] = a-mean, errMean
		}
		return answer{output: "advantages", got: got, bound: bound, leak: LeakStatistics}
	}
	eps := o.Eps
	rl.Whiten(got, adv, m, rows, cols, o)
	var v, errVar float64
	for i, a := range adv {
		if m[i] {
			d := math.Abs(a - mean)
			e := float64(u32*(math.Abs(a)+math.Abs(mean)+d)) + errMean
			v += float64(d * d)
			errVar += float64(2*d*e) + float64(e*e) + float64(2*u32*float64(d*d))
		}
	}
	v /= n
	errVar = errVar/n + float64(u32*v)
	low, high := 1/math.Sqrt(max(v+errVar, eps)), 1/math.Sqrt(max(v-errVar, eps))
	at := 1 / math.Sqrt(max(v, eps))
	for i, a := range adv {
		bound[i] = float64(math.Abs(a-mean)*max(high-at, at-low)) + float64(errMean*high)
	}
	return answer{output: "advantages", got: got, bound: bound, leak: LeakStatistics}
}
