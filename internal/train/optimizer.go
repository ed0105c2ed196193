package train

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"time"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
	"plumbline/reference/quant"
)

// Optimizer turns the gradients of a model into an update of its masters. It is made for the parameters of one model, whose Data and
// Grad it reads and writes, and keeps what it remembers between steps, the moments. Every result is a function of the arguments and of
// what the optimiser and the parameters hold.
type Optimizer interface {
	// Step makes one update of all parameters and sets their gradients to 0. Data hold the new masters, rounded to float32, when it
	// returns. It is a *[NotFiniteError] if a gradient or a new master is not finite: the run ends there.
	Step(u Update) (Updated, error)
	// File is the file of a checkpoint that holds the moments.
	File() rundir.File
	// Restore reads what File wrote after so many updates.
	Restore(dir string, updates int) error
}

// Update says what one step of an [Optimizer] does: the gradient is projected (ProjectGrad), its global norm is limited, the rule makes
// an increment of it, the increment is projected (ProjectUpdate) and added.
type Update struct {
	Step    int        // of the trainer, for messages
	Rule    optim.Adam // learning rate, decay rates, ε and weight decay; a decoupled decay is of tensors with two dimensions and more only
	SGD     bool       // the increment is −lr·g; of Rule only the learning rate is read, and the moments do not move
	MaxNorm float64    // limit of the global norm of the gradient, 0: none
	Shield  *Shielding // nil: nothing is projected, and nothing of it is measured
}

// Modes of a [Shielding].
const (
	ProjectUpdate = "update"
	ProjectGrad   = "grad"
	ProjectOff    = "off"
)

// Shielding is what a step does and measures for a run that is shielded.
type Shielding struct {
	*Shield             // nil: there is no basis, and nothing is projected
	Mode    string      // ProjectUpdate, ProjectGrad or ProjectOff
	Passes  int         // of the projection
	Initial [][]float64 // the masters before training, W_init
	Flow    bool        // the mean magnitude of each gradient is wanted
	Keep    bool        // so are copies of the gradient and of what is added to the parameters
}

// Updated is what a step saw.
type Updated struct {
	Norm float64 // L2 of the gradient of all parameters, before projection and clipping
	// What a [Shielding] asks for. Flow is the mean of |g| of each parameter, where it is wanted; the others are of a basis.
	Flow          []float64
	ProjectedNorm float64 // L2 of the gradient without its part in span(Q)
	Before, After float64 // [Shield.Leak] of what was projected, before and after; NaN where nothing was
	Idle          bool    // the projection changed no number
	Spent         time.Duration
	Drift         float64 // [Shield.Leak] of W − W_init after the step
	// Where copies are wanted: the gradient before projection and clipping, without its part in span(Q), nil without a basis, and what was
	// added to the parameters before these were rounded.
	Raw, Projected, Added [][]float64
}

// adam is the [Optimizer] of the reference: Adam and AdamW. Masters and moments are numbers of float32: each is rounded after a step,
// so that a checkpoint in that type holds all of it. The weights whose decay is decoupled are those of tensors with two dimensions and
// more, not biases and norms (nanoGPT configure_optimizers; transformers@5.23.0 Trainer.get_decay_parameter_names).
type adam struct {
	params []Param
	states []*optim.State     // nil where the moments are in 8 bits
	narrow []*optim.State8bit // nil where they are not
}

// NewAdam returns the optimiser of the reference, Adam in float64 between masters and moments in float32. With narrow the moments are kept
// in 8 bits, but for tensors whose moments bitsandbytes leaves in 32.
func NewAdam(params []Param, narrow bool) Optimizer { return newAdam(params, narrow) }

func newAdam(params []Param, narrow bool) *adam {
	o := &adam{params: params, states: make([]*optim.State, len(params)), narrow: make([]*optim.State8bit, len(params))}
	for i, p := range params {
		if n := len(p.Data); narrow && n >= optim.Min8bit {
			o.narrow[i] = optim.NewState8bit(n)
		} else {
			o.states[i] = optim.NewState(n)
		}
	}
	return o
}

// Step implements [Optimizer].
func (o *adam) Step(u Update) (out Updated, err error) {
	grads := make([][]float64, len(o.params))
	for i, p := range o.params {
		if err := finite(u.Step, "gradient of "+p.Name, p.Grad, nil); err != nil {
			return out, err
		}
		grads[i] = p.Grad
	}
	out.Before, out.After = math.NaN(), math.NaN()
	shield := u.Shield
	if shield != nil {
		out.Norm = globalNorm(grads)
		shield.measure(&out, grads)
		shield.project(&out, grads, ProjectGrad)
	}
	limit := cmp.Or(u.MaxNorm, 1e300)
	clipped := optim.ClipGlobalNorm(grads, limit)
	if shield == nil {
		out.Norm = clipped
		for i, p := range o.params {
			o.advance(i, p.Data, u)
		}
	} else {
		o.increment(&out, u)
	}
	for i, p := range o.params {
		round(p.Data)
		clear(grads[i])
		if err := finite(u.Step, p.Name, p.Data, nil); err != nil {
			return out, err
		}
	}
	if shield != nil && shield.Shield != nil {
		out.Drift = shield.Leak(shield.delta(o.params))
	}
	return out, nil
}

// increment forms what the rule adds to the parameters, projects it and adds it.
func (o *adam) increment(out *Updated, u Update) {
	add := make([][]float64, len(o.params))
	for i, p := range o.params {
		to := slices.Clone(p.Data)
		o.advance(i, to, u)
		for j := range to {
			to[j] -= p.Data[j]
		}
		add[i] = to
	}
	u.Shield.project(out, add, ProjectUpdate)
	if u.Shield.Keep {
		out.Added = add
	}
	for i, p := range o.params {
		for j, v := range add[i] {
			p.Data[j] += v
		}
	}
}

// advance applies the rule to parameter i, whose masters are in to, and rounds the moments.
func (o *adam) advance(i int, to []float64, u Update) {
	p, rule := o.params[i], u.Rule
	if len(p.Shape) < 2 && !rule.Coupled {
		rule.WeightDecay = 0
	}
	wide, narrow := o.states[i], o.narrow[i]
	switch {
	case u.SGD:
		optim.SGD(to, p.Grad, rule.LR)
		if wide != nil {
			wide.Step++
		} else {
			narrow.Step++
		}
	case wide != nil:
		rule.Step(to, p.Grad, wide)
		round(wide.M)
		round(wide.V)
	default:
		rule.Step8bit(to, p.Grad, narrow)
	}
}

// round rounds to float32.
func round(x []float64) {
	for i, v := range x {
		x[i] = float64(float32(v))
	}
}

// optimizerFile holds the moments: exp_avg.NAME and exp_avg_sq.NAME, as torch calls them, or state1.NAME, state2.NAME with absmax1
// and absmax2, as bitsandbytes calls its codes and scales.
const optimizerFile = "optimizer.safetensors"

// File implements [Optimizer].
func (o *adam) File() rundir.File {
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

// Restore implements [Optimizer].
func (o *adam) Restore(dir string, step int) error {
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
	err = scan.Document(func(key string) error {
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
