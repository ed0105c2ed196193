package dump

import (
	"context"
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rollout gathers the steps of one pass over the rows that were sampled together: where a rollout batch feeds several
// optimisation steps, its rows are shuffled over them, and what is normalised over a group or over all rows is only known
// from all of them.
type rollout struct {
	pending []*view
	whole   int   // rollout batches that were judged
	cut     []int // steps whose rollout batches are not in the dump as a whole
	span    int   // steps of a rollout batch
	origin  int   // first step of the dump
}

// unused names the tensors that nothing is made of that is normalised. Importance weights are where they are divided by their mean, or may be.
func unused(set *convention.Set) []string {
	names := []string{"logits", "dlogp", "dvalues", "token_loss", "entropy", "is_weights", "logp_gen"}
	if by := set.Value("tis.normalize"); by.Kind() == convention.Unknown || by.Kind() == convention.Bool && by.Bool() {
		return names[:5]
	}
	return names
}

// maxSpan bounds the steps that are held in memory.
const maxSpan = 256

// spanOf returns the number of steps that make a rollout batch, 1 where that is not known.
func spanOf(set *convention.Set) int {
	n := stage.Updates(set)
	if n != math.Trunc(n) || n > maxSpan {
		return 1
	}
	return int(n)
}

// gather takes a step of a rollout batch of span steps, and judges what needs all of them once they are there.
func (s *session) gather(v *view, set *convention.Set, span int) error {
	g := &s.rollout
	if n := len(g.pending); n > 0 && (span != g.span || g.pending[n-1].b.Meta.Step+1 != v.b.Meta.Step) {
		g.drop(n)
	}
	g.span = span
	if span == 1 {
		return nil
	}
	w := *v
	if w.read == nil {
		w.b = v.b.Without(unused(set)...)
	}
	g.pending = append(g.pending, &w)
	if len(g.pending) < span {
		return nil
	}
	u, set, err := s.pool(g.pending)
	if err != nil {
		return err
	}
	if !s.aligned(u, set) { // the dump begins, or the run was resumed, inside a rollout batch
		g.drop(1)
		return nil
	}
	for _, t := range s.tracks {
		if t.pooled {
			if t.spans == nil {
				t.spans = map[int]int{}
			}
			t.spans[u.b.Meta.Step] = span
			t.add(u, set, s)
		}
	}
	g.whole++
	g.pending = nil
	return nil
}

// pool returns the steps that wait as one, and the options of it.
func (s *session) pool(steps []*view) (*view, *convention.Set, error) {
	batches := make([]*dump.Batch, len(steps))
	u := &view{key: fmt.Sprintf("%s+%d", steps[0].key, len(steps)-1)}
	light := false
	for i, v := range steps {
		batches[i] = v.b
		light = light || v.read != nil
	}
	u.b = dump.Join(batches...)
	set, err := s.options(u)
	if err != nil {
		return nil, nil, err
	}
	if light {
		u.read = func() (*dump.Batch, error) {
			read := make([]*dump.Batch, len(steps))
			for i, v := range steps {
				b, err := s.run.Batch(s.ctx, v.b.Meta.Step)
				if err != nil {
					return nil, err
				}
				read[i] = b.Without(unused(set)...)
			}
			return dump.Join(read...), nil
		}
	}
	return u, stage.AsOneStep(set), nil
}

// aligned reports whether the steps that wait are those of one rollout batch: because no group is cut and every two steps one
// after the other share one, or because the dump begins with the run and they follow whole rollout batches.
func (s *session) aligned(u *view, set *convention.Set) bool {
	g := &s.rollout
	cut, linked := s.linked(u, set)
	return !cut && (linked || g.origin <= 1 && (u.b.Meta.Step-g.origin)%g.span == 0)
}

// linked is [stage.GroupsOverSteps] of a unit.
func (s *session) linked(u *view, set *convention.Set) (cut, linked bool) {
	if u.read != nil {
		if known := s.known(u.key); known != nil {
			if g, ok := known.Groups[s.ledger.key(set)]; ok {
				return g.Cut, g.Linked
			}
		}
	}
	b, err := u.whole()
	if err != nil {
		s.fail(err)
		return true, false
	}
	cut, linked = stage.GroupsOverSteps(b, set)
	if s.ledger.write != nil {
		page := s.ledger.unit(u.key)
		if page.Groups == nil {
			page.Groups = map[string]overSteps{}
		}
		page.Groups[s.ledger.key(set)] = overSteps{cut, linked}
	}
	return cut, linked
}

// drop gives up the first n steps that wait for others.
func (g *rollout) drop(n int) {
	for _, v := range g.pending[:n] {
		g.cut = append(g.cut, v.b.Meta.Step)
	}
	g.pending = g.pending[n:]
}

// endRollouts judges the steps alone whose rollout batch is not in the dump. Where a dump only begins and ends inside one, the
// steps there are left out, and a line says so.
func (s *session) endRollouts() error {
	g := &s.rollout
	g.drop(len(g.pending))
	if len(g.cut) == 0 {
		return nil
	}
	if g.whole > 0 && len(g.cut) <= 2*(g.span-1) {
		s.say(fmt.Sprintf("%s of rollout batches that are not in the dump as a whole (step %d, …): what is normalised over these is not judged", steps(len(g.cut), "step"), g.cut[0]))
		return nil
	}
	for _, step := range g.cut {
		v, err := s.again(step)
		if err != nil {
			return err
		}
		set, err := s.options(v)
		if err != nil {
			return err
		}
		for _, t := range s.tracks {
			if t.pooled {
				t.add(v, set, s)
			}
		}
	}
	return s.err
}

// units counts what a check was judged on, n of it.
func (t *track) units(n int) string {
	if len(t.spans) > 0 {
		return steps(n, "rollout")
	}
	return steps(n, "step")
}

// unit is what a check is judged on: a step, or the steps of a rollout batch as one.
type unit struct {
	b   *dump.Batch
	set *convention.Set
}

// unit reads what t was judged on that begins with a step.
func (s *session) unit(ctx context.Context, t *track, step int) (unit, error) {
	b, err := s.run.Batch(ctx, step)
	if err != nil {
		return unit{}, err
	}
	set, err := s.options(&view{b: b})
	if err != nil || t.spans[step] == 0 {
		return unit{b, set}, err
	}
	steps := []*view{{b: b.Without(unused(set)...)}}
	for i := 1; i < t.spans[step]; i++ {
		if b, err = s.run.Batch(ctx, step+i); err != nil {
			return unit{}, err
		}
		steps = append(steps, &view{b: b.Without(unused(set)...)})
	}
	u, pooled, err := s.pool(steps)
	if err != nil {
		return unit{}, err
	}
	return unit{u.b, pooled}, nil
}
