package stage

import (
	"math"
	"slices"
	"sort"
)

// sums returns what an aggregation makes of the policy losses of a form in every file and of how they change with each parameter, and notes the largest of
// their magnitudes.
func (t *boundTokens) sums(f *boundForm) (policy []float64, by [params][]float64) {
	if shape, ok := f.shape(); ok && f.weights == "" {
		if held := t.sorted(f, shape.ratio); held != nil {
			return t.heldSums(f, shape, held)
		}
	}
	loss, slopes := t.policy(f)
	policy = t.of(loss, f.kind)
	for _, k := range f.uses {
		if k != paramClip {
			by[k] = t.of(slopes[k], f.kind)
		}
	}
	for i := range loss {
		loss[i] = math.Abs(loss[i])
	}
	f.size = slices.Max(t.of(loss, f.kind))
	return policy, by
}

// sortedTokens are the tokens of a file with one sign of the advantage, by their ratios: a bound holds those before or behind it, so that the sum of their
// losses is known for any bound. A sum is that of the tokens before a place.
type sortedTokens struct {
	ratio           []float64
	weight, product []float64 // sums of A, and of A times the ratio
}

// sortedKey is what the order and the sums depend on.
type sortedKey struct {
	level string
	ratio boundRatio
	cispo bool
	kind  int // of the weights, 0 where there are none
}

// sorted returns the tokens of every file by the sign of the advantage; nil where their numbers are not finite.
func (t *boundTokens) sorted(f *boundForm, of boundRatio) [][2]sortedTokens {
	key := sortedKey{level: f.level, ratio: of, cispo: f.kindOf == "cispo"}
	weights := t.weights(f.kind)
	switch {
	case weights != nil && f.kind < ofStrays:
		key.kind = ofRows
	case weights != nil:
		key.kind = f.kind
	}
	if list, ok := t.order[key]; ok {
		return list
	}
	if t.order == nil {
		t.order = map[sortedKey][][2]sortedTokens{}
	}
	type token struct{ ratio, a float64 }
	ratio := t.ratio(f.level)
	list := make([][2]sortedTokens, len(t.files))
	for k := range t.files {
		var tokens [2][]token
		for _, row := range t.files[k].rows {
			for i := row.lo; i < row.hi; i++ {
				x := token{of.of(ratio[i]), t.adv[i]}
				if key.cispo {
					x.a *= t.lp[i]
				}
				if weights != nil {
					x.a *= weights[i]
				}
				if math.IsNaN(x.a*x.ratio) || math.IsInf(x.a*x.ratio, 0) {
					t.order[key] = nil
					return nil
				}
				side := 0
				if x.a < 0 {
					side = 1
				}
				tokens[side] = append(tokens[side], x)
			}
		}
		for side, some := range tokens {
			slices.SortFunc(some, func(x, y token) int {
				switch {
				case x.ratio < y.ratio:
					return -1
				case x.ratio > y.ratio:
					return 1
				}
				return 0
			})
			s := &list[k][side]
			s.weight, s.product = make([]float64, 1, len(some)+1), make([]float64, 1, len(some)+1)
			for i, x := range some {
				s.ratio = append(s.ratio, x.ratio)
				s.weight, s.product = append(s.weight, s.weight[i]+x.a), append(s.product, s.product[i]+x.a*x.ratio)
			}
		}
	}
	t.order[key] = list
	return list
}

// heldSums is sums of a shape.
func (t *boundTokens) heldSums(f *boundForm, shape boundShape, list [][2]sortedTokens) (policy []float64, by [params][]float64) {
	policy = make([]float64, len(list))
	for _, k := range f.uses {
		by[k] = make([]float64, len(list))
	}
	ends := f.ends(shape)
	f.size = 0
	for k := range list {
		factor := t.factor(&t.files[k], f.kind)
		var size float64
		for side := range list[k] {
			s := &list[k][side]
			below, above := &ends[side][0], &ends[side][1]
			n := len(s.ratio)
			lo := sort.SearchFloat64s(s.ratio, below.at) // tokens held from below
			hi := n                                      // tokens not held from above
			if above.at < math.Inf(1) {
				hi = sort.Search(n, func(i int) bool { return s.ratio[i] > above.at })
			}
			if below.at > above.at {
				lo, hi = n, n
			}
			x := s.product[hi] - s.product[lo]
			if lo > 0 {
				x += below.at * s.weight[lo]
				if below.param != unheld {
					by[below.param][k] -= factor * below.slope * s.weight[lo]
				}
			}
			if hi < n {
				x += above.at * (s.weight[n] - s.weight[hi])
				if above.param != unheld {
					by[above.param][k] -= factor * above.slope * (s.weight[n] - s.weight[hi])
				}
			}
			policy[k] -= factor * x
			size += math.Abs(factor * x)
		}
		f.size = max(f.size, size)
	}
	if shape.negated {
		for _, x := range append([][]float64{policy}, by[:]...) {
			for k := range x {
				x[k] = -x[k]
			}
		}
	}
	return policy, by
}
