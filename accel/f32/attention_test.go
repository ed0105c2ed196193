package f32_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel"
	"plumbline/accel/f32"
	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// attentionCase is one sequence of attention with its float64 oracle and the error bounds of tolerances 5.15.
type attentionCase struct {
	a           f32.Attention
	t, s        int
	q, k, v, dy []float32
	y           []float64 // [T, H·D]
	dq, dk, dv  []float64
	p, dp       []float64 // [H, T, S]
}

func drawAttention(t *rapid.T) *attentionCase {
	kv := rapid.IntRange(1, 3).Draw(t, "kv heads")
	c := &attentionCase{a: f32.Attention{Heads: kv * rapid.IntRange(1, 3).Draw(t, "group"), KVHeads: kv, Dim: rapid.SampledFrom([]int{1, 4, 7, 8, 16}).Draw(t, "dim"),
		Causal: rapid.Bool().Draw(t, "causal")}}
	c.s = rapid.SampledFrom([]int{1, 2, 7, 33, 70}).Draw(t, "keys")
	c.t = rapid.IntRange(max(1, c.s-66), c.s).Draw(t, "queries")
	if rapid.Bool().Draw(t, "windowed") {
		c.a.Window = rapid.IntRange(1, c.s).Draw(t, "window")
	}
	if rapid.Bool().Draw(t, "padded") {
		c.a.Real = make([]bool, c.s)
		for i := range c.a.Real {
			c.a.Real[i] = rapid.IntRange(0, 3).Draw(t, "real") > 0
		}
	}
	c.a.Scale = float32(1 / math.Sqrt(float64(c.a.Dim)))
	seed := rapid.Uint64().Draw(t, "seed")
	qn, kn := c.t*c.a.Heads*c.a.Dim, c.s*kv*c.a.Dim
	c.q, c.k, c.v, c.dy = draw(seed, 0, qn, false), draw(seed, 1, kn, false), draw(seed, 2, kn, false), draw(seed, 3, qn, false)
	c.reference()
	return c
}

func (c *attentionCase) reference() {
	var tape ad.Tape
	h, kv, d := c.a.Heads, c.a.KVHeads, c.a.Dim
	q, k, v := tape.Param(wide(c.q), 1, c.t, h, d), tape.Param(wide(c.k), 1, c.s, kv, d), tape.Param(wide(c.v), 1, c.s, kv, d)
	visible := nn.Visible{Batch: 1, Queries: c.t, Keys: c.s, Causal: c.a.Causal, Window: c.a.Window, Real: c.a.Real}
	y := nn.Attention(q, k, v, visible.Mask(), float64(c.a.Scale))
	ad.Backward(y, wide(c.dy))
	c.y, c.dq, c.dk, c.dv = y.Data(), q.Grad(), k.Grad(), v.Grad()
	mask := visible.Mask()
	for n := range h {
		for i := range c.t {
			row, dp := make([]float64, c.s), make([]float64, c.s)
			top, total := math.Inf(-1), 0.0
			for j := range c.s {
				row[j] = math.Inf(-1)
				if mask.On[i*c.s+j] {
					row[j] = float64(c.a.Scale) * c.dot(c.q, i*h+n, c.k, j*kv+n/(h/kv), false)
				}
				top = max(top, row[j])
				dp[j] = c.dot(c.dy, i*h+n, c.v, j*kv+n/(h/kv), false)
			}
			for j := range row {
				if row[j] = math.Exp(row[j] - max(top, -1e300)); !(row[j] >= 0) {
					row[j] = 0
				}
				total += row[j]
			}
			for j := range row {
				row[j] /= max(total, 1e-300)
			}
			c.p, c.dp = append(c.p, row...), append(c.dp, dp...)
		}
	}
}

// dot returns ⟨x_i, y_j⟩ of rows of Dim, or of their sizes.
func (c *attentionCase) dot(x []float32, i int, y []float32, j int, sizes bool) (s float64) {
	d := c.a.Dim
	for l := range d {
		p := float64(x[i*d+l]) * float64(y[j*d+l])
		if sizes {
			p = math.Abs(p)
		}
		s += p
	}
	return s
}

// bounds returns those of p, ds [H, T, S] and of the outputs: r_j = B_s,j + Σ p_i·B_s,i + that of the softmax, in relative terms.
func (c *attentionCase) bounds() (bp, ds, bds []float64) {
	h, kv, d := c.a.Heads, c.a.KVHeads, c.a.Dim
	for n := range h {
		for i := range c.t {
			at := (n*c.t + i) * c.s
			p, dp := c.p[at:at+c.s], c.dp[at:at+c.s]
			var mean, dot, sizes, edp float64
			bs, bdp := make([]float64, c.s), make([]float64, c.s)
			for j := range c.s {
				g := j*kv + n/(h/kv)
				bs[j] = float64(d+2) * u * float64(c.a.Scale) * c.dot(c.q, i*h+n, c.k, g, true)
				bdp[j] = float64(d) * u * c.dot(c.dy, i*h+n, c.v, g, true)
				mean += p[j] * bs[j]
				dot += p[j] * dp[j]
				sizes += p[j] * math.Abs(dp[j])
				edp += p[j] * bdp[j]
			}
			var ep float64 // of Σ p·dp through p
			for j := range c.s {
				r := bs[j] + mean + 6*u
				bp = append(bp, 1.01*r*p[j]) // 1/(1 − r), r < 0.01
				ep += 1.01 * r * p[j] * math.Abs(dp[j])
			}
			for j := range c.s {
				diff := dp[j] - dot
				ds = append(ds, float64(c.a.Scale)*p[j]*diff)
				bds = append(bds, float64(c.a.Scale)*(bp[at+j]*(math.Abs(diff)+bdp[j])+p[j]*(bdp[j]+edp+ep+u*sizes+6*u*(math.Abs(dp[j])+sizes))))
			}
		}
	}
	return bp, ds, bds
}

func TestAttention(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawAttention(t)
		h, kv, d := c.a.Heads, c.a.KVHeads, c.a.Dim
		nan := float32(math.NaN())
		y, dq := make([]float32, len(c.q)), make([]float32, len(c.q))
		for i := range y {
			y[i], dq[i] = nan, nan
		}
		before := draw(1, 9, len(c.k), false)
		dk, dv := append([]float32(nil), before...), append([]float32(nil), before...)
		var w f32.Scratch
		for n := range kv {
			c.a.Forward(y, c.q, c.k, c.v, n, &w)
			c.a.Backward(dq, dk, dv, c.dy, c.q, c.k, c.v, n, &w)
		}
		bp, ds, bds := c.bounds()
		at := func(i int) (token, head, channel int) { return i / (h * d), i / d % h, i % d }
		within(t, "y", c.y, y, func(i int) float64 {
			token, head, l := at(i)
			return sum(c.s, func(j int) float64 {
				v := math.Abs(float64(c.v[(j*kv+head/(h/kv))*d+l]))
				x := (head*c.t+token)*c.s + j
				return bp[x]*v + float64(c.s+1)*u*c.p[x]*v
			})
		})
		within(t, "dq", c.dq, dq, func(i int) float64 {
			token, head, l := at(i)
			return sum(c.s, func(j int) float64 {
				k := math.Abs(float64(c.k[(j*kv+head/(h/kv))*d+l]))
				x := (head*c.t+token)*c.s + j
				return bds[x]*k + float64(c.s+1)*u*math.Abs(ds[x])*k
			})
		})
		// sums over the queries of the G heads of a group
		over := func(i int, weight, bound []float64, x []float32) float64 {
			key, group, l := i/(kv*d), i/d%kv, i%d
			n := float64(c.t*h/kv + 2)
			return u*n*math.Abs(float64(before[i])) + sum(h/kv*c.t, func(m int) float64 {
				head, token := group*(h/kv)+m/c.t, m%c.t
				q := math.Abs(float64(x[(token*h+head)*d+l]))
				e := (head*c.t+token)*c.s + key
				return (bound[e] + n*u*math.Abs(weight[e])) * q
			})
		}
		for i, v := range before {
			c.dk[i] += float64(v)
			c.dv[i] += float64(v)
		}
		within(t, "dk", c.dk, dk, func(i int) float64 { return over(i, ds, bds, c.q) })
		within(t, "dv", c.dv, dv, func(i int) float64 { return over(i, c.p, bp, c.dy) })
	})
}

// TestAttentionHides demands that what no query sees has no influence at all, NaN in its scores excepted, and that a query which sees nothing gives 0.
func TestAttentionHides(t *testing.T) {
	a := f32.Attention{Heads: 2, KVHeads: 1, Dim: 4, Scale: 0.5, Causal: true, Real: []bool{false, false, true, true, true}}
	q, k, v := draw(1, 0, 5*8, false), draw(1, 1, 5*4, false), draw(1, 2, 5*4, false)
	var w f32.Scratch
	y := make([]float32, len(q))
	a.Forward(y, q, k, v, 0, &w)
	require.Equal(t, make([]float32, 16), y[:16], "left padding sees nothing under a causal mask")
	changed := append([]float32(nil), k...)
	for i := range 8 {
		changed[i] = 1e6
	}
	for i := 16; i < 20; i++ {
		changed[i] = -1e6
	}
	z := make([]float32, len(q))
	a.Forward(z, q, changed, v, 0, &w)
	require.Equal(t, y[:32], z[:32], "neither padding nor what comes later changes a query")
	require.NotEqual(t, y[32:], z[32:])

	// The heads of a group share their keys: as many copies of them give the same bits.
	full := f32.Attention{Heads: 2, KVHeads: 2, Dim: 4, Scale: 0.5, Causal: true, Real: a.Real}
	twice := func(x []float32) (out []float32) {
		for i := 0; i < len(x); i += 4 {
			out = append(append(out, x[i:i+4]...), x[i:i+4]...)
		}
		return out
	}
	for n := range 2 {
		full.Forward(z, q, twice(k), twice(v), n, &w)
	}
	require.Equal(t, y, z)

	// A chunk of new tokens meets the keys of a cache: the last queries alone give the same bits.
	last := make([]float32, 8)
	a.Forward(last, q[32:], k, v, 0, &w)
	require.Equal(t, y[32:], last)
}

// Every variant returns the numbers of the portable one, whatever queries are taken together and however heads share their keys.
func TestAttentionVariants(t *testing.T) {
	type result struct{ y, dq, dk, dv []float32 }
	rapid.Check(t, func(t *rapid.T) {
		kv := rapid.IntRange(1, 2).Draw(t, "kv heads")
		a := f32.Attention{KVHeads: kv, Heads: kv * rapid.IntRange(1, 3).Draw(t, "group"), Dim: rapid.SampledFrom([]int{1, 5, 16, 33}).Draw(t, "dim"), Scale: 0.3,
			Causal: rapid.Bool().Draw(t, "causal")}
		s := rapid.SampledFrom([]int{1, 2, 15, 48, 49, 97, 130}).Draw(t, "keys")
		n := rapid.SampledFrom([]int{1, 3, s}).Filter(func(n int) bool { return n <= s }).Draw(t, "queries")
		if rapid.Bool().Draw(t, "windowed") {
			a.Window = rapid.IntRange(1, s).Draw(t, "window")
		}
		if rapid.Bool().Draw(t, "padded") {
			a.Real = make([]bool, s)
			for i := range a.Real {
				a.Real[i] = i%4 > 0
			}
		}
		qn, kn, seed := n*a.Heads*a.Dim, s*kv*a.Dim, rapid.Uint64().Draw(t, "seed")
		q, k, v, dy := draw(seed, 0, qn, false), draw(seed, 1, kn, false), draw(seed, 2, kn, false), draw(seed, 3, qn, false)
		var want *result
		var w f32.Scratch
		accel.Each("f32.Attention", func(x accel.Variant) {
			if x.Missing != "" {
				return
			}
			release, err := accel.Force("f32.AttentionBackward", x.Name)
			require.NoError(t, err)
			defer release()
			got := &result{make([]float32, qn), append([]float32(nil), dy...), draw(seed, 4, kn, false), draw(seed, 5, kn, false)}
			for h := range kv {
				a.Forward(got.y, q, k, v, h, &w)
				a.Backward(got.dq, got.dk, got.dv, got.dq, q, k, v, h, &w)
			}
			if want == nil {
				want = got
			}
			for i, pair := range [][2][]float32{{want.y, got.y}, {want.dq, got.dq}, {want.dk, got.dk}, {want.dv, got.dv}} {
				for j, x0 := range pair[0] {
					if pair[1][j] != x0 {
						t.Fatalf("%s: element %d of result %d is %v, not %v", x.Name, j, i, pair[1][j], x0)
					}
				}
			}
		})
	})
}

func TestAdamW(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, seed := rapid.IntRange(1, 40).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
		step := rapid.SampledFrom([]int{1, 2, 10, 1000}).Draw(t, "step")
		o := f32.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: rapid.SampledFrom([]float64{0, 0.01}).Draw(t, "decay"), Step: step}
		p, g, m, v := draw(seed, 0, n, false), draw(seed, 1, n, true), draw(seed, 2, n, true), draw(seed, 3, n, true)
		for i := range v {
			v[i] *= v[i]
			if step == 1 {
				m[i], v[i] = 0, 0
			}
		}
		limit := rapid.SampledFrom([]float64{0, 1e-3, 1e6}).Draw(t, "limit")
		_, scale := f32.Clip([][]float32{g}, limit)
		ref := reference(o, wide(p), wide(g), wide(m), wide(v), scale)
		// Float64 inside: one rounding of what is stored.
		wantM, wantV, wantP := ref.m, ref.v, ref.p
		up := make([]float32, n)
		q, k := []float32(nil), 0
		f32.AdamW(o).Update(up, p, g, m, v, scale)
		f32.Apply(p, up, q, nil, k, 1)
		within(t, "m", wantM, m, func(i int) float64 { return u*math.Abs(wantM[i]) + 1e-15*ref.sizes[i] })
		within(t, "v", wantV, v, func(i int) float64 { return u * math.Abs(wantV[i]) * (1 + 1e-6) })
		within(t, "p", wantP, p, func(i int) float64 {
			return u*math.Abs(wantP[i]) + u*ref.update[i]*(1+1e-6) + 1e-12*ref.sizes[i]*o.LR/max(math.Sqrt(wantV[i]), 1e-8)
		})
	})
}

func TestProjectionSweep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, cols, seed := rapid.IntRange(2, 30).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "cols"), rapid.Uint64().Draw(t, "seed")
		p, up := draw(seed, 0, d*cols, false), draw(seed, 1, d*cols, false)
		qt := make([]float32, d) // one unit vector in the direction (1, …, 1)
		for i := range qt {
			qt[i] = float32(1 / math.Sqrt(float64(d)))
		}
		c := make([]float64, cols)
		f32.Components(c, qt, up, 1, cols)
		after := append([]float32(nil), p...)
		f32.Apply(after, up, qt, c, 1, cols)
		for l := range cols {
			var moved, size float64
			for i := range d {
				moved += float64(after[i*cols+l]) - float64(p[i*cols+l])
				size += math.Abs(float64(p[i*cols+l])) + math.Abs(float64(after[i*cols+l]))
			}
			// what is left along the basis: the rounding of p, and that of Q, whose norm is 1 to 2u
			require.LessOrEqual(t, math.Abs(moved), u*size+4*u*math.Sqrt(float64(d))*math.Abs(c[l])*math.Sqrt(float64(d)))
			require.Greater(t, math.Abs(c[l]), 0.0)
		}
	})
}
