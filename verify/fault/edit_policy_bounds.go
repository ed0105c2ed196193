package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/stage"
)

// shownBounds are the bounds of the ratio that losses of tokens show: of A > 0 no ratio counts for more than the upper one, of A < 0 none for less
// than the lower one. NaN stands for a bound that no token reaches.
type shownBounds struct{ lo, hi float64 }

// boundsShown reads the bounds off the losses of a step. A loss is A times the ratio that counts, which the right loss gives where its own is known, so
// that weights beside it cancel. A bound is shown where two tokens of other ratios are held at it.
func boundsShown(o *stage.Outcome) (b shownBounds, ok bool) {
	const least, near = 2, 2e-6
	c := o.Case.Of(o.Case.B, o.Case.Set)
	lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages").X
	want, kl := policyOnly(sameInput, c, o.Check), klOnly(c, o.Check)
	if want == nil || kl == nil || len(lp) != len(o.Got) || len(old) != len(lp) || len(adv) != len(lp) || len(want.Want) != len(lp) || len(kl.Want) != len(lp) {
		return b, false
	}
	right, bounds := rightSurrogate(), boundsOf(c)
	type held struct{ ratio, counts float64 }
	var above, below []held
	for i, m := range c.B.Mask {
		if !m || o.Pred.Judge != nil && !o.Pred.Judge[i] || adv[i] == 0 || math.Abs(want.Want[i]) < 1e-9 {
			continue
		}
		d := lp[i] - old[i]
		loss, _ := right.of(d, adv[i], bounds)
		h := held{math.Exp(d), -loss / adv[i] * (o.Got[i] - kl.Want[i]) / want.Want[i]}
		switch {
		case math.IsNaN(h.counts) || math.IsInf(h.counts, 0):
			return b, false
		case adv[i] > 0:
			above = append(above, h)
		default:
			below = append(below, h)
		}
	}
	bound := func(list []held, sign float64) float64 {
		most := math.Inf(-1)
		for _, h := range list {
			most = max(most, sign*h.counts)
		}
		var at []float64
		for _, h := range list {
			if math.Abs(sign*h.counts-most) <= near*math.Abs(most) && sign*h.ratio > most+10*near*math.Abs(most) {
				at = append(at, h.counts)
			}
		}
		if len(at) < least {
			return math.NaN()
		}
		slices.Sort(at)
		x := at[len(at)/2]
		if short := rounded(x, 4); math.Abs(short-x) <= near*math.Abs(x) {
			x = short
		}
		return x
	}
	b = shownBounds{bound(below, -1), bound(above, 1)}
	return b, b.lo > 0 || b.hi > 0
}

// boundEditsShown returns edits of a clipped objective under the bounds that its losses show, where others are declared. They may come with a clip.delta
// that does not act on the unclipped side.
func boundEditsShown(o *stage.Outcome) []edit {
	if o.Check.ID != "token_loss/policy" || o.Half() || len(o.Got) != len(o.Case.B.Mask) {
		return nil
	}
	shown, ok := boundsShown(o)
	if !ok {
		return nil
	}
	declared := boundsOf(o.Case)
	var list []edit
	for _, delta := range []bool{true, false} {
		f := surrogateForm{surrogate: rightSurrogate()}
		var words []string
		if shown.lo > 0 && math.Abs(shown.lo-(1-declared.low)) > 1e-5 {
			f.lo = func(_, _ float64) float64 { return shown.lo }
			words = append(words, fmt.Sprintf("at least %.6g, where %.6g is declared", shown.lo, 1-declared.low))
		}
		if shown.hi > 0 && math.Abs(shown.hi-(1+declared.high)) > 1e-5 {
			f.hi = func(_, _ float64) float64 { return shown.hi }
			words = append(words, fmt.Sprintf("at most %.6g, where %.6g is declared", shown.hi, 1+declared.high))
		}
		if f.delta = delta; len(words) == 0 || !delta && declared.delta == 0 {
			continue
		}
		if !delta {
			words = append(words, "and clip.delta does not hold the unclipped ratio")
		}
		list = append(list, edit{id: "CLIP-BOUND", title: "the ratio is held by other bounds: it is " + strings.Join(words, "; "), changes: 1, own: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return widened(f.predict(c, ch), 8*c.Unit) // a bound that was read off rounded losses, and ratios that round to its other side
			}})
	}
	return list
}

// oneSided are choices between the two losses by the sign of the advantage alone, which is that of −ℓ, where the larger of both belongs.
var oneSided = []struct {
	id, title string
	clipped   func(plain, c float64) bool
}{
	{"CLIP-WITHOUT-MIN", "of a positive advantage the clipped side alone is taken, of a negative one the unclipped side alone", func(plain, _ float64) bool { return plain < 0 }},
	{"CLIP-WITHOUT-MIN", "of a negative advantage the clipped side alone is taken, of a positive one the unclipped side alone", func(plain, _ float64) bool { return plain > 0 }},
	{"CLIP-WITHOUT-MIN", "of a positive advantage the clipped side alone is taken", func(plain, c float64) bool { return plain < 0 || c > plain }},
	{"CLIP-WITHOUT-MIN", "of a negative advantage the clipped side alone is taken", func(plain, c float64) bool { return plain > 0 || c > plain }},
}
