package linalg_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/linalg"
)

const u = 0x1p-53

// Hand vectors of the specification of the shielded trainer (A.7): exact in decimals, and checked by hand.
func TestProjectByHand(t *testing.T) {
	require.Equal(t, []float64{0, 4, 5}, linalg.Project([]float64{1, 0, 0}, 1, []float64{3, 4, 5}, 1, 1))

	q, g := []float64{.6, .8}, []float64{1, 2}
	require.InDelta(t, 2.2, linalg.Components(q, 1, g, 1)[0], 4*u)
	once := linalg.Project(q, 1, g, 1, 1)
	require.InDelta(t, -.32, once[0], 8*u)
	require.InDelta(t, .24, once[1], 8*u)
	twice := linalg.Project(q, 1, g, 1, 2)
	require.InDelta(t, .16+4.84, once[0]*once[0]+once[1]*once[1]+2.2*2.2, 32*u)
	require.InDelta(t, once[0], twice[0], 8*u)
}

// The oracle is math/big with 200 bits, which shares no code with gonum.
func TestAgainstBig(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []struct{ d, k, c int }{{1, 1, 1}, {5, 2, 1}, {64, 3, 2}, {65, 7, 3}, {130, 1, 4}} {
		q, v := draw(r, n.d*n.k), draw(r, n.d*n.c)
		comp := linalg.Components(q, n.k, v, n.c)
		gram := linalg.Gram(q, n.k)
		dot := func(x, y []float64, xs, ys, xo, yo int) (want, size float64) {
			sum, abs := new(big.Float).SetPrec(200), 0.0
			for i := range n.d {
				a, b := x[i*xs+xo], y[i*ys+yo]
				sum.Add(sum, new(big.Float).SetPrec(200).Mul(big.NewFloat(a), big.NewFloat(b)))
				abs += math.Abs(a * b)
			}
			want, _ = sum.Float64()
			return want, abs
		}
		for i := range n.k {
			for j := range n.c {
				want, size := dot(q, v, n.k, n.c, i, j)
				within(t, comp[i*n.c+j], want, float64(n.d)*u*size)
			}
			for j := range n.k {
				want, size := dot(q, q, n.k, n.k, i, j)
				within(t, gram[i*n.k+j], want, float64(n.d)*u*size)
			}
		}
	}
}

func within(t interface{ Fatalf(string, ...any) }, got, want, bound float64) {
	if !(math.Abs(got-want) <= bound) {
		t.Fatalf("got %v, want %v within %g", got, want, bound)
	}
}

func draw(r *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.NormFloat64()
	}
	return x
}

func norm(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	return math.Sqrt(s)
}

func sub(x, y []float64) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		out[i] = x[i] - y[i]
	}
	return out
}

// space is an orthonormal basis and vectors of a drawn size. Rounding in P v is at most (d + K + 3)·u·K·‖v‖ in norm: d·u
// in each of K components, which Q (of norm 1) carries over, and (K + 1)·u per row; room doubles it.
type space struct {
	d, k    int
	q, x, y []float64
	room    float64
}

func drawSpace(t *rapid.T) space {
	d := rapid.SampledFrom([]int{2, 3, 4, 7, 8, 9, 63, 64, 65, 129}).Draw(t, "d")
	k := rapid.IntRange(1, d).Draw(t, "k")
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	scale := math.Pow(10, rapid.Float64Range(-6, 6).Draw(t, "log10 norm"))
	q, rank, ok := linalg.Orthonormalise(draw(r, d*k), k)
	for !ok || rank != k { // a random square matrix is singular to 1e-6 now and then
		q, rank, ok = linalg.Orthonormalise(draw(r, d*k), k)
	}
	s := space{d: d, k: k, q: q, x: draw(r, d), y: draw(r, d)}
	for i := range s.x {
		s.x[i] *= scale
		s.y[i] *= scale
	}
	s.room = 2 * float64(d+k+3) * float64(k) * u * max(norm(s.x), norm(s.y))
	return s
}

func (s space) project(v []float64) []float64 { return linalg.Project(s.q, s.k, v, 1, 1) }

func inner(x, y []float64) float64 {
	s := 0.0
	for i := range x {
		s += x[i] * y[i]
	}
	return s
}

// Laws of a projection P = I − QQᵀ (tolerances 8.7).
func TestLaws(t *testing.T) {
	laws := map[string]func(t *rapid.T, s space){
		"idempotent": func(t *rapid.T, s space) {
			p := s.project(s.x)
			within(t, norm(sub(s.project(p), p)), 0, s.room)
		},
		"symmetric": func(t *rapid.T, s space) {
			n := max(norm(s.x), norm(s.y))
			within(t, inner(s.project(s.x), s.y), inner(s.x, s.project(s.y)), 2*s.room*n)
		},
		"no component left": func(t *rapid.T, s space) {
			within(t, norm(linalg.Components(s.q, s.k, s.project(s.x), 1)), 0, s.room)
		},
		"does not lengthen": func(t *rapid.T, s space) {
			if !(norm(s.project(s.x)) <= norm(s.x)+s.room) {
				t.Fatalf("‖Px‖ = %g > ‖x‖ = %g", norm(s.project(s.x)), norm(s.x))
			}
		},
		"Pythagoras": func(t *rapid.T, s space) {
			p, c := norm(s.project(s.x)), norm(linalg.Components(s.q, s.k, s.x, 1))
			within(t, p*p+c*c, norm(s.x)*norm(s.x), 4*s.room*norm(s.x))
		},
		"erases the span": func(t *rapid.T, s space) {
			inSpan := sub(s.x, s.project(s.x))
			within(t, norm(s.project(inSpan)), 0, 2*s.room)
		},
		"keeps what is orthogonal": func(t *rapid.T, s space) {
			o := linalg.Project(s.q, s.k, s.x, 1, 2)
			within(t, norm(sub(s.project(o), o)), 0, s.room)
		},
		"linear": func(t *rapid.T, s space) {
			double, sum := make([]float64, s.d), make([]float64, s.d)
			for i := range s.x {
				double[i], sum[i] = 2*s.x[i], s.x[i]+s.y[i]
			}
			px, py := s.project(s.x), s.project(s.y)
			for i, v := range s.project(double) {
				within(t, v, 2*px[i], 0) // scaling by 2 is exact: no subnormals at these norms
			}
			for i, v := range s.project(sum) {
				sum[i] = v - px[i] - py[i]
			}
			within(t, norm(sum), 0, 8*s.room)
		},
		"the parts add up": func(t *rapid.T, s space) {
			p := s.project(s.x)
			rest := sub(s.x, p)
			for i := range p {
				within(t, p[i]+rest[i], s.x[i], 2*u*math.Abs(s.x[i])+2*u*math.Abs(p[i]))
			}
		},
		"another basis of the same span": func(t *rapid.T, s space) {
			r := rand.New(rand.NewPCG(7, 7))
			rot, _, _ := linalg.Orthonormalise(draw(r, s.k*s.k), s.k)
			turned := make([]float64, len(s.q))
			for i := range s.d {
				for j := range s.k {
					for l := range s.k {
						turned[i*s.k+j] += s.q[i*s.k+l] * rot[l*s.k+j]
					}
				}
			}
			within(t, norm(sub(linalg.Project(turned, s.k, s.x, 1, 1), s.project(s.x))), 0, 4*s.room)
		},
		"permuted columns and signs": func(t *rapid.T, s space) {
			other := make([]float64, len(s.q))
			for i := range s.d {
				for j := range s.k {
					other[i*s.k+j] = -s.q[i*s.k+(j+1)%s.k]
				}
			}
			within(t, norm(sub(linalg.Project(other, s.k, s.x, 1, 1), s.project(s.x))), 0, s.room)
		},
		"everything and nothing": func(t *rapid.T, s space) {
			require.Equal(t, s.x, linalg.Project(nil, 0, s.x, 1, 1))
			if s.k == s.d {
				within(t, norm(s.project(s.x)), 0, s.room)
			}
		},
		"a dependent column changes nothing": func(t *rapid.T, s space) {
			if s.k == s.d {
				return
			}
			more := make([]float64, 0, s.d*(s.k+1))
			for i := range s.d {
				row := s.q[i*s.k : (i+1)*s.k]
				v := 0.0
				for j, x := range row {
					v += x * float64(j+1)
				}
				more = append(append(more, row...), v)
			}
			q, rank, ok := linalg.Orthonormalise(more, s.k+1)
			if !ok || rank != s.k {
				t.Fatalf("rank %d, want %d", rank, s.k)
			}
			within(t, norm(sub(linalg.Project(q, rank, s.x, 1, 1), s.project(s.x))), 0, 64*float64(s.k)*s.room)
		},
		"columns apart = columns together": func(t *rapid.T, s space) {
			both := make([]float64, 2*s.d)
			for i := range s.d {
				both[2*i], both[2*i+1] = s.x[i], s.y[i]
			}
			px, py := s.project(s.x), s.project(s.y)
			for i, v := range linalg.Project(s.q, s.k, both, 2, 1) {
				want := px[i/2]
				if i%2 == 1 {
					want = py[i/2]
				}
				within(t, v, want, s.room)
			}
		},
		"blocks of rows add up": func(t *rapid.T, s space) {
			cut := s.d / 2 * s.k
			g := make([]float64, s.k*s.k)
			linalg.AddGram(g, s.q[:cut], s.k)
			linalg.AddGram(g, s.q[cut:], s.k)
			linalg.Symmetrise(g, s.k)
			for i, v := range linalg.Gram(s.q, s.k) {
				within(t, g[i], v, 2*float64(s.d)*u)
			}
		},
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { law(t, drawSpace(t)) })
		})
	}
}

func TestDefectAndRank(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	q, _, _ := linalg.Orthonormalise(draw(r, 100*6), 6)
	defect, _, _ := linalg.Defect(linalg.Gram(q, 6), 6)
	require.Less(t, defect, 1e-14)
	rank, lo, hi, ok := linalg.Rank(linalg.Gram(q, 6), 6)
	require.True(t, ok)
	require.Equal(t, 6, rank)
	require.InDelta(t, 1, lo, 1e-12)
	require.InDelta(t, 1, hi, 1e-12)

	for i := range 100 {
		q[i*6+4] *= 1.001
	}
	defect, i, j := linalg.Defect(linalg.Gram(q, 6), 6)
	require.InDelta(t, 1.001*1.001-1, defect, 1e-12)
	require.Equal(t, [2]int{4, 4}, [2]int{i, j})

	for i := range 100 {
		q[i*6+5] = q[i*6+1]
	}
	defect, i, j = linalg.Defect(linalg.Gram(q, 6), 6)
	require.InDelta(t, 1, defect, 1e-12)
	require.Equal(t, [2]int{1, 5}, [2]int{i, j})
	rank, lo, _, ok = linalg.Rank(linalg.Gram(q, 6), 6)
	require.True(t, ok)
	require.Equal(t, 5, rank)
	require.Less(t, lo, 1e-7)

	q[17] = math.NaN()
	defect, _, _ = linalg.Defect(linalg.Gram(q, 6), 6)
	require.True(t, math.IsNaN(defect), "a NaN must win over any number")
	_, _, _, ok = linalg.Rank(linalg.Gram(q, 6), 6)
	require.False(t, ok)
}

func TestOrthonormaliseKeepsAnOrthonormalBasis(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	q, _, _ := linalg.Orthonormalise(draw(r, 40*5), 5)
	again, rank, ok := linalg.Orthonormalise(q, 5)
	require.True(t, ok)
	require.Equal(t, 5, rank)
	for i := range q {
		within(t, again[i], q[i], 1e-14)
	}
	_, _, ok = linalg.Orthonormalise(make([]float64, 20), 2)
	require.False(t, ok, "zeros have no basis")
	_, _, ok = linalg.Orthonormalise(draw(r, 6), 3)
	require.False(t, ok, "wider than high")
}

func TestPanics(t *testing.T) {
	require.Panics(t, func() { linalg.Gram(make([]float64, 5), 2) })
	require.Panics(t, func() { linalg.Components(make([]float64, 4), 2, make([]float64, 3), 1) })
	require.Panics(t, func() {
		linalg.Remove(make([]float64, 2), make([]float64, 4), 2, make([]float64, 2), make([]float64, 1), 1)
	})
	require.Panics(t, func() { linalg.AddGram(make([]float64, 3), make([]float64, 4), 2) })
}

func ExampleProject() {
	q := []float64{.6, .8} // one protected direction in the plane
	g := []float64{1, 2}
	fmt.Printf("%.2f\n", linalg.Project(q, 1, g, 1, 2))
	// Output: [-0.32 0.24]
}

func BenchmarkGram(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	q := draw(r, 32768*32)
	g := make([]float64, 32*32)
	b.SetBytes(int64(8 * len(q)))
	for b.Loop() {
		linalg.AddGram(g, q, 32)
	}
}
