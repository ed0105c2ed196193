package nn_test

import (
	"fmt"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// Two tokens of padding on the left: they shift no position, and no one sees them.
func ExampleVisible() {
	real := []bool{false, false, true, true}
	fmt.Println(nn.Positions(1, 4, real, nil))
	mask := nn.Visible{Batch: 1, Queries: 4, Keys: 4, Causal: true, Real: real}.Mask()
	for q := range 4 {
		fmt.Println(mask.On[q*4 : q*4+4])
	}
	// Output:
	// [0 0 0 1]
	// [false false false false]
	// [false false false false]
	// [false false true false]
	// [false false true true]
}

func ExampleCrossEntropy() {
	var tape ad.Tape
	logits := tape.Param([]float64{0, 0, 5, 5}, 2, 2)
	loss := nn.CrossEntropy(logits, []int{1, -100}, -100) // the second row is ignored
	ad.Backward(loss, []float64{1})
	fmt.Printf("%.4f %.1f\n", loss.Item(), logits.Grad())
	// Output: 0.6931 [0.5 -0.5 0.0 0.0]
}
