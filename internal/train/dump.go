package train

import (
	"fmt"
	"os"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// write writes the files of a dump into its folder, in the order of their names given, and shows them to the observer of the run.
func (d Dump) write(env Env, update int, names []string, write func(path string, k int) error) error {
	var files []string
	for k, name := range names {
		path, err := d.path(env, name)
		if err != nil {
			return err
		}
		if err := write(path, k); err != nil {
			return err
		}
		files = append(files, path)
	}
	if env.Observe == nil {
		return nil
	}
	return env.Observe(update, files)
}

// path returns the place of a file of the dumps by its name.
func (d Dump) path(env Env, name string) (string, error) {
	if d.Dir == "" {
		return format.Own(env.Run.Path(), "dump/"+name)
	}
	if err := os.MkdirAll(d.Dir, 0o755); err != nil { // the user's, who may have made it a link
		return "", err
	}
	return format.Own(d.Dir, name)
}

// step writes the files of the micro-batches of one update.
func (d Dump) step(env Env, step, micros int, write func(path string, micro int) error) error {
	var names []string
	for k := range micros {
		names = append(names, fmt.Sprintf("step_%06d_mb_%d.safetensors", step, k))
	}
	return d.write(env, step, names, write)
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
