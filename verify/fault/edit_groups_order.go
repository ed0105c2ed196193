package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// A table is how a program cuts the scores of a rollout, n prompts with G responses each in their order, into rows whose statistics it takes, and which of
// them an answer at position k is given.
type table struct {
	title string
	row   func(k, n, g int) int // the row of the table whose statistics the answer at k is given
	of    func(k, n, g int) int // the row that the answer at k is part of
	id    string                // of package bug
	size  bool                  // it is of another number of answers, which a right group of a prompt that is there twice may have
}

// interleaved is a table of every n-th answer.
var interleaved = table{"groups that are cut across prompts: every n-th answer", func(k, n, _ int) int { return k % n }, func(k, n, _ int) int { return k % n }, "ADV-GROUPS-INTERLEAVED", false}

var tables = []table{
	{"the right group", func(k, _, g int) int { return k / g }, func(k, _, g int) int { return k / g }, "", false},
	{"another group: the statistics of the groups are repeated as a whole, not each for its own responses", func(k, n, _ int) int { return k % n }, func(k, _, g int) int { return k / g }, "ADV-OTHER-GROUP", false},
	{"groups that are cut across prompts, every n-th answer, each given to the answers of one prompt", func(k, _, g int) int { return k / g }, func(k, n, _ int) int { return k % n }, "ADV-GROUPS-INTERLEAVED", false},
	interleaved,
	{"the answers of the same place in all groups: the statistics are taken over the prompts", func(k, _, g int) int { return k % g }, func(k, _, g int) int { return k % g }, "ADV-GROUPS-INTERLEAVED", false},
	{"as many answers in a row as there are prompts: the axes of the table are exchanged", func(k, n, _ int) int { return k / n }, func(k, n, _ int) int { return k / n }, "ADV-GROUPS-INTERLEAVED", false},
	{"half of each group", func(k, _, g int) int { return k / max(g/2, 1) }, func(k, _, g int) int { return k / max(g/2, 1) }, "ADV-OTHER-GROUP", true},
	{"two groups together", func(k, _, g int) int { return k / (2 * g) }, func(k, _, g int) int { return k / (2 * g) }, "ADV-WRONG-GROUPS", true},
}

// flattenings are permutations of the answers that a table flattened along the other axis makes: the position that an answer's advantage is taken from.
var flattenings = []struct {
	title string
	from  func(k, n, g int) int
}{
	{"the advantages of a table of prompts and responses are flattened along its columns: they are of other answers", func(k, n, g int) int { return k%n*g + k/n }},
	{"the advantages are taken from a table of responses and prompts along its columns: they are of other answers", func(k, n, g int) int { return k%g*n + k/g }},
}

// orderEdits returns edits of group advantages A = (r − m)/(s + ε) whose mean, deviation or both are those of other answers, as a table of scores with its
// axes exchanged or repeated along the wrong one gives.
func orderEdits(o *stage.Outcome) []edit {
	if rolloutOf(o.Case, o.Check) == nil {
		return nil
	}
	var list []edit
	for i, t := range tables {
		for j, u := range tables {
			wrong, title := t, ""
			switch {
			case i == 0 && j == 0, i != 0 && j != 0 && i != j:
				continue
			case i == j:
				title = "mean and deviation are those of " + t.title
			case j == 0:
				title = "the mean is that of " + t.title
			default:
				wrong, title = u, "the deviation is that of "+u.title
			}
			list = append(list, edit{id: wrong.id, title: title, changes: 1, foreign: !wrong.size,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return tabled(t, u, c, ch) }})
		}
	}
	for _, order := range flattenings {
		list = append(list, edit{id: "ADV-GROUPS-INTERLEAVED", title: "mean and deviation are those of " + interleaved.title + "; and " + order.title, changes: mostChanges, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return flattened(order.from, tabled(interleaved, interleaved, c, ch), c, ch)
			}})
		list = append(list, edit{id: "ADV-ROWS-PERMUTED", title: order.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return flattened(order.from, under(sameInput, c, ch), c, ch)
			}})
	}
	return list
}

// A rollout is n groups of g answers in their order: the rows of the batch by position.
type rollout struct {
	n, g int
	rows []int
}

// plainGroups reports whether advantages are made of the scores of groups, by their mean and deviation alone.
func plainGroups(c *stage.Case, ch *stage.Check) bool {
	id, score := c.B.Row("group_id"), c.B.Row("scores")
	if ch.ID != "advantage/group" || len(id) != c.B.Rows || len(score) != c.B.Rows || c.B.Rows < 4 || c.Set.Value("adv.kind").String() != "group" ||
		slices.ContainsFunc(score, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
		return false
	}
	for _, v := range []struct {
		option string
		is     []string
	}{{"adv.center", []string{"mean", "loo"}}, {"adv.scale", []string{"none", "group_std"}}, {"kl.place", []string{"loss", "none"}}, {"reward.clip", []string{"none", "–", "?", "after_baseline"}}, {"whiten.scope", []string{"none", "–"}}} {
		if !slices.Contains(v.is, c.Set.Value(v.option).String()) {
			return false
		}
	}
	return true
}

// rolloutOf returns the answers of a batch in the order of their ids, or of the batch, nil where they are not whole groups of one size, one after the other,
// or where advantages are not made of their scores alone.
func rolloutOf(c *stage.Case, ch *stage.Check) *rollout {
	b, id := c.B, c.B.Row("group_id")
	if !plainGroups(c, ch) {
		return nil
	}
	g, same := groupSize(id)
	if !same || g < 2 || b.Rows%g != 0 || b.Rows == g {
		return nil
	}
	r := &rollout{n: b.Rows / g, g: g, rows: byPlace(b)}
	for k, row := range r.rows {
		if k%g > 0 && id[row] != id[r.rows[k-1]] {
			return nil
		}
	}
	return r
}

// tabled predicts advantages whose means are of one table and whose deviations are of another.
func tabled(mean, deviation table, c *stage.Case, ch *stage.Check) *stage.Prediction {
	r := rolloutOf(c, ch)
	if r == nil {
		return nil
	}
	score, loo, scaled := c.B.Row("scores"), c.Set.Value("adv.center").String() == "loo", c.Set.Value("adv.scale").String() == "group_std"
	type stats struct{ sum, square, n, size float64 }
	gather := func(t table) map[int]*stats {
		all := map[int]*stats{}
		for pass := range 2 {
			for k, row := range r.rows {
				at := t.of(k, r.n, r.g)
				if all[at] == nil {
					all[at] = &stats{}
				}
				s := all[at]
				if pass == 0 {
					s.sum, s.n, s.size = s.sum+score[row], s.n+1, max(s.size, math.Abs(score[row]))
				} else {
					d := score[row] - s.sum/s.n
					s.square += d * d
				}
			}
		}
		return all
	}
	if !scaled && deviation.title != mean.title && deviation.title != tables[0].title {
		return nil
	}
	means, deviations := gather(mean), gather(deviation)
	eps, ddof := numberOr(c, "adv.eps", 0), numberOr(c, "adv.ddof", 1)
	adv, bound := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	lo, hi, _ := clippedAfter(c)
	for k, row := range r.rows {
		s := means[mean.row(k, r.n, r.g)]
		m := s.sum / s.n
		if loo {
			if s.n < 2 || mean.row(k, r.n, r.g) != mean.of(k, r.n, r.g) {
				return nil
			}
			m = (s.sum - score[row]) / (s.n - 1)
		}
		x := score[row] - m
		e := 8 * c.Unit * (math.Abs(score[row]) + 2*s.size)
		if scaled {
			d := deviations[deviation.row(k, r.n, r.g)]
			by := math.Sqrt(d.square/max(d.n-ddof, 1)) + eps
			if !(by > 0) {
				return nil
			}
			x, e = x/by, e/by
			e += 8 * c.Unit * math.Abs(x) * (1 + d.size/by)
		}
		adv[row], bound[row] = min(max(x, lo), hi), e
	}
	return perRowOrToken(adv, bound, c, ch)
}

// flattened predicts advantages p, each at the answer of another position.
func flattened(from func(k, n, g int) int, p *stage.Prediction, c *stage.Case, ch *stage.Check) *stage.Prediction {
	r := rolloutOf(c, ch)
	if r == nil || p == nil {
		return nil
	}
	at := func(row int) int { // a cell with the advantage of a row
		if len(p.Want) == c.B.Rows {
			return row
		}
		return firstOf(c.B, row)
	}
	adv, bound := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	for k, row := range r.rows {
		i := at(r.rows[from(k, r.n, r.g)])
		if i < 0 || i >= len(p.Want) {
			return nil
		}
		adv[row], bound[row] = p.Want[i], p.Bound[i]
	}
	return perRowOrToken(adv, bound, c, ch)
}

// perRowOrToken lays a number of every row out as the output of a check is: per row, or at every token.
func perRowOrToken(x, bound []float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	t := c.B.Tensors[ch.Output]
	if t == nil {
		return nil
	}
	if t.Layout == dump.PerRow {
		return &stage.Prediction{Want: x, Bound: bound, Scale: 1}
	}
	p := &stage.Prediction{Want: make([]float64, len(c.B.Mask)), Bound: make([]float64, len(c.B.Mask)), Judge: slices.Clone(c.B.Mask), Scale: 1}
	for i := range c.B.Tokens() {
		p.Want[i], p.Bound[i] = x[i/c.B.Cols], bound[i/c.B.Cols]
	}
	return p
}
