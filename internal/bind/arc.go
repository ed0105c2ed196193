package bind

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// Names of the parts of the model, by what its tensors' names begin with.
const (
	arcText = "qwen.transformer."
	arcPhi  = "policy_rl.phi" // and phi_pred: the networks of curiosity
)

// Arc is an ArcAgent of reference/model as a [train.ArcAgent]: float64 on the tape.
type Arc struct {
	model   *model.ArcAgent
	adapter model.Adapter // of the text encoder; nil: none
	text    *Text
	extra   map[string][]byte
	weights map[string][]float64 // of all tensors, by name
	params  []train.Param
	trained map[string]int // a trained tensor's place in params
}

// streamArc numbers the random numbers of the first tensor.
const streamArc = 20_000

// NewArc returns a new agent of the sizes of c around the text encoder that c names: its weights are uniform within ±1/√(inputs), as
// torch initialises linear layers and convolutions, and the policy's log standard deviations 0. All are rounded to float32, the
// precision of masters.
func NewArc(c *train.Arc) (*Arc, error) {
	m, extra, err := Open(c.Encoder, c.Seed)
	if err != nil {
		return nil, err
	}
	base := m.Base.Config
	if base.Kind != model.Qwen2 {
		return nil, &train.ConfigError{Msg: fmt.Sprintf("encoder.name %s is no Qwen2 model", c.Encoder)}
	}
	text, err := NewText(m)
	if err != nil {
		return nil, err
	}
	base.Tied = true // its head is not used
	config := model.ArcAgentConfig{Colors: dataset.ArcColors, Prompt: c.Prompt, Hidden: c.Channels, Encoder: c.Channels, Steps: c.Steps,
		Policy: model.ArcPolicyConfig{Control: c.Control, Features: c.Features, Hidden: c.Hidden, DeltaScale: 0.2}, Text: base}
	a := &Arc{text: text, extra: extra, weights: map[string][]float64{}, trained: map[string]int{}}
	if err := config.Validate(); err != nil {
		return nil, &train.ConfigError{Msg: err.Error()}
	}
	n := uint64(0)
	fan := 0
	a.model, err = model.NewArcAgent(config, func(name string, shape ...int) ([]float64, error) {
		stream := rng.New(c.Seed, streamArc+n)
		n++
		w := make([]float64, format.Elements(shape))
		inner, isText := strings.CutPrefix(name, arcText)
		if len(shape) > 1 {
			fan = len(w) / shape[0] // a bias follows its weight
		}
		bound := 1 / math.Sqrt(float64(fan))
		if len(shape) > 1 && strings.HasPrefix(name, "agent.") {
			bound *= math.Sqrt(6) // a ReLU follows, or the logits: the size of the signal stays
		}
		for i := range w {
			switch {
			case isText:
				w[i] = m.Base.Data("model." + inner)[i]
			case name != "policy_rl.pi_logstd":
				w[i] = (2*stream.Uniform(uint64(i)) - 1) * bound
			}
			w[i] = float64(float32(w[i]))
		}
		a.weights[name] = w
		return w, nil
	})
	if err != nil {
		return nil, err
	}
	for _, t := range config.Tensors() {
		isText := strings.HasPrefix(t.Name, arcText)
		if isText && c.EncoderTrain != train.EncoderFull || strings.HasPrefix(t.Name, arcPhi) && c.ICM == 0 {
			continue
		}
		a.add(t.Name, t.Shape, a.weights[t.Name])
	}
	if c.EncoderTrain == train.EncoderLoRA {
		if a.adapter, err = NewAdapter(base, c.LoRA.R, c.LoRA.Alpha, c.LoRA.Targets, c.Seed); err != nil {
			return nil, &train.ConfigError{Msg: err.Error()}
		}
		for _, t := range base.Linears() {
			if f, ok := a.adapter[t.Name]; ok {
				name := arcText + strings.TrimPrefix(t.Name, "model.")
				a.add(name+".lora_A.weight", []int{f.Rank, t.Shape[1]}, f.A)
				a.add(name+".lora_B.weight", []int{t.Shape[0], f.Rank}, f.B)
			}
		}
	}
	return a, a.configFile()
}

func (a *Arc) add(name string, shape []int, data []float64) {
	a.trained[name] = len(a.params)
	a.params = append(a.params, train.Param{Name: name, Shape: shape, Data: data, Grad: make([]float64, len(data))})
}

// configFile replaces the text encoder's config.json by that of the agent, in which it is the part text.
func (a *Arc) configFile() error {
	c := a.model.Config
	var text map[string]any
	if err := json.Unmarshal(a.extra["config.json"], &text); err != nil {
		return err
	}
	whole, err := json.MarshalIndent(map[string]any{"model_type": "arcagent", "num_colors": c.Colors, "prompt_dim": c.Prompt, "hidden_dim": c.Hidden, "encoder_dim": c.Encoder,
		"max_steps": c.Steps, "policy": map[string]any{"ctrl_dim": c.Policy.Control, "feat_dim": c.Policy.Features, "hidden": c.Policy.Hidden, "delta_scale": c.Policy.DeltaScale},
		"text": text, "torch_dtype": "float32"}, "", " ")
	if err != nil {
		return err
	}
	a.extra["config.json"] = append(whole, '\n')
	return nil
}

// Shape implements [train.ArcAgent].
func (a *Arc) Shape() train.ArcShape {
	c := a.model.Config
	return train.ArcShape{Prompt: c.Prompt, Control: c.Policy.Control, Features: c.Policy.Features}
}

// Encode implements [train.ArcAgent].
func (a *Arc) Encode(sentence string) []int { return a.text.Encode(sentence) }

// Params implements [train.ArcAgent].
func (a *Arc) Params() []train.Param { return a.params }

// On implements [train.ArcAgent].
func (a *Arc) On(t *ad.Tape, grad bool) train.ArcNet {
	var weight func(string) bool
	if grad {
		weight = func(name string) bool { _, ok := a.trained[name]; return ok }
	}
	return &arcNet{a.model.OnAdapted(t, weight, model.Trainable{Adapter: a.adapter, LoRA: grad}), a}
}

// arcNet is an Arc on a tape.
type arcNet struct {
	net   *model.ArcNet
	agent *Arc
}

func gridOf(g dataset.Grid) model.Grid { return model.Grid{H: g.H, W: g.W, Cells: g.Cells} }

func (n *arcNet) PromptOf(ids []int) *ad.Var { return n.net.PromptOf(ids) }

func (n *arcNet) Predict(g dataset.Grid, prompt *ad.Var) *ad.Var {
	return n.net.Predict(gridOf(g), prompt)
}

func (n *arcNet) Refine(prompt, control, features, noise *ad.Var) train.ArcRefinement {
	r := n.net.Refine(prompt, control, features, noise)
	return train.ArcRefinement{State: r.State, U: r.U, Alpha: r.Alpha, Prompt: r.Prompt, Value: r.Value}
}

func (n *arcNet) Evaluate(state, u *ad.Var) (logp, value, entropy *ad.Var) {
	return n.net.Evaluate(state, u)
}

func (n *arcNet) Curiosity(state, u, next *ad.Var) *ad.Var { return n.net.Curiosity(state, u, next) }

func (n *arcNet) Resize(logits *ad.Var, h, w int) *ad.Var { return model.ResizeLogits(logits, h, w) }

func (n *arcNet) Grid(logits *ad.Var, h, w int) dataset.Grid {
	g := model.GridOf(logits).Resize(h, w)
	return dataset.Grid{H: g.H, W: g.W, Cells: g.Cells}
}

func (n *arcNet) Collect() {
	for _, p := range n.agent.params {
		v := n.onTape(p.Name)
		for i, g := range v.Grad() {
			p.Grad[i] += g
		}
		v.ZeroGrad()
	}
}

// onTape returns a trained tensor.
func (n *arcNet) onTape(name string) *ad.Var {
	if layer, is := strings.CutSuffix(name, ".lora_A.weight"); is {
		f, _ := n.net.Text.Factors("model." + strings.TrimPrefix(layer, arcText))
		return f.A
	}
	if layer, is := strings.CutSuffix(name, ".lora_B.weight"); is {
		f, _ := n.net.Text.Factors("model." + strings.TrimPrefix(layer, arcText))
		return f.B
	}
	return n.net.Var(name)
}

// Variant implements [train.Model].
func (a *Arc) Variant() string { return train.Reference }

// Files implements [train.ArcAgent]: all tensors of the agent, the adapter in a file of its own, the configuration and the tokenizer.
func (a *Arc) Files() ([]rundir.File, error) {
	files := extraFiles(a.extra)
	var whole, lora []safetensors.Tensor
	for _, t := range a.model.Config.Tensors() {
		whole = append(whole, safetensors.Tensor{Name: t.Name, DType: format.F32, Shape: t.Shape, Data: a.weights[t.Name]})
	}
	for _, p := range a.params {
		if strings.Contains(p.Name, ".lora_") {
			lora = append(lora, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: p.Data})
		}
	}
	add := func(name string, tensors []safetensors.Tensor) {
		files = append(files, rundir.File{Name: name, Write: func(w io.Writer) error { return safetensors.Write(w, map[string]string{"format": "pt"}, tensors) }})
	}
	add(WeightsFile, whole)
	if len(lora) > 0 {
		add(arcLoRAFile, lora)
	}
	return files, nil
}

// arcLoRAFile holds the adapter of the text encoder beside the weights.
const arcLoRAFile = "encoder_lora.safetensors"

func extraFiles(extra map[string][]byte) (files []rundir.File) {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		files = append(files, rundir.File{Name: name, Write: func(w io.Writer) error { _, err := w.Write(extra[name]); return err }})
	}
	return files
}

// Restore implements [train.ArcAgent].
func (a *Arc) Restore(dir string) error {
	open := map[string]*safetensors.File{}
	for _, p := range a.params {
		name := WeightsFile
		if strings.Contains(p.Name, ".lora_") {
			name = arcLoRAFile
		}
		if open[name] == nil {
			f, err := safetensors.Open(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			defer f.Close()
			open[name] = f
		}
		if err := train.ReadTensor(open[name], p.Name, p.Shape, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// Fingerprint implements [train.ArcAgent]: the sha256 over the tensors that are not trained, "" if all are.
func (a *Arc) Fingerprint() string {
	h, frozen := sha256.New(), false
	for _, t := range a.model.Config.Tensors() {
		if _, ok := a.trained[t.Name]; !ok {
			frozen = true
			hashTensor(h, t, a.weights[t.Name])
		}
	}
	if !frozen {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
