package dump

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// acrossChecks hold steps of a run against each other. A row that several updates use keeps what was computed when it was sampled; a
// reference keeps its weights; the engine gets those of the policy.
var acrossChecks = []*stage.Check{
	{ID: "across/old", Stage: convention.Ratio, Output: "logp_old", Title: "a row keeps its old log-probs over the updates of its rollout",
		Formula: "logp_old of a row is the same, bit by bit, in every update that uses the row", Source: "Schulman et al. 2017: π_old samples the rollout; V08 (P162)",
		Fix:    "compute the old log-probs once per rollout, before its first update, and store them with the rows",
		Assert: func(c *stage.Case) *stage.Assertion { return kept(c, "logp_old", "OLD-RECOMPUTED") }},
	{ID: acrossFirst, Stage: convention.Ratio, Output: "logp_old", Title: "at the first update of a rollout the new log-probs are the old ones",
		Formula: "logp_new − logp_old ≈ σ·(1 − p) before the policy has moved, σ ≤ 0.5, ≤ 4 times that of the best first update before or 0.12, and that of each row ≤ 4 σ of the step; logp_old of a row is not that of other tokens at an earlier step, nor that of the reference behind updates",
		Source:  "Schulman et al. 2017: π_old is the policy before the first update; V02, V08 (P023, P160)",
		Fix:     "take the old log-probs of the rows that are trained on, by the pass that trains: same weights, mask, temperature, no dropout",
		Assert:  oldIsNew, Options: []string{"ratio.old"}},
	{ID: acrossValues, Stage: convention.TokenLoss, Output: "values_new", Title: "at the first update of a rollout the new values are the old ones",
		Formula: "rms(values_new − values) ≤ 0.8 of their spread or 0.16 of their size before the value head has moved", Source: "Schulman et al. 2017: the critic is fitted to returns of its own rollout; V02, V08 (P059, P075)",
		Fix:    "take the values of the rows that are trained on, by the value head that is trained: same weights, columns and scale, no dropout",
		Assert: stage.ValuesAreNew},
	{ID: "across/gen", Stage: convention.Ratio, Output: "logp_gen", Title: "a row keeps the engine's log-probs over the updates of its rollout",
		Formula: "logp_gen of a row is the same, bit by bit, in every update that uses the row", Source: "the engine sampled the row once",
		Fix:    "store what the engine reported with the rows, and permute it with them",
		Assert: func(c *stage.Case) *stage.Assertion { return kept(c, "logp_gen", "ROWS-SWAPPED") }},
	{ID: "across/pairs", Stage: convention.KL, Output: "ref_chosen", Title: "the reference of pairs is of their answers, and another model than the policy after updates",
		Formula: "after steps with a gradient ref_chosen and ref_rejected are not logp_chosen and logp_rejected bit by bit, nor are they those of other pairs, or of the other answer",
		Source:  "Rafailov et al. 2023, section 4: π_ref stays, and is π_θ at the start; V11 (REF-IS-POLICY)",
		Fix:     "switch the adapter off, or use a frozen copy, for the reference, and keep what was precomputed in the row of its pair",
		Assert:  func(c *stage.Case) *stage.Assertion { return referenceOfPairs(c) }},
	{ID: "across/reference", Stage: convention.KL, Output: "logp_ref", Title: "the reference stands still",
		Formula: "logp_ref of a row is the same in every update that uses the row, and after an update it is not logp_old", Source: "V11, V12 (REF-IS-POLICY)",
		Fix:    "switch the adapter off, or use a frozen copy, for the reference",
		Assert: func(c *stage.Case) *stage.Assertion { return referenceStands(c) }},
}

// before marks the tensors of a batch that hold what earlier steps had for its rows, NaN where no step had them.
const before = "earlier/"

// fewAlike is the number of tokens of a rollout from which on their equality is counted, bit by bit in more than 16 bits.
const fewAlike = 8

// acrossFirst and acrossValues are judged of a step by itself: what the steps before say of it is which update it is.
const (
	acrossFirst  = "across/first"
	acrossValues = "across/values"
)

func isAcross(c *stage.Check) bool { return strings.HasPrefix(c.ID, "across/") }

// remembered returns b with what earlier steps had for its rows. Steps that were not read are read now, one after another.
func (s *session) remembered(b *dump.Batch, earlier []*sampled) (*dump.Batch, error) {
	read := map[int][]*sampled{}
	for _, e := range earlier {
		if e != nil && e.cells == nil {
			read[e.step] = append(read[e.step], e)
		}
	}
	cells := map[*sampled]map[string][]float64{}
	for _, step := range slices.Sorted(maps.Keys(read)) {
		of, err := s.run.Batch(s.ctx, step)
		if err != nil {
			return nil, err
		}
		for _, e := range read[step] {
			cells[e] = cellsOf(of, e.row)
		}
	}
	tensors := map[string][]float64{}
	for r, e := range earlier {
		if e == nil {
			continue
		}
		of := e.cells
		if of == nil {
			of = cells[e]
		}
		for name, x := range of {
			if tensors[name] == nil {
				tensors[name] = slices.Repeat([]float64{math.NaN()}, b.Rows*b.Cols)
			}
			copy(tensors[name][r*b.Cols:(r+1)*b.Cols], x)
		}
	}
	for _, e := range earlier {
		if read, again := cells[e]; again {
			s.history.fresh.keep(e, read, max(b.Cols, leastCells))
		}
	}
	for name, x := range tensors {
		b = b.With(before+name, x)
		b.Tensors[before+name].Layout = dump.PerToken
		b.Tensors[before+name].Shape = []int{b.Rows, b.Cols}
	}
	return b, nil
}

// pageOf names a step among those before it, by the steps that had its rows first.
func pageOf(key string, earlier []*sampled) string {
	h := sha256.New()
	for _, e := range earlier {
		if e == nil {
			fmt.Fprint(h, "- ")
		} else {
			fmt.Fprintf(h, "%d.%d ", e.step, e.row)
		}
	}
	return key + " after " + hex.EncodeToString(h.Sum(nil)[:8])
}

// rowKeys names the rows of a batch: by sample_id, else by the tokens of prompt and response, group and score, where there are no tokens by
// the numbers of [fixed]. Rows that are alike have none; nil if rows cannot be told apart.
func rowKeys(b *dump.Batch) []string {
	keys := make([]string, b.Rows)
	if id := b.Row("sample_id"); id != nil {
		for r := range keys {
			keys[r] = fmt.Sprint(id[r])
		}
		return unique(keys)
	}
	var stand []float64
	if b.Token("response_ids") == nil && b.Tensors["input_ids"] == nil {
		if stand = fixed(b); stand == nil {
			return nil
		}
	}
	group, scores := b.Row("group_id"), b.Row("scores")
	for r := range keys {
		var text strings.Builder
		if t := b.Tensors["input_ids"]; t != nil && t.Layout == dump.PerRow {
			fmt.Fprint(&text, t.Data[r*t.Width:(r+1)*t.Width])
		}
		for t := range b.Cols {
			i := r*b.Cols + t
			if !b.Mask[i] {
				continue
			}
			if stand != nil {
				fmt.Fprintf(&text, "%d:%x ", t, math.Float64bits(stand[i]))
			} else if id, ok := b.TokenID(r, t); ok {
				fmt.Fprint(&text, id, " ")
			}
		}
		if group != nil {
			fmt.Fprint(&text, "g", group[r])
		}
		if scores != nil {
			fmt.Fprint(&text, "s", scores[r])
		}
		keys[r] = text.String()
	}
	return unique(keys)
}

// fixed returns the log-probs of the reference, or else of the engine, or the values: what a rollout computes once of its tokens tells them apart
// bit by bit as their ids do, where enough of them differ. nil where there are none such.
func fixed(b *dump.Batch) []float64 {
	const enough = 16
	for _, name := range []string{"logp_ref", "logp_gen", "values"} {
		x := b.Token(name)
		if x == nil {
			continue
		}
		differ := map[float64]bool{}
		for i, m := range b.Mask {
			if m && !math.IsNaN(x[i]) {
				differ[x[i]] = true
			}
		}
		if len(differ) >= enough {
			return x
		}
	}
	return nil
}

// unique returns keys with "" in place of those that stand twice.
func unique(keys []string) []string {
	count := map[string]int{}
	for _, k := range keys {
		count[k]++
	}
	for i, k := range keys {
		if count[k] > 1 {
			keys[i] = ""
		}
	}
	return keys
}

// oneRun reports whether the steps are known to be those of one run: files that contradict each other may be of two, whose steps say
// nothing of each other. Who ignores that finding says that they are of one.
func (s *session) oneRun() bool {
	ignored := check.Selection{Ignore: s.o.Selection.Ignore}
	return len(s.input.mixed) == 0 || !ignored.Takes(inputOneRun)
}

// across judges a step against those before it.
func (s *session) across(v *view, n *StepNotes, set *convention.Set) {
	if !s.oneRun() {
		return
	}
	h := &s.history
	if line := h.others(n); line != "" {
		addLine(&s.input.same.ids, line)
	}
	earlier, begins, fresh := h.recall(n, v.b, spanOf(set))
	if begins {
		h.rollouts++
	}
	h.asynchronous = h.asynchronous || stage.Asynchronous(v.b, set)
	if begins && h.rollouts > 1 && n.Alike {
		h.alike++
	}
	h.uses.add(n, earlier, begins)
	which := h.which(n, set, begins, fresh, n.Step == s.rollout.origin)
	kept := h.keptOld(n)
	apart := which == stage.FirstUpdate && h.apart(n)
	read := func() (*dump.Batch, error) {
		b, err := v.whole()
		if err != nil {
			return nil, err
		}
		return s.remembered(b, earlier)
	}
	full := &view{b: v.b, read: read, key: v.key}
	if v.read == nil {
		b, err := read()
		if err != nil {
			s.fail(err)
			return
		}
		full.b, full.read = b, nil
	}
	page := pageOf(v.key, earlier)
	// The verdict on a reference depends on the steps before by these only.
	later := begins && h.rollouts > 1
	past := pastOfReference{later: later, suspicion: h.suspicion(later)}
	for _, t := range s.tracks {
		if !isAcross(t.check) {
			continue
		}
		if t.check.ID == acrossFirst {
			s.firstUpdate(t, v, set, which, kept, apart)
			continue
		}
		if t.check.ID == acrossValues {
			s.firstUpdate(t, v, set, which, 0, false)
			continue
		}
		full.key, full.dress = page, past.dress(h.moved)
		if t.check.Output == "logp_ref" || t.check.Output == "ref_chosen" {
			full.key = past.of(page)
			if s.ledger.write != nil { // a shard does not know what the steps before its own have done
				for _, other := range pastsOfReference {
					if w := *full; other != past {
						w.key, w.dress = other.of(page), other.dress(false)
						s.judge(t.check, &w, set)
					}
				}
			}
		}
		t.add(full, set, s)
	}
	h.moved, h.learnt = h.moved || n.Moved, h.learnt || n.Learnt
	// A later update of the same rows says nothing new of the engine, and old log-probs that were computed again something false.
	if n.Engine != nil && begins && !n.Engine.Same {
		h.engine.add(n)
		h.engine.corrected = h.engine.corrected || n.has("is_weights") || corrects(set)
	}
	if n.Update != nil {
		h.engine.left = n.Update.discrepancy().Scale
	}
}

// coarse reports whether the log-probs called name have no more bits than a 16-bit format.
func coarse(b *dump.Batch, name string) bool {
	t := b.Tensors[name]
	return t != nil && stage.Grid(t.Data) > tol.U32
}

// kept demands that a tensor of the rollout is that of the first update that used its row. Responses of a few tokens are sampled again, so that what is alike in
// two of them does not make one row of them.
func kept(c *stage.Case, name, bug string) *stage.Assertion {
	now, then := c.B.Token(name), c.B.Token(before+name)
	if now == nil || then == nil || name == "logp_old" && c.EnumOr("ratio.old", "stored") == "stopgrad_new" {
		return nil
	}
	const few = 3 // tokens
	numbered := c.B.Row("sample_id") != nil
	tokens := make([]int, c.B.Rows)
	for i := range c.B.Tokens() {
		tokens[i/c.B.Cols]++
	}
	a := &stage.Assertion{}
	var most float64
	at, changed := -1, 0
	for i, m := range c.B.Mask {
		if !m || math.IsNaN(then[i]) || !numbered && tokens[i/c.B.Cols] < few {
			continue
		}
		a.Checked++
		if d := math.Abs(now[i] - then[i]); !(d <= 64*tol.U32*max(1, math.Abs(then[i]))) {
			if changed++; !(d <= most) {
				most, at = d, i
			}
		}
	}
	if at < 0 {
		return a
	}
	same := ""
	if lp := c.B.Token("logp_new"); lp != nil && name == "logp_old" && lp[at] == now[at] {
		same = ", and is logp_new there: it was recomputed with the present weights"
	}
	a.Violations = []stage.Violation{{Row: at / c.B.Cols, Col: at % c.B.Cols, Got: now[at], Fault: bug,
		Reason: fmt.Sprintf("%s of %d of %d tokens is not that of the earlier update of the same rows, here %.6g where it was %.6g%s", name, changed, a.Checked, now[at], then[at], same)}}
	return a
}
