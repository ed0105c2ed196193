package f32_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel/f32"
	"plumbline/internal/rng"
	"plumbline/reference/ad"
	"plumbline/reference/nn"
	"plumbline/reference/rl"
)

// Unit roundoffs of float32 and float64, and the smallest float32.
const (
	u   = 0x1p-24
	u64 = 0x1p-53
	eta = 0x1p-149
)

// draw returns n float32 numbers of a seed: plain normals, or with wild set numbers of sizes from 2^-20 to 2^10 and zeros among them.
func draw(seed, tensor uint64, n int, wild bool) []float32 {
	s, x := rng.New(seed, tensor), make([]float32, n)
	for i := range x {
		v := s.Normal(uint64(i))
		if wild {
			k := rng.New(seed, tensor+1000).Word(uint64(i)) % 32
			v *= math.Ldexp(1, int(k)-20)
			if k == 31 {
				v = 0
			}
		}
		x[i] = float32(v)
	}
	return x
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// within demands |got − want| ≤ bound for every element; a NaN fails.
func within(t require.TestingT, what string, want []float64, got []float32, bound func(i int) float64) {
	require.Len(t, got, len(want), what)
	for i, w := range want {
		b := bound(i)*(1+8*u) + 4*eta
		if !(math.Abs(float64(got[i])-w) <= b) {
			require.Failf(t, "outside of the bound", "%s[%d]: %g, want %g: the error is %g of the bound %g", what, i, got[i], w, math.Abs(float64(got[i])-w)/b, b)
		}
	}
}

// shape draws rows and columns that straddle the edges of vectors.
func shape(t *rapid.T) (n, c int) {
	return rapid.IntRange(1, 4).Draw(t, "rows"), rapid.SampledFrom([]int{1, 2, 7, 8, 9, 16, 31, 33, 64, 100}).Draw(t, "columns")
}

// gradient returns the gradient of Σ dy·f(x) by x, from the tape.
func gradient(x []float64, shape []int, dy []float32, f func(x *ad.Var) *ad.Var) (y, dx []float64) {
	var tape ad.Tape
	v := tape.Param(x, shape...)
	out := f(v)
	ad.Backward(out, wide(dy))
	return out.Data(), v.Grad()
}

func sum(n int, f func(i int) float64) (s float64) {
	for i := range n {
		s += f(i)
	}
	return s
}

func TestRMSNorm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, c := shape(t)
		seed, wild := rapid.Uint64().Draw(t, "seed"), rapid.Bool().Draw(t, "wild")
		x, w, dy, before := draw(seed, 0, n*c, wild), draw(seed, 1, c, false), draw(seed, 2, n*c, wild), draw(seed, 3, n*c, false)
		var eps = 1e-6
		want, grad := gradient(wide(x), []int{n, c}, dy, func(v *ad.Var) *ad.Var { return nn.RMSNorm(v, v.Tape().Const(wide(w), c), eps) })
		y, rstd, dx := make([]float32, n*c), make([]float32, n), append([]float32(nil), before...)
		f32.RMSNorm(y, x, w, eps, rstd)
		// r is rounded once, then two products.
		within(t, "y", want, y, func(i int) float64 { return 3 * u * math.Abs(want[i]) })
		f32.RMSNormBackward(dx, dy, x, w, rstd)
		for i := range grad {
			grad[i] += float64(before[i])
		}
		within(t, "dx", grad, dx, func(i int) float64 {
			row, r := i/c*c, float64(rstd[i/c])
			g := func(j int) float64 { return math.Abs(float64(w[j]) * float64(dy[row+j])) }
			// the first term is rounded in r, w·dy, the difference and the last product; the second in w·dy, r² twice, s, x·s and the last three
			first, second := r*g(i%c), math.Abs(float64(x[i]))*r*r*r*sum(c, func(j int) float64 { return g(j) * math.Abs(float64(x[row+j])) })/float64(c)
			return 4*u*first + 8*u*second + u*math.Abs(grad[i])
		})
	})
}

func TestLayerNorm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, c := shape(t)
		seed, wild := rapid.Uint64().Draw(t, "seed"), rapid.Bool().Draw(t, "wild")
		x, w, b, dy, before := draw(seed, 0, n*c, wild), draw(seed, 1, c, false), draw(seed, 4, c, false), draw(seed, 2, n*c, false), draw(seed, 3, n*c, false)
		shift := rapid.SampledFrom([]float32{0, 3, 1000}).Draw(t, "shift")
		for i := range x {
			x[i] += shift
		}
		eps := 1e-5
		want, grad := gradient(wide(x), []int{n, c}, dy, func(v *ad.Var) *ad.Var {
			return nn.LayerNorm(v, v.Tape().Const(wide(w), c), v.Tape().Const(wide(b), c), eps)
		})
		y, mean, rstd, dx := make([]float32, n*c), make([]float64, n), make([]float32, n), append([]float32(nil), before...)
		f32.LayerNorm(y, x, w, b, eps, mean, rstd)
		// what float64 leaves of the mean, on both sides
		center := func(i int) float64 {
			row := i / c * c
			return 4 * float64(c+4) * u64 * sum(c, func(j int) float64 { return math.Abs(float64(x[row+j])) }) / float64(c) * float64(rstd[i/c])
		}
		within(t, "y", want, y, func(i int) float64 {
			scaled := math.Abs(want[i] - float64(b[i%c]))
			return 2*u*scaled + u*math.Abs(want[i]) + math.Abs(float64(w[i%c]))*(center(i)+1e-12*scaled)
		})
		f32.LayerNormBackward(dx, dy, x, w, mean, rstd)
		for i := range grad {
			grad[i] += float64(before[i])
		}
		within(t, "dx", grad, dx, func(i int) float64 {
			row, r := i/c*c, float64(rstd[i/c])
			hat := func(j int) float64 { return math.Abs((float64(x[row+j]) - mean[i/c]) * r) }
			g := func(j int) float64 { return math.Abs(float64(w[j]) * float64(dy[row+j])) }
			dot := sum(c, func(j int) float64 { return g(j) * hat(j) }) / float64(c)
			direct := g(i%c) + sum(c, g)/float64(c)
			return r*(3*u*direct+6*u*hat(i%c)*dot) + u*math.Abs(grad[i]) + 4*r*center(i)*(direct+dot)*(1+hat(i%c))
		})
	})
}

func TestActivations(t *testing.T) {
	reach := []float32{0, 1e-30, 1e-5, -1e-5, 0.5, -0.5, -1.278, 3, -3, 20, -20, 80, -80, 300, -300, 1e10, -1e10}
	for _, name := range []string{"silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"} {
		act, err := nn.Activation(name)
		require.NoError(t, err)
		f, err := f32.FindActivation(name)
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) {
			n, seed := rapid.IntRange(1, 40).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
			x := append(draw(seed, 0, n, rapid.Bool().Draw(t, "wild")), reach...)
			n = len(x)
			dy, up := draw(seed, 1, n, false), draw(seed, 2, n, false)
			want, grad := gradient(wide(x), []int{n}, dy, act)
			y := make([]float32, n)
			f.Apply(y, x)
			// exp to 2^-26 and one rounding; the reference's own (1 + tanh)/2 cancels to 2^-50 at negative x
			value := func(i int) float64 { return 1.5*u*math.Abs(want[i]) + 0x1p-50*math.Abs(float64(x[i])) }
			within(t, "y", want, y, value)
			// both terms of a slope to 2^-25; they cancel near its zero, where neither is above 2
			slope := func(i int) float64 { return 0x1p-23 * min(2, 2*math.Abs(grad[i]/float64(dy[i]))+0.2) }
			dx := make([]float32, n)
			f.Backward(dx, dy, x)
			within(t, "dx", grad, dx, func(i int) float64 {
				return u*math.Abs(grad[i]) + math.Abs(float64(dy[i]))*(slope(i)+0x1p-50*(1+math.Abs(float64(x[i]))))
			})
			gated := make([]float32, n)
			f.Gated(gated, x, up)
			product := make([]float64, n)
			for i := range product {
				product[i] = want[i] * float64(up[i])
			}
			within(t, "gated", product, gated, func(i int) float64 { return value(i) * math.Abs(float64(up[i])) })
			dgate, dup := make([]float32, n), append([]float32(nil), dy...)
			f.GatedBackward(dgate, dup, dup, x, up)
			for i := range grad {
				grad[i] *= float64(up[i])
				product[i] = want[i] * float64(dy[i])
			}
			within(t, "dgate", grad, dgate, func(i int) float64 {
				d := math.Abs(float64(dy[i]) * float64(up[i]))
				return u*math.Abs(grad[i]) + d*(0x1p-23*2+0x1p-50*(1+math.Abs(float64(x[i]))))
			})
			within(t, "dup", product, dup, func(i int) float64 { return value(i) * math.Abs(float64(dy[i])) })
		})
	}
	_, err := f32.FindActivation("mish")
	require.ErrorContains(t, err, "mish")
}

func TestSoftmax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, seed := rapid.IntRange(1, 70).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
		x, dp := draw(seed, 0, n, rapid.Bool().Draw(t, "wild")), draw(seed, 1, n, false)
		hidden := rapid.Uint64().Draw(t, "hidden")
		for i := range x {
			if i < 64 && hidden>>i&1 == 1 {
				x[i] = float32(math.Inf(-1))
			}
		}
		p := append([]float32(nil), x...)
		f32.Softmax(p)
		var tape ad.Tape
		v := tape.Param(wide(x), n)
		want := ad.Softmax(v, -1)
		// e^{x−m}, the sum of exact terms, its inverse and the product: exp to 2^-26 and three roundings
		within(t, "p", want.Data(), p, func(i int) float64 { return 4 * u * want.Data()[i] })
		ad.Backward(want, wide(dp))
		ds := make([]float32, n)
		f32.SoftmaxBackward(ds, dp, p)
		total := sum(n, func(j int) float64 { return want.Data()[j] * math.Abs(float64(dp[j])) })
		within(t, "ds", v.Grad(), ds, func(i int) float64 {
			return want.Data()[i] * (4*u*total + u*total + 6*u*(math.Abs(float64(dp[i]))+total))
		})
	})
	dead := []float32{float32(math.Inf(-1)), float32(math.Inf(-1))}
	f32.Softmax(dead)
	require.Equal(t, []float32{0, 0}, dead)
	bad := []float32{1, float32(math.NaN()), 2}
	f32.Softmax(bad)
	for _, v := range bad {
		require.True(t, v != v, "a NaN must not become a number")
	}
}

func TestRoPE(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, heads := rapid.IntRange(1, 5).Draw(t, "tokens"), rapid.IntRange(1, 3).Draw(t, "heads")
		dim := 2 * rapid.IntRange(1, 12).Draw(t, "half")
		ref := nn.RoPE{Dim: 2 * rapid.IntRange(1, dim/2).Draw(t, "pairs"), Theta: 10000, Interleaved: rapid.Bool().Draw(t, "interleaved")}
		seed := rapid.Uint64().Draw(t, "seed")
		x := draw(seed, 0, n*heads*dim, rapid.Bool().Draw(t, "wild"))
		pos := make([]int, n)
		for i := range pos {
			pos[i] = rapid.SampledFrom([]int{0, 1, 2, 255, 4096, 100000}).Draw(t, "position")
		}
		freq, factor := ref.Frequencies()
		r := f32.RoPE{Dim: ref.Dim, Interleaved: ref.Interleaved, Frequencies: freq, Factor: factor}
		cos, sin := r.Tables(pos)
		dy := draw(seed, 1, len(x), false)
		want, grad := gradient(wide(x), []int{1, n, heads, dim}, dy, func(v *ad.Var) *ad.Var { return ref.Apply(v, pos) })
		y := append([]float32(nil), x...)
		r.Apply(y, heads, dim, cos, sin, false)
		// tables rounded from float64 and three roundings: tolerances 5.14 with e_cs = u
		size := func(x []float32) func(i int) float64 {
			return func(i int) float64 {
				head := i / dim * dim
				top := 0.0
				j := i % dim
				if j >= ref.Dim {
					return 0
				}
				pair := j ^ 1
				if !ref.Interleaved {
					pair = (j + ref.Dim/2) % ref.Dim
				}
				top = math.Abs(float64(x[i])) + math.Abs(float64(x[head+pair]))
				return 4 * u * top
			}
		}
		within(t, "y", want, y, size(x))
		dx := append([]float32(nil), dy...)
		r.Apply(dx, heads, dim, cos, sin, true)
		within(t, "dx", grad, dx, size(dy))
	})
}

func TestHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab, seed := rapid.IntRange(1, 90).Draw(t, "vocabulary"), rapid.Uint64().Draw(t, "seed")
		chunk := rapid.IntRange(1, vocab).Draw(t, "chunk")
		scale := rapid.SampledFrom([]float32{1, 10, 80}).Draw(t, "scale")
		z := draw(seed, 0, vocab, false)
		target := rapid.IntRange(0, vocab-1).Draw(t, "target")
		for i := range z {
			z[i] *= scale
			if i != target && rapid.IntRange(0, 9).Draw(t, "impossible") == 0 {
				z[i] = float32(math.Inf(-1))
			}
		}
		var h f32.Head
		for at := 0; at < vocab; at += chunk {
			h.Add(z[at:min(at+chunk, vocab)], at, target)
		}
		lp := rl.LogProbs(nil, wide(z), []int{target}, vocab, rl.LogProbOptions{})[0]
		entropy := rl.Entropy(nil, wide(z), vocab, rl.EntropyOptions{})[0]
		// every term of the sum to 2^-26, as the sum; rescaling adds as much again for each chunk that raises the maximum
		e := 0x1p-26 * float64(2+(vocab+chunk-1)/chunk)
		require.LessOrEqual(t, math.Abs(h.LogProb()-lp), e+1e-14*math.Abs(lp))
		depth := 2 * float64(scale) * 8 // no logit lies further below the top
		require.LessOrEqual(t, math.Abs(h.Entropy()-entropy), e*(1+depth)*2)

		dlp, dh := rng.New(seed, 7).Normal(0), rng.New(seed, 7).Normal(1)
		want := rl.LogProbsBackward(nil, []float64{dlp}, wide(z), []int{target}, vocab, rl.LogProbOptions{})
		want = rl.EntropyBackward(want, []float64{dh}, wide(z), vocab, rl.EntropyOptions{})
		got := append([]float32(nil), z...)
		for at := 0; at < vocab; at += chunk {
			h.Slopes(got[at:min(at+chunk, vocab)], at, target, dlp, dh)
		}
		within(t, "slopes", want, got, func(i int) float64 {
			p := math.Exp(math.Min(0, float64(z[i])-h.Top)) / h.Sum
			if i == target {
				p = 1
			}
			return u*math.Abs(want[i]) + p*(math.Abs(dlp)+math.Abs(dh)*(1+2*depth))*2*e
		})
	})
	var none f32.Head
	none.Add([]float32{float32(math.Inf(-1))}, 0, 0)
	require.True(t, math.IsNaN(none.LogProb()))
	var bad f32.Head
	bad.Add([]float32{1, 2, float32(math.NaN())}, 0, 0)
	bad.Add([]float32{3}, 3, 0)
	require.True(t, math.IsNaN(bad.LogProb()))
}

func TestEmbedding(t *testing.T) {
	w := []float32{1, 2, 3, 4, 5, 6}
	y := make([]float32, 4)
	f32.Embedding(y, w, []int{2, 0}, 2)
	require.Equal(t, []float32{5, 6, 1, 2}, y)
	require.Panics(t, func() { f32.Embedding(y, w, []int{3, 0}, 2) })
}
