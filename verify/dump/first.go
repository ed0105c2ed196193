package dump

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// which says which update of its rollout a step is, by stage.FirstUpdate and its like. It is the first one of the run if the run begins
// with it; one behind a later pass over the rows before, whose rows nobody has seen; and every one of new rows where a rollout is declared
// to be one mini-batch of one epoch: of more epochs, the first may be in steps that were not dumped. Any other step of new rows may be a
// later mini-batch.
func (h *history) which(n *StepNotes, set *convention.Set, begins, fresh, origin bool) string {
	follows, again := n.Step == h.last+1 && !origin, h.lastAgain
	h.last, h.lastAgain = n.Step, !begins
	switch {
	case h.asynchronous, !begins:
		return stage.LaterUpdate
	case origin && n.Step <= 1, fresh && follows && again, fresh && stage.OneUpdate(set) && oneEpoch(set):
		return stage.FirstUpdate
	}
	return stage.UnknownUpdate
}

func oneEpoch(set *convention.Set) bool {
	v := set.Value("optim.epochs")
	return v.Kind() == convention.Number && v.Num() == 1
}

// apart reports whether the new log-probs of a first update are further from the old ones than at the best first update before it, as the
// engine's are in [session.engineOverSteps]: two passes that agreed once have one arithmetic, and weights of an earlier rollout have not.
func (h *history) apart(n *StepNotes) bool {
	if n.Update == nil {
		return false
	}
	d, best := n.Update.discrepancy(), h.update
	if d.Tokens < fewestTokens {
		return false
	}
	if best == nil || d.Scale < best.Scale {
		h.update = &d
	}
	return best != nil && d.Scale > stage.OrdinaryScale && d.Scale > 4*best.Scale*sizeError(d.Tokens, best.Tokens)
}

// firstUpdate judges a step by which update it is, by the earlier step whose old log-probs it has, 0 if there is none, and by whether it is
// further from them than a first update before it. A shard does not know what was before its steps, and judges each case.
func (s *session) firstUpdate(t *track, v *view, set *convention.Set, which string, kept int, apart bool) {
	as := func(which string, kept int, apart bool) *view {
		w := *v
		w.key = fmt.Sprintf("%s, update %s, old of %d, apart %t", v.key, which, kept, apart)
		w.dress = func(set *convention.Set) *convention.Set {
			return set.WithFact("first_update", which).WithFact("old_of_step", float64(kept)).WithFact("update_apart", apart)
		}
		return &w
	}
	if s.ledger.write != nil {
		for _, other := range []string{stage.FirstUpdate, stage.LaterUpdate, stage.UnknownUpdate} {
			for _, far := range []bool{false, true} {
				if (other != which || kept != 0 || far != apart) && (!far || other == stage.FirstUpdate) {
					s.judge(t.check, as(other, 0, far), set)
				}
			}
		}
	}
	t.add(as(which, kept, apart), set, s)
}

// oldIsNew is [stage.OldIsNew] that knows the reference from the policy: at the first update of a later rollout the policy has moved, so that old
// log-probs which are the reference's bit by bit, in more than 16 bits, are not its own where the new ones are not theirs. A reference that
// is the policy would have made the new ones, too, but for the noise of two passes.
func oldIsNew(c *stage.Case) *stage.Assertion {
	a := stage.OldIsNew(c)
	when, _ := c.Set.Fact("first_update")
	if a == nil || when != stage.FirstUpdate || c.B.Meta.Step <= 1 || synced(c) || coarse(c.B, "logp_ref") {
		return a
	}
	d, ok := c.Discrepant("logp_old", "logp_new")
	ref, there := c.Discrepant("logp_old", "logp_ref")
	if ok && there && ref.Same && ref.Tokens >= fewestTokens && d.Scale > stage.OrdinaryScale {
		a.Violations = []stage.Violation{{Row: -1, Col: -1, Fault: "OLD-IS-REF", Got: d.MeanAbs,
			Reason: fmt.Sprintf("logp_old is logp_ref bit by bit in all %d tokens, at the first update of a later rollout, and logp_new is not (%s): the ratio measures the distance to the reference", ref.Tokens, d)}}
	}
	return a
}

// oldOf is where the old log-probs of some tokens were seen.
type oldOf struct {
	step int
	ids  uint64
}

// start is the beginning of a row: its old log-probs and its tokens, by their digests; 0 of what tells nothing.
type start struct{ LogP, IDs uint64 }

const (
	startTokens = 8       // of a row that are compared
	startValues = 4       // of them that differ at least: what a sure policy gives to all tokens tells no rows apart
	mostOlds    = 1 << 18 // rows that are remembered
)

// starts digests the beginnings of the rows; nil where no tokens are known.
func starts(b *dump.Batch) []start {
	old := b.Token("logp_old")
	if b.Token("response_ids") == nil && b.Tensors["input_ids"] == nil {
		return nil
	}
	rows := make([]start, b.Rows)
	for r := range rows {
		values, ids := fnv.New64a(), fnv.New64a()
		differ, n := map[float64]bool{}, 0
		for t := 0; t < b.Cols && n < startTokens; t++ {
			i := r*b.Cols + t
			id, ok := b.TokenID(r, t)
			if !b.Mask[i] || !ok {
				continue
			}
			n++
			binary.Write(ids, binary.LittleEndian, int64(id))
			if old != nil && !math.IsNaN(old[i]) {
				differ[old[i]] = true
				binary.Write(values, binary.LittleEndian, old[i])
			}
		}
		if n == startTokens {
			rows[r].IDs = ids.Sum64()
			if len(differ) >= startValues {
				rows[r].LogP = values.Sum64()
			}
		}
	}
	return rows
}

// keptOld returns the earlier step whose old log-probs two rows of a step or more have bit by bit, of other tokens; 0 if there is none.
// Equal tokens behind equal prompts have equal log-probs; eight of other tokens have not. Then it takes the step's rows down.
func (h *history) keptOld(n *StepNotes) int {
	if h.olds == nil || len(h.olds) > mostOlds {
		h.olds = map[uint64]oldOf{}
	}
	count := map[int]int{}
	found := 0
	for _, r := range n.Starts {
		if o, ok := h.olds[r.LogP]; ok && r.LogP != 0 && o.ids != r.IDs && o.step != n.Step {
			if count[o.step]++; count[o.step] >= 2 {
				found = o.step
			}
		}
	}
	for _, r := range n.Starts {
		if r.LogP != 0 {
			h.olds[r.LogP] = oldOf{n.Step, r.IDs}
		}
	}
	return found
}
