package stage

import (
	"cmp"
	"math"
	"slices"
)

// boundFamily are the stages whose forms differ in what holds them alone.
type boundFamily struct {
	kind     string
	slip     int
	weighted bool
}

func (s *boundStage) family() boundFamily { return boundFamily{s.kind, s.slip, s.weights[0] != ""} }

// likely returns the forms of a family without what holds them: all of few files; of many those that leave the least of the losses after a few steps with
// the bounds that most programs have, each tight and wide.
func (t *boundTokens) likely(s *boundStage, kinds []int, terms map[[2]int][]float64, spent *float64) (list []boundForm) {
	const files, least, share = 12, 64, 4
	for _, weights := range s.weights {
		for _, level := range t.levels(s, weights) {
			for _, base := range t.bases(kinds) {
				if s.kind == geometric && (level != levelsOfRatios[0] || base.kind != ofRows) {
					continue
				}
				base.kindOf, base.slip, base.level, base.weights = s.kind, s.slip, level, weights
				base.engine = t.toEngine && level != detachedLevel && s.kind != logKind
				list = append(list, base)
			}
		}
	}
	if len(t.files) < files || len(list) <= least {
		return list
	}
	left := make(map[int]float64, len(list))
	order := make([]int, len(list))
	for i, base := range list {
		order[i], left[i] = i, math.Inf(1)
		base.uses = append(screens(s), base.uses...)
		for _, k := range []int{0, 2} {
			f := base
			for _, p := range f.uses {
				f.at[p] = t.start(&f, p, k)
			}
			*spent += float64(len(t.lp))
			left[i] = min(left[i], t.leaves(&f, terms))
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(left[a], left[b]) })
	order = order[:max(least, len(list)/share)]
	slices.Sort(order) // the commonest first
	best := make([]boundForm, len(order))
	for i := range best {
		best[i] = list[order[i]]
	}
	return best
}

// screens are the parameters with which the forms of a family are compared.
func screens(s *boundStage) []int {
	var uses []int
	if s.slip > 0 {
		of := boundSlips[s.slip-1].uses
		return of[len(of)-1]
	}
	switch s.kind {
	case logKind:
	case "sapo":
		uses = []int{paramTauPos, paramTauNeg}
	default:
		uses = []int{paramLow, paramHigh}
	}
	if s.weights[0] != "" {
		uses = append(uses, paramCap, paramFloor)
	}
	return uses
}
