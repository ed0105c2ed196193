package rl

import (
	"math"
	"slices"
)

// The batch of the bit tests: full mantissas, a mask with holes, log-probs below 0.
const bitRows, bitCols, bitVocab = 6, 11, 7

func bitFill(salt, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64((i+salt)*7919%1009-504) / 331 // one rounding
	}
	return x
}

type bitBatch struct {
	lp, old, ref, adv, value, ratio, logits, rows, dst []float64
	mask, rowMask                                      []bool
	ids, group                                         []int
}

func newBitBatch() bitBatch {
	const n = bitRows * bitCols
	b := bitBatch{lp: bitFill(1, n), old: bitFill(2, n), ref: bitFill(3, n), adv: bitFill(4, n), value: bitFill(5, n), ratio: bitFill(6, n),
		logits: bitFill(7, n*bitVocab), rows: bitFill(8, bitRows), dst: bitFill(9, n)}
	for i := range n {
		for _, x := range [][]float64{b.lp, b.old, b.ref} {
			x[i] = x[i]/4 - 2
		}
		b.ratio[i] = math.Abs(b.ratio[i]) + .2
		b.mask = append(b.mask, i*5%7 < 5)
		b.ids = append(b.ids, i*3%bitVocab)
	}
	for i := range bitRows {
		b.group = append(b.group, i*5%2)
		b.rowMask = append(b.rowMask, i%3 != 1)
	}
	return b
}

// flags are bools as numbers.
func flags(on []bool) []float64 {
	x := make([]float64, len(on))
	for i, b := range on {
		if b {
			x[i] = 1
		}
	}
	return x
}

func ints(x []int) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// must is x of a function that has no reason to fail here.
func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func join(xs ...[]float64) (all []float64) {
	for _, x := range xs {
		all = append(all, x...)
	}
	return all
}

// bitCases computes with every exported function of the package, by name; methods under their type's name.
var bitCases = map[string]func(b bitBatch) []float64{
	"AdaptKL": func(b bitBatch) []float64 { return []float64{AdaptKL(.15, 6.3, 6, 1e4, 512)} },
	"Aggregate": func(b bitBatch) (out []float64) {
		for kind := range AggKind(len(aggKinds.names)) {
			l, w, err := Aggregate(nil, b.lp, b.mask, bitRows, bitCols, AggOptions{Kind: kind, LenEps: 1e-8, Eps: 1e-8, DivBatch: true, Length: 11, Steps: 3, Scale: 7})
			out = join(out, w, []float64{must(l, err)})
		}
		return out
	},
	"Align.ResponseRange": func(b bitBatch) []float64 {
		from, to := AlignShifted.ResponseRange(3, 8, 11)
		return []float64{float64(from), float64(to)}
	},
	"ApproxKL": func(b bitBatch) []float64 {
		return []float64{ApproxKL(b.lp, b.old, b.mask, KLK1, .7, 1e-8), ApproxKL(b.lp, b.old, b.mask, KLK2, 0, 0), ApproxKL(b.lp, b.old, b.mask, KLK3, 0, 0)}
	},
	"Broadcast":   func(b bitBatch) []float64 { return Broadcast(nil, b.rows, b.mask, bitRows, bitCols) },
	"CISPOWeight": func(b bitBatch) []float64 { return CISPOWeight(nil, b.ratio, ClipOptions{Low: .2, High: .28}) },
	"ClipCovCandidates": func(b bitBatch) []float64 {
		return flags(ClipCovCandidates(nil, TokenCovariance(nil, b.lp, b.adv, b.mask, 1e-8), b.ratio, b.adv, b.mask, ClipOptions{Low: .2, High: .2}, CovOptions{Upper: 1}))
	},
	"ClipRewards": func(b bitBatch) []float64 { return ClipRewards(nil, b.rows, -.9, .9) },
	"Clipped": func(b bitBatch) (out []float64) {
		for kind := range ClipFracKind(len(clipFracKinds.names)) {
			out = join(out, Clipped(nil, b.ratio, b.adv, kind, ClipOptions{Low: .2, High: .28, Dual: 1.5}))
		}
		return out
	},
	"ComputeEntropyLoss": func(b bitBatch) []float64 {
		l, d, err := ComputeEntropyLoss(b.logits, b.mask, bitRows, bitCols, bitVocab)
		return append(d, must(l, err))
	},
	"ComputeGAEAdvantages": func(b bitBatch) []float64 {
		adv, ret, err := ComputeGAEAdvantages(b.rows, b.ref, b.value, b.mask, bitRows, bitCols, .99, .95)
		return join(must(adv, err), ret)
	},
	"ComputePolicyLoss": func(b bitBatch) []float64 {
		p := must(ComputePolicyLoss(b.lp, b.old, b.adv, b.mask, bitRows, bitCols, .2))
		return append(p.DLogp, p.Loss, p.ClipFrac, p.ApproxKL)
	},
	"ComputeValueLoss": func(b bitBatch) []float64 {
		v := must(ComputeValueLoss(b.value, b.ratio, b.adv, b.mask, bitRows, bitCols, .2))
		return append(v.DValue, v.Loss, v.ClipFrac)
	},
	"CrossEntropy": func(b bitBatch) []float64 {
		l, d := CrossEntropy(nil, b.logits, b.ids, bitVocab, 0)
		return append(d, l)
	},
	"DPO": func(b bitBatch) (out []float64) {
		for kind := range DPOKind(len(dpoKinds.names)) {
			if kind != DPOORPO {
				l, c, r := DPO(nil, nil, nil, b.lp, b.old, b.ref, b.adv, DPOOptions{Kind: kind, Beta: .7, LabelSmoothing: .1, Tau: .5})
				out = join(out, l, c, r)
			}
		}
		return out
	},
	"DPOKind.Margin":  func(bitBatch) []float64 { return ofKinds(DPOKind.Margin) },
	"DPOKind.Smooths": func(bitBatch) []float64 { return ofKinds(DPOKind.Smooths) },
	"DPOKind.Sorts":   func(bitBatch) []float64 { return ofKinds(DPOKind.Sorts) },
	"DPOMargin": func(b bitBatch) (out []float64) {
		for i := range b.lp {
			for d := range DPODivergence(len(dpoDivergences.names)) {
				h, hc, hr := DPOMargin(b.lp[i], b.old[i], b.ref[i], b.lp[len(b.lp)-1-i], DPOOptions{Divergence: d, Alpha: .6})
				out = append(out, h, hc, hr)
			}
			h, hc, hr := DPOMargin(b.lp[i], b.lp[len(b.lp)-1-i], 0, 0, DPOOptions{Kind: DPOORPO})
			out = append(out, h, hc, hr)
		}
		return out
	},
	"DPOSorted": func(b bitBatch) []float64 {
		s, u := DPOSorted(b.lp, b.old, b.ref, b.adv, DPOAOT), DPOSorted(b.lp, b.old, b.ref, b.adv, DPOAOTUnpaired)
		return join(s.Chosen, s.RefChosen, u.Chosen, u.Rejected)
	},
	"DPPOWeight": func(b bitBatch) []float64 {
		clip := ClipOptions{Low: .05, High: .05}
		return join(DPPOWeight(nil, b.ratio, b.lp, b.old, b.adv, DPPOTV, 3, clip), DPPOWeight(nil, b.ratio, b.lp, b.old, b.adv, DPPOKL, 3, clip))
	},
	"DRO": func(b bitBatch) []float64 { l, d := DRO(nil, nil, b.lp, b.old, b.adv, .3); return join(l, d) },
	"EFE": func(b bitBatch) (out []float64) {
		const h, w, colors = 2, 3, 5
		in := EFEBatch{Steps: 3, H: h, W: w, Colors: colors, Logits: b.logits[:3*h*w*colors], Target: []int{0, 4, IgnoreLabel, 2, 1, 3}, Table: b.value[:h*w*colors],
			Prompt: b.adv[:8], Weight: b.ratio[:8*colors], Bias: b.rows[:colors], Wanted: newDistributions(b.ref[:h*w*colors], 1, h*w, colors).p}
		for _, kind := range []EFEKind{JensenShannon, MixtureEntropy} {
			o := EFEDefaults()
			o.Kind, o.Ambiguity = kind, .7
			e, d := EFE(in, o)
			out = append(join(out, d.Logits, d.Table, d.Prompt, d.Weight, d.Bias), e.GridMatching, e.Risk, e.Uncertain, e.ScaledRisk, e.Ambiguity, e.Step, e.Divergence, e.Reversibility,
				e.Bidirectional, e.Z, e.Prompt, e.GridNorm, e.Total)
		}
		return out
	},
	"EFEDefaults": func(bitBatch) []float64 {
		o := EFEDefaults()
		return []float64{o.Risk, o.Ambiguity, o.Step, o.Consistency, o.Bidirectional, o.Z, o.Prompt, o.GridNorm}
	},
	"Entropy": func(b bitBatch) []float64 {
		return Entropy(nil, b.logits, bitVocab, EntropyOptions{LogProbOptions: LogProbOptions{Temperature: .7}})
	},
	"EntropyBackward": func(b bitBatch) []float64 { return EntropyBackward(nil, b.adv, b.logits, bitVocab, EntropyOptions{}) },
	"EntropyBonus": func(b bitBatch) []float64 {
		l, d, err := EntropyBonus(nil, b.value, b.mask, bitRows, bitCols, .01, AggOptions{})
		return append(d, must(l, err))
	},
	"ExplainedVariance": func(b bitBatch) []float64 { return []float64{ExplainedVariance(b.value, b.adv, b.mask)} },
	"GAE": func(b bitBatch) (out []float64) {
		for hole := HoleNone; hole <= HoleCutNext; hole++ {
			adv, ret := GAE(nil, nil, Rollout{Rows: bitRows, Cols: bitCols, Reward: b.adv, Value: b.value, Mask: b.mask}, GAEOptions{Gamma: .99, Lambda: .95, Hole: hole})
			out = join(out, adv, ret)
		}
		return out
	},
	"GAEOptions.Steps": func(b bitBatch) (out []float64) {
		r := Rollout{Rows: bitRows, Cols: bitCols, Reward: b.adv, Value: b.value, Mask: b.mask}
		for s := range (GAEOptions{Gamma: .99, Alpha: .05, LambdaPolicy: LambdaVAPO, Hole: HoleZeroStep}).Steps(r) {
			out = append(out, float64(s.Next), s.R, s.V, s.NextV, s.Gamma, s.Lambda, s.Raw)
		}
		return out
	},
	"GMPO": func(b bitBatch) []float64 {
		l, d := GMPO(nil, nil, b.lp, b.old, b.adv, b.mask, bitRows, bitCols, GMPOOptions{Low: .2, High: .4, LogClamp: 20, LenEps: 1e-8})
		return join(l, d)
	},
	"GPGAdvantage": func(b bitBatch) []float64 { return GPGAdvantage(nil, b.rows, b.group, 3) },
	"GroupAdvantage": func(b bitBatch) (out []float64) {
		for _, group := range [][]int{nil, b.group, GroupBlocks(bitRows, 3)} {
			for scale := range Scale(len(scales.names)) {
				for center := range Center(len(centers.names)) {
					out = join(out, must(GroupAdvantage(nil, b.rows, group, GroupOptions{Center: center, Scale: scale, DDof: 1, Eps: 1e-6})))
				}
			}
		}
		return out
	},
	"GroupBlocks":     func(b bitBatch) []float64 { return ints(GroupBlocks(6, 2)) },
	"GroupPrompts":    func(b bitBatch) []float64 { return ints(GroupPrompts([][]int{{1, 2}, {3}, {1, 2}, {}})) },
	"GroupUIDs":       func(b bitBatch) []float64 { return ints(GroupUIDs([]string{"b", "a", "b", ""})) },
	"HighEntropyMask": func(b bitBatch) []float64 { return HighEntropyMask(nil, b.value, b.mask, .2) },
	"ISWeights": func(b bitBatch) (out []float64) {
		for level := range TISLevel(len(tisLevels.names)) {
			for rule := range TISRule(len(tisRules.names)) {
				out = join(out, ISWeights(nil, b.lp, b.old, b.mask, bitRows, bitCols, TISOptions{Level: level, Rule: rule, Low: .5, High: 2, Normalize: true}))
			}
		}
		return out
	},
	"JSD": func(b bitBatch) (out []float64) {
		teacher := slices.Clone(b.logits)
		slices.Reverse(teacher)
		for _, beta := range []float64{0, .3, 1} {
			l, d := JSD(nil, nil, b.logits, teacher, bitVocab, JSDOptions{Beta: beta, Temperature: .9})
			out = join(out, l, d)
		}
		return out
	},
	"KL": func(b bitBatch) (out []float64) {
		for kind := KLK1; kind <= KLRatioD; kind++ {
			for grad := range KLGrad(len(klGrads.names)) {
				v, g := KL(nil, nil, b.lp, b.ref, b.old, KLOptions{Kind: kind, Grad: grad, ClampIn: 20, ClampOut: 10})
				out = join(out, v, g)
			}
		}
		return out
	},
	"KLCov": func(b bitBatch) []float64 {
		l, d, e := KLCov(nil, nil, nil, b.ratio, b.lp, b.old, b.adv, b.mask, .7)
		return join(l, d, e)
	},
	"KLCovSelect":      func(b bitBatch) []float64 { return flags(KLCovSelect(nil, b.adv, b.mask, CovOptions{Fraction: .3})) },
	"KLIndexBase.Kind": func(b bitBatch) []float64 { return []float64{float64(must(KLZero.Kind(2)))} },
	"LengthMask":       func(b bitBatch) []float64 { return flags(LengthMask(nil, b.mask, bitRows, bitCols, 1)) },
	"LogProbs": func(b bitBatch) []float64 {
		return LogProbs(nil, b.logits, b.ids, bitVocab, LogProbOptions{Temperature: .7, TempEps: 1e-7})
	},
	"LogProbsBackward": func(b bitBatch) []float64 {
		return LogProbsBackward(nil, b.adv, b.logits, b.ids, bitVocab, LogProbOptions{Temperature: .7})
	},
	"MaskedMean": func(b bitBatch) []float64 { return []float64{must(MaskedMean(b.lp, b.mask, MeanOptions{Eps: 1e-8}))} },
	"MaskedMeanRows": func(b bitBatch) []float64 {
		return must(MaskedMeanRows(nil, b.lp, b.mask, bitRows, bitCols, MeanOptions{Eps: 1e-8}))
	},
	"MaskedSum":         func(b bitBatch) []float64 { return []float64{MaskedSum(b.lp, b.mask, OutsidePropagate)} },
	"MaskedVar":         func(b bitBatch) []float64 { return []float64{must(MaskedVar(b.lp, b.mask, VarOptions{DDof: 1}))} },
	"MissingEOS":        func(b bitBatch) []float64 { return MissingEOS(nil, b.rows, b.rowMask, EOSScale, .3) },
	"MonteCarloEntropy": func(b bitBatch) []float64 { return []float64{MonteCarloEntropy(b.lp, b.old, b.mask, 1e-8)} },
	"MultiAdvantage": func(b bitBatch) []float64 {
		o := GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-4}
		return must(MultiAdvantage(nil, b.dst[:2*bitRows], []float64{.3, .7}, b.group, NormalizeThenSum, o))
	},
	"NaNStd":       func(b bitBatch) []float64 { return []float64{NaNStd(b.lp, 1)} },
	"OPOAdvantage": func(b bitBatch) []float64 { return OPOAdvantage(nil, b.rows, b.ratio[:bitRows], b.group) },
	"OffPolicyMask": func(b bitBatch) []float64 {
		return OffPolicyMask(nil, b.lp, b.old, b.adv, b.mask, bitRows, bitCols, .1)
	},
	"OptimalTokenBaseline": func(b bitBatch) []float64 {
		return OptimalTokenBaseline(nil, b.adv, b.old, b.ratio, nil, b.mask, b.group, bitRows, bitCols, 1e-8)
	},
	"OverlongPenalty": func(b bitBatch) []float64 { return []float64{OverlongPenalty(95, 100, 30, .7)} },
	"PPO": func(b bitBatch) []float64 {
		l, d := PPO(nil, nil, b.ratio, b.adv, ClipOptions{Low: .2, High: .28, Dual: 1.5, Delta: 1.9})
		return join(l, d)
	},
	"PassKAdvantage": func(b bitBatch) []float64 { return must(PassKAdvantage(nil, b.rows, b.group, true, 1e-6)) },
	"PlanUpdates": func(b bitBatch) (out []float64) {
		for _, s := range PlanUpdates(5, 2, nil) {
			out = append(out, float64(s.From), float64(s.To), float64(s.Divisor))
		}
		return out
	},
	"Policy": func(b bitBatch) (out []float64) {
		for kind := range LossKind(len(lossKinds.names)) {
			o := PolicyOptions{Kind: kind, Clip: ClipOptions{Low: .2, High: .28, Dual: 3}, TauPos: 1, TauNeg: 1.05, DPPOLimit: 3, DROBeta: .3, VESPO: VESPODefaults,
				Cov: CovOptions{Upper: 1, Fraction: .3, Coef: 1}, GMPO: GMPOOptions{Low: .2, High: .4}, KLBeta: .05, KL: KLOptions{Kind: KLK3}}
			if kind == LossGSPO {
				o.Ratio.Level = RatioSeqMean
			}
			var r PolicyResult
			if err := Policy(&r, PolicyBatch{Rows: bitRows, Cols: bitCols, LogProbs: b.lp, Old: b.old, Ref: b.ref, Adv: b.adv, Mask: b.mask}, o); err != nil {
				panic(err)
			}
			out = append(join(out, r.Token, r.Ratio, r.DLogp, r.DRatio, r.Weights), r.Loss)
		}
		return out
	},
	"Ratio": func(b bitBatch) (out []float64) {
		for level := range RatioLevel(len(ratioLevels.names)) {
			out = join(out, Ratio(nil, b.lp, b.old, b.mask, bitRows, bitCols, RatioOptions{Level: level, LogClamp: 20, LenEps: 1e-8}))
		}
		return out
	},
	"RatioBackward": func(b bitBatch) (out []float64) {
		for level := range RatioLevel(len(ratioLevels.names)) {
			dlp := bitFill(10, bitRows*bitCols)
			RatioBackward(dlp, b.adv, b.ratio, b.lp, b.old, b.mask, bitRows, bitCols, RatioOptions{Level: level, LogClamp: 20, LenEps: 1e-8})
			out = join(out, dlp)
		}
		return out
	},
	"ReMaxAdvantage": func(b bitBatch) []float64 {
		adv, ret := ReMaxAdvantage(nil, nil, b.adv, b.rows, b.mask, bitRows, bitCols)
		return join(adv, ret)
	},
	"Reinforce": func(b bitBatch) []float64 { l, d := Reinforce(nil, nil, b.lp, b.adv, b.ratio); return join(l, d) },
	"ReinforcePlusPlus": func(b bitBatch) []float64 {
		adv, ret, err := ReinforcePlusPlus(nil, nil, b.adv, b.mask, bitRows, bitCols, ReturnToGo, .97, HoleCarry, own)
		return join(must(adv, err), ret)
	},
	"Remask": func(b bitBatch) []float64 { return Remask(nil, b.lp, b.mask) },
	"Rollout.Row": func(b bitBatch) []float64 {
		r := Rollout{Rows: bitRows, Cols: bitCols, Reward: b.adv, Value: b.value, Mask: b.mask}.Row(1)
		return join(r.Reward, r.Value)
	},
	"Returns": func(b bitBatch) []float64 {
		return Returns(nil, b.adv, Rollout{Rows: bitRows, Cols: bitCols, Value: b.value, Mask: b.mask}, GAEOptions{Returns: ReturnsMaskedV})
	},
	"RewardToGo": func(b bitBatch) []float64 { return RewardToGo(nil, b.adv, b.mask, bitRows, bitCols, .97, HoleZeroStep) },
	"RowSums":    func(b bitBatch) []float64 { return RowSums(nil, b.lp, b.mask, bitRows, bitCols) },
	"RunPPOUpdateEpoch": func(b bitBatch) (out []float64) {
		for _, u := range bitEpoch(b).Micro {
			out = append(join(out, u.DLogp, u.DValue, u.DEntropy), u.TotalLoss)
		}
		return out
	},
	"Unpaired": func(b bitBatch) (out []float64) {
		for kind := range UnpairedKind(len(unpairedKinds.names)) {
			l, d := Unpaired(nil, nil, b.lp, b.ref, b.mask, .05, UnpairedOptions{kind, .7, 1, 1.3})
			out = join(out, l, d)
		}
		return out
	},
	"UpdateEpoch.Metrics": func(b bitBatch) (out []float64) {
		for _, m := range bitEpoch(b).Metrics([]float64{.3, .7}) {
			out = append(out, m.Value)
		}
		return out
	},
	"SAPO": func(b bitBatch) []float64 { l, d := SAPO(nil, nil, b.ratio, b.adv, 1, 1.05); return join(l, d) },
	"SequenceAdvantage": func(b bitBatch) []float64 {
		a, _, err := SequenceAdvantage(nil, b.rows, 3, AdvBatch)
		return must(a, err)
	},
	"SequenceLoss": func(b bitBatch) []float64 {
		r := SequenceLoss(nil, b.lp, b.ref, b.rows, b.mask, bitRows, bitCols, SequenceOptions{Beta: .1, KL: KLOptions{Kind: KLK3}, Mean: true})
		return append(r.DLogp, r.Policy, r.KL, r.Loss)
	},
	"SequenceProbKL": func(b bitBatch) []float64 {
		v, g := SequenceProbKL(nil, nil, b.lp, b.old, b.mask, bitRows, bitCols)
		return join(v, g)
	},
	"SliceResponse": func(b bitBatch) []float64 { return SliceResponse(nil, b.lp, bitRows, bitCols, 1, AlignShifted, 3, 8) },
	"SliceResponseBackward": func(b bitBatch) []float64 {
		return SliceResponseBackward(bitFill(1, bitRows*bitCols), b.adv[:bitRows*8], bitRows, bitCols, 1, AlignShifted, 3, 8)
	},
	"SumPiSquared": func(b bitBatch) []float64 {
		return SumPiSquared(nil, b.logits, bitVocab, LogProbOptions{Temperature: .7})
	},
	"TokenCovariance": func(b bitBatch) []float64 { return TokenCovariance(nil, b.lp, b.adv, b.mask, 1e-8) },
	"TokenRewards": func(b bitBatch) []float64 {
		return TokenRewards(nil, b.rows, b.ref, b.mask, nil, bitRows, bitCols, RewardOptions{Beta: .05})
	},
	"VESPOWeight": func(b bitBatch) []float64 {
		return VESPOWeight(nil, b.lp, b.old, b.adv, nil, b.mask, bitRows, bitCols, VESPODefaults)
	},
	"ValueClipped": func(b bitBatch) []float64 { return ValueClipped(nil, b.value, b.ratio, b.adv, .2) },
	"ValueLoss": func(b bitBatch) []float64 {
		var r ValueResult
		if err := ValueLoss(&r, b.value, b.ratio, b.adv, b.mask, bitRows, bitCols, ValueOptions{Clip: .3, Coef: .1}); err != nil {
			panic(err)
		}
		return append(join(r.Token, r.DValue), r.Loss)
	},
	"WeightedReward": func(b bitBatch) []float64 { return WeightedReward(nil, b.lp[:12], []float64{.3, .7}, 6) },
	"Whiten": func(b bitBatch) (out []float64) {
		for place := range EpsPlace(len(epsPlaces.names)) {
			for shift := range ShiftMean(len(shiftMeans.names)) {
				o := own
				o.EpsPlace, o.Shift, o.Var.DDof = place, shift, 1
				out = join(out, must(Whiten(nil, b.adv, b.mask, bitRows, bitCols, o)))
			}
		}
		return out
	},
	"WhitenMask.Of": func(b bitBatch) []float64 { return flags(WhitenLength.Of(b.mask, bitRows, bitCols)) },
	"ZeroStdRatio":  func(b bitBatch) []float64 { return []float64{ZeroStdRatio(b.rows, 3)} },
}

func bitEpoch(b bitBatch) UpdateEpoch {
	u := UpdateBatch{Rows: bitRows, Cols: bitCols, LogpNew: b.lp, LogpOld: b.old, ValuesNew: b.value, ValuesOld: b.ratio, Returns: b.adv,
		Advantages: b.adv, Entropy: b.ratio, Mask: b.mask}
	return must(RunPPOUpdateEpoch([]UpdateBatch{u, u, u}, UpdateOptions{ClipRatio: .2, ClipRangeValue: .2, VFCoeff: .1, EntropyCoeff: .01, Accumulation: 2}))
}

// ofKinds is 1 for the preference losses of which is holds, 0 for the others.
func ofKinds(is func(DPOKind) bool) (out []float64) {
	for k := range DPOKind(len(dpoKinds.names)) {
		out = append(out, 0)
		if is(k) {
			out[k] = 1
		}
	}
	return out
}
