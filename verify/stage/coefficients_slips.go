package stage

import "math"

// boundSlip is a policy loss that no configuration has but a bug makes, of which the rest of the loss, its coefficients and bounds, is solved for as those
// of a right one are: of the advantage a, times the log-prob for CISPO, and the ratio the loss of a token, what it changes by with the parameter that
// holds it, and which that is, −1 for none.
type boundSlip struct {
	kind string // loss.kind of the right form, "" for ppo
	uses [][]int
	of   func(a, ratio, low, high, dual float64) (loss, slope float64, held int)
}

// clippedBy is −min(ρA, clip(ρ)A).
func clippedBy(a, ratio, low, high float64) (loss, slope float64, held int) {
	switch {
	case a > 0 && ratio > 1+high:
		return -a * (1 + high), -a, paramHigh
	case a < 0 && ratio < 1-low:
		return -a * (1 - low), a, paramLow
	}
	return -a * ratio, 0, -1
}

// boundSlips are tried in this order.
var boundSlips = []boundSlip{
	{"", [][]int{{}, {paramBoth}, {paramLow, paramHigh}}, func(a, ratio, low, high, _ float64) (float64, float64, int) { // the ratio is inverted
		return clippedBy(a, 1/ratio, low, high)
	}},
	{"", [][]int{{paramBoth}, {paramLow, paramHigh}}, func(a, ratio, low, high, _ float64) (float64, float64, int) { // max for min
		switch {
		case a < 0 && ratio > 1+high:
			return -a * (1 + high), -a, paramHigh
		case a > 0 && ratio < 1-low:
			return -a * (1 - low), a, paramLow
		}
		return -a * ratio, 0, -1
	}},
	{"", [][]int{{paramBoth}, {paramLow, paramHigh}}, func(a, ratio, low, high, _ float64) (float64, float64, int) { // the clipped side always
		switch {
		case ratio > 1+high:
			return -a * (1 + high), -a, paramHigh
		case ratio < 1-low:
			return -a * (1 - low), a, paramLow
		}
		return -a * ratio, 0, -1
	}},
	{"", [][]int{{paramBoth, paramDual}, {paramLow, paramHigh, paramDual}}, func(a, ratio, low, high, dual float64) (float64, float64, int) { // dual clip of A > 0
		loss, slope, held := clippedBy(a, ratio, low, high)
		if a > 0 && loss > -a*dual && !math.IsInf(dual, 1) {
			return -a * dual, -a, paramDual
		}
		return loss, slope, held
	}},
	{"", [][]int{{}, {paramBoth}, {paramLow, paramHigh}}, func(a, ratio, low, high, _ float64) (float64, float64, int) { // 1 + d for e to the d
		return clippedBy(a, 1+math.Log(ratio), low, high)
	}},
	{"", [][]int{{}, {paramBoth}, {paramLow, paramHigh}}, func(a, ratio, low, high, _ float64) (float64, float64, int) { // the sign of the loss
		loss, slope, held := clippedBy(a, ratio, low, high)
		return -loss, -slope, held
	}},
	{"cispo", [][]int{{paramHigh}}, func(a, ratio, _, high, _ float64) (float64, float64, int) { // held from below
		if ratio < 1+high {
			return -a * (1 + high), -a, paramHigh
		}
		return -a * ratio, 0, -1
	}},
	{"cispo", [][]int{{}, {paramHigh}}, func(a, ratio, _, high, _ float64) (float64, float64, int) { // the ratio is inverted
		if 1/ratio > 1+high {
			return -a * (1 + high), -a, paramHigh
		}
		return -a / ratio, 0, -1
	}},
}

// slipStages are the stages of losses with a slip.
func slipStages() (stages []boundStage) {
	for k, s := range boundSlips {
		for _, uses := range s.uses {
			stages = append(stages, boundStage{kind: s.kind, uses: uses, weights: []string{""}, slip: k + 1})
		}
	}
	return stages
}

// reduction returns the options of the aggregation of a loss with a slip: the numbers of a loss that is wrong do not show it to a search.
func (f *boundForm) reduction() []assign { return reductionOf(f.kind) }

// reductionOf returns the options of an aggregation, none where the files have the sum over their tokens.
func reductionOf(kind int) []assign {
	of := func(kind, denominator, divided string) []assign {
		return []assign{word("agg.kind", kind), word("agg.denominator", denominator), word("agg.div_ga", divided)}
	}
	switch kind {
	case ofTokens:
		return of("token", "micro", "false")
	case ofTokensDivided:
		return of("token", "micro", "true")
	case ofTokensGlobal:
		return of("token", "global", "false")
	case ofRows:
		return of("seq_mean_token_mean", "micro", "false")
	case ofRowsDivided:
		return of("seq_mean_token_mean", "micro", "true")
	case ofRowsGlobal:
		return of("seq_mean_token_mean", "global", "false")
	case ofSums:
		return of("seq_sum_const", "micro", "false")
	case ofSumsGlobal:
		return []assign{word("agg.kind", "seq_sum_const")}
	}
	if kind > ofGenerations {
		return of("token", "global", "false")
	}
	return nil
}
