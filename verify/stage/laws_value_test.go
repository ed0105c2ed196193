package stage

import (
	"fmt"
	"math"
	"testing"

	"plumbline/verify/convention"
)

func values(set *convention.Set) bool {
	return set.Value("value.factor").Known() && set.Value("value.mask").Known()
}

// openValues is what nemo-ppo@7ea279a leaves to its configuration.
const openValues = "value.clip=0.2 value.coef=0.5 "

// critic draws the values of a critic that has moved, and targets.
func (s *subject) critic() grid {
	g := s.grid(true)
	n := len(g.Mask)
	old := s.draw(n, s.r.NormFloat64)
	return g.token("values", old...).token("values_new", changedAt(old, func(int) bool { return true }, func(i int) float64 { return old[i] + s.r.NormFloat64()/2 })...).
		token("returns", s.draw(n, s.r.NormFloat64)...)
}

var valueLaws = []law{{
	name: "the clipped value loss is at least the unclipped one (E)", open: openReduction + openValues, where: values,
	holds: func(s *subject) string {
		g := s.critic()
		clipped, free := s.predict("aggregate/value_loss", g.Batch).Want[0], s.with("value.clip=none").predict("aggregate/value_loss", g.Batch).Want[0]
		if !(clipped >= free) {
			return fmt.Sprintf("%v, unclipped %v", clipped, free)
		}
		return ""
	},
	faults: map[string]fault{"a minimum": {swap: func(_ *subject, id string) func(*Case) *Prediction {
		return func(c *Case) *Prediction {
			p := Find(id).Predict(c)
			if c.NumOr("value.clip", 0) > 0 {
				free := Find(id).Predict(NewCase(c.B, with(c.Set, "value.clip=none"), c.Unit))
				p.Want[0] = 2*free.Want[0] - p.Want[0]
			}
			return p
		}
	}}},
}, {
	name: "dvalues is 0 where the clipped square is the larger and v beyond the clip (E)", open: openReduction + openValues, where: values,
	holds: func(s *subject) string {
		g := s.critic()
		p := s.predict("gradient/dvalues", g.Batch)
		clip := s.num("value.clip", math.Inf(1))
		for i, d := range p.Want {
			v, old, target := g.Token("values_new")[i], g.Token("values")[i], g.Token("returns")[i]
			c := max(min(v, old+clip), old-clip)
			free, clipped := math.Abs(v-target), math.Abs(c-target)
			if !g.Mask[i] || math.Abs(free-clipped) <= 1e-12 && c != v || math.Abs(math.Abs(v-old)-clip) <= 1e-12 {
				continue
			}
			if zero := clipped > free && c != v || v == target; (d == 0) != zero {
				return fmt.Sprintf("%s: gradient %v", at(g.Batch, i), d)
			}
			if d != 0 && (d > 0) != (v > target) {
				return fmt.Sprintf("%s: gradient %v away from the target", at(g.Batch, i), d)
			}
		}
		return ""
	},
	faults: map[string]fault{"no clip": {options: "value.clip=none"}, "a clip of 0.01": {options: "value.clip=0.01"}, "targets of the next token": offByOne("returns")},
}, {
	name: "what masked cells hold does not matter to the value loss (E)", open: openReduction + openValues, where: values,
	holds: func(s *subject) string {
		g := s.critic()
		dirty := grid{g.Batch}
		for _, name := range []string{"values", "values_new", "returns"} {
			dirty = replaced(dirty, name, changedAt(g.Token(name), func(i int) bool { return !g.Mask[i] }, s.junk))
		}
		if broken := identical(nil, s.predict("aggregate/value_loss", dirty.Batch).Want, s.predict("aggregate/value_loss", g.Batch).Want); broken != "" {
			return "loss: " + broken
		}
		d := s.predict("gradient/dvalues", dirty.Batch).Want
		return identical(nil, d, mapped(s.predict("gradient/dvalues", g.Batch).Want, func(i int, x float64) float64 {
			if !g.Mask[i] {
				return 0
			}
			return x
		}))
	},
	faults: map[string]fault{"value.mask p1": {options: "value.mask=p1"}, "value.mask none": {options: "value.mask=none"}},
}}

var valueSkips = skips{
	"what masked cells hold does not matter to the value loss (E)": {
		"value.mask none: every cell counts":   "oai@2019 nplus@2023 cleanrl@020cf0e",
		"value.mask p1: one token more counts": "trl-ppo@1.9 trl-ppo@1.12",
	},
}

func TestValueLaws(t *testing.T) { testLaws(t, valueLaws, valueSkips) }
