package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A value loss whose clipped value is made in another way is named by that, in the loss and in its gradient.
func TestValueForms(t *testing.T) {
	const clip = 0.2
	p, _, err := convention.Lookup("cleanrl@020cf0e")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"value.clip": "0.2", "value.coef": "0.5", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	held := func(x float64) float64 { return math.Max(-clip, math.Min(x, clip)) }
	judge := func(id string, bounded func(v, old float64) float64, detached bool) *stage.Outcome {
		r := rand.New(rand.NewPCG(41, 42))
		b := updated(func(float64, float64) float64 { return 0 })
		n := len(b.Mask)
		v, old, ret, g := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
		var loss float64
		for i := range v {
			old[i] = float64(float32(r.NormFloat64()))
			v[i] = float64(float32(old[i] + 0.3*r.NormFloat64()))
			ret[i] = float64(float32(old[i] + r.NormFloat64()))
			square := func(v float64) (plain, c float64) {
				plain, c = v-ret[i], bounded(v, old[i])-ret[i]
				return plain * plain, c * c
			}
			plain, c := square(v[i])
			loss += 0.5 * math.Max(plain, c) / float64(n)
			const h = 1e-6 // the slope of the larger one
			pu, cu := square(v[i] + h)
			pd, cd := square(v[i] - h)
			slope := (pu - pd) / (2 * h)
			switch {
			case c > plain && detached:
				slope = 0
			case c > plain:
				slope = (cu - cd) / (2 * h)
			case c == plain && detached:
				slope /= 2
			}
			g[i] = float64(float32(0.5 * 0.5 * slope / float64(n)))
		}
		for name, x := range map[string][]float64{"values": old, "values_new": v, "returns": ret, "dvalues": g} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["value_loss"] = &dump.Tensor{Name: "value_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
		return stage.Judge(stage.Find(id), b, set)
	}
	right := func(v, old float64) float64 { return math.Max(old-clip, math.Min(v, old+clip)) }
	for _, id := range []string{"aggregate/value_loss", "gradient/dvalues"} {
		require.Equal(t, check.Pass, judge(id, right, false).Verdict, id)
		for words, of := range map[string]func(v, old float64) float64{
			"around the new one":     func(v, old float64) float64 { return math.Max(v-clip, math.Min(old, v+clip)) },
			"added to the new value": func(v, old float64) float64 { return v + held(v-old) },
			"has the wrong sign":     func(v, old float64) float64 { return old - held(v-old) },
			"without the old value":  func(v, old float64) float64 { return held(v - old) },
		} {
			requireName(t, judge(id, of, false), "VALUE-CLIP-FORM", words)
		}
	}
	requireName(t, judge("gradient/dvalues", right, true), "VALUE-CLIP-FORM", "detached")
}

// The gradient of a value loss of which one side of the maximum is detached, and a loss of which the two sides have different targets.
func TestSidesOfTheValueLoss(t *testing.T) {
	const clip = 0.2
	p, _, err := convention.Lookup("cleanrl@020cf0e")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"value.clip": "0.2", "value.coef": "0.5", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	r := rand.New(rand.NewPCG(43, 44))
	b := updated(func(float64, float64) float64 { return 0 })
	n := len(b.Mask)
	x := map[string][]float64{}
	for _, name := range []string{"values", "values_new", "returns", "advantages", "dvalues"} {
		x[name] = make([]float64, n)
	}
	var loss, ofOld, clippedToOld, absolute, toRaw float64
	for i := range n {
		old := float64(float32(r.NormFloat64()))
		v, ret, adv := float64(float32(old+0.2*r.NormFloat64())), float64(float32(old+r.NormFloat64())), float64(float32(r.NormFloat64()))
		x["values"][i], x["values_new"][i], x["returns"][i], x["advantages"][i] = old, v, ret, adv
		held := math.Max(old-clip, math.Min(v, old+clip))
		plain, clipped := (v-ret)*(v-ret), (held-ret)*(held-ret)
		slope := 0.0 // of the clipped side alone
		switch {
		case clipped > plain && held == v:
			slope = 2 * (v - ret)
		case clipped == plain:
			slope = v - ret
		}
		x["dvalues"][i] = float64(float32(0.5 * 0.5 * slope / float64(n)))
		loss += 0.5 * math.Max((v-adv)*(v-adv), clipped) / float64(n)
		ofOld += 0.5 * math.Max((v-old)*(v-old), clipped) / float64(n)
		clippedToOld += 0.5 * math.Max(plain, (held-old)*(held-old)) / float64(n)
		absolute += 0.5 * math.Max(math.Abs(v-ret), clipped) / float64(n)
		raw := ret - old
		toRaw += 0.5 * math.Max((v-raw)*(v-raw), (held-raw)*(held-raw)) / float64(n)
	}
	for name, data := range x {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: data, Type: format.F32}
	}
	put := func(loss float64) {
		b.Tensors["value_loss"] = &dump.Tensor{Name: "value_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
	}
	put(loss)
	requireName(t, stage.Judge(stage.Find("gradient/dvalues"), b, set), "VALUE-CLIP-FORM", "the unclipped value is detached")
	for _, x := range []struct {
		loss      float64
		id, words string
	}{{loss, "VALUE-TARGET", "fitted to advantages"}, {ofOld, "VALUE-TARGET", "unclipped side is fitted to values"}, {clippedToOld, "VALUE-TARGET", "clipped side is fitted to values"},
		{absolute, "VALUE-CLIP-FORM", "the unclipped side is the absolute error"}, {toRaw, "VALUE-AGAINST-ADVANTAGES", "before whitening"}} {
		put(x.loss)
		requireName(t, stage.Judge(stage.Find("aggregate/value_loss"), b, set), x.id, x.words)
	}
}

// A value loss that is subtracted is named in the loss, and in its gradient.
func TestSignOfTheValueLoss(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"value.coef": "0.1", "value.clip": "none", "value.mask": "response"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for _, sign := range []float64{1, -1} {
		r := rand.New(rand.NewPCG(45, 46))
		b := updated(func(float64, float64) float64 { return 0 })
		n := len(b.Mask)
		x := map[string][]float64{"values": make([]float64, n), "values_new": make([]float64, n), "returns": make([]float64, n), "dvalues": make([]float64, n)}
		var vf float64
		for i := range n {
			v, ret := float64(float32(r.NormFloat64())), float64(float32(r.NormFloat64()))
			x["values"][i], x["values_new"][i], x["returns"][i] = v, v, ret
			x["dvalues"][i] = float64(float32(sign * 0.1 * (v - ret) / float64(n)))
			vf += 0.5 * (v - ret) * (v - ret) / float64(n)
		}
		for name, data := range x {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: data, Type: format.F32}
		}
		for name, y := range map[string]float64{"pg_loss": 0, "value_loss": vf, "loss": sign * 0.1 * vf} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(y))}, Type: format.F32}
		}
		for _, id := range []string{"aggregate/loss", "gradient/dvalues"} {
			if o := stage.Judge(stage.Find(id), b, set); sign > 0 {
				require.Equal(t, check.Pass, o.Verdict, "%s %v", id, o.Lacking())
			} else {
				requireName(t, o, "VALUE-SIGN", "the wrong sign")
			}
		}
	}
}

// A value loss of all pairs of values and returns is named, in the loss and in its gradient.
func TestValueMatrix(t *testing.T) {
	p, _, err := convention.Lookup("cleanrl@020cf0e")
	require.NoError(t, err)
	set := convention.FromProfile(p).With("value.clip", parsed("value.clip", "none"), "test").With("value.coef", parsed("value.coef", "0.5"), "test")
	r := rand.New(rand.NewPCG(51, 52))
	b := updated(func(float64, float64) float64 { return 0 })
	n := len(b.Mask)
	v, ret, g := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range v {
		v[i], ret[i] = float64(float32(r.NormFloat64())), float64(float32(2*r.NormFloat64()))
	}
	var matrix, own float64
	for i := range v {
		for j := range ret {
			matrix += (v[i] - ret[j]) * (v[i] - ret[j]) / float64(n*n)
		}
		own += (v[i] - ret[i]) * (v[i] - ret[i]) / float64(n)
		g[i] = float64(float32(0.5 * 0.5 * 2 * (v[i] - meanOf(ret)) / float64(n)))
	}
	for name, x := range map[string][]float64{"values": v, "values_new": v, "returns": ret, "dvalues": g} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	for want, loss := range map[string]float64{"": own, "VALUE-BROADCAST": matrix} {
		b.Tensors["value_loss"] = &dump.Tensor{Name: "value_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(0.5 * loss))}, Type: format.F32}
		o := stage.Judge(stage.Find("aggregate/value_loss"), b, set)
		if want == "" {
			require.Equal(t, check.Pass, o.Verdict)
			continue
		}
		requireName(t, o, want, "n × n matrix")
	}
	requireName(t, stage.Judge(stage.Find("gradient/dvalues"), b, set), "VALUE-BROADCAST", "n × n matrix")
}

// A clipped value loss one of whose tensors is a column is a matrix, of all that it broadcasts.
func TestClippedValueMatrix(t *testing.T) {
	p, _, err := convention.Lookup("cleanrl@020cf0e")
	require.NoError(t, err)
	set := convention.FromProfile(p).With("value.clip", parsed("value.clip", "0.2"), "test").With("value.coef", parsed("value.coef", "0.5"), "test")
	r := rand.New(rand.NewPCG(5, 6))
	b := updated(func(float64, float64) float64 { return 0 })
	n := len(b.Mask)
	v, old, ret := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range v {
		v[i], old[i], ret[i] = float64(float32(r.NormFloat64())), float64(float32(r.NormFloat64())), float64(float32(2*r.NormFloat64()))
	}
	for name, x := range map[string][]float64{"values": old, "values_new": v, "returns": ret} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	held := func(i, j int) float64 { return old[j] + min(max(v[i]-old[j], -0.2), 0.2) }
	for words, of := range map[string]func(i, j int) (plain, clipped float64){
		"clipped and not, with every":               func(i, j int) (float64, float64) { return v[i] - ret[j], held(i, i) - ret[j] },
		"the unclipped side of the value loss":      func(i, j int) (float64, float64) { return v[i] - ret[j], held(j, j) - ret[j] },
		"the clipped side of the value loss":        func(i, j int) (float64, float64) { return v[j] - ret[j], held(i, i) - ret[j] },
		"clips every value around every old value:": func(i, j int) (float64, float64) { return v[i] - ret[i], held(i, j) - ret[i] },
		"": func(i, j int) (float64, float64) { return v[i] - ret[i], held(i, i) - ret[i] },
	} {
		var sum float64
		for i := range v {
			for j := range v {
				plain, clipped := of(i, j)
				sum += 0.5 * max(plain*plain, clipped*clipped) / float64(n*n)
			}
		}
		b.Tensors["value_loss"] = &dump.Tensor{Name: "value_loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(sum))}, Type: format.F32}
		if o := stage.Judge(stage.Find("aggregate/value_loss"), b, set); words == "" {
			require.Equal(t, check.Pass, o.Verdict)
		} else {
			requireName(t, o, "VALUE-BROADCAST", words)
		}
	}
}
