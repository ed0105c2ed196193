package dump

import (
	"maps"
	"slices"

	"plumbline/verify/convention"
)

// ledger gives notes by what they are of, and takes down what is to be noted.
type ledger struct {
	notes Notes                 // nil: there are none
	read  map[string]*UnitNotes // of the step that is judged now
	write *pages                // nil: nothing is taken down

	lastSet *convention.Set // and its key
	lastKey string
}

// pages are the notes of the step that is judged now; before the next one they are handed over.
type pages struct {
	step  *StepNotes
	units map[string]*UnitNotes
	put   func(Record) error
}

func (p *pages) flush() error {
	if p.step != nil {
		if err := p.put(Record{Key: StepKey(p.step.Step), Step: p.step}); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.units)) {
		if err := p.put(Record{Key: key, Unit: p.units[key]}); err != nil {
			return err
		}
	}
	p.step, p.units = nil, map[string]*UnitNotes{}
	return nil
}

// stepNotes returns what is known of a step, nil if nothing is.
func (l *ledger) stepNotes(step int) (*StepNotes, error) {
	if l.notes == nil {
		return nil, nil
	}
	l.read = map[string]*UnitNotes{}
	records, err := l.notes.Records(StepKey(step))
	if err != nil || len(records) == 0 {
		return nil, err
	}
	return records[0].Step, nil
}

// known returns what is known of a unit, nil if nothing is.
func (s *session) known(key string) *UnitNotes {
	l := s.ledger
	if l.notes == nil {
		return nil
	}
	if u, read := l.read[key]; read {
		return u
	}
	records, err := l.notes.Records(key)
	if err != nil {
		s.fail(err)
		return nil
	}
	var all *UnitNotes
	for _, r := range records {
		if all == nil {
			all = &UnitNotes{Outcomes: map[string]map[string]*judged{}, Groups: map[string]overSteps{}}
		}
		if r.Unit == nil {
			continue
		}
		for options, outcomes := range r.Unit.Outcomes {
			if all.Outcomes[options] == nil {
				all.Outcomes[options] = map[string]*judged{}
			}
			maps.Copy(all.Outcomes[options], outcomes)
		}
		maps.Copy(all.Groups, r.Unit.Groups)
		if r.Unit.Weighed != nil {
			all.Weighed = r.Unit.Weighed
		}
	}
	if l.read == nil {
		l.read = map[string]*UnitNotes{}
	}
	l.read[key] = all
	return all
}

// key is keyOf, remembered: the checks of a step share their options.
func (l *ledger) key(set *convention.Set) string {
	if l.lastSet != set {
		l.lastSet, l.lastKey = set, keyOf(set)
	}
	return l.lastKey
}

// unit returns the page of a unit, a new one where there is none.
func (l *ledger) unit(key string) *UnitNotes {
	u := l.write.units[key]
	if u == nil {
		u = &UnitNotes{Outcomes: map[string]map[string]*judged{}}
		l.write.units[key] = u
	}
	return u
}
