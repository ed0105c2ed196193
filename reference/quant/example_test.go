package quant_test

import (
	"fmt"

	"plumbline/reference/quant"
)

// A weight of two rows. The scale of a row is its absmax; halves are rounded to even codes.
func ExampleQuantize() {
	m := quant.Quantize([]float64{127, 0.5, 1.5, -2.5, 0, 0, 0, 0}, 2, 4, quant.Float16)
	fmt.Println(m.Codes, m.AbsMax)
	// Output: [127 0 2 -2 0 0 0 0] [127 0]
}

// With an outlier in its column, that column keeps the type of the activations and the others keep their precision.
func ExampleLinear_Forward() {
	l := quant.Linear{Weight: quant.Quantize([]float64{1, 1}, 1, 2, quant.Float16), Mode: quant.LLMInt8, Type: quant.Float16}
	y := make([]float64, 1)
	for _, l.Threshold = range []float64{0, 6} {
		l.Forward(y, []float64{60, 0.2}, 1)
		fmt.Printf("threshold %v: %.4f\n", l.Threshold, y[0])
	}
	// Output:
	// threshold 0: 60.0000
	// threshold 6: 60.2000
}
