package vram

import (
	"fmt"
	"slices"
)

// UnmeasuredError is a Setup that can be run and whose memory nobody has measured: it is not planned.
type UnmeasuredError struct{ msg string }

func (e *UnmeasuredError) Error() string { return e.msg }

// Autocasts are the types that torch.autocast computes in.
var Autocasts = []string{"bfloat16", "float16"}

// validateAutocast refuses what autocast is not for, and what was not measured under it.
func (s *Setup) validateAutocast() error {
	unmeasured := func(what string) error {
		return &UnmeasuredError{fmt.Sprintf("--autocast %s was measured on float32 weights with logits all at once, not %s", s.Autocast, what)}
	}
	switch {
	case s.Autocast == "":
	case !slices.Contains(Autocasts, s.Autocast):
		return usage("--autocast %q: want bfloat16 or float16%s", s.Autocast, near(s.Autocast, "bfloat16", "float16"))
	case s.Stack != HF:
		return usage("--autocast: the plumbline stack has none")
	case s.Int8 || s.NF4:
		return unmeasured("on quantised ones")
	case s.width() != 4:
		return unmeasured("on " + s.dtype())
	case s.Head != "":
		return unmeasured("with --head " + s.Head)
	case s.KVInt8:
		return unmeasured("with --kv int8")
	}
	return nil
}

// mixed is what autograd keeps of one token for the backward pass of one layer of float32 weights under autocast, in bytes:
// hidden·C + kv·(width of keys) + inner·I + rows, 4 for each head with sdpa, whose rows have their log-sum in float32, and bytes
// for each element of the attention scores with eager. Casts of weights and what adapters keep come on top.
//
// By the rules of a device in transformers@5.23.0, whose autocast computes softmax and pow in float32: each entry of
// golden/checkpoint/activations_autocast.json is met within 1 %.
type mixed struct{ hidden, kv, inner, rows, scores float64 }

var frozenMixed = map[string]mixed{
	"gptj eager":  {10, 0, 14, 8, 6},
	"gpt2 eager":  {14, 0, 14, 16, 6},
	"gpt2 sdpa":   {16, 0, 14, 16, 0},
	"llama eager": {14, 0, 6, 8, 6},
	"llama sdpa":  {12, 4, 6, 8, 0},
}

var trainedMixed = map[string]mixed{
	"gptj eager":  {20, 0, 16, 8, 6},
	"gpt2 eager":  {20, 0, 16, 16, 6},
	"gpt2 sdpa":   {20, 0, 16, 16, 0},
	"llama eager": {34, 0, 8, 8, 6},
	"llama sdpa":  {30, 4, 8, 8, 0},
}

// mixedKind is the key of these maps: Qwen2 keeps what Llama keeps.
func (s *Setup) mixedKind() string {
	if s.kind() == "qwen2" {
		return "llama"
	}
	return s.kind()
}

// mixedLayer returns the bytes that one layer keeps under autocast beside casts of weights, and their formula. An adapter casts
// its input once more, and keeps that and A·x in 2 bytes each.
func (s *Setup) mixedLayer() (float64, string) {
	m, b, t := s.Model, float64(s.Batch), float64(s.Seq)
	name, table := s.mixedKind()+" sdpa", trainedMixed
	if s.eager() {
		name = s.mixedKind() + " eager"
	}
	if s.Rank > 0 {
		table = frozenMixed
	}
	k := table[name]
	rows := k.rows
	if !s.eager() {
		rows += 4 * float64(m.Heads)
	}
	var adapters float64
	for _, l := range m.Adaptable() {
		if slices.Contains(s.Targets, l.Last()) {
			adapters += 2 * float64(l.In+s.Rank)
		}
	}
	kv := float64(m.KVHeads * m.HeadDim)
	text := fmt.Sprintf("%d·%d tokens · (%g·%d + %g·%g + %g·%d + %g B)", s.Batch, s.Seq, k.hidden, m.Hidden, k.kv, kv, k.inner, m.Inner, rows+adapters)
	if k.scores > 0 {
		text += fmt.Sprintf(" + scores %d·%d·%d² · %g B", s.Batch, m.Heads, s.Seq, k.scores)
	}
	return b*t*(k.hidden*float64(m.Hidden)+k.kv*kv+k.inner*float64(m.Inner)+rows+adapters) + k.scores*b*float64(m.Heads)*t*t, text
}

// mixedCasts adds the copies of weights in 2 bytes that autocast makes. Those of weights that are trained stay until the forward
// pass is over, and autograd keeps each that a gradient passes through, frozen or not, until the backward pass has been there. With
// checkpointing the casts of one layer are made again. Biases, which are cast as well, are left out.
func (p *Plan) mixedCasts() {
	s, c := &p.Setup, p.Setup.counts()
	n := float64(s.Model.Layers)
	head := 2 * float64(s.Model.Vocab) * float64(s.Model.Hidden)
	if s.valueHead {
		head = 2 * float64(s.Model.Hidden)
	}
	adapters := 2 * s.AdapterParameters()
	all, one := 2*c.linear+head, 2*c.linear/n+head
	held, low := all, all-2*c.linear/n
	text := fmt.Sprintf("%s weights of %d layers · 2 B + head %s B", num(c.linear), s.Model.Layers, num(head))
	whole := text
	switch {
	case s.Checkpointing && s.Rank > 0:
		held, low, text = one, head, fmt.Sprintf("%s weights of one layer · 2 B + head %s B", num(c.linear/n), num(head))
	case s.Checkpointing:
		low = one
	}
	if adapters > 0 {
		text += fmt.Sprintf(" + adapter %s B", num(adapters))
	}
	p.estimate(Casts, update, held+adapters, low+adapters, held+adapters, "%s (%s)", text, s.Autocast)

	largest := 2 * float64(s.Model.Hidden) * float64(s.Model.Inner)
	if s.Rank > 0 { // one at a time, and those of the adapter
		largest = max(largest, head)
		p.estimate(RolloutCasts, rollout, largest+adapters, adapters, largest+adapters, "the largest weight, %s B, and adapter %s B (%s)", num(largest), num(adapters), s.Autocast)
		return
	}
	p.estimate(RolloutCasts, rollout, all, all-largest, all, "%s (%s)", whole, s.Autocast)
}

// mixedAlive is what is alive at once while a prompt is read under autocast without gradients, in bytes: of each token in the MLP
// hidden·C + inner·I, and of each pair of tokens and head scores; in the attention hidden·C and scores. Fitted to
// golden/checkpoint/prompt_autocast.json.
var mixedAlive = map[string][2]kept{
	"gptj eager":  {{14, 12, 4}, {33, 0, 10}},
	"gpt2 eager":  {{20, 12, 2}, {20, 0, 8}},
	"gpt2 sdpa":   {{20, 12, 0}, {20, 0, 0}},
	"llama eager": {{17, 6, 4}, {26, 0, 8}},
	"llama sdpa":  {{17, 6, 0}, {29, 0, 0}},
}

// mixedPrompt returns what is alive at once while b sequences of t tokens are read under autocast, and its formula.
func (s *Setup) mixedPrompt(b, t float64) (float64, string) {
	m, name, mask := s.Model, s.mixedKind()+" sdpa", 0.0
	if s.eager() {
		name, mask = s.mixedKind()+" eager", 4
	}
	var live float64
	var text string
	for _, a := range mixedAlive[name] {
		bytes := b*t*(a.hidden*float64(m.Hidden)+a.inner*float64(m.Inner)) + b*t*t*(a.scores*float64(m.Heads)+mask)
		if bytes > live {
			live, text = bytes, fmt.Sprintf("%g·%g tokens · (%g·%d + %g·%d) B", b, t, a.hidden, m.Hidden, a.inner, m.Inner)
			if mask > 0 {
				text += fmt.Sprintf(" + scores and masks %g·%g² · (%g·%d + %g) B", b, t, a.scores, m.Heads, mask)
			}
		}
	}
	return live, text
}

// cacheWidth is the bytes of an element of the KV cache: under autocast the rotated keys of Llama and Qwen2 are float32 again, and the
// cache has their type; the projections of GPT-2 and GPT-J go into it as they are (golden/checkpoint/activations_autocast.json).
func (s *Setup) cacheWidth() float64 {
	if s.Autocast != "" && s.mixedKind() != "llama" {
		return 2
	}
	return s.width()
}
