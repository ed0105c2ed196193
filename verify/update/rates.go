package update

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/check"
)

// rates judges the rates that were solved.
func rates(f *fit, list []*pair, d Declared) *check.Result {
	const part = 1e-3 // of a rate, that a schedule in float32 and a logged number of four digits may be off
	res := &check.Result{Check: rateID, Verdict: check.Pass, Compared: len(list), Steps: stepsOf(len(list))}
	slack := func(i int, want float64) float64 { return part*math.Abs(want) + f.apart[i] }
	lo, hi := extremes(f.rates)
	if lo < 0 {
		i := slices.IndexFunc(f.rates, func(a float64) bool { return a < 0 })
		if f.rates[i] < -f.apart[i] {
			res.Steps.Bad, res.Steps.First = len(list), list[i].step
			res.Reason = fmt.Sprintf("the weights move along the gradient: the rate of step %d is %.4g", list[i].step, f.rates[i])
			named(res, "OPTIM-ASCENT", res.Reason)
			return res
		}
	}
	if k, ahead, known := scheduled(f, d); known {
		if k == 1 && ahead == 0 {
			res.Reason = fmt.Sprintf("%.4g to %.4g, as the %s schedule has them", lo, hi, d.Schedule)
			return res
		}
		res.Steps.Bad, res.Steps.First = len(list), list[0].step
		res.Reason = fmt.Sprintf("the rates are those of the declared %s schedule with %d steps of it per step of the optimiser", d.Schedule, k)
		if k == 1 {
			res.Reason = fmt.Sprintf("the rates are those of the declared %s schedule one step later: it was stepped before the first step of the optimiser", d.Schedule)
		}
		named(res, "OPTIM-SCHEDULE", res.Reason)
		return res
	}
	if d.Falls && d.Schedule != "constant" && d.Schedule != "" && d.Rate > 0 && list[0].step <= 1 && f.rates[0] < d.Rate-slack(0, d.Rate) && f.rates[0] >= hi-slack(0, hi) {
		res.Steps.Bad, res.Steps.First = len(list), list[0].step
		res.Reason = fmt.Sprintf("the schedule falls from the declared rate %.4g, and the first step has %.4g: it was stepped before the first step of the optimiser", d.Rate, f.rates[0])
		named(res, "OPTIM-SCHEDULE", res.Reason)
		return res
	}
	if id, what, ok := uncounted(f, list, d); ok {
		res.Steps.Bad, res.Steps.First = len(list), list[0].step
		res.Reason = what
		named(res, id, what)
		return res
	}
	told := false
	logged := func(shift int) bool { // the scheduler may have stepped before or behind the line of the log
		seen := 0
		for i := range list {
			k := i + shift
			if k < 0 || k >= len(list) || math.IsNaN(list[k].rate) || math.IsNaN(f.rates[i]) {
				continue
			}
			if seen++; math.Abs(f.rates[i]-list[k].rate) > slack(i, list[k].rate) {
				return false
			}
		}
		return seen > 0
	}
	if slices.ContainsFunc(list, func(p *pair) bool { return !math.IsNaN(p.rate) }) {
		told = true
		if !logged(0) && !logged(-1) && !logged(1) {
			if c := boundOfRates(f, list, d); c > 0 {
				res.Reason = boundSaid(c)
				return res
			}
			i := slices.IndexFunc(list, func(p *pair) bool { return !math.IsNaN(p.rate) })
			res.Steps.Bad, res.Steps.First = len(list), list[i].step
			res.Reason = fmt.Sprintf("the rate of step %d is %.4g, and %.4g is logged", list[i].step, f.rates[i], list[i].rate)
			named(res, "OPTIM-RATE", res.Reason)
			return res
		}
	}
	if !math.IsNaN(d.Rate) {
		told = true
		for i, a := range f.rates {
			if math.IsNaN(a) {
				continue
			}
			if off := a - d.Rate; off > slack(i, d.Rate) || d.Constant && -off > slack(i, d.Rate) && hi-lo <= part*hi {
				res.Steps.Bad, res.Steps.First = len(list), list[i].step
				res.Reason = fmt.Sprintf("the rate of step %d is %.4g, and %.4g is declared", list[i].step, a, d.Rate)
				named(res, "OPTIM-RATE", res.Reason)
				return res
			}
		}
	}
	if !told {
		return nil
	}
	res.Reason = fmt.Sprintf("%.4g to %.4g", lo, hi)
	return res
}

// scheduled returns how many steps of the declared schedule there are to one of the optimiser, and how many before the first, where one such
// pair alone gives the rates of three steps or more.
func scheduled(f *fit, d Declared) (per, ahead int, known bool) {
	if d.Schedule != "linear" && d.Schedule != "cosine" || !(d.Rate > 0) || !(d.Steps > 0) {
		return 0, 0, false
	}
	warm := d.WarmUp
	switch {
	case math.IsNaN(warm):
		warm = 0
	case warm < 1: // a share, as transformers.TrainingArguments takes it
		warm = math.Ceil(d.Steps * warm)
	}
	// transformers 5.23, get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup
	rate := func(step float64) float64 {
		if step < warm {
			return d.Rate * step / max(1, warm)
		}
		left := (d.Steps - step) / max(1, d.Steps-warm)
		if d.Schedule == "cosine" {
			return d.Rate * max(0, 0.5*(1+math.Cos(math.Pi*(1-left))))
		}
		return d.Rate * max(0, left)
	}
	fits := func(per, ahead int) bool {
		seen := map[float64]bool{}
		for i, a := range f.rates {
			if math.IsNaN(a) {
				continue
			}
			want := rate(float64(i*per + ahead))
			if math.Abs(a-want) > 1e-4*d.Rate+f.apart[i] {
				return false
			}
			seen[want] = true
		}
		return len(seen) >= 3
	}
	if fits(1, 0) {
		return 1, 0, true
	}
	var found [][2]int
	for k := 1; k <= 64; k++ {
		for s := range 2 {
			if (k > 1 || s > 0) && fits(k, s) {
				found = append(found, [2]int{k, s})
			}
		}
	}
	if len(found) != 1 {
		return 0, 0, false
	}
	return found[0][0], found[0][1], true
}

// uncounted reports whether the rates are the logged ones, or the declared constant one, times what a wrong bias correction makes of them: where
// eps is lost beside the root, it is a factor of the whole step, which the solved rate takes up.
func uncounted(f *fit, list []*pair, d Declared) (id, what string, ok bool) {
	if f.kind == "sgd" || len(list) < 3 {
		return "", "", false
	}
	c := func(t int) float64 { // of a step that is divided by nothing
		return (1 - math.Pow(f.beta1, float64(t))) / math.Sqrt(1-math.Pow(f.beta2, float64(t)))
	}
	wrong := []struct {
		id, what string
		factor   func(t int) float64
	}{
		{"", "", func(int) float64 { return 1 }},
		{"OPTIM-NO-CORRECTION", "m and v are not divided by 1 − βᵗ", c},
		{"OPTIM-COUNT", "the bias correction is that of the first step in all of them", func(t int) float64 { return c(t) / c(1) }},
		{"OPTIM-COUNT", "the bias correction is that of the step behind", func(t int) float64 { return c(t) / c(t+1) }},
	}
	given := []func(i int) float64{}
	for _, shift := range []int{0, -1, 1} {
		given = append(given, func(i int) float64 {
			if k := i + shift; k >= 0 && k < len(list) {
				return list[k].rate
			}
			return math.NaN()
		})
	}
	if d.Constant {
		given = append(given, func(int) float64 { return d.Rate })
	}
	for _, w := range wrong {
		for _, rate := range given {
			seen, fits := 0, true
			for i, a := range f.rates {
				want := rate(i) * w.factor(i+1)
				if math.IsNaN(a) || math.IsNaN(want) {
					continue
				}
				seen++
				fits = fits && math.Abs(a-want) <= 1e-3*math.Abs(want)+f.apart[i]
			}
			if fits && seen >= 3 {
				return w.id, fmt.Sprintf("%s: the rates are the right ones times that factor, %.4g in step %d", w.what, w.factor(1), list[0].step), w.id != ""
			}
		}
	}
	return "", "", false
}
