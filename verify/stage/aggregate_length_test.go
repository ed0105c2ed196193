package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// A declared divisor is the constant of seq_sum_const, whatever else is divided by; the length of a completion stands in for one. Where
// agg.denominator is constant, it is the number of rows.
func TestConstantOfSumsOverTokens(t *testing.T) {
	for _, c := range []struct {
		facts map[string]float64
		where string
		by    float64
	}{
		{map[string]float64{"loss_denominator": 48}, "global", 48},
		{map[string]float64{"loss_denominator": 48, "max_completion_length": 16}, "micro", 48},
		{map[string]float64{"max_completion_length": 16}, "global", 16},
		{map[string]float64{"loss_denominator": 48, "loss_scale_factor": 24}, "rank", 24},
	} {
		tr := newTrainer(3)
		a := reduction{kind: "seq_sum_const", where: c.where, counted: true, div: true}
		x := tr.grid("token_loss", func(int) float64 { return 1 + tr.r.Float64() })
		w := a.weights(tr.b, tr.micro)
		for i := range w {
			w[i] *= float32(tr.b.Files[tr.b.Origin[i/tr.b.Cols].File].Cols) / float32(c.by)
		}
		tr.perFile("loss", fileSums(tr.b, w, x))
		set := a.set(t, &convention.Set{})
		for name, value := range c.facts {
			set = set.WithFact(name, value)
		}
		require.Equal(t, check.Pass, judged32(t, "aggregate/loss", tr.b, set).Verdict, "%v", c)
	}
}

// open-instruct multiplies a loss by the ranks that DeepSpeed averages over, one that a constant divides, too (grpo_fast.py: loss *= world_size).
func TestConstantOfSeveralRanks(t *testing.T) {
	for _, framework := range []string{"open-instruct", ""} {
		tr := newTrainer(3)
		tr.b.Meta.Framework, tr.b.Meta.WorldSize = framework, 2
		x := tr.grid("token_loss", func(int) float64 { return 1 + tr.r.Float64() })
		w := make([]float32, len(x))
		for i, m := range tr.b.Mask {
			if m {
				w[i] = 2. / 50
			}
		}
		tr.perFile("loss", fileSums(tr.b, w, x))
		set := reduction{kind: "token", where: "constant", counted: true}.set(t, &convention.Set{}).WithFact("loss_denominator", 50.0).WithFact("world_size", 2.0)
		want := map[string]check.Verdict{"open-instruct": check.Pass, "": check.Fail}[framework]
		o := judged32(t, "aggregate/loss", tr.b, set)
		require.Equal(t, want, o.Verdict, "%s %s", framework, o.Lacking())
	}
}
