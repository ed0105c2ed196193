// Package dump judges what a trainer dumped: every number that can be recomputed is, and what is wrong gets a place, a reason
// and, if one is known, the bug.
//
// [Judge] reads the steps of a run one after another. Each check of package stage is judged on every step; what failed is then
// explained, on several steps at once: by another legal option (CONVENTION), by a bug of the catalogue, by arithmetic in 16
// bits, or not at all.
package dump

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/update"
)

// Options of a judgement.
type Options struct {
	Profile string               // the convention that is claimed; "": that of the files; "none": none, whatever they say
	Config  *convention.Declared // options of a configuration file, stronger than those of the files; nil: none
	Set     []string             // "adv.ddof=0", stronger than all else
	Infer   bool                 // search all options, whatever is declared

	FirstStep    bool // the first step of the run is the first update: demand what holds there
	FirstFailure bool // stop at the first step with a failure
	Deep         bool // try pairs of faults, too
	Redact       bool // no token ids in the results
	Brief        bool // causes in place of results, and which bugs would show
	Pictures     bool // with Brief: what a page draws

	Text func(id int) string // of a token in pictures; nil: its id

	Selection check.Selection
	Progress  func(pass string, done, total int)

	Leading bool // of a run of one step, explain what is found first only
}

// Report is what a judgement found.
type Report struct {
	Results   []check.Result
	Lines     []string // notes, what is missing, profiles that fit
	Taken     []string // what a configuration file declares
	Found     []string // by search, for each check that was open: "advantage/group: adv.ddof=1; not decided by these data: …"
	Overrides []string // where a stronger declaration takes the place of a weaker one
	Declared  bool     // something was declared: CONVENTION contradicts it
	Steps     int
	Coverage  *Coverage    // with [Options.Brief]
	Brief     *check.Brief // with [Options.Brief]
	Pictures  *check.Pictures
}

// UsageError is an option or profile that does not exist.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Infos describes the checks, in the order of the stages.
func Infos() []check.Info {
	infos := append(slices.Clone(inputInfos), engineInfo)
	for _, c := range all() {
		infos = append(infos, info(c))
	}
	return append(infos, update.Infos...)
}

func all() []*stage.Check { return slices.Concat(acrossChecks, stage.All(), firstStepChecks) }

// Source gives the steps of a run, one at a time: a [dump.Run] of files, or [Batches].
type Source interface {
	Steps() []int
	Batch(ctx context.Context, step int) (*dump.Batch, error)
	Common() dump.Meta
}

// Batches is a run in memory, in ascending order of steps that differ.
type Batches []*dump.Batch

// Steps returns the steps of the batches.
func (b Batches) Steps() []int {
	steps := make([]int, len(b))
	for i := range b {
		steps[i] = b[i].Meta.Step
	}
	return steps
}

// Batch returns the batch of a step.
func (b Batches) Batch(_ context.Context, step int) (*dump.Batch, error) {
	return b[slices.Index(b.Steps(), step)], nil
}

// Common returns the metadata of the first batch.
func (b Batches) Common() dump.Meta { return b[0].Meta }

// judgeSteps judges some steps of the run, in order.
func (s *session) judgeSteps(steps []int) error {
	for i, step := range steps {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		v, n, err := s.at(step)
		if err != nil {
			return err
		}
		if err := s.step(v, n, step == s.rollout.origin); err != nil {
			return err
		}
		if w := s.ledger.write; w != nil {
			if err := w.flush(); err != nil {
				return err
			}
		}
		if s.o.Progress != nil {
			s.o.Progress("judging", i+1, len(steps))
		}
		if s.o.FirstFailure && s.failed() {
			return nil
		}
	}
	return s.endRollouts()
}

// settle reads the steps whose outcomes the results show, where only their numbers are known.
func (s *session) settle() error {
	for _, t := range s.tracks {
		if t.worst != nil && t.worstOf.whole != nil {
			t.worst = light(s.complete(t.worstOf))
		}
	}
	return s.err
}

// session is a judgement under way.
type session struct {
	ctx      context.Context
	ledger   *ledger
	err      error // of reading a step, the first one
	run      Source
	o        Options
	profile  *convention.Profile // nil: none was declared
	closed   *convention.Profile // the same where the files name the framework that wrote them: what it cannot do is no convention
	set      *convention.Set     // what is declared outside the files
	tracks   []*track            // of the selected checks
	lines    []string
	override []string
	declared bool
	steps    []int
	said     map[string]bool   // lines that are there already
	remarks  map[string]int    // how often a thing was to be said
	present  map[string]bool   // tensors that some step had
	scalars  map[string]string // logged numbers, and the checks that read them
	suggest  *convention.Profile
	algo     string

	minis       int    // steps over which the rows of a rollout were shuffled, where nobody says it
	shown       string // what shows it
	rollout     rollout
	generations map[int]generationCounts // of the generation batches, by their first steps
	passes      map[int]int              // by the steps that are declared to make a pass over the rows, those that do
	history     history
	formats     numberFormats
	input       input

	overview  *overview    // nil: the steps were not looked at yet
	kept      map[int]unit // steps that are judged again and again under other options
	held      int          // numbers that were held against bugs on top of options that nobody declares
	healings  int          // searches of batches with a bug taken out of them
	rowRatios bool         // the losses of tokens are of ratios of rows that no configuration makes
	length    float64      // that sums over tokens are divided by, where nobody declares it and the numbers give it; 0: not known
	weights   []any        // of the reward functions, where nobody declares them and the scores give them
	weighed   bool         // they were looked for in several steps at once

	common dump.Meta // of the first file
	where  string    // the folder of the files
	files  int

	optimizer     optimizer
	exercise      idleness
	samples       []sample // to try every bug on
	sampledRatios bool     // one of them has ratios other than 1
}

func newSession(run Source, o Options) (*session, error) {
	s := &session{ctx: context.Background(), ledger: &ledger{}, run: run, o: o, set: &convention.Set{}, said: map[string]bool{}, remarks: map[string]int{}, present: map[string]bool{}, scalars: map[string]string{}}
	common := run.Common()
	name := o.Profile
	if name == "" && !o.Infer {
		name = common.Profile
	}
	s.common, s.algo = common, common.Algorithm
	s.where, s.files = originOf(run)
	s.suggest = suggestion(common)
	if mixed, ok := run.(interface{ Mixed() []string }); ok {
		s.input.mixed = mixed.Mixed()
	}
	switch {
	case o.Profile == NoProfile:
	case name != "":
		p, warning, err := convention.Lookup(name)
		if files, ok := run.(interface{ Files() []dump.File }); err != nil && o.Profile == "" && ok {
			return nil, format.Malformed(files.Files()[0].Path, `key "profile"`, "%v", err)
		} else if err != nil {
			return nil, &UsageError{err}
		}
		s.profile = p
		s.say("profile: " + p.Name)
		s.claimed(name, warning, common)
	case !o.Infer:
		s.fromFiles(common)
	}
	if common.Framework != "" && o.Profile == "" { // a profile that the user names may be the wrong one
		s.closed = s.profile
	}
	if o.Config != nil {
		s.set, _ = s.set.Over(o.Config.Set)
		s.understood("--config", o.Config)
		s.unknownOptions("--config", "", o.Config, false)
	}
	given := map[string]bool{}
	for _, assignment := range o.Set {
		name, text, ok := strings.Cut(assignment, "=")
		if !ok {
			return nil, &UsageError{fmt.Errorf("--set %s: want OPTION=VALUE", assignment)}
		}
		if given[name] {
			return nil, &UsageError{fmt.Errorf("--set %s: the option is given twice", name)}
		}
		given[name] = true
		one, err := convention.Assign(name, text, "--set")
		if err != nil {
			return nil, &UsageError{fmt.Errorf("--set %w", err)}
		}
		var changed []convention.Override
		s.set, changed = s.set.Over(one)
		s.overridden(changed)
	}
	for _, c := range all() {
		// What is searched depends on what the checks before have found, selected or not.
		if takes := o.Selection.Takes(c.ID); takes || s.profile == nil {
			s.tracks = append(s.tracks, &track{check: c, silent: !takes})
		}
	}
	return s, nil
}

func (s *session) say(line string) {
	if !s.said[line] {
		s.said[line] = true
		s.lines = append(s.lines, line)
	}
}

// options returns the set under which a batch is judged: profile < options in the dump < --config < --set.
func (s *session) options(v *view) (*convention.Set, error) {
	b, set := v.b, &convention.Set{}
	if s.profile != nil {
		set = convention.FromProfile(s.profile)
	}
	var list []convention.NameValue
	for _, opt := range b.Meta.Options {
		list = append(list, convention.NameValue{Name: opt.Name, Value: opt.Value})
	}
	framework := b.Meta.Framework
	if framework != "" { // an algorithm alone is none
		framework += " " + b.Meta.Algorithm
	}
	version := b.Meta.Version
	if s.profile != nil && framework != "" && !convention.HasTable(framework) {
		// A program of its own that follows a framework has the framework's words for its options; its version is another one's.
		s.say(fmt.Sprintf("the options of %.64q are read by the names of %s, whose profile is declared", framework, s.profile.Framework))
		framework, version = s.profile.Framework+" "+s.profile.Algorithm, ""
	}
	d, err := convention.Declare(framework, version, list, "the dump")
	if err != nil {
		return nil, format.Malformed(b.Files[0].Name, "options", "%v", err)
	}
	s.understood("the dump", d)
	s.unknownOptions("the dump", framework, d, true)
	declared := d.Set
	if s.o.Infer {
		declared = declared.FactsOnly()
	}
	s.declared = s.declared || s.profile != nil || len(declared.Names()) > 0 || len(s.set.Names()) > 0
	for _, stronger := range []*convention.Set{declared, s.set} {
		var changed []convention.Override
		set, changed = set.Over(stronger)
		s.overridden(changed)
	}
	if s.profile != nil {
		set = set.WithCompanions(s.profile.Framework+" "+s.profile.Algorithm, s.profile.Name)
		placed, words := placeOfKL(b, set, s.profile)
		if set = placed; words != "" {
			s.say(words)
		}
	}
	if n := spanOf(set); n > 1 {
		if pass := s.passOf(n); pass < n {
			set = set.WithFact("num_mini_batches", float64(pass))
			s.say(fmt.Sprintf("the rows of a rollout come again after %s: of the %d declared, the others are epochs", steps(pass, "step"), n))
		}
	}
	if s.minis > 1 && stage.Updates(set) == 1 {
		if _, said := set.Fact("num_mini_batches"); !said {
			set = set.WithFact("num_mini_batches", float64(s.minis))
			s.say(fmt.Sprintf("the rows of a rollout are shuffled over %d steps, as %s show", s.minis, s.shown))
		}
	}
	set = s.withGeneration(v, set)
	if s.profile == nil {
		set = s.solved(v.b.Meta.Step, s.weighted(v, masked(set)))
	}
	set = s.lengthened(b, set)
	for _, n := range b.Notes {
		s.remark("note: ", n)
	}
	for _, m := range b.Missing {
		s.remark(missing, m)
	}
	return set, nil
}

// remark says what there is to say of the files of a step, the same of many steps a few times only.
func (s *session) remark(kind, line string) {
	_, text, ok := strings.Cut(line, ": ") // behind the files
	if !ok || kind == missing {
		text = "files that are missing"
	}
	if line = kind + line; s.said[line] {
		return
	}
	if s.remarks[text]++; s.remarks[text] <= fewRemarks {
		s.say(line)
		return
	}
	s.said[line] = true
}

const (
	missing    = "missing: "
	fewRemarks = 5 // steps of which one thing is said
)

// understood says what of a declaration was not taken, and of a configuration file what was.
func (s *session) understood(what string, d *convention.Declared) {
	for _, list := range []struct {
		what  string
		words []string
	}{{"options of " + what + " that nobody knows", d.Unknown}, {"options of " + what + " that change the numbers and that no check expresses", d.Beyond},
		{"options of " + what + " that mean different things to the trainers that have them, and so set nothing", d.Ambiguous}} {
		if len(list.words) > 0 {
			s.say(list.what + ": " + strings.Join(list.words, ", "))
		}
	}
	if d.Warning != "" {
		s.say("WARN: " + d.Warning)
	}
}

// overridden takes down which declarations gave way to stronger ones.
func (s *session) overridden(changed []convention.Override) {
	for _, c := range changed {
		line := fmt.Sprintf("%s %s, by %s, not %s, by %s", c.Option, c.To, c.Now, c.From, c.Was)
		if !s.said[line] {
			s.said[line] = true
			s.override = append(s.override, line)
		}
	}
}

// step judges one batch.
func (s *session) step(v *view, n *StepNotes, first bool) error {
	set, err := s.options(v)
	if err != nil {
		return err
	}
	s.steps = append(s.steps, n.Step)
	for _, name := range n.Names {
		s.present[name] = true
	}
	s.input.look(n, &v.b.Meta)
	s.exercise.add(n)
	s.logs(v.b)
	if s.o.Brief {
		s.watch(v, set)
	}
	s.across(v, n, set)
	span := spanOf(set)
	for _, t := range s.order(v.b) {
		if isAcross(t.check) {
			continue
		}
		if isFirstStep(t.check) && !(first && s.o.FirstStep) {
			continue
		}
		if t.pooled = t.pooled || t.check.Stage == convention.Advantage && span > 1; t.pooled && span > 1 {
			continue
		}
		t.add(v, set, s)
	}
	if err := s.gather(v, set, span); err != nil {
		return err
	}
	s.observe(v, n, set)
	if s.ledger.write == nil { // a shard has not the steps before its own: who merges reads the first ones
		if err := s.optimizer.see(v, n, set); err != nil {
			return err
		}
	}
	return s.err
}

// logs takes down which checks read the logged numbers of a step.
func (s *session) logs(b *dump.Batch) {
	const most = 256
	for i := range b.Files {
		for _, x := range b.Files[i].Scalars {
			if _, known := s.scalars[x.Name]; !known && len(s.scalars) < most {
				s.scalars[x.Name] = stage.ReadsScalar(b.Meta.Framework, x.Name)
			}
		}
	}
}

// unread returns the logged numbers that no check reads, or none for want of what they are made of.
func (s *session) unread() (names []string) {
	for name, id := range s.scalars {
		if s.optimizer.set != nil && slices.Contains(ofSteps, name[strings.LastIndexByte(name, '/')+1:]) {
			continue
		}
		if id == "" || slices.ContainsFunc(s.tracks, func(t *track) bool { return t.check.ID == id && !t.seen }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *session) failed() bool {
	return slices.ContainsFunc(s.tracks, func(t *track) bool { return !t.silent && len(t.failing) > 0 })
}
