package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// rewardWhitening is how a program may whiten the rewards that the recursion takes: y = (r − m)/s + m.
type rewardWhitening struct {
	id, title string
	span      func(b *dump.Batch, row int) (key float64, ok bool) // nil: the rows that are declared
	cells     string                                              // of [whiteningCells]; "": those that are declared
	lost      bool                                                // m is not added back
	spread    string                                              // "": the deviation; "var": the variance; "other": the deviation with the other degrees of freedom
	none      bool                                                // y = r
	kept      bool                                                // y stands behind the response, too, where it should be 0
}

// whiteForms are recursions over rewards that are whitened in another way than declared, where the dump holds them as they were before.
func whiteForms(c *stage.Case) (list []recursionForm) {
	if !c.WhitensDumped() || whiteSomewhere(c.B, c.Token("token_rewards").X) {
		return nil
	}
	forms := []rewardWhitening{
		{id: "WHITEN-REWARDS-MISSING", title: "the rewards are not whitened before the recursion", none: true},
		{id: "WHITEN-REWARDS", title: "the rewards lose their mean where they are whitened", lost: true},
		{id: "WHITEN-REWARDS", title: "the rewards are divided by their variance, not by their deviation", spread: "var"},
		{id: "WHITEN-REWARDS", title: "the rewards lose their mean and are divided by their variance", spread: "var", lost: true},
		{id: "WHITEN-REWARDS", title: "the rewards are whitened with the other number of degrees of freedom", spread: "other"},
		{id: "WHITEN-REWARDS", title: "the whitened rewards of padding are not set to 0", kept: true},
		{id: "WHITEN-REWARDS", title: "the rewards lose their mean where they are whitened, and those of padding are not set to 0", kept: true, lost: true},
	}
	declared := c.WhiteRewardCells()
	for _, span := range rewardSpans {
		for _, cells := range whiteningCells {
			if span.title == rewardSpans[0].title && slices.Equal(whiteCells(c.B, cells), declared) {
				continue // those that are declared
			}
			for _, lost := range []bool{false, true} {
				w := rewardWhitening{id: "WHITEN-SCOPE", span: span.of, cells: cells, lost: lost}
				if span.title == rewardSpans[0].title {
					w.id = "WHITEN-PADS"
				}
				if w.title = fmt.Sprintf("the rewards are whitened with the moments of other cells: %s, %s", cells, span.title); lost {
					w.title += ", and lose their mean"
				}
				forms = append(forms, w)
			}
		}
	}
	right := recursionForms()[0]
	for _, w := range forms {
		f := right
		f.id, f.title, f.white = w.id, w.title, w.apply
		list = append(list, f)
	}
	return list
}

// apply returns the case whose rewards are whitened so, and what each may be off by; nil where that cannot be told. Rounding is that of [whitenedRewards].
func (w rewardWhitening) apply(c *stage.Case) (*stage.Case, []float64) {
	b, raw := c.B, c.Token("token_rewards")
	place, err := rl.ParseEpsPlace(c.Set.Value("whiten.eps_place").String())
	if err != nil || len(raw.X) != len(b.Mask) || b.Cols == 0 {
		return nil, nil
	}
	valued := c.ValueCells()
	sets := [][]int{nil}
	if w.span != nil {
		sets = spanRows(b, w.span)
	} else {
		for r := range b.Rows {
			sets[0] = append(sets[0], r)
		}
	}
	count := c.WhiteRewardCells()
	if w.cells != "" {
		count = whiteCells(b, w.cells)
	}
	if len(count) != len(raw.X) || sets == nil {
		return nil, nil
	}
	spread := "var" + fmt.Sprint(int(numberOr(c, "whiten.ddof", 0)))
	if w.spread == "other" {
		spread = "var" + fmt.Sprint(1-int(numberOr(c, "whiten.ddof", 0)))
	}
	y, errs := make([]float64, len(raw.X)), make([]float64, len(raw.X))
	for _, rows := range sets {
		var at []int
		var size, e float64
		for _, r := range rows {
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if count[i] {
					at = append(at, i)
					size, e = max(size, math.Abs(raw.X[i])), max(e, raw.E(i))
				}
			}
		}
		if len(at) < 2 {
			return nil, nil
		}
		m, v, eps := centreOf("mean", raw.X, at, at[0]), spreadOf(spread, raw.X, at), max(numberOr(c, "whiten.eps", 1e-8), 0)
		var s float64
		switch {
		case w.spread == "var":
			s = v + eps
		case place == rl.InsideSqrt:
			s = math.Sqrt(v + eps)
		case place == rl.NoStd:
			s = 1
		case place == rl.AddStd:
			s = math.Sqrt(v) + eps
		default:
			s = math.Sqrt(max(v, eps))
		}
		if !(s > 0) {
			return nil, nil
		}
		back := m
		if w.lost {
			back = 0
		}
		for _, r := range rows {
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if !valued[i] && !w.kept {
					continue
				}
				if y[i] = (raw.X[i]-m)/s + back; w.none {
					y[i] = raw.X[i]
				}
				errs[i] = (2*e+64*c.Unit*size)/s*(1+math.Abs(y[i])) + 8*c.Unit*math.Abs(y[i]) + 4*c.Unit*size
			}
		}
	}
	return c.Of(b.With("token_rewards", y), c.Set.With("rewards.whiten", parsed("rewards.whiten", "no"), "hypothesis")), errs
}

// whiteSomewhere reports whether rewards have the variance 1 over the cells of some whitening: then they have been whitened, over other cells than declared.
func whiteSomewhere(b *dump.Batch, x []float64) bool {
	const near = 0.02 // with n for n − 1, and an ε
	for _, span := range rewardSpans {
		for _, cells := range whiteningCells {
			count, white := whiteCells(b, cells), true
			sets := spanRows(b, span.of)
			for _, rows := range sets {
				var at []int
				for _, r := range rows {
					for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
						if count[i] {
							at = append(at, i)
						}
					}
				}
				white = white && len(at) > 1 && math.Abs(spreadOf("var1", x, at)-1) < near
			}
			if white && len(sets) > 0 {
				return true
			}
		}
	}
	return false
}
