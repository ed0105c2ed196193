package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// layer is what the names of the weights of layer i begin with.
func (c Config) layer(i int) string {
	if c.Kind == GPT2 || c.Kind == GPTJ {
		return fmt.Sprintf("transformer.h.%d.", i)
	}
	return fmt.Sprintf("model.layers.%d.", i)
}

// checkpointed applies layer i by [ad.Checkpoint]: the tape keeps what the layer reads and gives, and its backward pass runs it once
// more.
func (n *Net) checkpointed(p *pass, x *ad.Var, i int) *ad.Var {
	in, prefix := []*ad.Var{x}, n.Config.layer(i)
	var weights, layers []string
	for _, name := range slices.Sorted(maps.Keys(n.vars)) {
		if strings.HasPrefix(name, prefix) {
			weights, in = append(weights, name), append(in, n.vars[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.lora)) {
		if strings.HasPrefix(name, prefix) {
			layers, in = append(layers, name), append(in, n.lora[name].A, n.lora[name].B)
		}
	}
	return ad.Checkpoint(in, func(in []*ad.Var) *ad.Var {
		inner := *n
		inner.params = &params{tape: in[0].Tape(), vars: map[string]*ad.Var{}, lora: map[string]nn.LoRA{}}
		for k, name := range weights {
			inner.vars[name] = in[1+k]
		}
		for k, name := range layers {
			at := 1 + len(weights) + 2*k
			inner.lora[name] = nn.LoRA{A: in[at], B: in[at+1], Scale: n.lora[name].Scale}
		}
		return n.ops.block(&inner, p, in[0], i)
	})
}
