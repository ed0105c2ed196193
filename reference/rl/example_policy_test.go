package rl_test

import (
	"fmt"

	"plumbline/reference/rl"
)

func ExamplePolicy() {
	// Two tokens of one response with advantage 1; the second has moved up by half and is clipped at 1.2.
	b := rl.PolicyBatch{Rows: 1, Cols: 2, LogProbs: []float64{-1, -1}, Old: []float64{-1, -1.4055}, Adv: []float64{1, 1}}
	var r rl.PolicyResult
	if err := rl.Policy(&r, b, rl.PolicyOptions{Clip: rl.ClipOptions{Low: 0.2, High: 0.2}}); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("loss %.3f, ratios %.3f, gradient %.3f\n", r.Loss, r.Ratio, r.DLogp)
	// Output: loss -1.100, ratios [1.000 1.500], gradient [-0.500 0.000]
}

func ExampleKL() {
	lp, ref := []float64{-30}, []float64{-1}
	verl := rl.KLOptions{Kind: rl.KLK3, ClampIn: 20, ClampOut: 10}
	trl := rl.KLOptions{Kind: rl.KLK3}
	a, _ := rl.KL(nil, nil, lp, ref, nil, verl)
	b, _ := rl.KL(nil, nil, lp, ref, nil, trl)
	fmt.Printf("verl %.0f, TRL %.0f\n", a, b)
	// Output: verl [10], TRL [3931334297114]
}
