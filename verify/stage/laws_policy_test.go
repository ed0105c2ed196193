package stage

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Laws of the surrogate are stated for a loss without KL and entropy.
const surrogateAlone = "kl.beta=0 kl.adaptive=none entropy.coef=0 "

// openPolicy is what profiles do not say of a loss that has no use for it.
const openPolicy = "ratio.old=stored metric.clip_frac=binding agg.denominator=global agg.denominator=micro clip.low=0.2 clip.high=0.2 clip.dual=none clip.delta=none ratio.level=token ratio.log_clamp=none "

func surrogates(set *convention.Set) bool { return has("loss.kind", "ppo")(set) }

// updated draws a policy that has moved from the one that sampled; with a ratio of rows, rows have one advantage.
func (s *subject) updated() grid {
	g := s.grid(true)
	n := len(g.Mask)
	drift := []float64{0.05, 0.3, 1.5}[s.r.IntN(3)]
	old := s.draw(n, func() float64 { return -s.r.ExpFloat64() })
	lp := changedAt(old, func(int) bool { return true }, func(i int) float64 { return old[i] + drift*s.r.NormFloat64() })
	adv := s.draw(n, s.r.NormFloat64)
	for i := range adv {
		if s.text("ratio.level", "token") != "token" {
			adv[i] = adv[i/g.Cols*g.Cols]
		} else if s.r.IntN(8) == 0 {
			adv[i] = 0
		}
	}
	return g.token("logp_new", lp...).token("logp_old", old...).token("advantages", adv...)
}

func (s *subject) tokenLoss(g grid) []float64 { return s.predict("token_loss/policy", g.Batch).Want }

func (s *subject) dlogp(g grid) *Prediction { return s.predict("gradient/dlogp", g.Batch) }

// counted returns the cells that count in the loss.
func (s *subject) counted(b *dump.Batch) []bool {
	if s.text("mask.tokens", "response") == "none" {
		return slices.Repeat([]bool{true}, len(b.Mask))
	}
	return b.Mask
}

// ratio returns exp(lp − old) of every cell, or of the sum over its row, within ratio.log_clamp, and whether the clamp acts.
func (s *subject) ratio(g grid) (rho []float64, clamped []bool) {
	lp, old, on := g.Token("logp_new"), g.Token("logp_old"), s.counted(g.Batch)
	rho, clamped = make([]float64, len(lp)), make([]bool, len(lp))
	limit := s.num("ratio.log_clamp", math.Inf(1))
	for r := range g.Rows {
		var sum float64
		for i := r * g.Cols; i < (r+1)*g.Cols; i++ {
			d := max(min(lp[i]-old[i], limit), -limit)
			rho[i], clamped[i] = math.Exp(d), d != lp[i]-old[i]
			if on[i] {
				sum += d
			}
		}
		if s.text("ratio.level", "token") == "seq_sum" {
			for i := r * g.Cols; i < (r+1)*g.Cols; i++ {
				rho[i] = math.Exp(sum)
			}
		}
	}
	return rho, clamped
}

var detachedRatio = fault{after: func(_ *subject, _ *dump.Batch, p *Prediction) { clear(p.Want) }}

var nextAdvantage = offByOne("advantages")

var wrongPolicy = map[string]fault{
	"loss.kind reinforce": {options: "loss.kind=reinforce"},
	"bounds exchanged":    {options: "clip.low=0.45 clip.high=0.01"},
	"no bounds":           {options: "clip.low=none clip.high=none"},
	"a dual clip of 1.1":  {options: "clip.dual=1.1"},
	"a delta of 0.9":      {options: "clip.delta=0.9"},
	"a log clamp of 0.01": {options: "ratio.log_clamp=0.01"},
	"ratio of the row":    {options: "ratio.level=seq_mean"},
	"the next advantage":  nextAdvantage,
	"a detached ratio":    detachedRatio,
	"the sign": {after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] = -p.Want[i]
		}
	}},
	"a constant":       addsConstant,
	"every cell":       {options: "mask.tokens=none"},
	"a relative error": relative,
	"a minimum instead of the maximum": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i, a := range b.Token("advantages") {
			if len(p.Want) == len(b.Mask) {
				p.Want[i] = min(p.Want[i], -a*math.Exp(b.Token("logp_new")[i]-b.Token("logp_old")[i]))
			}
		}
	}},
}

// zeroes reports where the loss has no gradient: clipped in the direction in which the advantage pushes, beyond the dual clip,
// beyond the log clamp, or without an advantage. It is not decided where the ratio is a bound up to rounding.
func (s *subject) zeroes(g grid) (zero, decided []bool) {
	rho, clamped := s.ratio(g)
	lo, hi := 1-s.num("clip.low", math.Inf(1)), 1+s.num("clip.high", math.Inf(1))
	dual := s.num("clip.dual", math.Inf(1))
	for i, a := range g.Token("advantages") {
		z := a == 0 || clamped[i] || a > 0 && rho[i] > hi || a < 0 && (rho[i] < lo || rho[i] > dual)
		near := false
		for _, bound := range []float64{lo, hi, dual} {
			near = near || math.Abs(rho[i]-bound) <= 1e-12*rho[i]
		}
		zero, decided = append(zero, z), append(decided, !near)
	}
	return zero, decided
}

var policyLaws = []law{{
	name: "ratio 1: the loss is that of −A (E)", given: surrogateAlone, open: openPolicy + openReduction, where: always,
	holds: func(s *subject) string {
		g := s.updated()
		g = replaced(g, "logp_old", g.Token("logp_new"))
		minus := mapped(g.Token("advantages"), func(_ int, a float64) float64 { return -a })
		return identical(nil, s.loss(g).Want, s.loss(grid{g.token("token_loss", minus...).Batch}).Want)
	},
	faults: and(only(wrongPolicy, "loss.kind reinforce"), "the loss of A", fault{before: func(_ *subject, b *dump.Batch) *dump.Batch {
		if b.Token("token_loss") != nil {
			return b
		}
		return b.With("advantages", mapped(b.Token("advantages"), func(_ int, a float64) float64 { return -a }))
	}}),
}, {
	name: "ratio 1: the gradient is −A·w (B)", given: surrogateAlone, open: openPolicy + openReduction, where: always,
	holds: func(s *subject) string {
		g := s.updated()
		g = replaced(g, "logp_old", g.Token("logp_new"))
		p := s.dlogp(g)
		want := mapped(g.Token("advantages"), func(i int, a float64) float64 { return -a * p.Terms(i)[0].Value })
		return near(s.counted(g.Batch), p.Want, want, func(i int) float64 { return p.Bound[i] })
	},
	faults: only(wrongPolicy, "the sign", "a detached ratio", "a relative error"),
}, {
	name: "the gradient is 0 where clipped, and nowhere else (E)", given: surrogateAlone, open: openPolicy + openReduction, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		p := s.dlogp(g)
		zero, decided := s.zeroes(g)
		on := s.counted(g.Batch)
		for i, d := range p.Want {
			if on[i] && decided[i] && (d == 0) != zero[i] {
				return fmt.Sprintf("%s: gradient %v, advantage %v", at(g.Batch, i), d, g.Token("advantages")[i])
			}
		}
		return ""
	},
	faults: only(wrongPolicy, "bounds exchanged", "no bounds", "a dual clip of 1.1", "a delta of 0.9", "a log clamp of 0.01", "ratio of the row", "loss.kind reinforce"),
}, {
	name: "a token with A > 0 gains from a higher log-prob (E)", given: surrogateAlone, open: openPolicy + openReduction, where: always,
	holds: func(s *subject) string {
		g := s.updated()
		on := s.counted(g.Batch)
		for i, d := range s.dlogp(g).Want {
			if a := g.Token("advantages")[i]; on[i] && (a > 0 && d > 0 || a < 0 && d < 0) {
				return fmt.Sprintf("%s: gradient %v, advantage %v", at(g.Batch, i), d, a)
			}
		}
		return ""
	},
	faults: only(wrongPolicy, "the sign", "the next advantage"),
}, {
	name: "never clipped in the corrective direction (E)", given: surrogateAlone + "clip.dual=none ratio.log_clamp=none", open: openPolicy + openReduction, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		rho, _ := s.ratio(g)
		on := s.counted(g.Batch)
		for i, d := range s.dlogp(g).Want {
			if a := g.Token("advantages")[i]; on[i] && d == 0 && (a > 0 && rho[i] < 1 || a < 0 && rho[i] > 1) {
				return fmt.Sprintf("%s: no gradient at ratio %v and advantage %v", at(g.Batch, i), rho[i], a)
			}
		}
		return ""
	},
	faults: only(wrongPolicy, "a dual clip of 1.1", "a delta of 0.9", "a log clamp of 0.01", "a detached ratio"),
}, {
	name: "the loss of a token is at least the unclipped one (E)", given: surrogateAlone, open: openPolicy, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		rho, _ := s.ratio(g)
		for i, l := range s.tokenLoss(g) {
			if free := -g.Token("advantages")[i] * rho[i]; g.Mask[i] && !(l >= free) {
				return fmt.Sprintf("%s: %v, unclipped %v", at(g.Batch, i), l, free)
			}
		}
		return ""
	},
	faults: only(wrongPolicy, "a dual clip of 1.1", "a minimum instead of the maximum", "the sign"),
}, {
	name: "A → 2A doubles loss and gradient (E)", given: surrogateAlone, open: openPolicy + openReduction, where: always,
	holds: func(s *subject) string {
		g := s.updated()
		twice := replaced(g, "advantages", doubled(g.Token("advantages")))
		if broken := identical(nil, s.loss(twice).Want, doubled(s.loss(g).Want)); broken != "" {
			return "loss: " + broken
		}
		return identical(nil, s.dlogp(twice).Want, doubled(s.dlogp(g).Want))
	},
	faults: and(only(wrongPolicy, "a constant"), "A within ±1", fault{before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("advantages", mapped(b.Token("advantages"), func(_ int, a float64) float64 { return max(min(a, 1), -1) }))
	}}),
}, {
	name: "A = 0 gives no loss and no gradient (E)", given: surrogateAlone, open: openPolicy + openReduction, where: always,
	holds: func(s *subject) string {
		g := s.updated()
		zero := make([]float64, len(g.Mask))
		g = replaced(g, "advantages", zero)
		if broken := identical(nil, s.loss(g).Want, zero[:1]); broken != "" {
			return "loss: " + broken
		}
		return identical(nil, s.dlogp(g).Want, zero)
	},
	faults: only(wrongPolicy, "a constant"),
}, {
	name: "without bounds: −A·ρ (E)", given: surrogateAlone + "clip.low=none clip.high=none clip.dual=none clip.delta=none", open: openPolicy, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		rho, _ := s.ratio(g)
		return identical(s.counted(g.Batch), s.tokenLoss(g), mapped(g.Token("advantages"), func(i int, a float64) float64 { return -a * rho[i] }))
	},
	faults: only(wrongPolicy, "a dual clip of 1.1", "a delta of 0.9", "a relative error", "bounds exchanged"),
}, {
	name: "bounds of 0: gradient in the corrective direction only (E)", given: surrogateAlone + "clip.low=0 clip.high=0 clip.dual=none clip.delta=none ratio.log_clamp=none", open: openPolicy + openReduction, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		rho, _ := s.ratio(g)
		on := s.counted(g.Batch)
		for i, d := range s.dlogp(g).Want {
			a := g.Token("advantages")[i]
			if corrective := a > 0 && rho[i] < 1 || a < 0 && rho[i] > 1; on[i] && rho[i] != 1 && (d != 0) != corrective {
				return fmt.Sprintf("%s: gradient %v at ratio %v and advantage %v", at(g.Batch, i), d, rho[i], a)
			}
		}
		return ""
	},
	faults: only(wrongPolicy, "no bounds", "bounds exchanged"),
}, {
	name: "equal sides are a clip of |ρ − 1| (E)", given: surrogateAlone + "clip.low=0.25 clip.high=0.25 clip.dual=none clip.delta=none", open: openPolicy, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		rho, _ := s.ratio(g)
		return identical(s.counted(g.Batch), s.tokenLoss(g), mapped(g.Token("advantages"), func(i int, a float64) float64 {
			switch r := rho[i]; {
			case math.Abs(r-1) <= 0.25, a > 0 && r < 1, a < 0 && r > 1:
				return -a * r
			case a == 0:
				return 0
			default:
				return -a * (1 + math.Copysign(0.25, r-1))
			}
		}))
	},
	faults: only(wrongPolicy, "no bounds", "bounds exchanged", "a minimum instead of the maximum"),
}, {
	name: "the dual clip touches A < 0 and ρ > c alone (E)", given: surrogateAlone + "clip.delta=none", open: openPolicy + openReduction, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		rho, _ := s.ratio(g)
		with, without := s.with("clip.dual=1.5"), s.with("clip.dual=none")
		l, free, d, freeD := with.tokenLoss(g), without.tokenLoss(g), with.dlogp(g).Want, without.dlogp(g).Want
		on := s.counted(g.Batch)
		for i, a := range g.Token("advantages") {
			touched := a < 0 && rho[i] > 1.5
			switch {
			case !on[i] || math.Abs(rho[i]-1.5) <= 1e-12:
			case touched && (l[i] != -a*1.5 || d[i] != 0):
				return at(g.Batch, i) + ": beyond c, and not −A·c without a gradient"
			case !touched && (l[i] != free[i] || d[i] != freeD[i]):
				return at(g.Batch, i) + ": touched"
			}
		}
		return ""
	},
	faults: map[string]fault{"no dual clip": {options: "clip.dual=none"}, "c = 2": {options: "clip.dual=2"},
		"for every sign": {swap: func(_ *subject, id string) func(*Case) *Prediction {
			return func(c *Case) *Prediction {
				if c.Set.Value("clip.dual").Kind() != convention.Number {
					return Find(id).Predict(c)
				}
				return Find(id).Predict(NewCase(c.B, with(c.Set, "clip.delta=1.02"), c.Unit))
			}
		}}},
}, {
	name: "what masked cells hold does not matter (E)", given: surrogateAlone, open: openPolicy + openReduction, where: always,
	holds: func(s *subject) string {
		g := s.updated()
		dirty := grid{g.Batch}
		for _, name := range []string{"logp_new", "logp_old", "advantages"} {
			dirty = replaced(dirty, name, changedAt(g.Token(name), func(i int) bool { return !g.Mask[i] }, s.junk))
		}
		if broken := identical(nil, s.loss(dirty).Want, s.loss(g).Want); broken != "" {
			return "loss: " + broken
		}
		p := s.dlogp(dirty).Want
		for i, d := range p {
			if !g.Mask[i] && d != 0 {
				return fmt.Sprintf("%s: a masked cell has the gradient %v", at(g.Batch, i), d)
			}
		}
		return identical(g.Mask, p, s.dlogp(g).Want)
	},
	faults: and(only(wrongPolicy, "every cell"), "luspo", fault{options: "agg.kind=luspo"}),
}, {
	name: "the clip fraction counts the tokens without gradient (E)", given: surrogateAlone + "clip.dual=none clip.delta=none ratio.log_clamp=none", open: openPolicy + openReduction, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		on := s.counted(g.Batch)
		d := s.dlogp(g).Want
		_, decided := s.zeroes(g)
		var clipped, n float64
		for i, a := range g.Token("advantages") {
			if !on[i] {
				continue
			}
			if n++; d[i] == 0 && a != 0 {
				clipped++
			}
			if !decided[i] {
				return ""
			}
		}
		p := s.predict("scalars/clip_frac", g.Batch)
		return near(nil, p.Want, []float64{clipped / n}, func(f int) float64 { return p.Bound[f] + s.num("mean.eps", 0) })
	},
	faults: map[string]fault{"|ρ − 1| > ε": {options: "metric.clip_frac=outside"}, "a share of all cells": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		if len(p.Want) == 1 {
			p.Want[0] *= float64(len(onTokens(b.Mask, b.Token("advantages")))) / float64(len(b.Mask)+1)
		}
	}}},
}, {
	name: "old log-probs that are absent are a detached copy (E)", given: surrogateAlone, open: openPolicy + openReduction, where: surrogates,
	holds: func(s *subject) string {
		g := s.updated()
		copied := replaced(g, "logp_old", g.Token("logp_new"))
		absent := grid{g.Without("logp_old")}
		free := s.with("ratio.old=stopgrad_new")
		stored := s.with("ratio.old=stored")
		if broken := identical(nil, free.loss(absent).Want, stored.loss(copied).Want); broken != "" {
			return "loss: " + broken
		}
		return identical(nil, free.dlogp(absent).Want, stored.dlogp(copied).Want)
	},
	faults: map[string]fault{"a ratio that is a constant": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		if b.Token("logp_old") == nil {
			clear(p.Want)
		}
	}}},
}}

const (
	scoreFunction = "loss.kind reinforce: −A·lp, whose value is not that of a ratio"
	rowRatio      = "ratio.level seq_sum: a token moves the ratio of its whole row"
)

var policySkips = skips{
	"ratio 1: the loss is that of −A (E)": {scoreFunction: "nanogpt-grpo@1da2900 grpo-mlm@1"},
	"ratio 1: the gradient is −A·w (B)":   {rowRatio: "trl-rloo@1.9 trl-rloo@1.16 recrl@0ce4bed"},
	"the loss of a token is at least the unclipped one (E)": {
		"clip.dual: −A·c bounds the loss from above": "verl-ppo@0.8 verl-ppo@0.9 nemo-ppo@7ea279a verl-grpo@0.8 verl-grpo@0.9",
	},
	"what masked cells hold does not matter (E)": {everyCell: "oai@2019 nplus@2023 cleanrl@020cf0e recrl@0ce4bed"},
	"the clip fraction counts the tokens without gradient (E)": {
		"metric.clip_frac outside: |ρ − 1| > ε whatever the sign of A": "cleanrl@020cf0e tinier-ppo@d3ec1cf ppo-gsm8k@1",
	},
}

func TestPolicyLaws(t *testing.T) { testLaws(t, policyLaws, policySkips) }
