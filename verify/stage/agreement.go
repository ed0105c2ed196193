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

// The checks of this file compare log-probs of the same tokens under policies that differ by little: the one being trained, the
// one at the start of the update, the engine's. There is no formula for their difference; what is looked for are patterns that
// noise and training do not make.
func agreementChecks() []*Check {
	const source = "rules 2.4 of the catalogue: V08, V09, V10, V12, V13"
	return []*Check{
		{ID: "agreement/old", Stage: convention.Ratio, Output: "logp_old", Title: "old and new log-probs are of the same tokens",
			Formula: "|logp_new − logp_old| is no smaller one column or some rows off", Source: source,
			Fix:    "cut all log-probs of a batch by the same slice, and permute, filter and sort its tensors together",
			Assert: oldAgrees},
		{ID: "agreement/format", Stage: convention.Ratio, Output: "", Title: "the trainer's log-probs have more bits than 16-bit formats",
			Formula: "logp_new has more bits than a 16-bit format where entropy has or compute_dtype is float32, and there logp_old where logp_new has", Source: source + "; V35; TRL selective_log_softmax",
			Fix:    "take the log-softmax of logits.float(), and store the old log-probs in float32 between rollout and update",
			Assert: passFormats},
		{ID: "agreement/reference", Stage: convention.Ratio, Output: "logp_ref", Title: "the reference's log-probs are of the same tokens, and of another model than the policy",
			Formula: "|logp_old − logp_ref| is no smaller one column or some rows off, and logp_ref does not move with logp_new", Source: source,
			Fix:    "switch the adapter off, or use a frozen copy, for the reference, and permute it together with the other tensors of a batch",
			Assert: referenceAgrees},
		{ID: "agreement/engine", Stage: convention.Ratio, Output: "logp_gen", Title: "the engine's log-probs are of the same tokens, weights and temperature",
			Formula: "logp_gen − logp_old has no pattern: no shift, no slope of the temperature, no kept mass of top-p, not that of the reference", Source: source,
			Fix:    "compare weights, temperature and sampling options of engine and trainer",
			Assert: engineAgrees},
		{ID: "agreement/drift", Stage: convention.Ratio, Output: "logp_gen", Title: "the engine's log-probs differ from the trainer's by noise",
			Formula: "mean(logp_gen − logp_old) within 6 standard errors of what noise of that size makes; no slope", Source: source,
			Fix:    "compare temperature and sampling options of engine and trainer",
			Assert: engineDrifts},
		{ID: "agreement/size", Stage: convention.Ratio, Output: "logp_gen", Title: "the engine's log-probs are as near to the trainer's as their formats allow",
			Formula: fmt.Sprintf("logp_gen − logp_old ≈ σ·(1 − p), σ at most %g; no temperature between them", largestScale), Source: "the noise of rounded logits; V09, V25",
			Fix:    "compare weights, adapter, temperature and precision of engine and trainer on one prompt",
			Assert: engineSize, Options: []string{"logp.temperature"}},
		{ID: "agreement/temperature", Stage: convention.Ratio, Output: "", Title: "all passes of the trainer have one temperature",
			Formula: "logp_new and logp_ref are not logp_old at α times its logits, for which 0 ≤ b − α·a ≤ (α − 1)·H (α ≥ 1; else a and b change places)", Source: "Rényi 1961, the order of the entropies; V10",
			Fix:    "divide the logits by the temperature in all passes, the new one and that of the reference, or in none",
			Assert: passTemperature},
		{ID: "agreement/ends", Stage: convention.Ratio, Output: "", Title: "the last token of a response has its log-prob",
			Formula: "no log-prob is exactly 0 at the last tokens of responses alone, where another pass or the entropy is not", Source: "V01, V08; pytorch/rl 4255, NeMo-RL 4218",
			Fix:    "take the log-prob of every token in the response mask, EOS included; leave a tensor out that was not available",
			Assert: endsAgree},
		{ID: "agreement/context", Stage: convention.Ratio, Output: "", Title: "rows of one prompt have one distribution behind the same tokens",
			Formula: "entropy, value and log-prob of a token behind one context are the same in all rows of a group_id but for rounding; Σ p ≤ 1", Source: "a causal model is a function of the tokens before; V08, V13, V16",
			Fix:    "print ids, log-prob, entropy and value of the first column of two rows of one prompt: the same slice, the same rows, the same group_id",
			Assert: sameContext},
		{ID: "agreement/padding", Stage: convention.Ratio, Output: "attention_mask", Title: "all passes read rows with left padding alike",
			Formula: "where rows without padding agree, rows with it do", Source: "V07 (trl#2708)",
			Fix:    "hand the attention mask to every pass, and count positions from the first token that it does not mask",
			Assert: paddedRows},
		{ID: "agreement/positions", Stage: convention.Ratio, Output: "", Title: "engine and trainer read each column behind the tokens before it",
			Formula: fmt.Sprintf("logp_gen − logp_old does not rise from one column to the next to 20 times what they were, beyond σ = %g", OrdinaryScale), Source: "the noise of rounded logits grows with the tokens before, if at all",
			Fix:    "compare the two passes on one row around that column: chunks without their state, a window, a table of positions that ends",
			Assert: positionsAgree},
	}
}

// few is the number of tokens below which no pattern is believed.
const few = 24

// enough is the number of tokens above which another place is believed to fit better: five times better at the median does not
// happen by chance.
const enough = 10

// unlikely is the log-prob of a token that is less likely than all others together: top-p of a half or more has kept another one
// beside it.
const unlikely = -0.7

// gaps returns b − a over the cells of the mask, b read by some columns further on.
func gaps(c *Case, a, b []float64, by int) []float64 {
	var d []float64
	for i := range c.B.Tokens() {
		j, col := i+by, i%c.B.Cols+by
		if col >= 0 && col < c.B.Cols && c.B.Mask[j] && !math.IsNaN(a[i]) && !math.IsNaN(b[j]) && !math.IsInf(a[i], 0) && !math.IsInf(b[j], 0) {
			d = append(d, b[j]-a[i])
		}
	}
	return d
}

// medianSize returns the median of |d|.
func medianSize(d []float64) float64 {
	abs := make([]float64, len(d))
	for i, x := range d {
		abs[i] = math.Abs(x)
	}
	slices.Sort(abs)
	return abs[len(abs)/2]
}

// agree looks for a better match one column or a few rows off.
func agree(c *Case, one, other string) *Assertion {
	a, b := c.B.Token(one), c.B.Token(other)
	if a == nil || b == nil {
		return nil
	}
	here := gaps(c, a, b, 0)
	out := &Assertion{Checked: len(here)}
	if len(here) < enough {
		return out
	}
	gap := medianSize(here)
	for _, by := range []int{1, -1} {
		if d := gaps(c, a, b, by); gap > 1e-3 && len(d) >= enough && medianSize(d) < gap/5 {
			where := "after"
			if by < 0 {
				where = "before"
			}
			out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: "LOGP-SHIFT", Got: gap,
				Reason: fmt.Sprintf("%s fits %s of the token %s it: median |difference| %.3g in its own column, %.3g there", one, other, where, gap, medianSize(d))})
			return out
		}
	}
	if row, from, own, best := strayRow(c, a, b, 0.05); row >= 0 {
		out.Violations = append(out.Violations, Violation{Row: row, Col: -1, Fault: "ROWS-SWAPPED", Got: own,
			Reason: fmt.Sprintf("%s of row %d fits %s of row %d: mean |difference| %.3g with its own row, %.3g there, and so for most rows that disagree", one, row, other, from, own, best)})
	}
	return out
}

// temperedBy returns the temperature by which b is a line through a: T or 1/T, of log-probs of the same tokens that lack it on one
// side. It is 0 if there is none.
func temperedBy(c *Case, a, b []float64) (by, slope float64) {
	v := c.Set.Value("logp.temperature")
	if v.Kind() != convention.Number || math.Abs(v.Num()-1) <= 0.02 {
		return 0, 1
	}
	slope, before, after := line(c, a, b)
	if !(before > 2*after) || !(before > 0.02) {
		return 0, slope
	}
	for _, k := range []float64{v.Num(), 1 / v.Num()} {
		if math.Abs(slope-k) < 0.5*math.Abs(1-k) && (slope < 1) == (k < 1) {
			return k, slope
		}
	}
	return 0, slope
}

// oldAgrees looks for old log-probs of other cells, and of another temperature.
func oldAgrees(c *Case) *Assertion {
	out := agree(c, "logp_new", "logp_old")
	if out == nil || len(out.Violations) > 0 || out.Checked < few {
		return out
	}
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if by, slope := temperedBy(c, lp, old); by != 0 {
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: "LOGP-TEMPERATURE", Got: slope,
			Reason: fmt.Sprintf("logp_old ≈ %.3g·logp_new + const with the temperature %.3g: one of the two is not divided by it", slope, c.Set.Value("logp.temperature").Num())})
	}
	return out
}

// referenceAgrees looks for reference log-probs of other cells, and for a reference that is the policy: its log-probs are those
// being trained bit by bit although these have left the old ones. That they have is known behind the first step, of old log-probs
// that are the trainer's own: neither the engine's, which other kernels computed, nor those of a pass that the engine contradicts.
func referenceAgrees(c *Case) *Assertion {
	name := "logp_old"
	if c.B.Token(name) == nil {
		name = "logp_new"
	}
	out := agree(c, name, "logp_ref")
	if out == nil || len(out.Violations) > 0 || out.Checked < few {
		return out
	}
	lp, old, ref, gen := c.B.Token("logp_new"), c.B.Token("logp_old"), c.B.Token("logp_ref"), c.B.Token("logp_gen")
	if lp == nil || old == nil || gen == nil || c.B.Meta.Step < 2 || c.EnumOr("ratio.old", "stored") == "stopgrad_new" {
		return out
	}
	if beta := c.Set.Value("kl.beta"); beta.Kind() == convention.Number && beta.Num() == 0 {
		return out // nothing asks for a reference
	}
	same, engine := gaps(c, lp, ref, 0), gaps(c, old, gen, 0)
	if len(same) < few || len(engine) < few {
		return out
	}
	moved, noise := medianSize(gaps(c, lp, old, 0)), medianSize(engine)
	if slices.Max(absolute(same)) == 0 && moved > 1e-3 && noise > 0 && 2*noise < moved {
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: "REF-IS-POLICY", Got: moved,
			Reason: fmt.Sprintf("logp_ref is logp_new bit by bit although the policy has moved (median |logp_new − logp_old| %.3g): the KL to it is 0 for ever", moved)})
	}
	return out
}

// strayRow returns a row of a that another row of b fits far better than its own, if most of the rows that disagree have such a
// one; −1 if not. Rows disagree whose mean |difference| is above least.
func strayRow(c *Case, a, b []float64, least float64) (row, from int, own, best float64) {
	const most = 256
	w := c.B.Cols
	n := min(c.B.Rows, most)
	distance := func(r, s int) (float64, int) {
		var sum float64
		k := 0
		for t := range w {
			if i, j := r*w+t, s*w+t; c.B.Mask[i] && c.B.Mask[j] {
				if d := math.Abs(a[i] - b[j]); d < 1e6 {
					sum += d
					k++
				}
			}
		}
		return sum / float64(max(k, 1)), k
	}
	row = -1
	disagree, stray := 0, 0
	for r := range n {
		d0, k := distance(r, r)
		if k < 4 || !(d0 > least) {
			continue
		}
		disagree++
		at, nearest := -1, d0
		for s := range n {
			if d, k2 := distance(r, s); s != r && 2*k2 >= k && k2 >= 4 && d < nearest {
				at, nearest = s, d
			}
		}
		if at >= 0 && nearest < d0/5 {
			stray++
			if row < 0 {
				row, from, own, best = r, at, d0, nearest
			}
		}
	}
	if stray < 2 || 2*stray < disagree {
		return -1, 0, 0, 0
	}
	return row, from, own, best
}

// engineAgrees looks for the patterns that an engine with other weights, temperature or sampling makes.
func engineAgrees(c *Case) *Assertion {
	c = c.withoutPadded().withoutSilentEnds()
	name := "logp_old"
	if c.B.Token(name) == nil {
		name = "logp_new"
	}
	old, gen := c.B.Token(name), c.B.Token("logp_gen")
	if old == nil || gen == nil {
		return nil
	}
	out := agree(c, name, "logp_gen")
	if len(out.Violations) > 0 || out.Checked < few {
		return out
	}
	d := gaps(c, old, gen, 0)
	n := float64(len(d))
	sorted := slices.Sorted(slices.Values(d))
	median := medianSize(d)
	lowest, high := sorted[0], sorted[len(sorted)*95/100]
	var mean float64
	for _, x := range d {
		mean += x
	}
	mean /= n
	say := func(fault, format string, args ...any) *Assertion {
		out.Violations = append(out.Violations, Violation{Row: -1, Col: -1, Fault: fault, Got: mean, Reason: fmt.Sprintf(format, args...)})
		return out
	}
	below := slices.ContainsFunc(gaps(c, old, gen, 0), func(d float64) bool { return d < -1e-4 })
	ends := slices.ContainsFunc(c.silentEnds(), func(v Violation) bool { return strings.HasPrefix(v.Reason, "logp_gen ") })
	for i, m := range c.B.Mask {
		// What top-p keeps of a token that it leaves alone is 0, too: no unlikely one.
		if m && below && !ends && gen[i] == 0 && old[i] < unlikely && medianSize(gaps(c, make([]float64, len(gen)), gen, 0)) != 0 {
			out.Violations = append(out.Violations, Violation{Row: i / c.B.Cols, Col: i % c.B.Cols, Fault: "MASK-ATTENTION",
				Reason: fmt.Sprintf("the mask is true where the engine has no log-prob (logp_gen 0, %s %.3g): the token is not the policy's own", name, old[i])})
			return out
		}
	}
	if medianSize(gaps(c, make([]float64, len(old)), old, 0)) == 0 {
		return nil // a placeholder: masks/finite says so
	}
	raw := c.EnumOr("logp.source", "processed") == "raw"
	lp := c.B.Token("logp_new")
	if name == "logp_old" && lp != nil && median > 1e-3 {
		// What the engine and the policy agree on, the old log-probs have left: no bug of the engine.
		if toNew := gaps(c, lp, gen, 0); len(toNew) >= few && medianSize(toNew) < median/20 && !raw {
			return say("OLD-OTHER-PASS", "logp_gen is that of logp_new (median |gen − new| %.3g), and logp_old is not (median |gen − old| %.3g): the old log-probs come from another pass, temperature or model",
				medianSize(toNew), median)
		}
	}
	if by, slope := temperedBy(c, old, gen); by != 0 && !raw && !offReference(c, old, gen) {
		T := c.Num("logp.temperature")
		if by == T {
			return say("GEN-RAW", "logp_gen ≈ %.3g·%s + const with the temperature %.3g: the engine reports log-probs before the temperature", slope, name, T)
		}
		return say("GEN-TEMPERATURE-TWICE", "logp_gen ≈ %.3g·%s + const with the temperature %.3g: the trainer lacks the temperature, or the engine applies it twice", slope, name, T)
	}
	if first, known := c.Set.Fact("first_step"); known && first == false && name == "logp_old" {
		if lp != nil && slices.Max(absolute(gaps(c, lp, old, 0))) == 0 && c.EnumOr("ratio.old", "stored") != "stopgrad_new" {
			return say("OLD-RECOMPUTED", "logp_old is logp_new bit by bit although this is not the first update of its batch: the ratio is 1 for ever")
		}
	}
	if ref := c.B.Token("logp_ref"); ref != nil {
		toRef := medianSize(gaps(c, ref, gen, 0))
		// Log-probs at another temperature agree up to a line, and what the line leaves. First tokens have a bug of their own.
		if later := c.Of(c.B.WithMask(withoutFirst(c)), c.Set); raw {
			residual := offLine(later, old, gen)
			if lp != nil {
				residual = min(residual, offLine(later, lp, gen)) // the old log-probs may be those of another pass
			}
			slope, _, _ := line(later, ref, gen)
			if other := offLine(later, ref, gen); residual > 1e-2 && other < residual/2 && !c.mayHaveStart() && nearerLine(later, ref, old, gen) {
				return say("GEN-UNADAPTED", "logp_gen follows the reference: %.3g·logp_ref + const leaves %.2g, the same line through %s %.2g. The engine has not got the trained weights or the adapter", slope, other, name, residual)
			}
		}
		updates := c.FactOr("num_iterations", 1) * max(c.FactOr("steps_per_generation", 1)/max(c.FactOr("gradient_accumulation_steps", 1), 1), 1)
		if again := c.FactOr("num_iterations", 1) > 1 && float64(c.B.Meta.Step) <= updates && c.B.Meta.Step > 1 && name == "logp_old" && lp != nil && slices.Max(absolute(gaps(c, lp, old, 0))) == 0; again && median > 1e-3 && toRef < median/20 {
			return say("OLD-RECOMPUTED", "logp_old is logp_new bit by bit while logp_gen is that of the reference (median |gen − old| %.3g), in a run that uses its rows %g times: the old log-probs were recomputed with the new weights, or the engine has those of the start",
				median, c.FactOr("num_iterations", 1))
		}
		// At the first step of a run the policy is the reference, or near it: an engine that has the reference's weights has the policy's.
		if off, ok := c.Discrepant(name, "logp_gen"); ok && c.B.Meta.Step == 1 && median > 1e-3 && off.Scale <= OrdinaryScale && slices.Max(absolute(gaps(c, ref, gen, 0))) == 0 && !raw {
			return say("REF-IS-GEN", "logp_ref is logp_gen bit by bit, which no other pass is, and %s is as near to them as rounding in 16 bits leaves it (median |gen − old| %.3g): the reference is the engine's log-probs", name, median)
		}
		if median > 1e-3 && toRef < median/20 && !c.mayHaveStart() {
			return say("GEN-UNADAPTED", "logp_gen is that of the reference: median |gen − ref| %.3g, |gen − old| %.3g. The engine has not got the trained weights or the adapter", toRef, median)
		}
	}
	if lowest > -1e-4 && mean > 1e-3 && len(d) >= 2*few && beyondStorage(c, old, gen) >= few/2 {
		if high > 20*max(median, 1e-3) && median < 0.1*high {
			return say("GEN-OTHER-TOKEN", "logp_gen is never below %s, equal for most tokens and far above for some (median %.3g, 95th percentile %.3g): it is that of another token than the sampled one", name, median, high)
		}
		if c.keepsPart() {
			out.Note = fmt.Sprintf("logp_gen is never below %s (mean difference %.3g): it is renormalised over what top-p, top-k or min-p keep, which the options of the run say, and exp(%s − logp_gen) is the weight of a token that was drawn so", name, mean, name)
			return out
		}
		out.Warning = c.saysNothing() // such an engine is one that somebody may have configured so
		return say("GEN-TRUNCATED", "logp_gen is never below %s (smallest difference %.3g, mean %.3g): the engine renormalises over the mass that top-p or top-k kept", name, lowest, mean)
	}
	if raw {
		return out
	}
	if median < 0.1*high && high > 1 && mean > 0.1 {
		return say("GEN-OTHER-TOKEN", "most tokens agree and some are far off (median |difference| %.3g, 95th percentile %.3g): another token's log-prob, or other kernels", median, high)
	}
	return out
}

// keepsPart reports whether the run says that its engine draws from a part of the distribution: top-p below 1, top-k or min-p.
func (c *Case) keepsPart() bool {
	return slices.ContainsFunc(c.B.Meta.Options, func(o dump.Option) bool {
		return o.Value != nil && keepsPart(o.Name[strings.LastIndex(o.Name, ".")+1:], o.Value)
	})
}

// saysNothing reports whether the files of a run say nothing of what it is.
func (c *Case) saysNothing() bool {
	return c.B.Meta.Framework == "" && c.B.Meta.Profile == "" && len(c.B.Meta.Options) == 0
}

// beyondStorage counts the tokens of which two passes differ by more than two neighbours in the coarser of their types do: that both were
// rounded on storing makes no such difference, and a handful of differences on one side is soon made by chance.
func beyondStorage(c *Case, a, b []float64) (n int) {
	u := max(Grid(a), Grid(b), tol.U64)
	for i, m := range c.B.Mask {
		if m && math.Abs(b[i]-a[i]) > 4*u*max(math.Abs(a[i]), math.Abs(b[i])) {
			n++
		}
	}
	return n
}

// offReference reports whether the reference explains what an engine reports far better than a line through the old log-probs does.
func offReference(c *Case, old, gen []float64) bool {
	ref := c.B.Token("logp_ref")
	return ref != nil && medianSize(gaps(c, ref, gen, 0)) < offLine(c, old, gen)/20
}

func absolute(d []float64) []float64 {
	for i, x := range d {
		d[i] = math.Abs(x)
	}
	return d
}
