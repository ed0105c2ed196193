package sampling

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type goldens struct {
	Rows  map[string][]any
	Cases []struct {
		Row           string
		Temperature   float64
		TopK          int       `json:"top_k"`
		TopP          float64   `json:"top_p"`
		Probabilities []float64 `json:"probabilities"`
	}
}

func load(t testing.TB) (g goldens, rows map[string][]float64) {
	text, err := os.ReadFile("../../golden/sampling/warpers.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	require.GreaterOrEqual(t, len(g.Cases), 300)
	rows = map[string][]float64{}
	for name, row := range g.Rows {
		for _, v := range row {
			f, ok := v.(float64)
			if !ok {
				f = math.Inf(-1)
			}
			rows[name] = append(rows[name], f)
		}
	}
	return g, rows
}

// differ returns how often a distribution differs from that of transformers: a token is kept in one and not in the other, or
// a probability is off by more than the error of a softmax of n terms in any order.
func differ(t testing.TB, distribution func(p, logits []float64, o Options) bool) (n int) {
	g, rows := load(t)
	for _, c := range g.Cases {
		p := make([]float64, len(c.Probabilities))
		require.True(t, distribution(p, rows[c.Row], Options{c.Temperature, c.TopK, c.TopP}))
		size := 0.0 // of the largest logit
		for _, v := range rows[c.Row] {
			if !math.IsInf(v, -1) {
				size = max(size, math.Abs(v))
			}
		}
		for i, want := range c.Probabilities {
			// transformers rounds logits/τ before it subtracts the largest, an error of largest/τ·u in the argument of an
			// exponential; exp(z) has the relative error of its argument and 1 ulp of its own, in the numerator and in the
			// sum, and a sum of n terms n·u.
			z := math.Abs(math.Log(max(want, 0x1p-1022)))
			bound := want*(float64(2*len(p)+8)+8*z+4*size/c.Temperature)*0x1p-53 + 0x1p-1060
			if (p[i] == 0) != (want == 0) && max(p[i], want) > 0x1p-1060 || !(math.Abs(p[i]-want) <= bound) {
				n++
				break
			}
		}
	}
	return n
}

func TestWarpersOfTransformers(t *testing.T) {
	require.Zero(t, differ(t, Distribution))
}

// Each planted error must be told from transformers by the goldens.
func TestGoldensCatchFaults(t *testing.T) {
	for name, fault := range map[string]func(p, logits []float64, o Options) bool{
		"temperature multiplies": func(p, z []float64, o Options) bool { o.Temperature = 1 / o.Temperature; return Distribution(p, z, o) },
		"temperature after the cut": func(p, z []float64, o Options) bool {
			cut := make([]float64, len(z))
			Distribution(cut, z, Options{1, o.TopK, o.TopP})
			for i, q := range cut {
				cut[i] = z[i]
				if q == 0 {
					cut[i] = math.Inf(-1)
				}
			}
			return Distribution(p, cut, Options{Temperature: o.Temperature})
		},
		"top-p before top-k": func(p, z []float64, o Options) bool {
			cut := make([]float64, len(z))
			Distribution(cut, z, Options{o.Temperature, 0, o.TopP})
			for i, q := range cut {
				cut[i] = z[i]
				if q == 0 {
					cut[i] = math.Inf(-1)
				}
			}
			return Distribution(p, cut, Options{o.Temperature, o.TopK, 1})
		},
		"top-k is k-1":     func(p, z []float64, o Options) bool { o.TopK = max(o.TopK-1, 0); return Distribution(p, z, o) },
		"top-k is ignored": func(p, z []float64, o Options) bool { o.TopK = 0; return Distribution(p, z, o) },
		"top-p is ignored": func(p, z []float64, o Options) bool { o.TopP = 1; return Distribution(p, z, o) },
		"top-p is 1-p": func(p, z []float64, o Options) bool {
			if o.TopP < 1 {
				o.TopP = 1 - o.TopP
			}
			return Distribution(p, z, o)
		},
		"no renormalisation": func(p, z []float64, o Options) bool {
			whole := make([]float64, len(z))
			Distribution(whole, z, Options{Temperature: o.Temperature})
			Distribution(p, z, o)
			for i := range p {
				if p[i] > 0 {
					p[i] = whole[i]
				}
			}
			return true
		},
		"top-k cuts ties": func(p, z []float64, o Options) bool {
			Distribution(p, z, o)
			if o.TopK > 0 {
				for n, i := 0, 0; i < len(p); i++ {
					if p[i] > 0 {
						if n++; n > o.TopK {
							p[i] = 0
						}
					}
				}
			}
			return true
		},
		"ties of top-p from the other end": func(p, z []float64, o Options) bool {
			r := slices.Clone(z)
			slices.Reverse(r)
			ok := Distribution(p, r, o)
			slices.Reverse(p)
			return ok
		},
	} {
		require.NotZero(t, differ(t, fault), name)
	}
}

func TestGreedy(t *testing.T) {
	p := make([]float64, 4)
	require.True(t, Distribution(p, []float64{1, 3, 3, 2}, Options{TopK: 2, TopP: 0.1}))
	require.Equal(t, []float64{0, 1, 0, 0}, p)
	// the limit of a small temperature
	require.True(t, Distribution(p, []float64{1, 3, 2.5, 2}, Options{Temperature: 1e-300}))
	require.Equal(t, []float64{0, 1, 0, 0}, p)
}

func TestUndefined(t *testing.T) {
	for _, z := range [][]float64{{1, math.NaN()}, {math.Inf(1), 0}, {math.Inf(-1), math.Inf(-1)}} {
		p := make([]float64, 2)
		require.False(t, Distribution(p, z, Options{Temperature: 1}))
		require.True(t, math.IsNaN(p[0]) && math.IsNaN(p[1]))
	}
	for _, o := range []Options{{Temperature: -1}, {Temperature: math.NaN()}, {Temperature: math.Inf(1)}, {TopK: -1}, {TopP: 1.5}, {TopP: math.NaN()}} {
		require.Panics(t, func() { Distribution(make([]float64, 1), make([]float64, 1), o) }, "%v", o)
	}
	require.Panics(t, func() { Distribution(nil, nil, Options{}) })
	require.Panics(t, func() { Draw([]float64{0, 0}, .5) })
	require.Panics(t, func() { Draw([]float64{math.NaN()}, .5) })
}

// Logits that differ by less than their distance from the largest has digits are still told apart.
func TestLogitsAreTheOrder(t *testing.T) {
	z := []float64{1, 0x1p-54, 0x1p-55}
	p := make([]float64, 3)
	require.True(t, Distribution(p, z, Options{Temperature: 1, TopP: 0.75}))
	require.Positive(t, p[1])
	require.Zero(t, p[2])
	require.True(t, Distribution(p, z, Options{Temperature: 1, TopK: 2}))
	require.Positive(t, p[1])
	require.Zero(t, p[2])
}

func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := rapid.SliceOfN(rapid.Float64Range(-20, 20), 1, 30).Draw(t, "logits")
		o := Options{rapid.Float64Range(0.1, 5).Draw(t, "temperature"), rapid.IntRange(0, 35).Draw(t, "k"), rapid.Float64Range(0, 1).Draw(t, "p")}
		p := make([]float64, len(z))
		require.True(t, Distribution(p, z, o))
		sum, kept := 0.0, 0
		for _, v := range p {
			sum += v
			if v > 0 {
				kept++
			}
		}
		require.InDelta(t, 1, sum, float64(len(z)+2)*0x1p-53)
		require.GreaterOrEqual(t, kept, 1)
		for i := range z { // a larger logit is not less probable
			for j := range z {
				if z[i] > z[j] {
					require.GreaterOrEqual(t, p[i], p[j])
				}
			}
		}
		same := slices.Clone(z)
		require.True(t, Distribution(same, same, o), "in place")
		require.Equal(t, p, same)
	})
}

// The quantiles meet the tokens in their order, also of a distribution that is not normalised, and the frequencies of many draws lie
// within 5 standard deviations of it.
func TestDraw(t *testing.T) {
	p := []float64{0, 0.5, 0, 0.125, 0.375, 0}
	for u, want := range map[float64]int{0: 1, 0.4999: 1, 0.5: 3, 0.6249: 3, 0.625: 4, 1 - 0x1p-53: 4} {
		require.Equal(t, want, Draw(p, u), u)
		require.Equal(t, want, Draw([]float64{0, 4, 0, 1, 3, 0}, u), u)
	}
	const n = 200_000
	r := rand.New(rand.NewPCG(7, 7))
	count := make([]float64, len(p))
	for range n {
		count[Draw(p, r.Float64())]++
	}
	for i, q := range p {
		require.InDelta(t, q*n, count[i], 5*math.Sqrt(n*q*(1-q)), "token %d", i)
	}
}
