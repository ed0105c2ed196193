package stage

import "math"

// boundRatio is what a loss has of the ratio of a token.
type boundRatio int

const (
	ratioItself   boundRatio = iota
	ratioInverted            // 1/ρ
	ratioLinear              // 1 + log ρ
)

func (r boundRatio) of(ratio float64) float64 {
	switch r {
	case ratioInverted:
		return 1 / ratio
	case ratioLinear:
		return 1 + math.Log(ratio)
	}
	return ratio
}

// boundHold are the parameters that hold a ratio from below and from above, or unheld.
type boundHold struct{ below, above int }

const unheld = -1

// boundShape is a policy loss −A·c of a token whose c is its ratio where nothing holds it. A is the advantage, times the log-prob for CISPO.
type boundShape struct {
	ratio   boundRatio
	holds   [2]boundHold // of A > 0 and of A < 0
	negated bool         // the sign of the loss is wrong
}

// clippedHold is −min(ρA, clip(ρ)A).
var clippedHold = [2]boundHold{{unheld, paramHigh}, {paramLow, unheld}}

// boundShapes are the policy losses of a loss.kind without a bug, "" for ppo.
var boundShapes = map[string]boundShape{
	"":      {holds: [2]boundHold{{unheld, paramHigh}, {paramLow, paramDual}}},
	"cispo": {holds: [2]boundHold{{paramLow, paramHigh}, {paramLow, paramHigh}}},
}

// boundSlip is a policy loss that no configuration has but a bug makes, of which the rest of the loss, its coefficients and bounds, is solved for as those
// of a right one are.
type boundSlip struct {
	kind  string // loss.kind of the right form, "" for ppo
	uses  [][]int
	shape boundShape
}

// boundSlips are tried in this order.
var boundSlips = []boundSlip{
	{"", [][]int{{}, {paramBoth}, {paramLow, paramHigh}}, boundShape{ratio: ratioInverted, holds: clippedHold}},
	{"", [][]int{{paramBoth}, {paramLow, paramHigh}}, boundShape{holds: [2]boundHold{{paramLow, unheld}, {unheld, paramHigh}}}},                          // max for min
	{"", [][]int{{paramBoth}, {paramLow, paramHigh}}, boundShape{holds: [2]boundHold{{paramLow, paramHigh}, {paramLow, paramHigh}}}},                     // the clippedHold side always
	{"", [][]int{{paramBoth, paramDual}, {paramLow, paramHigh, paramDual}}, boundShape{holds: [2]boundHold{{paramDual, paramHigh}, {paramLow, unheld}}}}, // dual clip of A > 0
	{"", [][]int{{}, {paramBoth}, {paramLow, paramHigh}}, boundShape{ratio: ratioLinear, holds: clippedHold}},
	{"", [][]int{{}, {paramBoth}, {paramLow, paramHigh}}, boundShape{holds: clippedHold, negated: true}},
	{"cispo", [][]int{{paramHigh}}, boundShape{holds: [2]boundHold{{paramHigh, unheld}, {paramHigh, unheld}}}}, // held from below
	{"cispo", [][]int{{}, {paramHigh}}, boundShape{ratio: ratioInverted, holds: [2]boundHold{{unheld, paramHigh}, {unheld, paramHigh}}}},
}

// shape returns that of a form, and whether it has one: of others the loss is no line of a ratio that is held.
func (f *boundForm) shape() (s boundShape, ok bool) {
	if f.slip > 0 {
		return boundSlips[f.slip-1].shape, true
	}
	s, ok = boundShapes[f.kindOf]
	return s, ok
}

// boundEnd is a bound of ratios: where it is, the parameter that it is of, and by how much it moves with that.
type boundEnd struct {
	at, slope float64
	param     int
}

// end returns the bound of a form that a parameter is, or beyond where the form has none.
func (f *boundForm) end(param int, beyond float64) boundEnd {
	of := param
	if (param == paramLow || param == paramHigh) && f.has(paramBoth) {
		of = paramBoth
	}
	switch {
	case param == unheld || !f.has(of):
		return boundEnd{at: beyond, param: unheld}
	case param == paramLow:
		return boundEnd{1 - f.at[of], -1, of}
	case param == paramHigh:
		return boundEnd{1 + f.at[of], 1, of}
	}
	return boundEnd{f.at[of], 1, of}
}

// ends returns the bounds from below and from above of a form for either sign of the advantage.
func (f *boundForm) ends(s boundShape) (ends [2][2]boundEnd) {
	for k, hold := range s.holds {
		ends[k] = [2]boundEnd{f.end(hold.below, math.Inf(-1)), f.end(hold.above, math.Inf(1))}
	}
	return ends
}

// of returns the loss of a token, and by how much it changes with the parameter that holds its ratio, if one does.
func (s *boundShape) of(a, ratio float64, ends *[2][2]boundEnd) (loss, slope float64, held int) {
	c, held, sign := s.ratio.of(ratio), unheld, -1.0
	if s.negated {
		sign = 1
	}
	side := &ends[0]
	if a < 0 {
		side = &ends[1]
	}
	if above := &side[1]; c > above.at {
		c, held, slope = above.at, above.param, above.slope
	}
	if below := &side[0]; c < below.at {
		c, held, slope = below.at, below.param, below.slope
	}
	return sign * a * c, sign * a * slope, held
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
	switch {
	case kind >= ofStrays:
		return reductionOf(strayReductions[kind-ofStrays].right)
	case kind > ofGenerations:
		return of("token", "global", "false")
	}
	return nil
}
