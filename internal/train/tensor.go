package train

import (
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// ReadTensor reads a tensor of a checkpoint: its shape is that of the parameter, and its elements are finite.
func ReadTensor(f *safetensors.File, name string, shape []int, to []float64) error {
	array, ok := f.Tensor(name)
	switch {
	case !ok:
		return format.Malformed(f.Path, name, "is missing")
	case !slices.Equal(array.Shape, shape):
		return format.Malformed(f.Path, name, "has shape %v, want %v", array.Shape, shape)
	}
	x, err := array.Float64s()
	if err != nil {
		return err
	}
	if err := finite(0, name, x, nil); err != nil {
		return format.Malformed(f.Path, name, "holds %v", err)
	}
	copy(to, x)
	return nil
}
