package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// TestCountsOfOneRank divides the sums of two ranks by their own tokens for those of both, of one step in two micro-batches or of two steps of a generation batch.
func TestCountsOfOneRank(t *testing.T) {
	run := func(world, micros, span int, loss func(sum, ofRank, all float64) float64) *Losses {
		const rows, cols, steps = 3, 6, 4
		l, length := &Losses{}, func(step, r int) int { return 1 + int(cols*math.Abs(math.Sin(float64(2*step+3*r*r)))) }
		for step := range steps {
			var lengths []int
			for r := range 2 * micros * rows {
				lengths = append(lengths, length(step, r))
			}
			b := lossFile(cols, lengths, func(i int) float64 { return math.Sin(float64(7*i + step)) }, nil)
			b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize, b.Files = step+1, micros, world, nil
			var losses []float64
			for f := range 2 * micros {
				var sum, own, all float64
				for i := f * rows * cols; i < (f+1)*rows*cols; i++ {
					if b.Mask[i] {
						sum += b.Token("token_loss")[i]
					}
				}
				for s := step / span * span; s < step/span*span+span; s++ {
					for r := range 2 * micros * rows {
						if all += float64(length(s, r)); r/rows/micros == f/micros {
							own += float64(length(s, r))
						}
					}
				}
				losses = append(losses, float64(float32(loss(sum, own, all))))
				b.Files = append(b.Files, dump.FileInfo{Rank: f / micros, MicroBatch: f % micros, Lo: f * rows, Hi: (f + 1) * rows, Cols: cols})
			}
			b.Tensors["loss"] = &dump.Tensor{Data: losses, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		return l
	}
	want := []string{"agg.kind=token", "agg.denominator=global", "agg.div_ga=false"}
	local := func(sum, ofRank, _ float64) float64 { return 2 * sum / ofRank }
	l := run(2, 2, 1, local)
	require.Equal(t, "AGG-LOCAL-DENOMINATOR", l.Misdivided())
	require.Subset(t, formTexts(l), want)
	l = run(2, 1, 2, func(sum, ofRank, _ float64) float64 { return 4 * sum / ofRank })
	require.Equal(t, "AGG-LOCAL-DENOMINATOR", l.Misdivided())
	require.Equal(t, 2, l.Generation())
	require.Empty(t, run(2, 1, 1, local).Misdivided(), "a mean over a file, times the ranks")
	require.Empty(t, run(2, 2, 1, func(sum, ofRank, _ float64) float64 { return sum / ofRank }).Misdivided(), "means of ranks are averaged")
	require.Empty(t, run(2, 2, 1, func(sum, _, all float64) float64 { return 2 * sum / all }).Misdivided())
}
