// Package symptom judges the numbers that a trainer logs: which of them cannot be, which are unhealthy, what they mean together, and
// what to look at next. The same rules judge the log of any trainer (verify log) and the trainers of this project while they run.
//
// A [Watch] takes one line after another and keeps what the rules need, however long the log. Findings have the ids of
// [plumbline/verify/bug], where their causes and fixes stand.
package symptom

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"plumbline/internal/format/runlog"
	"plumbline/verify/bug"
)

// Severity of a finding.
type Severity int

const (
	Note Severity = iota
	Warn
	Fail
)

func (s Severity) String() string { return [...]string{"NOTE", "WARN", "FAIL"}[s] }

// Kind says how firm a finding is.
type Kind int

const (
	Exact     Kind = iota // a text, or a number that cannot be
	Threshold             // a number above a limit
	Trend                 // of many numbers
)

// Finding is something that a log shows.
type Finding struct {
	*bug.Symptom
	Severity   Severity
	Kind       Kind
	Metric     string // as it is logged, "" for a text
	Step, Line int64  // the first bad ones; Step is −1 where there is none
	Evidence   string // the numbers
	Hypothesis bool   // fits, and other causes fit as well
	Or         []string
	Under      []*Finding // what follows from it
	Option     string     // of the run, that it is about; "" where it is about none
	Level      int        // of its numbers: see [Metric]
	Quantity   string     // id of what the metric is, "" where no dictionary has it
	order      int
}

// Watch takes the lines of one log.
type Watch struct {
	Config  map[string]string // options of the run, by name
	Placed  map[string]int64  // lines of the log that set them
	Vocab   float64           // size of the vocabulary, 0 if not known
	Program string
	Given   bool // the program was named, and not told by the names of the log

	series  []*series // by index of the reader's names
	named   map[string]*series
	columns int // names that have been resolved
	skipped int // metrics without series
	names   []string
	counts  []bool // whether a name is one of a step

	rows, numbers int64
	step          int64 // of the last row
	hasStep       bool
	offset        int64 // added to the batches of a new epoch
	epoch         int64
	forward, back int64 // steps that grew, and that fell
	backFrom      [2]int64
	backLine      int64
	resumed       bool // by a marker of the log
	span          [2]int64
	begin         int64 // the first step

	lastTime     time.Time // that a text began with
	generating   bool      // it was about generation
	texts        []hit
	seen         map[string]bool
	micro        microState
	families     []family
	sums         sums
	filtered     *point
	printed      bool  // an iter line: print with four digits
	unused       int64 // iterations without a micro-step that could be used
	unusedAt     point
	toldFresh    bool // rows say whether their prompt was made or cached
	smi          bool
	epochs       epochLines
	perEpoch     int // updates of an epoch over a rollout, 0 where no line tells
	perEpochLine int64
	pass         passes
	pairs        pairs
	table        bool // rows under a header, which names columns that may be empty in all of them
}

// New returns a watch of a log whose reader has these names.
func New() *Watch {
	return &Watch{Config: map[string]string{}, Placed: map[string]int64{}, named: map[string]*series{}, seen: map[string]bool{}, epoch: -1}
}

// hit is a text that was found.
type hit struct {
	id   string
	line int64
	step int64
	text string
}

// Add takes a row; names are those of its reader. understood is false for a text that no rule knows.
func (w *Watch) Add(row *runlog.Row, all []string) (understood bool) {
	switch row.Form {
	case runlog.Config:
		w.Config[row.Key], w.Placed[row.Key] = string(row.Text), row.Line
		return true
	case runlog.Progress:
		w.progress(row.Text)
		return true
	case runlog.Text:
		return w.text(row)
	}
	if row.Event == "resume" {
		w.resumed = true
		return true
	}
	w.resolve(all)
	w.rows++
	w.numbers += int64(len(row.Fields))
	w.smi = w.smi || row.Form == runlog.SMI
	w.table = w.table || row.Form == runlog.CSV
	if row.Form == runlog.Micro {
		w.addMicro(row, all)
		return true
	}
	if row.Form != runlog.Flow && row.Form != runlog.SMI {
		w.advance(row)
	} else if w.hasStep && row.Form == runlog.Flow {
		// printed before the line of its step
	} else if !w.hasStep {
		w.step = w.rows
	}
	stale, level := false, 0
	if row.Raw {
		level = 2
	}
	if row.Form == runlog.Events {
		level = 1
	}
	for _, f := range row.Fields {
		if w.names[f.Name] == "fresh_prompt" {
			w.toldFresh = true
			stale = f.Value == 0
		}
	}
	if v, ok := w.value(row, "skipped_micro_steps"); ok && v > 0 {
		if loss, ok := w.value(row, "loss"); ok && math.IsNaN(loss) { // no update: the numbers of this line do not exist
			if w.unused++; w.unused == 1 {
				w.unusedAt = point{step: w.step, line: row.Line}
			}
			return true
		}
	}
	var rate *series
	for _, f := range row.Fields {
		s := w.series[f.Name]
		if s == nil || stale && s.what != nil && s.what.ID == "qwen_grad" {
			continue
		}
		s.level = max(s.level, level)
		if !f.Missing {
			s.row = w.rows
			if s.what == learningRate {
				rate = s
			}
		}
		s.add(w.step, row.Line, f.Value, f.Missing, f.Half, row.Form.Shortest() && !f.Padded, s.what != nil || len(all) < mostSeries)
	}
	if rate != nil {
		for _, f := range row.Fields {
			if s := w.series[f.Name]; s != nil && !f.Missing {
				s.beside = rate.n
			}
		}
	}
	w.relations(row)
	w.addEpoch(func(name string) (float64, bool) { return w.value(row, name) })
	return true
}

// resolve makes series of names that are new, and tells the program by them.
func (w *Watch) resolve(all []string) {
	if w.columns == len(all) {
		return
	}
	w.names = all
	for _, name := range all[len(w.counts):] {
		w.counts = append(w.counts, stepNames[name])
	}
	for i := w.columns; i < len(all); i++ {
		name := all[i]
		if stepNames[name] || name == "epoch" || name == "schema" || name == "_timestamp" || name == "_runtime" || name == "micro" || name == "phase" || name == "fresh_prompt" {
			w.series = append(w.series, nil)
			w.named[name] = nil
			continue
		}
		if i >= mostSeries && !Known(name) {
			w.series = append(w.series, nil)
			w.skipped++
			continue
		}
		s := &series{name: name}
		w.series = append(w.series, s)
		w.named[name] = s
	}
	w.columns = len(all)
	if p := programOf(func(n string) bool {
		_, ok := w.named[n]
		if !ok {
			_, ok = w.named[capital(n)]
		}
		return ok
	}); p != "" && w.Program == "" {
		w.Program = p
	}
	for _, s := range w.series {
		if s == nil {
			continue
		}
		name := s.name
		if w.Program == "arc" {
			name = strings.ToLower(name)
		}
		s.known, s.what = lookup(w.Program, name), nil
		if s.known != nil {
			s.what = quantity[s.known.Quantity]
		}
	}
	w.families = w.findFamilies()
	w.sums = w.findSums()
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// advance takes the step of a row.
func (w *Watch) advance(row *runlog.Row) {
	step, found := int64(0), false
	batch := false
	for _, f := range row.Fields {
		name := w.names[f.Name]
		if w.counts[f.Name] && !math.IsNaN(f.Value) && math.Abs(f.Value) < 1<<53 {
			if found && (name == "batch" || name == "iter") {
				continue
			}
			step, found, batch = int64(f.Value), true, name == "batch"
		}
		if name == "epoch" && row.Form == runlog.Batch {
			w.epoch = int64(f.Value)
		}
	}
	if !found {
		if !w.hasStep {
			w.step = w.rows
			w.byEpoch(row)
		}
		return
	}
	if batch {
		if step+w.offset < w.step {
			w.offset = w.step + 1
		}
		step += w.offset
	}
	if !w.hasStep {
		w.hasStep, w.step, w.span, w.begin = true, step, [2]int64{step, step}, step
		return
	}
	switch {
	case step > w.step:
		w.forward++
	case step < w.step:
		if w.back++; w.back == 1 {
			w.backFrom, w.backLine = [2]int64{w.step, step}, row.Line
		}
	}
	w.step = step
	w.span = [2]int64{min(w.span[0], step), max(w.span[1], step)}
}

// progress takes the epoch of "Epoch 1 (All Fixes): …".
func (w *Watch) progress(text []byte) {
	if rest, ok := bytes.CutPrefix(text, []byte("Epoch ")); ok {
		if word, _, ok := bytes.Cut(rest, []byte(" ")); ok {
			if n, err := strconv.ParseInt(string(word), 10, 64); err == nil {
				w.epoch = n
			}
		}
	}
}

// of returns the series of a quantity with the most values: raw ones before printed ones.
func (w *Watch) of(id string) *series {
	var best *series
	for _, s := range w.series {
		if s != nil && s.what != nil && s.what.ID == id && s.n+s.bad > 0 && (best == nil || s.level > best.level || s.level == best.level && s.n > best.n) {
			best = s
		}
	}
	return best
}

// all returns every series of a quantity that has values.
func (w *Watch) all(id string) (list []*series) {
	for _, s := range w.series {
		if s != nil && s.what != nil && s.what.ID == id && s.n > 0 {
			list = append(list, s)
		}
	}
	return list
}

// option returns an option of the run by the end of its name: "kl_beta", "ppo.max_grad_norm".
func (w *Watch) option(names ...string) (string, bool) {
	key, ok := w.key(names...)
	return w.Config[key], ok
}

// key is the whole name of an option.
func (w *Watch) key(names ...string) (string, bool) {
	for _, name := range names {
		if _, ok := w.Config[name]; ok {
			return name, true
		}
		found := ""
		for k := range w.Config {
			if (strings.HasSuffix(k, "."+name) || strings.HasSuffix(k, "/"+name)) && (found == "" || k < found) {
				found = k
			}
		}
		if found != "" {
			return found, true
		}
	}
	return "", false
}

func (w *Watch) optionNumber(fallback float64, names ...string) float64 {
	if text, ok := w.option(names...); ok {
		if v, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
			return v
		}
	}
	return fallback
}

// Rows returns how many rows of numbers, and how many numbers, there were.
func (w *Watch) Rows() (rows, numbers int64) { return w.rows, w.numbers }

// Span returns the first and the last step.
func (w *Watch) Span() (from, to int64, ok bool) { return w.span[0], w.span[1], w.hasStep }

func number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) && a < 1e7:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case a >= 1e-3 && a < 1e5:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return fmt.Sprintf("%.3g", v)
}
