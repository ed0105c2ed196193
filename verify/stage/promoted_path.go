package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// promotedPath rounds a gradient as autograd does where the log-probs have a 16-bit type. What reaches a tensor of the type is cast to it:
//
//	through a ratio of the token   rnd(rnd(∂/∂ρ)·ρ)
//	through that of a sequence     rnd(Σ ∂/∂ρ·ρ/n) where the ratio is float32 again, else what [policy.rowPaths] says
//	beside it (score functions)    rnd(∂/∂lp), see [policy.scorePath]
//
// and of the KL term what [klPaths] says of g = β·w, of is_corrected times ρ, which has k·β·w with respect to ρ besides. Paths are added in
// the order in which autograd meets them, each sum rounded.
// Frameworks round w and β before they are multiplied, after, or one of them: one of these orders holds for all cells, that which
// leaves the fewest of what was dumped beyond their bound.
func (p *policy) promotedPath(c *Case, red *reduction, q *Prediction) {
	u := p.lp.Half
	if u == 0 {
		return
	}
	path, weights := make([]float64, len(q.Want)), make([]float64, len(q.Want))
	p.withoutKL().backward(c, red, path, weights)
	p.reach = weights
	if p.o.Kind == rl.LossCISPO {
		p.coef, _, _ = p.detached(c.B)
	}
	p.besides(c, weights, path, q.Want)
	p.tie16(weights, path, q.Want)
	if p.knowsWidePath() {
		if p.rowPathed() {
			p.rowPaths(c.B.Cols, nil, roundingWay{}, u)
		}
		p.widePath(c, q, path, weights, u)
		return
	}
	if !p.knowsKLPath() {
		p.withoutKLPath(c, red, q, path, weights, u)
		return
	}
	got := c.B.Token("dlogp")
	var want, bound []float64
	least, cols := 0, c.B.Cols
	casts := map[*float64]*castPaths{} // by the weights
	for _, way := range p.weighted(p.rowWays(p.roundingWays(c)), c, red, weights, u) {
		path, weights := p.reached(way, path, weights)
		if p.o.KL.Grad != rl.KLISCorrected && !p.rowPathed() && len(weights) > 0 {
			if casts[&weights[0]] == nil {
				casts[&weights[0]] = p.castPaths(path, weights, u)
			}
			way.casts = casts[&weights[0]]
		}
		var x, e []float64
		total := 0
		misses := make([]int, c.B.Rows)
		for _, nudge := range []float64{0, 1, -1} { // a weight that lies next to a middle, with all tokens of its row
			y, ye := p.promotedOrder(c, way, 16*tol.U32*nudge, path, weights, u)
			if x == nil {
				x, e = y, ye
			}
			for row := range misses {
				n := 0
				for i := row * cols; i < (row+1)*cols; i++ {
					if len(got) == len(y) && weights[i] != 0 && math.Abs(got[i]*c.B.Meta.DLogpScale-y[i]) > q.Bound[i]+ye[i]+u*math.Abs(y[i]) {
						n++
					}
				}
				if nudge == 0 {
					misses[row] = n
				} else if n < misses[row] {
					misses[row] = n
					copy(x[row*cols:(row+1)*cols], y[row*cols:(row+1)*cols])
					copy(e[row*cols:(row+1)*cols], ye[row*cols:(row+1)*cols])
				}
			}
			if !slices.ContainsFunc(misses, func(n int) bool { return n > 0 }) {
				break
			}
		}
		for _, n := range misses {
			total += n
		}
		if want == nil || total < least {
			want, bound, least = x, e, total
		}
		if least == 0 {
			break
		}
	}
	for i, x := range want {
		if !math.IsNaN(path[i]) && weights[i] != 0 {
			q.Want[i] = x
			q.Bound[i] += bound[i]
		}
	}
}

// roundingOrders are the ways in which β and the weight w of a token become a number of a type with rounding r.
var roundingOrders = []func(beta, w float64, r func(float64) float64) float64{
	func(beta, w float64, r func(float64) float64) float64 { return r(r(w) * beta) },
	func(beta, w float64, r func(float64) float64) float64 { return r(w * beta) },
	func(beta, w float64, r func(float64) float64) float64 { return r(w * r(beta)) },
	func(beta, w float64, r func(float64) float64) float64 { return r(r(w) * r(beta)) },
}

// roundingWay is how a program rounds the gradient of a KL term: the order of β and w, the form of the estimates k, and whether that of the
// policy term is met before it. Autograd goes from the last operation to the first: the policy term is met first where the program computed
// it after the KL (TRL 0.14 and 0.16), and the paths of a difference lp − ref that was written twice are then added to it one by one.
type roundingWay struct {
	order       func(beta, w float64, r func(float64) float64) float64
	k           *Prediction
	steps       []klStep
	casts       *castPaths // where they are the same under every nudge, see [policy.castPath]
	policyFirst bool
	score       scoreOrder
	late        bool      // the estimate is multiplied by the ratio after the surrogate was recorded, see [policy.surrogatePath]
	whole       bool      // of a ratio of rows: the surrogate is one of the row, see [policy.rowPaths]
	weights     []float64 // of the cells in the aggregation, see [reduction.chained]
}

// roundingWays returns the ways that the dumped estimates leave open, all of them where there are none.
func (p *policy) roundingWays(c *Case) []roundingWay {
	o := p.o.KL
	o.Grad = rl.KLNaive
	var ratio *ratios
	if p.ratioInKL() {
		ratio = &p.ratio
	}
	forms := k3Forms
	if got := c.B.Token("kl"); o.Kind != rl.KLK3 || p.o.KL.Grad == rl.KLStraightThroughK2 {
		forms = forms[:1]
	} else if got != nil {
		form, _ := k3FormOf(got, c.B.Mask, p.lp, p.ref, o, ratio)
		forms = []k3Form{form}
	}
	var ways []roundingWay
	for _, form := range forms {
		k := &Prediction{Want: make([]float64, len(p.lp.X)), Bound: make([]float64, len(p.lp.X))}
		promotedKL(k, p.lp, p.ref, o, form)
		steps := form.steps(p.lp, p.ref, o)
		for _, order := range roundingOrders {
			ways = append(ways, roundingWay{order: order, k: k, steps: steps})
		}
	}
	also := func(change func(*roundingWay)) {
		for _, way := range ways {
			change(&way)
			ways = append(ways, way)
		}
	}
	switch {
	case p.scores():
		var all []roundingWay
		for _, way := range ways {
			for way.score = range scoreOrders {
				all = append(all, way)
			}
		}
		return all
	case p.o.KL.Grad == rl.KLISCorrected:
		also(func(way *roundingWay) { way.late = true })
	}
	also(func(way *roundingWay) { way.policyFirst = true })
	return ways
}

// promotedOrder returns the gradient of the cells, and how far roundings that are open can move it, in one of the ways, each product
// moved by the share nudge beforehand; path is that of the policy term before it is rounded.
func (p *policy) promotedOrder(c *Case, way roundingWay, nudge float64, path, weights []float64, u float64) (want, bound []float64) {
	order, k := way.order, way.k
	r := func(x float64) float64 { y, _ := rounded(x*(1+nudge), u); return y }
	want, bound = make([]float64, len(path)), make([]float64, len(path))
	corrected := p.o.KL.Grad == rl.KLISCorrected && p.ratio.x != nil
	sequence := corrected && p.o.Ratio.Level != rl.RatioToken
	by := func(i int) float64 {
		beta := p.beta
		if p.klInside && p.weight.X != nil {
			beta *= p.weight.X[i]
		}
		return beta
	}
	rows := p.rowPathed()
	if rows {
		var more []float64
		if sequence {
			more = make([]float64, len(path))
			for i, w := range weights {
				more[i] = r(order(by(i), w, r) * k.Want[i])
			}
		}
		p.rowPaths(c.B.Cols, more, way, u)
	}
	for row := range c.B.Rows {
		lo, hi := row*c.B.Cols, (row+1)*c.B.Cols
		var shared float64 // of a sequence: what the weight of the KL term adds to the gradient of the ratio, in float32
		if sequence {
			for i := lo; i < hi; i++ {
				if weights[i] != 0 && !math.IsNaN(path[i]) {
					shared += float64(by(i) * weights[i] * k.Want[i] * p.ratio.x[i])
				}
			}
			shared /= p.ratio.count[row]
		}
		for i := lo; i < hi; i++ {
			g := path[i]
			if math.IsNaN(g) || weights[i] == 0 {
				want[i] = g
				continue
			}
			toKL, toRatio := order(by(i), weights[i], r), 0.0
			switch {
			case sequence && rows:
				toKL = r(toKL * p.ratio.x[i])
			case sequence:
				toKL = r(by(i) * weights[i] * p.ratio.x[i])
				g += shared
			case corrected:
				rho := r(p.ratio.x[i]) // it is of the format but for the logarithm that it went through
				if p.rho != nil {
					rho = p.rho[i]
				}
				toRatio = r(toKL * k.Want[i])
				toKL = r(toKL * rho)
			}
			want[i], bound[i] = p.promotedSum(g, toKL, toRatio, k.Want[i], i, way, u)
		}
	}
	return want, bound
}

// promotedSum returns the gradient of cell i by all paths: g that of the policy term before it is rounded, toKL the gradient with respect
// to the estimate and toRatio what that of the ratio has besides.
func (p *policy) promotedSum(g, toKL, toRatio, k float64, i int, way roundingWay, u float64) (y, e float64) {
	o := p.o.KL
	if way.casts != nil {
		y, e = way.casts.y[i], way.casts.e[i]
	} else {
		y, e = p.castPath(g, toRatio, i, u, way.late)
	}
	apart := 0.0 // what a score function, which does not pass the ratio, has by that of the KL term
	if p.scores() && toRatio != 0 {
		rho, _ := rounded(p.ratio.x[i], u)
		apart, _ = rounded(toRatio*rho, u)
	}
	d := way.steps[i].d
	if clamps := o.ClampAll || o.Kind == rl.KLK3; clamps && o.Grad != rl.KLStraightThroughK2 &&
		(o.ClampIn > 0 && math.Abs(d) >= o.ClampIn || o.ClampOut > 0 && math.Abs(k) >= o.ClampOut) {
		return y + apart, e
	}
	first, second, ke := klPaths(o, way.steps[i], toKL, u)
	e += ke
	if p.scores() {
		return way.score.sum(y, first, second, apart, u), e
	}
	all, _ := rounded(first+second, u)
	if way.policyFirst {
		one, _ := rounded(y+second, u)
		return one + first, e
	}
	return y + all, e
}

// besides stores what dro and kl_cov add to the path of −A·lp or of the ratio: w·β·d, and w·coef·sign(d) where a token is held back. Where
// kl_cov's ratio is rounded to 1 the difference keeps its sign: the slope that the gradients lack there is added.
func (p *policy) besides(c *Case, weights []float64, gradients ...[]float64) {
	old := p.denominator().X
	switch p.o.Kind {
	case rl.LossDRO:
		p.beside = make([]float64, len(weights))
		for i := range weights {
			p.beside[i] = weights[i] * p.o.DROBeta * (p.lp.X[i] - old[i])
		}
	case rl.LossKLCov:
		p.beside, p.cut = make([]float64, len(weights)), make([]choice, len(weights))
		x := old
		if p.stored.X != nil {
			x = p.stored.X
		}
		p.heldBack(c.B, func(i int, held, open bool) {
			d := p.lp.X[i] - x[i]
			if !open {
				p.cut[i] = settled
			}
			if d == 0 || !held && !open {
				return
			}
			p.beside[i] = math.Copysign(weights[i]*p.o.Cov.Coef, d*weights[i])
			if held && p.lp.X[i] == old[i] {
				for _, g := range gradients {
					g[i] += p.beside[i]
				}
			}
		})
	}
}

// choice says of a token whether it is known that kl_cov holds it back or not.
type choice bool

const settled choice = true

// scores reports whether the loss is a score function, whose gradient does not pass the ratio.
func (p *policy) scores() bool {
	switch p.o.Kind {
	case rl.LossReinforce, rl.LossCISPO, rl.LossVESPO, rl.LossDPPOTV, rl.LossDPPOKL:
		return true
	}
	return false
}
