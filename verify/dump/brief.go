package dump

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// pipeline is the stages of a batch and the first parts of their checks' ids.
var pipeline = []struct {
	name   string
	groups []string
}{{"masks", []string{"masks", "input"}}, {"logp", []string{"logp", "agreement", "first_step"}}, {"reward", []string{"reward"}}, {"adv", []string{"advantage", "gae"}}, {"KL", []string{"kl"}},
	{"ratio", []string{"ratio"}}, {"token", []string{"token_loss", "preference", "distill"}}, {"loss", []string{"aggregate"}}, {"grad", []string{"gradient"}}, {"log", []string{"scalars"}}, {"opt", []string{"update"}}}

func groupOf(id string) string {
	group, _, _ := strings.Cut(id, "/")
	return group
}

// brief makes causes of results: what one bug breaks in several places is one finding.
func (s *session) brief(r *Report) *check.Brief {
	b := &check.Brief{Head: s.head()}
	if r.Coverage != nil {
		b.Coverage, b.Unread = r.Coverage.String(), r.Coverage.unreadText()
	}
	judged := 0
	for i := range r.Results {
		res := &r.Results[i]
		switch res.Verdict {
		case check.Pass:
			judged++
			continue
		case check.Fail, check.Convention, check.Undetermined:
		case check.Warn:
		default:
			continue
		}
		if f := s.causeOf(b.Findings, r.Results, res); f != nil {
			f.Seen, f.Results = append(f.Seen, res.Check), append(f.Results, i)
			continue
		}
		f := s.finding(res)
		f.Results = []int{i}
		b.Findings = append(b.Findings, f)
	}
	b.Findings = underTemperature(withoutPatterns(b.Findings), r.Results)
	b.Findings = s.underShift(underLearned(b.Findings, r.Results), r.Results)
	b.Findings = s.chained(underGradients(b.Findings, r.Results), r.Results)
	b.Findings = gathered(s.reduced(b.Findings, r.Results), r.Results)
	worstFirst(b.Findings)
	const long = 24 // of a path on the one line of a clean run
	name := s.where
	if len(name) > long {
		name = filepath.Base(name)
	}
	b.Clean = fmt.Sprintf("%s: %s on %s agree with %s", name, steps(judged, "check"), steps(len(s.steps), "step"), s.convention())
	b.Stages = stagesOf(r.Results)
	b.Next = s.next(b.Findings)
	return b
}

// worstFirst orders findings by their verdicts, and behind those of the same verdict what only resembles a bug, where one that was recomputed is in the
// run before it shows: a policy that learned from a wrong loss is another one for it.
func worstFirst(found []check.Finding) {
	proven := -1 // the first step of a bug that was recomputed
	for _, f := range found {
		if f.Verdict == check.Fail && !f.Pattern && f.First >= 0 && bug.Find(f.Name) != nil && (proven < 0 || f.First < proven) {
			proven = f.First
		}
	}
	rank := func(f check.Finding) int {
		if f.Pattern && proven >= 0 && f.First > proven {
			return 2*slices.Index(severity, f.Verdict) + 1
		}
		return 2 * slices.Index(severity, f.Verdict)
	}
	slices.SortStableFunc(found, func(x, y check.Finding) int { return rank(x) - rank(y) })
}

// AddBrief adds what is said of another run, a part of the same training, to what b says. results are those of both; place says where its
// own stand among them, -1 for one that is left out.
func AddBrief(b, its *check.Brief, results []check.Result, place []int, whose string) {
	for _, f := range its.Findings {
		var kept []int
		for _, i := range f.Results {
			if place[i] >= 0 {
				kept = append(kept, place[i])
			}
		}
		if kept == nil {
			continue
		}
		if i := slices.IndexFunc(b.Findings, func(x check.Finding) bool { return x.Name == f.Name && x.Verdict == f.Verdict && x.Title == f.Title }); i >= 0 {
			b.Findings[i].Results = append(b.Findings[i].Results, kept...)
			continue
		}
		f.Where, f.Results = strings.TrimSpace(whose+": "+f.Where), kept
		b.Findings = append(b.Findings, f)
	}
	worstFirst(b.Findings)
	b.Clean += "; " + whose + ": " + its.Clean
	b.Coverage += "; " + whose + ": " + its.Coverage
	b.Stages = stagesOf(results)
	if len(b.Findings) > 0 {
		b.Next = slices.DeleteFunc(b.Next, func(c string) bool { return strings.HasPrefix(c, "verify explain ") })
		b.Next = append([]string{"verify explain " + b.Findings[0].Name}, b.Next...)
		if len(its.Findings) > 0 {
			b.Next = append(b.Next, its.Next[len(its.Next)-1])
		}
	}
}

// finding is a cause that stands for one result so far.
func (s *session) finding(res *check.Result) check.Finding {
	f := check.Finding{Verdict: res.Verdict, Name: res.Check, Title: res.Reason, First: -1, Fix: res.Fix, Seen: []string{res.Check}}
	if res.Verdict == check.Undetermined && f.Title == "" {
		f.Title = "could not be decided"
	}
	var t *track
	for _, u := range s.tracks {
		if u.check.ID == res.Check {
			t = u
		}
	}
	if res.Steps != nil && res.Steps.Bad > 0 {
		f.First = res.Steps.First
		if res.Steps.Judged > 1 {
			of := steps(res.Steps.Judged, "step")
			if t != nil { // a check across steps has none
				of = t.units(res.Steps.Judged)
			}
			f.Evidence = fmt.Sprintf("in %d of %s", res.Steps.Bad, of)
		}
	}
	f.Where = strings.ReplaceAll(res.Where, s.where+string(filepath.Separator), "")
	if t != nil && t.first != nil && res.Metric != "" && t.first.Tally != nil && (res.Verdict == check.Fail || res.Verdict == check.Convention) {
		w := t.first.Tally.Worst
		f.Where, f.Got, f.Right = s.spot(t.first, w.Index), shown(w.Out), shown(w.Ref)
	}
	if len(res.Explanations) > 0 {
		s.explained(&f, res, t)
	}
	return f
}

// losses are the checks of what a factor of multiplies the learning rate.
var losses = []string{"token_loss", "preference", "distill", "aggregate", "gradient"}

// explained names a finding by what explains it.
func (s *session) explained(f *check.Finding, res *check.Result, t *track) {
	e := &res.Explanations[0]
	name, title := titleOf(e)
	if e.Lead {
		f.Or = append(f.Or, fmt.Sprintf("a lead, not proven: %s: %s (%s)", name, title, e.Evidence))
		return
	}
	f.Title = title
	if name != "" {
		f.Name = name
	}
	if b := bug.Find(name); b != nil && (name != "FACTOR" || slices.Contains(losses, groupOf(res.Check))) {
		f.Effect = b.Effect
	}
	f.Pattern = t != nil && t.check.Predict == nil
	if f.Pattern && res.Reason != "" && res.Reason != title {
		f.Evidence = res.Reason
	} else if e.Evidence != "" {
		f.Evidence = e.Evidence
	}
	if t == nil || t.first == nil || t.first.Case == nil {
		return
	}
	code(f, e, s.whose())
	if f.Yours != "" && len(e.Options) > 0 && fault.Find(name) == nil {
		f.Fix = "compute as " + f.Whose + " does: " + assignments(due(e.Options))
		if s.profile == nil {
			f.Fix = "compute as declared: " + assignments(due(e.Options))
		}
	}
	for _, o := range e.Options {
		v, err := convention.Parse(o.Option, o.Value)
		if err != nil {
			continue
		}
		if words := convention.NativeWords(s.framework(), o.Option, v); len(words) > 0 {
			f.Or = append(f.Or, words[0]+" computes the same on these data")
		}
	}
	for _, x := range res.Explanations[1:] {
		if x.Lead || x.Fault == e.Fault && (len(x.Options) == 0 || slices.Equal(x.Options, e.Options)) || x.Fault == "FACTOR" && name != "" { // a name says more than the factor that it is
			continue
		}
		n, text := titleOf(&x)
		var words []string
		for _, o := range x.Options {
			if v, err := convention.Parse(o.Option, o.Value); err == nil {
				words = append(words, convention.NativeWords(s.framework(), o.Option, v)...)
			}
		}
		if len(words) > 0 {
			n, text = words[0], "same numbers on these data"
		}
		f.Or = append(f.Or, strings.TrimPrefix(n+": "+text, ": "))
	}
}

// due are options with the values that are declared.
func due(changed []check.OptionChange) []check.OptionChange {
	list := slices.Clone(changed)
	for i := range list {
		list[i].Value = list[i].Declared
	}
	return list
}

// spot names the element in the words of the run: step, rank and micro-batch, row and token.
func (s *session) spot(o *stage.Outcome, i int) string {
	b := o.Case.B
	text := fmt.Sprintf("%s, step %d", strings.TrimPrefix(o.Check.Output, "scalars/"), b.Meta.Step)
	file := func(k int) string {
		f := b.Files[k]
		var at string
		if b.Meta.WorldSize > 1 {
			at = fmt.Sprintf(", rank %d", f.Rank)
		}
		if len(b.Files) > 1 {
			at += fmt.Sprintf(", micro-batch %d", f.MicroBatch)
		}
		return at
	}
	n := len(o.Got)
	row, col := -1, -1
	switch {
	case i < 0:
		return text
	case n == b.Rows*b.Cols && b.Cols > 0 && !perFile(o.Check.Output):
		row, col = i/b.Cols, i%b.Cols
	case n == len(b.Files) && i < n && (n != b.Rows || perFile(o.Check.Output)):
		return text + file(i)
	case i < b.Rows:
		row = i
	}
	if row < 0 || row >= len(b.Origin) {
		return text
	}
	org := b.Origin[row]
	text += file(org.File) + fmt.Sprintf(", row %d", org.Row)
	if col >= 0 {
		text += fmt.Sprintf(" token %d", org.Col+col)
	}
	return text
}

func (s *session) framework() string {
	return strings.TrimSpace(s.common.Framework + " " + s.common.Algorithm)
}

// whose is the framework whose formula is due.
func (s *session) whose() string {
	if s.profile != nil {
		return s.profile.Framework
	}
	return "right"
}

// convention is what a clean run agrees with.
func (s *session) convention() string {
	switch {
	case s.profile != nil && s.profile.Framework == "plumbline":
		return s.profile.Name
	case s.profile != nil:
		return s.profile.Framework + " " + s.profile.Release
	case s.declared:
		if list := s.found(); list != nil {
			return "what is declared, and else with what the search found: " + strings.Join(list, ", ") + " … (-v: all of it)"
		}
		return "what is declared"
	}
	return s.searched()
}

// characteristic are the options that runs differ in most: what a search found of them is said where nobody declares any.
var characteristic = []string{"adv.kind", "adv.scale", "adv.ddof", "gae.gamma", "gae.lambda", "whiten.scope", "clip.low", "clip.high", "agg.kind", "kl.kind", "kl.beta", "agg.denominator", "tis.level", "dpo.loss", "dpo.beta"}

// found are the characteristic options that searches found, the first of them.
func (s *session) found() (list []string) {
	const most = 7
	found := map[string]string{}
	for _, t := range s.tracks {
		for _, c := range t.decided() {
			if _, ok := found[c.Option]; !ok {
				found[c.Option] = c.To.String()
			}
		}
	}
	for _, name := range characteristic {
		if v, ok := found[name]; ok && len(list) < most {
			list = append(list, name+"="+v)
		}
	}
	return list
}

// searched says what a run agrees with that declares nothing: a bug that is a legal number is among it.
func (s *session) searched() string {
	list := s.found()
	if list == nil {
		return "options that the search found (-v)"
	}
	return "what the search found, since nothing is declared: " + strings.Join(list, ", ") + " … (-v: all of it; is it what was meant?)"
}

// vocabulary is the options of trainers that a reader wants to see first.
var vocabulary = []string{"loss_type", "loss_agg_mode", "adv_estimator", "beta", "kl_loss_coef", "kl_coef", "kl.beta"}

// head says what was judged, and by which convention.
func (s *session) head() []string {
	m := s.common
	first := s.where + "  " + steps(s.files, "file") + ", "
	if n := len(s.steps); n == 1 {
		first += fmt.Sprintf("step %d", s.steps[0])
	} else if n > 1 {
		first += fmt.Sprintf("%d steps, %d to %d", n, s.steps[0], s.steps[n-1])
	}
	if m.WorldSize > 0 {
		first += ", " + steps(m.WorldSize, "rank")
	}
	if m.Run != "" {
		first += ", run " + m.Run
	}
	second := strings.TrimSpace(strings.Join(strings.Fields(m.Framework+" "+m.Version+" "+m.Algorithm), " "))
	said := 0
	for _, name := range vocabulary {
		for _, o := range m.Options {
			if o.Name == name && o.Value != nil && said < 2 {
				second += fmt.Sprintf(", %s=%v", name, o.Value)
				said++
			}
		}
	}
	by := "no profile: " + s.openOptions()
	if s.profile != nil {
		by = "profile " + s.profile.Name
		switch {
		case s.o.Profile != "":
		case m.Profile != "":
			by += " (named in files)"
		default:
			by += " (from files)"
		}
	}
	return []string{first, strings.TrimPrefix(second+"; "+by, "; ")}
}

// openOptions says what of the options no one declares.
func (s *session) openOptions() string {
	var names []string
	searched := false
	for _, t := range s.tracks {
		searched = searched || t.searched
		for _, f := range t.fits[:min(len(t.fits), 1)] {
			for _, c := range f.Changes {
				if !slices.Contains(names, c.Option) {
					names = append(names, c.Option)
				}
			}
		}
	}
	const most = 4
	switch {
	case !searched:
		return "every option that the checks read is declared"
	case len(names) == 0:
		return "options that nothing declares are searched"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more options are searched", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ") + ", which nothing declares, " + map[bool]string{true: "is", false: "are"}[len(names) == 1] + " searched"
}

// stagesOf gives every stage the worst verdict of its checks.
func stagesOf(results []check.Result) []check.Stage {
	order := []check.Verdict{0, check.Pass, check.Warn, check.Undetermined, check.Convention, check.Fail}
	var list []check.Stage
	for _, p := range pipeline {
		st := check.Stage{Name: p.name}
		for i := range results {
			res := &results[i]
			if v := res.Verdict; slices.Contains(p.groups, groupOf(res.Check)) && !(v == check.Pass && res.Formal && p.name != "masks") && slices.Index(order, v) > slices.Index(order, st.Verdict) {
				st.Verdict = v
			}
		}
		list = append(list, st)
	}
	return list
}

// next are the commands that go on from here.
func (s *session) next(found []check.Finding) []string {
	var list []string
	if len(found) > 0 {
		list = append(list, "verify explain "+found[0].Name)
	}
	return append(list, "verify dump "+s.where+" -v")
}

// origin names the run: the folder of its files, or the file.
func originOf(run Source) (where string, files int) {
	f, ok := run.(interface{ Paths() []string })
	if !ok {
		return "the run", len(run.Steps())
	}
	paths := f.Paths()
	dir := filepath.Dir(paths[0])
	for _, p := range paths {
		if filepath.Dir(p) != dir {
			return paths[0] + " …", len(paths)
		}
	}
	if len(paths) == 1 || dir == "." {
		return paths[0], len(paths)
	}
	return dir, len(paths)
}
