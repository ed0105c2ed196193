package stage

import (
	"math"
	"slices"
	"strconv"

	"plumbline/verify/convention"
)

// implied returns the values of an option in which no output is linear, and which the dumped numbers give nonetheless: a bound that
// cells stand on, an ε of a denominator, a factor of a recursion.
func (s *search) implied(set *convention.Set, name string) []convention.Value {
	var x []float64
	switch {
	case name == "adv.eps" && s.ch.Output == "advantages":
		x = s.impliedEps(set)
	case (name == "clip.low" || name == "clip.high") && s.ch.ID == "token_loss/policy":
		x = s.impliedClip(set, name == "clip.high")
	case name == "tis.high" && s.ch.Output == "is_weights":
		if t := s.part.Tensors["is_weights"]; t != nil && len(t.Data) > 0 {
			high, at := slices.Max(t.Data), 0
			for _, w := range t.Data {
				if w == high {
					at++
				}
			}
			if at > 1 {
				x = append(x, high)
			}
		}
	case name == "dpo.beta" && (s.ch.Output == "loss" || s.ch.Output == "pair_loss"):
		x = s.impliedBeta(set)
	case name == "dpo.alpha" && s.first != nil:
		if v := s.first.Case.Set.Value(name); v.Kind() == convention.Number {
			x = append(x, 1-v.Num()) // TRL 1.16's coefficient, declared as α
		}
	case name == "value.clip" && s.ch.ID == "aggregate/value_loss":
		x = s.impliedValueClip(set)
	case (name == "gae.gamma" || name == "gae.lambda") && s.part.Token("returns") != nil:
		x = s.impliedDecay(set, name == "gae.gamma")
	}
	var list []convention.Value
	for _, v := range x {
		if !math.IsNaN(v) && !math.IsInf(v, 0) && v >= 0 {
			list = append(list, convention.NumberValue(written(v, 1e-4)))
		}
	}
	return list
}

// written returns the number with the fewest digits, four at most, that is within tol of x relative to it: what people write. It
// is x if there is none.
func written(x, tol float64) float64 {
	for digits := 1; digits <= 4; digits++ {
		short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits-1, 64), 64)
		if err == nil && math.Abs(short-x) <= tol*math.Abs(x) {
			return short
		}
	}
	return x
}

// middle returns the median of x, NaN of fewer than n.
func middle(x []float64, n int) float64 {
	if len(x) < n || len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	return x[len(x)/2]
}

// impliedEps solves A = (r − c)/(std + ε), whose reciprocal is linear in ε.
func (s *search) impliedEps(set *convention.Set) []float64 {
	at := func(x float64) *Outcome {
		return JudgeAs(s.ch, s.part, set.With("adv.eps", convention.NumberValue(x), "search"), s.a)
	}
	o0, o1 := at(0), at(1)
	if o0.Tally == nil || o1.Tally == nil || len(o0.Pred.Want) != len(o1.Pred.Want) {
		return nil
	}
	var x []float64
	for i, w := range o0.Pred.Want {
		if v, a := o1.Pred.Want[i], o0.Got[i]; w != 0 && v != 0 && a != 0 && w != v {
			x = append(x, (1/a-1/w)/(1/v-1/w))
		}
	}
	eps := middle(x, 4)
	return []float64{written(eps, 2e-2), eps}
}

// impliedClip returns the bound that clipped cells stand on: −ℓ/A where that is below the ratio of a positive advantage, or above
// that of a negative one.
func (s *search) impliedClip(set *convention.Set, high bool) []float64 {
	b := s.part
	lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), NewCase(b, set, s.a.Unit).Optional("advantages").X, b.Token("token_loss")
	if lp == nil || old == nil || adv == nil || loss == nil || set.Value("ratio.level").String() != "token" {
		return nil
	}
	// What is not the policy term: the token loss of no advantage, whatever its bounds.
	name := "clip.low"
	if high {
		name = "clip.high"
	}
	rest := JudgeAs(s.ch, b.With("advantages", make([]float64, len(b.Tensors["advantages"].Data))), set.With(name, convention.NumberValue(1), "search"), s.a)
	if rest.Pred == nil || len(rest.Pred.Want) != len(loss) {
		return nil
	}
	var x []float64
	for i, m := range b.Mask {
		r := math.Exp(lp[i] - old[i])
		c := -(loss[i] - rest.Pred.Want[i]) / adv[i]
		if m && math.Abs(adv[i]) > 1e-3 && high == (adv[i] > 0) && (c < r) == high && math.Abs(c-r) > 1e-4 {
			x = append(x, c)
		}
	}
	c := middle(x, 2)
	if high {
		return []float64{c - 1, c}
	}
	return []float64{1 - c}
}

// impliedDecay solves the recursion of the returns R = r + γ((1 − λ)V' + λR'), which holds between neighbouring tokens, for γ or λ.
func (s *search) impliedDecay(set *convention.Set, gamma bool) []float64 {
	b := s.part
	r, v, ret := b.Token("token_rewards"), b.Token("values"), b.Token("returns")
	g, l := set.Value("gae.gamma"), set.Value("gae.lambda")
	if r == nil || v == nil || gamma && l.Kind() != convention.Number || !gamma && g.Kind() != convention.Number {
		return nil
	}
	var num, den float64
	for i := range b.Mask {
		if (i+1)%max(b.Cols, 1) == 0 || !b.Mask[i] || !b.Mask[i+1] {
			continue
		}
		y, x := ret[i]-r[i], ret[i+1]-v[i+1] // of R = r + γ(V' + λ(R' − V'))
		if gamma {
			x = v[i+1] + l.Num()*x
		} else {
			y, x = y-g.Num()*v[i+1], g.Num()*x
		}
		if !math.IsNaN(y+x) && !math.IsInf(y+x, 0) {
			num, den = num+float64(x*y), den+float64(x*x)
		}
	}
	return []float64{num / den}
}

// impliedBeta solves the largest number of a preference loss for β, where that is a number of at most two digits: one number that is fitted to
// one number says nothing, but fewer than one of a thousand numbers lies within 10⁻⁵ of one of two digits (90 in a decade: 90·2·10⁻⁵/ln 10).
func (s *search) impliedBeta(set *convention.Set) (list []float64) {
	off := func(beta float64) float64 {
		o := JudgeAs(s.ch, s.part, set.With("dpo.beta", convention.NumberValue(beta), "search"), s.a)
		at, largest := -1, 0.0
		for i, x := range o.Got {
			if math.Abs(x) > largest {
				at, largest = i, math.Abs(x)
			}
		}
		if o.Pred == nil || at < 0 || at >= len(o.Pred.Want) {
			return math.NaN()
		}
		return o.Pred.Want[at] - o.Got[at]
	}
	const least, most, step = 1e-3, 10, 1.125
	before := off(least)
	for at := least; at < most && !math.IsNaN(before); at *= step {
		lo, hi, there := at, at*step, off(at*step)
		if (before < 0) != (there < 0) {
			for range 40 {
				if mid := math.Sqrt(lo * hi); (off(mid) < 0) == (before < 0) {
					lo = mid
				} else {
					hi = mid
				}
			}
			if short, err := strconv.ParseFloat(strconv.FormatFloat(lo, 'e', 1, 64), 64); err == nil && math.Abs(short-lo) <= 1e-5*lo {
				list = append(list, short)
			}
		}
		before = there
	}
	return list
}

// impliedValueClip solves the value loss of the first file for its clip: the larger of the two squares falls with it.
func (s *search) impliedValueClip(set *convention.Set) []float64 {
	off := func(c float64) float64 {
		o := JudgeAs(s.ch, s.part, set.With("value.clip", convention.NumberValue(c), "search"), s.a)
		if o.Pred == nil || len(o.Pred.Want) == 0 || len(o.Got) == 0 {
			return math.NaN()
		}
		return o.Pred.Want[0] - o.Got[0]
	}
	lo, hi := 1e-4, 0.0
	v, old := s.part.Token("values_new"), s.part.Token("values")
	for i := range min(len(v), len(old)) {
		if s.part.Mask[i] {
			hi = max(hi, math.Abs(v[i]-old[i]))
		}
	}
	if !(lo < hi) || !(off(lo) > 0) || !(off(hi) < 0) {
		return nil
	}
	for range 40 {
		if mid := math.Sqrt(lo * hi); off(mid) > 0 {
			lo = mid
		} else {
			hi = mid
		}
	}
	return []float64{written(lo, 1e-3), lo}
}
