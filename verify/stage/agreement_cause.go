package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// Comparison is what can be said of two passes a and b over the same tokens without a model: how far they are apart, and the cause of
// it that leaves a pattern of its own.
type Comparison struct {
	Discrepancy
	NotFinite   int     // tokens with a number that is none on either side
	Rho, RhoSE  float64 // mean of exp(a − b): 1 for tokens drawn from what b reports, whatever a is
	Mean        float64 // of D = b − a
	Cause       *Cause  // nil: none was found
	Other       bool    // no cause, and further apart than rounding in 16 bits
	Deep        bool    // no cause, and within what rounding in 16 bits makes of a deep model only
	Explained   string  // the coarsest format that explains the size, "" if none does
	Informative int     // tokens with p < 0.99
}

// Cause is a named cause of a difference.
type Cause struct {
	Fault    string  // its bug
	Explains float64 // share of ΣD²
	Alpha    float64 // of a temperature: b is a at α times its logits; else 0
	AlphaSE  float64 // its standard error
	Reason   string
}

// Near reports whether b is a at about k times its logits: without the entropies of the tokens α is pulled towards 1.
func (h *Cause) Near(k float64) bool {
	by := (h.Alpha - 1) / (k - 1)
	return by > 0.4 && by < 1.3
}

// logVocabulary bounds the entropy of what is left of a distribution: no vocabulary has more than e^12.5 = 268,000 tokens.
const logVocabulary = 12.5

// Compare looks for the cause of the difference between two passes. Causes that leave an exact or a one-sided pattern are looked for
// first: a shift, rows of others, what was filled in, storing in bfloat16, the mass that top-p kept; then a temperature. What leaves
// none (older weights, an adapter that is not there, another precision) satisfies every identity that two tensors have.
func (c *Case) Compare(a, b string) (out Comparison, ok bool) {
	x, y := c.B.Token(a), c.B.Token(b)
	if x == nil || y == nil {
		return out, false
	}
	for i, m := range c.B.Mask {
		if d := y[i] - x[i]; m && (math.IsNaN(d) || math.IsInf(d, 0)) {
			out.NotFinite++
		}
	}
	if out.Discrepancy, ok = c.Discrepant(a, b); !ok {
		return out, out.NotFinite > 0
	}
	var n, rho, rho2, mean float64
	for i, m := range c.B.Mask {
		d := y[i] - x[i]
		if !m || math.IsNaN(d) || math.IsInf(d, 0) {
			continue
		}
		r := math.Exp(min(max(-d, -20), 20))
		n++
		rho += r
		rho2 += float64(r * r)
		mean += d
		if -math.Expm1(min(x[i], 0)) > 0.01 || -math.Expm1(min(y[i], 0)) > 0.01 {
			out.Informative++
		}
	}
	out.Mean, out.Rho = mean/n, rho/n
	out.RhoSE = math.Sqrt(max(0, rho2/n-out.Rho*out.Rho) / n)
	if out.Same {
		return out, true
	}
	// The scale of each format is that of bfloat16 in the ratio of their roundings.
	for _, f := range []struct {
		name string
		unit float64
	}{{"float64", tol.U64}, {"float32", tol.U32}, {"float16", tol.U16}, {"bfloat16", tol.UB}} {
		if out.Scale <= OrdinaryScale*f.unit/tol.UB {
			out.Explained = f.name
			break
		}
	}
	out.Cause = c.cause(a, b, x, y, &out)
	if out.Cause == nil && out.Tokens >= tellingTokens {
		out.Other = out.Scale > largestScale
		out.Deep = !out.Other && out.Scale > OrdinaryScale
	}
	return out, true
}

func (c *Case) cause(a, b string, x, y []float64, m *Comparison) *Cause {
	if m.Tokens < few {
		return nil
	}
	zero := make([]float64, len(x))
	switch none := [2]bool{medianSize(gaps(c, zero, x, 0)) == 0, medianSize(gaps(c, zero, y, 0)) == 0}; {
	case none[1] && !none[0]:
		return &Cause{Fault: "GEN-ZERO", Explains: 1, Reason: b + " is 0 for most tokens: a placeholder"}
	case none[0] && !none[1]:
		return &Cause{Fault: "LOGP-OLD-ZERO", Explains: 1, Reason: a + " is 0 for most tokens: a placeholder"}
	case none[0] && none[1]:
		return nil
	}
	// A shift leaves a column without a log-prob, in which 0 may stand: it is told before values that were filled in.
	if h := c.displaced(a, b, x, y); h != nil {
		return h
	}
	if filled, of := c.filled(x, y); filled > 0 {
		return &Cause{Fault: "GEN-ZERO", Explains: of, Reason: fmt.Sprintf("%s is exactly 0 in %d tokens where %s is below %g: no log-prob was there, and 0 was filled in", b, filled, a, unlikely)}
	}
	if v := agree(c, a, b); v != nil && len(v.Violations) > 0 {
		return &Cause{Fault: v.Violations[0].Fault, Explains: 1, Reason: v.Violations[0].Reason}
	}
	if h := c.stored(a, b, x, y); h != nil {
		return h
	}
	if h := c.truncated(b, x, y, m); h != nil {
		return h
	}
	if h := c.heated(a, b, x, y, m); h != nil {
		return h
	}
	if m.Scale > 2*OrdinaryScale { // the bulk is off, not some tokens
		return nil
	}
	if c.policyPass() == a && b == "logp_gen" {
		if v := engineAgrees(c); v != nil && len(v.Violations) > 0 && v.Violations[0].Fault != "GEN-TRUNCATED" && v.Violations[0].Fault != "MASK-ATTENTION" {
			return &Cause{Fault: v.Violations[0].Fault, Explains: 1, Reason: v.Violations[0].Reason}
		}
	}
	if far, largest := farOff(gaps(c, x, y, 0)); far >= 3 {
		return &Cause{Fault: "GEN-OTHER-TOKEN", Explains: 1, Reason: fmt.Sprintf("%d of %d tokens are more than 1 nat off (at most %.3g) where the median |difference| is %.3g: another token's log-prob, or spikes of other kernels", far, m.Tokens, largest, medianSize(gaps(c, x, y, 0)))}
	}
	return nil
}

// displaced is [agree] for texts of which most tokens are certain, wherever they are: it goes by means, which the uncertain ones make.
func (c *Case) displaced(a, b string, x, y []float64) *Cause {
	mean := func(d []float64) (m float64) {
		for _, v := range d {
			m += math.Abs(v) / float64(len(d))
		}
		return m
	}
	here := mean(gaps(c, x, y, 0))
	for _, by := range []int{1, -1} {
		if d := gaps(c, x, y, by); len(d) >= tellingTokens && here > 0.01 && mean(d) < here/5 {
			return &Cause{Fault: "LOGP-SHIFT", Explains: 1, Reason: fmt.Sprintf("%s fits %s %d column on: mean |difference| %.3g in its own column, %.3g there", b, a, by, here, mean(d))}
		}
	}
	if row, from, own, best := strayRow(c, x, y, 0.005); row >= 0 {
		return &Cause{Fault: "ROWS-SWAPPED", Explains: 1, Reason: fmt.Sprintf("%s of row %d is %s of row %d: mean |difference| %.3g with its own row, %.3g there, and so for most rows that disagree", a, row, b, from, own, best)}
	}
	return nil
}

// filled counts tokens that are exactly 0 on one side and unlikely on the other, and returns their share of ΣD².
func (c *Case) filled(x, y []float64) (n int, share float64) {
	var of, all float64
	for i, m := range c.B.Mask {
		d := y[i] - x[i]
		if !m || math.IsNaN(d) || math.IsInf(d, 0) {
			continue
		}
		all += float64(d * d)
		if y[i] == 0 && x[i] < unlikely {
			n++
			of += float64(d * d)
		}
	}
	// A kept mass of one token is exactly 0, too: then nothing is below.
	if n == 0 || !slices.ContainsFunc(gaps(c, x, y, 0), func(d float64) bool { return d < -1e-4 }) {
		if float64(n) < 0.002*float64(len(x)) || n < 3 || !c.zeroAmongOthers(x, y) {
			return 0, 0
		}
	}
	return n, of / all
}

// zeroAmongOthers reports whether tokens that are 0 on one side are unlikely on the other beyond what top-p of a half keeps: e^−0.7
// is the least probability of a token that is kept alone.
func (c *Case) zeroAmongOthers(x, y []float64) bool {
	far := 0
	for i, m := range c.B.Mask {
		if m && y[i] == 0 && x[i] < 4*unlikely {
			far++
		}
	}
	return far >= 3
}

// stored recognises a pass whose log-probs were rounded to bfloat16 and that differs by that rounding: |D| ≤ u·|x|, u = 2⁻⁸.
func (c *Case) stored(a, b string, x, y []float64) *Cause {
	for _, s := range []struct {
		name       string
		grid, fine []float64
	}{{b, y, x}, {a, x, y}} {
		var v, w []float64
		within := 0
		for i, m := range c.B.Mask {
			if d := y[i] - x[i]; m && !math.IsNaN(d) && !math.IsInf(d, 0) {
				v, w = append(v, s.grid[i]), append(w, s.fine[i])
				if math.Abs(d) <= 1.01*tol.UB*math.Abs(s.fine[i])+1e-6 {
					within++
				}
			}
		}
		if n := len(v); n >= few && Grid(v) == tol.UB && Grid(w) != tol.UB && 20*within >= 19*n {
			return &Cause{Fault: "LOGP-BF16", Explains: float64(within) / float64(n),
				Reason: fmt.Sprintf("%s lies on the grid of bfloat16 in all %d tokens, and %.3g %% of the differences are within half a step of it: that rounding is the difference", s.name, n, 100*float64(within)/float64(n))}
		}
	}
	return nil
}

// truncated recognises log-probs that were renormalised over the mass S that top-p, top-k or min-p kept: b = a − ln S, so that D ≥ 0
// but for noise. Tokens drawn from b then have a mean of ρ = exp(a − b) that is the mean of S, below 1, where any other policy that
// the tokens were drawn from has exactly 1; and the mean of D, k1, is far above k3 = mean(ρ − 1 + D), which is of second order.
func (c *Case) truncated(b string, x, y []float64, m *Comparison) *Cause {
	k1, z := m.Mean, (m.Rho-1)/max(m.RhoSE, 1e-12)
	if !(z < -6) || !(k1 > 1e-3) || !(k1 > 3*m.K3) || m.Rho < 0.3 {
		return nil
	}
	var noise []float64 // below 0 there is nothing else
	var below, all float64
	for i, on := range c.B.Mask {
		d := y[i] - x[i]
		if !on || math.IsNaN(d) || math.IsInf(d, 0) {
			continue
		}
		all += float64(d * d)
		if q := -math.Expm1(min(x[i], 0)); d < 0 && q > 0.01 {
			below += float64(d * d)
			noise = append(noise, -d/q)
		}
	}
	scale := 0.0
	if len(noise) > 0 {
		scale = medianSize(noise) / 0.6745
	}
	if scale > 2*OrdinaryScale || below > 0.2*all {
		return nil
	}
	return &Cause{Fault: "GEN-TRUNCATED", Explains: 1 - 2*below/all,
		Reason: fmt.Sprintf("%s is above the other side by %.3g on average and below it by noise only, and the mean of exp(−Δ) is %.4g, %.3g standard errors below 1: it is renormalised over what top-p, top-k or min-p kept, %.3g %% of the mass", b, k1, m.Rho, -z, 100*m.Rho)}
}

// temperedGap is D of a token of log-prob a, q = 1 − p the probability of all others and rest the Rényi entropy of order α of their
// distribution, if b is a at α times its logits: Σ p^α = e^{αa} + q^α e^{(1−α)·rest}, D = (α − 1)·a − ln Σ p^α.
func temperedGap(a, lnq, alpha, rest float64) float64 {
	u, v := alpha*a, alpha*lnq+(1-alpha)*rest
	top := max(u, v)
	return (alpha-1)*a - top - math.Log(math.Exp(u-top)+math.Exp(v-top))
}

// heat is a fit of a temperature: α, the mean entropy of what is left of the distributions, and the share of ΣD² that they explain.
type heat struct {
	alpha, rest, share, se float64
	inside                 float64 // share of the tokens with D between the bounds of [temperedGap], rest from 0 to ln V
}

// heatOf fits the temperature between two passes by least squares. rests, if not nil, are the entropies of what is left of every
// distribution, by token; without them all have one that is fitted, too.
func heatOf(a, d, rests []float64) heat {
	n := len(a)
	lnq := make([]float64, n)
	for i := range a {
		lnq[i] = math.Log(max(-math.Expm1(min(a[i], 0)), 1e-300))
	}
	loss := func(alpha, rest float64, stride int) (s float64) {
		for i := 0; i < n; i += stride {
			r := rest
			if rests != nil {
				r = rests[i]
			}
			e := d[i] - temperedGap(a[i], lnq[i], alpha, r)
			s += float64(e * e)
		}
		return s
	}
	h := heat{alpha: 1}
	coarse := max(1, n/512)
	best := math.Inf(1)
	grid := []float64{0.05, 0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 8}
	if rests != nil {
		grid = grid[:1]
	}
	for k := -36; k <= 36; k++ {
		alpha := math.Exp(float64(k) * 0.04)
		for _, rest := range grid {
			if s := loss(alpha, rest, coarse); s < best {
				best, h.alpha, h.rest = s, alpha, rest
			}
		}
	}
	fine := max(1, n/8192)
	best = loss(h.alpha, h.rest, fine)
	for step, wide := 0.03, 0.5; step > 1e-4; step, wide = step/2, wide/2 {
		for moved := true; moved; {
			moved = false
			for _, t := range [][2]float64{{h.alpha * (1 + step), h.rest}, {h.alpha / (1 + step), h.rest}, {h.alpha, h.rest + wide}, {h.alpha, max(0, h.rest-wide)}} {
				if s := loss(t[0], t[1], fine); s < best*(1-1e-9) && t[1] <= logVocabulary {
					best, h.alpha, h.rest, moved = s, t[0], t[1], true
				}
			}
		}
	}
	var dd, jj, count float64
	in := 0
	for i := range a {
		r := h.rest
		if rests != nil {
			r = rests[i]
		}
		dd += float64(d[i] * d[i])
		j := (temperedGap(a[i], lnq[i], h.alpha+1e-4, r) - temperedGap(a[i], lnq[i], h.alpha-1e-4, r)) / 2e-4
		jj += float64(j * j)
		count++
		lo, hi := temperedGap(a[i], lnq[i], h.alpha, 0), temperedGap(a[i], lnq[i], h.alpha, logVocabulary)
		slack := 3*0.05*math.Exp(lnq[i]) + 1e-3
		if d[i] >= min(lo, hi)-slack && d[i] <= max(lo, hi)+slack {
			in++
		}
	}
	left := loss(h.alpha, h.rest, 1)
	h.share, h.inside = 1-left/max(dd, 1e-300), float64(in)/float64(n)
	h.se = math.Sqrt(left/max(count-2, 1)/max(jj, 1e-300)) + 1e-9
	return h
}

// What a temperature leaves within its bounds, and explains. Over 36 runs each of temperatures and of other weights in logits of three
// kinds, temperatures had at least 93 % of the tokens inside, other weights and adapters at most 85 %.
const (
	insideHeat = 0.92
	shareHeat  = 0.2
)

// heated recognises another temperature on one side. It explains a difference if hardly a token lies outside of what the temperature
// allows whatever the rest of its distribution is, and if the fit takes away most of ΣD², of which without the entropies of the tokens
// their spread stays.
func (c *Case) heated(a, b string, x, y []float64, m *Comparison) *Cause {
	if m.Tokens < tellingTokens || m.Scale < 5e-3 {
		return nil
	}
	var ax, d, rests []float64
	entropy := c.B.Token("entropy")
	for i, on := range c.B.Mask {
		v := y[i] - x[i]
		if !on || math.IsNaN(v) || math.IsInf(v, 0) || x[i] > 0 {
			continue
		}
		ax, d = append(ax, x[i]), append(d, v)
		if entropy != nil {
			p := math.Exp(x[i])
			q := -math.Expm1(x[i])
			two := -p * x[i]
			if q > 0 {
				two -= q * math.Log(q)
			}
			rests = append(rests, min(max(0, (entropy[i]-two)/max(q, 1e-12)), logVocabulary))
		}
	}
	if len(ax) < tellingTokens {
		return nil
	}
	h := heatOf(ax, d, nil)
	how := "about, since the dump has no entropies: their spread pulls it towards 1 and stays unexplained"
	if entropy != nil && !slices.ContainsFunc(rests, math.IsNaN) {
		if known := heatOf(ax, d, rests); known.share > h.share || known.share > 0.7 && known.inside >= insideHeat {
			h, how = known, "with the entropies of the tokens"
		}
	}
	if math.Abs(h.alpha-1) < 0.02 || math.Abs(h.alpha-1) < 6*h.se || h.share < shareHeat || h.inside < insideHeat {
		return nil
	}
	return &Cause{Fault: "LOGP-TEMPERATURE", Explains: h.share, Alpha: h.alpha, AlphaSE: h.se,
		Reason: fmt.Sprintf("%s is %s at %.3g times its logits (%s): that explains %.0f %% of ΣΔ², and %.3g %% of the tokens lie where that temperature allows", b, a, h.alpha, how, 100*h.share, 100*h.inside)}
}
