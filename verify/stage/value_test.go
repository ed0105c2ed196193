package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

func TestValueLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for _, cells := range []string{"response", "p1", "none"} {
		for _, clip := range []float64{0, 0.2} {
			for seed := range cases(300) {
				tr := newTrainer(uint64(seed))
				b := tr.b
				old := tr.grid("values", func(int) float64 { return tr.r.NormFloat64() })
				v := tr.grid("values_new", func(i int) float64 { return old[i] + 0.3*tr.r.NormFloat64() })
				ret := tr.grid("returns", func(i int) float64 { return old[i] + tr.r.NormFloat64() })
				mask := slices.Clone(b.Mask)
				for r := range b.Rows {
					last := -1
					for c := range b.Cols {
						if b.Mask[r*b.Cols+c] {
							last = c
						}
					}
					for c := range b.Origin[r].Cols {
						mask[r*b.Cols+c] = mask[r*b.Cols+c] || cells == "none" || cells == "p1" && c <= last+1
					}
				}
				token, slope := make([]float64, len(v)), make([]float32, len(v))
				for i := range v {
					x, y := float32(v[i]), float32(ret[i])
					l, d := (x-y)*(x-y), 2*(x-y)
					if clip > 0 {
						c := min(max(x, float32(old[i])-float32(clip)), float32(old[i])+float32(clip))
						if m := (c - y) * (c - y); m > l {
							l, d = m, 0
						}
					}
					token[i], slope[i] = float64(.5*l), .5*d
				}
				a := reductions()[seed%9]
				masked := b.WithMask(mask)
				own, agg := a, "same"
				if seed%4 == 3 { // a critic that takes the mean over tokens whatever the policy loss takes
					own, agg = reduction{kind: "token", where: a.where, divGA: a.divGA}, "token"
				}
				w := own.weights(masked, tr.micro)
				loss := fileSums(masked, w, token)
				grad := make([]float64, len(v))
				for i := range grad {
					grad[i] = float64(w[i] * slope[i])
				}
				tr.perFile("value_loss", loss)
				tr.put("dvalues", grad)
				set := a.set(t, options(t, "value.factor=0.5", "value.mask="+cells, "value.agg="+agg))
				set = set.With("value.coef", must(convention.Parse("value.coef", "–")), "test")
				if set = set.With("value.clip", must(convention.Parse("value.clip", "none")), "test"); clip > 0 {
					set = set.With("value.clip", convention.NumberValue(clip), "test")
				}
				log.pass(t, "value_loss, mask "+cells, judged32(t, "aggregate/value_loss", b, set), seed)
				log.pass(t, "dvalues, mask "+cells, judged32(t, "gradient/dvalues", b, set), seed)
				if at := slices.IndexFunc(grad, func(g float64) bool { return g != 0 }); at >= 0 {
					planted(t, "gradient/dvalues", "dvalues", b, set, at)
					f := b.Origin[at/b.Cols].File
					planted(t, "aggregate/value_loss", "value_loss", b, set, f)
					double := set.With("value.factor", convention.NumberValue(1), "test")
					require.Equal(t, check.Fail, judged32(t, "aggregate/value_loss", b, double).Verdict, "verl#2016")
				}
			}
		}
	}
	log.report(t)
}

// OpenRLHF's ValueLoss bounds values by old + clamp(v − old, ±c), which within the bounds is v but for two roundings; autograd takes
// the derivative of whichever square is the larger, half of each where they are equal.
func TestValueGradientOfOpenRLHF(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(300) {
		tr := newTrainer(uint64(seed))
		b := tr.b
		old := tr.grid("values", func(int) float64 { return tr.r.NormFloat64() })
		v := tr.grid("values_new", func(i int) float64 { return old[i] + 0.1*tr.r.NormFloat64() })
		ret := tr.grid("returns", func(i int) float64 { return v[i] + 1e-4*tr.r.NormFloat64() })
		a := reductions()[seed%9]
		w := a.weights(b, tr.micro)
		grad, token := make([]float64, len(v)), make([]float64, len(v))
		for i := range v {
			x, y, o := float32(v[i]), float32(ret[i]), float32(old[i])
			inside := min(max(x-o, -0.2), 0.2)
			c := o + inside
			d, dc := 2*(x-y), 2*(c-y)
			if inside != x-o {
				dc = 0
			}
			l, m := (x-y)*(x-y), (c-y)*(c-y)
			switch {
			case m > l:
				l, d = m, dc
			case m == l:
				d = d/2 + dc/2
			}
			token[i], grad[i] = float64(.5*l), float64(w[i]*.5*d)
		}
		tr.put("dvalues", grad)
		tr.perFile("value_loss", fileSums(b, w, token))
		set := a.set(t, options(t, "value.factor=0.5", "value.mask=response", "value.clip=0.2"))
		set = set.With("value.coef", must(convention.Parse("value.coef", "–")), "test")
		log.pass(t, "dvalues", judged32(t, "gradient/dvalues", b, set), seed)
		log.pass(t, "value_loss", judged32(t, "aggregate/value_loss", b, set), seed)
	}
	log.report(t)
}

func TestValueCoefficientOfACombinedLoss(t *testing.T) {
	tr := newTrainer(5)
	b := tr.b
	v := tr.grid("values_new", func(int) float64 { return tr.r.NormFloat64() })
	ret := tr.grid("returns", func(int) float64 { return tr.r.NormFloat64() })
	a := reduction{kind: "token", where: "micro"}
	w := a.weights(b, tr.micro)
	tr.grid("dvalues", func(i int) float64 { return float64(w[i]) * 0.1 * (v[i] - ret[i]) })
	set := a.set(t, options(t, "value.factor=0.5", "value.mask=response", "value.clip=none"))
	require.Equal(t, check.Pass, judged32(t, "gradient/dvalues", b, set.With("value.coef", convention.NumberValue(0.1), "test")).Verdict)
	require.Equal(t, check.Fail, judged32(t, "gradient/dvalues", b, set.With("value.coef", must(convention.Parse("value.coef", "–")), "test")).Verdict)
	require.Equal(t, []string{"value.coef"}, judged32(t, "gradient/dvalues", b, set.With("value.coef", convention.Value{}, "")).Case.Unknown)
}

func TestValueGradientOnAClipBound(t *testing.T) {
	tr := newTrainer(3)
	b := tr.b
	tr.grid("values", func(int) float64 { return 1 })
	tr.grid("values_new", func(int) float64 { return 1.2 })
	tr.grid("returns", func(int) float64 { return 2 })
	a := reduction{kind: "token_sum", where: "micro"}
	set := a.set(t, options(t, "value.factor=0.5", "value.mask=response", "value.clip=0.2"))
	for _, x := range []float64{-0.8, -0.4, 0} {
		tr.grid("dvalues", func(i int) float64 {
			if b.Mask[i] {
				return x
			}
			return 0
		})
		set = set.With("value.coef", convention.NumberValue(1), "test")
		require.NotEqual(t, check.Fail, judged32(t, "gradient/dvalues", b, set).Verdict, "%v", x)
	}
	tr.grid("values_new", func(int) float64 { return math.NaN() })
	require.NotPanics(t, func() { judged32(t, "gradient/dvalues", b, set) })
}

// A critic with an optimiser of its own has the gradient of its loss, of which the policy's holds none; one loss of both has none of it then.
func TestGradientOfACriticApart(t *testing.T) {
	tr := newTrainer(6)
	b := tr.b
	v := tr.grid("values_new", func(int) float64 { return tr.r.NormFloat64() })
	ret := tr.grid("returns", func(int) float64 { return tr.r.NormFloat64() })
	a := reduction{kind: "token", where: "micro"}
	w := a.weights(b, tr.micro)
	apart := a.set(t, options(t, "value.factor=0.5", "value.mask=response", "value.clip=none", "value.coef=0"))
	for of, want := range map[float64]check.Verdict{1: check.Pass, 0: check.Pass, 0.5: check.Fail} {
		tr.grid("dvalues", func(i int) float64 { return float64(w[i]) * of * (v[i] - ret[i]) })
		require.Equal(t, want, judged32(t, "gradient/dvalues", b, apart).Verdict, "%g", of)
	}
}
