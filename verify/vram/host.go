package vram

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/arch"
)

// Policies are what computes in the plumbline stack, as train --policy names it: float64 on the tape, kernels on the processor in the modes of
// the base, and the same kernels on a device.
var Policies = []string{Reference, "accel", "accel:w8a16", "accel:w8a8", "accel:llm.int8", "accel:bf16", "accel:f32", OnDevice}

// Names of policies.
const (
	Reference = "reference"
	OnDevice  = "cuda"
)

// policy is the one that a run has if none is named: the kernels where an adapter is trained, which is all that they train, else the reference.
func (s *Setup) policy() string {
	switch {
	case s.Policy == "" && s.Rank == 0:
		return Reference
	case s.Policy == "" || s.Policy == "accel":
		return "accel:w8a16"
	}
	return s.Policy
}

// host reports whether the plan is of memory of the host.
func (s *Setup) host() bool { return s.Stack == Plumbline && s.policy() != OnDevice }

// Names of items of a plan of the host.
const (
	TapeOfTrained = "trained numbers on the tape"
	Packed        = "packed operands"
	States        = "states of the scored tokens"
	Garbage       = "garbage between collections"
	Program       = "program and runtime"
)

// The runtime of Go and the program itself: stacks, tables, code, the files that are read. An estimate.
const (
	program     = 30e6
	programLow  = 15e6
	programHigh = 60e6
)

// Constants of accel/model: tokens and rows of the vocabulary in a block of logits, and how many logits are kept for the way back.
const (
	headTokens = 256
	headVocab  = 1024
	keptLogits = 1 << 26
)

// newHost plans a run on the processor.
func (p *Plan) newHost() {
	live := func() (t [2]float64) {
		for i, phase := range []Phase{Update, Rollout} {
			t[i] = p.Total(phase).Bytes
		}
		return t
	}
	part, how := 0.2, "GOGC=10 of train on the kernels, and a tenth that the runtime gives back late"
	if p.Setup.policy() == Reference {
		p.tape()
		part, how = 1, "GOGC=100"
	} else {
		p.kernels()
	}
	t := live()
	for i, phase := range []Phase{Update, Rollout} {
		in := [2]bool{}
		in[phase] = true
		p.estimate(Garbage, in, part*t[i]/2, 0, part*t[i], "an estimate: between 0 and %g of what is alive, %s bytes (%s)", part, num(t[i]), how)
	}
	p.estimate(Program, both, program, programLow, programHigh, "an estimate: code, stacks and tables of the runtime")
}

// kernels adds what internal/bind and accel/model allocate.
func (p *Plan) kernels() {
	s, m, c := &p.Setup, p.Setup.Model, count(p.Setup.Model)
	mode := strings.TrimPrefix(s.policy(), "accel:")
	small := c.rest - c.matrices
	switch mode {
	case "f32":
		p.exact(LinearWeights, both, 4*c.linear, "%s weights of %d layers · 4 B (float32)", num(c.linear), m.Layers)
		p.exact(OtherWeights, both, 4*c.rest, "%s numbers · 4 B (float32)", num(c.rest))
	case "bf16":
		p.exact(LinearWeights, both, 2*c.linear, "%s weights of %d layers · 2 B (bfloat16)", num(c.linear), m.Layers)
		p.exact(OtherWeights, both, 2*c.matrices+4*small, "%s of embedding and head · 2 B (bfloat16), %s of norms and biases · 4 B", num(c.matrices), num(small))
	default:
		p.exact(LinearWeights, both, c.linear, "%s weights of %d layers · 1 B (int8)", num(c.linear), m.Layers)
		p.exact(Scales, both, 4*c.rows, "%s rows · 4 B", num(c.rows))
		p.exact(OtherWeights, both, c.matrices+4*c.lines+4*small, "%s of embedding and head · 1 B (int8), %s rows · 4 B, %s of norms and biases · 4 B", num(c.matrices), num(c.lines), num(small))
	}
	if s.Copy {
		base := p.Base()
		p.exact(ReferenceModel, both, base, "the base once more: %s", Size(base))
	}
	n := s.AdapterParameters()
	what := fmt.Sprintf("%s numbers of rank %d on %s", num(n), s.Rank, strings.Join(s.Targets, ", "))
	p.exact(AdapterWeights, both, 12*n, "%s · (8 B of masters + 4 B for the kernels)", what)
	p.exact(Gradients, both, 12*n, "%s · (8 B + 4 B of the kernels)", what)
	p.moments(n, what)

	d, q, kv, inner := float64(m.Hidden), float64(m.Heads*m.HeadDim), float64(m.KVHeads*m.HeadDim), float64(m.Inner)
	_, beside := m.Module(arch.MLPNorm, 0)
	_, gated := m.Module(arch.Gate, 0)
	block := 2*q + 2*kv + inner // queries, keys, values, what attention gives, and the MLP's first layer
	text := fmt.Sprintf("2·%g + 2·%g + %g", q, kv, inner)
	if gated {
		block, text = block+inner, text+fmt.Sprintf(" + %g of the gate", inner)
	}
	if beside {
		block, text = block+d, text+fmt.Sprintf(" + %g between attention and MLP", d)
	}
	tokens, layers := float64(s.Batch)*float64(s.Seq), float64(m.Layers)
	if s.Checkpointing {
		p.exact(Activations, update, layers*tokens*d*4, "the inputs of %d layers: %s tokens · %g · 4 B each", m.Layers, num(tokens), d)
		p.exact(LiveBlock, update, tokens*(block+6*d+2*inner+q+2*kv)*4, "one layer computed again, and its gradients: %s tokens · (%s + 6·%g + 2·%g + %g + 2·%g) · 4 B", num(tokens), text, d, inner, q, kv)
	} else {
		p.exact(Activations, update, layers*tokens*(d+block)*4, "%d layers · %s tokens · (%g + %s) · 4 B", m.Layers, num(tokens), d, text)
		p.exact(LiveBlock, update, tokens*(6*d+inner+q+2*kv)*4, "gradients: %s tokens · (6·%g + %g + %g + 2·%g) · 4 B", num(tokens), d, inner, q, kv)
	}
	p.exact(States, update, tokens*d*12, "of %s tokens, with their gradients: 3 · %g · 4 B", num(tokens), d)
	packed := tokens * max(inner, d, q) * 4
	p.estimate(Packed, update, 2*packed, packed, 4*packed, "an estimate: 2 · %s tokens · %g · 4 B, the widest operand of a product in a pool of the workers", num(tokens), max(inner, d, q))
	v, kept := float64(m.Vocab), 0.0
	if !s.Checkpointing {
		kept = min(tokens, math.Floor(keptLogits/v/headTokens)*headTokens)
	}
	p.exact(Logits, update, (kept*v+min(tokens, headTokens)*min(v, headVocab))*4, "of %s tokens · %d · 4 B, kept for the way back and overwritten by their gradient, and a block of %d × %d", num(kept), m.Vocab, headTokens, headVocab)

	rows, prompt := float64(s.rollout()), float64(s.rollout())*float64(s.Seq-s.MaxNew)
	p.exact(KVCache, rollout, rows*float64(s.Seq)*2*layers*kv*4, "2·%d·%g · 4 B a token · %g sequences · %d tokens", m.Layers, kv, rows, s.Seq)
	p.exact(PromptPass, rollout, prompt*(block+6*d+inner)*4, "%s tokens · (%s + 6·%g + %g) · 4 B, one layer at a time", num(prompt), text, d, inner)
	p.exact(LastLogits, rollout, (4*rows+8)*v, "(%g sequences · 4 B + 8 B) · %d", rows, m.Vocab)
}

// moments adds the state of the optimiser of internal/train: two of float64, or of 8 bits.
func (p *Plan) moments(n float64, what string) {
	switch p.Setup.Optimiser {
	case "sgd":
	case "adamw8bit":
		per := 2 + 2*4.0/256
		p.exact(OptimiserState, both, per*n, "%s · 2 B, and 2 maxima of 4 B for every 256", what)
	default:
		p.exact(OptimiserState, both, 16*n, "%s · 2 moments · 8 B", what)
	}
}

// tape adds what the reference allocates: numbers of float64, and on the tape a value and a gradient of each that is computed. Those of a layer are
// counted as the reads of its products, twice: an estimate.
func (p *Plan) tape() {
	s, m, c := &p.Setup, p.Setup.Model, count(p.Setup.Model)
	p.exact(LinearWeights, both, 8*c.linear, "%s weights of %d layers · 8 B (float64)", num(c.linear), m.Layers)
	p.exact(OtherWeights, both, 8*c.rest, "%s numbers · 8 B (float64)", num(c.rest))
	if s.Copy || s.Rank == 0 {
		p.exact(ReferenceModel, both, 8*(c.linear+c.rest), "the base once more, frozen")
	}
	n, what := s.AdapterParameters(), ""
	if s.Rank == 0 {
		n = Parameters(m)
		what = num(n) + " numbers"
	} else {
		what = fmt.Sprintf("%s numbers of rank %d on %s", num(n), s.Rank, strings.Join(s.Targets, ", "))
		p.exact(AdapterWeights, both, 8*n, "%s · 8 B", what)
	}
	p.exact(Gradients, both, 8*n, "%s · 8 B", what)
	p.moments(n, what)
	p.exact(TapeOfTrained, update, 24*n, "%s · 3 · 8 B: a copy, its gradient and what is handed back", what)

	d, q, kv, inner := float64(m.Hidden), float64(m.Heads*m.HeadDim), float64(m.KVHeads*m.HeadDim), float64(m.Inner)
	tokens, layers, v := float64(s.Batch)*float64(s.Seq), float64(m.Layers), float64(m.Vocab)
	values := 12*d + 8*q + 6*kv + 6*inner + 5*float64(m.Heads)*float64(s.Seq)
	layer := 16 * tokens * values
	formula := fmt.Sprintf("%s tokens · (12·%g + 8·%g + 6·%g + 6·%g + 5·%d heads·%d keys) · 2 · 8 B", num(tokens), d, q, kv, inner, m.Heads, s.Seq)
	if s.Checkpointing {
		p.exact(Activations, update, layers*tokens*d*8, "the inputs of %d layers: %s tokens · %g · 8 B", m.Layers, num(tokens), d)
		p.estimate(LiveBlock, update, layer, layer/2, 1.5*layer, "an estimate: %s", formula)
	} else {
		p.estimate(Activations, update, layers*layer, layers*layer/2, layers*layer*1.5, "an estimate: %d layers · %s", m.Layers, formula)
	}
	p.estimate(Logits, update, tokens*v*8*4, tokens*v*8*2, tokens*v*8*6, "an estimate: %s tokens · %d · 8 B, about four times: logits, log-softmax and their gradients", num(tokens), m.Vocab)
	rows := float64(s.rollout())
	p.exact(KVCache, rollout, rows*float64(s.Seq)*2*layers*kv*8, "2·%d·%g · 8 B a token · %g sequences · %d tokens", m.Layers, kv, rows, s.Seq)
	p.exact(LastLogits, rollout, 16*v, "%d · 2 · 8 B", m.Vocab)
}

// validatePolicy refuses what no policy of train does.
func (s *Setup) validatePolicy() error {
	switch {
	case s.Policy == "":
	case s.Stack != Plumbline:
		return usage("--policy %s: it says what computes in --stack plumbline", s.Policy)
	case !slices.Contains(Policies, s.Policy):
		return usage("--policy %q: want one of %s%s", s.Policy, strings.Join(Policies, ", "), near(s.Policy, Policies...))
	case strings.HasPrefix(s.Policy, "accel") && s.Rank == 0:
		return usage("--policy %s: the kernels train an adapter: give --lora-r and --targets", s.Policy)
	}
	return nil
}
