package dump

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// withGeneration adds the tokens of the generation batch that a step is part of, which TRL 1.16 divides by: those of the
// steps_per_generation/gradient_accumulation_steps steps in a row that share a rollout. They are counted where the dump begins with the
// run and has all of these steps; else they are NaN, not known.
func (s *session) withGeneration(v *view, set *convention.Set) *convention.Set {
	if s.profile == nil || s.profile.Name != "trl-grpo@1.16" {
		return set
	}
	n := stage.FactNumber(set, "steps_per_generation") / stage.FactNumber(set, "gradient_accumulation_steps")
	if !(n > 1) {
		return set
	}
	tokens := math.NaN()
	if from := s.rollout.origin; n == math.Trunc(n) && n <= maxSpan && from <= 1 && v.b.Meta.Step >= from { // steps count from 0 or from 1
		tokens = s.tokensOf((v.b.Meta.Step-from)/int(n)*int(n)+from, int(n))
	}
	return set.WithFact(stage.GenerationTokens, tokens)
}

// tokensOf counts the tokens in the masks of n steps in a row, NaN where the dump does not have all of them.
func (s *session) tokensOf(first, n int) float64 {
	if t, known := s.generations[first]; known {
		return t
	}
	if s.generations == nil {
		s.generations = map[int]float64{}
	}
	total, steps := 0.0, s.run.Steps()
	for step := first; step < first+n; step++ {
		if !slices.Contains(steps, step) {
			total = math.NaN()
			break
		}
		b, err := s.run.Batch(s.ctx, step)
		if err != nil || len(b.Missing) > 0 {
			total = math.NaN() // a step that cannot be read is reported where it is judged
			break
		}
		for _, m := range b.Mask {
			if m {
				total++
			}
		}
	}
	s.generations[first] = total
	return total
}
