package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/stage"
)

// monomials are the products of powers of γ and λ that a loop makes which multiplies by them more than once.
func monomials() (list []discount) {
	powers := []string{"", "", "²", "³"}
	word := func(letter string, n int) string {
		if n == 0 {
			return ""
		}
		return letter + powers[n]
	}
	for i := range powers {
		for j := range powers {
			name := word("γ", i) + word("λ", j)
			if name == "" {
				name = "1"
			}
			list = append(list, discount{name, func(g, l float64) float64 { return math.Pow(g, float64(i)) * math.Pow(l, float64(j)) }})
		}
	}
	return list
}

// solvedFactors returns the form of a recursion A_t = a·δ_t + b·A_{t+1} both of whose factors are other ones, as of a statement that stands there twice:
//
//	A ← δ + γλ·A; A ← δ + γλ·A·λ   gives   A_t = (1 + γλ²)·δ_t + γ²λ³·A_{t+1}
//
// a and b are those of least squares over all tokens that another one follows, where they are numbers that γ and λ make.
func solvedFactors(c *stage.Case) []recursionForm {
	const least, near = 24, 2e-5 // tokens; of the least squares, whose numbers are in float32
	alone, b := recursionForms()[0], c.B
	alone.carry = nothing
	p, raw, value := alone.predict(c.Of(b, c.Set), stage.Find("gae/returns")), rawAdvantages(c), b.Token("values")
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	if p == nil || len(raw) != len(b.Mask) || len(value) != len(b.Mask) || b.Cols == 0 || b.Token("dones") != nil || math.IsNaN(gamma*lambda) {
		return nil
	}
	var dd, da, aa, dy, ay, n float64
	for i := range b.Tokens() {
		if (i+1)%b.Cols == 0 || !b.Mask[i+1] {
			continue
		}
		d, a, y := p.Want[i]-value[i], raw[i+1], raw[i]
		dd, da, aa, dy, ay, n = dd+float64(d*d), da+float64(d*a), aa+float64(a*a), dy+float64(d*y), ay+float64(a*y), n+1
	}
	det := dd*aa - da*da
	if n < least || !(det > 1e-6*dd*aa) {
		return nil
	}
	scale, carry := (dy*aa-ay*da)/det, (ay*dd-dy*da)/det
	named := func(x float64, list []discount) *discount {
		at := slices.IndexFunc(list, func(d discount) bool { return math.Abs(d.of(gamma, lambda)-x) <= near*math.Max(1, math.Abs(x)) })
		if at < 0 {
			return nil
		}
		return &list[at]
	}
	products := monomials()
	factors := slices.Concat(products, discounts)
	for _, d := range products[1:] {
		factors = append(factors, discount{"(1 + " + d.name + ")", func(g, l float64) float64 { return 1 + d.of(g, l) }},
			discount{"(1 − " + d.name + ")", func(g, l float64) float64 { return 1 - d.of(g, l) }})
	}
	s, k := named(scale, factors), named(carry, slices.Concat(products, discounts))
	if s == nil || k == nil || math.Abs(scale-1) <= near || math.Abs(carry-gamma*lambda) <= near {
		return nil // one factor alone is that of another form
	}
	f := recursionForms()[0]
	f.title, f.scale, f.carry = fmt.Sprintf("A = %s·δ + %s·A_{t+1}: both factors are others, as where the step of the recursion is made twice", s.name, k.name), s.of, k.of
	return []recursionForm{f}
}

// solvedParts returns the form of a recursion of which two factors or more are others, as of a γ that stands at another term than its own:
//
//	A_t = a·r_t + b·V_{t+1} − c·V_t + d·A_{t+1}
//
// a, b, c and d are those of least squares over the tokens that another one follows, and over the last ones of rows that end in 0, where they are numbers
// that γ and λ make.
func solvedParts(c *stage.Case) []recursionForm {
	const least, near = 24, 1e-3 // tokens; the prediction is held against all numbers, so that this one only has to find the nearest name
	d, errs := c.OfWhiteRewards()
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	if d == nil || errs != nil || math.IsNaN(gamma*lambda) || c.B.Cols == 0 || c.Has("dones") {
		return nil
	}
	b, shown, reward, value := c.B, rawAdvantages(c), d.Token("token_rewards").X, d.Token("values").X
	if len(shown) != len(b.Mask) || len(reward) != len(b.Mask) || len(value) != len(b.Mask) {
		return nil
	}
	var x, y []float64
	for r := range b.Rows {
		_, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
		for i := range b.TokensOf(r) {
			switch t := i % b.Cols; {
			case t < last && b.Mask[i+1]:
				x, y = append(x, reward[i], value[i+1], -value[i], shown[i+1]), append(y, shown[i])
			case t == last && !c.Has("next_values"):
				x, y = append(x, reward[i], 0, -value[i], 0), append(y, shown[i])
			}
		}
	}
	if len(y) < least {
		return nil
	}
	w := leastSquares(x, y, 4)
	if w == nil {
		return nil
	}
	names, f := make([]string, 4), recursionForms()[0]
	others := 0
	for k, place := range []discount{{"1", whole}, {"γ", onlyGamma}, {"1", whole}, {"γλ", both2}} {
		best, off := place, math.Abs(place.of(gamma, lambda)-w[k])
		for _, d := range discounts {
			if e := math.Abs(d.of(gamma, lambda) - w[k]); e < off-1e-9 {
				best, off = d, e
			}
		}
		if !(off <= near) {
			return nil
		}
		if names[k] = best.name; best.name != place.name {
			others++
		}
		[]func(){func() { f.rewardBy = best.of }, func() { f.step = best.of }, func() { f.ownBy = best.of }, func() { f.carry = best.of }}[k]()
	}
	if others < 2 {
		return nil // one factor alone is that of another form
	}
	term := func(sign, name, of string) string {
		switch name {
		case "1":
			return sign + of
		case "0":
			return ""
		}
		return sign + bracketed(name) + "·" + of
	}
	f.title = "A = " + strings.TrimPrefix(term(" + ", names[0], "r")+term(" + ", names[1], "V_{t+1}")+term(" − ", names[2], "V")+term(" + ", names[3], "A_{t+1}"), " + ") +
		": two factors or more are others"
	f.far = true
	return []recursionForm{f}
}

// bracketed puts a sum in brackets.
func bracketed(factor string) string {
	if strings.ContainsAny(factor, " −") && !strings.HasPrefix(factor, "(") {
		return "(" + factor + ")"
	}
	return factor
}
