package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/stage"
)

// weightPowers returns the form w = e to the k·d of importance weights whose k the data show: a quotient of small numbers that is the median of ln w/d, of weights
// within their bounds and log-ratios d that say something.
func weightPowers(o *stage.Outcome) []weightForm {
	const enough, near, most, least = 8, 1e-3, 4, 1e-2
	c := o.Case
	old, gen := ofTrainer(c), c.B.Token("logp_gen")
	if len(old) != len(o.Got) || len(gen) != len(o.Got) || len(c.B.Mask) != len(o.Got) || c.B.Cols == 0 {
		return nil
	}
	level := c.Set.Value("tis.level").String()
	bounds := []float64{numberOr(c, "tis.low", 0), numberOr(c, "tis.high", 0), 0, 1}
	var powers []float64
	for r := range c.B.Rows {
		sum, n := 0.0, 0.0
		for i := range c.B.TokensOf(r) {
			sum, n = sum+old[i]-gen[i], n+1
		}
		for i := range c.B.TokensOf(r) {
			d := old[i] - gen[i]
			switch level {
			case "seq_sum":
				d = sum
			case "seq_geo":
				d = sum / n
			}
			w := o.Got[i]
			if w > 0 && math.Abs(d) > least && !slices.ContainsFunc(bounds, func(x float64) bool { return math.Abs(w-x) <= 1e-6*x }) {
				powers = append(powers, math.Log(w)/d)
			}
		}
	}
	if len(powers) < enough {
		return nil
	}
	slices.Sort(powers)
	k := powers[len(powers)/2]
	for under := 1; under <= most; under++ {
		over := math.Round(k * float64(under))
		if math.Abs(over) > float64(most*under) || math.Abs(k-over/float64(under)) > near {
			continue
		}
		if slices.Contains([]float64{-1, 0, 0.5, 1, 2, 3}, over/float64(under)) {
			return nil // that of another form
		}
		title := strings.ReplaceAll(fmt.Sprintf("e to the %gd", over), "-", "−")
		if under > 1 {
			title += fmt.Sprintf("/%d", under)
		}
		power := over / float64(under)
		return []weightForm{{"RATIO-FORM", title, func(d float64) float64 { return math.Exp(power * d) }}}
	}
	return nil
}

// signedWeights returns edits of importance weights of which those of one sign of the advantage are under another rule, as where a condition that drops
// tokens also asks for the sign. A program may mean that: tokens of one sign alone are dropped by some (DeepSeek-V3.2, off-policy sequence masking).
func signedWeights(o *stage.Outcome) []edit {
	if !o.Case.Has("advantages") || o.Case.Set.Value("tis.high").String() == "none" && o.Case.Set.Value("tis.low").String() == "none" {
		return nil
	}
	var list []edit
	for _, sign := range []float64{1, -1} {
		word := map[float64]string{1: "positive", -1: "negative"}[sign]
		for _, rule := range []struct {
			title string
			in    input
		}{
			{"not bounded", unbounded}, {"not bounded from above", option("tis.high", "none")}, {"not bounded from below", option("tis.low", "none")},
			{"1", nil},
		} {
			list = append(list, edit{id: "IS-BOUND-FORM", title: "importance weights of tokens whose advantage is " + word + " are " + rule.title, changes: 1, own: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return ofSign(sign, rule.in, c, ch) }})
		}
	}
	return list
}

// ofSign predicts weights that are as declared but for those of tokens whose advantage has a sign, which are of another input, or 1.
func ofSign(sign float64, in input, c *stage.Case, ch *stage.Check) *stage.Prediction {
	adv, p := c.Optional("advantages").X, under(sameInput, c, ch)
	if p == nil || len(adv) != len(p.Want) {
		return nil
	}
	other := p
	if in != nil {
		if other = under(in, c, ch); other == nil || len(other.Want) != len(p.Want) {
			return nil
		}
	}
	q := altered(p)
	q.Alt = slices.Clone(p.Alt)
	for i, a := range adv {
		switch {
		case !(a*sign > 0):
		case in == nil:
			q.Want[i], q.Bound[i] = 1, 4*c.Unit
		default:
			q.Want[i], q.Bound[i] = other.Want[i], other.Bound[i]
		}
		if q.Alt != nil && a*sign > 0 {
			q.Alt[i] = math.NaN()
		}
	}
	return q
}
