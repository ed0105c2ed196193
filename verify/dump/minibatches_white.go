package dump

import (
	"context"
	"math"

	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// mostWhitened bounds the steps that the advantages of a rollout are looked for in.
const mostWhitened = 16

// whitenedOver returns over how many steps the rows of a rollout were shuffled, as advantages per token tell from which the mean over the rollout
// was subtracted: the fewest steps whose advantages have the mean 0 together, in every such span of the run, though those of some step alone have
// not. It is 1 where there is no such number. A mean of some dozens of numbers is by chance below 64·2⁻²⁴ of their size once in ten thousand times.
func whitenedOver(ctx context.Context, run Source) (int, error) {
	var sums, squares, counts []float64
	limit := 64 * tol.U32
	steps := run.Steps()
	for i, step := range steps[:min(len(steps), mostWhitened)] {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 1, err
		}
		adv := b.Token("advantages")
		if adv == nil || len(b.Missing) > 0 || i > 0 && step != steps[i-1]+1 {
			return 1, nil
		}
		if u := stage.Grid(adv); u > tol.U32 {
			limit = u / 4
		}
		var sum, square, n float64
		for k, m := range b.Mask {
			if m {
				sum, square, n = sum+adv[k], square+adv[k]*adv[k], n+1
			}
		}
		sums, squares, counts = append(sums, sum), append(squares, square), append(counts, n)
	}
	centred := func(lo, hi int) bool {
		var sum, square, n float64
		for k := lo; k < hi; k++ {
			sum, square, n = sum+sums[k], square+squares[k], n+counts[k]
		}
		return n > 1 && math.Abs(sum/n) <= limit*math.Sqrt(square/n)
	}
	for span := 1; span <= len(sums); span++ {
		all := true
		for lo := 0; lo+span <= len(sums); lo += span {
			all = all && centred(lo, lo+span)
		}
		if all {
			return span, nil
		}
	}
	return 1, nil
}
