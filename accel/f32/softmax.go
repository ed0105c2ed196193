package f32

// Softmax turns x into probabilities, in place:
//
//	p_j = e^{x_j − m}/Σ_i e^{x_i − m},   m = max x
//
// −Inf gives exactly 0; where all are −Inf, or x is empty, all are 0: a query that sees no key passes nothing on. NaN makes all NaN. The
// sum is of float64 in eight parts over terms that are not yet rounded to float32; every variant returns the same bits.
func Softmax(x []float32) { softmax.Func()(x) }

// SoftmaxBackward stores in ds the gradient by the logits from dp, the gradient by the probabilities p: p·(dp − Σ p·dp). ds may be dp.
func SoftmaxBackward(ds, dp, p []float32) { softmaxBackward(ds, dp, p, 1) }

// softmaxBackward is [SoftmaxBackward] of logits that were multiplied by a number: the gradient by what they were before.
func softmaxBackward(ds, dp, p []float32, by float32) {
	same("softmax", len(ds), len(p))
	same("softmax", len(dp), len(p))
	softmaxBack.Func()(ds, dp, p, by)
}
