package golden

import (
	"hash/fnv"
	"math"
	"slices"

	"plumbline/internal/format"
)

// weight is the model.Weights of the model.
func (m *modelFolder) weight(name string, shape ...int) ([]float64, error) {
	a, ok := m.weights.Tensor(name)
	if !ok {
		return nil, format.Malformed(m.weights.Path, "", "has no tensor %.128q", name)
	}
	if !slices.Equal(a.Shape, shape) {
		return nil, format.Malformed(m.weights.Path, "", "tensor %.128q has shape %v, want %v", name, a.Shape, shape)
	}
	if !a.DType.Float() {
		return nil, format.Malformed(m.weights.Path, "", "tensor %.128q holds %s, want a floating-point type", name, a.Type)
	}
	return a.Float64s()
}

// moved32 returns x with every element but 0 replaced by one of its neighbours in float32, up or down at random.
func moved32(x []float64, name string, walk int) []float64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	seed := h.Sum64() + uint64(walk)
	y := make([]float64, len(x))
	for i, up := range signs(seed, len(x)) {
		switch {
		case x[i] == 0 || x[i]-x[i] != 0:
			y[i] = x[i]
		case up:
			y[i] = float64(math.Nextafter32(float32(x[i]), float32(math.Inf(1))))
		default:
			y[i] = float64(math.Nextafter32(float32(x[i]), float32(math.Inf(-1))))
		}
	}
	return y
}

// signs returns n random booleans of a seed, by the generator splitmix64.
func signs(seed uint64, n int) []bool {
	s := make([]bool, n)
	for i := range s {
		h := seed + uint64(i+1)*0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		s[i] = (h^h>>31)>>63 == 0
	}
	return s
}
