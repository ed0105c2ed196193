package dump

import (
	"context"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// mostWhitened bounds the steps that the advantages of a rollout are looked for in.
const mostWhitened = 16

// whitenedOver returns over how many steps the rows of a rollout were shuffled, as numbers per token tell that were whitened over the rollout: the fewest steps
// whose advantages have the mean 0 together, or whose rewards have the variance 1, in every such span of the run, though those of some step alone have
// not. It is 1 where there is no such number. A mean of some dozens of numbers is by chance below 64·2⁻²⁴ of their size once in ten thousand times, as a variance
// is near 1 to as many digits.
func whitenedOver(ctx context.Context, run Source) (int, error) {
	var advantages, rewards moments
	advantages.limit, rewards.limit = 64*tol.U32, 1e-4
	steps := run.Steps()
	for i, step := range steps[:min(len(steps), mostWhitened)] {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 1, err
		}
		if len(b.Missing) > 0 || i > 0 && step != steps[i-1]+1 {
			return 1, nil
		}
		advantages.add(b, b.Token("advantages"))
		rewards.add(b, b.Token("token_rewards"))
	}
	if u := advantages.grid; u > tol.U32 {
		advantages.limit = u / 4
	}
	span := advantages.span(func(sum, square, n float64) bool { return math.Abs(sum/n) <= advantages.limit*math.Sqrt(square/n) })
	if span == 1 && rewards.grid <= tol.U32 {
		span = rewards.span(func(sum, square, n float64) bool {
			within := square - sum*sum/n
			return math.Abs(within/n-1) <= rewards.limit || math.Abs(within/(n-1)-1) <= rewards.limit
		})
	}
	return span, nil
}

// longerWhitened is whitenedOver where it has whole spans of so many steps, over which groups are cut: these may be a part of a rollout. Else it is that span.
func longerWhitened(ctx context.Context, run Source, span int) (int, error) {
	over, err := whitenedOver(ctx, run)
	if err != nil || over%span != 0 {
		return span, err
	}
	return over, nil
}

// moments are Σx, Σx² and n of a number per token over the mask, of each step.
type moments struct {
	sums, squares, counts []float64
	grid, limit           float64
	absent                bool
}

func (m *moments) add(b *dump.Batch, x []float64) {
	if m.absent = m.absent || x == nil; m.absent {
		return
	}
	var sum, square, n float64
	for k := range b.Tokens() {
		sum, square, n = sum+x[k], square+x[k]*x[k], n+1
	}
	m.grid = max(m.grid, stage.Grid(x))
	m.sums, m.squares, m.counts = append(m.sums, sum), append(m.squares, square), append(m.counts, n)
}

// span returns the fewest steps whose moments are as white says, in every such span; 1 where none has them.
func (m *moments) span(white func(sum, square, n float64) bool) int {
	if m.absent {
		return 1
	}
	for span := 1; span <= len(m.sums); span++ {
		all := true
		for lo := 0; lo+span <= len(m.sums); lo += span {
			var sum, square, n float64
			for k := lo; k < lo+span; k++ {
				sum, square, n = sum+m.sums[k], square+m.squares[k], n+m.counts[k]
			}
			all = all && n > 1 && white(sum, square, n)
		}
		if all {
			return span
		}
	}
	return 1
}
