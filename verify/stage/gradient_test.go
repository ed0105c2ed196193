package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// backward returns the gradient of the losses of the files by the derivatives of dual numbers.
func (t *trainer) backward(f *family, token []dual, rho, n, w []float32) []float64 {
	b := t.b
	grad := make([]float64, len(token))
	for r := range b.Rows {
		var along []float32
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			along = append(along, w[i]*token[i].ratio*rho[i])
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			g := w[i] * token[i].direct
			switch {
			case f.level == "token":
				g += w[i] * token[i].ratio * rho[i]
			case b.Mask[i]:
				g += sum32(along) / n[r]
			}
			if b.Mask[i] || w[i] != 0 {
				grad[i] = float64(g)
			}
		}
	}
	t.put("dlogp", grad)
	return grad
}

func TestGradientOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	all := reductions()
	for k, f := range families() {
		for seed := range cases(300) {
			tr := newTrainer(uint64(seed))
			tr.logprobs(f.drift)
			if f.weights {
				tr.grid("is_weights", func(int) float64 { return math.Exp(0.3 * tr.r.NormFloat64()) })
			}
			a := all[(seed+k)%len(all)]
			if a.kind == "luspo" && (f.weights || f.level != "token") {
				a = all[0]
			}
			set := a.set(t, f.set(t))
			token, rho, n := tr.losses(&f)
			grad := tr.backward(&f, token, rho, n, a.weights(tr.b, tr.micro))
			o := judged32(t, "gradient/dlogp", tr.b, set)
			log.pass(t, f.name, o, seed)
			if at := slices.Index(tr.b.Mask, true); grad[at] != 0 {
				planted(t, "gradient/dlogp", "dlogp", tr.b, set, at)
			}
		}
	}
	log.report(t)
}

// cases is how many random cases a test draws: fewer where it is to be short.
func cases(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

// wrong judges a gradient that a bug has changed.
func wrong(t *testing.T, f family, change func(tr *trainer, grad []float64)) {
	t.Helper()
	tr := newTrainer(17)
	tr.logprobs(f.drift)
	a := reduction{kind: "seq_mean_token_mean", where: "micro", counted: true}
	set := a.set(t, f.set(t))
	token, rho, n := tr.losses(&f)
	grad := tr.backward(&f, token, rho, n, a.weights(tr.b, tr.micro))
	require.Equal(t, check.Pass, judged32(t, "gradient/dlogp", tr.b, set).Verdict)
	change(tr, grad)
	require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", tr.b, set).Verdict)
}

func TestGradientBugs(t *testing.T) {
	f := families()
	t.Run("detached ratio", func(t *testing.T) { wrong(t, f[0], func(tr *trainer, g []float64) { clear(g) }) })
	t.Run("sign", func(t *testing.T) {
		wrong(t, f[0], func(tr *trainer, g []float64) {
			for i := range g {
				g[i] = -g[i]
			}
		})
	})
	t.Run("padded denominator", func(t *testing.T) {
		wrong(t, f[0], func(tr *trainer, g []float64) {
			for i := range g {
				r := i / tr.b.Cols
				g[i] = round32(g[i] * float64(length(tr.b, r)) / float64(tr.b.Cols+1))
			}
		})
	})
	t.Run("naive instead of corrected KL", func(t *testing.T) {
		naive := f[2]
		naive.weights = false
		wrong(t, naive, func(tr *trainer, g []float64) {
			other := naive
			other.grad = "naive"
			a := reduction{kind: "seq_mean_token_mean", where: "micro", counted: true}
			token, rho, n := tr.losses(&other)
			tr.backward(&other, token, rho, n, a.weights(tr.b, tr.micro))
		})
	})
	t.Run("gradient at a masked cell", func(t *testing.T) {
		wrong(t, f[0], func(tr *trainer, g []float64) {
			for i := range g {
				if !tr.b.Mask[i] && i%tr.b.Cols < tr.b.Origin[i/tr.b.Cols].Cols {
					g[i] = 1e-12
				}
			}
		})
	})
}

// A row's log-ratio that is summed over all of its columns has a slope at those that were filled with equal log-probs, and ends there.
func TestGradientAtAFilledCell(t *testing.T) {
	for _, fill := range []float64{0, 1} {
		for _, f := range families() {
			if f.name != "summed ratio" && f.name != "reinforce" {
				continue
			}
			tr := newTrainer(17)
			tr.logprobs(f.drift)
			a := reduction{kind: "seq_mean_token_mean", where: "micro", counted: true}
			set := a.set(t, f.set(t))
			token, rho, n := tr.losses(&f)
			grad := tr.backward(&f, token, rho, n, a.weights(tr.b, tr.micro))
			outside := func(i int) bool { return !tr.b.Mask[i] && i%tr.b.Cols < tr.b.Origin[i/tr.b.Cols].Cols }
			for i := range grad {
				if outside(i) {
					grad[i] = 0.125
				}
			}
			require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", tr.b, set).Verdict, f.name)
			for i := range grad {
				if outside(i) {
					tr.b.Token("logp_new")[i], tr.b.Token("logp_old")[i] = fill, fill
				}
			}
			want := check.Pass
			if f.name == "reinforce" && fill != 0 {
				want = check.Fail
			}
			require.Equal(t, want, judged32(t, "gradient/dlogp", tr.b, set).Verdict, "%s, %g", f.name, fill)
		}
	}
}

func TestGradientOnAClipBound(t *testing.T) {
	// The ratio lies on 1 + clip.high within rounding: torch passes all of the gradient, none, or half at equality.
	// For the other sign of the advantage the clip does not act, but at equality the maximum halves the gradient all the same.
	for _, sign := range []float64{1, -1} {
		gradientOnAClipBound(t, sign)
	}
}

func gradientOnAClipBound(t *testing.T, sign float64) {
	f := families()[0]
	tr := newTrainer(3)
	tr.logprobs(0)
	b := tr.b
	tr.grid("logp_old", func(int) float64 { return -1 })
	tr.grid("logp_new", func(int) float64 { return -1 + math.Log(1.28) })
	tr.grid("advantages", func(int) float64 { return sign })
	a := reduction{kind: "token_sum", where: "micro"}
	set := a.set(t, f.set(t))
	full := -sign * math.Exp(b.Token("logp_new")[0]+1)
	allowed := []float64{full, full / 2, 0}
	if sign < 0 {
		allowed = allowed[:2]
	}
	for _, x := range allowed {
		tr.grid("dlogp", func(i int) float64 {
			if b.Mask[i] {
				return x
			}
			return 0
		})
		require.NotEqual(t, check.Fail, judged32(t, "gradient/dlogp", b, set).Verdict, "%v", x)
	}
	for _, x := range []float64{-1.1 * full, 2.1 * full} {
		tr.grid("dlogp", func(i int) float64 {
			if b.Mask[i] {
				return x
			}
			return 0
		})
		require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", b, set).Verdict, "%v", x)
	}
}

func TestGradientIsScaled(t *testing.T) {
	f := families()[1]
	tr := newTrainer(9)
	tr.logprobs(f.drift)
	a := reduction{kind: "token", where: "global"}
	set := a.set(t, f.set(t))
	token, rho, n := tr.losses(&f)
	grad := tr.backward(&f, token, rho, n, a.weights(tr.b, tr.micro))
	for i := range grad {
		grad[i] *= 1024
	}
	require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", tr.b, set).Verdict)
	tr.b.Meta.DLogpScale = 1. / 1024
	require.Equal(t, check.Pass, judged32(t, "gradient/dlogp", tr.b, set).Verdict)
	tr.b.Meta.DLogpScale = 0
	require.Equal(t, check.Undetermined, judged32(t, "gradient/dlogp", tr.b, set).Verdict)
}

func TestGradientIgnoresWhatMaskedCellsHold(t *testing.T) {
	f := families()[1]
	tr := newTrainer(10)
	tr.logprobs(f.drift)
	a := reduction{kind: "token", where: "micro"}
	set := a.set(t, f.set(t))
	token, rho, n := tr.losses(&f)
	tr.backward(&f, token, rho, n, a.weights(tr.b, tr.micro))
	before := judged32(t, "gradient/dlogp", tr.b, set)
	for _, name := range []string{"logp_new", "logp_old", "logp_ref", "advantages"} {
		for i, m := range tr.b.Mask {
			if !m {
				tr.b.Token(name)[i] = math.NaN()
			}
		}
	}
	after := judged32(t, "gradient/dlogp", tr.b, set)
	require.Equal(t, before.Verdict, after.Verdict)
	require.Equal(t, check.Pass, after.Verdict)
	require.InDelta(t, before.Tally.Worst.Ratio, after.Tally.Worst.Ratio, 1e-12)
}

func TestGradientOfSupervisedTraining(t *testing.T) {
	tr := newTrainer(14)
	b := tr.b
	b.Meta.Algorithm = "sft"
	tr.grid("logp_new", func(int) float64 { return -tr.r.ExpFloat64() })
	a := reduction{kind: "token", where: "micro"}
	w := a.weights(b, tr.micro)
	tr.grid("dlogp", func(i int) float64 { return -float64(w[i]) })
	set := options(t, "agg.denominator=micro")
	require.Equal(t, check.Pass, judged32(t, "gradient/dlogp", b, set).Verdict)
	tr.grid("dlogp", func(i int) float64 { return float64(w[i]) })
	require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", b, set).Verdict)
}

func TestGradientOfTheGeometricMean(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(200) {
		tr := newTrainer(uint64(seed))
		tr.logprobs(0.3)
		b := tr.b
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")
		grad := make([]float64, len(lp))
		loss := make([]float64, b.Rows)
		for r := range b.Rows {
			var a, c []float32
			open := make([]bool, b.Cols)
			for j := range b.Cols {
				i := r*b.Cols + j
				if !b.Mask[i] {
					continue
				}
				d := float32(lp[i]) - float32(old[i])
				a = append(a, float32(adv[i]))
				k := min(max(d, -.2), .2)
				if adv[i] > 0 && k < d || adv[i] < 0 && k > d {
					d = k
				} else {
					open[j] = true
				}
				c = append(c, d)
			}
			n := max(float32(len(a)), 1)
			loss[r] = float64(-sum32(a) / n * tr.exp32(sum32(c)/n))
			for j, o := range open {
				if o {
					grad[r*b.Cols+j] = float64(float32(loss[r]) / n / float32(b.Files[b.Origin[r].File].Hi-b.Files[b.Origin[r].File].Lo))
				}
			}
		}
		tr.put("dlogp", grad)
		tr.perRow("token_loss", func(r int) float64 { return loss[r] })
		var means []float64
		for _, f := range b.Files {
			var terms []float32
			for r := f.Lo; r < f.Hi; r++ {
				terms = append(terms, float32(loss[r]))
			}
			means = append(means, float64(sum32(terms)/float32(f.Hi-f.Lo)))
		}
		tr.perFile("loss", means)
		words := []string{"loss.kind=gmpo", "clip.low=0.2", "clip.high=0.2", "ratio.log_clamp=none", "kl.place=none", "agg.kind=seq_mean_token_mean", "agg.div_ga=false", "mean.empty=zero", "entropy.coef=0"}
		set := options(t, words...)
		log.pass(t, "token_loss", judged32(t, "token_loss/policy", b, set), seed)
		log.pass(t, "dlogp", judged32(t, "gradient/dlogp", b, set), seed)
		log.pass(t, "loss", judged32(t, "aggregate/loss", b, set), seed)
		if at := slices.IndexFunc(grad, func(g float64) bool { return g != 0 }); at >= 0 {
			planted(t, "gradient/dlogp", "dlogp", b, set, at)
		}

		whole := options(t, append(words, "agg.denominator=global")...) // a program that is not verl says so
		for i := range grad {
			f := b.Files[b.Origin[i/b.Cols].File]
			grad[i] *= float64((f.Hi-f.Lo)*b.Meta.WorldSize) / float64(b.Rows) // gradients are averaged over ranks
		}
		for f, file := range b.Files {
			means[f] *= float64((file.Hi-file.Lo)*b.Meta.WorldSize) / float64(b.Rows)
		}
		log.pass(t, "dlogp", judged32(t, "gradient/dlogp", b, whole), seed)
		log.pass(t, "loss", judged32(t, "aggregate/loss", b, whole), seed)
	}
	log.report(t)
}

// verl's gspo is sg(s)·exp(lp − sg(lp)): a token's gradient has its own advantage and the ratio of the whole row; others' goes through the
// mean of the row, and so has that of all its tokens. In a row of equal advantages the two agree.
func TestGradientOfGSPOToken(t *testing.T) {
	tr := newTrainer(1)
	tr.logprobs(0.1)
	tr.grid("advantages", func(i int) float64 { return float64(1 + i%3) })
	a := reduction{kind: "seq_mean_token_mean", where: "micro"}
	words := []string{"loss.kind=gspo", "ratio.level=seq_mean", "ratio.log_clamp=none", "ratio.seq_log_max=none", "ratio.len_eps=0", "ratio.old=stored", "clip.low=none", "clip.high=none", "clip.dual=none", "clip.delta=none", "kl.place=none"}
	row, token := a.set(t, options(t, append(words, "ratio.grad=row")...)), a.set(t, options(t, append(words, "ratio.grad=token")...))
	lp, old, adv := tr.b.Token("logp_new"), tr.b.Token("logp_old"), tr.b.Token("advantages")
	of := func(perToken bool) {
		tr.grid("dlogp", func(i int) float64 {
			r := i / tr.b.Cols
			var s, n, rows, sum float64
			for k, m := range tr.b.Mask {
				if k/tr.b.Cols == r && m {
					s += lp[k] - old[k]
					sum += adv[k]
					n++
				}
			}
			for k := range tr.b.Rows {
				for _, m := range tr.b.Mask[k*tr.b.Cols : (k+1)*tr.b.Cols] {
					if m {
						rows++
						break
					}
				}
			}
			if !tr.b.Mask[i] {
				return 0
			}
			mean := sum / n
			if perToken {
				mean = adv[i]
			}
			return -math.Exp(s/n) * mean / n / rows
		})
	}
	for perToken, right := range map[bool]*convention.Set{true: token, false: row} {
		wrong := token
		if perToken {
			wrong = row
		}
		of(perToken)
		o := judged32(t, "gradient/dlogp", tr.b, right)
		require.Equal(t, check.Pass, o.Verdict, "%v %v %v", perToken, o.Case.Unknown, o.Case.Absent)
		require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", tr.b, wrong).Verdict)
	}
	tr.grid("advantages", func(int) float64 { return 1 })
	adv = tr.b.Token("advantages")
	of(true)
	require.Equal(t, check.Pass, judged32(t, "gradient/dlogp", tr.b, token).Verdict)
	require.Equal(t, check.Pass, judged32(t, "gradient/dlogp", tr.b, row).Verdict)
}

// OpenRLHF's gspo with is_correction_level takes its ratio to the engine's log-probs; its token loss and gradient are those, and not those of logp_old.
func TestRatioToTheEngine(t *testing.T) {
	tr := newTrainer(2)
	tr.logprobs(0.1)
	old := slices.Clone(tr.b.Token("logp_old"))
	tr.grid("logp_gen", func(i int) float64 { return old[i] + 0.05*float64(i%5) })
	tr.grid("advantages", func(int) float64 { return 1 })
	gen, lp := tr.b.Token("logp_gen"), tr.b.Token("logp_new")
	tr.grid("token_loss", func(i int) float64 { return -math.Exp(lp[i] - gen[i]) })
	tr.b.Meta.TokenLossIncludesKL = new(bool)
	words := []string{"loss.kind=ppo", "ratio.level=token", "ratio.log_clamp=none", "clip.low=none", "clip.high=none", "clip.dual=none", "clip.delta=none", "kl.place=none", "tis.level=none"}
	require.Equal(t, check.Pass, judged32(t, "token_loss/policy", tr.b, options(t, append(words, "ratio.old=engine")...)).Verdict)
	require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b, options(t, append(words, "ratio.old=stored")...)).Verdict)
}

func TestUnknownOptionsOfTheGradientAreThoseItUses(t *testing.T) {
	f := families()[1]
	tr := newTrainer(3)
	tr.logprobs(f.drift)
	tr.grid("dlogp", func(int) float64 { return 0 })
	a := reduction{kind: "token", where: "micro"}
	set := a.set(t, f.set(t)).With("kl.grad", convention.Value{}, "")
	o := judged32(t, "gradient/dlogp", tr.b, set)
	require.Equal(t, []string{"kl.grad"}, o.Case.Unknown)
}
