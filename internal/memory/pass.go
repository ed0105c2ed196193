package memory

// Transformer are the sizes of a model that the float64 reference computes.
type Transformer struct {
	Layers, Hidden, Inner   int // Inner: of the MLP
	Heads, KVHeads, HeadDim int
	Vocab                   int
}

// Pass is one run of a [Transformer] over rows of texts.
type Pass struct {
	Rows, Time int  // tokens of a row, padding among them
	Keys       int  // that a token sees at most: Time, and what the cache holds
	Scored     int  // tokens of a row whose logits are computed
	Grad       bool // everything stays for the way back
	Again      bool // gradient checkpointing: of a layer only the input stays
}

// Bytes estimates what a pass allocates beside the weights: 8 bytes for a number. Of a token every layer makes
//
//	12·Hidden + 8·Heads·HeadDim + 6·KVHeads·HeadDim + 6·Inner + 5·Heads·Keys
//
// numbers, the reads and results of its products, which are alive together in one layer, and in all of them where a gradient is wanted, with a
// gradient beside each. Scores and their softmax are the terms with Keys: products, scaled, masked, exponentials, probabilities. Of the logits
// there are two copies, and four with a gradient.
func (m Transformer) Bytes(p Pass) float64 {
	q, kv := float64(m.Heads)*float64(m.HeadDim), float64(m.KVHeads)*float64(m.HeadDim)
	tokens := float64(p.Rows) * float64(p.Time)
	layer := 8 * tokens * (12*float64(m.Hidden) + 8*q + 6*kv + 6*float64(m.Inner) + 5*float64(m.Heads)*float64(p.Keys))
	logits := 8 * float64(p.Rows) * float64(p.Scored) * float64(m.Vocab)
	switch {
	case !p.Grad:
		return layer + 2*logits
	case p.Again:
		return 2*layer + 8*float64(m.Layers)*tokens*float64(m.Hidden) + 4*logits
	}
	return 2*float64(m.Layers)*layer + 4*logits
}
