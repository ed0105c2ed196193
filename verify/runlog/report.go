package runlog

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format/runlog"
	"plumbline/verify/check"
	"plumbline/verify/symptom"
)

// checks are the kinds of findings.
var checks = []check.Info{
	{Name: "log/message", Doc: "messages that name a bug\n\nTexts of the four guides and of torch, transformers and bitsandbytes; upper and lower case and runs of spaces do not count.",
		Source: "the guides of the four systems; messages of torch and bitsandbytes", Fix: "as the finding says"},
	{Name: "log/finite", Doc: "every logged number is finite\n\nNaN and infinity in the spellings of JSON, Python, C and quotes; a loss of 0.0 beside a gradient norm that is NaN.",
		Source: "IEEE 754; transformers, logging_nan_inf_filter", Fix: "find the first tensor that is not finite"},
	{Name: "log/range", Doc: "no number is outside the range of its formula\n\nk2, k3 ≥ 0; 0 ≤ H ≤ ln V; shares in [0, 1]; deviations, norms and lengths ≥ 0.",
		Source: "Schulman 2020, k3 = e^d − d − 1; the definitions in the dictionary of metrics", Fix: "compare the code of the metric with its formula"},
	{Name: "log/sum", Doc: "numbers of one line agree with each other\n\nloss = main + critic, total = pg_loss + kl, reward = Σ w·r, min ≤ mean ≤ max, each up to the digits that were written.",
		Source: "the log formats of the four systems; TRL, reward_weights", Fix: "log the terms as they enter the sum"},
	{Name: "log/steps", Doc: "steps run forwards\n\nResumed, duplicated and interleaved logs are told apart.", Source: "the logs' own steps", Fix: "one file per run"},
	{Name: "log/limit", Doc: "numbers stay within what is healthy\n\nLimits of the guides: clip fractions, gradient norms, KL, spread of rewards, memory.",
		Source: "the guides of the four systems", Fix: "as the finding says"},
	{Name: "log/trend", Doc: "numbers move as they should\n\nLeast-squares slopes over the run, first against last third; ten points are the least.", Source: "the guides of the four systems", Fix: "as the finding says"},
	{Name: "log/time", Doc: "phases add up to the time of a step\n\nBudgets of the guides; time that no phase logs; iteration 1 against iteration 0.", Source: "the guide of the GRPO system", Fix: "time the phase that is missing"},
}

// Infos describes the checks.
func Infos() []check.Info { return checks }

// checkOf returns the check that a finding is of.
func checkOf(f *symptom.Finding) string {
	switch f.ID {
	case "NONFINITE", "NAN-FILTERED", "D10", "H7e":
		return "log/finite"
	case "KL-NEGATIVE", "ENTROPY-RANGE", "SHARE-RANGE", "SIGN-RANGE", "BOUND-RANGE":
		return "log/range"
	case "LOSS-SUM", "REWARD-SUM", "ORDER-RANGE":
		return "log/sum"
	case "STEPS-BACK", "STEPS-RESUMED", "TWO-RUNS":
		return "log/steps"
	case "A2", "B5", "B6", "B7", "B8", "B9", "H7d", "STALL":
		return "log/time"
	case "C3":
		if f.Metric != "" {
			return "log/finite"
		}
	}
	switch {
	case f.Metric == "" && f.Kind == symptom.Exact:
		return "log/message"
	case f.Kind == symptom.Trend:
		return "log/trend"
	}
	return "log/limit"
}

var verdicts = map[symptom.Severity]check.Verdict{symptom.Fail: check.Fail, symptom.Warn: check.Warn, symptom.Note: check.Note}

// report makes results and the short form of what logs show.
func report(logs []*log, paths []string, o Options) *Report {
	r := &Report{Brief: &check.Brief{}}
	b := r.Brief
	var found []*symptom.Finding
	raw := map[string]int{} // the best level of every quantity
	for _, l := range logs {
		known, _ := l.watch.Metrics(1)
		for _, m := range known {
			if m.Quantity != nil {
				raw[m.Quantity.ID] = max(raw[m.Quantity.ID], m.Level)
			}
		}
	}
	where := map[*symptom.Finding]string{}
	for _, l := range logs {
		for _, f := range l.watch.Findings() {
			if f.Metric != "" && f.Level < raw[f.Quantity] {
				for _, u := range f.Under { // what lies below it may be of other numbers
					if u.Level >= raw[u.Quantity] {
						where[u] = l.path
						found = append(found, u)
					}
				}
				continue
			}
			where[f] = l.path
			for _, u := range f.Under {
				where[u] = l.path
				found = append(found, u)
			}
			f.Under = nil
			found = append(found, f)
		}
	}
	if o.stalled > 0 && len(logs) > 0 {
		f := symptom.Stall(o.stalled.Seconds())
		where[f] = logs[0].path
		found = append(found, f)
	}
	found = slices.DeleteFunc(found, func(f *symptom.Finding) bool { return !o.Selection.Takes(checkOf(f)) })
	found = symptom.Rank(found)
	verdictOf := map[string]*symptom.Finding{} // by path and metric
	several := len(logs) > 1
	for _, f := range found {
		first := len(r.Results)
		r.add(f, where, several, o, logs, verdictOf)
		for _, u := range f.Under {
			r.add(u, where, several, o, logs, verdictOf)
		}
		if f.Severity > symptom.Note {
			c := finding(f, where[f], several)
			for k := first; k < len(r.Results); k++ {
				if r.Results[k].Verdict != check.Note {
					c.Results = append(c.Results, k)
				}
			}
			b.Findings = append(b.Findings, c)
		}
	}
	var notes []string
	for _, f := range found {
		if f.Severity == symptom.Note {
			notes = append(notes, fmt.Sprintf("%s: %s. %s", f.ID, f.Title, f.Evidence))
		}
	}
	r.metrics(logs, several, o, verdictOf, raw)
	r.charts(logs, found, where)
	var unknown []string
	for _, l := range logs {
		r.input(l)
		_, more := l.watch.Metrics(1)
		for _, m := range more {
			if m.Quantity == nil && !symptom.Known(m.Name) && !slices.Contains(unknown, m.Name) {
				unknown = append(unknown, m.Name)
			}
		}
	}
	if len(notes) > 0 {
		r.Lists = append(r.Lists, List{"notes", notes})
	}
	if len(unknown) > 0 {
		r.Lists = append(r.Lists, List{"names that are in no dictionary, judged for NaN where they name a loss", unknown})
	}
	r.head(logs, paths, unknown, notes)
	return r
}

// add adds the result of a finding.
func (r *Report) add(f *symptom.Finding, where map[*symptom.Finding]string, several bool, o Options, logs []*log, verdictOf map[string]*symptom.Finding) {
	id := checkOf(f)
	if f.Metric != "" && f.Severity > symptom.Note {
		if old := verdictOf[where[f]+"\x00"+f.Metric]; old == nil || f.Severity > old.Severity {
			verdictOf[where[f]+"\x00"+f.Metric] = f
		}
	}
	subject := f.Metric
	if several {
		subject = strings.TrimSpace(subject + " " + filepath.Base(where[f]))
	}
	res := check.Result{Check: id, Subject: subject, Verdict: verdicts[f.Severity], Reason: f.ID + ": " + f.Title, Compared: 1, Fix: f.Fix, Demanded: o.Selection.Demands(id),
		Explanations: []check.Explanation{{Fault: f.ID, Title: f.Title, Evidence: f.Evidence, Cause: f.Cause, Rows: f.Rows, Lead: f.Hypothesis}}, Where: place(f)}
	res.At = at(f, where[f], o, logs)
	if f.Better != "" {
		res.Details = append(res.Details, "better cause: "+f.Better)
	}
	if f.Dump != "" {
		res.Details = append(res.Details, "dump: "+dumpOf(f))
	}
	if f.Severity > symptom.Note && f.Step >= 0 {
		res.Steps = &check.Steps{Judged: 1, Bad: 1, First: int(f.Step)}
	}
	r.Results = append(r.Results, res)
}

// at is the line of a configuration or of a log that a finding is about; stdin and event files have none.
func at(f *symptom.Finding, path string, o Options, logs []*log) *check.FileLine {
	if f.Option != "" {
		if l, ok := o.Places[f.Option]; ok {
			return &l
		}
		for _, l := range logs {
			if l.path != path {
				continue
			}
			if line := l.watch.Placed[f.Option]; line > 0 {
				return &check.FileLine{Path: path, Number: int(line)}
			}
			if other, ok := l.from[f.Option]; ok {
				return &other
			}
		}
		return nil
	}
	if f.Line <= 0 || path == "stdin" || strings.Contains(filepath.Base(path), "tfevents") || strings.HasSuffix(path, ".json") {
		return nil
	}
	return &check.FileLine{Path: path, Number: int(f.Line)}
}

func place(f *symptom.Finding) string {
	switch {
	case f.Step >= 0 && f.Line > 0:
		return fmt.Sprintf("step %d, line %d", f.Step, f.Line)
	case f.Line > 0:
		return fmt.Sprintf("line %d", f.Line)
	}
	return ""
}

// dumpOf says which step to dump.
func dumpOf(f *symptom.Finding) string {
	if f.Dump == "" || f.Step < 0 {
		return f.Dump
	}
	return fmt.Sprintf("%s (first seen in step %d)", f.Dump, f.Step)
}

func finding(f *symptom.Finding, path string, several bool) check.Finding {
	c := check.Finding{Verdict: verdicts[f.Severity], Name: f.ID, Title: f.Title, Pattern: f.Hypothesis || f.Kind == symptom.Trend, Evidence: f.Evidence, Fix: f.Fix, First: int(f.Step), Cause: f.Cause, Better: f.Better, Dump: dumpOf(f)}
	var at []string
	if f.Metric != "" {
		at = append(at, f.Metric)
	}
	if p := place(f); p != "" {
		at = append(at, p)
	}
	if several {
		at = append(at, filepath.Base(path))
	}
	c.Where = strings.Join(at, ", ")
	c.Seen = []string{checkOf(f)}
	for _, u := range f.Under {
		c.Follows = append(c.Follows, fmt.Sprintf("%s (%s)", u.ID, u.Title))
		if id := checkOf(u); !slices.Contains(c.Seen, id) {
			c.Seen = append(c.Seen, id)
		}
	}
	c.Or = append(c.Or, f.Or...)
	return c
}

// metrics adds a row for every metric of the dictionary, and a result for those that pass.
func (r *Report) metrics(logs []*log, several bool, o Options, verdictOf map[string]*symptom.Finding, raw map[string]int) {
	names := map[string]int{}
	for _, l := range logs {
		known, _ := l.watch.Metrics(1)
		for _, m := range known {
			if m.Level >= raw[m.Quantity.ID] {
				names[m.Name]++
			}
		}
	}
	for _, l := range logs {
		known, unknown := l.watch.Metrics(16)
		finite := 0
		for _, m := range append(slices.Clone(known), unknown...) {
			if m.Quantity != nil || symptom.NamesLoss(m.Name) {
				finite += int(m.N)
			}
			f := verdictOf[l.path+"\x00"+m.Name]
			row := check.Metric{Name: m.Name, Spark: m.Spark, Verdict: check.Pass, First: -1, Text: m.Sentence(), Trap: m.Trap}
			if names[m.Name] > 1 {
				row.Name = filepath.Base(l.path) + ": " + m.Name
			}
			if m.Quantity != nil {
				row.Formula = m.Quantity.Formula
			}
			if f != nil {
				row.Verdict, row.First, row.Text = verdicts[f.Severity], f.Step, f.ID+", "+f.Title
			} else if m.Quantity == nil || m.Quantity.ID == "positive" || m.Quantity.ID == "share" || m.Level < raw[m.Quantity.ID] {
				continue // or another log has it with all digits
			}
			r.Brief.Metrics = append(r.Brief.Metrics, row)
			if f == nil && o.Selection.Takes("log/range") && m.Quantity.Range != "" && m.N > 0 {
				res := check.Result{Check: "log/range", Subject: row.Name, Verdict: check.Pass, Compared: int(m.N), Formula: m.Quantity.Formula, Reason: m.Sentence(), Demanded: o.Selection.Demands("log/range")}
				if !math.IsInf(m.Quantity.High, 1) {
					res.Metric, res.Measured, res.Limit = m.Name, m.Max, m.Quantity.High
				}
				r.Results = append(r.Results, res)
			}
		}
		if finite > 0 && o.Selection.Takes("log/finite") && !slices.ContainsFunc(r.Results, func(c check.Result) bool { return c.Check == "log/finite" && c.Verdict == check.Fail }) {
			r.Results = append(r.Results, check.Result{Check: "log/finite", Subject: filepath.Base(l.path), Verdict: check.Pass, Compared: finite, Reason: fmt.Sprintf("%d numbers", finite), Demanded: o.Selection.Demands("log/finite")})
		}
	}
}

// input describes a file: how its lines were read, and how many were not understood.
func (r *Report) input(l *log) {
	var how []string
	for f, n := range l.reader.Count {
		if n > 0 && runlog.Form(f) != runlog.Text {
			how = append(how, fmt.Sprintf("%d %s", n, runlog.Form(f)))
		}
	}
	if text := l.reader.Count[runlog.Text] - l.other; text > 0 {
		how = append(how, fmt.Sprintf("%d messages", text))
	}
	what := fmt.Sprintf("%d lines: %s; %d not understood", l.reader.Lines, strings.Join(how, ", "), l.other)
	if len(how) == 0 {
		what = fmt.Sprintf("%d lines; %d not understood", l.reader.Lines, l.other)
	}
	if l.reader.Cut {
		what += "; the last line is cut"
	}
	r.Inputs = append(r.Inputs, Input{l.path, l.size, what})
	if len(l.sample) > 0 {
		r.Lists = append(r.Lists, List{"lines of " + filepath.Base(l.path) + " that were not understood", l.sample})
	}
}

var programs = map[string]string{"shielded": "shielded PPO", "grpo": "GRPO of a masked model", "ppo": "PPO with a value head", "arc": "ARC solver", "trl-grpo": "TRL, GRPO", "trl-ppo": "TRL, PPO", "verl": "verl", "openrlhf": "OpenRLHF", "nemo": "NeMo-RL"}

// head is what was read, and what was left out.
func (r *Report) head(logs []*log, paths []string, unknown, notes []string) {
	b := r.Brief
	var from, to int64
	have := false
	var numbers int64
	for _, l := range logs {
		_, n := l.watch.Rows()
		numbers += n
		if a, z, ok := l.watch.Span(); ok {
			if !have {
				from, to, have = a, z, true
			}
			from, to = min(from, a), max(to, z)
		}
	}
	for i, l := range logs {
		if i == 6 && len(logs) > 7 {
			b.Head = append(b.Head, fmt.Sprintf("… and %d more files (-v)", len(logs)-i))
			break
		}
		program := cmp.Or(programs[l.watch.Program], "program not told by its names")
		b.Head = append(b.Head, fmt.Sprintf("%s  %s  %s", filepath.Base(l.path), program, r.Inputs[i].What))
	}
	steps := ""
	if have {
		steps = fmt.Sprintf(", steps %d to %d", from, to)
	}
	b.Clean = fmt.Sprintf("%s: %d metrics, %d numbers%s: nothing impossible, nothing unhealthy", strings.Join(shortPaths(paths), " "), len(b.Metrics), numbers, steps)
	if len(b.Metrics) == 0 {
		b.Clean = fmt.Sprintf("%s: no metric of the dictionary among %d numbers%s: names with loss in them were looked at for NaN, nothing else was", strings.Join(shortPaths(paths), " "), numbers, steps)
	}
	if len(notes) > 0 {
		b.Clean += fmt.Sprintf("; %s (-v)", notesIn(len(notes)))
	}
	b.Coverage = "a log shows no gradient, no mask and no denominator: verify dump recomputes them from one dumped step"
	if len(unknown) > 0 {
		list := unknown
		if len(list) > 4 {
			list = list[:4]
		}
		b.Coverage = fmt.Sprintf("%d names are in no dictionary and judged for NaN where they name a loss: %s%s. ", len(unknown), strings.Join(list, ", "), map[bool]string{true: ", …"}[len(unknown) > 4]) + b.Coverage
	}
	for i, f := range b.Findings {
		if i == 2 {
			break
		}
		b.Next = append(b.Next, "verify explain "+f.Name)
	}
	if len(b.Findings) > 0 {
		b.Next = append(b.Next, "verify export trl|verl|openrlhf|torch   prints a hook that dumps a step")
	}
}

func shortPaths(paths []string) (list []string) {
	for i, p := range paths {
		if i == 3 && len(paths) > 4 {
			return append(list, fmt.Sprintf("and %d more", len(paths)-i))
		}
		list = append(list, filepath.Base(p))
	}
	return list
}

func notesIn(n int) string {
	if n == 1 {
		return "1 note"
	}
	return fmt.Sprintf("%d notes", n)
}
