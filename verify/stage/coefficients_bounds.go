package stage

import (
	"math"
	"slices"
)

// Bounds have any value. Of a loss that is all that says of its tokens, as of [lossForms], they are solved for: the loss of a token is a line of each
// bound that holds it, so that the losses of the files are linear in bounds, caps of weights and coefficients together as long as the same tokens are
// held, and Gauss–Newton steps from one set of these to the next end in few. Numbers that people write then leave nothing of the losses.

// ofPlain is a sum over tokens that a constant divides.
const ofPlain = aggregations

// Parameters of a form that are no coefficients: bounds of the ratio, one for both sides or each its own, the dual clip, the cap of the engine's weights,
// the clip of values, the temperatures of SAPO for either sign of the advantage, and what the weights are at least.
const (
	paramBoth, paramLow, paramHigh = 0, 1, 2
	paramDual, paramCap, paramClip = 3, 4, 5
	paramTauPos, paramTauNeg       = 6, 7
	paramFloor                     = 8
	params                         = 9
)

// boundStarts are the values from which parameters are solved.
var boundStarts = [params][]float64{{0.2, 0.05, 3e-3}, {0.2, 0.05, 3e-3}, {0.2, 0.05, 3e-3}, {2, 1.2, 4}, {1.5, 1.05, 3}, {0.2, 0.05, 0.02},
	{1, 3, 0.3}, {1, 3, 0.3}, {0.5, 0.9, 0.98}}

// mostBound is the most tokens whose bounds are solved for.
const mostBound = 1 << 14

// ratio returns the ratios of the tokens of a level.
func (t *boundTokens) ratio(level string) []float64 {
	if x, ok := t.ratios[level]; ok {
		return x
	}
	x := make([]float64, len(t.lp))
	for f := range t.files {
		for _, row := range t.files[f].rows {
			var sum float64
			for i := row.lo; i < row.hi; i++ {
				d := t.lp[i] - t.old[i]
				if level == detachedLevel {
					d = 0
				}
				x[i] = math.Exp(d)
				sum += d
			}
			if level == "seq_mean" {
				sum /= float64(row.hi - row.lo)
			}
			for i := row.lo; level != "token" && i < row.hi; i++ {
				x[i] = math.Exp(sum)
			}
		}
	}
	if t.ratios == nil {
		t.ratios = map[string][]float64{}
	}
	t.ratios[level] = x
	return x
}

// boundForm is a form whose parameters are solved for.
type boundForm struct {
	lossForm
	kindOf   string  // loss.kind: "" for ppo, cispo, sapo, gmpo or reinforce
	slip     int     // the loss is wrong as this one of boundSlips, from 1 on; 0: it is right
	wrong    bool    // what it is computed from has a bug
	weights  string  // level of the engine's weights, "" where there are none
	kind     int     // aggregation
	terms    []int   // 0 for the KL, 1 for the entropy, 2 for the value loss
	estimate int     // of the KL
	mask     int     // of the value loss
	beside   float64 // size of the terms
	uses     []int   // parameters
	at       [params]float64
	idle     [params]bool // hold no token
	coef     [3]float64
	scale    float64 // of a sum of rows; 1 of a mean
	left     float64
	size     float64 // of the losses of the tokens
}

// free reports whether a constant that is solved for divides the sums of a form.
func (f *boundForm) free() bool { return f.kind >= ofSums && f.kind <= ofPlain }

// has reports whether a form has a parameter.
func (f *boundForm) has(k int) bool { return slices.Contains(f.uses, k) }

// bounds returns the bounds of a form.
func (f *boundForm) bounds() (low, high, dual, limit float64) {
	low, high, dual, limit = math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	if f.has(paramBoth) {
		low, high = f.at[paramBoth], f.at[paramBoth]
	}
	if f.has(paramLow) {
		low = f.at[paramLow]
	}
	if f.has(paramHigh) {
		high = f.at[paramHigh]
	}
	if f.has(paramDual) {
		dual = f.at[paramDual]
	}
	if f.has(paramCap) {
		limit = f.at[paramCap]
	}
	return low, high, dual, limit
}

// geometric is the loss of a row that has the geometric mean of bounded ratios of its tokens, −A·exp(Σc/n) with c = min(d, high) of a log-ratio d for A > 0
// and max(d, −low) else (loss.kind gmpo).
const geometric = "gmpo"

// logKind is the loss of a score function, −A·lp.
const logKind = "reinforce"

// ofGeometric is policy of that kind: each token has the loss of its row.
func (t *boundTokens) ofGeometric(f *boundForm) (loss []float64, by [params][]float64) {
	loss, by = t.rooms(f)
	low, high, _, _ := f.bounds()
	for _, file := range t.files {
		for _, row := range file.rows {
			k, sign, bound := paramHigh, 1.0, high
			if row.hi > row.lo && t.adv[row.lo] < 0 {
				k, sign, bound = paramLow, -1, low
			}
			if f.has(paramBoth) {
				k = paramBoth
			}
			var sum, held, adv float64
			n := float64(row.hi - row.lo)
			for i := row.lo; i < row.hi; i++ {
				d := sign * (t.lp[i] - t.old[i])
				if d > bound {
					d = bound
					held++
				}
				sum, adv = sum+sign*d, adv+t.adv[i]/n
			}
			for i := row.lo; i < row.hi; i++ {
				loss[i] = -adv * math.Exp(sum/n)
				by[k][i] = loss[i] * sign * held / n
			}
		}
	}
	return loss, by
}

// rooms returns the room for the losses of the tokens and for how they change with each parameter. It is that of the forms before.
func (t *boundTokens) rooms(f *boundForm) (loss []float64, by [params][]float64) {
	of := func(k int) []float64 {
		if t.room[k] == nil {
			t.room[k] = make([]float64, len(t.lp))
		}
		return t.room[k]
	}
	for _, k := range f.uses {
		by[k] = of(k)
		clear(by[k])
	}
	return of(params), by
}

// policy returns the policy losses of the tokens, and how they change with each parameter, until it is called again.
func (t *boundTokens) policy(f *boundForm) (loss []float64, by [params][]float64) {
	if f.kindOf == geometric {
		return t.ofGeometric(f)
	}
	ratio := t.ratio(f.level)
	loss, by = t.rooms(f)
	shape, _ := f.shape()
	ends := f.ends(shape)
	limit, floor := math.Inf(1), math.Inf(-1)
	if f.has(paramCap) {
		limit = f.at[paramCap]
	}
	if f.has(paramFloor) {
		floor = f.at[paramFloor]
	}
	var engine []float64
	if k := slices.Index(engineLevels, f.weights); k >= 0 {
		engine = t.engine[k]
	}
	for i, a := range t.adv {
		if f.kindOf == "cispo" || f.kindOf == logKind { // the bounded ratio is a weight of the log-prob
			a *= t.lp[i]
		}
		var x, slope float64
		held := unheld
		switch f.kindOf {
		case logKind:
			x = -a
		case "sapo":
			x, slope, held = sapoLoss(ratio[i], a, f.at[paramTauPos], f.at[paramTauNeg])
		default:
			x, slope, held = shape.of(a, ratio[i], &ends)
		}
		w := 1.0
		if engine != nil {
			switch w = engine[i]; {
			case w > limit:
				w = limit
				by[paramCap][i] = x
			case w < floor:
				w = floor
				by[paramFloor][i] = x
			}
		}
		if loss[i] = w * x; held != unheld {
			by[held][i] = w * slope
		}
	}
	return loss, by
}

// sapoLoss returns −4Aσ(τ(ρ − 1))/τ, how it changes with τ, and which τ that is.
func sapoLoss(rho, a, pos, neg float64) (x, slope float64, which int) {
	tau, which := neg, paramTauNeg
	if a > 0 {
		tau, which = pos, paramTauPos
	}
	sigma := 1 / (1 + math.Exp(-tau*(rho-1)))
	return -4 * a * sigma / tau, 4 * a * (sigma/tau - sigma*(1-sigma)*(rho-1)) / tau, which
}

// losses returns the value losses of the cells, ½ of the larger square, and how they change with the clip.
func (t *boundValues) losses(clip float64) (loss, by []float64) {
	loss, by = make([]float64, len(t.value)), make([]float64, len(t.value))
	for i, v := range t.value {
		held := min(max(v, t.rollout[i]-clip), t.rollout[i]+clip)
		d, e := v-t.target[i], held-t.target[i]
		if loss[i] = d * d / 2; e*e > d*d {
			loss[i] = e * e / 2
			if by[i] = e; v < held {
				by[i] = -e
			}
		}
	}
	return loss, by
}

// kl returns the estimates of a KL of the tokens.
func (t *boundTokens) kl(k int) []float64 {
	x := make([]float64, len(t.lp))
	for i := range x {
		if t.given != nil {
			x[i] = t.given[i]
		} else {
			x[i] = klForms[k%len(klForms)].of(t.klOf[i] - t.ref[i])
		}
		if k >= len(klForms) {
			x[i] *= math.Exp(t.lp[i] - t.old[i])
		}
		if t.minus {
			x[i] = -x[i]
		}
	}
	return x
}

// column is what a term is in every file.
type column struct {
	x     []float64
	term  int // of coefficients; −1 of a parameter, −2 of the scale
	param int
}

// columns returns the terms of a form and what its parameters change, nil where one is not known, and the losses less what has no coefficient.
func (t *boundTokens) columns(f *boundForm, terms map[[2]int][]float64) (list []column, y []float64) {
	policy, by := t.sums(f)
	y = make([]float64, len(t.files))
	free := f.free()
	for i := range y {
		if y[i] = t.files[i].loss; !free {
			y[i] -= policy[i]
		}
	}
	if free {
		list = append(list, column{policy, -2, 0})
	}
	var clipped []float64
	f.beside = 0
	for _, term := range f.terms {
		key := [2]int{term, f.kind}
		if term == 0 {
			key[0] = 10 + f.estimate
		}
		x := terms[key]
		if x == nil {
			switch term {
			case 0:
				x = t.of(t.kl(f.estimate), f.kind)
			case 1:
				x = t.of(t.entropy, f.kind)
			case 2:
				v, slope := t.values[f.mask].losses(f.clip())
				x, clipped = t.values[f.mask].of(v, f.kind), t.values[f.mask].of(slope, f.kind)
			}
			if term != 2 {
				terms[key] = x
			}
		}
		list = append(list, column{x, term, 0})
		f.beside += math.Abs(f.coef[term]) * maxAbs(x)
	}
	for _, k := range f.uses {
		x, times := clipped, f.coef[2]
		if k != paramClip {
			x, times = by[k], f.scale
		}
		f.idle[k] = true
		for i := range x {
			x[i] *= times
			f.idle[k] = f.idle[k] && math.Abs(x[i]) <= 1e-4*f.sizeOf()
		}
		if !f.idle[k] {
			list = append(list, column{x, -1, k})
		}
	}
	return list, y
}

// clip is that of the values.
func (f *boundForm) clip() float64 {
	if f.has(paramClip) {
		return f.at[paramClip]
	}
	return math.Inf(1)
}

// squares solves y = Σ c·x by least squares; nil where it is not determined.
func squares(list []column, y []float64) []float64 {
	n := len(list)
	if n == 0 {
		return []float64{}
	}
	m := n + 1
	norm := make([]float64, n)
	for j, c := range list {
		for _, v := range c.x {
			norm[j] += v * v
		}
		if norm[j] = math.Sqrt(norm[j]); norm[j] == 0 || math.IsNaN(norm[j]) {
			return nil
		}
	}
	a := make([]float64, n*m)
	for i := range y {
		for j := range n {
			for k := range n {
				a[j*m+k] += float64(list[j].x[i] / norm[j] * list[k].x[i] / norm[k])
			}
			a[j*m+n] += float64(list[j].x[i] / norm[j] * y[i])
		}
	}
	x := eliminate(a, n)
	for j := range x {
		x[j] /= norm[j]
	}
	return x
}

// residual is the largest of what a solution leaves.
func residual(list []column, y, x []float64) (left float64) {
	for i := range y {
		r := y[i]
		for j, c := range list {
			r -= x[j] * c.x[i]
		}
		left = max(left, math.Abs(r))
	}
	return left
}

// solve makes Gauss–Newton steps until the parameters of a form stay, and reports whether the numbers that they and the coefficients then are near to leave
// nothing of the losses but rounding.
func (t *boundTokens) solve(f *boundForm, terms map[[2]int][]float64) bool {
	const steps, near, shows = 14, 2e-6, 1e-3
	if !t.descend(f, terms, steps) {
		return false
	}
	list, y := t.columns(f, terms)
	limit := near * f.sizeOf()
	if !(limit <= shows*t.largest()) { // of sums that cancel so far any loss is a rounding
		return false
	}
	if x := squares(list, y); x == nil || residual(list, y, x) > 64*limit {
		return false
	}
	return t.settle(f, terms, limit)
}

// largest is that of the losses.
func (t *boundTokens) largest() (x float64) {
	for i := range t.files {
		x = max(x, math.Abs(t.files[i].loss))
	}
	return x
}

// leaves is what a form leaves of the losses, relative to them, after so few steps that a right one shows.
func (t *boundTokens) leaves(f *boundForm, terms map[[2]int][]float64) float64 {
	const few = 3
	if !t.descend(f, terms, few) {
		return math.Inf(1)
	}
	list, y := t.columns(f, terms)
	if x := squares(list, y); x != nil {
		return residual(list, y, x) / f.sizeOf()
	}
	return math.Inf(1)
}

// descend makes so many Gauss–Newton steps at most, and reports whether they lead somewhere.
func (t *boundTokens) descend(f *boundForm, terms map[[2]int][]float64, steps int) bool {
	const early, far = 4, 1e-3 // a form that is right leaves no more by then
	const halvings = 4         // of a step
	f.scale, f.coef = 1, [3]float64{1, 1, 1}
	stays := false
	from := f.at
	for step := range steps {
		list, y := t.columns(f, terms)
		for range halvings {
			if !f.nearer(from) {
				break
			}
			list, y = t.columns(f, terms)
		}
		from = f.at
		if len(y) < len(list)+1 {
			return false
		}
		x := squares(list, y)
		if x == nil || step == early && residual(list, y, x) > far*f.sizeOf() {
			return false
		}
		stays = true
		for j, c := range list {
			switch {
			case c.term == -2:
				stays = stays && math.Abs(x[j]-f.scale) <= 1e-9*math.Abs(x[j])
				f.scale = x[j]
			case c.term >= 0:
				stays = stays && math.Abs(x[j]-f.coef[c.term]) <= 1e-9*math.Abs(x[j])
				f.coef[c.term] = x[j]
			default:
				old := f.at[c.param]
				to := min(max(old+x[j], old/3), 3*old)
				if c.param == paramDual {
					to = max(to, 1+(old-1)/3)
				}
				if c.param == paramLow || c.param == paramBoth {
					to = min(to, 0.99)
				}
				stays = stays && math.Abs(to-old) <= 1e-9*old
				f.at[c.param] = to
			}
		}
		if !(f.scale > 0) {
			return false
		}
		if stays {
			break
		}
	}
	return true
}

// nearer takes back half of the step of each bound that holds no token behind it, and reports whether there is one: nothing brings it back.
func (f *boundForm) nearer(from [params]float64) (any bool) {
	for _, k := range f.uses {
		if f.idle[k] && f.at[k] != from[k] {
			f.at[k], any = (f.at[k]+from[k])/2, true
		}
	}
	return any
}

// sizeOf is that of the losses.
func (f *boundForm) sizeOf() float64 { return f.scale*f.size + f.beside }
