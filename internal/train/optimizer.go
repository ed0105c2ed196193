package train

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
	"plumbline/reference/quant"
)

// optimizer is AdamW over the parameters of a policy. Masters and moments are numbers of float32: each is rounded after a step, so
// that a checkpoint in that type holds all of it. The weights whose decay is decoupled are those of tensors with two dimensions and more,
// not biases and norms (nanoGPT configure_optimizers; transformers@5.23.0 Trainer.get_decay_parameter_names).
type optimizer struct {
	params []Param
	states []*optim.State     // nil where the moments are in 8 bits
	narrow []*optim.State8bit // nil where they are not
	limit  float64            // of the global norm of the gradient, 0: none
}

func newOptimizer(params []Param, limit float64) *optimizer {
	o := &optimizer{params: params, limit: limit}
	for _, p := range params {
		o.states = append(o.states, optim.NewState(len(p.Data)))
	}
	o.narrow = make([]*optim.State8bit, len(params))
	return o
}

// use8bit keeps the moments in 8 bits, but of tensors that bitsandbytes leaves in 32. No step was taken yet.
func (o *optimizer) use8bit() *optimizer {
	for i, p := range o.params {
		if len(p.Data) >= optim.Min8bit {
			o.states[i], o.narrow[i] = nil, optim.NewState8bit(len(p.Data))
		}
	}
	return o
}

// step clips the gradient, takes one step and forgets the gradient. It returns the norm before clipping.
func (o *optimizer) step(at int, adam optim.Adam) (norm float64, err error) {
	grads := make([][]float64, len(o.params))
	for i, p := range o.params {
		if err := finite(at, "gradient of "+p.Name, p.Grad, nil); err != nil {
			return 0, err
		}
		grads[i] = p.Grad
	}
	limit := o.limit
	if limit == 0 {
		limit = 1e300
	}
	norm = optim.ClipGlobalNorm(grads, limit)
	for i, p := range o.params {
		masters := [][]float64{p.Data}
		rule := adam
		if len(p.Shape) < 2 && !adam.Coupled {
			rule.WeightDecay = 0
		}
		if s := o.narrow[i]; s != nil {
			rule.Step8bit(p.Data, p.Grad, s)
		} else {
			s := o.states[i]
			rule.Step(p.Data, p.Grad, s)
			masters = append(masters, s.M, s.V)
		}
		for _, x := range masters {
			for j, v := range x {
				x[j] = float64(float32(v))
			}
		}
		clear(p.Grad)
		if err := finite(at, p.Name, p.Data, nil); err != nil {
			return norm, err
		}
	}
	return norm, nil
}

// optimizerFile holds the moments: exp_avg.NAME and exp_avg_sq.NAME, as torch calls them, or state1.NAME, state2.NAME with absmax1
// and absmax2, as bitsandbytes calls its codes and scales.
const optimizerFile = "optimizer.safetensors"

func (o *optimizer) file() rundir.File {
	var tensors []safetensors.Tensor
	step := 0
	for i, p := range o.params {
		if s := o.narrow[i]; s != nil {
			step = s.Step
			for n, b := range []quant.Blocks{s.M, s.V} {
				scales := make([]float64, len(b.AbsMax))
				for j, v := range b.AbsMax {
					scales[j] = float64(v)
				}
				tensors = append(tensors, safetensors.Tensor{Name: fmt.Sprintf("state%d.%s", n+1, p.Name), DType: format.U8, Shape: p.Shape, Raw: b.Codes},
					safetensors.Tensor{Name: fmt.Sprintf("absmax%d.%s", n+1, p.Name), DType: format.F32, Shape: []int{len(scales)}, Data: scales})
			}
			continue
		}
		step = o.states[i].Step
		tensors = append(tensors,
			safetensors.Tensor{Name: "exp_avg." + p.Name, DType: format.F32, Shape: p.Shape, Data: o.states[i].M},
			safetensors.Tensor{Name: "exp_avg_sq." + p.Name, DType: format.F32, Shape: p.Shape, Data: o.states[i].V})
	}
	return rundir.File{Name: optimizerFile, Write: func(w io.Writer) error {
		return safetensors.Write(w, map[string]string{"step": fmt.Sprint(step)}, tensors)
	}}
}

// restore reads what file wrote; step is the number of updates.
func (o *optimizer) restore(dir string, step int) error {
	f, err := safetensors.Open(filepath.Join(dir, optimizerFile))
	if err != nil {
		return err
	}
	defer f.Close()
	for i, p := range o.params {
		if s := o.narrow[i]; s != nil {
			s.Step = step
			for n, b := range []quant.Blocks{s.M, s.V} {
				codes, scales := make([]float64, len(b.Codes)), make([]float64, len(b.AbsMax))
				if err := ReadTensor(f, fmt.Sprintf("state%d.%s", n+1, p.Name), p.Shape, codes); err != nil {
					return err
				}
				if err := ReadTensor(f, fmt.Sprintf("absmax%d.%s", n+1, p.Name), []int{len(scales)}, scales); err != nil {
					return err
				}
				for j, v := range codes {
					if v < 0 || v > 255 || v != math.Trunc(v) {
						return format.Malformed(f.Path, fmt.Sprintf("state%d.%s", n+1, p.Name), "element %d is %g, no code", j, v)
					}
					b.Codes[j] = uint8(v)
				}
				for j, v := range scales {
					b.AbsMax[j] = float32(v)
				}
			}
			continue
		}
		s := o.states[i]
		s.Step = step
		for name, to := range map[string][]float64{"exp_avg." + p.Name: s.M, "exp_avg_sq." + p.Name: s.V} {
			if err := ReadTensor(f, name, p.Shape, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// state is state.json of a checkpoint: where the run is.
type state struct {
	Schema  int `json:"schema"`
	Step    int `json:"step"`          // as the trainer counts
	Updates int `json:"schedule"`      // of the optimiser: the position in the schedule of the learning rate
	Samples int `json:"data_position"` // drawn so far
	Tokens  int `json:"tokens"`        // of responses seen so far
	// RNG is the counter of the sampler's generator. The generators are functions of the seed and a counter, and the sampler counts
	// samples, so it is the position in the data; a state in which they differ is refused.
	RNG int `json:"rng"`
}

func (s state) file() rundir.File {
	s.Schema, s.RNG = 1, s.Samples
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		panic("train: " + err.Error())
	}
	return rundir.File{Name: "state.json", Write: func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err }}
}

func readState(dir string) (state, error) {
	var s state
	path := filepath.Join(dir, "state.json")
	f, err := format.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	text := make([]byte, min(f.Size, 1<<16))
	if _, err := io.ReadFull(f, text); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	scan := format.NewScanner(path, text, 0)
	keys := map[string]*int{"schema": &s.Schema, "step": &s.Step, "schedule": &s.Updates, "data_position": &s.Samples, "rng": &s.RNG, "tokens": &s.Tokens}
	seen := map[string]bool{}
	err = scan.Object(func(key string) error {
		to := keys[key]
		if to == nil || seen[key] {
			return scan.Malformed("the key %.80q is unknown or given twice", key)
		}
		seen[key] = true
		n, err := scan.Int()
		if err == nil && n < 0 {
			return scan.Malformed("%s is %d", key, n)
		}
		*to = int(n)
		return err
	})
	if err == nil {
		err = scan.End()
	}
	switch {
	case err != nil:
	case len(seen) != len(keys):
		err = format.Malformed(path, "", "has %d of %d keys: schema, step, schedule, data_position, rng, tokens", len(seen), len(keys))
	case s.Schema != 1:
		err = format.Malformed(path, "", "schema %d, this program reads 1", s.Schema)
	case s.RNG != s.Samples:
		err = format.Malformed(path, "", "rng is at %d, but the data at %d: the sampler counts samples", s.RNG, s.Samples)
	}
	s.RNG = 0
	return s, err
}
