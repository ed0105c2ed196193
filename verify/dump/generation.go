package dump

import (
	"context"
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// generation gathers the steps that were sampled together: where a generation batch feeds several optimisation steps
// (TRL's steps_per_generation above the accumulation steps), its rows are shuffled over them, and the advantages of a
// group are only known from all of them.
type generation struct {
	pending []*dump.Batch
	whole   int   // generation batches that were judged
	cut     []int // steps whose groups are not all in the dump
	span    int   // the most steps that a generation batch had
}

// unused are the tensors no advantage is made of.
var unused = []string{"logits", "dlogp", "dvalues", "token_loss", "entropy", "values_new", "is_weights", "logp_gen"}

// spanOf returns the number of steps that a generation batch feeds: 1 where it does not say that it feeds more, or where its
// files cannot be told apart into steps.
func spanOf(set *convention.Set) int {
	per, ok := number(set, "steps_per_generation")
	accumulation, known := number(set, "gradient_accumulation_steps")
	if !ok || !known || accumulation < 1 || per <= accumulation || math.Mod(per, accumulation) != 0 || per/accumulation > maxSpan {
		return 1
	}
	return int(per / accumulation)
}

// maxSpan bounds the steps that are held in memory.
const maxSpan = 256

func number(set *convention.Set, fact string) (float64, bool) {
	v, _ := set.Fact(fact)
	x, ok := v.(float64)
	return x, ok
}

// spans reports whether the output of a check is made of all rows that were sampled together.
func spans(c *stage.Check) bool { return c.Stage == convention.Advantage }

// gather takes a step of a generation batch of span steps, and judges what they are sampled together for once all are there.
func (s *session) gather(b *dump.Batch, span int) error {
	g := &s.generation
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
	if !stage.WholeGroups(u.b, u.set) { // the dump begins, or the run was resumed, inside a generation batch
		g.drop(1)
		return nil
	}
	for _, t := range s.tracks {
		if spans(t.check) {
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

// drop gives up the first n steps that wait for others.
func (g *generation) drop(n int) {
	for _, b := range g.pending[:n] {
		g.cut = append(g.cut, b.Meta.Step)
	}
	g.pending = g.pending[n:]
}

// together returns the batches as one, under options that say so.
func (s *session) together(batches []*dump.Batch) (unit, error) {
	b := dump.Join(batches...)
	set, err := s.options(b)
	if err != nil {
		return unit{}, err
	}
	if accumulation, ok := number(set, "gradient_accumulation_steps"); ok {
		set = set.WithFact("steps_per_generation", accumulation)
	}
	return unit{b, set}, nil
}

// endGenerations judges the steps alone whose generation batch is not in the dump. Where a dump only begins and ends inside one,
// the steps there are left out, and a line says so.
func (s *session) endGenerations() error {
	g := &s.generation
	g.drop(len(g.pending))
	if len(g.cut) == 0 {
		return nil
	}
	if g.whole > 0 && len(g.cut) <= 2*(g.span-1) {
		s.say(fmt.Sprintf("advantages of %s are not judged (step %d, …): the other steps of their generation batch are not in the dump", steps(len(g.cut), "step"), g.cut[0]))
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
			if spans(t.check) {
				t.add(b, set, s)
			}
		}
	}
	return nil
}

// units counts what a check was judged on, n of it.
func (t *track) units(n int) string {
	if len(t.spans) > 0 {
		return steps(n, "generation")
	}
	return steps(n, "step")
}

// unit is what a check is judged on: a step, or the steps of a generation batch as one.
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
