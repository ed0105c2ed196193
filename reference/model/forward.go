package model

import (
	"fmt"
	"slices"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// Input is a batch of B rows of T tokens.
type Input struct {
	Batch, Time int
	IDs         []int // [B, T]
	// Real is attention_mask [B, T]: false at padding, on either side; nil: no padding.
	Real []bool
	// Positions is position_ids [B, T]; nil: [nn.Positions] of Real and Segment, continued after what the cache holds.
	Positions []int
	// Segment numbers the sequences that are packed into a row [B, T], each in one piece; nil: one sequence per row. Not with
	// a cache.
	Segment []int
	// Cache holds the keys and values of the tokens before; nil: there are none. The pass adds its own. The other fields are
	// those of the new tokens only.
	Cache *Cache
	// States asks for Output.States.
	States bool
	// Checkpointing keeps what the layers read and not what they compute: the backward pass runs each of them once more. Values and
	// gradients have the same bits. Not with a cache.
	Checkpointing bool
}

// Output is what a forward pass leaves.
type Output struct {
	Hidden *ad.Var // [B, T, C], after the last norm
	// States are the embedding and the output of every layer, each [B, T, C]; the last one after the last norm, as
	// hidden_states of transformers.
	States []*ad.Var
}

// Cache holds the keys, after rotation, and the values of the tokens that a model has seen. The zero Cache is empty. It
// belongs to one tape.
type Cache struct {
	keys, values []*ad.Var // by layer, [B, S, K, D]
	real         []bool    // [B, S]
	batch, size  int
}

// Len returns the number of places S of the cache, padding included.
func (c *Cache) Len() int { return c.size }

// Validate returns an error that names the first thing in the input that the model cannot take: ids outside the vocabulary,
// lengths that do not fit, a GPT-2 position without a row in its table.
func (in Input) Validate(c Config) error {
	n := in.Batch * in.Time
	switch {
	case in.Batch < 1 || in.Time < 1:
		return c.errorf("input: %d rows of %d tokens", in.Batch, in.Time)
	case len(in.IDs) != n:
		return c.errorf("input: %d ids for %d rows of %d tokens", len(in.IDs), in.Batch, in.Time)
	case in.Real != nil && len(in.Real) != n:
		return c.errorf("input: an attention mask of %d for %d tokens", len(in.Real), n)
	case in.Positions != nil && len(in.Positions) != n:
		return c.errorf("input: %d positions for %d tokens", len(in.Positions), n)
	case in.Segment != nil && len(in.Segment) != n:
		return c.errorf("input: %d segments for %d tokens", len(in.Segment), n)
	case in.Segment != nil && in.Cache != nil:
		return c.errorf("input: packed sequences with a cache")
	case in.Checkpointing && in.Cache != nil:
		return c.errorf("input: gradient checkpointing with a cache")
	case in.Cache != nil && in.Cache.size > 0 && in.Cache.batch != in.Batch:
		return c.errorf("input: %d rows with a cache of %d", in.Batch, in.Cache.batch)
	}
	for i, id := range in.IDs {
		if id < 0 || id >= c.Vocab {
			return c.errorf("input: row %d, token %d: id %d is not in a vocabulary of %d", i/in.Time, i%in.Time, id, c.Vocab)
		}
	}
	for i := range in.Segment { // a number that comes again would see across what lies between
		row := in.Segment[i/in.Time*in.Time : i]
		if len(row) > 0 && in.Segment[i] != in.Segment[i-1] && slices.Contains(row, in.Segment[i]) {
			return c.errorf("input: row %d, token %d: segment %d comes in two pieces", i/in.Time, i%in.Time, in.Segment[i])
		}
	}
	_, pos := in.places()
	for i, p := range pos {
		if p < 0 || c.Kind == GPT2 && p >= c.MaxPositions {
			return c.errorf("input: row %d, token %d: position %d of %d", i/in.Time, i%in.Time, p, c.MaxPositions)
		}
	}
	return nil
}

// places returns which keys are real, [B, S] with those of the cache, and the positions of the tokens [B, T].
func (in Input) places() (real []bool, pos []int) {
	before := 0
	if in.Cache != nil {
		before = in.Cache.size
	}
	real = in.Real
	if before > 0 {
		real = make([]bool, 0, in.Batch*(before+in.Time))
		for i := range in.Batch {
			real = append(real, in.Cache.real[i*before:(i+1)*before]...)
			for j := range in.Time {
				real = append(real, in.Real == nil || in.Real[i*in.Time+j])
			}
		}
	}
	if in.Positions != nil {
		return real, in.Positions
	}
	all := nn.Positions(in.Batch, before+in.Time, real, in.Segment)
	for i := range in.Batch {
		end := (i + 1) * (before + in.Time)
		pos = append(pos, all[end-in.Time:end]...)
	}
	return real, pos
}

// pass is one forward pass: the input and what its layers share.
type pass struct {
	Input
	pos   []int
	real  []bool
	keys  int             // S
	masks map[int]ad.Mask // by window
}

// Forward computes the hidden states of the tokens. It panics if the input does not fit, see [Input.Validate].
func (n *Net) Forward(in Input) Output {
	if err := in.Validate(n.Config); err != nil {
		panic(err.Error())
	}
	p := &pass{Input: in, keys: in.Time, masks: map[int]ad.Mask{}}
	p.real, p.pos = n.ops.places(in)
	if c := in.Cache; c != nil {
		if c.keys == nil {
			c.keys, c.values = make([]*ad.Var, n.Config.Layers), make([]*ad.Var, n.Config.Layers)
		}
		p.keys += c.size
	}
	var out Output
	x := n.ops.embed(n, p)
	for i := range n.Config.Layers {
		if in.States {
			out.States = append(out.States, x)
		}
		if in.Checkpointing {
			x = n.checkpointed(p, x, i)
		} else {
			x = n.ops.block(n, p, x, i)
		}
	}
	out.Hidden = n.ops.last(n, x)
	if in.States {
		out.States = append(out.States, out.Hidden)
	}
	if c := in.Cache; c != nil {
		c.batch, c.size, c.real = in.Batch, p.keys, p.real
		if c.real == nil {
			c.real = make([]bool, in.Batch*in.Time)
			for i := range c.real {
				c.real[i] = true
			}
		}
	}
	return out
}

// embed returns what the first layer reads.
func (n *Net) embed(p *pass) *ad.Var {
	x := nn.Embedding(n.Var(n.Config.embedding()+".weight"), p.IDs, p.Batch, p.Time)
	if n.Config.Kind == GPT2 {
		x = n.embedGPT2(p, x)
	}
	return x
}

// block applies layer i.
func (n *Net) block(p *pass, x *ad.Var, i int) *ad.Var {
	switch n.Config.Kind {
	case GPTJ:
		return n.blockGPTJ(p, x, i)
	case GPT2:
		return n.blockGPT2(p, x, i)
	}
	return n.blockLlama(p, x, i)
}

// last applies the norm after the last layer.
func (n *Net) last(x *ad.Var) *ad.Var {
	switch n.Config.Kind {
	case GPTJ, GPT2:
		return n.layerNorm(x, "transformer.ln_f")
	}
	return n.rmsNorm(x, "model.norm")
}

// attend lets the heads q [B, T, H, D] of layer i attend to k and v [B, T, K, D] and to what the cache holds, and returns
// [B, T, H·D].
func (n *Net) attend(p *pass, i int, q, k, v *ad.Var, scale float64) *ad.Var {
	if c := p.Cache; c != nil {
		if c.size > 0 {
			k, v = ad.Concat(1, c.keys[i], k), ad.Concat(1, c.values[i], v)
		}
		c.keys[i], c.values[i] = k, v
	}
	window := 0
	if n.Config.Windows != nil {
		window = n.Config.Windows[i]
	}
	mask, ok := p.masks[window]
	if !ok {
		mask = n.ops.mask(nn.Visible{
			Batch: p.Batch, Queries: p.Time, Keys: p.keys, Causal: true,
			Window: window, Real: p.real, Segment: p.Segment,
		})
		p.masks[window] = mask
	}
	return nn.Join(n.ops.attention(q, k, v, mask, scale))
}

// LogProbs returns log p(ids[t+1] | ids[≤t]) of each row, [B, T−1], at temperature 1 over the whole vocabulary. What stands
// where one of the two tokens is padding, or where a new segment starts, means nothing: mask it with [Input.Scored].
func (n *Net) LogProbs(in Input) *ad.Var {
	if in.Time < 2 {
		panic(fmt.Sprintf("model: log-probabilities of %d tokens", in.Time))
	}
	h := ad.Slice(n.Forward(in).Hidden, 1, 0, in.Time-1)
	var next []int
	for i := range in.Batch {
		next = append(next, in.IDs[i*in.Time+1:(i+1)*in.Time]...)
	}
	return nn.LogProb(n.Logits(h), next)
}

// Scored returns where [Net.LogProbs] means something, [B, T−1]: both tokens are real and of one segment.
func (in Input) Scored() []bool {
	on := make([]bool, 0, in.Batch*(in.Time-1))
	for i := range in.Batch {
		for j := i*in.Time + 1; j < (i+1)*in.Time; j++ {
			on = append(on, (in.Real == nil || in.Real[j] && in.Real[j-1]) &&
				(in.Segment == nil || in.Segment[j] == in.Segment[j-1]))
		}
	}
	return on
}

// MeanLogProb returns the mean of [Net.LogProbs] where it means something; NaN if it does so nowhere.
func (n *Net) MeanLogProb(in Input) *ad.Var {
	on := in.Scored()
	var at []int
	for i, v := range on {
		if v {
			at = append(at, i)
		}
	}
	lp := ad.Reshape(n.LogProbs(in), len(on), 1)
	return ad.Mean(ad.Embedding(lp, at, len(at)), false)
}
