package check

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Planted is the outcome of one executable fault.
type Planted[P any] struct {
	Check  string
	Fault  FaultInfo
	Caught bool     // its check gave the verdict that the fault demands; a fault that must leave PASS is caught by being explained
	By     []string // checks with a verdict that is neither PASS nor NOTE nor SKIP
	Named  string   // fault of the first explanation of its check
	First  string   // fault of the first finding of the whole report that is as bad as the fault demands
	Input  P
}

// PlantAll plants every fault of the suite in an input that healthy draws, and judges the result as a user's input is judged.
func (s Suite[P]) PlantAll(seed uint64, healthy func(r *rand.Rand) P) ([]Planted[P], error) {
	var out []Planted[P]
	for _, c := range s {
		infos := c.Info().Faults
		for i, f := range c.Faults {
			r := rand.New(rand.NewPCG(seed, uint64(len(out))))
			p := Planted[P]{Check: c.Name, Fault: infos[i], Input: f.Plant(r, healthy(r))}
			results, err := s.Run(p.Input, Selection{})
			if err != nil {
				return out, fmt.Errorf("%s %s: %w", c.Name, f.ID, err)
			}
			want := cmp.Or(f.Want, Fail)
			for _, res := range results {
				if !slices.Contains([]Verdict{Pass, Note, Skip}, res.Verdict) && !slices.Contains(p.By, res.Check) {
					p.By = append(p.By, res.Check)
				}
				if res.Verdict == want && p.First == "" && len(res.Explanations) > 0 {
					p.First = res.Explanations[0].Fault
				}
				if res.Check == c.Name && res.Verdict == want {
					p.Caught = true
					if p.Named == "" && len(res.Explanations) > 0 {
						p.Named = res.Explanations[0].Fault
					}
				}
			}
			p.Caught = p.Caught && (want != Pass || p.Named == f.ID)
			out = append(out, p)
		}
	}
	return out, nil
}
