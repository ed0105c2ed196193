package fault

import (
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// turn is a run of tokens of a row between others, as those of tools, that are masked: cells [lo, hi) of the grid.
type turn struct{ lo, hi int }

func (t turn) tokens() float64 { return float64(t.hi - t.lo) }

// turnsOf returns the turns of every row.
func turnsOf(mask []bool, cols int) [][]turn {
	rows := make([][]turn, len(mask)/cols)
	for r := range rows {
		for i := r * cols; i < (r+1)*cols; i++ {
			switch last := len(rows[r]) - 1; {
			case !mask[i]:
			case i > r*cols && mask[i-1]:
				rows[r][last].hi++
			default:
				rows[r] = append(rows[r], turn{i, i + 1})
			}
		}
	}
	return rows
}

// turnForms are what programs make of the turns of a row whose n tokens have the weight 1/n, times n: t is one of its turns, at is its place among them.
var turnForms = []struct {
	id, title string
	of        func(n float64, turns []turn, at int) float64
}{
	{"AGG-KIND", "the mean of a response is that of the means of its turns", func(n float64, turns []turn, at int) float64 {
		return n / float64(len(turns)) / turns[at].tokens()
	}},
	{"AGG-KIND", "the means of the turns of a response are summed", func(n float64, turns []turn, at int) float64 { return n / turns[at].tokens() }},
	{"AGG-KIND", "the sum over a response is divided by the number of its turns, not of its tokens", func(n float64, turns []turn, _ int) float64 {
		return n / float64(len(turns))
	}},
	{"LOSS-MASK-OTHER", "the mean of a response is that of its first turn", func(n float64, turns []turn, at int) float64 {
		return n / turns[0].tokens() * float64(boolToInt(at == 0))
	}},
	{"LOSS-MASK-OTHER", "the mean of a response is that of its last turn", func(n float64, turns []turn, at int) float64 {
		return n / turns[len(turns)-1].tokens() * float64(boolToInt(at == len(turns)-1))
	}},
	{"LOSS-MASK-OTHER", "the first turn of a response alone is summed, and all are counted", func(_ float64, _ []turn, at int) float64 { return float64(boolToInt(at == 0)) }},
	{"LOSS-MASK-OTHER", "the last turn of a response alone is summed, and all are counted", func(_ float64, turns []turn, at int) float64 {
		return float64(boolToInt(at == len(turns)-1))
	}},
	{"LOSS-MASK-OTHER", "the first turn of a response is left out of the sum, and counted", func(_ float64, turns []turn, at int) float64 {
		return float64(boolToInt(at > 0 || len(turns) == 1))
	}},
}

// turnEdits are reductions of responses of several turns that read the turns.
func turnEdits(o *stage.Outcome) (list []edit) {
	if s := o.Check.Stage; s != convention.Aggregate && s != convention.Gradient || o.Check.Output == "value_loss" || o.Check.Output == "dvalues" || o.Case.B.Cols == 0 {
		return nil
	}
	several := 0
	for _, turns := range turnsOf(o.Case.B.Mask, o.Case.B.Cols) {
		several += boolToInt(len(turns) > 1)
	}
	if several < 2 {
		return nil
	}
	for _, f := range turnForms {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, own: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if c.B.Cols == 0 || f.id == "AGG-KIND" && aggregation(c) != "seq_mean_token_mean" {
				return nil
			}
			by, n := make([]float64, len(c.B.Mask)), tokensOf(c.B, c.B.Mask)
			for r, turns := range turnsOf(c.B.Mask, c.B.Cols) {
				for at, t := range turns {
					for i := t.lo; i < t.hi; i++ {
						by[i] = f.of(n[r], turns, at)
					}
				}
			}
			return weightedCells(c.B, c, ch, by)
		}})
	}
	// Every turn is a row of its own: the mean over all of them, of the micro-batch or of the step, in place of that over rows or tokens.
	for _, whole := range []bool{false, true} {
		words := map[bool]string{false: "of the micro-batch", true: "of the step"}[whole]
		list = append(list, edit{id: "AGG-KIND", title: "turns are averaged as responses are: the mean over all turns " + words + " of their means", changes: 1, own: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return turnsAsRows(c, ch, whole) }})
	}
	return list
}

// turnsAsRows predicts an output of a loss that is the mean over turns of their means.
func turnsAsRows(c *stage.Case, ch *stage.Check, whole bool) *stage.Prediction {
	b := c.B
	if b.Cols == 0 {
		return nil
	}
	kind := aggregation(c)
	n, turns, by := tokensOf(b, b.Mask), turnsOf(b.Mask, b.Cols), make([]float64, len(b.Mask))
	for _, f := range b.Files {
		lo, hi := f.Lo, f.Hi
		if whole {
			lo, hi = 0, b.Rows
		}
		var rows, tokens, all float64
		for r := lo; r < hi; r++ {
			rows, tokens, all = rows+1, tokens+n[r], all+float64(len(turns[r]))
		}
		for r := f.Lo; r < f.Hi; r++ {
			for _, t := range turns[r] {
				for i := t.lo; i < t.hi; i++ {
					switch kind {
					case "seq_mean_token_mean":
						by[i] = n[r] * rows / all / t.tokens()
					case "token":
						by[i] = tokens / all / t.tokens()
					default:
						return nil
					}
				}
			}
		}
	}
	return weightedCells(b, c, ch, by)
}
