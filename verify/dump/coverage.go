package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Coverage is how much of what can go wrong would show in a run.
type Coverage struct {
	Seen, Of int      // bugs that would show, of those that the algorithm can have
	Untested []string // what nothing in the run exercises, and how it would be
	Raise    []Raise  // what would show more bugs, the most first
	Unread   []string // logged numbers that no check reads
}

// Raise is a tensor that was not dumped and how many more bugs would show with it, at most.
type Raise struct {
	Tensor string
	Bugs   int
}

// String says "54 of the 138 bugs that this algorithm can have would show", what is untested, and how to raise it.
func (c *Coverage) String() string {
	if c.Of == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of the %d bugs that this algorithm can have would show", c.Seen, c.Of)
	for _, u := range c.Untested {
		text += "; " + u
	}
	for _, r := range c.Raise {
		text += fmt.Sprintf("; %s: up to +%d", r.Tensor, r.Bugs)
	}
	return text
}

// unreadText says which logged numbers no check reads, "" if there are none.
func (c *Coverage) unreadText() string {
	n := len(c.Unread)
	if n == 0 {
		return ""
	}
	const most = 8
	return fmt.Sprintf("%d logged %s not read (%s%s)", n, map[bool]string{true: "number is", false: "numbers are"}[n == 1], strings.Join(c.Unread[:min(n, most)], ", "), map[bool]string{true: ", …"}[n > most])
}

// sightCells bounds the cells of a batch on which it is tried which bugs would show.
const sightCells = 4096

// sample is a batch small enough to try every bug on.
type sample struct {
	b   *dump.Batch
	set *convention.Set
}

// watch keeps a sample of the first step and of the first one whose ratios are not all 1: most bugs that one of them does not show
// the other does.
func (s *session) watch(v *view, set *convention.Set) {
	if n := len(s.samples); n > 1 || n == 1 && (s.sampledRatios || !s.exercise.ratios) || s.ledger.write != nil {
		return
	}
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return
	}
	s.sampledRatios = s.exercise.ratios
	if rows := sightCells / max(b.Cols, 1); b.Rows > rows {
		some := make([]int, max(rows, min(b.Rows, 8)))
		for i := range some {
			some[i] = i
		}
		b = b.Select(some)
	}
	s.samples = append(s.samples, sample{b, set})
}

// sights returns the bugs with the checks that tell each of them from the right numbers of a batch.
func sights(b *dump.Batch, set func(c *stage.Check) *convention.Set) map[*fault.Hypothesis][]string {
	seen := map[*fault.Hypothesis][]string{}
	for _, c := range stage.All() {
		if c.Predict == nil {
			continue
		}
		o := stage.Judge(c, b, set(c))
		if o.Pred == nil || o.Verdict != check.Pass && o.Verdict != check.Fail {
			continue
		}
		for _, h := range fault.All() {
			if (h.Input != nil || h.Predict != nil) && h.Applies(c) && !slices.Contains(seen[h], c.ID) && fault.Tells(h, o) {
				seen[h] = append(seen[h], c.ID)
			}
		}
	}
	return seen
}

// coverage counts the bugs that would show. What the search found stands for what was not declared.
func (s *session) coverage() *Coverage {
	c := &Coverage{}
	if len(s.samples) == 0 || slices.Contains(noPolicy, s.algo) {
		return c
	}
	shows := map[*fault.Hypothesis]bool{}
	for _, x := range s.samples {
		set := x.set
		if s.profile == nil && s.suggest != nil {
			set, _ = convention.FromProfile(s.suggest).Over(set)
		}
		for h := range sights(x.b, func(ch *stage.Check) *convention.Set {
			for _, t := range s.tracks {
				if t.check == ch && t.searched && len(t.fits) > 0 {
					return changed(x.set, t.fits[0].Changes)
				}
			}
			return set
		}) {
			shows[h] = true
		}
	}
	hidden := map[string]int{} // by the tensor that would show them
	for _, h := range fault.All() {
		if h.Input == nil && h.Predict == nil || !shows[h] && (!s.possible(h) || !s.configured(h)) {
			continue
		}
		c.Of++
		if shows[h] {
			c.Seen++
			continue
		}
		for _, b := range blind {
			if !s.present[b.output] && (b.needs == nil || b.needs(s.present)) && slices.ContainsFunc(stage.All(), func(ch *stage.Check) bool { return ch.ID == b.check && h.Applies(ch) }) {
				hidden[b.output]++
			}
		}
	}
	for _, b := range blind {
		if n := hidden[b.output]; n > 0 && !slices.ContainsFunc(c.Raise, func(r Raise) bool { return r.Tensor == b.output }) {
			c.Raise = append(c.Raise, Raise{b.output, n})
		}
	}
	slices.SortStableFunc(c.Raise, func(a, b Raise) int { return b.Bugs - a.Bugs })
	c.Raise = c.Raise[:min(len(c.Raise), 3)]
	for _, t := range s.tracks {
		if t.unjudged != "" {
			c.Untested = append(c.Untested, t.unjudged)
		}
	}
	c.Untested = append(c.Untested, s.exercise.reasons()...)
	c.Unread = s.unread()
	return c
}

// ofOption are bugs of what an option turns on, with the kind of value under which it is on, or its word.
var ofOption = map[string]struct {
	option string
	on     func(convention.Value) bool
}{
	"SAPO-SCALE":           {"loss.kind", func(v convention.Value) bool { return v.String() == "sapo" }},
	"TOP-ENTROPY-QUANTILE": {"loss.top_entropy", func(v convention.Value) bool { return v.Kind() == convention.Number }},
	"TOP-ENTROPY-PER-RANK": {"loss.top_entropy", func(v convention.Value) bool { return v.Kind() == convention.Number }},
}

// configured reports whether a bug is of something that the run may have turned on.
func (s *session) configured(h *fault.Hypothesis) bool {
	of, ok := ofOption[h.ID]
	if !ok {
		return true
	}
	v := s.samples[0].set.Value(of.option)
	return !v.Known() || of.on(v)
}

// possible reports whether a program of the run's algorithm can have a bug: one without a value head has no bugs of its value loss,
// one without a reference none of its KL, one with a policy loss none of a cross-entropy, and what is not logged is not logged wrongly.
func (s *session) possible(h *fault.Hypothesis) bool {
	if strings.HasPrefix(h.ID, "SFT-") { // of a cross-entropy: noPolicy
		return false
	}
	critic := s.present["values"] || s.present["values_new"] || s.present["returns"] || s.algo == "ppo"
	penalty := s.present["logp_ref"] || s.present["kl"]
	for _, id := range h.Checks {
		group, _, _ := strings.Cut(id, "/")
		switch {
		case group == "gae", id == "aggregate/value_loss", id == "gradient/dvalues":
			if critic {
				return true
			}
		case id == "advantage/group", id == "advantage":
			if !critic || s.present["group_id"] {
				return true
			}
		case group == "kl", id == "aggregate/kl_loss":
			if penalty {
				return true
			}
		case id == "reward/token":
			if s.present["token_rewards"] || critic {
				return true
			}
		case group == "scalars":
			if slices.ContainsFunc(s.tracks, func(t *track) bool { return t.seen && h.Applies(t.check) && strings.HasPrefix(t.check.ID, "scalars") }) {
				return true
			}
		case group == "preference", group == "distill":
		default:
			return true
		}
	}
	return false
}
