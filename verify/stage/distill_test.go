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

// vocabulary of the distilled batches.
const smallVocab = 5

// distilled draws a batch of distillation.
func distilled(seed uint64) *trainer {
	tr := newTrainer(seed)
	tr.b.Meta.Algorithm = "gkd"
	n := tr.b.Rows * tr.b.Cols
	for _, name := range []string{"logits", "teacher_logits"} {
		x := make([]float64, n*smallVocab)
		for i := range x {
			x[i] = round32([]float64{3, .3}[seed/4%2] * tr.r.NormFloat64())
		}
		tr.put(name, x)
		t := tr.b.Tensors[name]
		t.Layout, t.Width, t.Shape = dump.PerToken, smallVocab, []int{tr.b.Rows, tr.b.Cols, smallVocab}
	}
	return tr
}

// divergence is the divergence of one token in float32, as TRL has it, or with the mixture of probabilities, as Liger had it.
func (t *trainer) divergence(student, teacher []float64, beta, temperature float64, ofProbs bool) float32 {
	logs := func(x []float64) []float32 {
		z := make([]float32, len(x))
		top := float32(math.Inf(-1))
		for j, v := range x {
			z[j] = float32(v) / float32(temperature)
			top = max(top, z[j])
		}
		var sum float32
		for _, v := range z {
			sum += t.exp32(v - top)
		}
		for j := range z {
			z[j] = z[j] - top - t.log32(sum)
		}
		return z
	}
	p, q, b := logs(student), logs(teacher), float32(beta)
	var d float32
	for j := range p {
		m := t.log32(b*t.exp32(q[j]) + (1-b)*t.exp32(p[j]))
		if !ofProbs {
			x, y := p[j]+float32(math.Log1p(-beta)), q[j]+float32(math.Log(beta))
			m = max(x, y) + float32(math.Log1p(math.Exp(-math.Abs(float64(x-y)))))
		}
		switch beta {
		case 0:
			d += t.exp32(q[j]) * (q[j] - p[j])
		case 1:
			d += t.exp32(p[j]) * (p[j] - q[j])
		default:
			d += b*(t.exp32(q[j])*(q[j]-m)) + (1-b)*(t.exp32(p[j])*(p[j]-m))
		}
	}
	return d
}

// log32 is a logarithm that is two ulps too high, what bounds allow an elementary function.
func (t *trainer) log32(x float32) float32 {
	up := float32(math.Inf(1))
	return math.Nextafter32(math.Nextafter32(float32(math.Log(float64(x))), up), up)
}

func TestDistillLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(200) {
		for _, beta := range []float64{0, .3, .5, 1} {
			tr := distilled(uint64(seed))
			b := tr.b
			temperature := []float64{1, .9, 2}[seed%3]
			if seed%4 == 0 { // one token a file, where errors do not cancel
				for _, file := range b.Files {
					mask := b.Mask[file.Lo*b.Cols : file.Hi*b.Cols]
					if at := slices.Index(mask, true); at >= 0 {
						clear(mask[at+1:])
					}
				}
			}
			z, q := b.Tensors["logits"].Data, b.Tensors["teacher_logits"].Data
			x := make([]float64, b.Rows*b.Cols)
			for i := range x {
				x[i] = float64(tr.divergence(z[i*smallVocab:(i+1)*smallVocab], q[i*smallVocab:(i+1)*smallVocab], beta, temperature, seed%2 == 0))
			}
			a := reduction{kind: "token", where: []string{"micro", "global"}[seed%2]}
			tr.perFile("loss", fileSums(b, a.weights(b, tr.micro), x))
			set := options(t, "agg.denominator="+a.where, "mean.empty=zero", "distill.beta="+short(beta), "distill.temperature="+short(temperature))
			log.pass(t, a.where, judged32(t, "distill/loss", b, set), seed)
			for f, file := range b.Files {
				if slices.Contains(b.Mask[file.Lo*b.Cols:file.Hi*b.Cols], true) {
					planted(t, "distill/loss", "loss", b, set, f)
				}
			}
		}
	}
	// Bounds add up what roundings of single terms can do at worst; these have either sign, so that a tenth of the bound is seldom seen.
	t.Logf("largest error/bound: %v", log)
	require.Greater(t, max(log["micro"], log["global"]), 0.05)
}

// unpairedBatch draws a batch of labelled answers.
func unpairedBatch(seed uint64, algorithm string) *trainer {
	tr := newTrainer(seed)
	tr.b.Meta.Algorithm = algorithm
	tr.perRow("logp_policy", func(int) float64 { return -20 + 5*tr.r.NormFloat64() })
	tr.perRow("logp_reference", func(int) float64 { return -20 + 5*tr.r.NormFloat64() })
	tr.perRow("desirable", func(r int) float64 { return float64(r % 2) })
	point := make([]float64, len(tr.b.Files))
	for f := range point {
		point[f] = round32(math.Abs(tr.r.NormFloat64()))
	}
	tr.perFile("reference_point", point)
	return tr
}

func TestUnpairedLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for _, algorithm := range []string{"kto", "bco"} {
		for seed := range cases(300) {
			tr := unpairedBatch(uint64(seed), algorithm)
			b := tr.b
			policy, reference, z := b.Row("logp_policy"), b.Row("logp_reference"), b.PerFile("reference_point")
			loss := make([]float64, len(b.Files))
			for f, file := range b.Files {
				var terms []float32
				for r := file.Lo; r < file.Hi; r++ {
					g, w, sign := float32(policy[r])-float32(reference[r]), float32(.7), float32(-1)
					if r%2 == 1 {
						w, sign = 1.3, 1
					}
					if algorithm == "kto" {
						x := sign * (.2 * (g - float32(z[f])))
						terms = append(terms, w*(1-1/(1+tr.exp32(-x))))
					} else {
						terms = append(terms, w*tr.softplus(-sign*(.2*g-float32(z[f]))))
					}
				}
				loss[f] = float64(sum32(terms) / float32(len(terms)))
			}
			tr.perFile("loss", loss)
			set := options(t, "dpo.beta=0.2", "kto.desirable=1.3", "kto.undesirable=0.7")
			log.pass(t, algorithm, judged32(t, "preference/unpaired_loss", b, set), seed)
			planted(t, "preference/unpaired_loss", "loss", b, set, 0)
		}
	}
	log.report(t)
	b := unpairedBatch(1, "kto").b.Without("reference_point")
	b.Tensors["loss"] = unpairedBatch(1, "kto").b.Tensors["reference_point"]
	o := stage.Judge(stage.Find("preference/unpaired_loss"), b, options(t, "dpo.beta=0.1"))
	require.Equal(t, []string{"reference_point"}, o.Case.Absent)
	require.NotEqual(t, check.Pass, o.Verdict)
}

// Pairs under other divergences, and ORPO with its cross-entropy.
func TestPreferenceDivergencesOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	one := func(x float32) float32 { return float32(math.Log1p(-math.Exp(float64(x)))) }
	for _, kind := range []string{"js", "alpha", "orpo"} {
		for seed := range cases(300) {
			tr := pairs(uint64(seed))
			b := tr.b
			if kind == "orpo" {
				for _, name := range []string{"logp_chosen", "logp_rejected"} {
					tr.perRow(name, func(int) float64 { return -.05 - 3*tr.r.Float64() })
				}
			}
			c, r, rc, rr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
			loss, nll := make([]float64, len(b.Files)), make([]float64, len(b.Files))
			for f, file := range b.Files {
				var terms []float32
				for i := file.Lo; i < file.Hi; i++ {
					x, y := float32(c[i])-float32(rc[i]), float32(r[i])-float32(rr[i])
					switch kind {
					case "js":
						terms = append(terms, tr.softplus(-.1*((x-y)-(tr.softplus(x)-tr.softplus(y)))))
					case "alpha":
						terms = append(terms, tr.softplus(-.1*((tr.exp32(-.25*y)-tr.exp32(-.25*x))/.25)))
					case "orpo":
						x, y = float32(c[i]), float32(r[i])
						terms = append(terms, .1*tr.softplus(-((x-y)-(one(x)-one(y)))))
					}
				}
				nll[f] = round32(1 + tr.r.Float64())
				loss[f] = float64(sum32(terms)/float32(len(terms)) + .5*float32(nll[f]))
			}
			tr.perFile("loss", loss)
			tr.perFile("nll_loss", nll)
			list := []string{"dpo.loss=sigmoid", "dpo.divergence=" + kind, "dpo.alpha=0.25", "dpo.beta=0.1", "dpo.label_smoothing=0", "dpo.nll_weight=0.5"}
			if kind == "orpo" {
				list = []string{"dpo.loss=orpo", "dpo.beta=0.1", "dpo.nll_weight=0.5"}
			}
			set := options(t, list...)
			log.pass(t, kind, judged32(t, "preference/dpo_loss", b, set), seed)
			planted(t, "preference/dpo_loss", "loss", b, set, 0)
		}
	}
	log.report(t)
}
