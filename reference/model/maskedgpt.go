package model

import (
	"errors"
	"fmt"
	"math"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// Mode is what the head of a [MaskedGPT] is for.
type Mode string

// The modes.
const (
	LanguageModel  Mode = "language_model"  // scores for every token at every position
	SequenceScorer Mode = "sequence_scorer" // one score in (0, 1) for a text: a judge
)

// MaskedGPTConfig is what nanoGPT's model_args say about the arithmetic of a [MaskedGPT]; the comments name its keys.
type MaskedGPTConfig struct {
	Mode         Mode
	Vocab        int  // vocab_size, special tokens included
	Hidden       int  // n_embd
	Layers       int  // n_layer
	Heads        int  // n_head
	MaxPositions int  // block_size
	Bias         bool // bias: linear layers and LayerNorms have one
	Mask         int  // mask_token_id: what stands where a token is to be filled in
	Pad          int  // pad_token_id
	CLS          int  // cls_token_id: what a judge reads first. A language model has none
	// CLSEmbedding tells that a judge's CLS has an embedding of its own, cls_embedding, and not its row of the table.
	CLSEmbedding bool
}

// Validate returns an error that names the first fact that is out of range. Special tokens that are the same are refused: a
// judge whose CLS is the padding would read padding as a text's beginning.
func (c MaskedGPTConfig) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"vocab_size", c.Vocab}, {"n_embd", c.Hidden}, {"n_layer", c.Layers}, {"n_head", c.Heads}, {"block_size", c.MaxPositions}} {
		if f.value < 1 || f.value > math.MaxInt32 {
			return fmt.Errorf("model: maskedgpt: %s %d is out of range", f.name, f.value)
		}
	}
	if c.Mode != LanguageModel && c.Mode != SequenceScorer {
		return fmt.Errorf("model: maskedgpt: mode %q is not one of %s, %s", c.Mode, LanguageModel, SequenceScorer)
	}
	if c.Hidden%(2*c.Heads) != 0 {
		return fmt.Errorf("model: maskedgpt: n_embd %d is not an even number of channels for each of %d heads", c.Hidden, c.Heads)
	}
	type token struct {
		name string
		id   int
	}
	special := []token{{"mask_token_id", c.Mask}, {"pad_token_id", c.Pad}}
	if c.Mode == SequenceScorer {
		special = append(special, token{"cls_token_id", c.CLS})
		if c.MaxPositions < 2 {
			return errors.New("model: maskedgpt: block_size 1 leaves a judge no room for a text after CLS")
		}
	} else if c.CLSEmbedding {
		return errors.New("model: maskedgpt: a language model has no cls_embedding")
	}
	for i, s := range special {
		if s.id < 0 || s.id >= c.Vocab {
			return fmt.Errorf("model: maskedgpt: %s %d is not in a vocabulary of %d", s.name, s.id, c.Vocab)
		}
		for _, o := range special[:i] {
			if o.id == s.id {
				return fmt.Errorf("model: maskedgpt: %s and %s are both %d", o.name, s.name, s.id)
			}
		}
	}
	return nil
}

// Tensors returns the weights in the order of the forward pass, under nanoGPT's names. lm_head.weight is not among them: it
// is transformer.wte.weight, under which files hold it too. Linear layers store [out, in]. It panics if c is not valid.
func (c MaskedGPTConfig) Tensors() []Tensor {
	if err := c.Validate(); err != nil {
		panic(err.Error())
	}
	t := []Tensor{blank("transformer.wte", "weight", c.Vocab, c.Hidden)}
	if c.CLSEmbedding {
		t = append(t, Tensor{"cls_embedding", []int{c.Hidden}})
	}
	layer := func(name string, shape ...int) { // a LayerNorm or a linear layer
		t = append(t, blank(name, "weight", shape...))
		if c.Bias {
			t = append(t, blank(name, "bias", shape[0]))
		}
	}
	for i := range c.Layers {
		p := fmt.Sprintf("transformer.h.%d.", i)
		layer(p+"ln_1", c.Hidden)
		layer(p+"attn.c_attn", 3*c.Hidden, c.Hidden)
		layer(p+"attn.c_proj", c.Hidden, c.Hidden)
		layer(p+"ln_2", c.Hidden)
		layer(p+"mlp.c_fc", 4*c.Hidden, c.Hidden)
		layer(p+"mlp.c_proj", c.Hidden, 4*c.Hidden)
	}
	layer("transformer.ln_f", c.Hidden)
	if c.Mode == SequenceScorer {
		t = append(t, blank("sequence_head.base_predictor", "weight", 1, c.Hidden), Tensor{"sequence_head.A", []int{1}}, Tensor{"sequence_head.B", []int{1}})
	}
	return t
}

// A MaskedGPT is a transformer that fills in masked tokens, each of them seeing the whole text, or one that judges a text.
// It has nanoGPT's blocks, without a causal mask and with rotary positions instead of learned ones:
//
//	h = x + C·attention(rope(q), rope(k), v),  (q, k, v) = QKV·layernorm(x)
//	y = h + Out·gelu(In·layernorm(h))
//
// The exact GELU, ε = 1e−5, θ = 10000 and the pairs (j, j + D/2) are those of JinxCodesAI/nano_gpt at commit 1da2900, as is
// the head of a judge. One thing differs. That code gives scaled_dot_product_attention a mask which is true at padding, where
// torch takes true for "attend": given an attention_mask, it attends to the padding and to nothing else, as golden
// models/maskedgpt records. Here padding is not attended to, which is what the code says it does.
//
// nanoGPT's forward without targets returns the logits of the last position only. Here [MaskedNet.Logits] has those of every
// position that it is given.
type MaskedGPT struct {
	Config  MaskedGPTConfig
	tensors []Tensor
	data    map[string][]float64
	ops     maskedOps
}

// maskedOps are the operations that may differ between look-alikes of this model. A test replaces one to plant a fault.
type maskedOps struct {
	ops
	gelu  func(x *ad.Var) *ad.Var
	score func(hidden, w, scale, bias *ad.Var) *ad.Var
	split func(qkv *ad.Var) (q, k, v *ad.Var)
}

// NewMaskedGPT returns the model with the given configuration and weights. It returns an error if the configuration is not
// valid or a weight is missing.
func NewMaskedGPT(c MaskedGPTConfig, w Weights) (*MaskedGPT, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &MaskedGPT{Config: c, tensors: c.Tensors(), ops: maskedOps{ops: standard, gelu: nn.GELU, score: nn.SequenceScore, split: thirds}}
	var err error
	m.data, err = load(w, m.tensors)
	return m, err
}

// A MaskedNet is a [MaskedGPT] on a tape.
type MaskedNet struct {
	*params
	Config MaskedGPTConfig
	ops    maskedOps
}

// On puts the model on a tape. The weights for which weight says so are parameters; nil: none, and the tape keeps nothing of
// a forward pass. Several passes may follow and share the parameters.
func (m *MaskedGPT) On(t *ad.Tape, weight func(name string) bool) *MaskedNet {
	return &MaskedNet{bind(t, m.tensors, m.data, weight), m.Config, m.ops}
}

// Check returns an error that names the first thing in the input that the model cannot take: what [Input.Validate] names, a
// text longer than block_size, a cache.
func (c MaskedGPTConfig) Check(in Input) error {
	if in.Cache != nil {
		return errors.New("model: maskedgpt: every token sees those behind it, so there is no cache")
	}
	if in.Time > c.MaxPositions {
		return fmt.Errorf("model: maskedgpt: %d tokens for a block_size of %d", in.Time, c.MaxPositions)
	}
	return in.Validate(Config{Kind: "maskedgpt", Vocab: c.Vocab})
}

// Forward computes the hidden states of the tokens. Positions count from 0 at the first token of a row, padding or not. It
// panics if the input does not fit, see [MaskedGPTConfig.Check].
func (n *MaskedNet) Forward(in Input) Output {
	if err := n.Config.Check(in); err != nil {
		panic(err.Error())
	}
	pos := in.Positions
	if pos == nil {
		pos = nn.Positions(in.Batch, in.Time, nil, in.Segment)
	}
	mask := n.ops.mask(nn.Visible{Batch: in.Batch, Queries: in.Time, Keys: in.Time, Real: in.Real, Segment: in.Segment})
	x := n.embed(in)
	var out Output
	for i := range n.Config.Layers {
		if in.States {
			out.States = append(out.States, x)
		}
		x = n.block(x, i, pos, mask)
	}
	out.Hidden = n.norm(x, "transformer.ln_f")
	if in.States {
		out.States = append(out.States, out.Hidden)
	}
	return out
}

// embed returns the embeddings of the tokens.
func (n *MaskedNet) embed(in Input) *ad.Var {
	x := nn.Embedding(n.Var("transformer.wte.weight"), in.IDs, in.Batch, in.Time)
	if !n.Config.CLSEmbedding {
		return x
	}
	cls := ad.Mask{Shape: []int{in.Batch, in.Time, 1}, On: make([]bool, len(in.IDs))}
	for i, id := range in.IDs {
		cls.On[i] = id == n.Config.CLS
	}
	return ad.Where(cls, n.Var("cls_embedding"), x)
}

// block applies layer i.
func (n *MaskedNet) block(x *ad.Var, i int, pos []int, mask ad.Mask) *ad.Var {
	c, name := n.Config, fmt.Sprintf("transformer.h.%d.", i)
	d := c.Hidden / c.Heads
	rope := nn.RoPE{Dim: d, Theta: 10000}

	q, k, v := n.ops.split(n.linear(n.norm(x, name+"ln_1"), name+"attn.c_attn"))
	q, k, v = nn.Heads(q, c.Heads), nn.Heads(k, c.Heads), nn.Heads(v, c.Heads)
	q, k = n.ops.rotate(rope, q, pos), n.ops.rotate(rope, k, pos)
	a := nn.Join(n.ops.attention(q, k, v, mask, 1/math.Sqrt(float64(d))))
	x = n.ops.residual(x, n.linear(a, name+"attn.c_proj"))

	h := n.ops.gelu(n.linear(n.norm(x, name+"ln_2"), name+"mlp.c_fc"))
	return n.ops.residual(x, n.linear(h, name+"mlp.c_proj"))
}

// thirds splits the output of c_attn: queries, keys, values.
func thirds(qkv *ad.Var) (q, k, v *ad.Var) {
	s := qkv.Shape()
	c := s[2] / 3
	return ad.Slice(qkv, 2, 0, c), ad.Slice(qkv, 2, c, 2*c), ad.Slice(qkv, 2, 2*c, 3*c)
}

func (n *MaskedNet) linear(x *ad.Var, name string) *ad.Var {
	return n.ops.linear(x, n.Var(name+".weight"), n.bias(name))
}

func (n *MaskedNet) norm(x *ad.Var, name string) *ad.Var {
	return n.ops.layerNorm(x, n.Var(name+".weight"), n.bias(name), 1e-5)
}

// Logits returns the scores [B, T, V] of the tokens that may stand at each position of the hidden states [B, T, C]. Those of
// special tokens are among them. It panics if the model is a judge.
func (n *MaskedNet) Logits(hidden *ad.Var) *ad.Var {
	if n.Config.Mode != LanguageModel {
		panic("model: maskedgpt: logits of a " + string(n.Config.Mode))
	}
	return n.ops.linear(hidden, n.Var("transformer.wte.weight"), nil)
}

// LogProbs returns log p(completion_t | ids) at every position, [B, T]: from the logits at temperature 1 over the whole
// vocabulary, special tokens included. The position that is judged is the position that is filled in: nothing is shifted.
func (n *MaskedNet) LogProbs(in Input, completion []int) *ad.Var {
	return nn.LogProb(n.Logits(n.Forward(in).Hidden), completion)
}

// SequenceLogProb returns for each row the sum over the masked positions of [MaskedNet.LogProbs], [B]:
//
//	S_b = Σ_{t: ids_bt = MASK} log p(completion_bt | ids_b)
//
// It is 0, without a gradient, for a row in which nothing is masked.
func (n *MaskedNet) SequenceLogProb(in Input, completion []int) *ad.Var {
	lp := n.LogProbs(in, completion)
	masked := ad.Mask{Shape: []int{in.Batch, in.Time}, On: make([]bool, len(in.IDs))}
	for i, id := range in.IDs {
		masked.On[i] = id == n.Config.Mask
	}
	return ad.Sum(ad.Where(masked, lp, lp.Tape().Scalar(0)), false, 1)
}

// JudgeInput returns what a judge reads: CLS, then the text. A text that leaves no room for CLS in block_size loses its
// first tokens; CLS stays. It panics unless c is that of a judge and the text has ids for every position.
func (c MaskedGPTConfig) JudgeInput(text Input) Input {
	if c.Mode != SequenceScorer {
		panic("model: maskedgpt: the input of a judge for a " + string(c.Mode))
	}
	if len(text.IDs) != text.Batch*text.Time || text.Real != nil && len(text.Real) != len(text.IDs) || text.Positions != nil || text.Segment != nil {
		panic("model: maskedgpt: a text for a judge is ids and an attention mask")
	}
	first := max(0, text.Time+1-c.MaxPositions)
	in := Input{Batch: text.Batch, Time: 1 + text.Time - first, States: text.States}
	for i := range text.Batch {
		from, to := i*text.Time+first, (i+1)*text.Time
		in.IDs = append(append(in.IDs, c.CLS), text.IDs[from:to]...)
		if text.Real != nil {
			in.Real = append(append(in.Real, true), text.Real[from:to]...)
		}
	}
	return in
}

// Score returns the verdict of a judge on each row of an input that begins with CLS, [B]:
//
//	y = σ(A·⟨w, h⟩ + B)
//
// where h is the hidden state at CLS. The judge was taught the share of a text that is synthetic, so that 1 − y, clamped to
// [0, 1], is the reward. It panics if the model is not a judge or a row begins with another token.
func (n *MaskedNet) Score(in Input) *ad.Var {
	if n.Config.Mode != SequenceScorer {
		panic("model: maskedgpt: the score of a " + string(n.Config.Mode))
	}
	hidden := n.Forward(in).Hidden
	for i := range in.Batch {
		if id := in.IDs[i*in.Time]; id != n.Config.CLS {
			panic(fmt.Sprintf("model: maskedgpt: row %d of a judge's input begins with %d, not with CLS %d", i, id, n.Config.CLS))
		}
	}
	return n.ops.score(hidden, n.Var("sequence_head.base_predictor.weight"), n.Var("sequence_head.A"), n.Var("sequence_head.B"))
}
