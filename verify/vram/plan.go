package vram

import (
	"fmt"
	"strconv"
	"strings"
)

// Phase is a part of a training step. What is allocated in one of them is free in the other.
type Phase int

// The phases.
const (
	Update  Phase = iota // forward and backward pass over a batch, and the optimiser
	Rollout              // generation
)

// Phases lists them.
var Phases = []Phase{Rollout, Update}

// String returns the name of p.
func (p Phase) String() string { return [...]string{"update", "rollout"}[p] }

// Item is memory for one purpose.
type Item struct {
	Name      string
	Formula   string // with the numbers of this run
	Bytes     float64
	Low, High float64 // the range of an estimate; equal to Bytes where the formula is exact
	In        [2]bool // by phase: whether it is held
}

// Plan is what a run needs.
type Plan struct {
	Setup Setup
	Items []Item
}

// Total is the sum of one phase with its range, in bytes.
type Total struct{ Bytes, Low, High float64 }

// Total adds up the items of a phase.
func (p *Plan) Total(phase Phase) (t Total) {
	for _, i := range p.Items {
		if i.In[phase] {
			t.Bytes, t.Low, t.High = t.Bytes+i.Bytes, t.Low+i.Low, t.High+i.High
		}
	}
	return t
}

// Peak returns the phase that needs more, and how much.
func (p *Plan) Peak() (Phase, Total) {
	u, r := p.Total(Update), p.Total(Rollout)
	if r.Bytes > u.Bytes {
		return Rollout, r
	}
	return Update, u
}

// Item returns the item of that name, the zero Item if there is none.
func (p *Plan) Item(name string) Item {
	for _, i := range p.Items {
		if i.Name == name {
			return i
		}
	}
	return Item{}
}

// Names of items that a test or a check asks for.
const (
	LinearWeights  = "linear weights"
	Scales         = "scales of the rows"
	OtherWeights   = "embeddings, head, norms, biases"
	ReferenceModel = "reference model, a copy of the base"
	AdapterWeights = "adapter weights"
	Gradients      = "gradients"
	OptimiserState = "optimiser state"
	Activations    = "activations"
	LiveBlock      = "one live block"
	Casts          = "casts of weights"
	RolloutCasts   = "casts of weights in the rollout"
	Logits         = "logits, log-softmax, gradient"
	KVCache        = "KV cache"
	PromptPass     = "prompt pass"
	LastLogits     = "logits of the last position"
	Engine         = "vLLM beside the trainer"
	Workspace      = "context and workspace"
)

var (
	both    = [2]bool{true, true}
	update  = [2]bool{Update: true}
	rollout = [2]bool{Rollout: true}
)

// The workspace of the CUDA context, of cuBLAS and of the caching allocator's fragments is an estimate for both stacks.
const (
	workspace     = 0.6e9
	workspaceLow  = 0.4e9
	workspaceHigh = 1.2e9
)

// New plans s, which must be valid.
func New(s Setup) *Plan {
	p := &Plan{Setup: s}
	if s.host() {
		p.newHost()
		return p
	}
	p.weights()
	p.trained()
	if s.Stack == HF {
		p.autograd()
	} else {
		p.buffers()
	}
	p.generation()
	p.companions()
	p.estimate(Workspace, both, workspace, workspaceLow, workspaceHigh, "an estimate: CUDA context, cuBLAS, fragments of the allocator")
	return p
}

// exact adds an item that the formula gives.
func (p *Plan) exact(name string, in [2]bool, bytes float64, formula string, args ...any) {
	p.estimate(name, in, bytes, bytes, bytes, formula, args...)
}

func (p *Plan) estimate(name string, in [2]bool, bytes, low, high float64, formula string, args ...any) {
	p.Items = append(p.Items, Item{Name: name, Formula: fmt.Sprintf(formula, args...), Bytes: bytes, Low: low, High: high, In: in})
}

// weights adds the base model, twice if the reference is a copy.
func (p *Plan) weights() {
	s, c := &p.Setup, p.Setup.counts()
	w := s.width()
	var base float64
	add := func(name string, bytes float64, formula string, args ...any) {
		base += bytes
		p.exact(name, both, bytes, formula, args...)
	}
	switch {
	case s.NF4:
		blocks := c.linear / 64
		add(LinearWeights, c.linear/2, "%s weights of %d layers · ½ B (nf4)", num(c.linear), s.Model.Layers)
		add(Scales, 4*blocks, "%s blocks of 64 · 4 B", num(blocks))
	case s.Int8:
		add(LinearWeights, c.linear, "%s weights of %d layers · 1 B (int8)", num(c.linear), s.Model.Layers)
		add(Scales, 4*c.rows, "%s rows · 4 B", num(c.rows))
	default:
		add(LinearWeights, c.linear*w, "%s weights of %d layers · %g B (%s)", num(c.linear), s.Model.Layers, w, s.dtype())
	}
	if s.Int8 && s.Stack == Plumbline {
		small := c.rest - c.matrices
		add(OtherWeights, c.matrices+4*c.lines+4*small, "%s of embedding and head · 1 B (int8), %s rows · 4 B, %s of norms and biases · 4 B", num(c.matrices), num(c.lines), num(small))
	} else {
		add(OtherWeights, c.rest*w, "%s numbers · %g B (%s)", num(c.rest), w, s.dtype())
	}
	if s.Copy {
		p.exact(ReferenceModel, both, base, "the base once more: %s", Size(base))
	}
}

// Base returns the bytes of one copy of the base model.
func (p *Plan) Base() float64 {
	return p.Item(LinearWeights).Bytes + p.Item(Scales).Bytes + p.Item(OtherWeights).Bytes
}

// trained adds what belongs to the trained numbers. An adapter is float32, whatever the base is: PEFT casts it
// (autocast_adapter_dtype), and its moments and gradients have its type. Optimiser and adapter stay during the rollout;
// gradients are dropped after the step (zero_grad with set_to_none).
func (p *Plan) trained() {
	s, c := &p.Setup, p.Setup.counts()
	n, w := s.AdapterParameters(), 4.0
	what := fmt.Sprintf("%s numbers of rank %d on %s", num(n), s.Rank, strings.Join(s.Targets, ", "))
	if s.Rank == 0 {
		n, w = c.linear+c.rest, s.width()
		what = num(n) + " numbers"
	} else {
		if s.valueHead { // trained beside the adapter, as a copy
			n += float64(s.Model.Hidden)
			what = fmt.Sprintf("%s numbers of rank %d on %s, the value head among them", num(n), s.Rank, strings.Join(s.Targets, ", "))
		}
		p.exact(AdapterWeights, both, w*n, "%s · %g B", what, w)
	}
	p.exact(Gradients, update, w*n, "%s · %g B", what, w)
	switch s.Optimiser {
	case "sgd":
	case "adamw8bit":
		per := 2 + 2*4.0/256
		p.exact(OptimiserState, both, per*n, "%s · 2 B, and 2 maxima of 4 B for every 256", what)
	default:
		p.exact(OptimiserState, both, 2*w*n, "%s · 2 moments · %g B", what, w)
	}
}

// generation adds what the rollout holds: the cache of all tokens, the pass over the prompt without gradients, and the
// logits of one position (transformers computes no others).
func (p *Plan) generation() {
	s, m := &p.Setup, p.Setup.Model
	b, t := float64(s.rollout()), float64(s.Seq)
	cached := s.cacheWidth()
	if s.VLLM > 0 { // it has weights and a cache of its own, and takes its share when it starts
		p.exact(Engine, both, s.VLLM*s.Bytes, "gpu_memory_utilization %g · %s", s.VLLM, Size(s.Bytes))
		return
	}
	kv := 2 * float64(m.Layers) * float64(m.KVHeads) * float64(m.HeadDim)
	if s.KVInt8 {
		scales := 2 * float64(m.Layers) * float64(m.KVHeads) * 4
		p.exact(KVCache, rollout, b*t*(kv+scales), "2·%d·%d·%d · 1 B + 2·%d·%d scales · 4 B = %s B a token · %g sequences · %g tokens", m.Layers, m.KVHeads, m.HeadDim, m.Layers, m.KVHeads, num(kv+scales), b, t)
	} else {
		p.exact(KVCache, rollout, b*t*kv*cached, "2·%d·%d·%d · %g B = %s B a token · %g sequences · %g tokens", m.Layers, m.KVHeads, m.HeadDim, cached, num(kv*cached), b, t)
	}
	p.promptPass()
	p.exact(LastLogits, rollout, b*float64(m.Vocab)*8, "%g·%d · 2 · 4 B (logits and probabilities)", b, m.Vocab)
}

// num writes a whole number with commas.
func num(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Size writes bytes in GB and GiB.
func Size(bytes float64) string {
	if bytes < 1e8 {
		return fmt.Sprintf("%.2f MB (%.2f MiB)", bytes/1e6, bytes/(1<<20))
	}
	return fmt.Sprintf("%.2f GB (%.2f GiB)", bytes/1e9, bytes/(1<<30))
}
