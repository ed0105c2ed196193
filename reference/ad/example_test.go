package ad_test

import (
	"fmt"

	"plumbline/reference/ad"
)

// The gradient of a masked PPO loss, the mean over response tokens of
// max(−A·ρ, −A·clip(ρ, 0.8, 1.2)) with ρ = e^{lp − old}.
func Example() {
	var tape ad.Tape
	lp := tape.Param([]float64{-1, -0.5, -2, -1}, 2, 2)
	old := tape.Const([]float64{-1, -1, -2, -9}, 2, 2)
	adv := tape.Const([]float64{1, 2, -1, 5}, 2, 2)
	response := ad.Mask{Shape: []int{2, 2}, On: []bool{true, true, true, false}}

	ratio := ad.Exp(ad.Sub(lp, old))
	plain := ad.Neg(ad.Mul(adv, ratio))
	clipped := ad.Neg(ad.Mul(adv, ad.Clamp(ratio, 0.8, 1.2)))
	perToken := ad.Where(response, ad.Max(plain, clipped), tape.Scalar(0))
	loss := ad.Scale(ad.Sum(perToken, false), 1./3)

	ad.Backward(loss, []float64{1})
	fmt.Printf("loss %.4f\ngradient %.4f\n", loss.Item(), lp.Grad())
	// Output:
	// loss -0.8000
	// gradient [-0.3333 0.0000 0.3333 0.0000]
}
