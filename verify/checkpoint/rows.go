package checkpoint

import (
	"math"
	"strings"

	"plumbline/internal/format"
)

// matrixRows reads the rows of a weight, dequantised where it is int8 with an absmax per row.
type matrixRows struct {
	t     *Tensor
	scale []float64 // SCB
}

func newRows(t *Tensor, all map[string]*Tensor) (*matrixRows, error) {
	m := &matrixRows{t: t}
	if t.Array.DType != format.I8 {
		return m, nil
	}
	s := all[strings.TrimSuffix(t.Name, ".weight")+".SCB"]
	if s == nil || s.Array.Len() != t.Array.Shape[0] || s.Array.DType.Size() == 0 {
		return nil, format.Malformed(t.Array.Name, "", "is int8 without the absmax of its rows (SCB)")
	}
	var err error
	m.scale, err = s.Array.Float64s()
	return m, err
}

// row reads the elements of row i from the column at on.
func (m *matrixRows) row(dst []float64, i, at int) error {
	if err := m.t.Array.ReadFloat64(dst, i*m.t.Array.Shape[1]+at); err != nil || m.scale == nil {
		return err
	}
	for j := range dst {
		dst[j] *= m.scale[i] / 127
	}
	return nil
}

// half is half the spacing of a quantised row, with the rounding of the factor 1/127 of bitsandbytes.
func (m *matrixRows) half(i int) float64 {
	if m.scale == nil {
		return 0
	}
	return math.Abs(m.scale[i]) / 254 * (1 + 1e-6)
}
