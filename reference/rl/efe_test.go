package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// uniformEFE is a prediction that says nothing: all colours are equally likely, the prompt is 0.
func uniformEFE(side int) EFEBatch {
	n := side * side
	return EFEBatch{Steps: 3, H: side, W: side, Colors: 10, Logits: make([]float64, 3*n*10), Target: make([]int, n), Table: make([]float64, n*10),
		Prompt: make([]float64, 256), Weight: make([]float64, 10*256), Bias: make([]float64, 10)}
}

// The numbers of systems D.4 for uniform predictions, to its six digits.
func TestEFEOracles(t *testing.T) {
	for _, c := range []struct {
		side                                           int
		step, norm, original, weighted, curriculum, js float64
	}{
		{3, .0299702, .049, 6.641338, 4.648936, 2.789362, 5.835433},
		{30, .2805535, 0, 6.842921, 4.790045, 2.874027, 6.037016},
	} {
		o := EFEDefaults()
		e, _ := EFE(uniformEFE(c.side), o)
		require.InDelta(t, c.step, e.Step, 5e-8)
		require.InDelta(t, c.norm, e.GridNorm, 1e-15)
		require.InDelta(t, math.Log(10), e.Risk, 1e-12)
		require.Equal(t, 1., e.Uncertain)
		require.InDelta(t, math.Log(10)/2, e.ScaledRisk, 1e-12)
		require.InDelta(t, math.Log(10), e.GridMatching, 1e-12)
		require.InDelta(t, math.Log(10), e.Ambiguity, 1e-12)
		require.InDelta(t, 0, e.Bidirectional, 1e-15)
		require.Zero(t, e.Z)
		require.Zero(t, e.Prompt)
		require.InDelta(t, c.js, e.Total, 5e-7)
		require.InDelta(t, 2.5*math.Log(10)+e.Step+e.GridNorm, e.Total, 1e-12)
		o.Kind = MixtureEntropy
		e, _ = EFE(uniformEFE(c.side), o)
		require.InDelta(t, c.original, e.Total, 5e-7)
		require.InDelta(t, c.weighted, .7*e.Total, 5e-7)
		require.InDelta(t, c.curriculum, .7*.6*e.Total, 5e-7)
	}
	require.InDelta(t, 4.7711*.6, 2.8621, 1e-3, "the two published losses of the original differ by its curriculum")
}

// Single terms by hand: one cell, two steps that contradict each other; a point that moves to and fro.
func TestEFETermsByHand(t *testing.T) {
	big := 800. // exp(-800) is 0
	b := EFEBatch{Steps: 2, H: 1, W: 1, Colors: 2, Logits: []float64{big, 0, 0, big}, Target: []int{1}, Table: []float64{0, 0}, Prompt: []float64{0, 0},
		Weight: []float64{1, 0, 0, 1}, Bias: []float64{3, 4}}
	e, _ := EFE(b, EFEDefaults())
	require.InDelta(t, math.Ln2, e.Divergence, 1e-15, "the largest Jensen-Shannon divergence")
	require.InDelta(t, big/2, e.Risk, 1e-12) // −½·(0 − 800) in both steps
	require.Zero(t, e.Uncertain)
	require.InDelta(t, big/2, e.ScaledRisk, 1e-12)
	require.Zero(t, e.GridMatching)
	require.InDelta(t, -(3./5+4./5)/2, e.Prompt, 1e-15)
	b.Wanted = []float64{1, 0}
	e, _ = EFE(b, EFEDefaults())
	require.InDelta(t, math.Ln2/2, e.Z, 1e-15)

	// Colour 1 stands at the left, the right and the left third of three cells: c = 1/6, 5/6, 1/6 of the width. f = (2/3, −2/3) and
	// b = (2/3, −2/3): the sums 4/3 and −4/3, squared and averaged 16/9.
	one := func(at int) []float64 {
		x := make([]float64, 6)
		for i := range 3 {
			x[2*i] = big
		}
		x[2*at], x[2*at+1] = 0, big
		return x
	}
	m := EFEBatch{Steps: 3, H: 1, W: 3, Colors: 2, Logits: append(append(one(0), one(2)...), one(0)...), Target: []int{0, 0, 0}, Table: make([]float64, 6), Prompt: []float64{0, 0},
		Weight: make([]float64, 4), Bias: make([]float64, 2)}
	e, _ = EFE(m, EFEDefaults())
	require.InDelta(t, 16./9, e.Reversibility, 1e-12)
	m.Logits = append(append(one(0), one(1)...), one(2)...) // straight on: backward is the opposite of forward
	e, _ = EFE(m, EFEDefaults())
	require.InDelta(t, 0, e.Reversibility, 1e-15)
}

func drawnEFE(t *rapid.T) (EFEBatch, EFEOptions) {
	size := func(lo, hi int, name string) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	b := EFEBatch{Steps: size(1, 4, "T"), H: size(1, 4, "H"), W: size(1, 4, "W"), Colors: size(2, 4, "C")}
	cells := b.H * b.W
	scale := rapid.SampledFrom([]float64{.1, 1, 10}).Draw(t, "scale")
	// Sixteenths: where a norm is not 0 it is not almost 0 either, where the cosine has no digits.
	values := func(n int, name string) []float64 {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float64 { return scale * float64(rapid.IntRange(-16, 16).Draw(t, "x")) / 16 }), n, n).Draw(t, name)
	}
	p := b.Colors + size(0, 2, "more")
	b.Logits, b.Table, b.Prompt, b.Weight, b.Bias = values(b.Steps*cells*b.Colors, "logits"), values(cells*b.Colors, "table"), values(p, "prompt"), values(b.Colors*p, "W"), values(b.Colors, "b")
	for range cells {
		b.Target = append(b.Target, rapid.SampledFrom([]int{0, 1, b.Colors - 1, IgnoreLabel}).Draw(t, "target"))
	}
	b.Target[0] = 1
	if rapid.Bool().Draw(t, "wanted") {
		b.Wanted = newDistributions(values(cells*b.Colors, "wanted"), 1, cells, b.Colors).p
	}
	o := EFEOptions{Kind: rapid.SampledFrom([]EFEKind{JensenShannon, MixtureEntropy}).Draw(t, "kind")}
	for _, w := range []*float64{&o.Risk, &o.Ambiguity, &o.Step, &o.Consistency, &o.Bidirectional, &o.Z, &o.Prompt, &o.GridNorm} {
		*w = rapid.SampledFrom([]float64{0, .3, 1, 2}).Draw(t, "lambda")
	}
	return b, o
}

// efeOnTape is the same formula on the tape, each term from its definition in systems D.3.
func efeOnTape(b EFEBatch, o EFEOptions, uncertain float64) (total *ad.Var, leaves []*ad.Var) {
	tape, cells := new(ad.Tape), b.H*b.W
	logits := tape.Param(b.Logits, b.Steps, cells, b.Colors)
	table, prompt := tape.Param(b.Table, cells, b.Colors), tape.Param(b.Prompt, len(b.Prompt))
	weight, bias := tape.Param(b.Weight, b.Colors, len(b.Prompt)), tape.Param(b.Bias, b.Colors)
	wide := func(x *ad.Var) *ad.Var { return ad.BroadcastTo(ad.Reshape(x, 1, b.Colors), cells, b.Colors) }
	logQ := ad.LogSoftmax(logits, 2)
	q := ad.Exp(logQ)
	step := func(x *ad.Var, t int) *ad.Var { return ad.Reshape(ad.Slice(x, 0, t, t+1), cells, b.Colors) }
	logC := ad.LogSoftmax(ad.Mul(table, wide(ad.Sigmoid(ad.Slice(prompt, 0, 0, b.Colors)))), 1)
	c := ad.Exp(logC)

	var labels []int
	var supervised []float64
	n := 0.
	for _, y := range b.Target {
		labels, supervised = append(labels, max(y, 0)), append(supervised, 0)
		if y != IgnoreLabel {
			supervised[len(supervised)-1] = 1
			n++
		}
	}
	ce := ad.Scale(ad.Sum(ad.Mul(ad.Gather(step(logQ, b.Steps-1), 1, labels), tape.Const(supervised, cells, 1)), false), -1/n)

	risk, divergence, amb, pc := tape.Scalar(0), tape.Scalar(0), tape.Scalar(0), tape.Scalar(0)
	per := 1 / float64(b.Steps*cells)
	v := ad.Add(ad.Reshape(ad.MatMul(weight, ad.Reshape(prompt, -1, 1), false, false), -1), bias)
	norm := func(x *ad.Var) *ad.Var {
		return ad.Sqrt(ad.Max(ad.Sum(ad.Mul(x, x), false), tape.Scalar(1e-16))) // the slope of a root at 0 is infinite
	}
	var center []*ad.Var
	colour, place := make([]float64, b.Colors), []float64{}
	for i := range colour {
		colour[i] = float64(i)
	}
	for i := range cells {
		place = append(place, (float64(i/b.W)+.5)/float64(b.H), (float64(i%b.W)+.5)/float64(b.W))
	}
	for t := range b.Steps {
		risk = ad.Sub(risk, ad.Scale(ad.Sum(ad.Mul(c, step(logQ, t)), false), per))
		amb = ad.Sub(amb, ad.Scale(ad.Sum(ad.Mul(step(q, t), step(logQ, t)), false), per))
		a, z := step(q, t), step(q, b.Steps-1-t)
		mix := ad.Scale(ad.Add(a, z), .5)
		if o.Kind == MixtureEntropy {
			divergence = ad.Sub(divergence, ad.Scale(ad.Sum(ad.Mul(mix, ad.Log(mix)), false), per))
		} else {
			for _, side := range []*ad.Var{a, z} {
				divergence = ad.Add(divergence, ad.Scale(ad.Sum(ad.Mul(side, ad.Sub(ad.Log(side), ad.Log(mix))), false), per/2))
			}
		}
		mean := ad.Mean(step(logits, t), false, 0)
		pc = ad.Sub(pc, ad.Scale(ad.Div(ad.Sum(ad.Mul(mean, v), false), ad.Mul(norm(mean), norm(v))), 1/float64(b.Steps)))
		mass := ad.MatMul(a, tape.Const(colour, b.Colors, 1), false, false)
		center = append(center, ad.Div(ad.Reshape(ad.MatMul(mass, tape.Const(place, cells, 2), true, false), 2), ad.BroadcastTo(ad.Sum(mass, false), 2)))
	}
	rev := tape.Scalar(0)
	for t := range b.Steps - 1 {
		f, back := ad.Sub(center[t+1], center[t]), ad.Sub(center[b.Steps-2-t], center[b.Steps-1-t])
		s := ad.Add(f, back)
		rev = ad.Add(rev, ad.Scale(ad.Sum(ad.Mul(s, s), false), 1/float64(b.Steps-1)))
	}
	z := tape.Scalar(0)
	if b.Wanted != nil {
		w := tape.Const(b.Wanted, cells, b.Colors)
		z = ad.Scale(ad.Sum(ad.Mul(w, ad.Sub(ad.Log(w), logC)), false), 1/float64(cells*b.Colors))
	}
	g := float64(cells) / 900
	norms := 0.
	if g < .1 || g > 1 {
		norms = math.Abs(g - .5)
	}
	total = ad.Add(ce, ad.Scale(risk, o.Risk*(.5+.5*(1-uncertain))))
	for _, term := range []*ad.Var{ad.Scale(amb, o.Ambiguity), tape.Scalar(o.Step * float64(b.Steps) * g / (math.Sqrt(g) * (1 + .1*math.Log(1+g)))), ad.Scale(ce, o.Consistency),
		ad.Scale(ad.Add(ad.Scale(divergence, .7), ad.Scale(rev, .3)), o.Bidirectional), ad.Scale(z, o.Z), ad.Scale(pc, o.Prompt), tape.Scalar(o.GridNorm * norms)} {
		total = ad.Add(total, term)
	}
	return total, []*ad.Var{logits, table, prompt, weight, bias}
}

// promptNoise is what the rounding of the means of a step's logits can move their cosine with the prompt by: a mean of n numbers is off by
// n·2⁻⁵³ of the largest of them, and is divided by its own norm, or by 1e-8 where the logits cancel.
func promptNoise(b EFEBatch) (noise float64) {
	cells := b.H * b.W
	for t := range b.Steps {
		logits := b.Logits[t*cells*b.Colors : (t+1)*cells*b.Colors]
		largest, squares := 0., 0.
		for c := range b.Colors {
			sum := 0.
			for i := c; i < len(logits); i += b.Colors {
				sum += logits[i]
				largest = max(largest, math.Abs(logits[i]))
			}
			squares += sum / float64(cells) * sum / float64(cells)
		}
		noise += math.Sqrt(float64(b.Colors)) * float64(cells) * 0x1p-53 * largest / math.Sqrt(max(squares, 1e-16))
	}
	return 2 * noise / float64(b.Steps) // on either side
}

// Value and gradient against the tape, and the ranges of the terms.
func TestEFETape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, o := drawnEFE(t)
		if o.Prompt != 0 && promptNoise(b) > 1e-12 {
			t.Skip("logits that cancel: the cosine is a quotient of roundings")
		}
		e, d := EFE(b, o)
		want, leaves := efeOnTape(b, o, e.Uncertain)
		require.InDelta(t, want.Item(), e.Total, 1e-11*(1+math.Abs(want.Item())))
		ad.Backward(want, []float64{1})
		for i, got := range [][]float64{d.Logits, d.Table, d.Prompt, d.Weight, d.Bias} {
			scale := 1.
			for _, x := range leaves[i].Grad() {
				scale = max(scale, math.Abs(x))
			}
			require.InDeltaSlice(t, leaves[i].Grad(), got, 1e-10*scale, "gradient %d", i)
		}
		if o.Kind == JensenShannon {
			require.True(t, e.Divergence > -1e-15 && e.Divergence <= math.Ln2+1e-15, "%g", e.Divergence)
		}
		require.True(t, math.Abs(e.Prompt) <= 1+1e-12 && e.Z >= -1e-15 && e.Reversibility >= 0)
	})
}

// The share of uncertain cells: the mean over the steps of the largest probability, 0.7 included.
func TestEFEUncertain(t *testing.T) {
	at := func(p float64) []float64 { return []float64{math.Log(p), math.Log(1 - p)} }
	for _, c := range []struct{ a, b, want float64 }{{.9, .9, 0}, {.6, .6, 1}, {.85, .5, 1}, {.95, .5, 0}, {.5, .5, 1}} {
		q := newDistributions(append(at(c.a), at(c.b)...), 2, 1, 2)
		require.Equal(t, c.want, q.uncertain(), "%v", c)
	}
}

// What does not fit is a mistake of the caller: D1's shapes and ranges.
func TestEFEPanics(t *testing.T) {
	for name, change := range map[string]func(*EFEBatch){
		"target beyond the colours": func(b *EFEBatch) { b.Target[4] = 10 },
		"negative target":           func(b *EFEBatch) { b.Target[4] = -1 },
		"target of another size":    func(b *EFEBatch) { b.Target = b.Target[:8] },
		"logits of another size":    func(b *EFEBatch) { b.Logits = b.Logits[:80] },
		"table of another size":     func(b *EFEBatch) { b.Table = b.Table[:80] },
		"a short prompt":            func(b *EFEBatch) { b.Prompt, b.Weight = b.Prompt[:9], b.Weight[:90] },
		"no steps":                  func(b *EFEBatch) { b.Steps, b.Logits = 0, nil },
		"wanted of another size":    func(b *EFEBatch) { b.Wanted = make([]float64, 3) },
	} {
		b := uniformEFE(3)
		change(&b)
		require.Panics(t, func() { EFE(b, EFEDefaults()) }, name)
	}
	b := uniformEFE(3)
	for i := range b.Target {
		b.Target[i] = IgnoreLabel
	}
	e, _ := EFE(b, EFEDefaults())
	require.True(t, math.IsNaN(e.Total))
}

func TestEFEKindNames(t *testing.T) {
	for name, want := range map[string]EFEKind{"js": JensenShannon, "original": MixtureEntropy} {
		k, err := ParseEFEKind(name)
		require.NoError(t, err)
		require.Equal(t, want, k)
		require.Equal(t, name, k.String())
	}
	_, err := ParseEFEKind("kl")
	require.Error(t, err)
}
