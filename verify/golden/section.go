package golden

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// section is what the reference knows of one section.
type section struct {
	name, title, doc string
	source           string
	functions        map[string]recompute // by peer and function
	faults           []check.Fault[*Set]
}

// sections are those that have a check.
var sections = []*section{gae, maskedStats, groupAdvantages, kl, policyLoss, valueLoss, logProbEntropy, adamW, int8Codes, int8Layers, loraLinear, models, texts}

// releases are the versions whose conventions the reference knows by execution (conventions 7).
var releases = map[string]string{"verl": "0.9.1", "openrlhf": "0.11.2", "trl": "1.16.0", "trl-ppo": "1.12.0", "liger": "0.8.5", "torch": "2.15.0",
	"bitsandbytes": "0.50.2", "peft": "0.21.2", "transformers": "5.23.0"}

// check returns the check of s.
func (s *section) check() *check.Check[*Set] {
	return &check.Check[*Set]{
		Name: "golden/" + s.name,
		Doc: s.title + "\n\n" + s.doc + `

Unless another bound is named here, an element passes when |got − want| ≤ 1e-12·max(1, |want|), or when what is beyond is
allowed by a leak that the finding names. An exception of the framework must be refused by the reference for the same reason. Functions, options and outputs
that the reference does not know are UNDETERMINED.`,
		Source: s.source,
		Fix:    "the reference and the framework disagree: either the golden was not made by the release it names, or reference/ is wrong",
		Run:    func(set *Set) ([]check.Result, error) { return s.run(set) },
		Faults: s.faults,
	}
}

// tally adds up the outcomes of a section.
type tally struct {
	entries, numbers, refused int
	excluded                  int // outputs without a number here
	leaked                    map[Leak]int
	worst                     float64
	at                        miss
	of                        *Entry
	failed                    []check.Result
	groups                    map[string]*group // of what is undetermined
	order                     []string
}

// group is entries that are undetermined for one reason.
type group struct {
	subject, reason string
	ids             []string
}

// run judges the entries of the section that the set selects.
func (s *section) run(set *Set) ([]check.Result, error) {
	entries := set.selected(s.name)
	if set.Sections[s.name] != nil && len(set.Sections[s.name].Entries) == 0 {
		return []check.Result{{Subject: s.name + ".json", Verdict: check.Undetermined, Reason: "the section has no entries"}}, nil
	}
	id := "golden/" + s.name
	t := &tally{leaked: map[Leak]int{}, groups: map[string]*group{}}
	for _, e := range entries {
		if err := set.stopped(); err != nil {
			return nil, err
		}
		if e.bad != nil {
			t.malformed(set, e, e.bad)
			continue
		}
		f, ok := s.functions[e.Peer+" "+e.Function]
		if !ok {
			t.undetermined(e, "the reference does not know this function")
			continue
		}
		o, err := judge(e, f)
		if err != nil {
			t.malformed(set, e, err)
			continue
		}
		known := releases[e.Peer]
		switch {
		case o.failed > 0 && e.Version != known:
			t.undetermined(e, fmt.Sprintf("its numbers are not those of %s, the release that the reference knows", known))
		case o.failed > 0:
			t.failed = append(t.failed, o.failure(set.repeat(id, e)))
		case o.unknown != "":
			t.undetermined(e, o.unknown)
		default:
			t.add(o)
		}
	}
	return t.results(s, len(entries), set.repeatAll(id)), nil
}

// add counts an entry that passed.
func (t *tally) add(o *outcome) {
	t.entries++
	t.numbers += o.numbers
	t.refused += o.refused
	t.excluded += len(o.excluded)
	for leak, n := range o.leaked {
		t.leaked[leak] += n
	}
	if t.of == nil || o.worst > t.worst {
		t.worst, t.at, t.of = o.worst, o.at, o.entry
	}
}

// malformed leaves out an entry that cannot be judged; the others are.
func (t *tally) malformed(set *Set, e *Entry, err error) {
	set.bad = append(set.bad, err)
	t.undetermined(e, "malformed: "+err.Error())
}

func (t *tally) undetermined(e *Entry, reason string) {
	subject := fmt.Sprintf("%s@%s %s", short(e.Peer), short(e.Version), short(e.Function))
	key := subject + "\x00" + reason
	g := t.groups[key]
	if g == nil {
		g = &group{subject: subject, reason: reason}
		t.groups[key] = g
		t.order = append(t.order, key)
	}
	g.ids = append(g.ids, e.ID)
}

// results returns one PASS for all entries that passed, one FAIL for each that did not, and one UNDETERMINED for each
// function and reason.
func (t *tally) results(s *section, of int, repeat string) []check.Result {
	var out []check.Result
	if t.entries > 0 {
		r := check.Bound(fmt.Sprintf("%d of %d entries", t.entries, of), "max |got − want| / bound", t.worst, 1, t.entries)
		beyond := 0
		for _, n := range t.leaked {
			beyond += n
		}
		r.Facts = []check.Fact{{Name: "entries", Value: float64(t.entries)}, {Name: "numbers", Value: float64(t.numbers)}, {Name: "to 1e-12", Value: float64(t.numbers - beyond)}}
		reason := fmt.Sprintf("%d numbers, %d of them to 1e-12", t.numbers, t.numbers-beyond)
		if t.refused > 0 {
			r.Facts = append(r.Facts, check.Fact{Name: "refused here as there", Value: float64(t.refused)})
			reason += fmt.Sprintf(", %d exceptions refused here too", t.refused)
		}
		if t.excluded > 0 {
			r.Facts = append(r.Facts, check.Fact{Name: "outputs not compared", Value: float64(t.excluded)})
			reason += fmt.Sprintf(", %d outputs of which the reference has no number on purpose", t.excluded)
		}
		for _, leak := range Leaks {
			if n := t.leaked[leak]; n > 0 {
				r.Facts = append(r.Facts, check.Fact{Name: string(leak), Value: float64(n)})
				reason += fmt.Sprintf("; %d within a leak: %s", n, leak)
			}
		}
		r.Reason = reason
		if t.worst > 0 {
			r.Where = "closest to its bound: " + t.of.Name() + ": " + t.at.String()
		}
		out = append(out, r)
	}
	out = append(out, capped(t.failed, "entries differ")...)
	var undetermined []check.Result
	for _, key := range t.order {
		undetermined = append(undetermined, t.groups[key].result(repeat))
	}
	return append(out, capped(undetermined, "functions and reasons")...)
}

// result is the finding about a group of undetermined entries.
func (g *group) result(repeat string) check.Result {
	names := make([]string, 0, 3)
	for _, id := range g.ids[:min(3, len(g.ids))] {
		names = append(names, short(id))
	}
	where := strings.Join(names, ", ")
	if len(g.ids) > 3 {
		where += ", …"
	}
	return check.Result{Subject: g.subject, Verdict: check.Undetermined, Reason: fmt.Sprintf("%s (%s): %s", count(len(g.ids)), where, g.reason), Repeat: repeat,
		Facts: []check.Fact{{Name: "entries", Value: float64(len(g.ids))}},
		Fix:   "only a change of the reference can decide it; see reference/rl for the functions and options it knows"}
}

func count(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// failure is the finding about an entry with elements beyond their bound.
func (o *outcome) failure(repeat string) check.Result {
	e, m := o.entry, &o.first
	r := check.Result{Subject: e.Name(), Verdict: check.Fail, Compared: o.numbers, Repeat: repeat,
		Reason: fmt.Sprintf("%d of %d numbers are beyond their bound; options %s", o.failed, o.numbers, e.optionText()),
		Where:  m.String(),
		Facts:  []check.Fact{{Name: "entries", Value: 1}, {Name: "beyond", Value: float64(o.failed)}}}
	if m.note == "" {
		bound := check.Bound(r.Subject, "|got − want|", difference(m.got, m.want), m.bound, o.numbers)
		r.Metric, r.Measured, r.Limit = bound.Metric, bound.Measured, bound.Limit
		r.Facts = append(r.Facts, check.Fact{Name: "got", Value: m.got}, check.Fact{Name: "want", Value: m.want})
	}
	return r
}

// String says where the element is, both numbers, and what was allowed.
func (m *miss) String() string {
	if m.note != "" {
		return m.output + ": " + m.note
	}
	text := fmt.Sprintf("%s%s: got %.17g, want %.17g, off by %.3g, allowed %.3g", m.output, m.place(), m.got, m.want, difference(m.got, m.want), m.bound)
	if m.leak != "" {
		text += " (" + string(m.leak) + ")"
	}
	return text
}

// optionText returns the options as JSON, cut to a line.
func (e *Entry) optionText() string {
	parts := make([]string, 0, len(e.Options))
	for _, key := range slices.Sorted(maps.Keys(e.Options)) {
		v, err := json.Marshal(e.Options[key])
		if err != nil {
			v = []byte("?")
		}
		parts = append(parts, short(key)+" "+short(string(v)))
	}
	if len(parts) > 20 {
		parts = append(parts[:20], "…")
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
