package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// extraTerms looks for the one tensor of the batch that what is wrong is a multiple of, got − want = k·x, and for one that the
// output itself is a multiple of. One number fitted to two dozen cells explains nothing by chance.
func (t *trial) extraTerms() []Explanation {
	o := t.levels[0]
	c, want := o.Case, o.Pred.Want
	b := c.B
	out := b.Tensors[o.Check.Output]
	if out == nil || out.Width > 1 || !(out.Layout == dump.PerToken && len(want) == len(b.Mask) || out.Layout == dump.PerRow && len(want) == b.Rows) {
		return nil
	}
	names := slices.DeleteFunc(b.Names(), func(name string) bool {
		t := b.Tensors[name]
		return name == o.Check.Output || t.Width > 1 || t.Layout != out.Layout && t.Layout != dump.PerRow || !numeric[name] ||
			made[name] > made[o.Check.Output] || copies(o.Check.ID, name)
	})
	var found []Explanation
	for _, name := range append(names, "1") {
		x := c.Optional(name).X
		if name != "1" && out.Layout == dump.PerRow {
			x = b.Row(name)
		}
		if name == "1" {
			x = make([]float64, len(want))
			for i := range x {
				x[i] = 1
			}
		}
		if len(x) != len(want) {
			continue
		}
		for _, instead := range []bool{false, true} {
			if instead && o.Check.Stage == convention.LogP && strings.HasPrefix(name, "logp_") {
				continue // passes that share a bug are equal wherever the policy has not moved between them
			}
			if instead && name == "token_loss" && o.Check.ID == "gradient/dlogp" {
				continue // −A·r is its own derivative, times what the loss divides by
			}
			k, ok := multipleOf(o, x, instead)
			if !ok || instead && name == "1" || len(want) == b.Rows && rounded(k, 2) != k { // a number that nobody writes is fitted to the few rows
				continue
			}
			h := &Hypothesis{ID: "EXTRA-TERM", Checks: []string{o.Check.ID},
				Title: fmt.Sprintf("a term of %.6g × %s is in it that does not belong there", k, name), Predict: withTerm(name, k, instead)}
			switch {
			case name == "1":
				h.Title = fmt.Sprintf("every number is off by %.6g", k)
				switch { // a term that is the same everywhere is one of the formula
				case o.Check.Stage == convention.KL:
					h.ID = "KL-FORMULA"
				case o.Check.Output == "advantages" && o.Check.Stage == convention.Advantage && whitened(c):
					h.ID = "WHITEN-FORM"
				case o.Check.Output == "advantages" && o.Check.Stage == convention.Advantage:
					h.ID = "ADV-CENTER"
				}
			case !instead && againstSign(o.Check, name, k) && (o.Check.Output != "token_rewards" || rewardsLackKL(c) && penalises(c)):
				h.ID, h.Title = signed[name], fmt.Sprintf("a term of %+.6g × %s is in it: no coefficient makes one of this sign", k, name)
			case instead && math.Abs(k-1) < 1e-6 && o.Check.Stage == convention.Advantage && o.Check.Output == "advantages" && name == "scores":
				h.ID, h.Title = "ADV-CENTER", "no baseline is subtracted, and nothing is divided by: the numbers are those of scores"
			case instead && math.Abs(k-1) < 1e-6:
				h.ID, h.Title = "OTHER-TENSOR", fmt.Sprintf("the numbers are those of %s", name)
			case instead:
				h.ID, h.Title = "OTHER-TENSOR", fmt.Sprintf("the numbers are %.6g × %s", k, name)
			}
			described(h)
			if name == "1" && rounded(k, 2) == k { // no baseline, and no mean of other tokens, is off by a number that people write
				h.Relative = false
			}
			h.Relative = h.Relative || h.ID == "EXTRA-TERM" && (name == "kl" || name == "entropy") // a loss or a reward may be configured to have them
			if e, ok := t.try(h, "", h.judge); ok && !e.Lead {
				e.fitted = rounded(k, 2) != k && !(instead && math.Abs(k-1) < 1e-6) || h.ID == "EXTRA-TERM" && name == "scores" && o.Check.ID == "advantage/group" // r/n is left where the baseline lacks the row's own
				found = append(found, e)
			}
		}
	}
	return found
}

// signed are the bugs of terms that stand with the wrong sign: loss + β·KL − c·entropy and reward − β·KL have β ≥ 0 and c ≥ 0.
var signed = map[string]string{"kl": "KL-SIGN", "entropy": "ENTROPY-SIGN"}

// againstSign reports whether k times a term is in an output with the sign that no coefficient gives it.
func againstSign(ch *stage.Check, name string, k float64) bool {
	switch {
	case name == "kl" && ch.Output == "token_rewards", name == "entropy" && ch.Output == "token_loss":
		return k > 0
	case name == "kl" && ch.Output == "token_loss":
		return k < 0
	}
	return false
}

// rewardsLackKL reports whether the options of a case put no KL into token rewards.
func rewardsLackKL(c *stage.Case) bool {
	place := c.Set.Value("kl.place")
	return place.Kind() != convention.Enum || place.Text() == "none" || place.Text() == "loss" || numberOr(c, "kl.beta", 0) == 0
}

// penalises reports whether the dumped KL is that of the policy from its reference: no number of it is below 0, or all are logp_old − logp_ref.
func penalises(c *stage.Case) bool {
	kl, lp, ref := c.B.Token("kl"), c.B.Token("logp_old"), c.B.Token("logp_ref")
	if len(kl) != len(c.B.Mask) {
		return false
	}
	positive, difference := true, len(lp) == len(kl) && len(ref) == len(kl)
	for i := range c.B.Tokens() {
		positive = positive && kl[i] >= 0
		difference = difference && math.Abs(kl[i]-(lp[i]-ref[i])) <= 1e-5*(math.Abs(lp[i])+math.Abs(ref[i]))
	}
	return positive || difference
}

// whitened reports whether advantages are whitened over several rows.
func whitened(c *stage.Case) bool {
	v := c.Set.Value("whiten.scope")
	return v.Kind() == convention.Enum && v.Text() != "none" && v.Text() != "row"
}

// numeric are the tensors that a term can be made of.
var numeric = map[string]bool{"logp_new": true, "logp_old": true, "logp_gen": true, "logp_ref": true, "values": true, "values_new": true, "scores": true, "token_rewards": true,
	"kl": true, "advantages": true, "returns": true, "entropy": true, "is_weights": true, "token_loss": true, "dlogp": true, "dvalues": true}

// copies reports whether a tensor is by definition what the output of a check is: advantages that no critic is subtracted from are the
// returns (verl's group estimators return the pair scores, scores; OpenRLHF has advantages = returns.clone()), so that what is wrong with
// the one is wrong with the other, and their equality explains nothing.
func copies(check, name string) bool {
	return strings.HasPrefix(check, "advantage/") && (name == "returns" || name == "advantages")
}

// made is the place in the pipeline at which a tensor is computed: what is made of an output is like it, and explains nothing. That
// ratio and clip leave of an advantage its negative is no bug of the advantage.
var made = map[string]int{"kl": 1, "token_rewards": 2, "advantages": 3, "returns": 3, "is_weights": 4, "token_loss": 5, "dlogp": 6, "dvalues": 6}

// extraTerm and otherTensor stand for what solved finds.
var extraTerm, otherTensor = described(&Hypothesis{ID: "EXTRA-TERM"})[0], described(&Hypothesis{ID: "OTHER-TENSOR"})[0]

// multipleOf fits k of got − want = k·x, or of got = k·x, and reports whether it leaves next to nothing on enough cells.
func multipleOf(o *stage.Outcome, x []float64, instead bool) (k float64, ok bool) {
	least := 24
	if len(x) == o.Case.B.Rows {
		least = 8
	}
	residual := func(i int) float64 {
		if instead {
			return o.Got[i]
		}
		return o.Got[i] - o.Pred.Want[i]
	}
	var num, den float64
	n := 0
	judged := func(i int) bool {
		return (o.Pred.Judge == nil || o.Pred.Judge[i]) && (o.Pred.Judge != nil || o.Case.B.Mask[i])
	}
	for i := range x {
		if !judged(i) || x[i] == 0 {
			continue
		}
		d := residual(i)
		if math.IsNaN(d) || math.IsInf(d, 0) || math.IsNaN(x[i]) {
			return 0, false
		}
		num, den, n = num+float64(d*x[i]), den+float64(x[i]*x[i]), n+1
	}
	if k = num / den; n < least || !(math.Abs(k) > 1e-9) || math.IsInf(k, 0) {
		return 0, false
	}
	for digits := 1; digits <= 4; digits++ { // what people write
		if short := rounded(k, digits); math.Abs(short-k) <= 1e-5*math.Abs(k) {
			k = short
			break
		}
	}
	for i := range x {
		if judged(i) && !(math.Abs(residual(i)-k*x[i]) <= 4*o.Limit(i)+1e-4*math.Abs(k*x[i])) {
			return 0, false
		}
	}
	return k, true
}

func rounded(x float64, digits int) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

// withTerm returns the predictor of an output with k times a tensor added, or in its place.
func withTerm(name string, k float64, instead bool) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		x := c.Optional(name).X
		if p != nil && len(p.Want) == c.B.Rows {
			x = c.B.Row(name)
		}
		if p == nil || name != "1" && len(x) != len(p.Want) {
			return nil
		}
		q := altered(p)
		for i := range q.Want {
			term := k
			if name != "1" {
				term = k * x[i]
			}
			if instead {
				q.Want[i] = 0
			}
			q.Want[i] += term
			q.Bound[i] += 4 * c.Unit * math.Abs(term)
		}
		return q
	}
}

// unnamed stands for a factor that no count of the run gives.
const unnamed = "a number that is none of the run's"

// ofLoss reports whether an output is a loss or a gradient, which are what mixed precision scales.
func ofLoss(ch *stage.Check) bool {
	return ch.Stage == convention.TokenLoss || ch.Stage == convention.Aggregate || ch.Stage == convention.Gradient
}

// solved looks for a factor that is none of those by which results are usually wrong: the one that most cells of a per-token output
// are off by.
func (t *trial) solved() []Explanation {
	o := t.levels[0]
	var quotients []float64
	least := 100.0 // bounds that a number must be of to tell a factor
	if o.Half() {
		least = 8
	}
	for i, w := range o.Pred.Want {
		if (o.Pred.Judge == nil || o.Pred.Judge[i]) && math.Abs(w) > least*o.Pred.Bound[i] && !math.IsNaN(o.Got[i]) && !math.IsInf(o.Got[i], 0) {
			quotients = append(quotients, o.Got[i]/w)
		}
	}
	const enough = 6 // that one fitted number explains
	if len(quotients) < enough {
		return nil
	}
	slices.Sort(quotients)
	k := quotients[len(quotients)/2]
	if k == 0 || math.Abs(k-1) < 1e-6 || len(o.Pred.Want) != len(o.Case.B.Mask) {
		return nil
	}
	if u := stage.Grid(o.Got); u > tol.U32 { // of numbers rounded to 16 bits what people write is told from its neighbours to three roundings
		for digits := 1; digits <= 2; digits++ {
			if short := rounded(k, digits); math.Abs(short-k) <= 3*u*math.Abs(k) {
				k = short
				break
			}
		}
	}
	name := unnamed
	if exponent := math.Round(math.Log2(math.Abs(k))); ofLoss(o.Check) && math.Abs(exponent) >= 3 && math.Abs(math.Abs(k)-math.Exp2(exponent)) <= 1e-5*math.Abs(k) {
		name, k = fmt.Sprintf("2^%.0f, as a loss scale of mixed precision is", exponent), math.Copysign(math.Exp2(exponent), k)
	}
	if e, ok := t.tryFactor(fmt.Sprintf("× %s (%.6g)", name, k), k, false); ok && !e.Lead {
		e.Lead = name == unnamed // one fitted number is a pattern, and no bug
		return []Explanation{e}
	}
	return nil
}
