package update

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// mostRates is how many groups of parameters with a rate of their own are told apart.
const mostRates = 4

// tensor returns the part of the sample that is of one tensor; norms stay those of all.
func (s *sample) tensor(k int) *sample {
	pick := func(x []float64) []float64 {
		if x == nil {
			return nil
		}
		var out []float64
		for j, of := range s.of {
			if of == k {
				out = append(out, x[j])
			}
		}
		return out
	}
	one := &sample{groups: s.groups, complete: s.complete}
	for _, of := range s.of {
		if of == k {
			one.of = append(one.of, k)
		}
	}
	for _, p := range s.list {
		q := *p
		q.g, q.w, q.u, q.noise = pick(p.g), pick(p.w), pick(p.u), pick(p.noise)
		one.list = append(one.list, &q)
	}
	return one
}

// grouped judges an optimiser whose groups of parameters have rates of their own, in the same ratio in every step: nil where that does not
// give the run.
func (s *search) grouped(d Declared) []check.Result {
	if len(s.groups) < 2 || len(s.groups) > 256 {
		return nil
	}
	parts := make([]*sample, len(s.groups))
	for k := range parts {
		parts[k] = s.tensor(k)
	}
	for _, v := range variants(d, s.sample) {
		if len(v.off) > 0 {
			break
		}
		fits := make([]*fit, len(parts))
		holds := true
		for k := 0; k < len(parts) && holds; k++ {
			fits[k] = v.rule.fits(parts[k])
			holds = fits[k].holds() && fits[k].tells()
		}
		if !holds {
			continue
		}
		if rates, text := s.ratios(fits); rates > 1 && rates <= mostRates {
			f := fits[0]
			compared := 0
			for _, g := range fits {
				compared += g.of
				f.worst = max(f.worst, g.worst)
			}
			res := check.Result{Check: stepID, Verdict: check.Pass, Subject: count(len(s.list), "step"), Compared: compared, Steps: stepsOf(len(s.list)),
				Reason: f.words() + "; " + text, Metric: "|Δ|/limit", Measured: f.worst, Limit: 1}
			out := []check.Result{res}
			if !math.IsNaN(d.Rate) {
				out = append(out, check.Result{Check: rateID, Verdict: check.Note, Reason: "one rate is declared, and " + text})
			}
			return out
		}
	}
	return nil
}

// ratios counts the groups of tensors by their rate, 0 where a ratio changes, and says which there are.
func (s *search) ratios(fits []*fit) (groups int, text string) {
	type one struct{ lo, hi, rate float64 }
	var found []one
	var parts []string
	first := fits[0]
	for k, f := range fits {
		lo, hi, rate := math.Inf(-1), math.Inf(1), 0.0
		for i, a := range f.rates {
			base := first.rates[i]
			if math.IsNaN(a) || math.IsNaN(base) || base == 0 {
				continue
			}
			slack := (f.apart[i] + math.Abs(a/base)*first.apart[i]) / math.Abs(base)
			lo, hi, rate = max(lo, a/base-slack), min(hi, a/base+slack), a
		}
		if lo > hi {
			return 0, ""
		}
		if slices.ContainsFunc(found, func(o one) bool { return o.lo <= hi && lo <= o.hi }) {
			continue
		}
		found = append(found, one{lo, hi, rate})
		parts = append(parts, fmt.Sprintf("%.4g (%.60s)", rate, s.groups[k].name))
	}
	return len(found), fmt.Sprintf("%d rates: %s", len(found), strings.Join(parts, ", "))
}
