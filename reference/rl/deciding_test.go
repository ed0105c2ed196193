package rl

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vectors of the conventions document that decide between conventions (6.2), its exact identities (6.1) and worked
// statements (2), as far as no test next to a function has them.

// TestDecideZeroStd: four equal rewards give exactly 0 under every centre that is a mean; one hot among zeros is divided by
// ε under leave-one-out, or left as it is.
func TestDecideZeroStd(t *testing.T) {
	for center := CenterMean; center <= CenterLOO; center++ {
		for scale := range Scale(len(scales.names)) {
			for zero := range ZeroStd(len(zeroStds.names)) {
				got, err := GroupAdvantage(nil, []float64{.5, .5, .5, .5}, nil, GroupOptions{Center: center, Scale: scale, DDof: 1, Eps: 1e-6, ZeroStd: zero})
				require.NoError(t, err)
				require.Equal(t, []float64{0, 0, 0, 0}, got, "%v %v %v", center, scale, zero)
			}
		}
	}
	loo := GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd, DDof: 1, Eps: 1e-6}
	got, err := GroupAdvantage(nil, []float64{0, 0, 0, 1}, nil, loo)
	require.NoError(t, err)
	require.InDelta(t, 1e6, got[3], 1e-6)
	loo.ZeroStd = ZeroStdSkip
	got, err = GroupAdvantage(nil, []float64{0, 0, 0, 1}, nil, loo)
	require.NoError(t, err)
	require.Equal(t, 1.0, got[3])
}

// TestDecideGroups: the numbers that tell ε, centre and singleton apart.
func TestDecideGroups(t *testing.T) {
	r := []float64{1, 0, .5, 2}
	first := func(o GroupOptions) float64 { return must(GroupAdvantage(nil, r, nil, o))[0] }
	std := func(eps float64) GroupOptions { return GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: eps} }
	require.InDelta(t, .146368, first(std(1e-4)), 5e-7)
	require.InDelta(t, .14638484, first(std(1e-6)), 5e-9)
	require.InDelta(t, .14638501, first(std(1e-9)), 5e-9)
	require.InDelta(t, .125, first(GroupOptions{}), 1e-15)
	require.InDelta(t, .166667, first(GroupOptions{Center: CenterLOO}), 5e-7)
	require.InDelta(t, .169031, first(GroupOptions{Scale: ScaleGroupStd, Eps: 1e-8}), 5e-7)

	one := func(s Singleton) ([]float64, error) {
		return GroupAdvantage(nil, []float64{.7}, nil, GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-6, Singleton: s})
	}
	require.InDelta(t, .699999, must(one(SingletonRaw))[0], 5e-7)
	require.Equal(t, []float64{0}, must(one(SingletonZero)))
	_, err := one(SingletonError)
	require.ErrorIs(t, err, ErrGroupOfOne)

	// The bounds are reached by one hot reward: (n−1)/√n with ddof 1, √(n−1) with ddof 0, none for the spread of the others.
	hot := []float64{0, 0, 0, 0, 0, 0, 0, 1}
	require.InDelta(t, 7/math.Sqrt(8), must(GroupAdvantage(nil, hot, nil, std(0)))[7], 1e-14)
	require.InDelta(t, math.Sqrt(7), must(GroupAdvantage(nil, hot, nil, GroupOptions{Scale: ScaleGroupStd}))[7], 1e-14)
}

// TestDecideNeMo has the baselines and deviations of the leave-one-out form beside its advantages.
func TestDecideNeMo(t *testing.T) {
	r := []float64{1, 0, .5, 2}
	centred := must(GroupAdvantage(nil, r, nil, GroupOptions{Center: CenterLOO}))
	scaled := must(GroupAdvantage(nil, r, nil, GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd, DDof: 1}))
	for i := range r {
		require.InDelta(t, []float64{.8333333333333334, 1.1666666666666667, 1, .5}[i], r[i]-centred[i], 1e-15, "baseline")
		require.InDelta(t, []float64{1.0408329997330663, .763762615825973, 1, .5}[i], centred[i]/scaled[i], 1e-14, "std")
	}
}

// TestDecideContiguous: on a mask without holes the four rules of the frameworks with masks agree to the last digit, and only
// TRL's score place and bootstrap differ.
func TestDecideContiguous(t *testing.T) {
	w := loadWorked(t)
	mask, value := truth(w.Inputs.Mask), flat(w.Inputs.Val)
	run := func(hole Hole, o GAEOptions, index ScoreIndex) []float64 {
		o.Gamma, o.Lambda, o.Hole = .9, .8, hole
		r := TokenRewards(nil, w.Inputs.Score, nil, mask, nil, 4, 6, RewardOptions{Index: index})
		return pick(gaeOf(Rollout{Rows: 4, Cols: 6, Reward: r, Value: value, Mask: mask}, o), mask)
	}
	want := run(HoleCarry, GAEOptions{}, ScoreLastResponse)
	for _, hole := range []Hole{HoleZeroStep, HoleCut, HoleCutNext} {
		require.True(t, sameBits(want, run(hole, GAEOptions{}, ScoreLastResponse)), hole)
	}
	require.Error(t, off(run(HoleNone, GAEOptions{Value: ValueP1}, ScoreEOSPlus1), want, 1e-3))
}

// TestDecideScoreIndex: one token later the score is discounted once more, by γλ at the token of the EOS and before it, and
// the value of the cell it moves to enters.
func TestDecideScoreIndex(t *testing.T) {
	const gamma, lambda, score = .9, .8, 2.
	mask := []bool{true, true, true, false, false}
	value := []float64{.5, -.25, .125, .75, 1e6}
	at := func(index ScoreIndex, o GAEOptions) []float64 {
		o.Gamma, o.Lambda = gamma, lambda
		r := TokenRewards(nil, []float64{score}, nil, mask, nil, 1, 5, RewardOptions{Index: index})
		return gaeOf(Rollout{Rows: 1, Cols: 5, Reward: r, Value: value, Mask: mask}, o)
	}
	last := at(ScoreLastResponse, GAEOptions{})
	plus1 := at(ScoreEOSPlus1, GAEOptions{Value: ValueP1})
	v := value[3] // V(EOS+1): bootstrapped from, and the baseline of the score
	for t0 := range 3 {
		weight := math.Pow(gamma*lambda, float64(2-t0))
		require.InDelta(t, weight*(gamma*v+gamma*lambda*(score-v)-score), plus1[t0]-last[t0], 1e-14)
	}
}

// TestDecideReturns: R − V tells the raw advantages from the whitened ones.
func TestDecideReturns(t *testing.T) {
	b := Rollout{Rows: 1, Cols: 4, Reward: []float64{1, 0, 2, -1}, Value: []float64{.5, .25, -.5, .125}}
	o := GAEOptions{Gamma: .9, Lambda: .8}
	adv, before := GAE(nil, nil, b, o)
	white := must(Whiten(nil, adv, nil, 1, 4, own))
	after := Returns(nil, white, b, o)
	for i, v := range b.Value {
		require.InDelta(t, adv[i], before[i]-v, 1e-15)
		require.InDelta(t, white[i], after[i]-v, 1e-15)
	}
	require.Error(t, off(adv, white, .1))
}

// TestDecideShift: x/σ and (x − μ)/σ + μ differ by μ(1 − 1/σ).
func TestDecideShift(t *testing.T) {
	x := []float64{3, 7, 4, 12}
	o := WhitenOptions{Scope: ScopeGlobal, Shift: ShiftFalsePlain}
	plain := must(Whiten(nil, x, nil, 1, 4, o))
	o.Shift = ShiftFalseAddBack
	back := must(Whiten(nil, x, nil, 1, 4, o))
	mu, sigma := 6.5, math.Sqrt(must(MaskedVar(x, nil, VarOptions{})))
	for i := range x {
		require.InDelta(t, mu*(1-1/sigma), back[i]-plain[i], 1e-14)
	}
}

// TestDecideGSPO: the sequence losses of verl, OpenRLHF and TRL are those of the worked batch to 1e-15, gradients included,
// and so agree to 3.2e-9 relative, but not to the last digit: what is left is the 1e-8 that two of them add to the length of a
// row in the aggregation (and not in the ratio).
func TestDecideGSPO(t *testing.T) {
	w := loadWorkedLosses(t)
	run := func(ratio RatioOptions, agg AggOptions) PolicyResult {
		return must(rightPolicy(w.batch(), PolicyOptions{Kind: LossGSPO, Ratio: ratio, Clip: ClipOptions{Low: .2, High: .28}, Agg: agg}))
	}
	seq := RatioOptions{Level: RatioSeqMean}
	eps := AggOptions{Kind: AggSeqMeanTokenMean, LenEps: 1e-8}
	trl := run(seq, AggOptions{Kind: AggSeqMeanTokenMean, EmptyRows: AggCounted})
	verl := run(RatioOptions{Level: RatioSeqMean, SeqLogMax: 10, PerToken: true}, eps)
	openrlhf := run(seq, eps)
	for name, c := range map[string]struct {
		got  PolicyResult
		want json.RawMessage
	}{"trl": {trl, w.Loss.GSPOTRL}, "verl": {verl, w.Loss.GSPOVerl}, "openrlhf": {openrlhf, w.Loss.GSPOOpen}} {
		loss, grad := lossGrad(t, c.want)
		require.InDelta(t, loss, c.got.Loss, 1e-15, name)
		require.NoError(t, off(c.got.DLogp, grad, 1e-15), name)
	}
	for _, r := range []PolicyResult{verl, openrlhf} {
		require.InEpsilon(t, trl.Loss, r.Loss, 3.2e-9)
		require.NotEqual(t, trl.Loss, r.Loss)
		for i, g := range trl.DLogp {
			require.InDelta(t, g, r.DLogp[i], 5.1e-9*math.Abs(g)) // a row of 2: 1e-8/2
		}
	}
	loss, _ := lossGrad(t, w.Loss.GSPOVerl)
	require.Error(t, off([]float64{run(RatioOptions{Level: RatioSeqMean, LenEps: 1e-8}, eps).Loss}, []float64{loss}, 1e-12), "1e-8 in the ratio, too")
}

// TestDecideKLDerivatives has ∂k/∂lp of every estimator and weight in closed form (6.1).
func TestDecideKLDerivatives(t *testing.T) {
	for _, d := range []float64{-3, -.4, 0, 1e-9, .4, 2} {
		for _, c := range []struct {
			kind KLKind
			grad KLGrad
			want float64
		}{
			{KLK1, KLNaive, 1},
			{KLK2, KLNaive, d},
			{KLK3, KLNaive, 1 - math.Exp(-d)},
			{KLAbs, KLNaive, float64(sign(d))},
			{KLK3, KLScoreFunction, d},
			{KLK1, KLScoreFunction, 1 + d},
			{KLK2, KLScoreFunction, d + .5*d*d},
			{KLK3, KLISCorrected, d}, // on-policy
			{KLK1, KLISCorrected, 1 + d},
			{KLK1, KLStraightThroughK2, d},
			{KLK3, KLStraightThroughK2, d},
		} {
			_, g := KL(nil, nil, []float64{d}, []float64{0}, nil, KLOptions{Kind: c.kind, Grad: c.grad})
			require.InDelta(t, c.want, g[0], 1e-14*math.Exp(math.Abs(d)), "%v %v at %v", c.kind, c.grad, d)
		}
	}
}

func sign(x float64) int {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

// TestDecideKLOffPolicy: under the weight p/p_old every identity of the gradients holds with samples of p_old: by enumeration
// of a vocabulary, with the weight detached, or with its gradient for the estimators that have it (is_corrected).
func TestDecideKLOffPolicy(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	p, ref, old := distribution(rng, 7), distribution(rng, 7), distribution(rng, 7)
	kl, forward, reverse := exactKL(p, ref)
	weight := make([]float64, len(p)) // what a sample of old counts: old·(p/old)
	for j := range p {
		weight[j] = old[j] * math.Exp(math.Log(p[j])-math.Log(old[j]))
	}
	for _, c := range []struct {
		o    KLOptions
		grad []float64
	}{
		{KLOptions{}, make([]float64, len(p))},
		{KLOptions{Kind: KLK2}, forward},
		{KLOptions{Kind: KLK3}, reverse},
		{KLOptions{Grad: KLScoreFunction}, forward},
		{KLOptions{Kind: KLK3, Grad: KLScoreFunction}, forward},
	} {
		value, grad := enumerate(p, ref, weight, nil, c.o)
		if c.o.Kind != KLK2 {
			require.InDelta(t, kl, value, 1e-14)
		}
		require.NoError(t, off(grad, c.grad, 1e-14), "%+v", c.o)
		_, unweighted := enumerate(p, ref, old, nil, c.o)
		require.Error(t, off(unweighted, c.grad, 1e-3), "%+v without the weight", c.o)
	}
	// The detached weight of straight_through_k2 (ISCap) is the same thing inside the function.
	_, grad := enumerate(p, ref, old, old, KLOptions{Grad: KLStraightThroughK2, ISCap: 1e9})
	require.NoError(t, off(grad, forward, 1e-14))
}

// TestDecideTRLKL has the KL term of TRL 1.16.0 (7.1): with r = exp(new − old) and x = ref − new it is (eˣ − x − 1)·r, whose
// derivative is −r·x, since r carries gradient; at the level of sequences r is that of the row.
func TestDecideTRLKL(t *testing.T) {
	b := loadWorkedLosses(t).batch()
	for _, level := range []RatioLevel{RatioToken, RatioSeqMean} {
		o := PolicyOptions{Clip: ClipOptions{Low: .2, High: .2}, Ratio: RatioOptions{Level: level}, KLBeta: 1, KL: KLOptions{Kind: KLK3, Grad: KLISCorrected},
			Agg: AggOptions{Kind: AggTokenSum}}
		silent := b
		silent.Adv = make([]float64, len(b.Adv)) // the KL term alone
		res := must(rightPolicy(silent, o))
		for i, on := range b.Mask {
			if !on {
				continue
			}
			x, r := b.Ref[i]-b.LogProbs[i], res.Ratio[i]
			require.InDelta(t, (math.Exp(x)-x-1)*r, res.Token[i], 1e-14)
			if level == RatioToken {
				require.InDelta(t, math.Exp(b.LogProbs[i]-b.Old[i]), r, 1e-15)
				require.InDelta(t, -r*x, res.DLogp[i], 1e-14)
			}
		}
	}
}

// TestDecideMicroBatches: under a denominator of the whole batch (dapo) the gradients of micro-batches are parts of the
// gradient of the batch; under local denominators they are not.
func TestDecideMicroBatches(t *testing.T) {
	b := loadWorkedLosses(t).batch()
	o := PolicyOptions{Clip: ClipOptions{Low: .2, High: .28}, Agg: AggOptions{Denominator: AggGlobal, Tokens: 17}}
	whole := must(rightPolicy(b, o)).DLogp
	parts := func(agg AggOptions) (g []float64) {
		for _, rows := range [][2]int{{0, 1}, {1, 4}} {
			lo, hi := rows[0]*6, rows[1]*6
			p := PolicyBatch{Rows: rows[1] - rows[0], Cols: 6, LogProbs: b.LogProbs[lo:hi], Old: b.Old[lo:hi], Adv: b.Adv[lo:hi], Mask: b.Mask[lo:hi]}
			o.Agg = agg
			g = append(g, must(rightPolicy(p, o)).DLogp...)
		}
		return g
	}
	require.True(t, sameBits(whole, parts(o.Agg)))
	require.Error(t, off(parts(AggOptions{Steps: 2}), whole, 1e-3))
}

// TestDecideTemperature: the difference of two log-probs is 1/T that of the logits, so that the slope of a regression of
// gen on lp is T if gen is of the raw logits and lp of the divided ones, and 1/T the other way round.
func TestDecideTemperature(t *testing.T) {
	logits := []float64{1, -2, .5, 3, 0, -1}
	var ids []int
	var rows []float64
	for j := range logits {
		ids = append(ids, j)
		rows = append(rows, logits...)
	}
	const T = .7
	raw, divided := LogProbs(nil, rows, ids, 6, LogProbOptions{}), LogProbs(nil, rows, ids, 6, LogProbOptions{Temperature: T})
	slope := func(y, x []float64) float64 {
		my, mx := must(MaskedMean(y, nil, MeanOptions{})), must(MaskedMean(x, nil, MeanOptions{}))
		var xy, xx float64
		for i := range x {
			xy += (x[i] - mx) * (y[i] - my)
			xx += (x[i] - mx) * (x[i] - mx)
		}
		return xy / xx
	}
	require.InDelta(t, T, slope(raw, divided), 1e-14)
	require.InDelta(t, 1/T, slope(divided, raw), 1e-14)
	// The divisor T + 1e-7 (TRL PPO) is seen in the eighth digit.
	require.InDelta(t, T+1e-7, slope(raw, LogProbs(nil, rows, ids, 6, LogProbOptions{Temperature: T, TempEps: 1e-7})), 1e-14)
}

// TestDecideTopP: sampled from the kept tokens only, whose mass is S, gen = lp − ln S, and the mean ratio is S, not 1.
func TestDecideTopP(t *testing.T) {
	p := []float64{.5, .3, .15, .05}
	const S = .8 // of the first two
	lp := []float64{math.Log(p[0]), math.Log(p[1])}
	gen := []float64{lp[0] - math.Log(S), lp[1] - math.Log(S)}
	ratio := Ratio(nil, lp, gen, nil, 1, 2, RatioOptions{})
	var mean float64
	for j, r := range ratio {
		mean += math.Exp(gen[j]) * r
	}
	require.InDelta(t, S, mean, 1e-15)
}

// TestDecideKLPlace: subtracted before a leave-one-out baseline the KL of a sequence is centred with its reward (TRL RLOO);
// subtracted after, the baseline does not know it (OpenRLHF).
func TestDecideKLPlace(t *testing.T) {
	reward, kl := []float64{1, 0, .5, 2}, []float64{4, 1, 0, 2}
	const beta = .05
	loo := GroupOptions{Center: CenterLOO}
	inside, after := make([]float64, 4), must(GroupAdvantage(nil, reward, nil, loo))
	for i := range reward {
		inside[i] = reward[i] - beta*kl[i]
		after[i] -= beta * kl[i]
	}
	inside = must(GroupAdvantage(nil, inside, nil, loo))
	var sum float64
	for i := range inside {
		others := (7 - kl[i]) / 3
		require.InDelta(t, after[i]+beta*others, inside[i], 1e-15)
		sum += inside[i]
	}
	require.InDelta(t, 0, sum, 1e-15)
}

// TestDecideNames: what is called kl and approx_kl is another number in every framework (2.15), here on one batch.
func TestDecideNames(t *testing.T) {
	lp, ref := []float64{-1, -2, -1, 0, -3, 0}, []float64{-1.5, -1, -1.25, 0, -2, 0}
	mask := []bool{true, true, true, false, true, false} // d = .5, −1, .25; −1
	k := func(kind KLKind) []float64 {
		v, _ := KL(nil, nil, lp, ref, nil, KLOptions{Kind: kind})
		return v
	}
	tokenMean := func(x []float64) float64 { return must(MaskedMean(x, mask, MeanOptions{})) }
	k3 := func(d float64) float64 { return math.Exp(-d) - 1 + d }
	require.InDelta(t, (k3(.5)+2*k3(-1)+k3(.25))/4, tokenMean(k(KLK3)), 1e-15, "TRL GRPO: token mean of k3")
	sums := RowSums(nil, k(KLK1), mask, 2, 3)
	require.InDelta(t, (-.25-1)/2, must(MaskedMean(sums, nil, MeanOptions{})), 1e-15, "TRL PPO, OpenAI: sum of k1 per sequence")
	require.InDelta(t, -1.25/4, tokenMean(k(KLK1)), 1e-15, "verl: token mean of the configured kind")
	old := ref // as log-probs before the update
	require.InDelta(t, 1.25/4, ApproxKL(lp, old, mask, KLK1, 0, 0), 1e-15, "ppo_kl: mean of old − lp")
	require.InDelta(t, .5*(.25+1+.0625+1)/4, ApproxKL(lp, old, mask, KLK2, 0, 0), 1e-15, "TRL PPO, OpenAI approxkl")
	require.InDelta(t, .5*(.25+1+.0625+1)/6, ApproxKL(lp, old, nil, KLK2, 0, 0), 1e-15, "over padding, too")
	r3 := func(x float64) float64 { return math.Exp(-x) - 1 + x } // x = old − lp: ρ − 1 − ln ρ
	require.InDelta(t, (r3(-.5)+2*r3(1)+r3(-.25))/4, ApproxKL(lp, old, mask, KLK3, 0, 0), 1e-15, "CleanRL approx_kl")
}
