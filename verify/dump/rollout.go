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
	pending []*dump.Batch
	whole   int   // rollout batches that were judged
	cut     []int // steps whose rollout batches are not in the dump as a whole
	span    int   // steps of a rollout batch
	origin  int   // first step of the dump
}

// unused are the tensors that nothing is made of that is normalised.
var unused = []string{"logits", "dlogp", "dvalues", "token_loss", "entropy", "values_new", "is_weights", "logp_gen"}

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
func (s *session) gather(b *dump.Batch, span int) error {
	g := &s.rollout
	if n := len(g.pending); n > 0 && (span != g.span || g.pending[n-1].Meta.Step+1 != b.Meta.Step) {
		g.drop(n)
	}
	g.span = span
	if span == 1 {
		return nil
	}
	g.pending = append(g.pending, b.Without(unused...))
	if len(g.pending) < span {
		return nil
	}
	u, err := s.together(g.pending)
	if err != nil {
		return err
	}
	if !g.aligned(u) { // the dump begins, or the run was resumed, inside a rollout batch
		g.drop(1)
		return nil
	}
	for _, t := range s.tracks {
		if t.pooled {
			if t.spans == nil {
				t.spans = map[int]int{}
			}
			t.spans[u.b.Meta.Step] = span
			t.add(u.b, u.set, s)
		}
	}
	g.whole++
	g.pending = nil
	return nil
}

// aligned reports whether the steps that wait are those of one rollout batch: because no group is cut and every two steps one
// after the other share one, or because the dump begins with the run and they follow whole rollout batches.
func (g *rollout) aligned(u unit) bool {
	cut, linked := stage.GroupsOverSteps(u.b, u.set)
	return !cut && (linked || g.origin <= 1 && (u.b.Meta.Step-g.origin)%g.span == 0)
}

// drop gives up the first n steps that wait for others.
func (g *rollout) drop(n int) {
	for _, b := range g.pending[:n] {
		g.cut = append(g.cut, b.Meta.Step)
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
		b, err := s.run.Batch(s.ctx, step)
		if err != nil {
			return err
		}
		set, err := s.options(b)
		if err != nil {
			return err
		}
		for _, t := range s.tracks {
			if t.pooled {
				t.add(b, set, s)
			}
		}
	}
	return nil
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

// together returns the batches as one, under options that say so.
func (s *session) together(batches []*dump.Batch) (unit, error) {
	b := dump.Join(batches...)
	set, err := s.options(b)
	if err != nil {
		return unit{}, err
	}
	return unit{b, stage.AsOneStep(set)}, nil
}

// unit reads what t was judged on that begins with a step.
func (s *session) unit(ctx context.Context, t *track, step int) (unit, error) {
	b, err := s.run.Batch(ctx, step)
	if err != nil {
		return unit{}, err
	}
	if t.spans[step] == 0 {
		set, err := s.options(b)
		return unit{b, set}, err
	}
	batches := []*dump.Batch{b.Without(unused...)}
	for i := 1; i < t.spans[step]; i++ {
		if b, err = s.run.Batch(ctx, step+i); err != nil {
			return unit{}, err
		}
		batches = append(batches, b.Without(unused...))
	}
	return s.together(batches)
}
