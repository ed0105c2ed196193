package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/convention"
)

// engineDrifts warns of differences that noise hides token by token and that their mean or slope shows. Tokens that were sampled
// from gen have gen above old by half the variance of the difference, on average.
func engineDrifts(c *Case) *Assertion {
	c = c.withoutPadded().withoutSilentEnds()
	name := "logp_old"
	if c.B.Token(name) == nil {
		name = "logp_new"
	}
	old, gen := c.B.Token(name), c.B.Token("logp_gen")
	if old == nil || gen == nil {
		return nil
	}
	d := gaps(c, old, gen, 0)
	out := &Assertion{Checked: len(d), Warning: true}
	if len(d) < 2*few || medianSize(gaps(c, make([]float64, len(old)), old, 0)) == 0 || medianSize(gaps(c, make([]float64, len(gen)), gen, 0)) == 0 {
		return out
	}
	var mean, square float64
	for _, x := range d {
		mean += x / float64(len(d))
	}
	for _, x := range d {
		square += float64((x - mean) * (x - mean))
	}
	variance := square / float64(len(d)-1)
	say := func(fault, format string, args ...any) *Assertion {
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: fault, Got: mean, Reason: fmt.Sprintf(format, args...)})
		return out
	}
	if T := c.Set.Value("logp.temperature"); T.Kind() == convention.Number && math.Abs(T.Num()-1) > 0.02 {
		raw := c.EnumOr("logp.source", "processed") == "raw"
		slope, _, after := line(c, old, gen)
		spread := deviation(c, old)
		for _, e := range []struct {
			fault string
			slope float64
		}{{"GEN-RAW", T.Num()}, {"GEN-TEMPERATURE-TWICE", 1 / T.Num()}} {
			if !raw && math.Abs(slope-1) < 2*math.Abs(e.slope-1) && math.Abs(slope-1) > 6*after/spread && math.Abs(slope-1) > 0.35*math.Abs(e.slope-1) && (slope < 1) == (e.slope < 1) {
				return say(e.fault, "logp_gen ≈ %.3g·%s + const, %.2g standard errors from 1, with the temperature %.3g", slope, name, math.Abs(slope-1)*spread/after, T.Num())
			}
		}
		if raw && math.Abs(slope-T.Num()) > 6*after/spread && math.Abs(slope-1) < 0.35*math.Abs(T.Num()-1) {
			return say("GEN-RAW", "logp_gen ≈ %.3g·%s + const with the temperature %.3g, %.2g standard errors from it: the engine reports log-probs after the temperature, where logp.source says raw",
				slope, name, T.Num(), math.Abs(slope-T.Num())*spread/after)
		}
	}
	if slope, _, after := line(c, old, gen); after > 0 {
		T := 1.0
		if v := c.Set.Value("logp.temperature"); v.Kind() == convention.Number {
			T = v.Num()
		}
		spread := deviation(c, old)
		if least := 0.5 * min(1, T, 1/T); slope+6*after/spread < least && !c.updatesBetween(name) {
			// Noise in a flattens the line through it, too, where the policy is sure of most tokens: then both are near each other.
			if size, ok := c.Discrepant(name, "logp_gen"); ok && size.Tokens >= tellingTokens && size.Scale > largestScale {
				out.Warning = false
				if x := c.ofOtherTokens(old, gen); x > 0 {
					return say("LOGP-SAME-POSITION", "%s hardly follows logp_gen (slope %.3g), and is %.2g nats below the negative entropy on average, where that of tokens sampled from the policy, as logp_gen, is equal to it: it is that of other tokens than were sampled",
						name, slope, x)
				}
			}
			return say("GEN-OTHER-TOKEN", "logp_gen hardly follows %s: ≈ %.3g·%s + const, where a slope of 1, or of the temperature, is expected: it is that of other tokens, or of other prompts", name, slope, name)
		}
	}
	if far, largest := farOff(d); far >= 3 {
		return say("GEN-OTHER-TOKEN", "%d of %d tokens are more than 1 nat off (at most %.3g) where the median |difference| is %.3g: another token's log-prob, or other kernels", far, len(d), largest, medianSize(d))
	}
	above := 0.0
	for _, x := range d {
		if x > 0 {
			above++
		}
	}
	sizes := slices.Sorted(slices.Values(absolute(slices.Clone(d))))
	if z := (above/float64(len(d)) - 0.55) * 2 * math.Sqrt(float64(len(d))); z > 6 && mean > 6*math.Sqrt(variance/float64(len(d))) && sizes[len(sizes)*95/100] > 5*sizes[len(sizes)/2] {
		return say("GEN-OTHER-TOKEN", "logp_gen is above %s for %.0f %% of the tokens, equal for most and far above for some: it may be that of another token than the sampled one", name, 100*above/float64(len(d)))
	}
	if excess := mean - 1.5*variance; excess > 6*math.Sqrt(variance/float64(len(d))) && excess > 1e-4 {
		if c.keepsPart() {
			return nil // as its options say
		}
		return say("GEN-TRUNCATED", "logp_gen is above %s by %.3g on average, %.2g standard errors: the engine renormalises over what top-p or top-k kept, or has other weights", name, mean, mean/math.Sqrt(variance/float64(len(d))))
	}
	return out
}

// updatesBetween reports whether updates may lie between the engine's weights and those of a pass, with which a policy may become another one: the new pass stands for
// the old one where that was not dumped, and is as old as the engine at the first step of a run, or where a rollout is one update.
func (c *Case) updatesBetween(name string) bool {
	return name == "logp_new" && c.B.Meta.Step > 1 && (Updates(c.Set) > 1 || c.Default("optim.epochs", 1) > 1 || Asynchronous(c.B, c.Set))
}

// ofOtherTokens returns by how much the log-probs of the trainer are below the negative entropy on average, if they are and the engine's are
// not; else 0. Of tokens that were sampled from the policy, x_t = ln p(a_t) + H_t has mean 0 given all tokens before, so that Σx is a
// martingale, and |Σx| above 6·√Σx² is no chance.
func (c *Case) ofOtherTokens(old, gen []float64) float64 {
	h := c.B.Token("entropy")
	if h == nil {
		return 0
	}
	z := func(lp []float64) (z, mean float64) {
		var sum, square, n float64
		for i, m := range c.B.Mask {
			if x := lp[i] + h[i]; m && !math.IsNaN(x) && !math.IsInf(x, 0) {
				sum, square, n = sum+x, square+float64(x*x), n+1
			}
		}
		return sum / math.Sqrt(square+math.SmallestNonzeroFloat64), sum / max(n, 1)
	}
	zOld, mean := z(old)
	if zGen, _ := z(gen); zOld < -6 && math.Abs(zGen) < 4 {
		return -mean
	}
	return 0
}

// farOff returns how many of the differences are more than a nat, and a thousand times their median, and the largest of them. It is
// none where all of them are above: that is what an engine does that renormalises.
func farOff(d []float64) (far int, largest float64) {
	least, below := max(1, 1000*medianSize(d)), false
	for _, x := range d {
		if math.Abs(x) > least {
			far++
			largest = max(largest, math.Abs(x))
			below = below || x < 0
		}
	}
	if !below {
		return 0, 0
	}
	return far, largest
}

// line fits b = const + slope·a over the mask, and returns the standard deviation of b − a and of what the line leaves.
func line(c *Case, a, b []float64) (slope, before, after float64) {
	var n, sa, sb float64
	each := func(do func(x, y float64)) {
		for i, m := range c.B.Mask {
			if m && !math.IsNaN(a[i]+b[i]) && !math.IsInf(a[i]+b[i], 0) {
				do(a[i], b[i])
			}
		}
	}
	each(func(x, y float64) { n++; sa += x; sb += y })
	ma, mb := sa/n, sb/n
	var saa, sab, sbb, sdd float64
	each(func(x, y float64) {
		saa += float64((x - ma) * (x - ma))
		sab += float64((x - ma) * (y - mb))
		sbb += float64((y - mb) * (y - mb))
		d := (y - mb) - (x - ma)
		sdd += float64(d * d)
	})
	if saa == 0 || n == 0 {
		return 1, 0, 0
	}
	slope = sab / saa
	return slope, math.Sqrt(sdd / n), math.Sqrt(max(0, sbb-slope*sab) / n)
}

// withoutFirst returns the mask without the first tokens of responses.
func withoutFirst(c *Case) []bool {
	m := slices.Clone(c.B.Mask)
	for i, on := range c.B.Mask {
		if on && (i%c.B.Cols == 0 || !c.B.Mask[i-1]) {
			m[i] = false
		}
	}
	return m
}

// deviation returns the square root of the sum of squared distances of x from its mean over the mask.
func deviation(c *Case, x []float64) float64 {
	var n, sum, squares float64
	for i, m := range c.B.Mask {
		if m && !math.IsNaN(x[i]) && !math.IsInf(x[i], 0) {
			n++
			sum += x[i]
			squares += float64(x[i] * x[i])
		}
	}
	return math.Sqrt(max(0, squares-sum*sum/n))
}

// offLine returns the median distance of b from the line through a: a few tokens that are wrong do not move it far.
func offLine(c *Case, a, b []float64) float64 {
	return medianSize(beside(c, a, b))
}

// beside returns the distances of b from the line through a, the middle one of them 0; nil where there is none.
func beside(c *Case, a, b []float64) []float64 {
	slope, _, _ := line(c, a, b)
	var rest []float64
	for i, m := range c.B.Mask {
		if d := b[i] - slope*a[i]; m && !math.IsNaN(d) && !math.IsInf(d, 0) {
			rest = append(rest, d)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	middle := slices.Sorted(slices.Values(rest))[len(rest)/2]
	for i := range rest {
		rest[i] -= middle
	}
	return rest
}

// nearerLine reports whether b is nearer the line through a than that through other in more tokens than chance makes: by more than four
// standard deviations of as many tosses of a coin. A median of a handful of tokens is soon twice another.
func nearerLine(c *Case, a, other, b []float64) bool {
	mine, its := beside(c, a, b), beside(c, other, b)
	if len(mine) != len(its) {
		return false
	}
	var wins int
	for i := range mine {
		if math.Abs(mine[i]) < math.Abs(its[i]) {
			wins++
		}
	}
	n := float64(len(mine))
	return float64(2*wins)-n > 4*math.Sqrt(n)
}
