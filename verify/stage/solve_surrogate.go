package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
)

// surrogates proposes the clipped surrogates of PPO and what is made of them.
func (s *solver) surrogates(cells []lossCell, base []assign, level, place string) {
	for _, beta := range append(s.betas(cells, place, func(c *lossCell) float64 { return -c.adv * c.rho }), s.betaOfRows(cells, place)...) {
		if s.surrogate(cells, base, level, place, beta); len(s.fits) > 0 {
			return
		}
	}
}

// surrogate is surrogates with one coefficient of the KL term.
func (s *solver) surrogate(cells []lossCell, base []assign, level, place string, beta float64) {
	v := bounds(cells, true, func(c *lossCell) (x, e float64) {
		x, e = c.rest(beta, place)
		return -x / c.adv, e / math.Abs(c.adv)
	})
	if v.n == 0 || v.odd > v.n/4 {
		return
	}
	base = withBeta(base, place, beta)
	kinds := []string{"ppo", "luspo"}
	if level == "seq_mean" {
		kinds = append(kinds, "gspo")
	}
	if v.dropped > 0 && level == "token" {
		kinds = append(kinds, "clip_cov")
	}
	if level == "token" {
		s.klCov(cells, base, beta, place)
	}
	extra := leftOut(cells, beta, place, v.dropped)
	for _, kind := range kinds {
		list := append(slices.Clone(base), word("loss.kind", kind))
		if kind == "clip_cov" {
			list = append(list, covBounds(cells, func(c *lossCell) bool { return c.kept(beta, place) })...)
		}
		s.firstOf(list, extra, v)
	}
}

// leftOut are the numbers of what leaves some tokens out of a loss, tokens of low entropy or rows that went too far, and none, which is last.
func leftOut(cells []lossCell, beta float64, place string, dropped int) (list [][]assign) {
	if dropped > 0 {
		for _, x := range topEntropy(cells, beta, place).candidates() {
			list = append(list, []assign{amount("loss.top_entropy", x)})
		}
		for _, x := range offPolicy(cells, func(c *lossCell) bool { return c.kept(beta, place) }).candidates() {
			list = append(list, []assign{amount("loss.off_policy_max", x)})
		}
	}
	return append(list, nil)
}

// kept reports whether the policy term of a token is in the loss.
func (c *lossCell) kept(beta float64, place string) bool {
	x, e := c.rest(beta, place)
	return !(math.Abs(x) <= e+1e-6*math.Abs(c.adv))
}

// faint reports whether the policy term of a token would not show beside what the loss was rounded to.
func (c *lossCell) faint(beta float64, place string) bool {
	_, e := c.rest(beta, place)
	return math.Abs(c.adv)*min(1, c.rho)*min(1, math.Abs(c.lp)) <= 4*e
}

// firstOf tries the numbers of the bounds, the likeliest first, until some are right; then what no cell tells from them.
func (s *solver) firstOf(list []assign, extra [][]assign, v shown) bool {
	lows, highs := numbers("clip.low", v.low.of(1, -1)), numbers("clip.high", v.high.of(-1, 1))
	duals := []assign{word("clip.dual", "none")}
	deltas := []assign{word("clip.delta", "none")}
	if v.dual.n > 0 {
		duals, deltas = append(numbers("clip.dual", v.dual), duals...), append(deltas, numbers("clip.delta", v.dual)...)
	}
	found := false
	for _, more := range extra {
		for _, delta := range deltas {
			for _, dual := range duals {
				if (v.dual.n > 0) == (delta.value.Kind() == convention.None && dual.value.Kind() == convention.None) || v.dual.n > 0 && delta.value.Kind() != convention.None && dual.value.Kind() != convention.None {
					continue
				}
				hit := false
				for _, low := range lows {
					for _, high := range highs {
						if at := len(s.fits); !hit && s.try(slices.Concat(list, more, []assign{low, high, dual, delta})) {
							hit, found = true, true
							s.mirrored(slices.Concat(list, more, []assign{dual, delta}), low, high, at+1)
						}
					}
				}
			}
		}
		if found {
			return true
		}
	}
	return false
}

// mirrored tries the bound of one side for the other too, where no token shows that one: programs have one number for both more often than none for one,
// and what counts tokens beyond the bounds, whatever the sign of the advantage, may tell. The first of what is right comes at a place among the fits.
func (s *solver) mirrored(list []assign, low, high assign, place int) {
	n := len(s.fits)
	switch number := convention.Number; {
	case low.value.Kind() == convention.None && high.value.Kind() == number && high.value.Num() < 1:
		s.try(slices.Concat(list, []assign{{low.option, high.value}, high}))
	case high.value.Kind() == convention.None && low.value.Kind() == number:
		s.try(slices.Concat(list, []assign{low, {high.option, low.value}}))
	}
	if len(s.fits) > n && place < n {
		first := s.fits[n]
		s.fits = slices.Insert(slices.Delete(s.fits, n, n+1), place, first)
	}
}

// topEntropy returns the share of tokens of highest entropy that the loss keeps: in a micro-batch of n sorted by entropy, where k are left
// out, the quantile 1 − share has a rank in (k − 1, k + t − 1], t being the tokens of the smallest entropy that is kept: the first tokens of responses
// to one prompt have one entropy, and the quantile between two equal numbers is that number.
func topEntropy(cells []lossCell, beta float64, place string) interval {
	v := interval{lo: 0, hi: 1}
	for lo := 0; lo < len(cells); {
		hi := lo
		for hi < len(cells) && cells[hi].file == cells[lo].file {
			hi++
		}
		part := cells[lo:hi]
		lo = hi
		below, above := math.Inf(-1), math.Inf(1) // the largest entropy left out, the smallest kept
		for i := range part {
			c := &part[i]
			switch {
			case math.IsNaN(c.h):
				return interval{}
			case c.adv == 0 || c.w == 0:
			case c.kept(beta, place):
				above = min(above, c.h)
			case c.faint(beta, place):
			default:
				below = max(below, c.h)
			}
		}
		if !(below < above) {
			return interval{}
		}
		least, most := 0, 0 // tokens surely left out; and those that may be
		for i := range part {
			if part[i].h <= below {
				least++
			}
			if part[i].h <= above {
				most++
			}
		}
		if !math.IsInf(above, 1) {
			most--
		}
		n := float64(len(part) - 1)
		if n < 1 {
			continue
		}
		v.lo, v.hi = max(v.lo, 1-float64(most)/n), min(v.hi, 1-float64(least-1)/n)
		v.n++
	}
	if !(v.lo <= v.hi) {
		return interval{}
	}
	v.mid = (v.lo + v.hi) / 2
	return v
}

// offPolicy returns the limit above which the mean log-ratio of a row of negative advantage leaves it out of the loss; nothing where another token is
// left out, or a row that is nearer than one that is kept.
func offPolicy(cells []lossCell, kept func(*lossCell) bool) interval {
	v := interval{lo: math.Inf(-1), hi: math.Inf(1)}
	for i := range cells {
		switch c := &cells[i]; {
		case c.adv == 0 || c.w == 0:
		case !kept(c):
			if v.n++; c.adv > 0 {
				return interval{}
			}
			v.hi = min(v.hi, c.far)
		case c.adv < 0:
			v.lo = max(v.lo, c.far)
		}
	}
	if !(v.lo < v.hi) || math.IsInf(v.hi, 1) {
		return interval{}
	}
	if math.IsInf(v.lo, -1) {
		v.lo = v.hi - math.Abs(v.hi)
	}
	v.mid = (v.lo + v.hi) / 2
	return v
}

// covBounds returns bounds of the covariance that hold all tokens that clip_cov left out.
func covBounds(cells []lossCell, kept func(*lossCell) bool) []assign {
	low, high := math.Inf(1), math.Inf(-1)
	for i := range cells {
		if c := &cells[i]; c.adv != 0 && c.w != 0 && !kept(c) {
			low, high = min(low, c.cov), max(high, c.cov)
		}
	}
	lower := shortest(low-0.2*math.Abs(low), low-1e-4*math.Abs(low), 0.95*low)
	return []assign{amount("cov.lower", lower), amount("cov.upper", max(5, 2*high)), amount("cov.fraction", 2e-4)}
}

// klCov proposes the surrogate without a clip that holds tokens back by coef·|d|: the coefficient by the tokens that are off −A·ρ, their
// share by how many a file has.
func (s *solver) klCov(cells []lossCell, base []assign, beta float64, place string) {
	var x, w []float64
	count, total := map[int]int{}, map[int]int{}
	for i := range cells {
		c := &cells[i]
		total[c.file]++
		rest, e := c.rest(beta, place)
		extra := rest + c.adv*c.rho
		if math.Abs(extra) > 4*e+4*math.Abs(c.adv)*(c.rhoE+c.u*c.rho) && c.d != 0 {
			x, w = append(x, extra/math.Abs(c.d)), append(w, math.Abs(c.d))
			count[c.file]++
		}
	}
	if len(x) == 0 {
		return
	}
	coef := weightedMedian(x, w)
	if !(coef > 0) {
		return
	}
	lo, hi := 0.0, 1.0
	for f, n := range total {
		if k := count[f]; k > 1 { // one is held back whatever the share is, and d may be 0
			lo = max(lo, float64(k)/float64(n))
		}
	}
	for f, n := range total {
		if k := count[f]; float64(k+1)/float64(n) > lo {
			hi = min(hi, float64(max(k, 1)+1)/float64(n))
		}
	}
	fraction := shortest(lo, math.Nextafter(hi, 0), (lo+hi)/2)
	for _, c := range []float64{written(coef, 1e-3), coef, written(coef, 2e-2)} {
		for _, f := range []float64{fraction, 0.02, 2e-4} {
			if s.try(append(slices.Clone(base), word("loss.kind", "kl_cov"), amount("cov.coef", c), amount("cov.fraction", f))) {
				return
			}
		}
	}
}
