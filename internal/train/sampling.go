package train

import "plumbline/internal/rng"

// Sampling says how the next token is drawn from logits, in the order of transformers@5.23.0: the end is suppressed, temperature,
// top-k, top-p.
type Sampling struct {
	Temperature    float64 // > 0
	TopK           int     // 0: off
	TopP           float64 // 1: off
	MinNew, MaxNew int     // tokens of a response, MaxNew at most [MaxTokens]
	Greedy         bool    // the likeliest token of all, of equal ones the one with the smallest id; Temperature, TopK and TopP are not read
	Raw            bool    // the log-probabilities that are reported are those of the logits as they are, not of what is drawn from
}

// Drawn says how far a call of [Policy.Sample] is.
type Drawn struct {
	Position int // tokens of the longest response so far
	Tokens   int // of all responses so far
	Open     int // responses that go on
}

// MaxTokens bounds the tokens of a response, so that every sample of a stream has random numbers of its own.
const MaxTokens = 1 << 16

// Uniform returns the number that a token of a sample is drawn with.
func Uniform(stream rng.Stream, sample, token int) float64 {
	return stream.Uniform(uint64(sample)*MaxTokens + uint64(token))
}
