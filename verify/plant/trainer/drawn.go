package trainer

import "plumbline/internal/rng"

// The streams of random numbers, one for every use.
const (
	drawShape uint64 = iota
	drawTokens
	drawScores
	drawValues
	drawSpecial
	drawBase
	drawLogits // and the policies after it
)

// drawn hands out the numbers of a stream one after the other.
type drawn struct {
	stream rng.Stream
	next   uint64
}

func (d *drawn) uniform() float64 { d.next++; return d.stream.Uniform(d.next - 1) }

func (d *drawn) below(n int) int       { return int(d.uniform() * float64(n)) }
func (d *drawn) chance(p float64) bool { return d.uniform() < p }
