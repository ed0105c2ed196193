package stage_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// scoreOf is the score of a log-ratio and its slope as DPOTrainer of TRL 1.16 has them, f_alpha_divergence_coef 0.4 and 1.3.
var scoreOf = map[string]func(f func(float64) float64, x float64) (s, d float64){
	"dpo.divergence=forward_kl":           func(f func(float64) float64, x float64) (s, d float64) { e := f(math.Exp(-x)); return f(1 - e), e },
	"dpo.divergence=alpha dpo.alpha=0.6":  func(f func(float64) float64, x float64) (s, d float64) { return powerScore(f, 0.4, x) },
	"dpo.divergence=alpha dpo.alpha=-0.3": func(f func(float64) float64, x float64) (s, d float64) { return powerScore(f, 1.3, x) },
	"dpo.divergence=js":                   func(f func(float64) float64, x float64) (s, d float64) { return f(math.Ln2 - nls(f, x)), lg(f, -x) },
	"dpo.divergence=reverse_kl":           func(_ func(float64) float64, x float64) (s, d float64) { return x, 1 },
}

func powerScore(f func(float64) float64, coef, x float64) (s, d float64) {
	e := f(math.Exp(f((coef - 1) * x)))
	return f(f(e-1) * f(1/(coef-1))), e
}

// Scores of any divergence, of whole answers or divided by their tokens (TRL's ipo and sigmoid_norm), and losses that are weighted (WPO).
func TestScoresAndWeightsOfAnotherImplementation(t *testing.T) {
	f := func(x float64) float64 { return float64(float32(x)) }
	log := ratioLog{}
	for divergence, score := range scoreOf {
		for _, perToken := range []bool{false, true} {
			for _, weighted := range []bool{false, true} {
				for seed := range cases(30) {
					tr := pairs(uint64(seed))
					b := tr.b
					near := func(of, name string) {
						tr.perRow(name, func(i int) float64 { return f(b.Row(of)[i] + 4*tr.r.NormFloat64()) })
					}
					near("ref_chosen", "logp_chosen")
					near("ref_rejected", "logp_rejected")
					for _, name := range []string{"chosen_tokens", "rejected_tokens"} {
						tr.perRow(name, func(int) float64 { return float64(1 + tr.r.IntN(30)) })
					}
					tr.perRow("pair_weights", func(int) float64 { return f(math.Exp(-tr.r.ExpFloat64())) })
					row := b.Row
					loss, gc, gr := make([]float64, b.Rows), make([]float64, b.Rows), make([]float64, b.Rows)
					for _, file := range b.Files {
						for i := file.Lo; i < file.Hi; i++ {
							c, dc := score(f, f(row("logp_chosen")[i]-row("ref_chosen")[i]))
							r, dr := score(f, f(row("logp_rejected")[i]-row("ref_rejected")[i]))
							n, m, w := 1., 1., 1.
							if perToken {
								n, m = row("chosen_tokens")[i], row("rejected_tokens")[i]
							}
							if weighted {
								w = row("pair_weights")[i]
							}
							x := f(.1 * f(f(c/n)-f(r/m)))
							g := f(-.1 * lg(f, -x) * w / float64(file.Hi-file.Lo))
							loss[i], gc[i], gr[i] = f(w*nls(f, x)), f(f(g/n)*dc), f(-f(g/m)*dr)
						}
					}
					set := options(t, append(strings.Fields(divergence), "dpo.loss=sigmoid", "dpo.beta=0.1", "dpo.label_smoothing=0", "agg.div_ga=false",
						map[bool]string{true: "dpo.per_token=true", false: "dpo.per_token=false"}[perToken], map[bool]string{true: "dpo.weighting=true", false: "dpo.weighting=false"}[weighted])...)
					for id, x := range map[string][]float64{"preference/pair_loss": loss, "preference/dlogp_chosen": gc, "preference/dlogp_rejected": gr} {
						put(tr, stage.Find(id).Output, x)
						if o := judged32(t, id, b, set); o.Verdict != check.Undetermined {
							log.pass(t, divergence+" "+id, o, seed)
						}
					}
					if weighted {
						require.Equal(t, []string{"pair_weights"}, judged32(t, "preference/pair_loss", b.Without("pair_weights"), set).Case.Absent)
					}
					if judged32(t, "preference/pair_loss", b, set).Verdict != check.Pass {
						continue
					}
					other := b.With("pair_loss", slices.Clone(loss))
					largest := slices.Index(loss, slices.Max(loss))
					other.Row("pair_loss")[largest] *= 2
					require.Equal(t, check.Fail, stage.Judge(stage.Find("preference/pair_loss"), other, set).Verdict, "%s, seed %d", divergence, seed)
				}
			}
		}
	}
	log.report(t)
}

func put(tr *trainer, name string, x []float64) { tr.perRow(name, func(i int) float64 { return x[i] }) }
