package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

func maskChecks() []*Check {
	return []*Check{{
		ID: "masks/finite", Stage: convention.Masks,
		Title:   "numbers in the mask are finite, and none stands for a missing one",
		Formula: "no NaN or infinity at a true cell of the mask; no row of log-probs that is 0 throughout",
		Source:  "verl 2377, OpenRLHF 1240, NeMo-RL 3087 and 4218; V01",
		Fix:     "follow the first place back to where it became NaN; leave a tensor out that was not available, never fill it with 0",
		Assert:  assertNumbers,
	}, {
		ID: "masks/lengths", Stage: convention.Masks,
		Title:   "lengths of responses",
		Formula: "some cell of the mask is true; no response is longer than max_completion_length",
		Source:  "V01",
		Fix:     "look at what the mask was made from",
		Assert:  assertLengths,
	}, {
		ID: "masks/position", Stage: convention.Masks,
		Title:   "the mask lies on the response",
		Formula: "no true cell on padding or on the prompt; in a response of one turn the mask reaches the first EOS and ends there; not every response lacks a first token that was sampled",
		Source:  "TRL 1718, 5303; verl 50, 3287; V08, V34",
		Fix:     "print ids, attention_mask and response_mask of the row side by side: a shift by one shows at the EOS; padding is told from EOS by the masks, not by its id",
		Assert:  assertPosition, Options: []string{"mask.tokens"},
	}, {
		ID: "masks/truncated", Stage: convention.Masks,
		Title:   "responses that were cut off are masked where that is declared",
		Formula: "mask_truncated_completions: no true cell in a row that is max_completion_length long and does not end with EOS or padding",
		Source:  "TRL 1.16 grpo_trainer.py, is_truncated; V01",
		Fix:     "mask the rows whose last id is neither EOS nor padding, and keep the others: print ids[-1] and mask.sum() of the row",
		Assert:  assertTruncated,
	}, {
		ID: "masks/ids", Stage: convention.Masks,
		Title:   "token ids",
		Formula: "0 ≤ id < vocab_size; response_ids are the ids of input_ids where the response stands",
		Source:  "TRL 3601, 5224; verl 3960: text that was tokenised again; V13",
		Fix:     "pass token ids from the engine to the trainer, not text",
		Assert:  assertIDs,
	}, {
		ID: "masks/group", Stage: convention.Masks,
		Title:   "sizes of groups",
		Formula: "no group_id has more rows than num_generations, and none has rows of two prompts where every prompt has as many",
		Source:  "verl 2881 (responses repeated twice), NeMo-RL 3882 (colliding keys); V16, V30",
		Fix:     "make group_id unique per step across ranks, and repeat each prompt once",
		Assert:  assertGroups,
	}, {
		ID: "masks/duplicates", Stage: convention.Masks,
		Title:   "completions of one prompt differ",
		Formula: "not every group consists of one completion, repeated",
		Source:  "verl 2646 (a fixed seed in the sampling parameters); V30",
		Fix:     "sample with a seed per request, or none",
		Assert:  assertDuplicates,
	}}
}

// Tensors that must be finite in the mask. A score may be NaN: no function could score the response.
var finiteTokens = []string{"logp_new", "logp_old", "logp_gen", "logp_ref", "values", "values_new", "token_rewards", "kl", "returns",
	"entropy", "advantages", "is_weights", "token_loss", "dlogp", "dvalues"}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func assertNumbers(c *Case) *Assertion {
	b := c.B
	a := &Assertion{}
	var notes []string
	filled := c.rowsWithTokens()
	for _, name := range finiteTokens {
		bad, outside := 0, 0
		look := func(x float64, inside bool, row, col int) {
			if inside {
				a.Checked++
			}
			switch {
			case isFinite(x):
			case !inside:
				outside++
			default:
				if bad++; bad <= most {
					a.Violations = append(a.Violations, Violation{Reason: fmt.Sprintf("%s is not finite in the mask", name), Row: row, Col: col, Got: x, Fault: notFinite[name]})
				}
			}
		}
		if x := b.Token(name); x != nil {
			for i, v := range x {
				look(v, b.Mask[i], i/b.Cols, i%b.Cols)
			}
		} else if x := b.Row(name); len(x) == b.Rows {
			for r, v := range x {
				look(v, filled[r], r, -1)
			}
		}
		if bad > most {
			notes = append(notes, fmt.Sprintf("%s is not finite at %d places of the mask", name, bad))
		}
		if outside > 0 {
			notes = append(notes, fmt.Sprintf("%s is not finite at %d places outside the mask: harmless unless it is multiplied by the mask", name, outside))
		}
	}
	if x := b.Row("scores"); len(x) == b.Rows {
		n := 0
		for r, v := range x {
			a.Checked++
			if math.IsInf(v, 0) {
				a.Violations = append(a.Violations, Violation{Reason: "score is infinite", Row: r, Col: -1, Got: v})
			}
			if math.IsNaN(v) {
				n++
			}
		}
		if n > 0 {
			notes = append(notes, fmt.Sprintf("%d scores are NaN: taken as responses that could not be scored", n))
		}
	}
	a.Violations = append(a.Violations, c.placeholders()...)
	a.Note = strings.Join(notes, "; ")
	return a
}

// Limits of what is a placeholder. A token that is as good as certain has the log-prob 0 exactly, and a row may have several of
// them; that the others find it far from certain tells the two apart.
const (
	silentTokens = 4    // tokens of a row that are 0
	silentMean   = -0.5 // while the mean of another log-prob of the row is below this, in nats
	silentAlone  = 16   // tokens of a batch that are 0, where there is nothing to compare with
)

// placeholders finds log-probs that are 0 throughout a row, or throughout the batch where there are no others.
func (c *Case) placeholders() []Violation {
	b := c.B
	var list []Violation
	sums := map[string][]float64{}
	zeros := map[string][]int{}
	tokens := make([]int, b.Rows)
	for i := range b.Tokens() {
		tokens[i/b.Cols]++
	}
	for _, name := range logpNames {
		x := b.Token(name)
		if x == nil {
			continue
		}
		sum, zero := make([]float64, b.Rows), make([]int, b.Rows)
		for i, v := range x {
			if b.Mask[i] {
				sum[i/b.Cols] += v
				if v == 0 {
					zero[i/b.Cols]++
				}
			}
		}
		sums[name], zeros[name] = sum, zero
	}
	for _, name := range logpNames {
		if sums[name] == nil {
			continue
		}
		all, silent := 0, 0
		for r, n := range tokens {
			all += n
			silent += zeros[name][r]
			if n < silentTokens || zeros[name][r] < n || len(list) >= most {
				continue
			}
			for _, other := range logpNames {
				// The reference of a policy that has collapsed may differ by much; the three of the policy may not.
				if other == name || sums[other] == nil || other == "logp_ref" && name != "logp_ref" {
					continue
				}
				if sums[other][r] < silentMean*float64(n) {
					list = append(list, Violation{Reason: fmt.Sprintf("%s is 0 at every token of the row, where %s is %.3g on average: a placeholder", name, other, sums[other][r]/float64(n)), Row: r, Col: -1, Fault: placeholders[name]})
					break
				}
			}
		}
		if len(sums) == 1 && silent == all && all >= silentAlone {
			list = append(list, Violation{Reason: name + " is 0 at every token: a placeholder", Row: -1, Col: -1, Fault: placeholders[name]})
		}
	}
	return list
}

// holes reports whether the mask of a row is interrupted.
func (c *Case) holes(row int) bool {
	b := c.B
	changes, before := 0, false
	for t := range b.Cols {
		if m := b.Mask[row*b.Cols+t]; m != before {
			changes++
			before = m
		}
	}
	return changes > 2
}

func assertLengths(c *Case) *Assertion {
	b := c.B
	a := &Assertion{Checked: b.Rows}
	limit := c.FactOr("max_completion_length", math.Inf(1))
	empty, interrupted := 0, 0
	for r := range b.Rows {
		last, hole := c.last(r), c.holes(r)
		if last < 0 {
			empty++
		}
		if hole {
			interrupted++
		}
		if n := last + 1 - slices.Index(b.Mask[r*b.Cols:(r+1)*b.Cols], true); last >= 0 && !hole && float64(n) > limit {
			a.Violations = append(a.Violations, Violation{Reason: fmt.Sprintf("response is longer than max_completion_length = %g", limit), Row: r, Col: last, Got: float64(n)})
		}
	}
	if b.Rows > 0 && empty == b.Rows {
		v := Violation{Reason: "no cell of the mask is true", Row: -1, Col: -1, Fault: "MASK-EMPTY"}
		if on, _ := c.Set.Fact("mask_truncated_completions"); on == true && len(a.Violations) == 0 && !c.anyAnswered() {
			a.Warning = true
			v.Reason = "every response was cut off by its length, and mask_truncated_completions takes those out: this step teaches nothing"
		}
		if len(a.Violations) == 0 && c.rejects() {
			a.Warning = true
			v.Reason, v.Fault = "every token or response is rejected, as rollout_rs may: this step teaches nothing", ""
		}
		a.Violations = append(a.Violations, v)
	}
	var notes []string
	if empty > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d rows have no token", empty, b.Rows))
	}
	if interrupted > 0 {
		notes = append(notes, fmt.Sprintf("%d rows have holes, as of tools or several turns", interrupted))
	}
	a.Note = strings.Join(notes, "; ")
	return a
}

// anyAnswered reports whether some row is known to end with EOS or padding: it is not without ids, or without the id of EOS. An EOS within a row ends a turn
// before a tool's output (TRL 1.16, GRPOTrainer, ids[-1] not in eos_and_pad).
func (c *Case) anyAnswered() bool {
	eos := c.eosIDs()
	pad, padKnown := c.padID(eos)
	for r := range c.B.Rows {
		if id, ok := c.B.TokenID(r, c.width(r)-1); ok && (eos[id] || padKnown && id == pad) {
			return true
		}
	}
	return false
}

func assertGroups(c *Case) *Assertion {
	b := c.B
	id := b.Row("group_id")
	if len(id) != b.Rows {
		return &Assertion{}
	}
	size := c.FactOr("num_generations", math.NaN())
	a := &Assertion{}
	count := map[float64]int{}
	first := map[float64]int{}
	for r, g := range id {
		if count[g]++; count[g] == 1 {
			first[g] = r
		}
	}
	smaller, alike := 0, 0
	for r, g := range id {
		if first[g] != r {
			continue
		}
		a.Checked++
		switch n := float64(count[g]); {
		case n > size && c.severalGenerations() != "": // a step may have its rows twice
		case n > size && c.promptsAlike(count[g], size):
			alike++
		case n > size:
			v := Violation{Reason: fmt.Sprintf("group_id %s has %g rows, more than num_generations = %g", plain(g), n, size), Row: r, Col: -1, Got: n}
			if size > 1 { // else the number is more likely to be wrong than the rows
				v.Fault = "ROWS-REPEATED"
			}
			a.Violations = append(a.Violations, v)
		case n < size:
			smaller++
		}
	}
	ofRows := fmt.Sprintf("num_generations = %g", size)
	if math.IsNaN(size) && len(id) > 0 {
		ofRows = fmt.Sprintf("%d, as every group has,", count[id[0]])
	}
	if r := c.crossing(id, size); r >= 0 {
		a.Violations = append(a.Violations, Violation{Row: r, Col: -1, Got: id[r], Fault: "ADV-WRONG-GROUPS",
			Reason: fmt.Sprintf("group_id %s is that of rows with different prompts, where every prompt has %s rows: the rows are grouped by something else, or ids and rows were put in order apart", plain(id[r]), ofRows)})
	} else if r := c.mixing(id); r >= 0 {
		a.Violations = append(a.Violations, Violation{Row: r, Col: -1, Got: id[r], Fault: "ADV-WRONG-GROUPS",
			Reason: fmt.Sprintf("group_id %s is that of rows with different prompts, and the rows of one prompt have different ids: the rows are grouped by something else, or ids and rows were put in order apart", plain(id[r]))})
	}
	if smaller > 0 {
		a.Note = fmt.Sprintf("%d of %d groups are not complete: their advantages are not judged", smaller, len(count))
	}
	if alike > 0 {
		a.Note = fmt.Sprintf("%d of %d group_ids are those of several prompts that are alike: their advantages are not judged", alike, len(count))
	}
	return a
}

// crossing returns a row whose group_id is that of a row with another prompt, if every prompt and every group_id have size rows; else −1. Rows
// that are the turns of a conversation have several prompts in a group, but not each of them as often as a group has rows. A size that nobody
// declares is that of the first group.
func (c *Case) crossing(id []float64, size float64) int {
	text := c.groupPrompts()
	if math.IsNaN(size) && len(id) > 0 && len(c.B.Missing) == 0 && Updates(c.Set) <= 1 {
		size = 0
		for _, g := range id {
			if g == id[0] {
				size++
			}
		}
	}
	if text == nil || !(size > 1) {
		return -1
	}
	prompts, groups, first := map[int]float64{}, map[float64]float64{}, map[float64]int{}
	row := -1
	for r, g := range id {
		prompts[text[r]]++
		if groups[g]++; groups[g] == 1 {
			first[g] = text[r]
		} else if first[g] != text[r] && row < 0 {
			row = r
		}
	}
	for _, n := range prompts {
		if n != size {
			return -1
		}
	}
	for _, n := range groups {
		if n != size {
			return -1
		}
	}
	return row
}

// promptsAlike reports whether n rows of one id are whole groups of prompts with the same text: OpenRLHF keeps nothing else of a
// group, so that the text is what its hook makes ids of.
func (c *Case) promptsAlike(n int, size float64) bool {
	return strings.EqualFold(c.B.Meta.Framework, "openrlhf") && size > 1 && float64(n) > size && math.Mod(float64(n), size) == 0
}

// Bugs of the catalogue that a tensor of placeholders, or one that is not finite, is a sign of.
var (
	placeholders = map[string]string{"logp_new": "LOGP-NEW-ZERO", "logp_old": "LOGP-OLD-ZERO", "logp_gen": "GEN-ZERO", "logp_ref": "REF-ZERO"}
	notFinite    = map[string]string{"logp_new": "LOGP-NAN", "logp_old": "LOGP-NAN", "logp_gen": "LOGP-NAN", "logp_ref": "LOGP-NAN", "dlogp": "GRADIENT-NAN", "dvalues": "GRADIENT-NAN",
		"advantages": "ADV-NAN", "returns": "ADV-NAN"}
)

// copied returns a file of a step whose completions are those of an earlier one, row by row, and that file; −1 if there is none. A
// file of one completion, or of nothing but copies of one, says nothing, and neither do answers of a few tokens.
func copied(b *dump.Batch) (file, as int) {
	ids := b.Token("response_ids")
	if ids == nil || b.Cols == 0 {
		return -1, -1
	}
	row := func(r int) string {
		var text strings.Builder
		for i := range b.TokensOf(r) {
			fmt.Fprintf(&text, "%d:%g ", i-r*b.Cols, ids[i])
		}
		return text.String()
	}
	seen := map[string]int{}
	for f, info := range b.Files {
		var all strings.Builder
		different, tokens := false, 0
		for r := info.Lo; r < info.Hi; r++ {
			text := row(r)
			tokens += strings.Count(text, " ")
			different = different || text != row(info.Lo) && text != "" && row(info.Lo) != ""
			all.WriteString(text + "\n")
		}
		if !different || tokens < 6*(info.Hi-info.Lo) {
			continue
		}
		if earlier, ok := seen[all.String()]; ok {
			return f, earlier
		}
		seen[all.String()] = f
	}
	return -1, -1
}

// chanceOfCopies bounds the chance that independent samples of what the engine reports give the likeliest of the first copies of some
// groups. Two samples are alike and have a probability of at most p with Σ_{y: P(y) ≤ p} P(y)² ≤ p, and one of n groups is so with n·p
// at most: what is looked at is the least likely row that has a copy. Log-probs before the temperature say nothing of this.
func (c *Case) chanceOfCopies(groups int) (p float64, text string) {
	b := c.B
	gen, id := b.Token("logp_gen"), b.Row("group_id")
	if gen == nil || groups == 0 || c.EnumOr("logp.source", "processed") == "raw" {
		return 1, ""
	}
	seen := map[float64]bool{}
	least := 0.0
	for r, g := range id {
		if seen[g] {
			continue
		}
		seen[g] = true
		var sum float64
		for i := range b.TokensOf(r) {
			sum += gen[i]
		}
		least = min(least, sum) // NaN stays
	}
	if !(least > -math.MaxFloat64) {
		return 1, ""
	}
	p = float64(groups) * math.Exp(least)
	return p, fmt.Sprintf(", which independent samples of what the engine reports are with a chance of at most %.2g", p)
}

func assertDuplicates(c *Case) *Assertion {
	b := c.B
	id := b.Row("group_id")
	if len(id) != b.Rows || b.Token("response_ids") == nil {
		return &Assertion{}
	}
	ids := b.Token("response_ids")
	first := map[float64]int{}
	differ := map[float64]bool{}
	count := map[float64]int{}
	tokens := 0
	for r, g := range id {
		count[g]++
		f, seen := first[g]
		if !seen {
			first[g] = r
			continue
		}
		for t := range b.Cols {
			i, k := r*b.Cols+t, f*b.Cols+t
			if b.Mask[i] {
				tokens++
			}
			if b.Mask[i] != b.Mask[k] || b.Mask[i] && ids[i] != ids[k] {
				differ[g] = true
			}
		}
	}
	a := &Assertion{Warning: true}
	for r, g := range id {
		if count[g] < 2 || first[g] != r {
			continue
		}
		a.Checked++
		if !differ[g] {
			a.Violations = append(a.Violations, Violation{Reason: "all completions of the group are the same", Row: r, Col: -1, Got: float64(count[g]), Fault: "GROUP-IDENTICAL"})
		}
	}
	if p, text := c.chanceOfCopies(len(a.Violations)); len(a.Violations) == a.Checked && a.Checked > 1 && p < 1e-9 {
		a.Warning = false
		for i := range a.Violations {
			a.Violations[i].Reason += text
		}
		return a
	}
	// One certain answer is no fault, and neither are answers of a token or two.
	if len(a.Violations) < a.Checked || a.Checked < 2 || tokens < 4*a.Checked {
		if n := len(a.Violations); n > 0 {
			a.Note = fmt.Sprintf("all completions are the same in %d of %d groups", n, a.Checked)
		}
		a.Violations = nil
	}
	if f, as := copied(b); f >= 0 && len(a.Violations) == 0 && c.severalGenerations() == "" {
		a.Violations = append(a.Violations, Violation{Row: b.Files[f].Lo, Col: -1, Fault: "ROWS-REPEATED",
			Reason: fmt.Sprintf("the completions of %s are those of %s, row by row: two ranks or micro-batches were given the same data", b.Files[f].Name, b.Files[as].Name)})
	}
	return a
}
