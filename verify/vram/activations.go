package vram

import (
	"fmt"
	"slices"

	"plumbline/internal/arch"
)

// kept is what autograd keeps of one token for the backward pass of one layer in transformers@5.23.0: in numbers of the
// width of the weights, hidden·C + inner·I; and in bytes for each element of the attention scores, if attention is eager.
//
// The measured values are those of golden/checkpoint/activations.json: every storage that the forward pass of one layer
// hands to saved_tensors_hooks, parameters excepted.
type kept struct{ hidden, inner, scores float64 }

// frozenKept is by model type and attention what a frozen layer keeps, without what its adapters keep.
var frozenKept = map[string]kept{
	"gptj eager":  {6.26, 4, 6},
	"gpt2 eager":  {5.02, 4, 2},
	"gpt2 sdpa":   {6.05, 4, 0},
	"llama eager": {7.03, 3, 6},
	"llama sdpa":  {7.05, 3, 0},
	"qwen2 eager": {7.03, 3, 6},
	"qwen2 sdpa":  {7.05, 3, 0},
}

// trainedKept is the same for a layer of which every weight is trained: the inputs of its linear layers as well.
var trainedKept = map[string]kept{
	"gptj eager":  {8.26, 5, 6},
	"gpt2 eager":  {8.02, 5, 2},
	"gpt2 sdpa":   {8.05, 5, 0},
	"llama eager": {12.02, 4, 6},
	"llama sdpa":  {11.05, 4, 0},
	"qwen2 eager": {12.02, 4, 6},
	"qwen2 sdpa":  {11.05, 4, 0},
}

// frozenKept32 and trainedKept32 are the same in float32, where norms and scores are not cast: the numbers are those of
// golden/checkpoint/activations_float32.json.
var (
	frozenKept32 = map[string]kept{
		"gptj eager": {4.26, 4, 4}, "gpt2 eager": {5.02, 4, 4}, "gpt2 sdpa": {6.03, 4, 0},
		"llama eager": {5.01, 3, 4}, "llama sdpa": {5.03, 3, 0}, "qwen2 eager": {5.01, 3, 4}, "qwen2 sdpa": {5.03, 3, 0},
	}
	trainedKept32 = map[string]kept{
		"gptj eager": {6.26, 5, 4}, "gpt2 eager": {8.02, 5, 4}, "gpt2 sdpa": {8.03, 5, 0},
		"llama eager": {10.01, 4, 4}, "llama sdpa": {9.03, 4, 0}, "qwen2 eager": {10.01, 4, 4}, "qwen2 sdpa": {9.03, 4, 0},
	}
)

// plannedKept is the estimate of systems.md, A.6, for GPT-J, where I = 4·C: 19 numbers of C, two adapters on C inputs among
// them, and three float32 copies of the scores. It has less of the one and more of the other than what transformers keeps
// without dropout.
var plannedKept = map[string]kept{"gptj eager": {3, 4, 12}}

// adapters returns the bytes that the adapters of one layer keep of one token: PEFT casts the input of each to float32 and
// autograd keeps that copy, and A·x of r numbers (peft@0.21.2 tuners/lora/layer.py _cast_input_dtype).
func (s *Setup) adapters() float64 {
	var n float64
	seen := map[string]bool{}
	for _, l := range s.Model.Adaptable() {
		if !slices.Contains(s.Targets, l.Last()) {
			continue
		}
		n += float64(s.Rank)
		if input := s.input(l); s.width() < 4 || input != "" && !seen[input] {
			seen[input] = true
			n += float64(l.In)
		}
	}
	return 4 * n
}

// input names what a layer reads. In float32 nothing is cast, and adapters that read one tensor keep it once; the output of sdpa is kept
// as it is: "" for that.
func (s *Setup) input(l arch.Module) string {
	switch l.Role {
	case arch.Query, arch.Key, arch.Value, arch.QKV:
		return "attention"
	case arch.Output:
		if !s.eager() {
			return ""
		}
	case arch.Gate, arch.Up, arch.GateUp:
		if s.kind() == "gptj" { // attention and MLP read the same norm
			return "attention"
		}
		return "mlp"
	}
	return string(l.Role)
}

// spread widens the range of an estimate beyond what was measured without dropout, whose masks are kept as well.
const spread = 0.1

// layer returns the bytes that autograd keeps of one layer, where adapters keep so many bytes of a token.
func (k kept) layer(s *Setup, adapters float64) float64 {
	m, b, t := s.Model, float64(s.Batch), float64(s.Seq)
	tokens := b * t * ((k.hidden*float64(m.Hidden)+k.inner*float64(m.Inner))*s.width() + adapters)
	return tokens + k.scores*b*float64(m.Heads)*t*t
}

func (k kept) formula(s *Setup, adapters float64) string {
	text := fmt.Sprintf("%d·%d tokens · (%g·%d + %g·%d) · %g B", s.Batch, s.Seq, k.hidden, s.Model.Hidden, k.inner, s.Model.Inner, s.width())
	if adapters > 0 {
		text = fmt.Sprintf("%d·%d tokens · ((%g·%d + %g·%d) · %g B + %s B of adapters' inputs in float32)", s.Batch, s.Seq, k.hidden, s.Model.Hidden, k.inner, s.Model.Inner, s.width(), num(adapters))
	}
	if k.scores > 0 {
		text += fmt.Sprintf(" + scores %d·%d·%d² · %g B", s.Batch, s.Model.Heads, s.Seq, k.scores)
	}
	return text
}

// autograd adds the activations and the logits of the HF stack.
func (p *Plan) autograd() {
	s := &p.Setup
	if s.Autocast != "" {
		layer, formula := s.mixedLayer()
		p.layers(layer, layer*(1-spread), layer*(1+spread), formula)
		p.mixedCasts()
		p.logits()
		return
	}
	m := s.Model
	name := s.kind() + " sdpa"
	if s.eager() {
		name = s.kind() + " eager"
	}
	measured, adapters := frozenKept[name], s.adapters()
	switch {
	case s.Rank == 0 && s.width() == 4:
		measured = trainedKept32[name]
	case s.Rank == 0:
		measured = trainedKept[name]
	case s.width() == 4:
		measured = frozenKept32[name]
	}
	k, inputs := measured, adapters
	if planned, ok := plannedKept[name]; ok && s.Rank > 0 && s.width() < 4 {
		k, inputs = planned, max(0, adapters-2*4*float64(m.Hidden+s.Rank))
	}
	layer, other := k.layer(s, inputs), measured.layer(s, adapters)
	p.layers(layer, min(layer, other)*(1-spread), max(layer, other)*(1+spread), k.formula(s, inputs))
	p.logits()
}

// layers adds what autograd keeps of all layers, of which each keeps so many bytes: with checkpointing their inputs and one layer.
func (p *Plan) layers(layer, low, high float64, formula string) {
	s, m := &p.Setup, p.Setup.Model
	n := float64(m.Layers)
	if s.Checkpointing {
		stored := n * float64(s.Batch) * float64(s.Seq) * float64(m.Hidden) * s.width()
		p.exact(Activations, update, stored, "the inputs of %d layers: %d·%d tokens · %d · %g B each", m.Layers, s.Batch, s.Seq, m.Hidden, s.width())
		p.estimate(LiveBlock, update, layer, low, high, "an estimate: %s", formula)
	} else {
		p.estimate(Activations, update, n*layer, n*low, n*high, "an estimate: %d layers · (%s)", m.Layers, formula)
	}
}

// logits adds what the head computes: log-probabilities of every token, or a value of each.
func (p *Plan) logits() {
	s, m := &p.Setup, p.Setup.Model
	tokens := float64(s.Batch) * float64(s.Seq)
	if s.valueHead {
		p.exact(Values, update, tokens*12, "%s tokens · 3 · 4 B (float32)", num(tokens))
		return
	}
	if s.Head != "" {
		p.fusedHead()
		return
	}
	if s.Chunk > 0 {
		tokens = min(tokens, float64(s.Chunk))
	}
	v := float64(m.Vocab)
	p.estimate(Logits, update, tokens*v*12, tokens*v*8, tokens*v*14, "%s tokens · %d · 3 · 4 B (float32)", num(tokens), m.Vocab)
}

// The tiles of logits that TRL's fused head computes at a time: so many tokens, so many rows of the vocabulary (trl@1.16.0
// kernels/chunked_logprob.py TOKEN_CHUNK_SIZE, trainer/utils.py _CHUNKED_LOGPROB_CHUNK_SIZE).
const (
	fusedTokens = 4096
	fusedRows   = 32768
)

// fusedHead adds what TRL's GRPO and RLOO hold of the logits: of every position but the last, one tile of 32768 columns in the type of the
// weights, overwritten by its gradient, the gradient of the hidden states in float32 and its copy in their type, the hidden states, and, where
// the head is trained, its gradient in float32 (trl@1.16.0 kernels/chunked_logprob.py ChunkedLogProbFunction). Without Triton, as on the
// CPU, the backward pass of a tile is made of torch's operations, which hold seven copies of the columns that there are in float32 and a
// mask of one byte: what the profiler shows at the peak (golden/checkpoint/grpo.json).
func (p *Plan) fusedHead() {
	s, m := &p.Setup, p.Setup.Model
	n := float64(s.Batch) * max(1, float64(s.Seq)-1)
	rows := min(n, fusedTokens)
	tile := rows * fusedRows * s.width()
	text := fmt.Sprintf("a tile of %s·%d · %g B + %s positions · %d · (4 + 2·%g) B", num(rows), fusedRows, s.width(), num(n), m.Hidden, s.width())
	if s.Head == FusedTorch {
		tile += rows * min(float64(m.Vocab), fusedRows) * (7*4 + 1)
		text += fmt.Sprintf(" + %s·%d · (7·4 + 1) B", num(rows), min(m.Vocab, fusedRows))
	}
	hidden := n * float64(m.Hidden) * (4 + 2*s.width())
	head := 0.0
	if s.Rank == 0 {
		head = float64(m.Vocab) * float64(m.Hidden) * 4
		text += fmt.Sprintf(" + gradient of the head %d·%d · 4 B", m.Vocab, m.Hidden)
	}
	sum := tile + hidden + head
	p.estimate(Logits, update, sum, sum, sum+rows*fusedRows*4, "%s", text)
}

// alive is what is alive at once while a prompt is read without gradients: of each token, in numbers of 16 bits, the larger
// of hidden·C + inner·I in the MLP and hidden·C in the attention, where eager attention adds bytes for each score. Eager
// attention has masks of 10 bytes for each pair of tokens as well. The figures are those that
// golden/checkpoint/prompt.json was counted to, within 10 %.
var alive = map[string]kept{"gptj": {6, 4, 12}, "gpt2": {6, 4, 4}, "llama": {5, 3, 9}, "qwen2": {5, 3, 9}}

// aliveSpread is the range of that estimate.
const aliveSpread = 0.15

// promptPass adds the pass over the prompts of a rollout.
func (p *Plan) promptPass() {
	s := &p.Setup
	b, t := float64(s.rollout()), float64(s.Seq-s.MaxNew)
	if s.Stack == Plumbline {
		each := s.blockValues()
		p.exact(PromptPass, rollout, b*t*each*2, "%g·%g tokens · %s · 2 B, one block at a time", b, t, num(each))
		return
	}
	live, formula := s.pass(b, t)
	p.estimate(PromptPass, rollout, live, live*(1-aliveSpread), live*(1+aliveSpread), "an estimate: %s", formula)
}

// pass returns what is alive at once while the HF stack reads b sequences of t tokens without gradients, and its formula.
func (s *Setup) pass(b, t float64) (float64, string) {
	if s.Autocast != "" {
		return s.mixedPrompt(b, t)
	}
	m, w, a := s.Model, s.width(), alive[s.kind()]
	live := b * t * (a.hidden*float64(m.Hidden) + a.inner*float64(m.Inner)) * w
	formula := fmt.Sprintf("%g·%g tokens · (%g·%d + %g·%d) · %g B", b, t, a.hidden, m.Hidden, a.inner, m.Inner, w)
	if s.eager() {
		if scores := b*t*a.hidden*float64(m.Hidden)*w + a.scores*b*float64(m.Heads)*t*t; scores > live {
			live = scores
			formula = fmt.Sprintf("%g·%g tokens · %g·%d · %g B + scores %g·%d·%g² · %g B", b, t, a.hidden, m.Hidden, w, b, m.Heads, t, a.scores)
		}
		live += 10 * b * t * t
		formula += fmt.Sprintf(" + masks %g·%g² · 10 B", b, t)
	}
	return live, formula
}

// blockValues returns how many numbers of 16 bits one block of the plumbline stack holds of each token: its input, the
// norm's output, q, k, v, the attention's output and the two sides of the activation function; where attention and MLP are
// one behind the other, the sum between them and its norm as well; and a gated MLP its second projection.
func (s *Setup) blockValues() float64 {
	m := s.Model
	d, q, kv, inner := float64(m.Hidden), float64(m.Heads*m.HeadDim), float64(m.KVHeads*m.HeadDim), float64(m.Inner)
	each := 2*d + 2*q + 2*kv + 2*inner
	if s.kind() != "gptj" {
		each += 2 * d
	}
	if s.kind() == "llama" || s.kind() == "qwen2" {
		each += inner
	}
	return each
}

// buffers adds the activations and the logits of the plumbline stack. One block has as much again for its gradients.
func (p *Plan) buffers() {
	s, m := &p.Setup, p.Setup.Model
	tokens, d := float64(s.Batch)*float64(s.Seq), float64(m.Hidden)
	each := s.blockValues()
	block := tokens * each * 2
	n := float64(m.Layers)
	if s.Checkpointing {
		p.exact(Activations, update, n*tokens*d*2, "the inputs of %d layers: %s tokens · %d · 2 B each", m.Layers, num(tokens), m.Hidden)
		p.exact(LiveBlock, update, 2*block, "values and gradients: 2 · %s tokens · %s · 2 B", num(tokens), num(each))
	} else {
		p.exact(Activations, update, n*block, "%d layers · %s tokens · %s · 2 B", m.Layers, num(tokens), num(each))
		p.exact(LiveBlock, update, block, "gradients: %s tokens · %s · 2 B", num(tokens), num(each))
	}
	chunk := 256.0
	if s.Chunk > 0 {
		chunk = float64(s.Chunk)
	}
	chunk = min(chunk, tokens)
	p.exact(Logits, update, chunk*float64(m.Vocab)*4, "%s tokens · %d · 4 B, overwritten by their gradient", num(chunk), m.Vocab)
}
