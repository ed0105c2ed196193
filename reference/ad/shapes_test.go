package ad

import (
	"math"
	"math/rand/v2"

	"pgregory.net/rapid"
)

type valueFunc = func(i int, r *rand.Rand) float64

// gen draws shapes with rapid, so that they shrink, and values with a seeded
// generator, so that they have full mantissas.
type gen struct {
	t   *rapid.T
	rng *rand.Rand
}

func newGen(t *rapid.T) gen {
	return gen{t, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))}
}

func (g gen) int(name string, lo, hi int) int {
	return rapid.IntRange(lo, hi).Draw(g.t, name)
}

// shape draws a shape of lo to hi axes of 0 to 3 elements.
func (g gen) shape(lo, hi int) []int {
	s := make([]int, g.int("rank", lo, hi))
	for i := range s {
		s[i] = rapid.SampledFrom([]int{1, 2, 3, 2, 1, 0}).Draw(g.t, "axis")
	}
	return s
}

// thinner draws a shape that broadcasts to s.
func (g gen) thinner(s []int) []int {
	s = append([]int{}, s[g.int("lead", 0, len(s)):]...)
	for i := range s {
		if rapid.Bool().Draw(g.t, "thin") {
			s[i] = 1
		}
	}
	return s
}

func (g gen) tensor(shape []int, value valueFunc) Tensor {
	x := Tensor{shape, make([]float64, size(shape))}
	for i := range x.Data {
		x.Data[i] = value(i, g.rng)
	}
	return x
}

func uniform(lo, hi float64) func(int, *rand.Rand) float64 {
	return func(_ int, r *rand.Rand) float64 { return lo + (hi-lo)*r.Float64() }
}

// plain is half U(−2,2) and half of wide range, sign·2^U(−8,8).
func plain(_ int, r *rand.Rand) float64 {
	if r.IntN(2) == 0 {
		return 4*r.Float64() - 2
	}
	return math.Copysign(math.Exp2(16*r.Float64()-8), r.Float64()-0.5)
}

// signed is of either sign and at least 0.3 away from 0.
func signed(_ int, r *rand.Rand) float64 {
	return math.Copysign(0.3+2*r.Float64(), r.Float64()-0.5)
}

// offGrid returns numbers near k + shift with k integer: 0.1 away at most. Two
// such families with shifts half apart never tie.
func offGrid(shift float64) func(int, *rand.Rand) float64 {
	return func(_ int, r *rand.Rand) float64 {
		return float64(r.IntN(7)-3) + shift + 0.2*r.Float64() - 0.1
	}
}

// distinct returns numbers that differ by 0.1 at least within a tensor.
func distinct(i int, r *rand.Rand) float64 {
	return float64(i*7919%101)*0.3 - 15 + 0.2*r.Float64()
}

func (g gen) mask(shape []int) Mask {
	m := Mask{shape, make([]bool, size(shape))}
	for i := range m.On {
		m.On[i] = g.rng.IntN(2) == 0
	}
	return m
}

// empty tells that a check must find nothing to compare.
func empty(f Func, in []Tensor) bool {
	n := 0
	for _, x := range in {
		n += len(x.Data)
	}
	return n == 0 || evaluate(f, in).Size() == 0
}
