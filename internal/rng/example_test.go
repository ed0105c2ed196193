package rng_test

import (
	"fmt"

	"plumbline/internal/rng"
)

// Element 5 is the same whether 6 or 6000 elements are drawn.
func Example() {
	const seed, weights = 1, 0
	s := rng.New(seed, weights)
	fmt.Printf("%.6f %.6f\n", s.Uniform(5), s.Normal(5))
	// Output: 0.505904 -0.014316
}
