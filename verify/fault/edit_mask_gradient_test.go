package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// trainedOn returns a step of eight responses whose gradients a program makes of another mask: −A·r/n where the clipped objective has a slope.
func trainedOn(other func(row, col int, id float64, m bool) bool, mean bool) *dump.Batch {
	b := updated(func(d, a float64) float64 { return max(-a*math.Exp(d), -a*min(max(math.Exp(d), 0.5), 1.8)) })
	b.Meta.DLogpScale = 1
	ids := make([]float64, len(b.Mask))
	for i := range ids {
		ids[i] = float64(10 + (7*i)%5)
		b.Mask[i] = i%b.Cols != 3 || i/b.Cols%2 == 0 // a hole in every other row
	}
	b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: ids, Type: format.I64}
	m, n := make([]bool, len(b.Mask)), 0.0
	for i := range m {
		if m[i] = other(i/b.Cols, i%b.Cols, ids[i], b.Mask[i]); m[i] {
			n++
		}
	}
	if !mean {
		n = count(b.Mask)
	}
	g := make([]float64, len(m))
	for i := range m {
		d, a := b.Tensors["logp_new"].Data[i]-b.Tensors["logp_old"].Data[i], b.Tensors["advantages"].Data[i/b.Cols]
		if r := math.Exp(d); m[i] && !(a > 0 && r > 1.8) && !(a < 0 && r < 0.5) {
			g[i] = float64(float32(-a * r / n))
		}
	}
	b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
	return b
}

// ofGradients are the options of trainedOn.
func ofGradients(t *testing.T) *convention.Set {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": "false", "kl.beta": "0", "mean.eps": "0", "clip.low": "0.5", "clip.high": "0.8"} {
		set = set.With(name, parsed(name, x), "test")
	}
	return set
}

// A mask that no rule of the list makes is read off the gradients and said in words; where it is one of a set of cells, the set is said.
func TestMaskOfGradient(t *testing.T) {
	set := ofGradients(t)
	c := stage.Find("gradient/dlogp")
	right := func(_, _ int, _ float64, m bool) bool { return m }
	require.Equal(t, check.Pass, stage.Judge(c, trainedOn(right, true), set).Verdict)
	for _, f := range []struct {
		id, words string
		mean      bool
		mask      func(r, t int, id float64, m bool) bool
	}{
		{"LOSS-MASK-OTHER", "2 of 8 responses do not count (the first: row 2, token 0)", true, func(r, _ int, _ float64, m bool) bool { return m && r != 2 && r != 5 }},
		{"LOSS-MASK-OTHER", "without tokens whose id is 12", true, func(_, _ int, id float64, m bool) bool { return m && id != 12 }},
		{"LOSS-MASK-OTHER", "without tokens whose id is 12", false, func(_, _ int, id float64, m bool) bool { return m && id != 12 }},
		{"LOSS-MASK-OTHER", "without tokens from the 4. of a response on", true, func(r, t int, _ float64, m bool) bool { return m && (t < 3 || r%2 == 1 && t < 4) }},
		{"LOSS-MASK-TOOL", "cells outside the response mask count", true, func(r, t int, _ float64, m bool) bool { return m || t == 3 && r < 6 }},
		{"LOSS-MASK-TOOL", "without tokens that follow a hole", true, func(r, t int, _ float64, m bool) bool { return m && (t != 4 || r%2 == 0) }},
		{"LOSS-MASK-OTHER", "in 2 of 8 responses, do not count", true, func(r, t int, _ float64, m bool) bool { return m && !(r == 1 && t == 4 || r == 4 && t > 0 && t < 3) }},
	} {
		t.Run(f.words, func(t *testing.T) {
			b := trainedOn(f.mask, f.mean)
			o := stage.Judge(c, b, set)
			require.Equal(t, check.Fail, o.Verdict)
			var titles []string
			for _, e := range maskEdits(o) {
				h := described(&Hypothesis{ID: e.id, Title: e.title, Checks: []string{c.ID}, Predict: e.predict})[0]
				if x, ok := newTrial(o).try(h, "", h.judge); ok && !x.Lead {
					titles = append(titles, e.id+": "+e.title)
				}
			}
			part := "in sum and count"
			if !f.mean {
				part = "in the sum alone"
			}
			require.Len(t, titles, 1)
			require.Contains(t, titles[0], f.id+": "+part+" another mask: ")
			require.Contains(t, titles[0], f.words)
		})
	}
	// A gradient that is lost is no mask, and neither is one that is wrong where it is not 0.
	b := trainedOn(func(r, t int, _ float64, _ bool) bool { return r == 0 && t == 0 }, true)
	require.Nil(t, maskRead(stage.Judge(c, b, set), stage.NewCase(b, set, 0x1p-24)))
	d := trainedOn(right, true) // a clip at 1.2 where none is declared
	b = trainedOn(func(r, t int, _ float64, m bool) bool {
		i := r*d.Cols + t
		return m && !(d.Tensors["advantages"].Data[r] > 0 && d.Tensors["logp_new"].Data[i]-d.Tensors["logp_old"].Data[i] > math.Log(1.2))
	}, false)
	require.Equal(t, check.Fail, stage.Judge(c, b, set).Verdict)
	require.Nil(t, maskRead(stage.Judge(c, b, set), stage.NewCase(b, set, 0x1p-24)))
	b = trainedOn(func(r, _ int, _ float64, m bool) bool { return m && r != 2 }, true)
	for i := range b.Mask {
		b.Tensors["dlogp"].Data[i] *= 1 + 0.1*float64(i%2)
	}
	require.False(t, slices.ContainsFunc(Explain(stage.Judge(c, b, set)), func(e Explanation) bool { return e.Hypothesis.ID == "LOSS-MASK-OTHER" && !e.Lead }))
}

// A loss may draw tokens that it leaves out, of rows that keep others, and leave out responses whose advantage is below 0; what a rule tells it does not.
func TestFiltersOfAMask(t *testing.T) {
	set := ofGradients(t)
	c := stage.Find("gradient/dlogp")
	adv := trainedOn(func(_, _ int, _ float64, m bool) bool { return m }, false).Row("advantages")
	below, above := slices.IndexFunc(adv, func(a float64) bool { return a < 0 }), slices.IndexFunc(adv, func(a float64) bool { return a > 0 })
	for name, k := range map[string]struct {
		counts func(r, t int, loss float64, in bool) bool
		want   []string
	}{
		"scattered":                         {func(r, t int, _ float64, m bool) bool { return m && (r*7+t*5)%11 != 3 }, []string{"loss.kind"}},
		"a response that is worse":          {func(r, _ int, _ float64, m bool) bool { return m && r != below }, []string{"loss.off_policy_max"}},
		"a response that is better":         {func(r, _ int, _ float64, m bool) bool { return m && r != above }, nil},
		"a response and a token of another": {func(r, t int, _ float64, m bool) bool { return m && r != below && !(r == above && t == 1) }, nil},
		"first token":                       {func(_, t int, _ float64, m bool) bool { return m && t > 0 }, nil},
	} {
		b := trainedOn(k.counts, false)
		f, configured := maskOfGradient(stage.Judge(c, b, set), stage.NewCase(b, set, 0x1p-24))
		require.NotNil(t, f, name)
		require.Equal(t, k.want, configured, "%s: %s", name, f.title)
	}
}

func maskRead(o *stage.Outcome, c *stage.Case) *maskForm {
	f, _ := maskOfGradient(o, c)
	return f
}
