package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// A rejection shrinks the mask behind the weights: those of a row are of the tokens before, as their own cells show.
func TestWeightsBeforeTheRejection(t *testing.T) {
	const cols = 4
	old := []float64{-1, -2, -1.5, -3, -0.5, -1, -2, 0, -1, -1.25, 0, 0}
	gen := []float64{-1.1, -1.9, -1.6, -2.8, -0.75, -1, -1.9, 0, -1.5, -1, 0, 0}
	g := newGrid(cols, 4, 3, 2).token("logp_old", old...).token("logp_gen", gen...)
	w := make([]float64, len(old))
	for r := range 3 {
		sum := 0.0
		for i := range g.TokensOf(r) {
			sum += old[i] - gen[i]
		}
		for i := range g.TokensOf(r) {
			w[i] = math.Exp(sum)
		}
	}
	g.token("is_weights", w...)
	g.Mask[1], g.Mask[3] = false, false // rejected
	options := set(t, "tis.level=seq_sum tis.rule=truncate_upper tis.low=none tis.high=9 tis.gate=ratio tis.log_clamp=20 tis.normalize=false")
	rejecting := options.WithFact(rejection, "token_k2")
	o := Judge(Find("ratio/is_weights"), g.Batch, rejecting)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	require.Equal(t, check.Fail, Judge(Find("ratio/is_weights"), g.Batch, options).Verdict, "no rejection is declared")
	wrong := append([]float64{}, w...)
	wrong[0], wrong[2] = 1.1*w[0], 1.1*w[2]
	require.Equal(t, check.Fail, Judge(Find("ratio/is_weights"), g.token("is_weights", wrong...).Batch, rejecting).Verdict)
	filled := append([]float64{}, w...)
	for i := range filled {
		if filled[i] == 0 {
			filled[i] = 1
		}
	}
	require.Equal(t, check.Fail, Judge(Find("ratio/is_weights"), g.token("is_weights", filled...).Batch, rejecting).Verdict, "a fill outside of the mask tells nothing")

	// A row whose weight was outside of the bounds with its rejected tokens has the weight 0; the mean that divides the others counts it.
	banded := set(t, "tis.level=seq_sum tis.rule=zero_outside tis.low=0.7 tis.high=1.1 tis.gate=ratio tis.log_clamp=20 tis.normalize=true").WithFact(rejection, "token_k2")
	mean := 0.0
	for r := range 3 {
		if x := w[r*cols]; x < 0.7 || x > 1.1 {
			w[r*cols] = 0
		}
		mean += w[r*cols] / 3
	}
	require.Zero(t, w[2*cols], "of three rows one is outside")
	require.NotZero(t, mean)
	normal := make([]float64, len(w))
	for i := range normal {
		if w[i] != 0 && i%cols > 0 || i%cols == 0 {
			normal[i] = w[i-i%cols] / mean
		}
	}
	require.Equal(t, check.Pass, Judge(Find("ratio/is_weights"), g.token("is_weights", normal...).Batch, banded).Verdict)
}

// Weights that were not dumped are recomputed of the tokens that are left where a rejection takes whole responses out, or where a weight is of its token
// alone; a sequence that lost tokens had the weight of all of them, which nothing tells.
func TestWeightsOfARejectionNotDumped(t *testing.T) {
	const cols = 4
	g := newGrid(cols, 4, 3, 2).token("logp_old", -1, -2, -1.5, -3, -0.5, -1, -2, 0, -1, -1.25, 0, 0).token("logp_gen", -1.1, -1.9, -1.6, -2.8, -0.75, -1, -1.9, 0, -1.5, -1, 0, 0)
	g.Mask[1] = false
	for _, c := range []struct {
		rule, level, normalize string
		known                  bool
	}{
		{"token_k1", "token", "false", true}, {"seq_mean_k3", "seq_sum", "false", true},
		{"token_k1", "seq_sum", "false", false}, {"seq_mean_k3,token_k2", "seq_geo", "false", false}, {"seq_mean_k3", "seq_sum", "true", false}, {"token_k1", "token", "true", false},
	} {
		options := set(t, "tis.level="+c.level+" tis.rule=zero_outside tis.low=0.5 tis.high=1.5 tis.gate=ratio tis.log_clamp=20 tis.normalize="+c.normalize).WithFact(rejection, c.rule)
		of := NewCase(g.Batch, options, 0)
		w := of.Token("is_weights")
		require.Equal(t, c.known, of.OK() && len(w.X) == len(g.Mask), "%s at %s: %v", c.rule, c.level, of.Absent)
	}
}
