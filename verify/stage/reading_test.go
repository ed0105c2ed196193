package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// A weight that lies on the bound of its rule within its error may be there or not: a loss is right under one of both decisions, and under nothing between them.
func TestLossUnderEitherDecision(t *testing.T) {
	edge := float64(float32(math.Log(2)))
	s := set(t, plainPPO+"tis.level=token tis.rule=zero_outside tis.low=0.5 tis.high=2 tis.gate=ratio tis.log_clamp=none tis.normalize=false "+
		"agg.kind=token agg.denominator=micro agg.div_ga=false mean.eps=0")
	judged := func(loss float64) *Outcome {
		g := newGrid(4, 4).token("logp_new", -1, -1, -1, -1).token("logp_old", -1, -1, -1, -1).token("logp_gen", -1, -1-edge, -1, -1.25).row("advantages", 2)
		return Judge(Find("aggregate/pg_loss"), g.row("pg_loss", loss).Batch, s)
	}
	rest := 2 + math.Exp(0.25)
	for _, weight := range []float64{0, math.Exp(edge)} {
		require.Equal(t, check.Pass, judged(float64(float32(-2*(rest+weight)/4))).Verdict, "the weight %g", weight)
	}
	require.Equal(t, check.Undetermined, judged(-2*(rest+1)/4).Verdict, "no decision makes it 1")
	require.Equal(t, check.Fail, judged(2).Verdict)
}
