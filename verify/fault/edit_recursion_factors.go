package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/stage"
)

// discount is a factor that a program may make of γ and λ.
type discount struct {
	name string
	of   func(gamma, lambda float64) float64
}

// discounts are products, powers, roots, quotients and sums of γ and λ.
var discounts = []discount{
	{"1", whole},
	{"γ", onlyGamma},
	{"λ", onlyLambda},
	{"γλ", both2},
	{"γ²", func(g, _ float64) float64 { return g * g }},
	{"λ²", func(_, l float64) float64 { return l * l }},
	{"γ²λ", func(g, l float64) float64 { return g * g * l }},
	{"γλ²", func(g, l float64) float64 { return g * l * l }},
	{"(γλ)²", func(g, l float64) float64 { return g * g * l * l }},
	{"1 − γ", func(g, _ float64) float64 { return 1 - g }},
	{"1 − λ", func(_, l float64) float64 { return 1 - l }},
	{"1 − γλ", func(g, l float64) float64 { return 1 - g*l }},
	{"γ·(1 − λ)", func(g, l float64) float64 { return g * (1 - l) }},
	{"λ·(1 − γ)", func(g, l float64) float64 { return l * (1 - g) }},
	{"γ + λ − 1", func(g, l float64) float64 { return g + l - 1 }},
	{"(γ + λ)/2", func(g, l float64) float64 { return (g + l) / 2 }},
	{"γ + λ", func(g, l float64) float64 { return g + l }},
	{"γ/λ", func(g, l float64) float64 { return g / l }},
	{"λ/γ", func(g, l float64) float64 { return l / g }},
	{"1/γ", func(g, _ float64) float64 { return 1 / g }},
	{"1/λ", func(_, l float64) float64 { return 1 / l }},
	{"1/(γλ)", func(g, l float64) float64 { return 1 / (g * l) }},
	{"√γ", func(g, _ float64) float64 { return math.Sqrt(g) }},
	{"√λ", func(_, l float64) float64 { return math.Sqrt(l) }},
	{"√(γλ)", func(g, l float64) float64 { return math.Sqrt(g * l) }},
	{"γλ/2", func(g, l float64) float64 { return g * l / 2 }},
	{"2γλ", func(g, l float64) float64 { return 2 * g * l }},
	{"−γλ", func(g, l float64) float64 { return -g * l }},
	{"−γ", func(g, _ float64) float64 { return -g }},
	{"−1", func(float64, float64) float64 { return -1 }},
	{"0", nothing},
}

var (
	onlyLambda = func(_, lambda float64) float64 { return lambda }
	nothing    = func(float64, float64) float64 { return 0 }
)

// recursionPlaces are the places of a factor in the recursion
//
//	δ_t = r_t + γ·V' − V,  A_t = δ_t + γλ·A_{t+1}
//
// with the right one, and how a form with another one is called; a title of words says more of some.
var recursionPlaces = []struct {
	right  func(gamma, lambda float64) float64
	title  string
	titles map[string]string
	put    func(f *recursionForm, by func(gamma, lambda float64) float64)
}{
	{both2, "A_{t+1} is carried with %s", map[string]string{"γ": "A_{t+1} is carried with γ, without λ", "λ": "A_{t+1} is carried with λ, without γ", "0": "A_{t+1} is not carried",
		"1": "A_{t+1} is carried whole", "−γλ": "A_{t+1} is subtracted: A = δ − γλ·A_{t+1}"},
		func(f *recursionForm, by func(gamma, lambda float64) float64) { f.carry = by }},
	{onlyGamma, "the next value is discounted by %s", map[string]string{"1": "δ = r + V_{t+1} − V: γ is missing before the next value", "0": "the next value is left out: δ = r − V"},
		func(f *recursionForm, by func(gamma, lambda float64) float64) { f.step = by }},
	{whole, "the own value is multiplied by %[1]s: δ = r + γ·V_{t+1} − %[1]s·V", map[string]string{"γ": "γ multiplies the own value, too: δ = r + γ·(V_{t+1} − V)",
		"λ": "λ multiplies the own value: δ = r + γ·V_{t+1} − λ·V", "0": "the own value is left out: δ = r + γ·V_{t+1}", "−1": "the value is added: δ = r + γ·V_{t+1} + V"},
		func(f *recursionForm, by func(gamma, lambda float64) float64) { f.ownBy = by }},
	{whole, "%[1]s multiplies the reward: δ = %[1]s·r + γ·V_{t+1} − V", map[string]string{"γ": "γ multiplies the reward, too: δ = γ·(r + V_{t+1}) − V", "0": "the reward is left out: δ = γ·V_{t+1} − V"},
		func(f *recursionForm, by func(gamma, lambda float64) float64) { f.rewardBy = by }},
	{whole, "%[1]s multiplies δ, too: every A is %[1]s times the right one", map[string]string{"λ": "λ multiplies δ, too: A = λ·(δ + γ·A_{t+1})", "0": ""},
		func(f *recursionForm, by func(gamma, lambda float64) float64) { f.scale = by }},
}

// factorForms are recursions that have one factor wrong: each of [discounts] in each place, and in both places of γ what stands for γ in one. Of those
// that are one number under the declared γ and λ the first stands for all.
func factorForms(c *stage.Case) []recursionForm {
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	right := recursionForms()[0]
	var list []recursionForm
	same := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*math.Abs(y) }
	for _, place := range recursionPlaces {
		seen := []float64{place.right(gamma, lambda)}
		for _, d := range discounts {
			x := d.of(gamma, lambda)
			title, named := place.titles[d.name]
			if math.IsNaN(x) || math.IsInf(x, 0) || slices.ContainsFunc(seen, func(y float64) bool { return same(x, y) }) || named && title == "" {
				continue
			}
			seen = append(seen, x)
			if !named {
				title = fmt.Sprintf(place.title, d.name)
			}
			f := right
			if f.title = title; place.title == recursionPlaces[0].title && d.name == "λ" || place.title == recursionPlaces[1].title && d.name == "1" {
				f.id = "GAE-NO-GAMMA"
			}
			place.put(&f, d.of)
			list = append(list, f)
		}
	}
	for _, d := range discounts {
		f := right
		f.title = fmt.Sprintf("γ is %s in both places, before the next value and before A_{t+1}", d.name)
		if d.name == "1" {
			f.id, f.title = "GAE-NO-GAMMA", "δ = r + V_{t+1} − V, and A_{t+1} is carried with λ: γ is missing in both"
		}
		if x := d.of(gamma, lambda); same(x, gamma) || math.IsInf(x, 0) || x == 0 {
			continue
		}
		f.step, f.carry = d.of, func(g, l float64) float64 { return d.of(g, l) * l }
		list = append(list, f)
	}
	return list
}

// endForms are recursions in which a value stands behind the last token of a response: its own one, or that of the token behind it, of all responses or by
// whether they have EOS.
func endForms(c *stage.Case) []recursionForm {
	finished, cut := endsOf(c)
	var list []recursionForm
	if c.EnumOr("gae.hole", "") == "none" {
		f := recursionForms()[0]
		f.id, f.title, f.endColumn = "GAE-TRUNCATED-BOOTSTRAP", "the last column bootstraps from its own value, whatever stands there", true
		f.end = func(v []float64, _, _ float64) float64 { return v[len(v)-1] }
		list = append(list, f)
	}
	for _, which := range []struct {
		of   string
		rows func(ended bool) bool
	}{
		{"", nil},
		{" of a response that ended with EOS", func(ended bool) bool { return ended }},
		{" of a response that was cut off", func(ended bool) bool { return !ended }},
	} {
		if which.rows != nil && !(finished && cut) {
			continue
		}
		for _, what := range []struct {
			title string
			end   func(v []float64, behind, gamma float64) float64
		}{
			{"its own value", func(v []float64, _, _ float64) float64 { return v[len(v)-1] }},
			{"its own value, without γ", func(v []float64, _, gamma float64) float64 { return v[len(v)-1] / gamma }},
			{"the value behind it", func(_ []float64, behind, _ float64) float64 { return behind }},
			{"the value behind it, without γ", func(_ []float64, behind, gamma float64) float64 { return behind / gamma }},
			{"the value of the token before", func(v []float64, _, _ float64) float64 { return at(v, len(v)-2) }},
			{"the value of the first token", func(v []float64, _, _ float64) float64 { return v[0] }},
			{"the mean value of its row", func(v []float64, _, _ float64) float64 { return total(v) / float64(len(v)) }},
		} {
			f := recursionForms()[0]
			f.id, f.title, f.end, f.endsRow = "GAE-TRUNCATED-BOOTSTRAP", "the last token"+which.of+" bootstraps from "+what.title, what.end, which.rows
			list = append(list, f)
		}
	}
	return list
}
