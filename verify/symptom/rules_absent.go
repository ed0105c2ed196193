package symptom

import "strings"

// filter finds the loss of 0 that transformers' Trainer logs where the loss is NaN: beside a gradient norm that is NaN, in one line or,
// where every number has a record of its own, in one step, or that is no number in any line.
func (j *judge) filter() {
	loss, norm := j.of("loss"), j.named["grad_norm"]
	if norm == nil {
		norm = j.named["train/grad_norm"]
	}
	switch {
	case j.filtered != nil:
		j.say("NAN-FILTERED", Fail, Exact, nil, "loss 0 and grad_norm NaN in one line").at(*j.filtered)
	case loss == nil || norm == nil || loss.zeros == 0:
	case norm.bad > 0 && loss.longest.from <= norm.firstBad.step && norm.firstBad.step <= loss.longest.to:
		j.say("NAN-FILTERED", Fail, Exact, loss, "%s is 0 and %s NaN in step %d", loss.name, norm.name, norm.firstBad.step).at(norm.firstBad)
	case loss.n >= 3 && loss.zeros == loss.n && j.empty(norm):
		j.say("NAN-FILTERED", Fail, Exact, loss, "%s is 0 in all %d lines and %s, which has a column, in none", loss.name, loss.n, norm.name).at(loss.first)
	}
}

// empty reports whether a metric is named and has no number in any line: null, None, or a column whose cells are empty. Loggers name what
// they were given, so that it was NaN.
func (j *judge) empty(s *series) bool {
	return s.n == 0 && s.bad == 0 && (s.missing > 0 || j.table && j.rows > 0)
}

// absent judges a metric without a number.
func (j *judge) absent(s *series) {
	if s.what == nil || !j.empty(s) {
		return
	}
	trainer := strings.HasPrefix(j.Program, "trl") // transformers' Trainer writes None where it has NaN
	lines := j.rows
	if s.missing > 0 {
		lines = s.missing
	}
	var f *Finding
	switch id := s.what.ID; {
	case trainer && lines >= 3 && (id == "loss" || id == "reward" || id == "grad_norm"):
		f = j.say("NONFINITE", Fail, Exact, s, "%s is None or empty in all %d lines: transformers' Trainer writes NaN so", s.name, lines)
	case id == "loss" || lines >= 3 && (id == "loss_policy" || id == "loss_value" || id == "reward" || id == "grad_norm"):
		f = j.say("NONFINITE", Warn, Exact, s, "%s is null or empty in all %d lines: loggers write NaN so", s.name, lines)
	case trainer && lines >= 3 && id == "reward_of":
		f = j.say("NONFINITE", Warn, Exact, s, "%s is null or empty in all %d lines: the function scored no completion", s.name, lines)
	default:
		return
	}
	f.Level = 2 // no other form of the log has a number of it
	if s.missing > 0 {
		f.at(s.firstMiss)
	}
}

// vanished finds a loss that is in every line and then in none, while another metric goes on in every line, or in every line with a
// learning rate: a NaN is an empty cell in the CSV of pandas, null in its JSON, and left out by some loggers.
func (j *judge) vanished() {
	every := func(s *series, until int64) bool { return s.n+s.bad == until && s.row == until }
	lr := j.of("lr")
	for _, s := range j.series {
		if s == nil || s.n == 0 || !s.isVital() && !(s.quantity() == "reward_of" && j.Program == "trl-grpo") {
			continue
		}
		if lr != nil && s.goneBeside(lr) {
			if loss := j.of("loss"); s.quantity() == "grad_norm" && loss != nil && loss.zero.n > 0 && loss.zero.from > s.last.step && j.filtered == nil {
				j.say("NAN-FILTERED", Fail, Exact, loss, "%s is 0 from step %d on, and %s is in no line after step %d", loss.name, loss.zero.from, s.name, s.last.step).at(point{step: loss.zero.from, line: loss.zero.line})
				return
			}
			j.gone(s, lr.n-s.beside, lr)
			return
		}
		if s.row > j.rows-leastGone || !every(s, s.row) {
			continue
		}
		for _, other := range j.series {
			if other != nil && other.what != nil && other.what.ID != "positive" && every(other, j.rows) { // an epoch or a time stands in lines of an evaluation too
				j.gone(s, j.rows-s.row, other)
				return
			}
		}
	}
}

const leastGone = 3 // lines without a metric that was in every line

func (j *judge) gone(s *series, lines int64, other *series) {
	j.say("NONFINITE", Warn, Exact, s, "%s is in every line to step %d and in none of the %d after it, which have %s: some loggers leave NaN out, and pandas writes it as an empty cell", s.name, s.last.step, lines, other.name).at(s.last)
}

// goneBeside reports whether s was in every line with a learning rate, and then in none of three or more.
func (s *series) goneBeside(lr *series) bool {
	return s != lr && s.beside == s.n+s.bad && lr.n-s.beside >= leastGone
}

// isVital reports whether a run cannot go on well with a NaN in this metric.
func (s *series) isVital() bool {
	switch s.quantity() {
	case "loss", "loss_policy", "loss_value", "grad_norm", "reward":
		return true
	}
	return false
}
