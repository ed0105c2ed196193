package dump_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Weights that are in the dump multiply the losses: losses that are right only without them lack them, though nobody declares any.
func TestLossesWithoutTheirWeights(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{verlGRPO})
	require.NoError(t, err)
	for _, applied := range []bool{true, false} {
		var steps dump.Batches
		for _, step := range run.Steps() {
			b, err := run.Batch(context.Background(), step)
			require.NoError(t, err)
			b.Meta.Framework, b.Meta.Version, b.Meta.Profile, b.Meta.Options = "", "", "", nil
			old, loss := b.Token("logp_old"), b.Token("token_loss")
			gen, w := make([]float64, len(old)), make([]float64, len(old))
			cells(b, func(i, row, col int) {
				gen[i] = single(old[i] - 0.05*float64((row+2*col)%5-2))
				w[i] = single(math.Exp(old[i] - gen[i]))
				if applied {
					loss[i] = single(loss[i] * w[i])
				}
			})
			steps = append(steps, perToken(perToken(b, "logp_gen", gen), "is_weights", w))
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: []string{"ratio/*", "token_loss/*"}}})
		require.NoError(t, err)
		if applied {
			require.Empty(t, bad(r), describe(bad(r)))
			continue
		}
		require.Len(t, bad(r), 1, describe(bad(r)))
		require.Equal(t, check.Fail, bad(r)[0].Verdict, describe(bad(r)))
		require.Equal(t, "IS-NOT-APPLIED", bad(r)[0].Explanations[0].Fault)
	}
}

// The estimate of KL that losses of tokens hold is read from the dump where it is there: its kind is known from itself, and a gradient without its
// slope is that of a detached KL, of losses with importance weights, too.
func TestGradientWithoutADumpedKL(t *testing.T) {
	const beta = 0.05
	for k, slope := range []float64{1, 0, 1, 0} {
		r := silentIn(t, verlGRPO, func(b *dumpfile.Batch) {
			includes := true
			b.Meta.TokenLossIncludesKL = &includes
			lp, ref, kl, g := b.Token("logp_new"), b.Token("logp_ref"), b.Token("kl"), b.Token("dlogp")
			adv, token, loss := b.Token("advantages"), b.Token("token_loss"), b.PerFile("loss")
			n := 0.0
			cells(b, func(_, _, _ int) { n++ })
			clear(loss)
			w, gen, old := make([]float64, len(lp)), make([]float64, len(lp)), slices.Clone(lp)
			cells(b, func(i, row, col int) {
				if w[i] = 1; k > 1 {
					old[i] = single(lp[i] - 0.15*math.Sin(float64(3*i)))
					gen[i] = single(lp[i] - 0.05*float64((row+2*col)%5-2))
					w[i] = single(min(math.Exp(old[i]-gen[i]), 1.3))
				}
				ratio := math.Exp(lp[i] - old[i])
				policy := max(-adv[i]*ratio, -adv[i]*min(max(ratio, 0.9), 1.1))
				inside := 0.0
				if policy == -adv[i]*ratio {
					inside = 1
				}
				f := slices.IndexFunc(b.Files, func(f dumpfile.FileInfo) bool { return row < f.Hi })
				d := ref[i] - lp[i]
				kl[i] = single(math.Exp(d) - d - 1)
				token[i] = single(w[i]*policy + beta*kl[i])
				loss[f] += token[i] / n
				g[i] = single((-inside*w[i]*adv[i]*ratio + slope*beta*-math.Expm1(d)) / n)
			})
			if k > 1 {
				b.Tensors["is_weights"], b.Tensors["logp_gen"] = b.With("kl", w).Tensors["kl"], b.With("kl", gen).Tensors["kl"]
			}
			b.Tensors["logp_old"] = b.With("logp_new", old).Tensors["logp_new"]
			delete(b.Tensors, "kl_loss")
			delete(b.Tensors, "pg_loss")
		}, "kl/token", "token_loss/*", "aggregate/*", "gradient/*")
		if slope == 1 {
			require.Empty(t, bad(r), describe(bad(r)))
			continue
		}
		require.Len(t, bad(r), 1, describe(bad(r)))
		require.Equal(t, check.Fail, bad(r)[0].Verdict, describe(bad(r)))
		require.Equal(t, "KL-DETACHED", bad(r)[0].Explanations[0].Fault)
	}
}

// A ratio against the engine's log-probs beside weights for the difference of the old ones from these corrects it twice: no framework does, and a run that
// declares nothing fails. With weights alone it passes.
func TestADifferenceThatIsCorrectedTwiceFails(t *testing.T) {
	for _, twice := range []bool{false, true} {
		for _, r := range silent(t, func(b *dumpfile.Batch) {
			lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss")
			gen, w := make([]float64, len(lp)), make([]float64, len(lp))
			cells(b, func(i, row, _ int) {
				gen[i] = single(old[i] + 0.04*math.Sin(float64(i*i)))
				w[i] = single(min(math.Exp(old[i]-gen[i]), 1.02))
				from := old[i]
				if twice {
					from = gen[i]
				}
				ratio := math.Exp(lp[i] - from)
				loss[i] = single(w[i] * max(-adv[row]*ratio, -adv[row]*min(max(ratio, 0.8), 1.2)))
			})
			for name, x := range map[string][]float64{"logp_gen": gen, "is_weights": w} {
				b.Tensors[name] = &dumpfile.Tensor{Name: name, Data: x, Width: 1, Layout: dumpfile.PerToken, Shape: []int{b.Rows, b.Cols}, Type: format.F32}
			}
			for _, name := range []string{"kl", "logp_ref", "dlogp", "loss", "pg_loss"} {
				delete(b.Tensors, name)
			}
		}, "ratio/is_weights", "token_loss/policy") {
			switch {
			case r.Check != "token_loss/policy":
			case twice:
				require.Equal(t, check.Fail, r.Verdict, r.Reason)
				require.Equal(t, "OLD-IS-GEN", r.Explanations[0].Fault)
			default:
				require.Equal(t, check.Pass, r.Verdict, r.Reason)
			}
		}
	}
}
