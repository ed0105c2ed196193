package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

func TestAdvantagesThatAreAllZero(t *testing.T) {
	rows := func(scores, group, adv []float64) grid {
		return newGrid(2, 2, 1, 2, 0).row("scores", scores...).row("group_id", group...).row("advantages", adv...)
	}
	none, pairs := []float64{0, 0, 0, 0}, []float64{0, 0, 1, 1}
	for _, e := range []struct {
		name, options string
		g             grid
		want          check.Verdict
	}{
		{"scores of a group differ", "", rows([]float64{1, 0, 1, 1}, pairs, none), check.Fail},
		{"in a row that is left out only", "", rows([]float64{1, 1, 1, 0}, pairs, none), check.Pass},
		{"scores of two groups differ", "", rows([]float64{1, 1, 0, 0}, pairs, none), check.Pass},
		{"nothing is compared within groups", "adv.kind=rfpp", rows([]float64{1, 1, 0, 0}, pairs, none), check.Fail},
		{"some advantage is not 0", "", rows([]float64{1, 0, 1, 1}, pairs, []float64{0, 0, 0, -1}), check.Pass},
		{"scores are clipped", "reward.clip=before_baseline", rows([]float64{7, 6, 1, 1}, pairs, none), check.Pass},
		{"a penalty makes them equal", "eos.rule=subtract", rows([]float64{1, 0, 1, 1}, pairs, none), check.Pass},
		{"functions that are apart the other way", "adv.multi=normalize_then_sum", rows([]float64{1, 0.5, 1, 1}, pairs, none), check.Pass},
		{"pass@k", "adv.kind=passk", rows([]float64{1, 0, 1, 1}, pairs, none), check.Pass},
		{"no groups are known", "", newGrid(2, 2, 1).row("scores", 1, 0).row("advantages", 0, 0), check.Pass},
		{"outside the mask", "", newGrid(2, 2, 1).row("scores", 1, 0).row("group_id", 3, 3).token("advantages", 0, 0, 0, 5), check.Fail},
	} {
		o := rules(t, "advantage/signal", e.g.Batch, set(t, e.options))
		require.Equal(t, e.want, o.Verdict, e.name)
		if e.want == check.Fail {
			require.Equal(t, "ADV-ZERO", o.Rules.Violations[0].Fault, e.name)
		}
	}
}

// Values that are the discounted rewards leave no advantage, others do.
func TestAdvantagesOfGAEThatAreAllZero(t *testing.T) {
	g := newGrid(3, 3, 3).token("values", 0.81, 0.9, 1, 1.62, 1.8, 2).token("token_rewards", 0, 0, 1, 0, 0, 2).token("advantages", 0, 0, 0, 0, 0, 0)
	require.Equal(t, check.Pass, rules(t, "advantage/signal", g.Batch, set(t, "")).Verdict)
	g.Tensors["values"].Data[1] = 0.5
	require.Equal(t, check.Fail, rules(t, "advantage/signal", g.Batch, set(t, "")).Verdict)
	g.Tensors["advantages"].Data[5] = 0.1
	require.Equal(t, check.Pass, rules(t, "advantage/signal", g.Batch, set(t, "")).Verdict)
}
