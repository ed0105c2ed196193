package stage

import (
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// leftScores are what a baseline of the group leaves of scores, with the options that it is by.
type leftScores struct {
	list []assign
	left []float64 // of each row, NaN where there is none
}

// leftByBaselines are the scores of a batch less the mean of their group, less that of its other rows, and less the mean and over the deviation: as they are, and under
// what y, which is one of these but for a range that it is held in, shows of responses without an end.
func leftByBaselines(b *dump.Batch, y []float64) (all []leftScores) {
	score, id := b.Row("scores"), b.Row("group_id")
	if len(id) != b.Rows || len(score) != b.Rows {
		return nil
	}
	unscaled := func(score []float64, more ...assign) (list []leftScores) {
		for _, center := range []string{"mean", "loo"} {
			list = append(list, leftScores{append([]assign{word("adv.center", center), word("adv.scale", "none")}, more...), centred(score, id, center)})
		}
		return list
	}
	scaled := func(score []float64, more ...assign) (list []leftScores) {
		for _, ddof := range []int{1, 0} { // OpenRLHF's group_norm divides before what is left is held
			list = append(list, leftScores{append([]assign{word("adv.center", "mean"), word("adv.scale", "group_std"), word("adv.ddof", strconv.Itoa(ddof))}, more...), overDeviation(score, id, ddof)})
		}
		return list
	}
	all = append(unscaled(score), scaled(score)...)
	for _, p := range groupPenalties(b, y) {
		all = slices.Concat(all, unscaled(p.left, p.list...), scaled(p.left, p.list...))
	}
	return all
}

// endRule is what becomes of the score s of a response without an end by a number x.
type endRule struct {
	rule string
	is   func(x float64) bool
	left func(s, x float64) float64
}

var endRules = []endRule{
	{"subtract", func(x float64) bool { return x > 0 }, func(s, x float64) float64 { return s - x }},
	{"scale", func(x float64) bool { return x > 0 && x < 1 }, func(s, x float64) float64 { return s * x }},
	{"replace", func(float64) bool { return true }, func(_, x float64) float64 { return x }},
}

func (r endRule) by(x float64) []assign {
	return []assign{word("eos.rule", r.rule), amount("eos.penalty", x), word("eos.test", "eos_id")}
}

// groupPenalties are the scores under each rule for responses without an end that y shows: y is a·(s − c), with a number c of a group, so that two rows of it, of
// which one has ended, tell the score of the other, which has lost one number, is one number, or is multiplied by one. Where a is not 1 two that have ended tell it.
func groupPenalties(b *dump.Batch, y []float64) (found []leftScores) {
	const least, near = 3, 1e-3
	score, id := b.Row("scores"), b.Row("group_id")
	c := NewCase(b, &convention.Set{}, 0)
	open, some := longestRows(c)
	end, known := EndToken(b)
	groups := map[float64][]int{}
	for row := range open {
		at, there := b.TokenID(row, max(c.last(row), 0))
		open[row] = open[row] && !(known && there && at == end)
		if !math.IsNaN(y[row]) {
			groups[id[row]] = append(groups[id[row]], row)
		}
	}
	if !some {
		return nil
	}
	for _, unit := range []func(rows []int) float64{
		func([]int) float64 { return 1 },
		func(rows []int) float64 { return float64(len(rows)) / float64(len(rows)-1) },
		func(rows []int) float64 {
			var of []float64
			for i, r := range rows {
				for _, q := range rows[:i] {
					if !open[r] && !open[q] && score[r] != score[q] {
						of = append(of, (y[r]-y[q])/(score[r]-score[q]))
					}
				}
			}
			a, _ := commonest(of)
			return a
		},
	} {
		var share, lack, stand []float64
		for _, rows := range groups {
			a := unit(rows)
			if !(a > 0) || math.IsInf(a, 0) {
				continue
			}
			for _, r := range rows {
				for _, q := range rows {
					if open[r] && !open[q] {
						s := score[q] - (y[q]-y[r])/a
						share, lack, stand = append(share, s/score[r]), append(lack, score[r]-s), append(stand, s)
					}
				}
			}
		}
		for i, of := range [][]float64{lack, share, stand} {
			f := endRules[i]
			x, n := commonest(of)
			if x = written(x, near); n < least || 4*n < len(of) || !f.is(x) || !hasDigits(x, 2, near) {
				continue
			}
			left := slices.Clone(score)
			for row, o := range open {
				if o {
					left[row] = f.left(score[row], x)
				}
			}
			found = append(found, leftScores{f.by(x), left})
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// overDeviation are what scores have beyond the mean of their group, divided by its deviation; 0 in groups of equal scores.
func overDeviation(score, id []float64, ddof int) []float64 {
	left := centred(score, id, "mean")
	square, n := map[float64]float64{}, map[float64]float64{}
	for row, g := range id {
		square[g], n[g] = square[g]+float64(left[row]*left[row]), n[g]+1
	}
	for row, g := range id {
		if square[g] > 0 {
			left[row] /= math.Sqrt(square[g] / (n[g] - float64(ddof)))
		}
	}
	return left
}

// centred are scores less the mean of their group, or of its other rows, NaN where there are none.
func centred(score, id []float64, center string) []float64 {
	sum, n := map[float64]float64{}, map[float64]float64{}
	for row, g := range id {
		sum[g], n[g] = sum[g]+score[row], n[g]+1
	}
	left := make([]float64, len(score))
	for row, g := range id {
		left[row] = score[row] - sum[g]/n[g]
		if center == "loo" {
			left[row] *= n[g] / (n[g] - 1) // NaN of a row alone
		}
	}
	return left
}
