package projection

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/projection"
)

// Planted is the outcome of one executable fault.
type Planted struct {
	Check  string
	Fault  check.FaultInfo
	Caught bool     // its check gave the verdict that the fault demands
	By     []string // checks with a verdict that is neither PASS nor NOTE nor SKIP
	Named  string   // fault id of the first explanation of its check
}

// PlantAll plants every fault of the suite in healthy data, and judges the result as a user's files are judged.
func PlantAll(seed uint64) ([]Planted, error) {
	var out []Planted
	for _, c := range projection.Suite {
		infos := c.Info().Faults
		for i, f := range c.Faults {
			r := rand.New(rand.NewPCG(seed, uint64(len(out))))
			healthy := Scenario{D: 1024, K: 16, Norm: 1, Basis: format.F32, Vector: format.F32, Passes: 1, Steps: 30}.Draw(r)
			results, err := projection.Suite.Run(f.Plant(r, healthy), check.Selection{})
			if err != nil {
				return out, fmt.Errorf("%s %s: %w", c.Name, f.ID, err)
			}
			p := Planted{Check: c.Name, Fault: infos[i]}
			want := cmp.Or(f.Want, check.Fail)
			for _, res := range results {
				if !slices.Contains([]check.Verdict{check.Pass, check.Note, check.Skip}, res.Verdict) && !slices.Contains(p.By, res.Check) {
					p.By = append(p.By, res.Check)
				}
				if res.Check == c.Name && res.Verdict == want {
					p.Caught = true
					if p.Named == "" && len(res.Explanations) > 0 {
						p.Named = res.Explanations[0].Fault
					}
				}
			}
			// A fault that must leave PASS is caught by being explained.
			p.Caught = p.Caught && (want != check.Pass || p.Named == f.ID)
			out = append(out, p)
		}
	}
	return out, nil
}

// RandomScenario draws the shape, types and norm of a healthy input: every pair of floating-point types, norms from 1e-6
// to 1e6, as far as the type holds the elements.
func RandomScenario(r *rand.Rand) Scenario {
	types := []format.DType{format.F64, format.F32, format.F16, format.BF16}
	s := Scenario{
		D: 8 + r.IntN(200), Basis: types[r.IntN(4)], Vector: types[r.IntN(4)],
		Norm: math.Pow(10, 12*r.Float64()-6), Passes: 1 + r.IntN(2), Steps: r.IntN(3),
	}
	s.K = 1 + r.IntN(s.D/2)
	if s.Vector == format.F16 {
		s.Norm = min(s.Norm, 1e4) // an element of float16 is at most 65504
	}
	return s
}

// Alarm describes a result that no healthy input may have, "" if there is none. A warning is none where 16-bit storage
// is the reason, and neither is what 16-bit storage leaves undetermined.
func Alarm(s Scenario, results []check.Result) string {
	low := s.Basis.Size() == 2 || s.Vector.Size() == 2
	for _, r := range results {
		switch {
		case r.Verdict == check.Pass, r.Verdict == check.Note, r.Verdict == check.Skip:
		case low && (r.Verdict == check.Warn || r.Verdict == check.Undetermined):
		case s.Steps == 0 && r.Check == projection.AdapterDrift.Name:
		default:
			return fmt.Sprintf("%s %s %s: %s, measured %g, limit %g (%+v)", r.Verdict, r.Check, r.Subject, r.Reason, r.Measured, r.Limit, s)
		}
	}
	return ""
}
