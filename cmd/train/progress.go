package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"plumbline/internal/train"
)

// How often a rollout that is under way is shown, on a terminal and in a log.
const (
	drawEvery = 200 * time.Millisecond
	lineEvery = 30 * time.Second
)

// progress returns a function that shows on w how far a run is. On a terminal, live, that is a line which is drawn over again and
// taken away when the last step is made. Elsewhere the lines of the steps say it, and a line for every half minute of a rollout.
func progress(w io.Writer, live bool, now func() time.Time) func(train.Progress) {
	return (&meter{w: w, live: live, now: now}).show
}

// meter is what progress knows.
type meter struct {
	w       io.Writer
	live    bool
	now     func() time.Time
	started time.Time // when the run began
	first   int       // steps that were made then: a run that goes on made them long ago
	shown   time.Time // when something was drawn last
	step    time.Time // when the step under way began
}

func (m *meter) show(p train.Progress) {
	at := m.now()
	drawing := p.Tokens > 0
	if m.started.IsZero() {
		m.started, m.first = at, p.Step
	}
	every := lineEvery
	if m.live {
		every = drawEvery
	}
	switch {
	case drawing && at.Sub(m.shown) < every:
		return
	case !drawing:
		m.step = at
		if !m.live {
			m.shown = at // the line of the step was just printed
			return
		}
	}
	m.shown = at
	if !m.live {
		fmt.Fprintf(m.w, "step %d/%d: %s\n", p.Step+1, p.Steps, m.rollout(p, at))
		return
	}
	if p.Step >= p.Steps {
		fmt.Fprint(m.w, "\r\x1b[K")
		return
	}
	const width = 30
	full := width * p.Step / p.Steps
	text := fmt.Sprintf("[%s%s] %d/%d", strings.Repeat("#", full), strings.Repeat("-", width-full), p.Step, p.Steps)
	if made := p.Step - m.first; made > 0 {
		each := m.step.Sub(m.started) / time.Duration(made)
		text += fmt.Sprintf(", %v left", (each * time.Duration(p.Steps-p.Step)).Round(time.Second))
	}
	if drawing {
		text += ", " + m.rollout(p, at)
	}
	fmt.Fprintf(m.w, "\r\x1b[K%s", text)
}

// rollout says how far the rollout under way is. Responses may end early, so it takes no longer than it says.
func (m *meter) rollout(p train.Progress, at time.Time) string {
	took := at.Sub(m.step)
	text := fmt.Sprintf("rollout %.0f%%, %d tokens, %.1f tokens/s", 100*p.Share, p.Tokens, float64(p.Tokens)/took.Seconds())
	if p.Share > 0 {
		text += fmt.Sprintf(", at most %v", time.Duration(float64(took)*(1-p.Share)/p.Share).Round(time.Second))
	}
	return text
}
