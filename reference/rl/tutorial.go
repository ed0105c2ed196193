package rl

import "math"

// The functions of this file are the exercises of the PPO tutorial on GSM8K (source document C), under its names and in its
// argument order: one fixed set of options of the functions of this package, the profile ppo-gsm8k@1. All means are masked
// means over Σm + 1e-8, an empty mask gives 0, and what a masked cell holds never matters.

// tutorialMean is masked_mean of the tutorial.
var tutorialMean = MeanOptions{Eps: 1e-8, Empty: EmptyZero, Outside: OutsideIgnore}

// tutorialAgg is the same mean as an aggregation.
var tutorialAgg = AggOptions{Eps: 1e-8, Empty: EmptyZero, Outside: OutsideIgnore}

// TutorialPolicy is what ComputePolicyLoss returns.
type TutorialPolicy struct {
	Loss     float64
	ClipFrac float64   // share of tokens with |ratio − 1| > ε, whatever the sign of the advantage
	ApproxKL float64   // mean of old − new, which may be negative (k1)
	DLogp    []float64 // ∂Loss/∂logpNew
}

// ComputePolicyLoss is exercise 1, with ratio = exp(clamp(new − old, −20, 20)):
//
//	L = −mean(min(ratio·A, clip(ratio, 1−ε, 1+ε)·A))
func ComputePolicyLoss(logpNew, logpOld, advantages []float64, mask []bool, rows, cols int, clipRatio float64) (TutorialPolicy, error) {
	clip := ClipOptions{Low: clipRatio, High: clipRatio}
	var res PolicyResult
	err := Policy(&res, PolicyBatch{Rows: rows, Cols: cols, LogProbs: logpNew, Old: logpOld, Adv: advantages, Mask: mask},
		PolicyOptions{Ratio: RatioOptions{LogClamp: 20}, Clip: clip, Agg: tutorialAgg})
	if err != nil {
		return TutorialPolicy{}, err
	}
	out := TutorialPolicy{Loss: res.Loss, DLogp: res.DLogp}
	if out.ClipFrac, err = MaskedMean(Clipped(nil, res.Ratio, advantages, ClipFracOutside, clip), mask, tutorialMean); err != nil {
		return TutorialPolicy{}, err
	}
	d := make([]float64, len(logpNew))
	for i := range d {
		d[i] = logpOld[i] - logpNew[i]
	}
	out.ApproxKL, err = MaskedMean(d, mask, tutorialMean)
	return out, err
}

// TutorialValue is what ComputeValueLoss returns.
type TutorialValue struct {
	Loss float64
	// ClipFrac is the share of tokens where the clipped square is the larger one. V_c is V_new where the clip does not touch
	// it: computed as V_old + (V_new − V_old) it would differ by a rounding and count half of those tokens, too.
	ClipFrac float64
	DValue   []float64 // ∂Loss/∂valuesNew
}

// ComputeValueLoss is exercise 2, with V_c = V_old + clamp(V_new − V_old, −c, c):
//
//	L = ½·mean(max((V_new − R)², (V_c − R)²))
//
// c = 0 holds V_c at V_old, as the formula has it; c = +Inf does not clip.
func ComputeValueLoss(valuesNew, valuesOld, returns []float64, mask []bool, rows, cols int, clipRange float64) (TutorialValue, error) {
	var res ValueResult
	if clipRange == 0 {
		clipRange = math.SmallestNonzeroFloat64 // for ValueOptions 0 means not clipped
	}
	if err := ValueLoss(&res, valuesNew, valuesOld, returns, mask, rows, cols, ValueOptions{Clip: clipRange, Agg: tutorialAgg}); err != nil {
		return TutorialValue{}, err
	}
	frac, err := MaskedMean(ValueClipped(nil, valuesNew, valuesOld, returns, clipRange), mask, tutorialMean)
	return TutorialValue{res.Loss, frac, res.DValue}, err
}

// ComputeEntropyLoss is exercise 3, with H the entropy of softmax(logits), logits rows×cols×vocab:
//
//	L = −mean(H) <= 0
//
// It is minus the entropy: a coefficient of +0.01 on it is an entropy bonus. The gradient is with respect to logits.
func ComputeEntropyLoss(logits []float64, mask []bool, rows, cols, vocab int) (loss float64, dlogits []float64, err error) {
	h := Entropy(nil, logits, vocab, EntropyOptions{})
	mean, w, err := Aggregate(nil, h, mask, rows, cols, tutorialAgg)
	if err != nil {
		return 0, nil, err
	}
	for i := range w {
		w[i] = -w[i]
	}
	return -mean, EntropyBackward(nil, w, logits, vocab, EntropyOptions{}), nil
}

// ComputeGAEAdvantages is exercise 4. klPenalty is kl_coeff·(logp_actor − logp_ref) of the rollout; r_t = −klPenalty_t, plus
// the final reward at the last true cell of the row. Backwards, with V and m taken as 0 past the end:
//
//	δ_t = r_t + γ·V_{t+1}·m_{t+1} − V_t,  A_t = δ_t + γλ·A_{t+1}·m_{t+1},  returns = (A + V)·m
//
// Then A is whitened over all true cells of the batch with the variance over n, and 0 outside the mask; equal values become
// exactly 0. A row without a true cell gets no reward.
func ComputeGAEAdvantages(finalRewards, klPenalty, values []float64, mask []bool, rows, cols int, gamma, lambda float64) (advantages, returns []float64, err error) {
	r := TokenRewards(nil, finalRewards, klPenalty, mask, nil, rows, cols, RewardOptions{Beta: 1})
	advantages, returns = GAE(nil, nil, Rollout{Rows: rows, Cols: cols, Reward: r, Value: values, Mask: mask},
		GAEOptions{Gamma: gamma, Lambda: lambda, Hole: HoleCutNext, Returns: ReturnsMasked})
	advantages, err = Whiten(advantages, advantages, mask, rows, cols, WhitenOptions{
		Scope: ScopeGlobal, Eps: 1e-8, Remask: true, ConstantZero: true,
		Var: VarOptions{Mean: tutorialMean, Empty: EmptyZero, Single: SingleZero},
	})
	return advantages, returns, err
}
