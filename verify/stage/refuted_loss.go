package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
)

// boundsOfTokens are the numbers that hold the ratio, the loss or the KL of a token, and the strongest value of each: the loss of a token is monotone in
// it. A bound of the ratio below 1 is none that anybody has.
var boundsOfTokens = map[string]string{"ratio.log_clamp": "1e-12", "clip.dual": "1.000000000001", "clip.delta": "1", "kl.clamp_in": "1e-12", "kl.clamp_out": "1e-12"}

// LossOutOfReach reports whether no values of the named numbers give a loss that failed, of which the losses of tokens were not dumped. Each of them
// moves the loss of a token between what it is without the number and what it is with the strongest value; an aggregation, whose weights are
// not negative, lies between those of the least and of the largest losses of tokens; what is added to counts makes it smaller by a thousandth at most.
// The loss of some file beyond that, by 16 times what it can be off, refutes them together.
func LossOutOfReach(o *Outcome, names []string) bool {
	c := o.Case
	if c == nil || o.Pred == nil || o.Half() || o.Check.ID != "aggregate/loss" && o.Check.ID != "aggregate/pg_loss" || c.B.Token("token_loss") != nil {
		return false
	}
	var bounds []string
	for _, name := range names {
		switch {
		case boundsOfTokens[name] != "":
			bounds = append(bounds, name)
		case strongest[name] != guard:
			return false
		}
	}
	ch := Find("token_loss/policy")
	var low, high []float64
	var tokens *Prediction
	for corner := range 1 << len(bounds) {
		set := c.Set
		for k, name := range bounds {
			text := "none"
			if corner>>k&1 == 1 {
				text = boundsOfTokens[name]
			}
			v, err := convention.Parse(name, text)
			if err != nil {
				return false
			}
			set = set.With(name, v, "reach")
		}
		of := c.Of(c.B, set)
		p := ch.Predict(of)
		if p == nil || !of.OK() {
			return false
		}
		if tokens = p; low == nil {
			low, high = slices.Clone(p.Want), slices.Clone(p.Want)
			continue
		}
		for i, x := range p.Want {
			low[i], high[i] = min(low[i], x), max(high[i], x)
		}
	}
	var reach [2]*Prediction
	for k, x := range [][]float64{low, high} {
		p := *tokens
		p.Want = x
		of := c.Standing("token_loss", &p)
		if red := of.reduction(); red == nil || of.klReduction(red) != red { // the KL is aggregated beside
			return false
		}
		of = c.Standing("token_loss", &p)
		if reach[k] = o.Check.Predict(of); reach[k] == nil || !of.OK() || len(reach[k].Want) != len(o.Got) {
			return false
		}
	}
	for f, got := range o.Got {
		lo, hi := reach[0].Want[f], reach[1].Want[f]
		beside := 16*max(reach[0].Bound[f], reach[1].Bound[f]) + 1e-3*max(math.Abs(lo), math.Abs(hi))
		if got < lo-beside || got > hi+beside {
			return true
		}
	}
	return false
}
