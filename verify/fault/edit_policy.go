package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// surrogate is the clipped objective of a token with its parts apart, of which a program may have got one wrong:
//
//	ℓ = max(−A₁·min(x, delta), −A₂·c)   c = clip(x, lo, hi), x = ratio(d), d = logp_new − logp_old
//
// and for A < 0 at most −A·dual. Its slope is ∂ℓ/∂logp_new.
type surrogate struct {
	ratio         func(d float64) (x, slope float64)
	lo, hi        func(low, high float64) float64
	first, second func(a float64) float64     // the advantage of either side
	without       int                         // the side that is not multiplied by the ratio, 1 or 2; 0: none
	again         [2]bool                     // the sides that are multiplied by the ratio once more, outside the clip
	inverted      int                         // the side whose ratio is inverted, 1 or 2; 0: none
	always        bool                        // −A·dual is the loss of every A < 0
	clipped       func(plain, c float64) bool // which of the two losses is taken
	leaks         bool                        // the gradient passes the clip
	detached      int                         // the side without a gradient, 1 or 2; 0: none
	dual          func(a float64) bool        // advantages that the dual clip is for
	turned        bool                        // −A·dual holds the loss from below, not from above
	wrongDual     bool                        // A·dual holds the loss, not −A·dual
	delta         bool
	product       func(lo, hi float64) (least, most float64) // what holds A·ρ on the clipped side, where the bounds should hold ρ; nil: nothing
	turns         func(x, a, lo, hi float64) bool            // losses whose sign is the other one; nil: none
	foreign       bool                                       // no configuration has the form: it needs no declaration to be wrong
	far           bool                                       // the advantage of a side goes through a function that nobody writes there
}

// bounds of one token: clip.low and clip.high as numbers, clip.dual and clip.delta 0 for none.
type tokenBounds struct{ low, high, dual, delta float64 }

func (s *surrogate) of(d, a float64, o tokenBounds) (loss, slope float64) {
	x, dx := s.ratio(d)
	plain, dPlain := x, dx
	switch {
	case s.without == 1:
		plain, dPlain = 1, 0
	case s.inverted == 1:
		plain, dPlain = 1/x, -dx/(x*x)
	}
	held, dHeld := x, dx // what the bounds hold
	if s.inverted == 2 {
		held, dHeld = 1/x, -dx/(x*x)
	}
	if o.delta > 0 && s.delta && x > o.delta {
		plain, dPlain = o.delta, 0
	}
	bounded, dBounded := min(max(held, s.lo(o.low, o.high)), s.hi(o.low, o.high)), dHeld
	if bounded != held && !s.leaks {
		dBounded = 0
	}
	if s.without == 2 {
		bounded, dBounded = 1, 0
	}
	if s.again[0] {
		plain, dPlain = plain*x, dPlain*x+plain*dx
	}
	if s.again[1] {
		bounded, dBounded = bounded*x, dBounded*x+bounded*dx
	}
	loss, slope = -s.first(a)*plain, -s.first(a)*dPlain
	switch c := -s.second(a) * bounded; {
	case s.product != nil:
		least, most := s.product(s.lo(o.low, o.high), s.hi(o.low, o.high))
		if c := -min(max(a*x, least), most); s.clipped(loss, c) {
			if c != loss {
				slope = 0
			}
			loss = c
		}
	case s.clipped(loss, c):
		if loss, slope = c, -s.second(a)*dBounded; s.detached == 2 {
			slope = 0
		}
	case s.detached > 0 && c == loss: // the maximum of two equal sides gives each of them half of the gradient
		slope /= 2
	case s.detached == 1:
		slope = 0
	}
	most := -a * o.dual
	if s.wrongDual {
		most = -most
	}
	if over := loss > most; o.dual > 0 && s.dual(a) && (over != s.turned || s.always) {
		loss, slope = most, 0
	}
	if s.turns != nil && s.turns(x, a, s.lo(o.low, o.high), s.hi(o.low, o.high)) {
		loss, slope = -loss, -slope
	}
	return loss, slope
}

func rightSurrogate() surrogate {
	own := func(a float64) float64 { return a }
	return surrogate{
		ratio: func(d float64) (float64, float64) { return math.Exp(d), math.Exp(d) },
		lo:    func(low, _ float64) float64 { return 1 - low }, hi: func(_, high float64) float64 { return 1 + high },
		first: own, second: own, clipped: func(plain, c float64) bool { return c > plain },
		dual: func(a float64) bool { return a < 0 }, delta: true,
	}
}

// surrogateForm is a surrogate with one part changed.
type surrogateForm struct {
	id, title string
	surrogate
}

func surrogateForms() []surrogateForm {
	var list []surrogateForm
	with := func(id, title string, change func(*surrogate)) {
		f := surrogateForm{id, title, rightSurrogate()}
		change(&f.surrogate)
		list = append(list, f)
	}
	for _, r := range []struct {
		title string
		of    func(d float64) (x, slope float64)
	}{
		{"1 + d, the first terms of e to the d", func(d float64) (float64, float64) { return 1 + d, 1 }},
		{"d, without the exponential", func(d float64) (float64, float64) { return d, 1 }},
		{"e to the d − 1", func(d float64) (float64, float64) { return math.Expm1(d), math.Exp(d) }},
		{"e to the −d: the quotient is inverted", func(d float64) (float64, float64) { return math.Exp(-d), -math.Exp(-d) }},
		{"e to the |d|", func(d float64) (float64, float64) {
			return math.Exp(math.Abs(d)), math.Exp(math.Abs(d)) * float64(compare(d, 0))
		}},
		{"e to the d/2", func(d float64) (float64, float64) { return math.Exp(d / 2), math.Exp(d/2) / 2 }},
		{"e to the 2d", func(d float64) (float64, float64) { return math.Exp(2 * d), 2 * math.Exp(2*d) }},
		{"e to the d/3", func(d float64) (float64, float64) { return math.Exp(d / 3), math.Exp(d/3) / 3 }},
		{"e to the −2d", func(d float64) (float64, float64) { return math.Exp(-2 * d), -2 * math.Exp(-2*d) }},
		{"1, whatever d is", func(float64) (float64, float64) { return 1, 1 }},
	} {
		with("RATIO-FORM", "the ratio is "+r.title+", of d = logp_new − logp_old", func(s *surrogate) { s.ratio = r.of })
	}
	for _, b := range []struct {
		title  string
		lo, hi func(low, high float64) float64
	}{
		{"1 − clip.low is the only bound: none holds from above", nil, func(_, _ float64) float64 { return math.Inf(1) }},
		{"1 + clip.high is the only bound: none holds from below", func(_, _ float64) float64 { return math.Inf(-1) }, nil},
		{"the lower bound is 1 + clip.low", func(low, _ float64) float64 { return 1 + low }, nil},
		{"the upper bound is 1 − clip.high", nil, func(_, high float64) float64 { return 1 - high }},
		{"the lower bound is clip.low", func(low, _ float64) float64 { return low }, nil},
		{"the upper bound is clip.high", nil, func(_, high float64) float64 { return high }},
		{"the lower bound is −clip.low", func(low, _ float64) float64 { return -low }, nil},
		{"the lower bound is 1/(1 + clip.low)", func(low, _ float64) float64 { return 1 / (1 + low) }, nil},
		{"the upper bound is 1/(1 − clip.high)", nil, func(_, high float64) float64 { return 1 / (1 - high) }},
		{"they are e to the −clip.low and e to the clip.high: the log-ratio is clipped", func(low, _ float64) float64 { return math.Exp(-low) }, func(_, high float64) float64 { return math.Exp(high) }},
		{"they are e to the −clip.low/2 and e to the clip.high/2: the log-ratio is clipped to half of the bounds", func(low, _ float64) float64 { return math.Exp(-low / 2) }, func(_, high float64) float64 { return math.Exp(high / 2) }},
		{"they are e to the −2·clip.low and e to the 2·clip.high: the log-ratio is clipped to twice the bounds", func(low, _ float64) float64 { return math.Exp(-2 * low) }, func(_, high float64) float64 { return math.Exp(2 * high) }},
		{"they are 1 − clip.low/2 and 1 + clip.high/2", func(low, _ float64) float64 { return 1 - low/2 }, func(_, high float64) float64 { return 1 + high/2 }},
		{"they are 1/(1 + clip.low) and 1/(1 − clip.high)", func(low, _ float64) float64 { return 1 / (1 + low) }, func(_, high float64) float64 { return 1 / (1 - high) }},
		{"they are 1 ± the larger of clip.low and clip.high", func(low, high float64) float64 { return 1 - max(low, high) }, func(low, high float64) float64 { return 1 + max(low, high) }},
		{"the upper bound is 1/(1 − clip.low), the inverse of the lower", nil, func(low, _ float64) float64 { return 1 / (1 - low) }},
		{"the lower bound is 1/(1 + clip.high), the inverse of the upper", func(_, high float64) float64 { return 1 / (1 + high) }, nil},
		{"the lower bound is 1 − 2·clip.low", func(low, _ float64) float64 { return 1 - 2*low }, nil},
		{"the upper bound is 1 + 2·clip.high", nil, func(_, high float64) float64 { return 1 + 2*high }},
		{"the lower bound is 1", func(_, _ float64) float64 { return 1 }, nil},
		{"the upper bound is 1", nil, func(_, _ float64) float64 { return 1 }},
		{"the upper bound is 2 + clip.high", nil, func(_, high float64) float64 { return 2 + high }},
		{"the lower bound is 2 − clip.low", func(low, _ float64) float64 { return 2 - low }, nil},
	} {
		with("CLIP-BOUND", "the ratio is held by other bounds: "+b.title, func(s *surrogate) {
			s.foreign = strings.HasSuffix(b.title, "the log-ratio is clipped") // by numbers that a configuration gives to ratios
			if b.lo != nil {
				s.lo = b.lo
			}
			if b.hi != nil {
				s.hi = b.hi
			}
		})
	}
	for _, alone := range []bool{true, false} {
		title := "the log-ratio within −clip.low and clip.high stands for the ratio, without the exponential"
		if !alone {
			title = "the log-ratio stands for the ratio on both sides of the clip, within −clip.low and clip.high on one, without the exponential"
		}
		with("RATIO-FORM", title, func(s *surrogate) {
			s.ratio = func(d float64) (float64, float64) { return d, 1 }
			s.lo, s.hi = func(low, _ float64) float64 { return -low }, func(_, high float64) float64 { return high }
			if s.foreign = true; alone {
				s.clipped = func(_, _ float64) bool { return true }
			}
		})
	}
	for _, b := range []struct {
		words string
		of    func(lo, hi float64) (least, most float64)
	}{
		{"1 − clip.low and 1 + clip.high", func(lo, hi float64) (float64, float64) { return lo, hi }},
		{"−(1 − clip.low) and 1 + clip.high", func(lo, hi float64) (float64, float64) { return -lo, hi }},
		{"±(1 + clip.high)", func(_, hi float64) (float64, float64) { return -hi, hi }},
		{"−(1 + clip.high) and 1 − clip.low", func(lo, hi float64) (float64, float64) { return -hi, lo }},
		{"±(1 − clip.low)", func(lo, _ float64) (float64, float64) { return -lo, lo }},
		{"−clip.low and clip.high", func(lo, hi float64) (float64, float64) { return lo - 1, hi - 1 }},
	} {
		with("CLIP-BOUND", "the product of advantage and ratio is held within "+b.words+", where the ratio alone should be", func(s *surrogate) {
			s.product, s.foreign, s.far, s.clipped = b.of, true, true, func(_, _ float64) bool { return true }
		})
	}
	one := func(float64) float64 { return 1 }
	with("CLIP-WITHOUT-MIN", "the clipped side is taken always", func(s *surrogate) { s.clipped = func(_, _ float64) bool { return true } })
	with("CLIP-ABSENT", "the unclipped side is taken always", func(s *surrogate) { s.clipped = func(_, _ float64) bool { return false } })
	with("CLIP-MIN-MAX", "the loss of the larger magnitude is taken, not the larger loss", func(s *surrogate) { s.clipped = func(plain, c float64) bool { return math.Abs(c) >= math.Abs(plain) } })
	with("CLIP-MIN-MAX", "the loss of the smaller magnitude is taken, not the larger loss", func(s *surrogate) { s.clipped = func(plain, c float64) bool { return math.Abs(c) < math.Abs(plain) } })
	with("CLIP-MIN-MAX", "the smaller of the two losses is taken", func(s *surrogate) { s.clipped = func(plain, c float64) bool { return c < plain } })
	for _, f := range oneSided {
		with(f.id, f.title, func(s *surrogate) { s.clipped = f.clipped })
	}
	with("CLIP-BOUND", "the clipped side is not multiplied by the advantage", func(s *surrogate) { s.second = one })
	with("CLIP-BOUND", "the unclipped side is not multiplied by the advantage", func(s *surrogate) { s.first = one })
	none := func(float64) float64 { return 0 }
	with("ADV-FORM", "the advantage is left out of the clipped side: 0 stands for it", func(s *surrogate) { s.second = none })
	with("ADV-FORM", "the advantage is left out of the unclipped side: 0 stands for it", func(s *surrogate) { s.first = none })
	with("ADV-FORM", "neither side of the clip is multiplied by the advantage", func(s *surrogate) { s.first, s.second = one, one })
	with("ADV-SIGN", "the advantage has the wrong sign on the clipped side", func(s *surrogate) { s.second = func(a float64) float64 { return -a } })
	with("ADV-SIGN", "the advantage has the wrong sign on the unclipped side", func(s *surrogate) { s.first = func(a float64) float64 { return -a } })
	twice := func(a float64) float64 { return a * a }
	with("ADV-FORM", "the clipped side is multiplied by the square of the advantage", func(s *surrogate) { s.second = twice })
	with("ADV-FORM", "the unclipped side is multiplied by the square of the advantage", func(s *surrogate) { s.first = twice })
	for _, f := range functions {
		if f.name == "x²" {
			continue
		}
		with("ADV-FORM", "the clipped side is multiplied by "+f.of("A")+", of the advantage A", func(s *surrogate) { s.second, s.far = f.f, true })
		with("ADV-FORM", "the unclipped side is multiplied by "+f.of("A")+", of the advantage A", func(s *surrogate) { s.first, s.far = f.f, true })
	}
	for _, k := range []float64{0.5, 2} { // a factor on both sides is one of the loss
		times := func(a float64) float64 { return k * a }
		with("FACTOR", fmt.Sprintf("the clipped side is multiplied by %g", k), func(s *surrogate) { s.second = times })
		with("FACTOR", fmt.Sprintf("the unclipped side is multiplied by %g", k), func(s *surrogate) { s.first = times })
	}
	with("CLIP-GRADIENT-LEAK", "the gradient passes the clip", func(s *surrogate) { s.leaks = true })
	with("CLIP-DETACHED", "the clipped side of the maximum is detached: where both sides are equal, half of the gradient is lost", func(s *surrogate) { s.detached = 2 })
	with("CLIP-DETACHED", "the unclipped side of the maximum is detached: half of the gradient is lost within the bounds, and all of it beyond them", func(s *surrogate) { s.detached = 1 })
	with("CLIP-DUAL", "the dual clip is left out", func(s *surrogate) { s.dual = func(float64) bool { return false } })
	with("CLIP-DUAL-BOTH-SIGNS", "the dual clip is for every advantage", func(s *surrogate) { s.dual = func(float64) bool { return true } })
	positive := func(a float64) bool { return a > 0 }
	for _, f := range []struct {
		title  string
		change func(*surrogate)
	}{ // by no number of a configuration
		{"the bound of the dual clip has the wrong sign: A·clip.dual", func(s *surrogate) { s.wrongDual = true }},
		{"the dual clip is for positive advantages, not for negative ones", func(s *surrogate) { s.dual = positive }},
		{"the dual clip holds the loss of positive advantages from below, not that of negative ones from above", func(s *surrogate) { s.dual, s.turned = positive, true }},
		{"the loss of a negative advantage is −A·clip.dual, whatever the ratio is", func(s *surrogate) { s.always = true }},
		{"the loss of a negative advantage is at least −A·clip.dual where it should be at most that", func(s *surrogate) { s.turned = true }},
	} {
		with("CLIP-DUAL", f.title, func(s *surrogate) {
			f.change(s)
			s.foreign = true
		})
	}
	with("RATIO-FORM", "the unclipped side is not multiplied by the ratio", func(s *surrogate) { s.without = 1 })
	with("RATIO-FORM", "the clipped side is not multiplied by the ratio", func(s *surrogate) { s.without = 2 })
	with("RATIO-FORM", "the unclipped side is multiplied by the ratio twice", func(s *surrogate) { s.again[0] = true })
	with("RATIO-FORM", "the clipped side is multiplied by the ratio once more, outside the clip", func(s *surrogate) { s.again[1] = true })
	with("RATIO-FORM", "both sides are multiplied by the ratio once more, outside the clip", func(s *surrogate) { s.again = [2]bool{true, true} })
	with("RATIO-INVERTED", "the ratio is inverted on the unclipped side: e to the (logp_old − logp_new)", func(s *surrogate) { s.inverted = 1 })
	with("RATIO-INVERTED", "the ratio is inverted on the clipped side: e to the (logp_old − logp_new)", func(s *surrogate) { s.inverted = 2 })
	for _, f := range []struct {
		where string
		is    func(x, lo, hi float64) bool
	}{
		{"is above its upper bound", func(x, _, hi float64) bool { return x > hi }},
		{"is below its lower bound", func(x, lo, _ float64) bool { return x < lo }},
		{"is beyond its bounds", func(x, lo, hi float64) bool { return x < lo || x > hi }},
	} {
		with("LOSS-SIGN", "the loss of a token whose ratio "+f.where+" has the wrong sign", func(s *surrogate) {
			s.turns = func(x, _, lo, hi float64) bool { return f.is(x, lo, hi) }
		})
		with("LOSS-SIGN", "the loss of a negative advantage has the wrong sign where the ratio "+f.where+", as that of an objective's absolute value", func(s *surrogate) {
			s.turns = func(x, a, lo, hi float64) bool { return a < 0 && f.is(x, lo, hi) }
		})
		with("LOSS-SIGN", "the loss of a positive advantage has the wrong sign where the ratio "+f.where+", as that of a loss's absolute value", func(s *surrogate) {
			s.turns = func(x, a, lo, hi float64) bool { return a > 0 && f.is(x, lo, hi) }
		})
	}
	with("LOSS-SIGN", "the loss of negative advantages has the wrong sign: it is that of the objective's absolute value", func(s *surrogate) {
		s.turns = func(_, a, _, _ float64) bool { return a < 0 }
	})
	with("LOSS-SIGN", "the loss of positive advantages has the wrong sign: it is the absolute value of the loss", func(s *surrogate) {
		s.turns = func(_, a, _, _ float64) bool { return a > 0 }
	})
	with("CLIP-BOUND", "clip.delta is left out", func(s *surrogate) { s.delta = false })
	return list
}

// temperedForms are objectives whose log-ratio is divided, or multiplied, by the temperature, which the log-probs of both sides have already.
func temperedForms(c *stage.Case) (list []surrogateForm) {
	T := numberOr(c, "logp.temperature", 1)
	if !(T > 0) || T == 1 {
		return nil
	}
	for i, k := range []float64{1 / T, T} {
		word := []string{"divided", "multiplied"}[i]
		f := surrogateForm{"RATIO-FORM", "the log-ratio is " + word + " by the temperature, which its log-probs have already", rightSurrogate()}
		f.ratio = func(d float64) (float64, float64) { return math.Exp(k * d), k * math.Exp(k*d) }
		list = append(list, f)
	}
	return list
}

// policyEdits returns edits of a clipped policy objective.
func policyEdits(o *stage.Outcome) []edit {
	if !policyOutput(o) {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	right := surrogateForm{surrogate: rightSurrogate()}
	p, q := right.predict(c, o.Check), under(sameInput, c, o.Check)
	if p == nil || q == nil || len(p.Want) != len(q.Want) {
		return nil
	}
	for i, w := range p.Want { // the form is the declared one; a choice that rounding makes may be made otherwise
		if (o.Pred.Judge == nil || o.Pred.Judge[i]) && !(math.Abs(w-q.Want[i]) <= p.Bound[i]+q.Bound[i]+1e-6*math.Abs(w)) &&
			!(q.Alt != nil && math.Abs(w-q.Alt[i]) <= p.Bound[i]+q.Bound[i]+1e-6*math.Abs(w)) {
			return nil
		}
	}
	var list []edit
	for _, f := range append(surrogateForms(), temperedForms(o.Case)...) {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, predict: f.predict, far: f.far, foreign: f.foreign})
	}
	return slices.Concat(list, boundEditsShown(o), boundPairs(o), boundSolved(o))
}

// predict predicts an output of the loss: that of an unclipped one whose advantages give the same numbers. Where the ratio is one of the
// row, the form is of the row's mean log-ratio.
func (f surrogateForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	c = ofStored(c)
	lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages").X
	if lp == nil || old == nil || len(adv) != len(lp) || c.B.Cols == 0 {
		return nil
	}
	kind, level := c.Set.Value("loss.kind"), c.Set.Value("ratio.level")
	if kind.Kind() != convention.Enum || !slices.Contains([]string{"ppo", "gspo", "luspo"}, kind.Text()) {
		return nil
	}
	if v := c.Set.Value("ratio.old"); v.Kind() == convention.Enum && v.Text() != "stored" {
		return nil
	}
	if level.Kind() != convention.Enum || level.Text() != "seq_mean" && level.Text() != "token" {
		return nil
	}
	o := boundsOf(c)
	d, _ := logRatios(c, lp, old)
	a := make([]float64, len(lp))
	for i := range a {
		loss, slope := f.of(d[i], adv[i], o)
		if a[i] = -loss / math.Exp(d[i]); ch.Stage == convention.Gradient {
			a[i] = -slope / math.Exp(d[i])
		}
	}
	in := both(perToken("advantages", a), option("clip.low", "none"))
	for _, name := range []string{"clip.high", "clip.dual", "clip.delta"} {
		if c.Set.Value(name).Kind() == convention.Number {
			in = both(in, option(name, "none"))
		}
	}
	if kind.Text() != "ppo" {
		in = both(in, option("loss.kind", "ppo"))
	}
	return combined(1, policyOnly(in, c, ch), 1, klOnly(c, ch))
}
