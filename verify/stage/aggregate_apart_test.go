package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Where nobody says whether token_loss holds the KL term, the terms of the loss do: it does not where its aggregate is pg_loss, beside a kl_loss that the
// loss has in addition. A pg_loss that is the loss tells nothing.
func TestTermsTellWhetherTheLossesHoldKL(t *testing.T) {
	const beta = 0.25
	tokens, kl := []float64{0.5, -1.25, 2, 0.75}, []float64{0.5, 1, 0.25, 2}
	mean := func(x []float64) (s float64) {
		for _, v := range x {
			s += v / float64(len(x))
		}
		return s
	}
	judge := func(pg, loss float64, named bool) *stage.Outcome {
		b := &dump.Batch{Rows: 2, Cols: 2, Mask: []bool{true, true, true, true}, Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, 2),
			Files: []dump.FileInfo{{Lo: 0, Hi: 2, Cols: 2}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		for name, x := range map[string][]float64{"token_loss": tokens, "kl": kl} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{2, 2}, Data: x, Type: format.F32}
		}
		scalars := map[string]float64{"loss": loss, "pg_loss": pg}
		if named {
			scalars["kl_loss"] = mean(kl)
		}
		for name, x := range scalars {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Data: []float64{x}, Type: format.F32}
		}
		return stage.Judge(stage.Find("aggregate/loss"), b, options(t, "agg.kind=token", "agg.denominator=micro", "agg.div_ga=false", "mean.eps=0", "mean.empty=zero",
			"mask.tokens=response", "kl.place=loss", "kl.beta=0.25", "kl.agg=same", "entropy.coef=0", "value.coef=–", "tis.level=none"))
	}
	right := mean(tokens) + beta*mean(kl)
	o := judge(mean(tokens), right, true)
	require.Equal(t, check.Pass, o.Verdict, "%v %v", o.Lacking(), o.Tally)
	require.Equal(t, check.Fail, judge(mean(tokens), right+0.5, true).Verdict)
	require.Equal(t, check.Undetermined, judge(mean(tokens), right, false).Verdict)
	require.Equal(t, check.Undetermined, judge(mean(tokens), mean(tokens), true).Verdict)
}

// Of a loss that has a value term by its coefficient, of which nothing was dumped, the rest says nothing, unless the loss is the policy term alone.
func TestLossWithAHiddenValueTerm(t *testing.T) {
	judge := func(loss float64, value ...float64) *stage.Outcome {
		b := &dump.Batch{Rows: 2, Cols: 1, Mask: []bool{true, true}, Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, 2), Files: []dump.FileInfo{{Lo: 0, Hi: 2, Cols: 1}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		b.Tensors["token_loss"] = &dump.Tensor{Name: "token_loss", Layout: dump.PerToken, Width: 1, Shape: []int{2, 1}, Data: []float64{0.5, 1}, Type: format.F32}
		for name, x := range map[string][]float64{"loss": {loss}, "value_loss": value} {
			if len(x) > 0 {
				b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Data: x, Type: format.F32}
			}
		}
		return stage.Judge(stage.Find("aggregate/loss"), b, options(t, "agg.kind=token", "agg.denominator=micro", "agg.div_ga=false", "mean.eps=0", "mean.empty=zero",
			"mask.tokens=response", "kl.place=none", "entropy.coef=0", "value.coef=0.5", "tis.level=none"))
	}
	require.Equal(t, check.Pass, judge(1.25, 1).Verdict)
	require.Equal(t, check.Fail, judge(1.5, 1).Verdict)
	require.Equal(t, check.Pass, judge(0.75).Verdict, "the policy term alone")
	o := judge(1.25)
	require.Equal(t, check.Undetermined, o.Verdict)
	require.Equal(t, "not in the dump: value_loss", o.Lacking())
}
