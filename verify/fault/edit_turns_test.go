package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Means of responses of several turns that are made of the means of these, or of some of them, are named by that.
func TestTurns(t *testing.T) {
	const rows, cols = 8, 12
	set := clippedLoss(t, "agg.kind", "seq_mean_token_mean", "mean.eps", "0")
	mask := make([]bool, rows*cols)
	for r := range rows {
		for i := range cols - r%3 {
			mask[r*cols+i] = r == 5 || i < 2+r%3 || i > 4+r%2 && i != 8 // three turns, but for one of the rows
		}
	}
	judged := func(row func(means []float64, lengths []float64) float64) *stage.Outcome {
		b := updated(func(float64, float64) float64 { return 0 })
		x, loss := make([]float64, rows*cols), 0.0
		for i := range x {
			x[i] = float64(float32(0.1*float64(i%7) - 0.25 + 0.013*float64(i)))
		}
		for _, turns := range turnsOf(mask, cols) {
			var means, lengths []float64
			for _, s := range turns {
				means, lengths = append(means, total(x[s.lo:s.hi])/s.tokens()), append(lengths, s.tokens())
			}
			loss += row(means, lengths) / rows
		}
		b.Cols, b.Mask, b.Files[0].Cols, b.Meta.DLogpScale = cols, mask, cols, 1
		b.Tensors = map[string]*dump.Tensor{"token_loss": {Name: "token_loss", Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32},
			"pg_loss": {Name: "pg_loss", Layout: dump.PerFile, Width: 1, Data: []float64{float64(float32(loss))}, Type: format.F32}}
		return stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
	}
	mean := func(x []float64) float64 { return total(x) / float64(len(x)) }
	require.Equal(t, check.Pass, judged(func(means, lengths []float64) (sum float64) {
		for i, m := range means {
			sum += m * lengths[i] / total(lengths)
		}
		return sum
	}).Verdict)
	turns := 0
	for _, list := range turnsOf(mask, cols) {
		turns += len(list)
	}
	for words, row := range map[string]func(means, lengths []float64) float64{
		"that of the means of its turns": func(means, _ []float64) float64 { return mean(means) },
		"the means of the turns":         func(means, _ []float64) float64 { return total(means) },
		"response is that of its first":  func(means, _ []float64) float64 { return means[0] },
		"the last turn of a response": func(means, lengths []float64) float64 {
			return means[len(means)-1] * lengths[len(means)-1] / total(lengths)
		},
		"mean over all turns": func(means, _ []float64) float64 { return total(means) * rows / float64(turns) },
	} {
		found := Explain(judged(row))
		require.NotEmpty(t, found, words)
		require.Contains(t, found[0].Hypothesis.Title, words)
	}
}
