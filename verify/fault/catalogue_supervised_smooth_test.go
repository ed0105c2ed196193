package fault_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// Labels that are smoothed where nothing says so, and tokens that are detached and counted.
func TestSmoothedLabels(t *testing.T) {
	const rows, cols, vocab = 4, 12, 5
	g := rand.New(rand.NewPCG(8, 2))
	logits, ids := make([]float64, rows*cols*vocab), make([]float64, rows*cols)
	mask := make([]bool, rows*cols)
	lp, mean := make([]float64, rows*cols), make([]float64, rows*cols)
	labels := 0.0
	for i := range mask {
		ids[i] = float64(g.IntN(vocab))
		var sum, all float64
		for v := range vocab {
			z := float64(float32(2 * g.NormFloat64()))
			logits[i*vocab+v] = z
			sum, all = sum+math.Exp(z), all+z/vocab
		}
		lp[i], mean[i] = logits[i*vocab+int(ids[i])]-math.Log(sum), all-math.Log(sum)
		if mask[i] = i%cols > i/cols; mask[i] {
			labels++
		}
	}
	batch := func(eps float64, part bool) *dump.Batch {
		each, slope, loss := make([]float64, rows*cols), make([]float64, rows*cols), 0.0
		for i, m := range mask {
			if !m {
				continue
			}
			each[i] = -(1-eps)*lp[i] - eps*mean[i]
			loss += each[i] / labels
			if slope[i] = -(1 - eps) / labels; part && i%2 == 0 {
				slope[i] = 0
			}
		}
		b := written("sft", rows, cols, mask, map[string][]float64{"logp_new": append([]float64(nil), lp...), "token_loss": each, "loss": {loss}, "dlogp": slope})
		b.Tensors["logits"] = &dump.Tensor{Name: "logits", Layout: dump.PerToken, Width: vocab, Shape: []int{rows, cols, vocab}, Data: logits, Type: format.F32}
		return b
	}
	set := declared(t, map[string]string{"agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": "false"})
	for _, ch := range []string{"token_loss/policy", "preference/sft_loss", "gradient/dlogp"} {
		requireFault(t, "SFT-SMOOTHING", ch, batch(0.1, false), set, batch(0, false))
	}
	requireFault(t, "GRADIENT-PART", "gradient/dlogp", batch(0, true), set, batch(0, false))
}
