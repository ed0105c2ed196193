package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Where nobody says whether the losses hold the KL term, the numbers do: with the estimates, or with log-probs of a reference from which the
// estimator and its coefficient are solved.
func TestLossesWithAKLThatNobodyDeclaresAreSolved(t *testing.T) {
	surrogate := func(d, adv float64) float64 { return max(-adv*math.Exp(d), -adv*clip(d, 0.0625, 0.177)) }
	tokens := Find("token_loss/policy")
	for _, beta := range []float64{0, 0.0317} {
		for _, kl := range []string{"dumped", "k1", "k2", "k3", "k3 times the ratio"} {
			for seed := range uint64(2) {
				steps := stepsOf(seed, true, func(_, d, adv, kl, _ float64) float64 { return surrogate(d, adv) + beta*kl })
				for _, s := range steps {
					s.B.Meta.TokenLossIncludesKL = nil
					if kl != "dumped" {
						estimated(s.B, kl, beta, surrogate)
					}
				}
				fits := Solve(tokens, steps)
				require.NotEmpty(t, fits, "%s, β %g, seed %d", kl, beta, seed)
				got := map[string]string{}
				for _, c := range fits[0].Changes {
					got[c.Option] = c.To.String()
				}
				require.Equal(t, "0.177", got["clip.high"], "%s: %v", kl, got)
				if beta != 0 {
					require.Equal(t, "0.0317", got["kl.beta"], "%s: %v", kl, got)
				}
				for _, s := range steps {
					require.Equal(t, check.Pass, Judge(tokens, s.B, changedBy(s.Set, fits[0].Changes, "search")).Verdict, "%s: %v", kl, fits[0].Changes)
				}
			}
		}
	}
}

// estimated replaces the estimates of b by log-probs of a reference, and the losses by those that have the estimates of it.
func estimated(b *dump.Batch, kind string, beta float64, surrogate func(d, adv float64) float64) {
	lp, old, adv, kl := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages"), b.Token("kl")
	ref, loss := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		ref[i] = float64(float32(lp[i] + kl[i] - 0.1))
		x := ref[i] - lp[i]
		k := map[string]float64{"k1": -x, "k2": x * x / 2, "k3": math.Expm1(x) - x, "k3 times the ratio": (math.Expm1(x) - x) * math.Exp(lp[i]-old[i])}[kind]
		loss[i] = float64(float32(surrogate(lp[i]-old[i], adv[i]) + beta*k))
	}
	b.Tensors["logp_ref"] = &dump.Tensor{Data: ref, Layout: dump.PerToken, Type: format.F32}
	b.Tensors["token_loss"] = &dump.Tensor{Data: loss, Layout: dump.PerToken, Type: format.F32}
	delete(b.Tensors, "kl")
}

// A loss without the term is read as one, and what no reading gives is solved by none.
func TestWrongLossesWithAKLAreNotSolved(t *testing.T) {
	for name, loss := range map[string]func(lp, d, adv, kl, gap float64) float64{
		"the smaller of both": func(_, d, adv, kl, _ float64) float64 {
			return min(-adv*math.Exp(d), -adv*clip(d, 0.0625, 0.177)) + 0.0317*kl
		},
		"KL subtracted":    func(_, d, adv, kl, _ float64) float64 { return -adv*math.Exp(d) - 0.0317*kl },
		"KL times the ad.": func(_, d, adv, kl, _ float64) float64 { return -adv*math.Exp(d) + 0.0317*kl*adv },
	} {
		for seed := range uint64(2) {
			steps := stepsOf(seed, true, loss)
			for _, s := range steps {
				s.B.Meta.TokenLossIncludesKL = nil
			}
			require.Empty(t, Solve(Find("token_loss/policy"), steps), "%s, seed %d", name, seed)
		}
	}
}
