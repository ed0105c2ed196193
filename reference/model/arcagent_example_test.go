package model_test

import (
	"fmt"

	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// A prediction of 2×2 cells is compared with a target of another size: its logits are interpolated, its colours are those of
// the nearest cells.
func ExampleResizeLogits() {
	var tape ad.Tape
	logits := tape.Param([]float64{4, 0, 0, 4, 4, 0, 0, 4}, 1, 2, 2, 2) // one step, colours 0 and 1
	fmt.Println(model.GridOf(logits).Resize(1, 4).Cells)
	wide := model.ResizeLogits(logits, 1, 4)
	fmt.Println(wide.Data())
	ad.Backward(wide, []float64{0, 0, 1, 0, 0, 0, 0, 0}) // of colour 0 in the second cell
	fmt.Println(logits.Grad())
	// Output:
	// [0 0 1 1]
	// [4 0 3 1 1 3 0 4]
	// [0.375 0 0.125 0 0.375 0 0.125 0]
}
