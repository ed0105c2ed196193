package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Discrepancy is how far two passes over the same tokens are apart: D = b − a of their log-probs.
//
// Rounding in a forward pass moves logits by errors of standard deviation σ, and the log-prob of a token of probability p by
// σ·√(1 − 2p + Σp²), which lies between 1 − p and √2 times that. Scale is σ so estimated, and is comparable over tokens, entropies
// and steps, where the mean of |D| grows with the entropy of a healthy run.
type Discrepancy struct {
	Tokens          int
	MeanAbs, AbsSE  float64 // mean |D| and its standard error
	K3, K3SE        float64 // mean of ρ − 1 − ln ρ, ρ = exp(a − b)
	ESS             float64 // (Σρ)²/(n·Σρ²), the share of the tokens that importance weights leave
	Outside         float64 // share of the tokens with ρ outside 1 ± 0.2
	Scale           float64 // σ
	Same            bool    // bit by bit
	Slope, Explains float64 // of the temperature: D ≈ (Slope − 1)·(a + H), and the share of ΣD² that it explains
	SlopeZ          float64 // how many standard errors Slope is from 1
}

// What σ of rounding can be. A random walk through L layers with κ ≤ 6 roundings each gives c·√(κL) of the logits' size, c = 1.66e-3 the
// standard deviation of a rounding to bfloat16: 0.06 to 0.12 for logits of 15 to 30 and few layers, as measured in emulated models, and
// 0.5 for 96 layers and logits of root mean square 12. A run whose best step is well below may have more of it than [OrdinaryScale]
// only by a cause.
const (
	OrdinaryScale = 0.12
	largestScale  = 0.5
	tellingTokens = 64 // below which no statistic is judged
)

// Discrepant compares the log-probs b with a over the mask.
func (c *Case) Discrepant(a, b string) (d Discrepancy, ok bool) {
	x, y := c.B.Token(a), c.B.Token(b)
	if x == nil || y == nil {
		return d, false
	}
	var e, e2, k, k2, rho, rho2, s, storage float64
	var relative []float64
	d.Same = true
	ux, uy := c.unitStored(a), c.unitStored(b)
	for i, m := range c.B.Mask {
		diff := y[i] - x[i]
		if !m || math.IsNaN(diff) || math.IsInf(diff, 0) {
			continue
		}
		d.Tokens++
		d.Same = d.Same && diff == 0
		r := math.Exp(min(max(-diff, -20), 20))
		k3 := r - 1 + diff
		e += math.Abs(diff)
		e2 += float64(diff * diff)
		k += k3
		k2 += float64(k3 * k3)
		rho += r
		rho2 += float64(r * r)
		if math.Abs(r-1) > 0.2 {
			d.Outside++
		}
		q := -math.Expm1(min(x[i], 0)) // 1 − p
		s += 1.5 * float64(q*q)
		own := (ux*x[i]*ux*x[i] + uy*y[i]*uy*y[i]) / 3
		storage += own
		if q > 0.01 {
			relative = append(relative, math.Sqrt(max(0, diff*diff-4*own))/(1.22*q))
		}
	}
	if d.Tokens == 0 {
		return d, false
	}
	n := float64(d.Tokens)
	d.MeanAbs, d.K3, d.Outside = e/n, k/n, d.Outside/n
	d.AbsSE = math.Sqrt(max(0, e2/n-d.MeanAbs*d.MeanAbs) / n)
	d.K3SE = math.Sqrt(max(0, k2/n-d.K3*d.K3) / n)
	d.ESS = float64(rho*rho) / (n * rho2)
	if s > 0 {
		d.Scale = math.Sqrt(max(0, e2-storage) / s)
	}
	if len(relative) >= few {
		d.Scale = min(d.Scale, medianSize(relative)/0.6745) // a few tokens far off are no size
	}
	d.Slope, d.Explains, d.SlopeZ = c.tilt(x, y, tellingTokens)
	return d, true
}

// SamePass reports whether two tensors of log-probs are one pass: equal in enough tokens, but for the rounding of one that was computed again.
func (c *Case) SamePass(a, b string) bool {
	const rounding = 1e-5 // of a float32 pass in another batch; a temperature that is off by 5 % makes 1e-2
	d, ok := c.Discrepant(a, b)
	return ok && d.Tokens >= tellingTokens && (d.Same || d.MeanAbs < rounding)
}

// EngineGap compares the engine's log-probs with the policy's.
func (c *Case) EngineGap() (Discrepancy, bool) {
	d, ok := c.Discrepant(c.policyPass(), "logp_gen")
	return d, ok && d.Tokens >= tellingTokens
}

// Near reports whether two passes differ by no more than rounding to 16 bits makes, and not as two temperatures do.
func (d Discrepancy) Near() bool { return d.Same || d.Scale <= OrdinaryScale && !d.tilted(0.5) }

// unitStored is the unit roundoff of a tensor as stored, where that is a 16-bit format; else 0.
func (c *Case) unitStored(name string) float64 {
	if u, _ := c.B.Tensors[name].Type.Unit(); u > tol.U32 {
		return u
	}
	return 0
}

// String says what was measured.
func (d Discrepancy) String() string {
	if d.Same {
		return fmt.Sprintf("equal bit by bit in %d tokens", d.Tokens)
	}
	return fmt.Sprintf("mean |Δ| %.2g ± %.1g, k3 %.2g ± %.1g, effective sample size %.3g, outside 1 ± 0.2 %.2g %%, logit noise %.2g, %d tokens",
		d.MeanAbs, d.AbsSE, d.K3, d.K3SE, d.ESS, 100*d.Outside, d.Scale, d.Tokens)
}

// tilt fits the temperature between two passes. If b is a at α times its logits, a softmax with entropy H gives
//
//	b − α·a = α·lse(z) − lse(αz) = −ln Σ p^α,   between 0 and (α − 1)·H for α ≥ 1
//
// by the order of the Rényi entropies, and for α < 1 the same holds of a − b/α with the entropy of b, so that D = b − a is nearly (α − 1)·(a + H). Without H the mean of a takes the place of −H. It
// returns α, the share of ΣD² that is explained, and the distance of α from 1 in standard errors; α = 1 of fewer tokens than least.
func (c *Case) tilt(a, b []float64, least float64) (alpha, share, z float64) {
	alpha = 1
	fit := func(x func(i int) float64, centred bool) {
		var n, sx, sd float64
		each := func(do func(x, d float64)) {
			for i, m := range c.B.Mask {
				d := b[i] - a[i]
				if v := x(i); m && !math.IsNaN(v+d) && !math.IsInf(v+d, 0) {
					do(v, d)
				}
			}
		}
		each(func(x, d float64) { n++; sx += x; sd += d })
		if n < least {
			return
		}
		mx, md := 0.0, 0.0
		if centred {
			mx, md = sx/n, sd/n
		}
		var xx, xd, dd float64
		each(func(x, d float64) {
			xx += float64((x - mx) * (x - mx))
			xd += float64((x - mx) * (d - md))
			dd += float64((d - md) * (d - md))
		})
		if !(xx > 0) || !(dd > 0) {
			return
		}
		slope := xd / xx
		rest := max(dd-float64(slope*xd), 0)
		if r := 1 - rest/dd; r > share {
			alpha, share = 1+slope, r
			z = math.Abs(slope) / math.Sqrt(rest/(n-1)/xx+math.SmallestNonzeroFloat64)
		}
	}
	if h := c.B.Token("entropy"); h != nil {
		fit(func(i int) float64 { return a[i] + h[i] }, false)
	}
	fit(func(i int) float64 { return a[i] }, true)
	return alpha, share, z
}

// tilted reports whether a pass differs from another by its temperature: by at least 5 %, 8 standard errors from none, and by
// nothing else that is more than a share of the difference. A temperature keeps the order of a distribution: a pass at less than a twentieth
// of another's logits, or against them, is of other tokens.
func (d Discrepancy) tilted(explains float64) bool {
	return d.Tokens >= tellingTokens && d.Slope > 0.05 && math.Abs(d.Slope-1) > 0.05 && d.SlopeZ > 8 && d.Explains > explains && d.Scale > 5e-3
}

// policyPass names the log-probs that stand for the policy when the rollout was made.
func (c *Case) policyPass() string {
	if c.B.Token("logp_old") == nil {
		return "logp_new"
	}
	return "logp_old"
}

// raw reports whether the engine's log-probs are declared to be taken before the temperature.
func (c *Case) raw() bool {
	T := c.Set.Value("logp.temperature")
	return c.EnumOr("logp.source", "processed") == "raw" && !(T.Kind() == convention.Number && math.Abs(T.Num()-1) <= 0.02)
}

// engineSize judges the size of the difference between engine and trainer, and says it whatever it is.
func engineSize(c *Case) *Assertion {
	c = c.withoutPadded().withoutSilentEnds()
	name := c.policyPass()
	d, ok := c.Discrepant(name, "logp_gen")
	if !ok {
		return nil
	}
	out := &Assertion{Checked: d.Tokens, Note: "engine against " + name + ": " + d.String()}
	old, gen := c.B.Token(name), c.B.Token("logp_gen")
	switch {
	case d.Same:
		out.Note += ": these are not two measurements"
		return out
	case medianSize(gaps(c, make([]float64, len(old)), old, 0)) == 0 || medianSize(gaps(c, make([]float64, len(gen)), gen, 0)) == 0:
		return nil // a placeholder: masks/finite says so
	case d.Tokens < tellingTokens:
		out.Note += fmt.Sprintf(": fewer than %d tokens tell nothing of its cause", tellingTokens)
		return out
	case name == "logp_new" && c.Default("optim.epochs", 1) > 1 || c.updatesBetween(name):
		out.Note += ": no logp_old was dumped, and behind the first update of a rollout updates lie between the two"
		return out
	case c.raw() && d.tilted(0.9) && !d.about(c.Num("logp.temperature")):
		return nil // that the engine leaves the declared temperature out does not explain the difference
	case c.raw():
		out.Note += ": the engine reports log-probs before the temperature, so that their size says nothing"
		return out
	}
	if a := engineAgrees(c); a != nil && len(a.Violations) > 0 {
		return nil // which has its cause, and is no agreement
	}
	if a := engineDrifts(c); a != nil && len(a.Violations) > 0 && a.Violations[0].Fault != "GEN-TRUNCATED" {
		return nil
	}
	switch {
	case c.tempered(d) && !c.sharpened(d):
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: "LOGP-TEMPERATURE", Got: d.Slope,
			Reason: fmt.Sprintf("logp_gen is %s at %.3g times its logits: that explains %.0f %% of the difference (%s). One of the two sides has another temperature", name, d.Slope, 100*d.Explains, d)})
	case d.Scale > largestScale && (c.Has("is_weights") || c.EnumOr("tis.level", "none") != "none") && d.ESS < leastLeft && !Asynchronous(c.B, c.Set):
		note(&c.Absent, fmt.Sprintf("a reason, such as async_rollout or max_staleness, why importance weights would leave %.0f %% of the tokens: engine and trainer are %s, from the start of the run, and no rounding is so large",
			100*d.ESS, d))
	case d.Scale > largestScale && (c.Has("is_weights") || c.EnumOr("tis.level", "none") != "none"):
		out.Note += fmt.Sprintf("; more than rounding in 16 bits makes (logit noise %g), which the importance weights of the run correct for", largestScale)
	case d.Scale > largestScale && d.Scale <= mostOfLag*largestScale && Asynchronous(c.B, c.Set):
		out.Note += fmt.Sprintf("; more than rounding in 16 bits makes (logit noise %g), as older weights may, which are declared", largestScale)
	case d.Scale > largestScale && d.Scale <= mostOfLag*largestScale && c.adaptedLate():
		note(&c.Absent, "whether rollouts are asynchronous (one_step_off, async_rollout or max_staleness among the options): the engine had the weights of the start for several steps, and "+d.String())
	case d.Scale > largestScale && name == "logp_new" && c.Set.Value("optim.epochs").Kind() == convention.Unknown:
		return nil // after the first of several epochs updates lie between the two, and nobody says how many there are
	case d.Scale > largestScale:
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Got: d.Scale,
			Reason: fmt.Sprintf("engine and trainer are further apart than rounding in 16 bits makes them, logit noise %.2g where %g is the largest: %s. No temperature, shift, kept mass or reference explains it: older weights, another adapter or precision, or other ids",
				d.Scale, largestScale, d)})
	}
	return out
}

// tempered reports whether a difference between two passes is one of temperature, which explains four fifths of it if it is by about
// the declared one, and nine tenths otherwise: training changes a policy in other ways besides making it sharper.
func (c *Case) tempered(d Discrepancy) bool {
	if T := c.Set.Value("logp.temperature"); T.Kind() == convention.Number && math.Abs(T.Num()-1) > 0.02 && (d.about(T.Num()) || d.about(1/T.Num())) {
		return d.tilted(0.8)
	}
	return d.tilted(0.9)
}

// about reports whether a pass is another at about k times its logits.
func (d Discrepancy) about(k float64) bool {
	by := (d.Slope - 1) / (k - 1)
	return by > 0.6 && by < 1.25
}

// sharpened reports whether a difference from logp_new in place of logp_old may be the update itself.
func (c *Case) sharpened(d Discrepancy) bool { return c.policyPass() == "logp_new" && d.Explains < 0.9 }

// passTemperature looks for another temperature in one pass of the trainer alone: the new one, or the reference.
func passTemperature(c *Case) *Assertion {
	c = c.withoutSilentEnds()
	out := &Assertion{}
	name := c.policyPass()
	for _, other := range []string{"logp_new", "logp_ref"} {
		d, ok := c.Discrepant(name, other)
		if !ok || other == name {
			continue
		}
		out.Checked += d.Tokens
		tempered := c.tempered(d)
		if other == "logp_ref" && c.B.Meta.Step > 1 && (d.Slope < 1/widestTemperature || d.Slope > widestTemperature) {
			tempered = false
		}
		if other == "logp_ref" && !tempered && c.B.Meta.Step <= 1 {
			d.Slope, d.Explains, d.SlopeZ = c.tilt(c.B.Token(name), c.B.Token(other), fewest)
			tempered = d.temperedAtStart()
		}
		if tempered {
			out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: "LOGP-TEMPERATURE", Got: d.Slope,
				Reason: fmt.Sprintf("%s is %s at %.3g times its logits: that explains %.1f %% of their difference (mean |Δ| %.2g ± %.1g). One of the two passes has another temperature",
					other, name, d.Slope, 100*d.Explains, d.MeanAbs, d.AbsSE)})
		}
	}
	if out.Checked == 0 {
		return nil
	}
	return out
}

// widestTemperature bounds those of a reference once the policy has learned: one that began with small logits, as a model from scratch has, is left at many times
// the reference's in all that it has learned, and no recipe of a framework samples further from 1 (0.6 to 1.2; its square, where it is applied twice, is 0.36).
const widestTemperature = 3.0

// fewest tokens tell a temperature where nothing else lies between two passes.
const fewest = 12

// surely reports whether a slope is none of chance. Of 24 tokens 8 standard errors have a chance of 2e-7 under normal errors, as have 12 of
// 12 tokens, whose t has 11 degrees of freedom.
func (d Discrepancy) surely() bool {
	least := 8.0
	if d.Tokens < few {
		least = 12
	}
	return d.Slope > 0.05 && math.Abs(d.Slope-1) > 0.05 && d.SlopeZ > least && d.MeanAbs > 0.01
}

// temperedAtStart reports whether the reference has another temperature than the policy that no update has moved yet. Weights that differ at
// random move logits whatever the token's probability is, and explain nothing of a slope; a policy that another run has trained is sharper
// than its reference, so that a reference that is flatter has to be that and little else.
func (d Discrepancy) temperedAtStart() bool {
	return d.surely() && (d.Slope > 1 && d.Explains > 0.4 || d.Explains > 0.9)
}

// paddedRows looks for a pass that differs from another on rows with left padding alone: it has no attention mask, or its positions
// count the padding. Rows without padding that agree show that both have the same weights; rounding in 16 bits, which other kernels
// do otherwise for padded rows, makes no difference as large as a tenth of a nat at the median.
func paddedRows(c *Case) *Assertion {
	padding := c.padding()
	if padding == nil {
		return nil
	}
	out := &Assertion{}
	name := c.policyPass()
	for _, other := range []string{"logp_new", "logp_ref", "logp_gen"} {
		x, y := c.B.Token(name), c.B.Token(other)
		if x == nil || y == nil || other == name {
			continue
		}
		var padded, plain []float64
		for i, m := range c.B.Mask {
			if d := math.Abs(y[i] - x[i]); m && !math.IsNaN(d) && !math.IsInf(d, 0) {
				if padding[i/c.B.Cols] > 0 {
					padded = append(padded, d)
				} else {
					plain = append(plain, d)
				}
			}
		}
		out.Checked += len(padded)
		if len(padded) < few || len(plain) < enough {
			continue
		}
		// Half of the padded tokens are beyond all of the others, and far from what these usually differ by: were padding no matter, that
		// would be one order of the tokens in C(n + m, n/2) or so.
		most, usual, much := slices.Max(plain), medianSize(plain), medianSize(padded)
		if much > 0.1 && much > 4*most && much > 20*usual {
			out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: "OLD-OTHER-PASS", Got: much,
				Reason: fmt.Sprintf("%s and %s agree on the rows without left padding (|difference| at most %.2g) and differ on those with it (median %.2g): one of the two passes has no attention mask, or positions that count the padding",
					other, name, most, much)})
		}
	}
	if out.Checked == 0 {
		return nil
	}
	return out
}

// withoutPadded returns c with the mask of the rows without left padding alone where [paddedRows] says that a pass misreads the others, else
// c: what is wrong in padded rows only is no sign of the engine's.
func (c *Case) withoutPadded() *Case {
	if a := paddedRows(c); a == nil || len(a.Violations) == 0 {
		return c
	}
	padding, mask := c.padding(), slices.Clone(c.B.Mask)
	for i := range mask {
		mask[i] = mask[i] && padding[i/c.B.Cols] == 0
	}
	return c.Of(c.B.WithMask(mask), c.Set)
}

// padding returns the number of left-padded cells of every row, nil where it is not known or no row differs.
func (c *Case) padding() []int {
	t := c.B.Tensors["attention_mask"]
	if t == nil || t.Width < 1 || len(t.Data) != c.B.Rows*t.Width {
		return nil
	}
	n := make([]int, c.B.Rows)
	some, none := false, false
	for r := range n {
		for n[r] < t.Width && t.Data[r*t.Width+n[r]] == 0 {
			n[r]++
		}
		some, none = some || n[r] > 0, none || n[r] == 0
	}
	if !some || !none {
		return nil
	}
	return n
}

// mostOfLag is how many times the largest rounding declared older weights may be away: in a few updates a policy does not become another one.
const mostOfLag = 4

// leastLeft is the effective sample size below which importance weights correct for nothing: nine tokens of ten are lost.
const leastLeft = 0.1

// Asynchronous reports whether an option of a batch, or what is declared beside it, says that the engine may have older weights by design: async_rollout,
// one_step_off, max_staleness, … of a value other than false or 0.
func Asynchronous(b *dump.Batch, set *convention.Set) bool { return Lag(b, set) > 0 }

// Lag returns by how many rollouts the weights of the engine are declared to be older than the trainer's, at most; 0 where they are not.
func Lag(b *dump.Batch, set *convention.Set) (rollouts float64) {
	says := func(name string, value any) {
		if !SaysLag(name) {
			return
		}
		switch v := value.(type) {
		case bool:
			if v {
				rollouts = max(rollouts, 1)
			}
		case float64:
			rollouts = max(rollouts, v)
		}
	}
	for _, o := range b.Meta.Options {
		says(o.Name, o.Value)
	}
	for _, name := range set.Facts() {
		value, _ := set.Fact(name)
		says(name, value)
	}
	return rollouts
}

// SaysLag reports whether an option of this name says how old the weights of the engine may be.
func SaysLag(option string) bool {
	name := strings.ToLower(option)
	return slices.ContainsFunc([]string{"async", "staleness", "off_policy_steps", "one_step_off"}, func(part string) bool { return strings.Contains(name, part) })
}

// RolloutSteps is the fact how many steps the first rollout of a run has, in epochs that nobody declares: those before its first new rows.
const RolloutSteps = "steps of the first rollout"

// Adapted is the fact that the engine of a run leaves the reference that it begins with.
const Adapted = "the engine leaves the reference"

// adaptedLate reports whether files that say nothing are of an engine that gets its weights, late.
func (c *Case) adaptedLate() bool {
	_, later := c.Set.Fact(Adapted)
	return later && c.saysNothing()
}

// mayHaveStart reports whether the engine of an asynchronous run may still sample from the weights that the run began with. Where nobody says
// that a run is asynchronous and importance weights stand between engine and trainer, the engine may be one rollout behind, as one is that
// samples while the trainer trains, and the second rollout is noted to be open; of files that say nothing at all every step is. TRL's trainers send the weights before every rollout.
func (c *Case) mayHaveStart() bool {
	late, epochs := Lag(c.B, c.Set), 1.0
	declared := late > 0
	if !declared && c.Has("is_weights") && !strings.EqualFold(c.B.Meta.Framework, "trl") {
		if late = 1; c.saysNothing() { // nor how many steps a rollout has
			late = math.Inf(1)
		}
	}
	if !declared && c.adaptedLate() {
		late = math.Inf(1)
	}
	if n := c.Set.Value("optim.epochs"); n.Kind() == convention.Number {
		epochs = max(1, n.Num())
	}
	may := late > 0 && float64(c.B.Meta.Step) <= (late+1)*max(epochs*Updates(c.Set), c.FactOr(RolloutSteps, 0))
	if may && !declared {
		note(&c.Absent, "whether rollouts are asynchronous (one_step_off, async_rollout or max_staleness among the options): the engine has the weights of the start, as in the second rollout of such a run")
	}
	return may
}
