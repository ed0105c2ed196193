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
	of := generationCounts{tokens: math.NaN()}
	if from := s.rollout.origin; n == math.Trunc(n) && n <= maxSpan && from <= 1 && v.b.Meta.Step >= from { // steps count from 0 or from 1
		of = s.countsOf((v.b.Meta.Step-from)/int(n)*int(n)+from, int(n))
	}
	ranks := make([]any, len(of.ranks))
	for k, x := range of.ranks {
		ranks[k] = x
	}
	return set.WithFact(stage.GenerationTokens, of.tokens).WithFact(stage.GenerationRanks, ranks).WithFact(stage.GenerationAttended, of.attended)
}

// generationCounts are the tokens in the masks of several steps, those of every rank, and those that attention shows in the responses, 0 where a step lacks it.
type generationCounts struct {
	tokens   float64
	ranks    []float64
	attended float64
}

// tokensOf counts the tokens in the masks of n steps in a row, NaN where the dump does not have all of them.
func (s *session) tokensOf(first, n int) float64 { return s.countsOf(first, n).tokens }

func (s *session) countsOf(first, n int) generationCounts {
	if t, known := s.generations[first]; known {
		return t
	}
	if s.generations == nil {
		s.generations = map[int]generationCounts{}
	}
	var of generationCounts
	steps, shown := s.run.Steps(), true
	for step := first; step < first+n; step++ {
		if !slices.Contains(steps, step) {
			of = generationCounts{tokens: math.NaN()}
			break
		}
		b, err := s.run.Batch(s.ctx, step)
		if err != nil || len(b.Missing) > 0 {
			of = generationCounts{tokens: math.NaN()} // a step that cannot be read is reported where it is judged
			break
		}
		for range b.Tokens() {
			of.tokens++
		}
		for rank, n := range stage.RankTokens(b) {
			if rank == len(of.ranks) {
				of.ranks = append(of.ranks, 0)
			}
			of.ranks[rank] += n
		}
		seen, ok := stage.Attended(b)
		shown = shown && ok
		of.attended += seen
	}
	if !shown {
		of.attended = 0
	}
	s.generations[first] = of
	return of
}
