package train

import (
	"fmt"
	"os"
	"path/filepath"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// folder makes the folder of a run's dump and returns its name.
func (d Dump) folder(env Env) (string, error) {
	dir := d.Dir
	if dir == "" {
		dir = filepath.Join(env.Run.Path(), "dump")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// step writes the files of the micro-batches of one update and shows them to the observer of the run.
func (d Dump) step(env Env, step, micros int, write func(path string, micro int) error) error {
	dir, err := d.folder(env)
	if err != nil {
		return err
	}
	var files []string
	for k := range micros {
		path := filepath.Join(dir, fmt.Sprintf("step_%06d_mb_%d.safetensors", step, k))
		if err := write(path, k); err != nil {
			return err
		}
		files = append(files, path)
	}
	if env.Observe == nil {
		return nil
	}
	return env.Observe(step, files)
}

func perToken(name string, t format.DType, rows, cols int, x []float64) *dump.Tensor {
	return &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: t}
}

func perRow(name string, t format.DType, x []float64) *dump.Tensor {
	return &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{len(x)}, Data: x, Type: t}
}

func perFile(name string, x float64) *dump.Tensor {
	return &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Shape: []int{}, Data: []float64{x}, Type: format.F64}
}
