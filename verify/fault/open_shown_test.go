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

// Weights of scopes that no program has show their rule and bounds where nobody declares them, and convict there.
func TestWeightsOfOtherScopesShowTheirBounds(t *testing.T) {
	weighed := func(log func(d []float64) float64) *dump.Batch {
		b := updated(func(d, a float64) float64 { return 0 })
		old, cols := b.Token("logp_old"), b.Cols
		gen, w := make([]float64, len(old)), make([]float64, len(old))
		for r := range b.Rows {
			var d []float64
			for i := r * cols; i < (r+1)*cols; i++ {
				gen[i] = float64(float32(old[i] + 0.1*math.Sin(float64(i*i))))
				d = append(d, old[i]-gen[i])
			}
			for i := r * cols; i < (r+1)*cols; i++ {
				w[i] = float64(float32(min(math.Exp(log(d)), 1.05)))
			}
		}
		for name, x := range map[string][]float64{"logp_gen": gen, "is_weights": w} {
			b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Width: 1, Layout: dump.PerToken, Shape: []int{b.Rows, cols}, Type: format.F32}
		}
		return b
	}
	ch := stage.Find("ratio/is_weights")
	named := func(b *dump.Batch) (convicts, others []string) {
		for _, changes := range ShownUnder(ch, b, &convention.Set{}) {
			set := &convention.Set{}
			for _, c := range changes {
				set = set.With(c.Option, c.To, "search")
			}
			for name, text := range map[string]string{"tis.gate": "ratio", "tis.log_clamp": "none", "tis.normalize": "false", "tis.low": "none", "tis.high": "none"} {
				if set.Value(name).Kind() == convention.Unknown {
					set = set.With(name, parsed(name, text), "test")
				}
			}
			if o := stage.Judge(ch, b, set); o.Verdict == check.Fail {
				for _, e := range Explain(o) {
					if e.Lead || e.Hypothesis.ID != "IS-LEVEL" {
						continue
					}
					if e.Hypothesis.Relative {
						others = append(others, e.Hypothesis.Title)
					} else {
						convicts = append(convicts, e.Hypothesis.Title)
					}
				}
			}
		}
		return convicts, others
	}
	convicts, _ := named(weighed(func(d []float64) float64 { return d[0] }))
	require.Contains(t, convicts, "the importance weight of a response is that of its first token")
	convicts, _ = named(weighed(func(d []float64) float64 { return total(d) }))
	require.Empty(t, convicts, "the weight of a sequence")
	require.False(t, slices.ContainsFunc(All(), func(h *Hypothesis) bool { return h.Foreign && h.Relative }))
}

// Weights that became 1 outside of their bounds show these as well as those that became 0.
func TestBoundsOfWeightsThatBecameOne(t *testing.T) {
	ch := stage.Find("ratio/is_weights")
	b := weightedBy(eachWeight(func(d float64) float64 {
		if w := math.Exp(d); w < 0.8 || w > 1.3 {
			return 1
		}
		return math.Exp(d)
	}))
	var names []string
	for _, changes := range keptShown(ch, b, &convention.Set{}) {
		set := weightSet(t)
		for _, c := range changes {
			set = set.With(c.Option, c.To, "search")
		}
		for _, e := range Explain(stage.Judge(ch, b, set)) {
			names = append(names, e.Hypothesis.ID+": "+e.Hypothesis.Title)
		}
	}
	require.Contains(t, names, "IS-BOUND-FORM: importance weights are kept within the bounds, 1 outside")
	rows := weightedBy(eachWeight(math.Exp))
	one := make([]float64, rows.Rows) // e to the sum of the log-ratios, within 0.4 and 2.5
	for r := range one {
		for i := range rows.TokensOf(r) {
			one[r] += rows.Token("logp_old")[i] - rows.Token("logp_gen")[i]
		}
		if one[r] = float64(float32(math.Exp(one[r]))); one[r] < 0.4 || one[r] > 2.5 {
			one[r] = 1
		}
	}
	rows.Tensors["is_weights"] = &dump.Tensor{Name: "is_weights", Data: one, Width: 1, Layout: dump.PerRow, Shape: []int{rows.Rows}, Type: format.F32}
	require.True(t, slices.ContainsFunc(keptShown(ch, rows, &convention.Set{}), func(list []stage.Change) bool {
		return slices.ContainsFunc(list, func(c stage.Change) bool { return c.Option == "tis.level" && c.To.String() == "seq_sum" })
	}))
	require.Empty(t, keptShown(ch, weightedBy(eachWeight(math.Exp)), &convention.Set{}))
}

// The cap of weights that stand in other rows shows once each row stands in its own place.
func TestBoundsOfWeightsInOtherRows(t *testing.T) {
	ch := stage.Find("ratio/is_weights")
	b := weightedBy(eachWeight(func(d float64) float64 { return min(math.Exp(d), 1.1) }))
	require.Empty(t, OrderShown(ch, b, &convention.Set{}), "weights in their places")
	w, right := b.Token("is_weights"), slices.Clone(b.Token("is_weights"))
	for r := range b.Rows {
		copy(w[r*b.Cols:(r+1)*b.Cols], right[(b.Rows-1-r)*b.Cols:])
	}
	list := OrderShown(ch, b, &convention.Set{})
	require.Len(t, list, 1)
	require.True(t, slices.ContainsFunc(list[0], func(c stage.Change) bool { return c.Option == "tis.high" && c.To.String() == "1.1" }))
}

// A KL whose gradient has a slip of its own shows no rule for it: that of no profile by itself is a base, too.
func TestRareGradientsAreBases(t *testing.T) {
	b := perTokenOf(updated(func(float64, float64) float64 { return 0 }), "logp_ref", func(lp, _, _ float64) float64 { return lp + 0.1 })
	rare := func(changes []stage.Change) bool {
		return slices.ContainsFunc(changes, func(c stage.Change) bool { return c.Option == "kl.grad" && c.To.String() == "straight_through_k2" })
	}
	require.True(t, slices.ContainsFunc(ShownUnder(stage.Find("gradient/dlogp"), b, &convention.Set{}), rare))
	require.False(t, slices.ContainsFunc(ShownUnder(stage.Find("gradient/dlogp"), b.Without("logp_ref"), &convention.Set{}), rare), "no KL")
}
