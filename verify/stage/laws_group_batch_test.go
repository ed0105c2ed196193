package stage

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
)

// responses is a batch of groups with at least two responses each, one advantage per response.
type responses struct {
	grid
	group [][]int // rows
}

// responses draws groups whose rows lie in any order, of which no reward repeats.
func (s *subject) responses(reward func() float64) responses {
	c := *s
	var ids []float64
	groups := 1 + s.r.IntN(3)
	least := 2
	if has("adv.scale", "loo_std")(s.set) { // the other one of a pair has no deviation
		least = 3
	}
	for g := range groups {
		for range least + s.r.IntN(4) {
			ids = append(ids, float64(10+g))
		}
	}
	s.r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	c.rows = len(ids)
	b := responses{grid: c.grid(true), group: make([][]int, groups)}
	for r, id := range ids {
		b.group[int(id)-10] = append(b.group[int(id)-10], r)
	}
	score := s.draw(len(ids), reward)
	for i := range score {
		score[i] += float64(8 * (i % 3))
	}
	b.row("scores", score...).row("group_id", ids...).row("advantages", make([]float64, len(ids))...)
	if s.text("adv.kind", "") == "batch_baseline" { // all are one group
		b.group = [][]int{nil}
		for r := range ids {
			b.group[0] = append(b.group[0], r)
		}
	}
	return b
}

func (b responses) scores() []float64 { return b.Row("scores") }

// with returns b with other scores.
func (b responses) with(score []float64) responses {
	return responses{replaced(b.grid, "scores", score), b.group}
}

// of returns the index of the group of every row.
func (b responses) of() []int {
	of := make([]int, b.Rows)
	for g, rows := range b.group {
		for _, r := range rows {
			of[r] = g
		}
	}
	return of
}

// only returns the responses of some rows.
func (b responses) only(rows []int) grid { return rowsOf(b.grid, rows...) }

func (s *subject) groupAdvantage(g grid) *Prediction { return s.predict("advantage/group", g.Batch) }

// term returns a number of the derivation of element i, 0 if it has none of that name.
func (p *Prediction) term(i int, name string) float64 {
	for _, t := range p.Terms(i) {
		if t.Name == name {
			return t.Value
		}
	}
	return 0
}

func mapped(x []float64, f func(i int, v float64) float64) []float64 {
	return changedAt(x, func(int) bool { return true }, func(i int) float64 { return f(i, x[i]) })
}

var unequal = map[string]fault{"by row": {after: func(_ *subject, _ *dump.Batch, p *Prediction) {
	for i := range p.Want {
		p.Want[i] += 1e-9 * float64(i)
	}
}}, "groups by stride": byStride}

// equalPair gives two responses of a group equal rewards.
func (s *subject) equalPair(bound func(p *Prediction, i int) float64) string {
	b := s.responses(s.r.NormFloat64)
	rows := b.group[s.r.IntN(len(b.group))]
	one, other := rows[0], rows[len(rows)-1]
	score := slices.Clone(b.scores())
	score[other] = score[one]
	p := s.groupAdvantage(b.with(score).grid)
	if !(math.Abs(p.Want[one]-p.Want[other]) <= bound(p, one)+bound(p, other)) {
		return fmt.Sprintf("%v and %v", p.Want[one], p.Want[other])
	}
	return ""
}

// equalRewards gives one group equal rewards.
func (s *subject) equalRewards(c float64) string {
	b := s.responses(s.r.NormFloat64)
	on := make([]bool, b.Rows)
	for _, r := range b.group[0] {
		on[r] = true
	}
	b = b.with(mapped(b.scores(), func(i int, r float64) float64 {
		if on[i] {
			return c
		}
		return r
	}))
	return identical(on, s.groupAdvantage(b.grid).Want, make([]float64, b.Rows))
}

const (
	notCentred = "adv.center none: the reward as it is"
	notScaled  = "adv.scale none: the unit of the rewards is kept"
	ofTheBatch = "adv.scale batch_std: σ is that of all groups"
	oneGroup   = "adv.kind batch_baseline, whiten.scope global: the batch is one group"
)

var groupSkips = skips{
	"a shift of a group's rewards changes nothing (B)": {notCentred: "recrl@0ce4bed"},
	"a factor of 4 changes nothing without ε (E)": {
		notScaled: "trl-rloo@1.9 trl-rloo@1.16 open-instruct@e6c3044 recrl@0ce4bed",
	},
	"a factor of 4 changes nothing (E)": {
		"adv.eps above 0":    "trl-grpo@1.9 liger-grpo@ead96b6 trl-grpo@1.16 verl-grpo@0.8 verl-grpo@0.9 openrlhf-group@0.11 nemo-grpo@7ea279a nanogpt-grpo@1da2900 grpo-mlm@1",
		"whiten.eps above 0": "shielded@1",
	},
	"the order of the groups (E)": {
		"adv.scale batch_std: a sum over all groups, in their order": "nanogpt-grpo@1da2900 grpo-mlm@1",
		oneGroup: "shielded@1",
	},
	"another group's rewards do not matter (E)":   {ofTheBatch: "nanogpt-grpo@1da2900 grpo-mlm@1", oneGroup: "shielded@1"},
	"a group of any size is what it is alone (E)": {ofTheBatch: "nanogpt-grpo@1da2900 grpo-mlm@1", oneGroup: "shielded@1"},
	"the advantages of a group add up to 0 (B)": {
		"adv.scale loo_std: every response has a σ of its own": "nemo-grpo@7ea279a",
		notCentred: "recrl@0ce4bed",
	},
	"equal rewards whose sum is exact give exactly 0 (E)": {
		"adv.std_of centred: the mean of the batch, 0 up to rounding, is taken away again": "nanogpt-grpo@1da2900",
		notCentred: "recrl@0ce4bed",
	},
	"equal rewards give exactly 0 (E)": {
		"adv.zero_std divide_eps: the rounding of the mean is left over ε": "trl-grpo@1.9 liger-grpo@ead96b6 trl-grpo@1.16 verl-grpo@0.8 verl-grpo@0.9 openrlhf-group@0.11 nanogpt-grpo@1da2900",
		"adv.zero_std skip: the rounding of the mean is left":              "nemo-grpo@7ea279a",
		"adv.scale none: the rounding of the mean is left":                 "trl-rloo@1.9 trl-rloo@1.16 open-instruct@e6c3044",
		notCentred: "recrl@0ce4bed",
	},
	"a group of one gives 0 (E)": {
		"adv.singleton raw: r/(1 + ε)":      "verl-grpo@0.8 verl-grpo@0.9",
		"adv.singleton nan: 0/0":            "openrlhf-group@0.11 nanogpt-grpo@1da2900",
		"adv.singleton error: an exception": "grpo-mlm@1",
		notCentred:                          "recrl@0ce4bed",
	},
	"a reward that is NaN is left out (E)": {
		"adv.center none: NaN as it is": "recrl@0ce4bed",
		"whiten.scope global: the 0 of a response without a reward is whitened with the others": "shielded@1",
	},
	"one scored response of a group gives no NaN (E)": {
		"adv.center none: NaN as it is":     "recrl@0ce4bed",
		"adv.singleton error: an exception": "grpo-mlm@1",
	},
	"equal rewards of a group have equal advantages (E)": {
		"adv.scale loo_std: the others of each are summed in another order": "nemo-grpo@7ea279a",
	},
}

func TestGroupLaws(t *testing.T) { testLaws(t, groupLaws, groupSkips) }
