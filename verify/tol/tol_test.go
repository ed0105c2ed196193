package tol_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/verify/tol"
)

// Every way of being wrong must fail (faults X01, X04, X18 of the harness itself).
func TestComparatorFails(t *testing.T) {
	ref := []float64{1, -2, 3, 0.5}
	bound := []float64{1e-6, 1e-6, 1e-6, 1e-6}
	scale := tol.RMS(ref)
	ok := func(out, b []float64) bool {
		c := tol.Compare(ref, out, b, scale)
		return c.N > 0 && c.Bad == "" && c.Failed == 0
	}
	require.True(t, ok(ref, bound), "the right answer passes")
	require.True(t, ok([]float64{1 + 9e-7, -2, 3, 0.5}, bound), "inside the bound passes")
	change := func(i int, v float64) []float64 {
		out := append([]float64(nil), ref...)
		out[i] = v
		return out
	}
	for name, out := range map[string][]float64{
		"NaN": change(0, math.NaN()), "+Inf": change(1, math.Inf(1)), "-Inf": change(2, math.Inf(-1)),
		"zeros": make([]float64, 4), "transposed": {1, 3, -2, 0.5}, "empty": {}, "short": ref[:3], "long": append(append([]float64(nil), ref...), 1),
		"twice the bound": change(3, 0.5+2e-6), "all NaN": {math.NaN(), math.NaN(), math.NaN(), math.NaN()},
	} {
		require.False(t, ok(out, bound), name)
	}
	require.False(t, ok(ref, bound[:3]), "bounds missing")
	require.False(t, ok(ref, []float64{1e-6, math.NaN(), 1e-6, 1e-6}), "bound NaN")
	require.False(t, ok(ref, []float64{1e-6, -1, 1e-6, 1e-6}), "bound negative")
	require.False(t, ok(change(0, math.Nextafter(1, 2)), make([]float64, 4)), "one ulp over the bound 0")
	empty := tol.Compare(nil, nil, nil, 1)
	require.Zero(t, empty.N, "nothing compared is not a pass: check.Elements fails it")
	nan := tol.Compare([]float64{math.NaN()}, []float64{math.NaN()}, []float64{1}, 1)
	require.NotEmpty(t, nan.Bad, "NaN against NaN is no agreement")
}

func TestVoidBoundIsUndetermined(t *testing.T) {
	c := tol.Compare([]float64{1, 1, 0}, []float64{1.5, 1, 0}, []float64{math.Inf(1), 0.02, 0.005}, 1)
	require.Equal(t, 2, c.Undetermined)
	require.Zero(t, c.Failed)
	c = tol.Compare([]float64{0}, []float64{0}, []float64{0}, 0)
	require.Zero(t, c.Undetermined, "an exact zero under the bound 0 is decided")
}

func TestResolutionAndMerge(t *testing.T) {
	var whole, a, b tol.Tally
	whole.Scale, a.Scale, b.Scale = 2, 2, 2
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 1001 {
		bound := 1e-7 * (1 + r.Float64())
		part := &a
		if i >= 500 {
			part = &b
		}
		for _, t := range []*tol.Tally{&whole, part} {
			t.Add(i, 1, 1+bound*float64(i)/1001, bound)
		}
	}
	require.InEpsilon(t, 0.75e-7, whole.Resolution(), 0.07)
	a.Merge(&b)
	require.Equal(t, whole, a)
	require.Equal(t, 1000, a.Worst.Index)
	var infinite tol.Tally
	infinite.Add(0, 0, 0, 1) // scale 0
	require.Zero(t, infinite.Resolution())
}

// families draw inputs as tolerances 7 names them.
var families = map[string]func(r *rand.Rand) float64{
	"uniform":  func(r *rand.Rand) float64 { return 2*r.Float64() - 1 },
	"normal":   func(r *rand.Rand) float64 { return r.NormFloat64() },
	"heavy":    func(r *rand.Rand) float64 { return (2*float64(r.IntN(2)) - 1) * math.Exp2(40*r.Float64()-20) },
	"offset":   func(r *rand.Rand) float64 { return 1e3 + r.NormFloat64() },
	"constant": func(*rand.Rand) float64 { return 0.95 },
	"exact":    func(r *rand.Rand) float64 { return float64(r.IntN(7) - 3) },
	"sparse": func(r *rand.Rand) float64 {
		if r.IntN(100) > 0 {
			return 0
		}
		return r.NormFloat64()
	},
}

func round32(x []float64) []float64 {
	for i, v := range x {
		x[i] = float64(float32(v))
	}
	return x
}

// sums are correct float32 dot products in different orders.
var sums = map[string]func(a, b []float64) float64{
	"in order": func(a, b []float64) float64 {
		var s float32
		for i := range a {
			s += float32(float32(a[i]) * float32(b[i]))
		}
		return float64(s)
	},
	"backwards": func(a, b []float64) float64 {
		var s float32
		for i := len(a) - 1; i >= 0; i-- {
			s += float32(float32(a[i]) * float32(b[i]))
		}
		return float64(s)
	},
	"16 lanes": func(a, b []float64) float64 {
		var lane [16]float32
		for i := range a {
			lane[i%16] += float32(float32(a[i]) * float32(b[i]))
		}
		var s float32
		for _, l := range lane {
			s += l
		}
		return float64(s)
	},
	"pairwise": func(a, b []float64) float64 { return float64(pairwise(a, b)) },
}

func pairwise(a, b []float64) float32 {
	if len(a) <= 1 {
		var s float32
		for i := range a {
			s += float32(float32(a[i]) * float32(b[i]))
		}
		return s
	}
	h := len(a) / 2
	return pairwise(a[:h], b[:h]) + pairwise(a[h:], b[h:])
}

// The bound of a dot product is valid for every correct order, and not so wide that it verifies nothing: the largest
// ratio is at most 1, and at least 0.1 for one family.
func TestDotBound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	most := 0.0
	for family, draw := range families {
		for name, sum := range sums {
			for range 300 {
				n := 1 + r.IntN(300)
				a, b := make([]float64, n), make([]float64, n)
				for i := range a {
					a[i], b[i] = draw(r), draw(r)
				}
				round32(a)
				round32(b)
				var want, s float64
				for i := range a {
					want += a[i] * b[i]
					s += math.Abs(a[i] * b[i])
				}
				err, bound := math.Abs(sum(a, b)-want), tol.Dot(n, tol.U32, tol.Eta32, s)
				if !(err <= bound) {
					t.Fatalf("%s, %s, n = %d: error %g beyond the bound %g", family, name, n, err, bound)
				}
				if bound > 0 {
					most = max(most, err/bound)
				}
			}
		}
	}
	require.GreaterOrEqual(t, most, 0.1, "the bound is too wide to verify anything")
	t.Logf("largest error/bound %.2f", most)
}

// The bound of a projection, for float32 programs that sum in different orders.
func TestProjectionBound(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	most := 0.0
	for _, family := range []string{"uniform", "normal", "heavy", "offset", "constant", "sparse"} {
		draw := families[family]
		for name, sum := range sums {
			for range 60 {
				d, k := 4+r.IntN(200), 1+r.IntN(6)
				q, g := make([]float64, d*k), make([]float64, d)
				for i := range q {
					q[i] = r.NormFloat64() / math.Sqrt(float64(d))
				}
				for i := range g {
					g[i] = draw(r)
				}
				round32(q)
				round32(g)
				column := func(j int) []float64 {
					c := make([]float64, d)
					for i := range c {
						c[i] = q[i*k+j]
					}
					return c
				}
				c, ec, c32 := make([]float64, k), make([]float64, k), make([]float64, k)
				for j := range k {
					col, s := column(j), 0.0
					for i, v := range col {
						c[j] += v * g[i]
						s += math.Abs(v * g[i])
					}
					ec[j] = tol.Dot(d, tol.U32, tol.Eta32, s)
					c32[j] = sum(col, g)
				}
				for i := range d {
					row := q[i*k : (i+1)*k]
					want := g[i]
					for j, v := range row {
						want -= v * c[j]
					}
					got := float64(float32(g[i]) - float32(sum(row, c32)))
					bound := tol.Projection(row, c, ec, g[i], tol.U32)
					if !(math.Abs(got-want) <= bound) {
						t.Fatalf("%s, %s, d = %d, K = %d: error %g beyond the bound %g", family, name, d, k, math.Abs(got-want), bound)
					}
					if bound > 0 {
						most = max(most, math.Abs(got-want)/bound)
					}
				}
			}
		}
	}
	require.GreaterOrEqual(t, most, 0.1, "the bound is too wide to verify anything")
	t.Logf("largest error/bound %.2f", most)
}

// Every bound is attained, so that nothing of it can go: by float32 programs on the numbers where each rounding loses the most. 1 + u
// lies in the middle between 1 and its neighbour and goes back to 1, so a sum that starts at 1 loses all that comes after it.
func TestBoundsAreAttained(t *testing.T) {
	const n = 64
	u := tol.U32
	one, tiny := make([]float64, n), make([]float64, n)
	size := 0.0
	for i := range one {
		one[i], tiny[i] = 1, u
		if i == 0 {
			tiny[i] = 1
		}
		size += tiny[i]
	}
	share := math.Abs(sums["in order"](one, tiny)-size) / tol.Dot(n, u, tol.Eta32, size)
	require.LessOrEqual(t, share, 1.0)
	require.GreaterOrEqual(t, share, 0.98, "n − 1 of n roundings: the first product is exact here")

	var underflown float64 // each product below the smallest number is lost
	for range n {
		underflown += float64(float32(math.Ldexp(1, -75)) * float32(math.Ldexp(0.99, -75)))
	}
	lost := n * math.Ldexp(0.99, -150)
	require.Zero(t, underflown)
	require.GreaterOrEqual(t, lost/tol.Dot(n, u, tol.Eta32, lost), 0.49, "half of the smallest number is lost; where results are flushed to zero, all of it")

	// y = g − Σ q·c with g = 1 and q·c = −u: K sums lose u each, of K + 1 roundings.
	const k = n - 1
	q, c, ec := make([]float64, k), make([]float64, k), make([]float64, k)
	y := float32(1)
	for j := range k {
		q[j], c[j] = 1, -u
		y -= float32(q[j]) * float32(c[j])
	}
	row := math.Abs(float64(y) - (1 + k*u))
	bound := tol.ProjectionRow(k, u, k*u, 1)
	require.LessOrEqual(t, row, bound)
	require.GreaterOrEqual(t, row/bound, 0.97)
	for j := range ec {
		ec[j] = float64(j) * u // errors of the components enter by |q|
	}
	moved := 0.0
	for j, e := range ec {
		moved += q[j] * e
	}
	bound = tol.Projection(q, c, ec, 1, u)
	require.LessOrEqual(t, row+moved, bound)
	require.GreaterOrEqual(t, (row+moved)/bound, 0.98)

	for _, v := range []float64{1 + u, -(1 + u), 0x1p-100 * (1 + u), 1.5 * tol.Eta32, 0.5 * tol.Eta32} {
		err := math.Abs(float64(float32(v)) - v)
		require.GreaterOrEqual(t, err/tol.Storage(v, u, tol.Eta32), 0.999, v)
	}
}

func TestStorageBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(-3e38, 3e38).Draw(t, "v")
		if err := math.Abs(float64(float32(v)) - v); !(err <= tol.Storage(v, tol.U32, tol.Eta32)) {
			t.Fatalf("%g: error %g", v, err)
		}
	})
}

func TestProjectionPanicsOnLengths(t *testing.T) {
	require.Panics(t, func() { tol.Projection([]float64{1}, nil, nil, 0, tol.U32) })
}
