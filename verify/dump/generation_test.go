package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// TRL 1.16's dapo loss of a generation batch that feeds two steps is divided by half of the tokens of both, whether the dump says
// num_items_in_batch or not. The tokens of the step are the bug that they would be elsewhere, and half of a batch decides nothing.
func TestTokensOfAGenerationBatch(t *testing.T) {
	lengths := [][]int{{3, 9, 4, 5}, {8, 8, 7, 2}, {1, 2, 9, 9}, {6, 6, 6, 9}}
	tokens := []float64{21, 25, 21, 27}
	declared, count := true, len(lengths)
	run := func(divisor func(step int) float64) (list dump.Batches) {
		const rows, cols = 4, 9
		for step := range count {
			lens := lengths[step%len(lengths)]
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}}
			b.Files = []dumpfile.FileInfo{{Name: "step", Hi: rows, Cols: cols}}
			no := false
			b.Meta = dumpfile.Meta{Step: step + 1, WorldSize: 1, MicroBatches: 1, DLogpScale: 1, Framework: "trl", Version: "1.16.0", Algorithm: "grpo", TokenLossIncludesKL: &no,
				Options: []dumpfile.Option{{Name: "loss_type", Value: "dapo"}, {Name: "beta", Value: 0.0}, {Name: "steps_per_generation", Value: 2.0}, {Name: "gradient_accumulation_steps", Value: 1.0}}}
			if !declared {
				b.Meta = dumpfile.Meta{Step: step + 1, WorldSize: 1, MicroBatches: 1, DLogpScale: 1}
			}
			loss, sum := make([]float64, rows*cols), 0.0
			for r, n := range lens {
				b.Origin = append(b.Origin, dumpfile.Origin{Row: r})
				for c := range n {
					i := r*cols + c
					b.Mask[i], loss[i] = true, float64(float32(math.Sin(float64(7*i+step))-0.3))
					sum += loss[i]
				}
			}
			b.Tensors["token_loss"] = &dumpfile.Tensor{Name: "token_loss", Layout: dumpfile.PerToken, Width: 1, Shape: []int{rows, cols}, Data: loss, Type: format.F32}
			b.Tensors["loss"] = &dumpfile.Tensor{Name: "loss", Layout: dumpfile.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(sum / divisor(step)))}, Type: format.F32}
			list = append(list, b)
		}
		return list
	}
	verdict := func(b dump.Batches) check.Verdict {
		profile := "trl-grpo@1.16"
		if !declared {
			profile = dump.NoProfile
		}
		r, err := dump.Judge(t.Context(), b, dump.Options{Profile: profile, Selection: check.Selection{Select: []string{"aggregate/loss"}}})
		require.NoError(t, err)
		require.Len(t, r.Results, 1)
		return r.Results[0].Verdict
	}
	right := run(func(step int) float64 { return (tokens[step/2*2] + tokens[step/2*2+1]) / 2 })
	wrong := run(func(step int) float64 { return tokens[step] })
	require.Equal(t, check.Pass, verdict(right))
	require.Equal(t, check.Convention, verdict(wrong)) // of the micro-batch, as other releases have it
	require.Equal(t, check.Undetermined, verdict(right[:1]))
	require.Equal(t, check.Undetermined, verdict(right[1:2]))
	counted := func(items func(step int) float64, from int) check.Result {
		b := run(func(step int) float64 { return items(step) / 2 })
		for step := range b {
			b[step].Meta.Step = step + from
			b[step].Meta.Options = append(b[step].Meta.Options, dumpfile.Option{Name: "num_items_in_batch", Value: items(step)})
		}
		r, err := dump.Judge(t.Context(), b, dump.Options{Profile: "trl-grpo@1.16", Selection: check.Selection{Select: []string{"aggregate/num_items"}}})
		require.NoError(t, err)
		require.Len(t, r.Results, 1)
		return r.Results[0]
	}
	for from := range 2 {
		require.Equal(t, check.Pass, counted(func(step int) float64 { return tokens[step/2*2] + tokens[step/2*2+1] }, from).Verdict)
		padded := counted(func(int) float64 { return 2 * 4 * 9 }, from)
		require.Equal(t, check.Fail, padded.Verdict)
		require.Equal(t, "AGG-PAD-DENOMINATOR", padded.Explanations[0].Fault)
		require.Equal(t, "AGG-LOCAL-DENOMINATOR", counted(func(step int) float64 { return tokens[step] }, from).Explanations[0].Fault)
	}
	for words, items := range map[string][2]float64{ // two ranks of two rows each, whose first tokens are of a tool, two of the last row: 24 and 12, then 11 and 27 of their own
		"one rank, which has the most of all":               {24, 27},
		"the first rank, times the ranks":                   {48, 22},
		"responses before some of their tokens were masked": {46, 48},
	} {
		b := run(func(int) float64 { return 1 })
		for step, b := range b {
			b.Meta.WorldSize, b.Meta.Options = 2, append(b.Meta.Options, dumpfile.Option{Name: "num_items_in_batch", Value: items[step/2]})
			b.Files = []dumpfile.FileInfo{{Name: "a", Hi: 2, Cols: 9}, {Name: "b", Lo: 2, Hi: 4, Cols: 9, Rank: 1}}
			b.Tensors["loss"].Shape, b.Tensors["loss"].Data = []int{2}, []float64{0, 0}
			seen := make([]float64, 4*11) // behind two columns of padding
			for r := range 4 {
				b.Origin[r].File = r / 2
				for c := range lengths[step][r] {
					seen[r*11+2+c] = 1
				}
				b.Mask[r*9], b.Mask[r*9+1] = false, b.Mask[r*9+1] && r < 3
			}
			b.Tensors["attention_mask"] = &dumpfile.Tensor{Name: "attention_mask", Layout: dumpfile.PerRow, Width: 11, Shape: []int{4, 11}, Data: seen, Type: format.I64}
		}
		r, err := dump.Judge(t.Context(), b, dump.Options{Profile: "trl-grpo@1.16", Selection: check.Selection{Select: []string{"aggregate/num_items"}}})
		require.NoError(t, err)
		require.Equal(t, check.Fail, r.Results[0].Verdict, words)
		require.Contains(t, r.Results[0].Reason, words)
		require.NotEmpty(t, r.Results[0].Explanations, words)
	}
	declared = false
	require.Equal(t, check.Pass, verdict(run(func(step int) float64 { return (tokens[step/2*2] + tokens[step/2*2+1]) / 2 })), "the losses show it")
	require.Equal(t, check.Pass, verdict(run(func(step int) float64 { return tokens[step] })))
	require.NotEqual(t, check.Pass, verdict(run(func(step int) float64 { return tokens[3-step] })))
	count = 66 // more than are looked at, one after the other
	require.Equal(t, check.Pass, verdict(run(func(step int) float64 { return (tokens[step/2*2%4] + tokens[(step/2*2+1)%4]) / 2 })))
}
