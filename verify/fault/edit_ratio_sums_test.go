package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// The two sums of a row's ratio that are over different cells are named from the loss alone, by the side that has more.
func TestSumsOfRatiosOverOtherCells(t *testing.T) {
	set := clippedLoss(t, "ratio.level", "seq_sum", "ratio.grad", "row", "agg.kind", "seq_mean_token_mean", "agg.empty_rows", "counted")
	for words, more := range map[string]func(in bool, n int) (old, new bool){
		"": func(in bool, _ int) (bool, bool) { return in, in },
		"the old log-probs are summed over responses that the mask takes out as well": func(in bool, n int) (bool, bool) { return in || n == 0, in },
		"the old log-probs are summed over all columns":                               func(in bool, _ int) (bool, bool) { return true, in },
		"the new log-probs are summed over all columns":                               func(in bool, _ int) (bool, bool) { return in, true },
	} {
		b := unclipped()
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		var loss float64
		for r := range b.Rows {
			n := b.Cols - 2 - r%2
			if r == 1 {
				n = 0
			}
			var d float64
			for col := range b.Cols {
				i := r*b.Cols + col
				b.Mask[i] = col < n
				ofOld, ofNew := more(b.Mask[i], n)
				d += lp[i]*float64(boolToInt(ofNew)) - old[i]*float64(boolToInt(ofOld))
			}
			x := math.Exp(d)
			loss += math.Max(-adv[r]*x, -adv[r]*math.Max(0.8, math.Min(x, 1.28))) / float64(b.Rows)
		}
		delete(b.Tensors, "token_loss")
		b.Tensors["pg_loss"] = &dump.Tensor{Name: "pg_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
		o := stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		t.Run(words, func(t *testing.T) { requireName(t, o, "RATIO-MEAN-PADS", words) })
	}
}
