package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// boundToken is a token of which a loss is made.
type boundToken struct{ adv, lp, rho, weight, kl, value, rollout, target float64 }

// boundRun is a run of eight files with a loss of their tokens each, a mean of what of makes of them, and nothing of what is between.
func boundRun(seed uint64, engine, values bool, of func(x boundToken) float64) *Losses {
	l := &Losses{}
	for _, b := range boundBatches(seed, engine, values, of) {
		l.Add(b)
	}
	return l
}

// boundBatches are the steps of boundRun.
func boundBatches(seed uint64, engine, values bool, of func(x boundToken) float64) (list []*dump.Batch) {
	rng := rand.New(rand.NewPCG(seed, 3))
	single := func(v float64) float64 { return float64(float32(v)) }
	for step := range 8 {
		lengths := []int{14, 9, 16, 12, 7, 15}
		b := lossFile(16, lengths, func(int) float64 { return 0 }, nil)
		delete(b.Tensors, "token_loss")
		b.Meta.Step, b.Origin = step, make([]dump.Origin, len(lengths))
		n := 16 * len(lengths)
		x := map[string][]float64{}
		names := []string{"logp_new", "logp_old", "logp_ref", "advantages"}
		if engine {
			names = append(names, "logp_gen")
		}
		if values {
			names = append(names, "values", "values_new", "returns")
		}
		for _, name := range names {
			x[name] = make([]float64, n)
			b.Tensors[name] = &dump.Tensor{Data: x[name], Layout: dump.PerToken, Type: format.F32}
		}
		var sum, tokens float64
		for r, length := range lengths {
			a := single(rng.NormFloat64())
			for i := 16 * r; i < 16*r+length; i++ {
				x["advantages"][i] = a
				x["logp_old"][i] = single(-0.2 - 3*rng.Float64())
				x["logp_new"][i] = single(x["logp_old"][i] + 0.12*float64(step%4)*rng.NormFloat64())
				x["logp_ref"][i] = single(x["logp_old"][i] + 0.2*rng.NormFloat64())
				token := boundToken{adv: a, lp: x["logp_new"][i], rho: math.Exp(x["logp_new"][i] - x["logp_old"][i]), weight: 1, kl: k3(x["logp_new"][i] - x["logp_ref"][i])}
				if engine {
					x["logp_gen"][i] = single(x["logp_old"][i] + 0.05*rng.NormFloat64())
					token.weight = math.Exp(x["logp_old"][i] - x["logp_gen"][i])
				}
				if values {
					x["values"][i], x["returns"][i] = single(rng.NormFloat64()), single(rng.NormFloat64())
					x["values_new"][i] = single(x["values"][i] + 0.1*float64(step%4)*rng.NormFloat64())
					token.value, token.rollout, token.target = x["values_new"][i], x["values"][i], x["returns"][i]
				}
				sum, tokens = sum+of(token), tokens+1
			}
		}
		b.Tensors["loss"] = &dump.Tensor{Data: []float64{single(sum / tokens)}, Layout: dump.PerFile, Type: format.F32}
		list = append(list, b)
	}
	return list
}

// held is −min(ρA, clip(ρ)A), at most −A·dual for A < 0.
func held(x boundToken, low, high, dual float64) float64 {
	loss := -min(x.rho*x.adv, min(max(x.rho, 1-low), 1+high)*x.adv)
	if x.adv < 0 {
		loss = min(loss, -x.adv*dual)
	}
	return loss
}

// Bounds, dual clips, caps of weights and clips of values are solved for, whatever they are, and coefficients with them; of a loss that is none of these
// forms nothing is told.
func TestBoundsAreSolved(t *testing.T) {
	none := math.Inf(1)
	for name, c := range map[string]struct {
		engine, values bool
		of             func(x boundToken) float64
		form           []string
		coefficient    string
		value          float64
	}{
		"bounds": {false, false, func(x boundToken) float64 { return held(x, 0.17, 0.23, none) + 0.03*x.kl },
			[]string{"clip.low=0.17", "clip.high=0.23", "ratio.level=token", "kl.kind=k3"}, "kl.beta", 0.03},
		"dual": {false, false, func(x boundToken) float64 { return held(x, 0.2, 0.2, 1.35) },
			[]string{"clip.low=0.2", "clip.high=0.2", "clip.dual=1.35"}, "", 0},
		"weights": {true, false, func(x boundToken) float64 { return min(x.weight, 1.06) * held(x, 0.2, 0.26, none) },
			[]string{"clip.low=0.2", "clip.high=0.26", "tis.level=token", "tis.rule=truncate_upper", "tis.high=1.06"}, "", 0},
		"weights within bounds": {true, false, func(x boundToken) float64 { return min(max(x.weight, 0.96), 1.05) * held(x, 0.2, 0.2, none) },
			[]string{"clip.low=0.2", "clip.high=0.2", "tis.level=token", "tis.rule=clamp", "tis.low=0.96", "tis.high=1.05"}, "", 0},
		"cispo": {false, false, func(x boundToken) float64 { return -min(x.rho, 1.17)*x.adv*x.lp + 0.02*x.kl },
			[]string{"loss.kind=cispo", "clip.high=0.17", "ratio.level=token", "kl.kind=k3"}, "kl.beta", 0.02},
		"sapo": {false, false, func(x boundToken) float64 {
			tau := 1.3
			if x.adv > 0 {
				tau = 0.9
			}
			return -x.adv * 4 / tau / (1 + math.Exp(-tau*(x.rho-1)))
		}, []string{"loss.kind=sapo", "sapo.tau_pos=0.9", "sapo.tau_neg=1.3"}, "", 0},
		"values": {false, true, func(x boundToken) float64 {
			v := min(max(x.value, x.rollout-0.13), x.rollout+0.13)
			return held(x, 0.2, 0.2, none) + 0.3*max((x.value-x.target)*(x.value-x.target), (v-x.target)*(v-x.target))/2
		}, []string{"clip.low=0.2", "clip.high=0.2", "value.clip=0.13"}, "value.coef", 0.3},
	} {
		for seed := range uint64(2) {
			l := boundRun(seed, c.engine, c.values, c.of)
			var has []string
			for _, change := range l.Form() {
				has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
			}
			require.Subset(t, has, c.form, "%s, seed %d", name, seed)
			if c.coefficient != "" {
				require.InDelta(t, c.value, l.Coefficients()[c.coefficient], 0, "%s, seed %d", name, seed)
			}
		}
	}
	for _, c := range []struct{ name, beside string }{{"pg_loss", "loss"}} { // a policy loss whose other terms are another matter
		l := &Losses{}
		for _, b := range boundBatches(1, false, false, func(x boundToken) float64 { return held(x, 0.13, 0.24, none) }) {
			b.Tensors[c.name] = b.Tensors[c.beside]
			l.Add(b)
		}
		var has []string
		for _, change := range l.Form() {
			has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
		}
		require.Subset(t, has, []string{"clip.low=0.13", "clip.high=0.24"})
	}
	l := &Losses{}
	for _, b := range boundBatches(1, false, false, func(x boundToken) float64 { return held(x, 0.13, 0.24, none) }) { // sums over a constant
		b.Tensors["loss"].Data[0] = float64(float32(b.Tensors["loss"].Data[0] * 73 / 500))
		l.Add(b)
	}
	require.NotEmpty(t, l.Form())
	require.InDelta(t, 500, l.Divisor(), 0)
	for name, of := range map[string]func(x boundToken) float64{
		"a bound of no digit": func(x boundToken) float64 { return held(x, 0.17123, 0.23456, none) },
		"the square of ρ":     func(x boundToken) float64 { return -x.adv * x.rho * x.rho },
	} {
		require.Empty(t, boundRun(1, false, false, of).Form(), name)
	}
}

// Weights and KL that were dumped are known, so that the rest of the form is solved for beside them: of a form with a bug in it, too.
func TestBoundsBesideKnownTerms(t *testing.T) {
	single := func(v float64) float64 { return float64(float32(v)) }
	run := func(of func(x boundToken) float64) *Losses {
		l := &Losses{}
		for _, b := range boundBatches(1, false, false, func(x boundToken) float64 { return 0 }) {
			n := len(b.Mask)
			w, kl := make([]float64, n), make([]float64, n)
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")
			var sum, tokens float64
			for i, m := range b.Mask {
				if m {
					w[i], kl[i] = single(0.8+0.4*math.Abs(math.Sin(float64(7*i)))), single(math.Abs(math.Sin(float64(3*i*i))))
					sum, tokens = sum+w[i]*of(boundToken{adv: adv[i], rho: math.Exp(lp[i] - old[i])})+0.03*kl[i], tokens+1
				}
			}
			for name, x := range map[string][]float64{"is_weights": w, "kl": kl} {
				b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
			}
			b.Tensors["loss"].Data[0] = single(sum / tokens)
			l.Add(b)
		}
		return l
	}
	for name, of := range map[string]func(x boundToken) float64{
		"right": func(x boundToken) float64 { return held(x, 0.17, 0.23, math.Inf(1)) },
		"bent": func(x boundToken) float64 {
			x.rho = 1 / x.rho
			return held(x, 0.2, 0.2, math.Inf(1))
		},
	} {
		l := run(of)
		var has []string
		for _, change := range l.Form() {
			has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
		}
		want := []string{"clip.low=0.17", "clip.high=0.23", "kl.place=loss"}
		if name == "bent" {
			want = []string{"clip.low=0.2", "clip.high=0.2", "kl.place=loss"}
		}
		require.Subset(t, has, want, name)
		require.InDelta(t, 0.03, l.Coefficients()["kl.beta"], 0, name)
	}
}
