package golden

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"plumbline/reference/model"
)

// Models judges whole models.
var Models = models.check()

var models = &section{
	name:  "models",
	title: "models are those of transformers and PEFT",
	doc: `Runs the model of every folder with golden.json (base/config.json and base/model.safetensors, and the adapter in adapter) on
its ids. Compares logits and log-probs of base and adapter, the mean log-prob of the adapter, its gradients for every A and
B, the updates s·B·A, and the logits of the merged weights. What was computed in float64/ must agree to 1e-10 of the largest
number of its tensor, gradients to 1e-9. In float32/, and in hf_double/ where the modelling file computes norms, softmax or
rotary tables in float32 in a float64 model, the allowance is empirical: four times the furthest that a
number of the tensor moves when every weight moves to a neighbour in float32, in eight random walks. Places of padding mean
nothing and nothing and are not compared, nor are rows that the producer lists as NaN. The masked model and its judge, and the solver of
grids, are compared in the same way: hidden states, log-probs, scores, losses and the gradients of every weight.`,
	source: "transformers@5.23.0 modelling files, peft@0.21.2; reference/model",
	functions: map[string]recompute{
		"transformers GPT2LMHeadModel":  causalModel,
		"transformers GPTJForCausalLM":  causalModel,
		"transformers LlamaForCausalLM": causalModel,
		"transformers Qwen2ForCausalLM": causalModel,
		"torch maskedgpt":               maskedModel,
		"torch arcagent":                arcModel,
	},
	faults: modelFaults,
}

// Tolerances of a whole model in float64, relative to the largest number of a tensor.
const (
	modelValues    = 1e-10
	modelGradients = 1e-9
)

// maxScores is the largest number of attention scores of a layer, and of logits, that are recomputed: they are not bounded
// by the size of the files.
const maxScores = 1 << 24

// modelRun is a model and what it is run on.
type modelRun struct {
	folder *modelFolder
	key    string // names the input
	// compute returns the outputs by name, from weights that a walk above 0 has moved.
	compute func(walk int) (map[string][]float64, error)
	// only returns which elements of an output mean something; nil: all.
	only func(output string) []bool
	// excuse returns why an output has no number that can be compared, "" if it has.
	excuse func(output string) string
	// optional reports whether an entry need not have an output.
	optional func(output string) bool
	inexact  bool // all or part of it was computed in float32
}

// outputs is compute, once for all groups of a model.
func (r *modelRun) outputs(c *call, walk int) map[string][]float64 {
	key := fmt.Sprint(walk, r.key)
	if out, ok := r.folder.computed[key]; ok {
		return out
	}
	out, err := r.compute(walk)
	if err != nil {
		c.malformed("%v", err)
		return nil
	}
	r.folder.computed[key] = out
	return out
}

// answers returns an answer for every output.
func (r *modelRun) answers(c *call) []answer {
	got := r.outputs(c, 0)
	var walked []map[string][]float64
	if r.inexact {
		for walk := range walks {
			walked = append(walked, r.outputs(c, walk+1))
		}
	}
	if !c.ok() {
		return nil
	}
	var list []answer
	for _, name := range slices.Sorted(maps.Keys(got)) {
		a := answer{output: name, got: got[name], bound: make([]float64, len(got[name])), tight: true, leak: LeakModel,
			only: r.only(name), excuse: r.excuse(name), maybe: r.optional(name)}
		a.ofModel(walked)
		list = append(list, a)
	}
	return list
}

// ofModel fills the bounds of an output of a model.
func (a *answer) ofModel(walked []map[string][]float64) {
	relative, largest, furthest := modelValues, 0.0, 0.0
	if strings.Contains(a.output, "grad/") {
		relative = modelGradients
	}
	for i, x := range a.got {
		if a.only != nil && !a.only[i] {
			continue
		}
		largest = max(largest, math.Abs(x))
		for _, w := range walked {
			furthest = max(furthest, math.Abs(w[a.output][i]-x))
		}
	}
	for i, x := range a.got {
		if walked == nil {
			a.bound[i] = relative * largest
		} else {
			a.bound[i] = float64(reach*furthest) + float64(u32*math.Abs(x))
		}
	}
	if walked != nil {
		a.leak = LeakFloat32Model
	}
}

// everywhere is modelRun.only of a model without padding.
func everywhere(string) []bool { return nil }

// compared is modelRun.excuse of a model that is compared whole.
func compared(string) string { return "" }

// spreadOver repeats every element of x n times.
func spreadOver(x []bool, n int) []bool {
	y := make([]bool, 0, len(x)*n)
	for _, v := range x {
		for range n {
			y = append(y, v)
		}
	}
	return y
}

// moved returns the weights of the model, moved by a walk.
func (m *modelFolder) moved(walk int) model.Weights {
	if walk == 0 {
		return m.weight
	}
	return func(name string, shape ...int) ([]float64, error) {
		x, err := m.weight(name, shape...)
		return moved32(x, name, walk), err
	}
}

// modelOf returns the model of an entry.
func (c *call) modelOf() *modelFolder {
	c.ignore("attention", "nan_rows", "reward") // eager and fused attention are one formula
	if c.e.model == nil {
		c.undetermined("no model belongs to this entry")
		return &modelFolder{}
	}
	return c.e.model
}

// group notes a group of tensors that is none of the known ones.
func (c *call) group(known ...string) string {
	if !slices.Contains(known, c.e.Case) {
		c.undetermined("tensors of the group %s", short(c.e.Case))
	}
	return c.e.Case
}
