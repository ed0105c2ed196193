package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// A search asks for what tells whether token_loss holds the KL term, where no file says it: without these options no value of any other is right.
func TestUnsaidKLIsTold(t *testing.T) {
	const beta = 0.05
	b := gradientOf(2, 0.2, func(float64, float64) float64 { return 0 })
	lp, old, ref, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("advantages")
	token := make([]float64, len(lp))
	var loss float64
	for r := range b.Rows {
		var policy, kl, n float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if !b.Mask[i] {
				continue
			}
			rho, d := math.Exp(lp[i]-old[i]), ref[i]-lp[i]
			token[i] = float64(float32(-min(rho*adv[i], min(max(rho, 0.8), 1.2)*adv[i])))
			policy, kl, n = policy+token[i], kl+math.Expm1(d)-d, n+1
		}
		loss += (policy + beta*kl) / n / float64(b.Rows)
	}
	b.Tensors["token_loss"] = &dump.Tensor{Data: token, Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
	b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(loss))}, Layout: dump.PerFile, Type: format.F32, Shape: []int{1}}
	fits, _ := Complete(Find("aggregate/loss"), b, (&convention.Set{}).With("kl.beta", convention.NumberValue(beta), "search"))
	require.NotEmpty(t, fits)
	require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
	require.Equal(t, "loss", texts(fits[0].Changes)["kl.place"])
}
