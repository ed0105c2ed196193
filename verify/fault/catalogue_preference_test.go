package fault_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// scorer is the loss of a pair in float32, written as trainers write it.
type scorer func(p pairOf) float32

// pairOf is a pair as a trainer has it.
type pairOf struct{ c, r, rc, rr, nc, nr, beta, eps float32 }

func (p pairOf) h() float32 { return (p.c - p.r) - (p.rc - p.rr) }

func logSigmoid(x float32) float32 {
	return min(x, 0) - float32(math.Log1p(math.Exp(-math.Abs(float64(x)))))
}

func sigmoid32(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

func square(x float32) float32 { return x * x }

// right are the losses as TRL 1.16's DPOTrainer has them.
var right = map[string]scorer{
	"sigmoid": func(p pairOf) float32 { return -(1-p.eps)*logSigmoid(p.beta*p.h()) - p.eps*logSigmoid(-p.beta*p.h()) },
	"hinge":   func(p pairOf) float32 { return max(0, 1-p.beta*p.h()) },
	"robust": func(p pairOf) float32 {
		return (-(1-p.eps)*logSigmoid(p.beta*p.h()) + p.eps*logSigmoid(-p.beta*p.h())) / (1 - 2*p.eps)
	},
	"ipo": func(p pairOf) float32 { return square(p.h() - 1/(2*p.beta)) },
	"apo_zero": func(p pairOf) float32 {
		return 1 - sigmoid32(p.beta*(p.c-p.rc)) + sigmoid32(p.beta*(p.r-p.rr))
	},
	"apo_down": func(p pairOf) float32 { return sigmoid32(p.beta*(p.c-p.rc)) + 1 - sigmoid32(p.beta*p.h()) },
}

var pairBugs = []struct {
	name, loss, id string
	eps            float32
	of             scorer
}{
	{"labels smoothed anyway", "sigmoid", "DPO-SMOOTHING", 0, func(p pairOf) float32 { return -.9*logSigmoid(p.beta*p.h()) - .1*logSigmoid(-p.beta*p.h()) }},
	{"hinge of β − βh", "hinge", "DPO-HINGE", 0, func(p pairOf) float32 { return max(0, p.beta-p.beta*p.h()) }},
	{"no beta for the wrong labels", "sigmoid", "DPO-BETA", .2, func(p pairOf) float32 { return -(1-p.eps)*logSigmoid(p.beta*p.h()) - p.eps*logSigmoid(-p.h()) }},
	{"no beta for the right labels", "sigmoid", "DPO-BETA", .2, func(p pairOf) float32 { return -(1-p.eps)*logSigmoid(p.h()) - p.eps*logSigmoid(-p.beta*p.h()) }},
	{"no reference of the rejected", "sigmoid", "DPO-NO-REFERENCE", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * ((p.c - p.r) - p.rc)) }},
	{"no reference of the chosen", "sigmoid", "DPO-NO-REFERENCE", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * ((p.c - p.r) + p.rr)) }},
	{"hinge of β − h", "hinge", "DPO-HINGE", 0, func(p pairOf) float32 { return max(0, p.beta-p.h()) }},
	{"answers exchanged", "sigmoid", "DPO-SWAPPED", 0, func(p pairOf) float32 { return -logSigmoid(-p.beta * p.h()) }},
	{"answers exchanged", "ipo", "DPO-SWAPPED", 0, func(p pairOf) float32 { return square(-p.h() - 1/(2*p.beta)) }},
	{"policy's halves exchanged", "sigmoid", "DPO-SWAPPED", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * ((p.r - p.c) - (p.rc - p.rr))) }},
	{"reference's halves exchanged", "sigmoid", "DPO-REFERENCE-SIGN", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * ((p.c - p.r) - (p.rr - p.rc))) }},
	{"reference added", "hinge", "DPO-REFERENCE-SIGN", 0, func(p pairOf) float32 { return max(0, 1-p.beta*((p.c-p.r)+(p.rc-p.rr))) }},
	{"no reference", "sigmoid", "DPO-NO-REFERENCE", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * (p.c - p.r)) }},
	{"no beta", "sigmoid", "DPO-BETA", 0, func(p pairOf) float32 { return -logSigmoid(p.h()) }},
	{"no beta", "hinge", "DPO-BETA", 0, func(p pairOf) float32 { return max(0, 1-p.h()) }},
	{"beta twice", "sigmoid", "DPO-BETA", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * (p.beta * p.h())) }},
	{"beta outside", "sigmoid", "DPO-BETA", 0, func(p pairOf) float32 { return -p.beta * logSigmoid(p.h()) }},
	{"beta on the policy", "sigmoid", "DPO-BETA", 0, func(p pairOf) float32 { return -logSigmoid(p.beta*(p.c-p.r) - (p.rc - p.rr)) }},
	{"divided by beta", "sigmoid", "DPO-BETA", 0, func(p pairOf) float32 { return -logSigmoid(p.h() / p.beta) }},
	{"no rejected", "sigmoid", "DPO-ANSWER-MISSING", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * (p.c - p.rc)) }},
	{"one by one", "sigmoid", "DPO-ANSWER-MISSING", 0, func(p pairOf) float32 { return -logSigmoid(p.beta*(p.c-p.rc)) - logSigmoid(-p.beta*(p.r-p.rr)) }},
	{"no logarithm", "sigmoid", "DPO-SIGMOID", 0, func(p pairOf) float32 { return 1 - sigmoid32(p.beta*p.h()) }},
	{"a negative probability", "sigmoid", "DPO-SIGMOID", 0, func(p pairOf) float32 { return -sigmoid32(p.beta * p.h()) }},
	{"wrong sign", "sigmoid", "LOSS-SIGN", 0, func(p pairOf) float32 { return logSigmoid(p.beta * p.h()) }},
	{"smoothing subtracted", "sigmoid", "DPO-SMOOTHING", .2, func(p pairOf) float32 { return -(1-p.eps)*logSigmoid(p.beta*p.h()) + p.eps*logSigmoid(-p.beta*p.h()) }},
	{"smoothing added to all", "sigmoid", "DPO-SMOOTHING", .2, func(p pairOf) float32 { return -logSigmoid(p.beta*p.h()) - p.eps*logSigmoid(-p.beta*p.h()) }},
	{"robust", "sigmoid", "DPO-SMOOTHING", .2, func(p pairOf) float32 {
		return (-(1-p.eps)*logSigmoid(p.beta*p.h()) + p.eps*logSigmoid(-p.beta*p.h())) / (1 - 2*p.eps)
	}},
	{"robust by 1 − ε", "robust", "DPO-SMOOTHING", .2, func(p pairOf) float32 {
		return (-(1-p.eps)*logSigmoid(p.beta*p.h()) + p.eps*logSigmoid(-p.beta*p.h())) / (1 - p.eps)
	}},
	{"smoothing halved", "sigmoid", "DPO-SMOOTHING", .2, func(p pairOf) float32 {
		return -(1-p.eps/2)*logSigmoid(p.beta*p.h()) - p.eps/2*logSigmoid(-p.beta*p.h())
	}},
	{"no margin of the hinge", "hinge", "DPO-HINGE", 0, func(p pairOf) float32 { return max(0, -p.beta*p.h()) }},
	{"squared hinge", "hinge", "DPO-HINGE", 0, func(p pairOf) float32 { return square(max(0, 1-p.beta*p.h())) }},
	{"target 1/β", "ipo", "DPO-IPO", 0, func(p pairOf) float32 { return square(p.h() - 1/p.beta) }},
	{"target β/2", "ipo", "DPO-IPO", 0, func(p pairOf) float32 { return square(p.h() - p.beta/2) }},
	{"margin times β", "ipo", "DPO-IPO", 0, func(p pairOf) float32 { return square(p.beta*p.h() - 1/(2*p.beta)) }},
	{"no target", "ipo", "DPO-IPO", 0, func(p pairOf) float32 { return square(p.h()) }},
	{"the chosen one pushed down", "apo_zero", "DPO-TERMS", 0, func(p pairOf) float32 {
		return sigmoid32(p.beta*(p.c-p.rc)) + sigmoid32(p.beta*(p.r-p.rr))
	}},
	{"the margin of the other loss", "apo_zero", "DPO-TERMS", 0, func(p pairOf) float32 {
		return 1 - sigmoid32(p.beta*(p.c-p.rc)) + 1 - sigmoid32(p.beta*p.h())
	}},
	{"the sign of the margin", "apo_down", "DPO-TERMS", 0, func(p pairOf) float32 { return sigmoid32(p.beta*(p.c-p.rc)) + sigmoid32(p.beta*p.h()) }},
	{"per token", "sigmoid", "DPO-PER-TOKEN", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * ((p.c/p.nc - p.r/p.nr) - (p.rc/p.nc - p.rr/p.nr))) }},
	{"policy per token", "sigmoid", "DPO-PER-TOKEN", 0, func(p pairOf) float32 { return -logSigmoid(p.beta * ((p.c/p.nc - p.r/p.nr) - (p.rc - p.rr))) }},
}

// drawnPairs returns a batch of pairs and the pairs.
func drawnPairs(seed uint64, rows int, beta, eps float32) (map[string][]float64, []pairOf) {
	r := rand.New(rand.NewPCG(seed, 3))
	x, list := map[string][]float64{}, []pairOf{}
	for range rows {
		at := func() float32 { return float32(-40 + 6*r.NormFloat64()) }
		p := pairOf{c: at(), nc: float32(5 + r.IntN(20)), nr: float32(5 + r.IntN(20)), beta: beta, eps: eps}
		p.r = at()
		p.rc, p.rr = p.c+float32(2*r.NormFloat64()), p.r+float32(2*r.NormFloat64())
		list = append(list, p)
		for name, v := range map[string]float32{"logp_chosen": p.c, "logp_rejected": p.r, "ref_chosen": p.rc, "ref_rejected": p.rr, "chosen_tokens": p.nc, "rejected_tokens": p.nr} {
			x[name] = append(x[name], float64(v))
		}
	}
	return x, list
}

func lossOf(list []pairOf, of scorer) (losses []float64, mean float64) {
	var sum float32
	for _, p := range list {
		l := of(p)
		losses, sum = append(losses, float64(l)), sum+l
	}
	return losses, float64(sum / float32(len(list)))
}

func pairOptions(t *testing.T, loss string, beta, eps float32) *convention.Set {
	set := map[string]string{"dpo.beta": fmt.Sprint(beta), "dpo.loss": loss, "dpo.label_smoothing": fmt.Sprint(eps), "agg.div_ga": "false", "dpo.nll_weight": "0", "dpo.per_token": "false"}
	return declared(t, set)
}

// Every bug of a pair's loss has its name, in the loss of a batch alone and in those of its pairs, and the right numbers pass.
func TestPreferenceBugs(t *testing.T) {
	for seed := range uint64(3) {
		for _, b := range pairBugs {
			beta := []float32{.1, .25, .4}[seed]
			x, list := drawnPairs(seed, 6, beta, b.eps)
			set := pairOptions(t, b.loss, beta, b.eps)
			for _, output := range []string{"loss", "pair_loss"} {
				batch := func(of scorer) *dump.Batch {
					y := map[string][]float64{}
					for name, v := range x {
						y[name] = slices.Clone(v)
					}
					losses, mean := lossOf(list, of)
					y["loss"] = []float64{mean}
					if output == "pair_loss" {
						y["pair_loss"] = losses
					}
					return written("dpo", 6, 1, slices.Repeat([]bool{true}, 6), y)
				}
				id := map[string]string{"loss": "preference/dpo_loss", "pair_loss": "preference/pair_loss"}[output]
				require.Equal(t, check.Pass, stage.Judge(stage.Find(id), batch(right[b.loss]), set).Verdict, "%s %s %s", b.name, b.loss, output)
				o := stage.Judge(stage.Find(id), batch(b.of), set)
				require.Equal(t, check.Fail, o.Verdict, "%s %s %s", b.name, b.loss, output)
				found := names(fault.Explain(o))
				require.NotEmpty(t, found, "%s %s %s", b.name, b.loss, output)
				require.Equal(t, b.id, found[0], "%s %s %s: %v", b.name, b.loss, output, found)
			}
		}
	}
}

// A loss per token whose log-probs are divided by other tokens.
func TestPreferenceLossesPerToken(t *testing.T) {
	for seed := range uint64(3) {
		beta := []float32{1, 2, 5}[seed]
		x, list := drawnPairs(seed, 6, beta, 0)
		perToken, err := convention.Parse("dpo.per_token", "true")
		require.NoError(t, err)
		set := pairOptions(t, "sigmoid", beta, 0).With("dpo.per_token", perToken, "test")
		judged := func(of scorer) *stage.Outcome {
			y := map[string][]float64{}
			for name, v := range x {
				y[name] = slices.Clone(v)
			}
			y["pair_loss"], _ = lossOf(list, of)
			return stage.Judge(stage.Find("preference/pair_loss"), written("dpo", 6, 1, slices.Repeat([]bool{true}, 6), y), set)
		}
		divided := func(nc, nr, mc, mr func(p pairOf) float32) scorer { // of the policy's answers and the reference's
			return func(p pairOf) float32 {
				return -logSigmoid(p.beta * ((p.c/nc(p) - p.r/nr(p)) - (p.rc/mc(p) - p.rr/mr(p))))
			}
		}
		c, r := func(p pairOf) float32 { return p.nc }, func(p pairOf) float32 { return p.nr }
		both, none := func(p pairOf) float32 { return p.nc + p.nr }, func(pairOf) float32 { return 1 }
		require.Equal(t, check.Pass, judged(divided(c, r, c, r)).Verdict)
		for title, of := range map[string]scorer{"by the tokens of both": divided(both, both, both, both), "of the other one": divided(r, c, r, c),
			"of the chosen one": divided(c, c, c, c), "the reference's are not": divided(c, r, none, none), "the policy's are not": divided(none, none, c, r)} {
			found := fault.Explain(judged(of))
			require.NotEmpty(t, found, title)
			require.Equal(t, "DPO-PER-TOKEN", found[0].Hypothesis.ID, title)
			require.Contains(t, found[0].Hypothesis.Title, title)
		}
	}
}

// Gradients are those of the losses by finite differences in float64, with the bug in what a program back-propagates.
func TestPreferenceGradientBugs(t *testing.T) {
	const rows = 6
	beta := float32(.2)
	x, list := drawnPairs(5, rows, beta, 0)
	weights := func(w func(h float64) float64) (chosen, rejected []float64) {
		for _, p := range list {
			d := -float64(beta) * w(float64(p.h())) / rows
			chosen, rejected = append(chosen, d), append(rejected, -d)
		}
		return chosen, rejected
	}
	of := func(h float64) float64 { return 1 / (1 + math.Exp(float64(beta)*h)) }
	batch := func(w func(h float64) float64) *dump.Batch {
		y := map[string][]float64{}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		y["dlogp_chosen"], y["dlogp_rejected"] = weights(w)
		return written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), y)
	}
	set := pairOptions(t, "sigmoid", beta, 0)
	for _, b := range []struct {
		id string
		of func(h float64) float64
	}{
		{"LOSS-SIGN", func(h float64) float64 { return -of(h) }},
		{"GRADIENT-ZERO", func(float64) float64 { return 0 }},
		{"DPO-GRADIENT", func(float64) float64 { return 1 }},
		{"DPO-GRADIENT", func(h float64) float64 { return 1 - of(h) }},
		{"DPO-SWAPPED", func(h float64) float64 { return -of(-h) }},
		{"DPO-BETA", func(h float64) float64 { return of(h/float64(beta)) / float64(beta) }},
		{"DPO-SIGMOID", func(h float64) float64 { return of(h) * of(-h) }},
	} {
		for _, output := range []string{"dlogp_chosen", "dlogp_rejected"} {
			ch := stage.Find("preference/" + output)
			require.Equal(t, check.Pass, stage.Judge(ch, batch(of), set).Verdict)
			o := stage.Judge(ch, batch(b.of), set)
			require.Equal(t, check.Fail, o.Verdict, b.id)
			require.Contains(t, names(fault.Explain(o)), b.id, output)
		}
	}
}

// What TRL logs of pairs, and what programs log by its names that is something else.
func TestPreferenceMetricBugs(t *testing.T) {
	const rows = 8
	beta := float32(.3)
	x, list := drawnPairs(9, rows, beta, 0)
	x["ref_chosen"][2], x["ref_rejected"][2] = x["logp_chosen"][2], x["logp_rejected"][2] // a tie
	list[2].rc, list[2].rr = list[2].c, list[2].r
	mean := func(of func(p pairOf) float32) float64 {
		_, m := lossOf(list, of)
		return m
	}
	count := func(of func(p pairOf) bool) float64 {
		return mean(func(p pairOf) float32 {
			if of(p) {
				return 1
			}
			return 0
		})
	}
	set := pairOptions(t, "sigmoid", beta, 0)
	batch := func(name string, value float64) *dump.Batch {
		y := map[string][]float64{}
		for n, v := range x {
			y[n] = slices.Clone(v)
		}
		b := written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), y)
		b.Meta.Framework = "trl"
		b.Files[0].Scalars = []dump.Scalar{{Name: name, Value: value}}
		return b
	}
	for _, c := range []struct {
		name  string
		right float64
		wrong map[string]float64
	}{
		{"rewards/chosen", mean(func(p pairOf) float32 { return p.beta * (p.c - p.rc) }), map[string]float64{
			"METRIC-REWARD-BETA": mean(func(p pairOf) float32 { return p.c - p.rc }), "METRIC-REWARD-REFERENCE": mean(func(p pairOf) float32 { return p.beta * p.c }),
			"METRIC-PAIR-SWAPPED": mean(func(p pairOf) float32 { return p.beta * (p.r - p.rr) }), "METRIC-SIGN": mean(func(p pairOf) float32 { return p.beta * (p.rc - p.c) }),
			"METRIC-PAIR-TOKENS": mean(func(p pairOf) float32 { return p.beta * (p.c/p.nc - p.rc/p.nc) })}},
		{"rewards/rejected", mean(func(p pairOf) float32 { return p.beta * (p.r - p.rr) }), map[string]float64{
			"METRIC-REWARD-BETA": mean(func(p pairOf) float32 { return p.beta * (p.beta * (p.r - p.rr)) })}},
		{"rewards/margins", mean(func(p pairOf) float32 { return p.beta * p.h() }), map[string]float64{
			"METRIC-REWARD-BETA": mean(func(p pairOf) float32 { return p.h() }), "METRIC-PAIR-SWAPPED": mean(func(p pairOf) float32 { return -p.beta * p.h() }), "METRIC-REWARD-REFERENCE": mean(func(p pairOf) float32 { return p.c - p.r })}},
		{"rewards/accuracies", count(func(p pairOf) bool { return p.c-p.rc > p.r-p.rr }), map[string]float64{
			"METRIC-ACCURACY": count(func(p pairOf) bool { return p.c-p.rc >= p.r-p.rr }), "METRIC-REWARD-REFERENCE": count(func(p pairOf) bool { return p.c > p.r })}},
		{"logps/chosen", mean(func(p pairOf) float32 { return p.c }), map[string]float64{
			"METRIC-PAIR-TOKENS": mean(func(p pairOf) float32 { return p.c / p.nc }), "METRIC-LOGPS-REFERENCE": mean(func(p pairOf) float32 { return p.rc }), "METRIC-PAIR-SWAPPED": mean(func(p pairOf) float32 { return p.r })}},
		{"logps/rejected", mean(func(p pairOf) float32 { return p.r }), map[string]float64{"METRIC-SIGN": mean(func(p pairOf) float32 { return -p.r })}},
	} {
		id := stage.ReadsScalar("trl", c.name)
		require.NotEmpty(t, id, c.name)
		require.Equal(t, check.Pass, stage.Judge(stage.Find(id), batch(c.name, c.right), set).Verdict, c.name)
		for want, value := range c.wrong {
			o := stage.Judge(stage.Find(id), batch(c.name, value), set)
			require.Equal(t, check.Fail, o.Verdict, "%s %s", c.name, want)
			require.Contains(t, names(fault.Explain(o)), want, c.name)
		}
	}
}

// The losses of labelled answers, as TRL's KTOTrainer and BCOTrainer have them, and with a bug.
func TestAnswerBugs(t *testing.T) {
	const rows = 9
	beta, z := float32(.25), float32(1.5)
	r := rand.New(rand.NewPCG(4, 4))
	x := map[string][]float64{"reference_point": {float64(z)}}
	for i := range rows {
		p := float32(-30 + 4*r.NormFloat64())
		for name, v := range map[string]float32{"logp_policy": p, "logp_reference": p + float32(2*r.NormFloat64()), "desirable": float32(i % 2)} {
			x[name] = append(x[name], float64(v))
		}
	}
	type answer struct{ p, q, w, sign float32 }
	mean := func(of func(a answer) float32) float64 {
		var sum float32
		for i := range rows {
			a := answer{float32(x["logp_policy"][i]), float32(x["logp_reference"][i]), .7, -1}
			if x["desirable"][i] == 1 {
				a.w, a.sign = 1.3, 1
			}
			sum += of(a)
		}
		return float64(sum / rows)
	}
	set := declared(t, map[string]string{"dpo.beta": fmt.Sprint(beta), "kto.desirable": "1.3", "kto.undesirable": "0.7", "agg.div_ga": "false"})
	batch := func(algorithm string, loss float64) *dump.Batch {
		y := map[string][]float64{"loss": {loss}}
		for n, v := range x {
			y[n] = slices.Clone(v)
		}
		b := written(algorithm, rows, 1, slices.Repeat([]bool{true}, rows), y)
		b.Tensors["reference_point"].Layout = dump.PerFile
		return b
	}
	one := func(a answer, x float32) float32 { return a.w * (1 - sigmoid32(a.sign*x)) }
	for _, c := range []struct {
		algorithm, id string
		of            func(a answer) float32
	}{
		{"kto", "", func(a answer) float32 { return one(a, beta*(a.p-a.q-z)) }},
		{"kto", "DPO-NO-REFERENCE", func(a answer) float32 { return one(a, beta*(a.p-z)) }},
		{"kto", "DPO-BETA", func(a answer) float32 { return one(a, a.p-a.q-z) }},
		{"kto", "KTO-LABELS", func(a answer) float32 { return (2 - a.w) * (1 - sigmoid32(-a.sign*beta*(a.p-a.q-z))) }},
		{"kto", "KTO-WEIGHTS", func(a answer) float32 { return (2 - a.w) * (1 - sigmoid32(a.sign*beta*(a.p-a.q-z))) }},
		{"kto", "KTO-REFERENCE-POINT", func(a answer) float32 { return one(a, beta*(a.p-a.q)) }},
		{"kto", "KTO-REFERENCE-POINT", func(a answer) float32 { return one(a, beta*(a.p-a.q+z)) }},
		{"kto", "KTO-REFERENCE-POINT", func(a answer) float32 { return one(a, beta*(a.p-a.q)-z) }},
		{"kto", "KTO-FORMULA", func(a answer) float32 { return -a.w * logSigmoid(a.sign*beta*(a.p-a.q-z)) }},
		{"kto", "LOSS-SIGN", func(a answer) float32 { return -one(a, beta*(a.p-a.q-z)) }},
		{"bco", "", func(a answer) float32 { return -a.w * logSigmoid(a.sign*(beta*(a.p-a.q)-z)) }},
		{"bco", "KTO-FORMULA", func(a answer) float32 { return one(a, beta*(a.p-a.q)-z) }},
		{"bco", "KTO-REFERENCE-POINT", func(a answer) float32 { return -a.w * logSigmoid(a.sign*beta*(a.p-a.q-z)) }},
	} {
		o := stage.Judge(stage.Find("preference/unpaired_loss"), batch(c.algorithm, mean(c.of)), set)
		if c.id == "" {
			require.Equal(t, check.Pass, o.Verdict, c.algorithm)
			continue
		}
		require.Equal(t, check.Fail, o.Verdict, c.id)
		require.Equal(t, c.id, names(fault.Explain(o))[0], "%v", names(fault.Explain(o)))
	}
}

// Two pairs of four columns, prompt and padding among them, whose log-probs are sums of other cells than those of the mask.
func TestTokensOfAnswers(t *testing.T) {
	tokens := []float64{-1, -2, -4, -8, -17, -33, -60, -130}
	mask := []float64{0, 1, 1, 0, 0, 1, 1, 1} // the second row has no padding
	batch := func(sums ...float64) *dump.Batch {
		b := written("dpo", 2, 1, []bool{true, true}, map[string][]float64{"logp_chosen": sums, "logp_rejected": {-1, -1}, "chosen_token_logps": slices.Clone(tokens), "chosen_mask": slices.Clone(mask)})
		b.Tensors["chosen_token_logps"].Width, b.Tensors["chosen_mask"].Width = 4, 4
		return b
	}
	set := pairOptions(t, "sigmoid", .1, 0)
	for _, sums := range [][]float64{{-15, -240}, {-7, -240}, {-14, -223}, {-12, -190}, {-3, -110}, {-2, -93}, {-4, -190}, {-3, -223. / 3}, {-3.75, -60}} {
		requireFault(t, "DPO-TOKENS", "preference/logp_chosen", batch(sums...), set, batch(-6, -223))
	}
}

// The reference's half of the batch is that of the other answers, whose mask has zeroed its log-probs.
func TestTokensOfTheOtherAnswer(t *testing.T) {
	batch := func(tokens, sums []float64) *dump.Batch {
		b := written("dpo", 2, 1, []bool{true, true}, map[string][]float64{"ref_chosen": sums, "ref_rejected": {-1, -1}, "logp_chosen": {-1, -1}, "logp_rejected": {-1, -1},
			"ref_chosen_token_logps": tokens, "chosen_mask": {0, 1, 1, 0, 0, 1, 1, 1}, "ref_rejected_token_logps": make([]float64, 8), "rejected_mask": {0, 1, 1, 1, 0, 1, 0, 0}})
		for _, name := range []string{"ref_chosen_token_logps", "chosen_mask", "ref_rejected_token_logps", "rejected_mask"} {
			b.Tensors[name].Width = 4
		}
		return b
	}
	requireFault(t, "DPO-REFERENCE-SIGN", "preference/ref_chosen", batch([]float64{0, -2, -4, -8, 0, -33, 0, 0}, []float64{-14, -33}), pairOptions(t, "sigmoid", .1, 0),
		batch([]float64{0, -2, -4, 0, 0, -33, -1, -5}, []float64{-6, -39}))
}

// A token's loss that is a function of its probability, in the loss and in its gradient.
func TestFunctionsOfSupervisedTokens(t *testing.T) {
	lp := []float64{-.25, -1.5, -3, 0, -.75, -2.25, 0, 0}
	mask := []bool{true, true, true, false, true, true, false, false}
	for _, f := range []struct{ loss, slope func(x float64) float64 }{
		{func(x float64) float64 { return 1 - math.Exp(x) }, func(x float64) float64 { return -math.Exp(x) }},
		{func(x float64) float64 { return x * x }, func(x float64) float64 { return 2 * x }},
		{func(x float64) float64 { return -x * (1 - math.Exp(x)) * (1 - math.Exp(x)) }, func(x float64) float64 {
			return -(1 - math.Exp(x)) * (1 - math.Exp(x) - 2*x*math.Exp(x))
		}},
	} {
		batch := func(loss, slope func(x float64) float64) *dump.Batch {
			d, each, sum := make([]float64, len(lp)), make([]float64, len(lp)), 0.0
			for i, m := range mask {
				if m {
					each[i] = loss(lp[i])
					sum += loss(lp[i]) / 5
					d[i] = slope(lp[i]) / 5
				}
			}
			return written("sft", 2, 4, mask, map[string][]float64{"logp_new": slices.Clone(lp), "token_loss": each, "loss": {sum}, "dlogp": d})
		}
		set := declared(t, map[string]string{"agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": "false"})
		healthy := batch(func(x float64) float64 { return -x }, func(float64) float64 { return -1 })
		for _, ch := range []string{"token_loss/policy", "preference/sft_loss", "gradient/dlogp"} {
			requireFault(t, "SFT-FUNCTION", ch, batch(f.loss, f.slope), set, healthy)
		}
	}
}
