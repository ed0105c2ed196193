package projection

import (
	"fmt"
	"math"
	"math/rand/v2"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/projection"
)

// PlantAll plants every fault of the suite in healthy data.
func PlantAll(seed uint64) ([]check.Planted[*projection.Input], error) {
	return projection.Suite.PlantAll(seed, Scenario{D: 1024, K: 16, Norm: 1, Basis: format.F32, Vector: format.F32, Passes: 1, Steps: 30}.Draw)
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
