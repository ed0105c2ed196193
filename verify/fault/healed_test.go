package fault

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// baselined is a rollout of groups whose scores less the mean of the others, beside −0.03 times the KL of every token, sum makes advantages of.
func baselined(sum func(r []float64) []float64) *dump.Batch {
	const rows, cols, size = 16, 10, 4
	g := rand.New(rand.NewPCG(3, 4))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	score, id, kl, adv := make([]float64, rows), make([]float64, rows), make([]float64, rows*cols), make([]float64, rows*cols)
	total := [rows / size]float64{}
	for r := range rows {
		score[r], id[r] = float64(float32(g.NormFloat64())), float64(r/size)
		total[r/size] += score[r]
	}
	for r := range rows {
		n := 5 + r%5
		own := make([]float64, n)
		for t := range n {
			i := r*cols + t
			b.Mask[i], kl[i] = true, float64(float32(0.1*g.NormFloat64()))
			own[t] = -0.03 * kl[i]
		}
		own[n-1] += score[r] - (total[r/size]-score[r])/(size-1)
		for t, a := range sum(own) {
			adv[r*cols+t] = float64(float32(a))
		}
	}
	for name, x := range map[string][]float64{"scores": score, "group_id": id, "kl": kl, "advantages": adv} {
		t := &dump.Tensor{Name: name, Data: x, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{rows, cols}}
		if len(x) == rows {
			t.Layout, t.Shape = dump.PerRow, []int{rows}
		}
		b.Tensors[name] = t
	}
	return b
}

// Wrong sums over rewards that were not dumped, and of which nothing is declared, are taken out of a batch; what makes the rest of it right is a base on which they
// are named.
func TestHealedReturns(t *testing.T) {
	ch, none := stage.Find("advantage/return"), &convention.Set{}
	right := baselined(func(r []float64) []float64 { return toGo(r, 1) })
	for _, f := range []int{0, 1, 2, 5, 12} {
		form := toGoForms[f]
		b := baselined(func(r []float64) []float64 { return form.of(r, 1) })
		found := false
		for _, in := range Healed(ch, b, none) {
			fits, _ := stage.Complete(ch, in, none)
			if len(fits) == 0 {
				continue
			}
			require.InDeltaSlice(t, right.Token("advantages"), in.Token("advantages"), 1e-6, form.title)
			under := none
			for _, c := range fits[0].Changes {
				under = under.With(c.Option, c.To, "search")
			}
			o := stage.Judge(ch, b, under)
			require.Equal(t, check.Fail, o.Verdict)
			requireName(t, o, form.id, form.title)
			found = true
		}
		require.True(t, found, form.title)
	}
	require.Empty(t, Healed(ch, baselined(func(r []float64) []float64 { return append(toGo(r, 1)[2:], 0, 1) }), none))
}

// A recursion whose next value is the own one, that of a longest response 0, and one that bootstraps longest responses from their own values, are taken out of the
// returns and the advantages; the right one, and one of other rewards, are not.
func TestHealedRecursions(t *testing.T) {
	const gamma, carry = 0.99, 0.99 * 0.95
	recurse := func(next func(v []float64, t int, longest bool) float64, stray float64) *dump.Batch {
		b := baselined(func(r []float64) []float64 { return r })
		adv, g := b.Token("advantages"), rand.New(rand.NewPCG(6, 7))
		v, ret := make([]float64, len(adv)), make([]float64, len(adv))
		for r := range b.Rows {
			lo, n := r*b.Cols, 5+r%5
			for i := lo; i < lo+n; i++ {
				v[i] = float64(float32(g.NormFloat64()))
			}
			b.Row("scores")[r] = adv[lo+n-1] + 0.03*b.Token("kl")[lo+n-1]
			for i, a := lo+n-1, 0.0; i >= lo; i-- {
				a = adv[i] + stray*g.NormFloat64() + gamma*next(v[lo:lo+n], i-lo, n == 9) - v[i] + carry*a
				ret[i] = float64(float32(a + v[i]))
				adv[i] = float64(float32((a - 0.2) / 1.5))
			}
		}
		b.Tensors["values"], b.Tensors["returns"] = b.With("advantages", v).Tensors["advantages"], b.With("advantages", ret).Tensors["advantages"]
		return b
	}
	right := func(v []float64, t int, _ bool) float64 { return at(v, t+1) }
	want, ch := recurse(right, 0), stage.Find("gae/returns")
	for _, next := range []func(v []float64, t int, longest bool) float64{
		func(v []float64, t int, longest bool) float64 {
			return v[t] * float64(1-boolToInt(longest && t == len(v)-1))
		},
		func(v []float64, t int, longest bool) float64 {
			return v[min(t+1, len(v)-1)] * float64(boolToInt(longest || t < len(v)-1))
		},
	} {
		list := Healed(ch, recurse(next, 0), &convention.Set{})
		require.NotEmpty(t, list)
		require.InDeltaSlice(t, want.Token("returns"), list[0].Token("returns"), 1e-5)
	}
	require.Empty(t, Healed(ch, want, &convention.Set{}))
	require.Empty(t, Healed(ch, recurse(right, 0.1), &convention.Set{}))
}

// Of dumped rewards the γ and λ of a recursion with other values are those of the right one, which is put in its place.
func TestHealedRecursionsOverRewards(t *testing.T) {
	const gamma, lambda = 0.98, 0.9
	recurse := func(white bool, delta func(r, v []float64, t int) float64) *dump.Batch {
		b := baselined(func(r []float64) []float64 { return r })
		adv, g := b.Token("advantages"), rand.New(rand.NewPCG(6, 7))
		r, v, ret := slices.Clone(adv), make([]float64, len(adv)), make([]float64, len(adv))
		for row := range b.Rows {
			lo, n := row*b.Cols, 5+row%5
			for i := lo; i < lo+n; i++ {
				r[i], v[i] = float64(float32(g.NormFloat64())), float64(float32(g.NormFloat64()))
			}
			for i, a := lo+n-1, 0.0; i >= lo; i-- {
				a = delta(r[lo:lo+n], v[lo:lo+n], i-lo) + gamma*lambda*a
				if adv[i], ret[i] = float64(float32(a)), float64(float32(a+v[i])); white {
					adv[i] = float64(float32((a - 0.2) / 1.5))
				}
			}
		}
		for name, x := range map[string][]float64{"token_rewards": r, "values": v, "returns": ret} {
			if b.Tensors[name] = b.With("advantages", x).Tensors["advantages"]; white {
				delete(b.Tensors, "returns")
			}
		}
		return b
	}
	right := func(r, v []float64, t int) float64 { return r[t] + gamma*at(v, t+1) - v[t] }
	want, ch := recurse(false, right), stage.Find("gae/advantage")
	for name, delta := range map[string]func(r, v []float64, t int) float64{
		"the next value is subtracted": func(r, v []float64, t int) float64 { return r[t] + gamma*at(v, t+1) - at(v, t+1) },
		"rewards a token late":         func(r, v []float64, t int) float64 { return at(r, t-1) + gamma*at(v, t+1) - v[t] },
	} {
		for _, white := range []bool{false, true} {
			found := slices.ContainsFunc(Healed(ch, recurse(white, delta), &convention.Set{}), func(in *dump.Batch) bool {
				off := 0.0
				for i, m := range in.Mask {
					if m {
						off = max(off, math.Abs(in.Token("returns")[i]-want.Token("returns")[i]))
					}
				}
				return off < 1e-5
			})
			require.True(t, found, "%s, whitened %v", name, white)
		}
	}
	noise := func(r, v []float64, t int) float64 { return right(r, v, t) + 0.1*math.Sin(1e3*v[t]) }
	require.Empty(t, Healed(ch, recurse(false, noise), &convention.Set{}))
}
