package nn

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// attend computes attention by the definition, one output at a time.
func attend(q, k, v ad.Tensor, m ad.Mask, scale float64) []float64 {
	b, n, h, d := q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	s, kv, e := k.Shape[1], k.Shape[2], v.Shape[3]
	y := make([]float64, b*n*h*e)
	for i := range b {
		for t := range n {
			for j := range h {
				g := j / (h / kv)
				var z float64
				w := make([]float64, s)
				for u := range s {
					if !m.On[(i*n+t)*s+u] {
						continue
					}
					var dot float64
					for c := range d {
						dot += q.Data[((i*n+t)*h+j)*d+c] * k.Data[((i*s+u)*kv+g)*d+c]
					}
					w[u] = math.Exp(scale * dot)
					z += w[u]
				}
				for u := range s {
					for c := range e {
						if w[u] > 0 {
							y[((i*n+t)*h+j)*e+c] += w[u] / z * v.Data[((i*s+u)*kv+g)*e+c]
						}
					}
				}
			}
		}
	}
	return y
}

// attentionCase is a random attention; V may have another width than Q and K.
type attentionCase struct {
	q, k, v ad.Tensor
	m       ad.Mask
	scale   float64
}

func drawAttention(t *rapid.T, r *rand.Rand) attentionCase {
	b, n, s, kv, g, d := size(t, "b", 2), size(t, "t", 4), size(t, "s", 5), size(t, "kv", 2), size(t, "group", 3), size(t, "d", 4)
	return attentionCase{random(r, b, n, kv*g, d), random(r, b, s, kv, d), random(r, b, s, kv, size(t, "e", 4)),
		drawMask(r, b, 1, n, s), 1 / math.Sqrt(float64(d))}
}

func (c attentionCase) run() []float64 {
	x := leaves(c.q, c.k, c.v)
	return Attention(x[0], x[1], x[2], c.m, c.scale).Data()
}

func TestAttention(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawAttention(t, drawRand(t))
		got, want := c.run(), attend(c.q, c.k, c.v, c.m, c.scale)
		for i := range want {
			require.InDelta(t, want[i], got[i], 1e-13)
		}
	})
}

// A query that sees nothing gives 0, and neither takes nor gives a gradient.
func TestAttentionSeesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		c := drawAttention(t, r)
		clear(c.m.On)
		x := leaves(c.q, c.k, c.v)
		y := Attention(x[0], x[1], x[2], c.m, c.scale)
		ad.Backward(y, random(r, y.Shape()...).Data)
		for _, v := range slices.Concat(y.Data(), x[0].Grad(), x[1].Grad(), x[2].Grad()) {
			require.Zero(t, v)
		}
	})
}

func TestAttentionLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		c := drawAttention(t, r)
		b, n, h := c.q.Shape[0], c.q.Shape[1], c.q.Shape[2]
		s, kv, e := c.k.Shape[1], c.k.Shape[2], c.v.Shape[3]
		y := c.run()

		// Keys change places with their values and their mask.
		p := c
		order := r.Perm(s)
		p.k, p.v, p.m = random(r, c.k.Shape...), random(r, c.v.Shape...), drawMask(r, c.m.Shape...)
		for i := range b {
			for u, from := range order {
				copy(p.k.Data[(i*s+u)*kv*c.k.Shape[3]:(i*s+u+1)*kv*c.k.Shape[3]], c.k.Data[(i*s+from)*kv*c.k.Shape[3]:])
				copy(p.v.Data[(i*s+u)*kv*e:(i*s+u+1)*kv*e], c.v.Data[(i*s+from)*kv*e:])
				for q := range n {
					p.m.On[(i*n+q)*s+u] = c.m.On[(i*n+q)*s+from]
				}
			}
		}
		for i, v := range p.run() {
			require.InDelta(t, y[i], v, 1e-13, "permuted keys")
		}

		// A head that shares its keys is the head with a copy of them, bit for bit.
		x := leaves(c.q, c.k, c.v)
		copies := func(v *ad.Var) *ad.Var {
			var heads []*ad.Var
			for j := range h {
				heads = append(heads, ad.Slice(v, 2, j/(h/kv), j/(h/kv)+1))
			}
			return ad.Concat(2, heads...)
		}
		require.Equal(t, y, Attention(x[0], copies(x[1]), copies(x[2]), c.m, c.scale).Data(), "repeated heads")

		// Every output lies between the least and the greatest value that is seen; equal keys give their mean, equal values
		// themselves.
		flat := c
		flat.k = ad.Tensor{Shape: c.k.Shape, Data: make([]float64, len(c.k.Data))}
		means := flat.run()
		for i := range b {
			for q := range n {
				for j := range h {
					for ch := range e {
						lo, hi, sum, seen := math.Inf(1), math.Inf(-1), 0., 0.
						for u := range s {
							if c.m.On[(i*n+q)*s+u] {
								v := c.v.Data[((i*s+u)*kv+j/(h/kv))*e+ch]
								lo, hi, sum, seen = min(lo, v), max(hi, v), sum+v, seen+1
							}
						}
						at := ((i*n+q)*h+j)*e + ch
						if seen > 0 {
							require.GreaterOrEqual(t, y[at], lo-1e-14)
							require.LessOrEqual(t, y[at], hi+1e-14)
							require.InDelta(t, sum/seen, means[at], 1e-14, "equal keys")
						}
					}
				}
			}
		}

		// A key that stands out takes all.
		sharp := c
		sharp.scale = 1e6
		for i, v := range sharp.run() {
			require.False(t, math.IsNaN(v) || math.IsInf(v, 0), i)
		}
		hard, rest := attendHard(sharp)
		for i, v := range sharp.run() {
			require.InDelta(t, hard[i], v, 1e-9+rest[i])
		}
	})
}

// attendHard returns the value of the key with the largest score, and by how much the other keys can move the output from
// it: a key whose score is smaller by g has at most the weight exp(-scale*g), which is not nothing where two keys nearly tie.
func attendHard(c attentionCase) (y, rest []float64) {
	b, n, h, d := c.q.Shape[0], c.q.Shape[1], c.q.Shape[2], c.q.Shape[3]
	s, kv, e := c.k.Shape[1], c.k.Shape[2], c.v.Shape[3]
	y, rest = make([]float64, b*n*h*e), make([]float64, b*n*h*e)
	score := make([]float64, s)
	for i := range b {
		for t := range n {
			for j := range h {
				best, at := math.Inf(-1), -1
				for u := range s {
					score[u] = 0
					for ch := range d {
						score[u] += c.q.Data[((i*n+t)*h+j)*d+ch] * c.k.Data[((i*s+u)*kv+j/(h/kv))*d+ch]
					}
					if c.m.On[(i*n+t)*s+u] && score[u] > best {
						best, at = score[u], u
					}
				}
				if at < 0 {
					continue
				}
				out := ((i*n+t)*h + j) * e
				value := func(u int) []float64 { return c.v.Data[((i*s+u)*kv+j/(h/kv))*e:][:e] }
				copy(y[out:], value(at))
				for u := range s {
					if c.m.On[(i*n+t)*s+u] && u != at {
						for ch, v := range value(u) {
							rest[out+ch] += math.Exp((score[u]-best)*c.scale) * math.Abs(v-y[out+ch])
						}
					}
				}
			}
		}
	}
	return y, rest
}

func TestMask(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		b, n, past := size(t, "b", 3), size(t, "t", 4), rapid.IntRange(0, 3).Draw(t, "past")
		v := Visible{Batch: b, Queries: n, Keys: n + past, Causal: rapid.Bool().Draw(t, "causal"), Window: rapid.IntRange(0, 4).Draw(t, "window")}
		if rapid.Bool().Draw(t, "padded") {
			v.Real = drawMask(r, b*v.Keys).On
		}
		if rapid.Bool().Draw(t, "packed") {
			v.Segment = make([]int, b*v.Keys)
			for i := range v.Segment {
				v.Segment[i] = r.IntN(2)
			}
		}
		m := v.Mask()
		rows := b
		if v.Real == nil && v.Segment == nil {
			rows = 1
		}
		require.Equal(t, []int{rows, 1, n, v.Keys}, m.Shape)
		for i := range rows {
			for q := range n {
				for k := range v.Keys {
					place, hidden := past+q, false
					hidden = hidden || v.Causal && k > place
					hidden = hidden || v.Window > 0 && place-k >= v.Window
					hidden = hidden || v.Real != nil && !v.Real[i*v.Keys+k]
					hidden = hidden || v.Segment != nil && v.Segment[i*v.Keys+k] != v.Segment[i*v.Keys+place]
					require.Equal(t, !hidden, m.On[(i*n+q)*v.Keys+k])
				}
			}
		}
	})
}

func TestPositions(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 0, 1, 2}, Positions(2, 3, nil, nil))
	left := []bool{false, false, true, true}
	require.Equal(t, []int{0, 0, 0, 1}, Positions(1, 4, left, nil))
	right := []bool{true, true, false, false}
	require.Equal(t, []int{0, 1, 1, 1}, Positions(1, 4, right, nil))
	require.Equal(t, []int{0, 1, 0, 0, 0, 1, 2, 0}, Positions(2, 4, nil, []int{7, 7, 8, 9, 9, 9, 9, 7}), "a row starts anew")
	require.Empty(t, Positions(0, 4, nil, nil))
}
