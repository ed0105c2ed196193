package refmodel

import (
	"plumbline/internal/memory"
	"plumbline/reference/model"
)

// Sizes returns what the memory of a pass depends on.
func Sizes(c model.Config) memory.Transformer {
	return memory.Transformer{Layers: c.Layers, Hidden: c.Hidden, Inner: c.Intermediate, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Vocab: c.Vocab}
}
