package stage

import (
	"slices"
	"testing"

	"plumbline/internal/format/dump"
)

// gaeMaskLaws are about cells outside the mask, and about rows among others.
var gaeMaskLaws = []law{{
	name: "appended masked columns leave A (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		g := s.scored(true)
		wide := widened(g, 1+s.r.IntN(3), s.junk)
		p, q := s.advantages(g), s.advantages(wide)
		return identical(nil, onTokens(wide.Mask, q.Want), onTokens(g.Mask, p.Want))
	},
	faults: map[string]fault{"the last column leaks": leaks("values", fromLast), "a mean over columns": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] /= float64(b.Cols)
		}
	}}},
}, {
	name: "what padding holds does not matter (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		g := s.scored(true)
		after := 0 // TRL takes the value of one token more
		if s.text("gae.hole", "") == "none" {
			after = 1
		}
		return s.dirtied(g, func(i int) bool { return i%g.Cols > lastToken(g.Batch, i/g.Cols)+after })
	},
	faults: map[string]fault{"the last column leaks": leaks("values", fromLast), "a mask of ones": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.WithMask(slices.Repeat([]bool{true}, len(b.Mask)))
	}}},
}, {
	name: "what masked cells hold does not matter (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		g := s.scored(true)
		return s.dirtied(g, func(i int) bool { return !g.Mask[i] })
	},
	faults: map[string]fault{"the last column leaks": leaks("values", fromLast), "gae.hole none": {options: "gae.hole=none gae.value_mask=p1"},
		"gae.hole cut": {options: "gae.hole=cut"}},
}, {
	name: "a row with holes is the row without them (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		p := s.advantages(g)
		for r := range g.Rows {
			mask := g.Mask[r*g.Cols : (r+1)*g.Cols]
			reward, value := onTokens(mask, g.Token("token_rewards")[r*g.Cols:]), onTokens(mask, g.Token("values")[r*g.Cols:])
			short := newGrid(len(value), len(value)).token("token_rewards", reward...).token("values", value...).row("next_values", g.Row("next_values")[r])
			if broken := identical(nil, s.advantages(short).Want, onTokens(mask, p.Want[r*g.Cols:])); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: map[string]fault{"gae.hole zero_step": {options: "gae.hole=zero_step"}, "gae.hole cut_next": {options: "gae.hole=cut_next"}, "gae.hole none": {options: "gae.hole=none"}},
}, {
	name: "permutation of rows (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		order := s.r.Perm(g.Rows)
		return identical(nil, s.advantages(rowsOf(g, order...)).Want, permuted(s.advantages(g).Want, order, g.Cols))
	},
	faults: map[string]fault{"the row before leaks": rowFollowsRow, "the first row's values": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		v := slices.Clone(b.Token("values"))
		for i := range v {
			v[i] = v[i%b.Cols]
		}
		return b.With("values", v)
	}}},
}, {
	name: "the rows of a batch one by one (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		p := s.advantages(g)
		for r := range g.Rows {
			if broken := identical(nil, s.advantages(rowsOf(g, r)).Want, p.Want[r*g.Cols:(r+1)*g.Cols]); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: map[string]fault{"the row before leaks": rowFollowsRow},
}}

// widened returns g with more masked columns.
func widened(g grid, extra int, fill func(int) float64) grid {
	w := ofOneFile(newGrid(g.Cols+extra, make([]int, g.Rows)...))
	w.Meta = g.Meta
	for i, m := range g.Mask {
		w.Mask[i/g.Cols*w.Cols+i%g.Cols] = m
	}
	for name, x := range g.Tensors {
		y := *x
		if x.Layout == dump.PerToken {
			y.Data = make([]float64, len(w.Mask))
			for i := range y.Data {
				if y.Data[i] = fill(i); i%w.Cols < g.Cols {
					y.Data[i] = x.Data[i/w.Cols*g.Cols+i%w.Cols]
				}
			}
		}
		w.Tensors[name] = &y
	}
	return w
}

// dirtied compares the advantages with those of a batch that holds junk in some cells.
func (s *subject) dirtied(g grid, on func(i int) bool) string {
	p := s.advantages(g)
	dirty := grid{g.Batch}
	for _, name := range []string{"token_rewards", "kl", "values"} {
		if x := g.Token(name); x != nil {
			dirty = replaced(dirty, name, changedAt(x, on, s.junk))
		}
	}
	for i, m := range g.Mask {
		if p.Judge[i] != m {
			return at(g.Batch, i) + ": cells of the mask are judged, and no others"
		}
	}
	return identical(g.Mask, s.advantages(dirty).Want, p.Want)
}

var gaeSkips = skips{
	"appended masked columns leave A (E)": {
		"score.index last_column: the score moves with the width of the grid":             "oai@2019 nplus@2023",
		"score.index eos_plus_1: a row that fills the grid gets its score a column later": "trl-ppo@1.9 trl-ppo@1.12",
	},
	"what masked cells hold does not matter (E)": {
		"gae.hole none: no mask in the recursion, a value within the value mask counts": "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e",
	},
	"a row with holes is the row without them (E)": {
		"gae.hole none: a hole is a step like any other":                "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e",
		"gae.hole zero_step: a hole is a step without value and reward": "openrlhf-ppo@0.11",
		"gae.hole cut_next: nothing is taken from behind a hole":        "tinier-ppo@d3ec1cf ppo-gsm8k@1",
	},
	"truncation and termination differ (X)": {
		"gae.truncated_bootstrap none: 0 follows a response that was cut off, as one that ended": "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 verl-ppo@0.8 verl-ppo@0.9 openrlhf-ppo@0.11 nemo-ppo@7ea279a tinier-ppo@d3ec1cf ppo-gsm8k@1",
	},
}

func TestGAELaws(t *testing.T) { testLaws(t, slices.Concat(gaeLaws, gaeMaskLaws), gaeSkips) }
