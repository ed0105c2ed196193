package bind

import (
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/peft"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/model"
)

// The names of the value head in a checkpoint, those of TRL's models with a value head.
const (
	headWeight = "v_head.summary.weight" // [1, C]
	headBias   = "v_head.summary.bias"   // [1]
)

// WeightsFile is the file of the weights in a checkpoint.
const WeightsFile = "model.safetensors"

// masters are the trainable tensors of a causal language model and their files, whatever computes with them.
type masters struct {
	config  model.Config
	options Options
	params  []train.Param
	byName  map[string]int
}

func newMasters(c model.Config, o Options) masters {
	return masters{config: c, options: o, byName: map[string]int{}}
}

// streamHead numbers the random numbers of the value head.
const streamHead = 100

// add makes a tensor trainable; its numbers are rounded to float32.
func (l *masters) add(name string, shape []int, data []float64) {
	for i, v := range data {
		data[i] = float64(float32(v))
	}
	l.byName[name] = len(l.params)
	l.params = append(l.params, train.Param{Name: name, Shape: shape, Data: data, Grad: make([]float64, len(data))})
}

// The endings of the names of the factors of an update.
const (
	factorA = ".lora_A.weight"
	factorB = ".lora_B.weight"
)

// addAdapter adds the factors of the adapter, in the order of the forward pass.
func (l *masters) addAdapter() error {
	if err := l.options.Adapter.Validate(l.config); err != nil {
		return err
	}
	for _, t := range l.config.Linears() {
		if f, ok := l.options.Adapter[t.Name]; ok {
			l.add(t.Name+factorA, []int{f.Rank, t.Shape[1]}, f.A)
			l.add(t.Name+factorB, []int{t.Shape[0], f.Rank}, f.B)
		}
	}
	return nil
}

// addHead adds a value head, if there is to be one.
func (l *masters) addHead() {
	if !l.options.ValueHead {
		return
	}
	w, stream := make([]float64, l.config.Hidden), rng.New(l.options.Seed, streamHead)
	for i := range w {
		w[i] = 0.01 * stream.Normal(uint64(i))
	}
	l.add(headWeight, []int{1, l.config.Hidden}, w)
	l.add(headBias, []int{1}, []float64{0})
}

// param returns a trainable tensor.
func (l *masters) param(name string) train.Param { return l.params[l.byName[name]] }

// Params implements [train.Policy]: what is trained, in the order of the forward pass.
func (l *masters) Params() []train.Param { return l.params }

// Files implements [train.Policy].
func (l *masters) Files() ([]rundir.File, error) {
	var files []rundir.File
	for _, name := range slices.Sorted(maps.Keys(l.options.Extra)) {
		if l.options.Adapter != nil && strings.HasSuffix(name, "config.json") && !strings.HasPrefix(name, "tokenizer") {
			continue // a folder of an adapter is not that of a model
		}
		text := l.options.Extra[name]
		files = append(files, rundir.File{Name: name, Write: func(w io.Writer) error { _, err := w.Write(text); return err }})
	}
	var tensors []safetensors.Tensor
	for _, p := range l.params {
		if l.options.Adapter == nil || p.Name == headWeight || p.Name == headBias {
			tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: p.Data})
		}
	}
	if l.options.Adapter != nil {
		adapter, err := adapterFiles(l.config, l.options.PEFT, l.options.Adapter, l.options.Fingerprint)
		if err != nil {
			return nil, err
		}
		files = append(files, adapter...)
	}
	if len(tensors) > 0 {
		name := WeightsFile
		if l.options.Adapter != nil {
			name = headFile
		}
		files = append(files, rundir.File{Name: name, Write: func(w io.Writer) error {
			return safetensors.Write(w, map[string]string{"format": "pt"}, tensors)
		}})
	}
	return files, nil
}

// headFile holds the value head beside an adapter.
const headFile = "value_head.safetensors"

// Restore implements [train.Policy].
func (l *masters) Restore(dir string) error {
	open := map[string]*safetensors.File{}
	for _, p := range l.params {
		file, name := WeightsFile, p.Name
		switch {
		case strings.Contains(name, ".lora_"):
			file, name = peft.WeightsFile, "base_model.model."+name
		case l.options.Adapter != nil:
			file = headFile
		}
		if open[file] == nil {
			f, err := safetensors.Open(filepath.Join(dir, file))
			if err != nil {
				return err
			}
			defer f.Close()
			open[file] = f
		}
		if err := train.ReadTensor(open[file], name, p.Shape, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// Fingerprint implements [train.Policy]: that of the base under an adapter, which int8 codes follow from; without one no weights
// are frozen, and it is "".
func (l *masters) Fingerprint() string {
	if l.options.Adapter == nil {
		return ""
	}
	return l.options.Fingerprint
}
