package symptom

import (
	"math"

	"plumbline/internal/format/runlog"
)

// pairs counts the steps that stand in two lines one after the other with another reward in each. TRL and verl write one line with a reward
// for a step; programs that write one for each epoch or micro-batch are not looked at, nor records of TensorBoard, each of one number.
type pairs struct {
	has         bool
	step        int64
	reward      float64
	steps       int64
	twins, more int64 // steps with two lines, and lines beyond them
	lines       int64 // of the last step
	first       point
}

var pairedBy = map[string][]string{"trl-grpo": {"reward", "train/reward"}, "verl": {"critic/score/mean"}}

// pair takes a line with a reward.
func (w *Watch) pair(row *runlog.Row) {
	if !w.hasStep || row.Form == runlog.Events {
		return
	}
	for _, name := range pairedBy[w.Program] {
		v, ok := w.value(row, name)
		if !ok || math.IsNaN(v) {
			continue
		}
		p := &w.pairs
		switch {
		case !p.has || w.step != p.step:
			p.steps++
			p.lines = 1
		case v != p.reward:
			if p.lines++; p.lines == 2 {
				if p.twins++; p.twins == 1 {
					p.first = point{step: w.step, line: row.Line}
				}
			} else {
				p.more++
			}
		}
		p.has, p.step, p.reward = true, w.step, v
		return
	}
}

// twice reports whether two runs, or two ranks that log for themselves, stand in one file.
func (p *pairs) twice() bool { return p.twins >= 5 && 10*p.twins >= 8*p.steps && p.more == 0 }
