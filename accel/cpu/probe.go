package cpu

import (
	"sync"
	"time"
)

// Probe is a loop of one kind of instruction that nothing holds up: what a core can do at most. A kernel's speed is stated as a share
// of its probe, measured in the same process.
type Probe struct {
	Name  string // "peak/f32"
	Level string // of the instructions: "avx2", "avx512" …
	Unit  string // of what Run returns: "op" or "byte"
	Need  Feature
	Run   func(steps int) float64 // runs on one core and returns the operations or bytes done
}

// Probes returns the probes this process can run. A multiplication and an addition are two operations.
func Probes() []Probe {
	var all []Probe
	for _, p := range probes {
		if Missing(p.Need) == "" {
			all = append(all, p)
		}
	}
	return all
}

// Peak is the rate of the probes of that name per second of CPU time on one core, now: the best of five spans of some milliseconds with
// whatever instructions this process has. It is 0 if it has none.
func Peak(name string) float64 {
	best := 0.0
	for _, p := range Probes() {
		if p.Name == name {
			for range 5 {
				before := Time()
				done := p.Run(2_000_000)
				best = max(best, done/(Time()-before).Seconds())
			}
		}
	}
	return best
}

// Faster reports whether the probe of that name reaches more with the instructions of level a than with those of level b, by a tenth. It is
// measured once in a process, in less than a millisecond of CPU time each. A probe that this process lacks reaches nothing.
func Faster(name, a, b string) bool {
	key := [3]string{name, a, b}
	measuring.Lock()
	defer measuring.Unlock()
	answer, ok := faster[key]
	if !ok {
		answer = level(name, a) > 1.1*level(name, b)
		faster[key] = answer
	}
	return answer
}

var (
	measuring sync.Mutex
	faster    = map[[3]string]bool{}
)

// level is the rate of a probe with the instructions of a level, the best of some short spans.
func level(name, level string) (best float64) {
	for _, p := range Probes() {
		if p.Name == name && p.Level == level {
			p.Run(2000)
			for range 7 {
				before := time.Now() // Time counts in steps that are longer
				done := p.Run(10_000)
				best = max(best, done/time.Since(before).Seconds())
			}
		}
	}
	return best
}
