package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
)

// Whether an update is the first of its rollout, as the fact "first_update" says it: "yes", "no", or "unknown" where the rows may be
// those of a later mini-batch.
const (
	FirstUpdate   = "yes"
	LaterUpdate   = "no"
	UnknownUpdate = "unknown"
)

// OldIsNew demands that the new log-probs are the old ones at the first update of a rollout: both are of the policy that has not moved
// yet, so that D = new − old is rounding, or the noise between engine and trainer where the old ones are the engine's. Either way
// D ≈ σ·(1 − p) token by token, with σ as [Discrepancy] measures it and no more than [largestScale]. Of a single row the limit is that
// too, and 4σ of the step: the median of eight normal errors is beyond 2.7 standard deviations, which is 4σ·0.6745, with a chance of
// C(8,4)·0.007⁴ = 2e-7.
//
// At an update that may be a later one the policy may have moved by any amount. Then it is only looked for old log-probs that the new
// ones do not follow: no few updates make a policy that has forgotten half of which tokens it was sure of. That is left undetermined.
func OldIsNew(c *Case) *Assertion {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	when, _ := c.Set.Fact("first_update")
	if lp == nil || old == nil || when != FirstUpdate && when != UnknownUpdate && c.FactOr("old_of_step", 0) == 0 || c.EnumOr("ratio.old", "stored") == "stopgrad_new" {
		return nil
	}
	d, ok := c.Discrepant("logp_old", "logp_new")
	if !ok || medianSize(gaps(c, make([]float64, len(old)), old, 0)) == 0 || medianSize(gaps(c, make([]float64, len(lp)), lp, 0)) == 0 {
		return nil // a placeholder: masks/finite says so
	}
	a := &Assertion{Checked: d.Tokens, Note: "new against old at the first update: " + d.String()}
	if engine, ok := c.Discrepant("logp_old", "logp_gen"); ok && engine.Same && (c.Has("is_weights") || c.EnumOr("tis.level", "none") != "none") {
		if when == FirstUpdate && c.weighsNothing(d, engine) {
			a.Violations = []Violation{{Row: -1, Col: -1, Fault: "OLD-IS-GEN", Got: d.MeanAbs,
				Reason: fmt.Sprintf("logp_old is logp_gen bit by bit in all %d tokens, and logp_new is not at the first update of its rollout (%s): the weights exp(logp_old − logp_gen) are all 1 and correct nothing", engine.Tokens, d)}}
			return a
		}
		return nil // weights correct what the engine's stand for
	}
	if step := c.FactOr("old_of_step", 0); step > 0 {
		a.Violations = append(a.Violations, Violation{Row: -1, Col: -1, Fault: "OLD-OTHER-BATCH", Got: d.MeanAbs,
			Reason: fmt.Sprintf("logp_old of some rows is, bit by bit, what other tokens had at step %g: it is that of an earlier batch (%s)", step, d)})
		return a
	}
	if when == FirstUpdate && c.oldOfEngine(d) {
		a.Violations = append(a.Violations, Violation{Row: -1, Col: -1, Fault: "OLD-IS-GEN", Got: d.MeanAbs,
			Reason: fmt.Sprintf("logp_old is logp_gen bit by bit, and logp_new is not at the first update of its rollout (%s): the old log-probs are those of the engine, not of the trainer", d)})
		return a
	}
	if here, ok := TemperatureOf(c.B, lp); ok { // that both are of the same logits says that the policy has not moved
		if there, ok := TemperatureOf(c.B, old); ok && math.Abs(here-there) > 1e-3*here {
			a.Violations = append(a.Violations, Violation{Row: -1, Col: -1, Fault: "LOGP-TEMPERATURE", Got: d.MeanAbs,
				Reason: fmt.Sprintf("logp_new is of the dumped logits divided by %.4g, and logp_old of the same logits divided by %.4g: one of the two passes has another temperature", here, there)})
			return a
		}
	}
	strays := c.strays(lp, old, d.Scale)
	unlike := d.Tokens >= tellingTokens && correlation(c, old, lp)+4/math.Sqrt(float64(d.Tokens)) < 0.5
	far := d.Tokens >= tellingTokens && d.Scale > largestScale
	if when != FirstUpdate {
		if far && unlike && !c.hasItsCause() {
			note(&c.Absent, "which update of its rollout this is, whose log-probs logp_new and logp_old have little in common ("+d.String()+"); if it is the first, they must be equal")
		}
		return a
	}
	if v := c.otherActions(lp, old); v != nil {
		a.Violations = append(a.Violations, *v)
		return a
	}
	// Nothing but rounding is between the two, so that fewer tokens tell a temperature.
	d.Slope, d.Explains, d.SlopeZ = c.tilt(old, lp, fewest)
	tilted := d.surely() && d.Explains > 0.9
	apart, _ := c.Set.Fact("update_apart")
	if !far && len(strays) == 0 && !tilted && apart != true || c.hasItsCause() {
		return a
	}
	say := func(row int, fault, format string, args ...any) {
		a.Violations = append(a.Violations, Violation{Row: row, Col: -1, Fault: fault, Got: d.MeanAbs, Reason: fmt.Sprintf(format, args...)})
	}
	const first = "this is the first update of its rollout, where the policy has not moved and logp_new is logp_old but for rounding"
	witness := c.witness(old, nil)
	switch {
	case far && unlike && witness != "":
		say(-1, "NEW-OTHER-PASS", "%s; here they have nothing in common (%s; correlation %.2f), and logp_old is that of %s for the same tokens: the new ones are of other positions, of other rows or under another context",
			first, d, correlation(c, old, lp), witness)
	case far && unlike:
		say(-1, "OLD-OTHER-BATCH", "%s; here they have nothing in common (%s; correlation %.2f): one of the two is of another batch or of other rows", first, d, correlation(c, old, lp))
	case far:
		say(-1, "OLD-OTHER-PASS", "%s; here they are further apart than rounding in 16 bits makes them, logit noise %.2g where %g is the largest: %s", first, d.Scale, largestScale, d)
	case tilted && len(strays) != 1:
		say(-1, "LOGP-TEMPERATURE", "%s; here logp_new is logp_old at %.3g times its logits (%s): one of the two passes has another temperature", first, d.Slope, d)
	case apart == true && len(strays) != 1:
		say(-1, "OLD-STALE", "%s, as they were at an earlier first update of this run; here they are further apart, and by more than bfloat16 makes them, logit noise %.2g where %g is ordinary: %s", first, d.Scale, OrdinaryScale, d)
	default:
		for _, s := range strays {
			if s.alike > 0.8 {
				say(s.row, "OLD-OTHER-PASS", "%s; row %d has a median |difference| of %.3g where that of the batch is %.3g, and follows its old log-probs (correlation %.2f): another pass made them, as at another temperature", first, s.row, s.median, d.MeanAbs, s.alike)
				continue
			}
			if w := c.witness(old, []int{s.row}); w != "" {
				say(s.row, "NEW-OTHER-PASS", "%s; row %d has a median |difference| of %.3g where that of the batch is %.3g, and its old log-probs are those of %s for the same tokens: the new ones are of another row or under another context",
					first, s.row, s.median, d.MeanAbs, w)
				continue
			}
			say(s.row, "OLD-ROWS-ROLLED", "%s; row %d has a median |difference| of %.3g where that of the batch is %.3g: its old log-probs are of another row", first, s.row, s.median, d.MeanAbs)
		}
	}
	return a
}

// oldOfEngine reports whether the old log-probs are the engine's, where the GRPO and PPO trainers of TRL have those of the trainer: they are equal bit by bit in 16 tokens at
// least, and further from the new ones, d, than two passes of a trainer in float32 are.
func (c *Case) oldOfEngine(d Discrepancy) bool {
	origin := c.Set.Origin("adv.kind")
	engine, ok := c.Discrepant("logp_old", "logp_gen")
	return ok && engine.Same && engine.Tokens >= 16 && d.Scale > 1e-3 && (strings.HasPrefix(origin, "trl-grpo@") || strings.HasPrefix(origin, "trl-ppo@")) && c.Set.Value("ratio.old").String() != "engine"
}

// weighsNothing reports whether the weights between engine and trainer that are declared, and dumped, are all 1, because the old log-probs are the
// engine's, where the trainer's are further from those than two passes in float32 are. Weights of the new log-probs are not 1 then (verl 0.9.1,
// compute_policy_loss_bypass_mode), and an engine that is exact leaves d next to 0.
func (c *Case) weighsNothing(d, engine Discrepancy) bool {
	level, w := c.Set.Value("tis.level"), c.B.Tensors["is_weights"]
	if level.Kind() != convention.Enum || level.Text() == "none" || w == nil || engine.Tokens < 16 || !(d.Scale > 1e-3) || c.Set.Value("ratio.old").String() == "engine" {
		return false
	}
	for i, x := range w.Data {
		if x != 1 && (len(w.Data) != len(c.B.Mask) || c.B.Mask[i]) {
			return false
		}
	}
	return true
}

// hasItsCause reports whether another check has found why new and old log-probs differ.
func (c *Case) hasItsCause() bool {
	for _, assert := range []func(*Case) *Assertion{oldAgrees, paddedRows, passTemperature} {
		if a := assert(c); a != nil && slices.ContainsFunc(a.Violations, func(v Violation) bool { return v.Fault != "" }) {
			return true
		}
	}
	return false
}

// witness names a third pass over the tokens of some rows, nil for all, that says of them what the old log-probs say: the engine that sampled them, or a reference
// which the policy has not left; "" if there is none.
func (c *Case) witness(old []float64, rows []int) string {
	for _, w := range []struct{ tensor, name string }{{"logp_gen", "the engine"}, {"logp_ref", "the reference"}} {
		third := c.B.Token(w.tensor)
		if third == nil {
			continue
		}
		d, ok := c.Discrepant("logp_old", w.tensor)
		if rows == nil && ok && d.Tokens >= tellingTokens && d.Scale <= OrdinaryScale {
			return w.name
		}
		if rows != nil && !slices.ContainsFunc(rows, func(r int) bool { return !(c.rowCorrelation(old, third, r) > 0.95) }) {
			return w.name
		}
	}
	return ""
}

// stray is a row whose log-probs of two passes are further apart than the others.
type stray struct {
	row    int
	median float64
	alike  float64 // the correlation of both passes within the row
}

// strays returns the rows whose noise is beyond 4·scale and largestScale: rows of eight tokens at least.
func (c *Case) strays(a, b []float64, scale float64) (list []stray) {
	const least = 8
	for r := range c.B.Rows {
		var relative, sizes []float64
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			d, q := math.Abs(b[i]-a[i]), -math.Expm1(min(b[i], 0))
			if c.B.Mask[i] && q > 0.01 && !math.IsNaN(d) && !math.IsInf(d, 0) {
				relative, sizes = append(relative, d/(1.22*q)), append(sizes, d)
			}
		}
		if len(relative) >= least && medianSize(relative)/0.6745 > max(4*scale, largestScale) {
			list = append(list, stray{r, medianSize(sizes), c.rowCorrelation(a, b, r)})
		}
	}
	return list
}

// rowCorrelation returns that of two passes over the tokens of a row.
func (c *Case) rowCorrelation(a, b []float64, row int) float64 {
	var n, sa, sb, aa, bb, ab float64
	for i := row * c.B.Cols; i < (row+1)*c.B.Cols; i++ {
		if x, y := a[i], b[i]; c.B.Mask[i] && !math.IsNaN(x+y) && !math.IsInf(x+y, 0) {
			n, sa, sb, aa, bb, ab = n+1, sa+x, sb+y, aa+float64(x*x), bb+float64(y*y), ab+float64(x*y)
		}
	}
	return (ab - sa*sb/n) / math.Sqrt((aa-sa*sa/n)*(bb-sb*sb/n))
}

// correlation returns that of two passes over the mask.
func correlation(c *Case, a, b []float64) float64 {
	forth, _, _ := line(c, a, b)
	back, _, _ := line(c, b, a)
	return math.Copysign(math.Sqrt(max(0, forth*back)), forth)
}
