package fault

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// source is a tensor that an output was predicted from and that was not dumped, with the check whose formula stood for it: a bug of that
// formula shows in the output first.
type source struct {
	name  string
	check *stage.Check
}

// sourcesOf returns the sources of a prediction, those that it reads before those that these are made of.
func sourcesOf(c *stage.Case, ch *stage.Check) []source {
	d := c.Of(c.B, c.Set)
	if ch.Predict(d) == nil {
		return nil
	}
	var list []source
	for _, name := range d.Used {
		up := c.Producer(name)
		if up == nil || up == ch {
			continue
		}
		list = append(list, source{name, up})
		for _, s := range sourcesOf(c, up) {
			if !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	return list
}

// through returns the predictor of an output whose source is what predict gives, with the errors of that.
func (s source) through(predict func(*stage.Case, *stage.Check) *stage.Prediction) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := predict(c.Of(c.B, c.Set), s.check)
		if p == nil || withholds(p, c) {
			return nil
		}
		d := c.Standing(s.name, p)
		if d == nil {
			return nil
		}
		q := ch.Predict(d)
		if q == nil || !d.OK() {
			return nil
		}
		return q
	}
}

// withholds reports whether a prediction says nothing of some cell of the mask: then what is made of it cannot be told.
func withholds(p *stage.Prediction, c *stage.Case) bool {
	if p.Judge == nil {
		return false
	}
	for i, judged := range p.Judge {
		if !judged && (len(p.Judge) != len(c.B.Mask) || c.B.Mask[i]) {
			return true
		}
	}
	return false
}

// sources are those of the failure.
func (t *trial) sources() []source {
	o := t.levels[0]
	if len(o.Case.Used) == 0 || !t.perCell() {
		return nil
	}
	return sourcesOf(o.Case, o.Check)
}

// perCell reports whether the failure is one of tokens or rows: one number of a file fits too much of what it was made of.
func (t *trial) perCell() bool {
	o := t.levels[0]
	p := o.Case.B.Tensors[o.Check.Output]
	return p != nil && p.Width <= 1 && (p.Layout == dump.PerToken || p.Layout == dump.PerRow)
}

// fromSources tries the hypotheses about what the output was made of, those of the source that is next to it first.
func (t *trial) fromSources() (found []Explanation) {
	o := t.levels[0]
	for _, s := range t.sources() {
		for _, h := range all {
			if !h.Applies(s.check) || h.Applies(o.Check) || h.Loose {
				continue
			}
			lifted := *h
			lifted.Input, lifted.Predict = nil, s.through(h.predict)
			if t.probe != nil && !lifted.plausible(o, t.probe, t.wrong) {
				continue
			}
			if e, ok := t.try(&lifted, "", lifted.judge); ok && !e.Lead {
				found = append(found, e)
			}
		}
	}
	lost := slices.ContainsFunc(found, func(e Explanation) bool { return e.Hypothesis.ID == "SCORE-LOST" })
	for i := range found { // it went where no cell shows it
		found[i].unseen = lost && found[i].Hypothesis.ID == "SCORE-SHIFT"
	}
	return found
}

// sourceFamilies make edits of a source that read no output of it. What a loss makes of its weights has a family of its own.
var sourceFamilies = map[string][]func(*stage.Outcome) []edit{
	"kl":            {klEdits, klWeightEdits, klInputEdits, functionEdits, inputEdits},
	"token_rewards": {functionEdits, inputEdits, scorePlaceEdits},
	"is_weights":    {weightEdits},
}

// sourceEdits returns edits of what the output was made of.
func (t *trial) sourceEdits() []edit {
	o := t.levels[0]
	var list []edit
	for _, s := range t.sources() {
		c := o.Case.Of(o.Case.B, o.Case.Set)
		up := &stage.Outcome{Check: s.check, Case: c, Pred: s.check.Predict(c), Arithmetic: o.Arithmetic}
		for _, family := range sourceFamilies[s.name] {
			for _, e := range family(up) {
				e.predict = s.through(e.predict)
				list = append(list, e)
			}
		}
	}
	return list
}
