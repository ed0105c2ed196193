package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Updates returns the number of optimiser steps of one pass over the rows that were sampled together, 1 where no fact tells
// it. It is no whole number where the last rows of a pass are in no step, or in the step with the first of the next.
//
//	num_mini_batches (trl.PPOConfig; a hook that counts them)
//	steps_per_generation / gradient_accumulation_steps (trl.GRPOConfig)
//	rollout_batch_size · num_generations / train_batch_size, prompts and samples (OpenRLHF)
//	train_batch_size / ppo_mini_batch_size, both prompts (verl)
func Updates(set *convention.Set) float64 {
	known := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return !(FactNumber(set, name) > 0) })
	}
	switch {
	case known("num_mini_batches"):
		return FactNumber(set, "num_mini_batches")
	case known("steps_per_generation"):
		if accumulation := FactNumber(set, "gradient_accumulation_steps"); accumulation > 1 {
			return max(1, FactNumber(set, "steps_per_generation")/accumulation)
		}
		return FactNumber(set, "steps_per_generation")
	case known("rollout_batch_size", "train_batch_size"):
		samples := FactNumber(set, "rollout_batch_size")
		if known("num_generations") {
			samples *= FactNumber(set, "num_generations")
		}
		return max(1, samples/FactNumber(set, "train_batch_size"))
	case known("train_batch_size", "ppo_mini_batch_size"):
		return max(1, FactNumber(set, "train_batch_size")/FactNumber(set, "ppo_mini_batch_size"))
	}
	return 1
}

// OneUpdate reports whether it is known that a pass over the rows of a rollout is one optimiser step.
func OneUpdate(set *convention.Set) bool { return SaysUpdates(set) && Updates(set) == 1 }

// SaysUpdates reports whether it is known how many optimiser steps a pass over the rows of a rollout is.
func SaysUpdates(set *convention.Set) bool {
	known := [][]string{{"num_mini_batches"}, {"steps_per_generation"}, {"rollout_batch_size", "train_batch_size"}, {"train_batch_size", "ppo_mini_batch_size"}}
	return slices.ContainsFunc(known, func(facts []string) bool {
		return !slices.ContainsFunc(facts, func(name string) bool { return !(FactNumber(set, name) > 0) })
	})
}

// severalGenerations says what a case lacks where the micro-batches of one optimiser step are of several generation batches, or come twice: TRL takes a new
// batch every steps_per_generation·num_iterations micro-batches, whatever a step accumulates (TRL 1.16, GRPOTrainer._prepare_inputs). "" where they are of one.
func (c *Case) severalGenerations() string {
	per, micro := c.FactOr("steps_per_generation", 0), c.FactOr("gradient_accumulation_steps", float64(c.B.Meta.MicroBatches))
	if !strings.EqualFold(c.B.Meta.Framework, "trl") || !(per > 0) || !(micro > 1) || math.Mod(per, micro) == 0 {
		return ""
	}
	return fmt.Sprintf("the generation batch of every micro-batch, of which a step has several (steps_per_generation %g, gradient_accumulation_steps %g)", per, micro)
}

// passesOf returns the rows of each generation batch of a step that has several: those of so many micro-batches one after the other, or of one of the passes over
// them. It is nil where there is one, where one is not all within a step, and where nothing says which rows are of a group.
func (c *Case) passesOf() [][]int {
	per, _, whole := c.generationsWhole()
	if !whole || len(c.B.Row("group_id")) != c.B.Rows {
		return nil
	}
	var rows [][]int
	of := map[[2]int]int{}
	for i := range c.B.Rows {
		f := c.B.Files[c.B.Origin[i].File]
		key := [2]int{f.Step, f.MicroBatch / per}
		n, there := of[key]
		if !there {
			n, of[key], rows = len(rows), len(rows), append(rows, nil)
		}
		rows[n] = append(rows[n], i)
	}
	return rows
}

// generationsWhole returns of how many micro-batches a generation batch is, and how many a step has, and whether a step has several that are all within it.
func (c *Case) generationsWhole() (per, micro int, whole bool) {
	if c.severalGenerations() == "" || len(c.B.Missing) > 0 {
		return 0, 0, false
	}
	per = int(c.FactOr("steps_per_generation", 0))
	micro = int(c.FactOr("gradient_accumulation_steps", float64(c.B.Meta.MicroBatches)))
	return per, micro, per > 0 && micro%per == 0
}

// itemsOfPass is what the losses of a file are divided by where its step has several generation batches: the tokens of its own, as much of them as a step has
// micro-batches to those of one (TRL 1.16, GRPOTrainer._compute_loss, num_items_in_batch).
func (c *Case) itemsOfPass(file dump.FileInfo, tokens []float64) (n float64, ok bool) {
	per, micro, whole := c.generationsWhole()
	for f, other := range c.B.Files {
		if whole && other.Step == file.Step && other.MicroBatch/per == file.MicroBatch/per {
			n += tokens[f]
		}
	}
	return n * float64(micro) / float64(max(per, 1)), whole
}

// advantagesOfPasses is sequenceAdvantages of each generation batch of a step by itself.
func (c *Case) advantagesOfPasses(passes [][]int) (s sequence) {
	n := c.B.Rows
	s.X, s.Err, s.complete, s.level = make([]float64, n), make([]float64, n), make([]bool, n), make([]level, n)
	terms := make([]func() []Term, n)
	for _, rows := range passes {
		of := c.Of(c.B.Select(rows), c.Set.WithFact("gradient_accumulation_steps", c.FactOr("steps_per_generation", 0)))
		q := of.sequenceAdvantages()
		for _, name := range of.Read {
			note(&c.Read, name)
		}
		for _, name := range of.Unknown {
			note(&c.Unknown, name)
		}
		for _, name := range of.Absent {
			note(&c.Absent, name)
		}
		if len(q.X) != len(rows) || len(q.complete) != len(rows) {
			return sequence{}
		}
		if q.level == nil {
			s.level = nil
		}
		for i, row := range rows {
			s.X[row], s.Err[row], s.complete[row] = q.X[i], q.E(i), q.complete[i]
			if s.level != nil {
				s.level[row] = q.level[i]
			}
			terms[row] = func() []Term { return q.terms(i) }
		}
	}
	s.terms = func(row int) []Term { return terms[row]() }
	return s
}

// AsOneStep returns set for rows of several steps that are all that was sampled together.
func AsOneStep(set *convention.Set) *convention.Set { return set.WithFact("num_mini_batches", 1.0) }

// FactNumber returns a number that the dump says of the run, NaN if it does not.
func FactNumber(set *convention.Set, fact string) float64 {
	v, _ := set.Fact(fact)
	if x, ok := v.(float64); ok {
		return x
	}
	return math.NaN()
}

// otherSteps is what a case lacks whose statistics are those of rows that other steps hold.
const otherSteps = "the other steps of the rollout batch, over which the statistics are taken"

// LacksSteps reports whether an outcome is open for want of rows that other steps hold.
func LacksSteps(o *Outcome) bool {
	return o.Case != nil && slices.ContainsFunc(o.Case.Absent, func(text string) bool { return strings.HasPrefix(text, otherSteps) })
}

// LacksOtherSteps reports whether some value of an option that o was judged with, which nobody declares, cannot be tried for want of steps: the batch is a part of a
// rollout whose rest is not there.
func LacksOtherSteps(o *Outcome) bool {
	return slices.ContainsFunc(Untried(o), func(text string) bool { return strings.Contains(text, otherSteps) })
}
