package golden

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/peft"
	"plumbline/internal/pretrained"
	"plumbline/internal/refmodel"
	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// causal is a language model, and the tokens it is run on.
type causal struct {
	folder  *modelFolder
	config  model.Config
	adapter model.Adapter
	biases  map[string]bias // of the base, by name, that were trained with the adapter
	in      model.Input
}

// bias is a bias that PEFT trains and saves.
type bias struct {
	output string // name of its gradient
	value  []float64
}

func causalModel(c *call) []answer {
	l := readCausal(c)
	group := c.group("float64", "hf_double", "float32", "delta_weight")
	if !c.ok() {
		return nil
	}
	if group == "delta_weight" {
		return l.updates()
	}
	real, scored, nan := l.in.Real, l.in.Scored(), map[int]bool{}
	if group == "hf_double" {
		nan = c.nanRows(l.in.Batch)
	}
	if len(nan) > 0 {
		real, scored = slices.Clone(real), slices.Clone(scored)
	}
	for row := range nan {
		clear(real[row*l.in.Time : (row+1)*l.in.Time])
		clear(scored[row*(l.in.Time-1) : (row+1)*(l.in.Time-1)])
	}
	r := &modelRun{folder: l.folder, key: fmt.Sprint(l.in), compute: l.compute,
		inexact:  group == "float32" || group == "hf_double" && l.config.Kind != model.GPT2, // whose modelling file has no float32 in it
		optional: func(output string) bool { return group != "float64" || output == "logits_merged" },
		only: func(output string) []bool {
			switch {
			case strings.HasPrefix(output, "logits_"):
				return spreadOver(real, l.config.Vocab)
			case strings.HasPrefix(output, "logp_"):
				return scored
			}
			return nil
		},
		excuse: func(output string) string {
			if len(nan) > 0 && (output == "mean_logp" || strings.HasPrefix(output, "grad/")) {
				return "a row of the batch is NaN there"
			}
			return ""
		}}
	return r.answers(c)
}

// nanRows returns the rows that the producer lists as NaN.
func (c *call) nanRows(batch int) map[int]bool {
	rows := map[int]bool{}
	for _, v := range numbers(c.e.Options["nan_rows"]) {
		if v >= 0 && v < float64(batch) {
			rows[int(v)] = true
		}
	}
	return rows
}

// readCausal reads the model and the tokens of an entry.
func readCausal(c *call) *causal {
	l := new(causal)
	m := c.modelOf()
	if !c.ok() {
		return l
	}
	l.folder = m
	known, err := pretrained.Language(m.config)
	if err == nil {
		l.config, err = refmodel.Config(m.config.File, known)
	}
	if err != nil {
		c.undetermined("%v", err)
		return l
	}
	l.readAdapter(c)
	ids := c.tensor("ids")
	if ids.Data != nil && len(ids.Shape) != 2 {
		c.malformed("input ids has shape %v, want [B,T]", ids.Shape)
	}
	if !c.ok() {
		return l
	}
	rows, cols := ids.Shape[0], ids.Shape[1]
	heads := l.config.Heads
	if cols < 2 || rows > maxScores/cols/cols/heads || rows*cols > maxScores/l.config.Vocab {
		c.undetermined("%d rows of %d tokens: nothing to compare, or too large to recompute", rows, cols)
		return l
	}
	l.in = model.Input{Batch: rows, Time: cols, IDs: c.ints("ids", 0, l.config.Vocab, rows, cols), Real: c.mask("attention_mask", rows, cols),
		Positions: c.ints("position_ids", 0, l.config.MaxPositions, rows, cols)}
	if c.ok() {
		if err := l.in.Validate(l.config); err != nil {
			c.malformed("%v", err)
		}
	}
	return l
}

// readAdapter reads the updates of the adapter.
func (l *causal) readAdapter(c *call) {
	a := c.e.model.adapter
	if a == nil {
		return
	}
	switch {
	case a.Config.Variant != "":
		c.undetermined("%s of the adapter", a.Config.Variant)
		return
	case a.Config.LoraBias:
		c.undetermined("biases of B in the adapter")
		return
	}
	if err := l.readBiases(); err != nil {
		c.malformed("%v", err)
		return
	}
	factors := *a
	factors.Config.Bias = "none" // the biases are read
	modules, err := factors.Modules()
	if err != nil {
		c.malformed("%v", err)
		return
	}
	l.adapter = model.Adapter{}
	for i := range modules {
		down, up, err := modules[i].Factors()
		if err != nil {
			c.malformed("%v", err)
			return
		}
		l.adapter[modules[i].Path] = model.LoRA{Rank: modules[i].R, A: down, B: up, Scale: modules[i].Scale}
	}
	if err := l.adapter.Validate(l.config); err != nil {
		c.malformed("%v", err)
	}
}

// readBiases reads the biases that were trained with the adapter.
func (l *causal) readBiases() error {
	if len(l.folder.biases) == 0 {
		return nil
	}
	shapes := map[string][]int{}
	for _, t := range l.config.Tensors() {
		shapes[t.Name] = t.Shape
	}
	l.biases = map[string]bias{}
	for _, t := range l.folder.biases {
		want, ok := shapes[t.Module]
		if !ok || !slices.Equal(want, t.Array.Shape) {
			return format.Malformed(t.Array.Name, "", "has shape %v, the base wants %v", t.Array.Shape, want)
		}
		x, err := peft.Finite(t.Array)
		if err != nil {
			return err
		}
		l.biases[t.Module] = bias{"grad/" + strings.TrimPrefix(t.Key, "base_model.model."), x}
	}
	return nil
}

// weights returns the weights of the base with the biases that were trained, moved by a walk.
func (l *causal) weights(walk int) model.Weights {
	base := l.folder.moved(walk)
	return func(name string, shape ...int) ([]float64, error) {
		b, ok := l.biases[name]
		switch {
		case !ok:
			return base(name, shape...)
		case walk > 0:
			return moved32(b.value, name, walk), nil
		}
		return b.value, nil
	}
}

// compute returns the outputs by name. A walk above 0 moves every weight and every factor to a neighbour in float32.
func (l *causal) compute(walk int) (map[string][]float64, error) {
	weights, adapter := l.weights(walk), l.adapter
	if walk > 0 && adapter != nil {
		adapter = model.Adapter{}
		for name, u := range l.adapter {
			u.A, u.B = moved32(u.A, name+" A", walk), moved32(u.B, name+" B", walk)
			adapter[name] = u
		}
	}
	m, err := model.New(l.config, weights)
	if err != nil {
		return nil, err
	}
	out := map[string][]float64{}
	base := m.On(new(ad.Tape), model.Trainable{})
	out["logits_base"] = base.Logits(base.Forward(l.in).Hidden).Data()
	out["logp_base"] = base.LogProbs(l.in).Data()
	if adapter == nil {
		return out, nil
	}
	n := m.On(new(ad.Tape), model.Trainable{Adapter: adapter, LoRA: true, Weight: func(name string) bool { return l.biases[name].value != nil }})
	out["logits_adapter"] = n.Logits(n.Forward(l.in).Hidden).Data()
	out["logp_adapter"] = n.LogProbs(l.in).Data()
	mean := n.MeanLogProb(l.in)
	out["mean_logp"] = mean.Data()
	ad.Backward(mean, []float64{1})
	for name := range adapter {
		f, _ := n.Factors(name)
		out["grad/"+name+".lora_A.weight"], out["grad/"+name+".lora_B.weight"] = f.A.Grad(), f.B.Grad()
	}
	for name, b := range l.biases {
		out[b.output] = n.Var(name).Grad()
	}
	if _, ok := adapter["lm_head"]; ok && l.config.Tied {
		return out, nil // what a merge into a shared weight is depends on how it is shared
	}
	merged, err := model.New(l.config, func(name string, shape ...int) ([]float64, error) {
		x, err := weights(name, shape...)
		if u, ok := adapter[strings.TrimSuffix(name, ".weight")]; ok && err == nil && strings.HasSuffix(name, ".weight") {
			x = slices.Clone(x)
			for i, d := range l.update(u) {
				x[i] += d
			}
		}
		return x, err
	})
	if err != nil {
		return nil, err
	}
	n = merged.On(new(ad.Tape), model.Trainable{})
	out["logits_merged"] = n.Logits(n.Forward(l.in).Hidden).Data()
	return out, nil
}

// update returns s·B·A the way round that the layer stores its weight.
func (l *causal) update(u model.LoRA) []float64 {
	if l.config.Kind == model.GPT2 {
		return turned(u.Delta(), len(u.B)/u.Rank, len(u.A)/u.Rank)
	}
	return u.Delta()
}

// updates are the answers of the group delta_weight.
func (l *causal) updates() []answer {
	var answers []answer
	for _, name := range slices.Sorted(maps.Keys(l.adapter)) {
		a := plain(name+".weight", l.update(l.adapter[name])...)
		a.maybe = true // producers keep those of some layers
		answers = append(answers, a)
	}
	return answers
}
