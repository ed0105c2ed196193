package symptom

import (
	"math"

	"plumbline/internal/format/runlog"
)

// microState is what the [Micro] lines of the GRPO notes say: phases of a micro-step, and the time of an iteration.
type microState struct {
	at       [5]float64 // seconds of lines 0 to 4 of the micro-step under way
	rewards  float64
	spread   float64
	phases   [4]series // fetch, sampling, scoring, loss: seconds
	std      series    // of the rewards of a micro-step
	policy   series
	kl       series
	total    series
	sum      float64 // seconds of the phases since the last iteration ended
	share    series  // of the iteration that the phases explain
	lines    int64
	mismatch *point // total ≠ pg + kl
}

var phaseNames = [...]string{"fetching the batch", "sampling", "scoring", "the loss"}

// addMicro takes a [Micro] line, or line 5.
func (w *Watch) addMicro(row *runlog.Row, all []string) {
	m := &w.micro
	get := func(name string) (float64, bool) {
		for _, f := range row.Fields {
			if all[f.Name] == name && !f.Missing {
				return f.Value, true
			}
		}
		return math.NaN(), false
	}
	halfOf := func(name string) float64 {
		for _, f := range row.Fields {
			if all[f.Name] == name {
				return f.Half
			}
		}
		return 0
	}
	phase, _ := get("phase")
	now, timed := get("time")
	m.lines++
	step := w.microStep()
	put := func(s *series, name string, v float64, half float64) {
		s.name = name
		s.add(step, row.Line, v, false, half, false, true)
	}
	switch int(phase) {
	case 0, 1, 2, 3, 4:
		k := int(phase)
		m.at[k] = now
		if k == 0 && timed {
			put(&m.phases[0], "time", now, 0)
			m.sum += now
		}
		if k >= 2 && timed {
			took := now
			if before := m.at[k-1]; k > 2 && now >= before {
				took = now - before
			}
			put(&m.phases[k-1], "time", took, 0)
			m.sum += took
			if k == 4 {
				m.sum += took // the backward pass, which no line has, costs about as much as the two forward passes
			}
		}
		if k == 3 {
			if r, ok := get("rewards"); ok {
				m.rewards = r
			}
			if s, ok := get("rewards_std"); ok {
				m.spread = s
				put(&m.std, "rewards", s, halfOf("rewards_std"))
			}
		}
		if k == 4 {
			pg, ok1 := get("pg_loss")
			kl, ok2 := get("kl")
			total, ok3 := get("total")
			if ok1 {
				put(&m.policy, "pg_loss", pg, halfOf("pg_loss"))
			}
			if ok2 {
				put(&m.kl, "kl", kl, halfOf("kl"))
			}
			if ok3 {
				put(&m.total, "total", total, halfOf("total"))
			}
			if ok1 && ok2 && ok3 && !(math.Abs(total-pg-kl) <= halfOf("total")+halfOf("pg_loss")+halfOf("kl")+1e-6*(math.Abs(pg)+math.Abs(kl))) && m.mismatch == nil && !math.IsNaN(total) {
				m.mismatch = &point{step: step, line: row.Line, mean: total, min: pg, max: kl}
			}
		}
	}
}

// microStep is the iteration under way: its line is printed after its micro-steps.
func (w *Watch) microStep() int64 {
	if !w.hasStep {
		return 0
	}
	return w.step + 1
}

// endIteration is called for an iter line with its time in seconds.
func (w *Watch) endIteration(line int64, seconds float64) {
	if m := &w.micro; m.sum > 0 && seconds > 0 {
		m.share.add(w.step, line, m.sum/seconds, false, 0, false, true)
		m.sum = 0
	}
}
