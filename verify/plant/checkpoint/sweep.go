package checkpoint

import (
	"fmt"
	"math/rand/v2"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// PlantAll plants every fault of the suite in healthy folders held in memory, each of its own scene.
func PlantAll(seed uint64) ([]check.Planted[*checkpoint.Input], error) {
	return checkpoint.Suite.PlantAll(seed, func(*rand.Rand) *checkpoint.Input { return nil })
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
