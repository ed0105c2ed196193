package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// otherPairs are losses of pairs, written a second time: of the numbers of a file, the loss of
// every pair, in the arithmetic that f rounds to.
var otherPairs = map[string]func(f func(float64) float64, beta, eps, tau float64, c, r, rc, rr []float64) []float64{
	"robust": each(func(f func(float64) float64, beta, eps, _, c, r float64) float64 {
		x := f(beta * f(c-r))
		return f(f(f((1-eps)*nls(f, x))-f(eps*nls(f, -x))) / (1 - 2*eps))
	}),
	"exo_pair": each(func(f func(float64) float64, beta, eps, _, c, r float64) float64 {
		x := f(beta * f(c-r))
		a, b := f(math.Log1p(-eps)), f(math.Log(eps))
		return f(f(lg(f, x)*f(-nls(f, x)-a)) + f(lg(f, -x)*f(-nls(f, -x)-b)))
	}),
	"nca_pair": each(func(f func(float64) float64, beta, _, _, c, r float64) float64 {
		x, y := f(beta*c), f(beta*r)
		return f(f(nls(f, x)+f(.5*nls(f, -x))) + f(.5*nls(f, -y)))
	}),
	"bco_pair": each(func(f func(float64) float64, beta, _, _, c, r float64) float64 {
		return f(nls(f, f(beta*c)) + nls(f, f(-beta*r)))
	}),
	"sppo_hard": each(func(f func(float64) float64, beta, _, _, c, r float64) float64 {
		a, b := f(c-f(.5/beta)), f(r+f(.5/beta))
		return f(f(a*a) + f(b*b))
	}),
	"apo_zero": each(func(f func(float64) float64, beta, _, _, c, r float64) float64 {
		return f(f(1-lg(f, f(beta*c))) + lg(f, f(beta*r)))
	}),
	"apo_down": each(func(f func(float64) float64, beta, _, _, c, r float64) float64 {
		return f(lg(f, f(beta*c)) + f(1-lg(f, f(beta*f(c-r)))))
	}),
	"discopop": each(func(f func(float64) float64, beta, _, tau, c, r float64) float64 {
		x := f(beta * f(c-r))
		m := lg(f, f(x/tau))
		return f(f(nls(f, x)*f(1-m)) + f(f(math.Exp(-x))*m))
	}),
	"aot": func(f func(float64) float64, beta, eps, _ float64, c, r, rc, rr []float64) []float64 {
		return sortedLoss(f, beta, eps, minus(f, c, r), minus(f, rc, rr))
	},
	"aot_unpaired": func(f func(float64) float64, beta, eps, _ float64, c, r, rc, rr []float64) []float64 {
		return sortedLoss(f, beta, eps, minus(f, c, rc), minus(f, r, rr))
	},
}

// summed is the loss of a pair, or 0.2·bco_pair + 1.5·aot.
func summed(kind string, f func(float64) float64, beta, eps, tau float64, x [4][]float64) []float64 {
	if kind != "mix" {
		return otherPairs[kind](f, beta, eps, tau, x[0], x[1], x[2], x[3])
	}
	sum, y := summed("bco_pair", f, beta, eps, tau, x), summed("aot", f, beta, eps, tau, x)
	for i := range sum {
		sum[i] = f(f(.2*sum[i]) + f(1.5*y[i]))
	}
	return sum
}

func each(of func(f func(float64) float64, beta, eps, tau, c, r float64) float64) func(f func(float64) float64, beta, eps, tau float64, c, r, rc, rr []float64) []float64 {
	return func(f func(float64) float64, beta, eps, tau float64, c, r, rc, rr []float64) []float64 {
		x, y := minus(f, c, rc), minus(f, r, rr)
		for i := range x {
			x[i] = of(f, beta, eps, tau, x[i], y[i])
		}
		return x
	}
}

func minus(f func(float64) float64, x, y []float64) []float64 {
	d := make([]float64, len(x))
	for i := range d {
		d[i] = f(x[i] - y[i])
	}
	return d
}

func sortedLoss(f func(float64) float64, beta, eps float64, a, b []float64) []float64 {
	slices.Sort(a)
	slices.Sort(b)
	for i := range a {
		x := f(beta * f(a[i]-b[i]))
		a[i] = f(f(nls(f, x)*(1-eps)) + f(nls(f, -x)*eps))
	}
	return a
}

func nls(f func(float64) float64, x float64) float64 { // −ln σ(x)
	return f(max(-x, 0) + math.Log1p(math.Exp(-math.Abs(x))))
}

func lg(f func(float64) float64, x float64) float64 { return f(1 / (1 + math.Exp(-x))) }

// The losses in float32, and their gradients by differences in float64, are within the bounds; a bug of a thousandth is not.
func TestLossesOfPairsOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	exact := func(x float64) float64 { return x }
	for _, kind := range []string{"robust", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop", "aot", "aot_unpaired", "mix"} {
		for seed := range cases(120) {
			beta, eps, tau := []float64{.1, .3, 1}[seed%3], []float64{.01, .2}[seed%2], []float64{.05, 1}[seed/2%2]
			tr := pairs(uint64(seed))
			b := tr.b
			names := []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"}
			loss := make([]float64, b.Rows)
			grads := [2][]float64{make([]float64, b.Rows), make([]float64, b.Rows)}
			for _, file := range b.Files {
				x := cut(b, names, file)
				copy(loss[file.Lo:file.Hi], summed(kind, round32, beta, eps, tau, x))
				for k := range grads {
					for i := range x[k] {
						at := func(by float64) (sum float64) {
							y := cut(b, names, file)
							y[k][i] += by
							for _, l := range summed(kind, exact, beta, eps, tau, y) {
								sum += l
							}
							return sum
						}
						const step = 0x1p-12
						grads[k][file.Lo+i] = (8*(at(step)-at(-step)) - (at(2*step) - at(-2*step))) / (12 * step) / float64(file.Hi-file.Lo)
					}
				}
			}
			tr.perRow("pair_loss", func(i int) float64 { return loss[i] })
			tr.perRow("dlogp_chosen", func(i int) float64 { return grads[0][i] })
			tr.perRow("dlogp_rejected", func(i int) float64 { return grads[1][i] })
			given := []string{"dpo.loss=" + kind}
			if kind == "mix" {
				given = []string{"dpo.mix=0.2*bco_pair+1.5*aot"}
			}
			set := options(t, append(given, "dpo.beta="+short(beta), "dpo.label_smoothing="+short(eps), "dpo.tau="+short(tau), "agg.div_ga=false")...)
			for _, id := range []string{"preference/pair_loss", "preference/dlogp_chosen", "preference/dlogp_rejected"} {
				o := judged32(t, id, b, set)
				if o.Verdict == check.Undetermined { // no number is large enough
					continue
				}
				log.pass(t, kind+" "+id, o, seed)
			}
			other := b.With("pair_loss", slices.Clone(loss))
			for i := range loss {
				other.Row("pair_loss")[i] += 1e-3 * (1 + math.Abs(loss[i]))
			}
			require.Equal(t, check.Fail, stage.Judge(stage.Find("preference/pair_loss"), other, set).Verdict, "%s, seed %d", kind, seed)
		}
	}
	log.report(t)
}

func cut(b *dump.Batch, names []string, file dump.FileInfo) (x [4][]float64) {
	for k, name := range names {
		x[k] = slices.Clone(b.Row(name)[file.Lo:file.Hi])
	}
	return x
}
