package checkpoint

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// Planted is the outcome of one executable fault.
type Planted struct {
	Check  string
	Fault  check.FaultInfo
	Caught bool     // its check gave the verdict that the fault demands
	By     []string // checks with a verdict that is neither PASS nor NOTE nor SKIP
	Named  string   // fault of the first explanation of its check
	First  string   // fault of the first finding of the whole report that is as bad as the fault demands
	Input  *checkpoint.Input
}

// PlantAll plants every fault of the suite in healthy folders held in memory, and judges the result as a user's folders
// are judged.
func PlantAll(seed uint64) ([]Planted, error) {
	var out []Planted
	for _, c := range checkpoint.Suite {
		infos := c.Info().Faults
		for i, f := range c.Faults {
			r := rand.New(rand.NewPCG(seed, uint64(len(out))))
			in := f.Plant(r, nil)
			results, err := checkpoint.Suite.Run(in, check.Selection{})
			if err != nil {
				return out, fmt.Errorf("%s %s: %w", c.Name, f.ID, err)
			}
			p := Planted{Check: c.Name, Fault: infos[i], Input: in}
			want := cmp.Or(f.Want, check.Fail)
			for _, res := range results {
				if !slices.Contains([]check.Verdict{check.Pass, check.Note, check.Skip}, res.Verdict) && !slices.Contains(p.By, res.Check) {
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
			out = append(out, p)
		}
	}
	return out, nil
}

// Healthy draws the healthy input number i: the families take turns.
func Healthy(r *rand.Rand, i int) (family string, in *checkpoint.Input) {
	s := scenes[i%len(scenes)]
	return s.name, s.draw(r).input()
}

// Alarm describes a result that no healthy input may have, "" if there is none.
func Alarm(family string, results []check.Result) string {
	decided := false
	for _, r := range results {
		switch r.Verdict {
		case check.Pass:
			decided = true
		case check.Note, check.Skip:
		default:
			return fmt.Sprintf("%s: %s %s %s: %s (measured %g, limit %g; %s)", family, r.Verdict, r.Check, r.Subject, r.Reason, r.Measured, r.Limit, r.Where)
		}
	}
	if !decided {
		return family + ": nothing was decided"
	}
	return ""
}
