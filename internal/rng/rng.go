// Package rng is the counter-based generator of all data that a check draws.
//
// A tensor's element i is a function of (seed, tensor, i) and of nothing else:
// not of its shape, of other tensors, of the order of drawing or of the machine.
// A case that is cut down keeps its values, and a producer in another language
// draws the same data from the formulas below, which use nothing but
// wrapping uint64 arithmetic and correctly rounded + − × ÷ √ on float64.
//
//	mix(z):  z ^= z>>30; z *= 0xBF58476D1CE4E5B9;
//	         z ^= z>>27; z *= 0x94D049BB133111EB; z ^= z>>31
//	word(seed, tensor, i) = mix(mix(seed XOR mix(tensor+1)) + (i+1)·0x9E3779B97F4A7C15)
//	uniform = (word >> 11)·2⁻⁵³
//
// mix is the output function of SplitMix64, Steele, Lea and Flood 2014; a Stream
// is SplitMix64 that starts at mix(seed XOR mix(tensor+1)).
package rng

// A Stream is the sequence of numbers of one (seed, tensor). It has no state:
// every method is a function of the element's number.
type Stream struct{ key uint64 }

// New returns the stream of a tensor under a seed.
func New(seed, tensor uint64) Stream {
	return Stream{mix(seed ^ mix(tensor+1))}
}

// Key returns what a stream is made of; [Keyed] makes it again, in another process too.
func (s Stream) Key() uint64 { return s.key }

// Keyed returns the stream with that [Stream.Key].
func Keyed(key uint64) Stream { return Stream{key} }

// Word returns the i-th word, 64 random bits.
func (s Stream) Word(i uint64) uint64 {
	return mix(s.key + (i+1)*0x9E3779B97F4A7C15)
}

// Uniform returns the i-th number uniform in [0, 1): the upper 53 bits of the
// i-th word over 2⁵³.
func (s Stream) Uniform(i uint64) float64 {
	return float64(float64(s.Word(i)>>11) * 0x1p-53)
}

func mix(z uint64) uint64 {
	z ^= z >> 30
	z *= 0xBF58476D1CE4E5B9
	z ^= z >> 27
	z *= 0x94D049BB133111EB
	z ^= z >> 31
	return z
}
