// Package vram plans the device memory of a fine-tuning run: every item of it as a formula, for the two phases of a step,
// the rollout and the update, and compares the sums with a limit and with a measured peak.
//
// What is allocated follows from shapes alone, so the plan needs no device and no weights. Two stacks are modelled. HF is
// transformers with PEFT, where the activations that autograd keeps and the workspace are estimates with a range; plumbline
// is this project's own trainer, whose buffers are known: in the memory of the host for the reference and for the kernels of the
// processor, and of a device for its kernels. Bytes are decimal: 1 GB = 10⁹, 1 GiB = 2³⁰.
package vram

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// Stack says whose allocations are modelled.
type Stack string

// The stacks.
const (
	HF        Stack = "hf"        // transformers, PEFT, bitsandbytes
	Plumbline Stack = "plumbline" // this project's trainer
)

// Stacks lists them.
var Stacks = []Stack{HF, Plumbline}

// Widths are the bytes of an element of the types that weights can have.
var Widths = map[string]float64{"float16": 2, "bfloat16": 2, "float32": 4}

// Optimisers are the names that a Setup takes, with the bytes of state per trained number. adamw8bit keeps two bytes and,
// for every block of 256, two absolute maxima (bitsandbytes@0.50.2).
var Optimisers = []string{"adamw", "adamw8bit", "sgd"}

// Setup is the configuration of a run on one device. Model, Stack, Batch and Seq are demanded.
type Setup struct {
	Model *arch.Model
	Stack Stack

	Policy string // of the plumbline stack, one of Policies; "": accel:w8a16 with an adapter, else reference

	Int8  bool   // the linear layers of the blocks are stored as int8 with one scale for each row
	DType string // of the weights that are not; "": float16

	Rank    int      // of the LoRA adapter, in float32; 0: every weight is trained
	Targets []string // modules of a block that have an adapter

	Optimiser     string // "": adamw
	Batch         int    // sequences of one forward and backward pass
	Seq           int    // tokens of a sequence, prompt and response
	MaxNew        int    // of them generated at most; 0: not known
	Rollout       int    // sequences generated at a time; 0: Batch
	Checkpointing bool   // activations are computed again in the backward pass
	Chunk         int    // tokens whose logits are held at a time; 0: all (hf), 256 (plumbline)
	KVInt8        bool   // the cache holds int8
	Copy          bool   // the reference model is a copy of the base and not the base with its adapter off
	Autocast      string // type of torch.autocast over float32 weights, one of Autocasts; "": none
	Attention     string // eager or sdpa; "": eager for gptj, which has no other, else sdpa

	NF4   bool    // the linear layers of the blocks are stored in four bits with one scale for every 64 (bitsandbytes)
	Head  string  // how logits become log-probabilities: "" all at once, FusedHead, FusedTorch
	VLLM  float64 // gpu_memory_utilization of a vLLM on the same device; 0: none
	Bytes float64 // of the device, for VLLM

	Critic     *arch.Model // of PPO, beside the policy: its head gives one value; nil: none
	CriticRank int         // of an adapter on Targets; 0: every weight of the critic is trained
	Reward     *arch.Model // frozen, its head gives one reward; nil: none
	valueHead  bool        // the model of this Setup is one of the two

	DeviceMap string // "auto", or anything else
	GPUs      int    // visible to the process; 0: one
}

// The head of TRL's GRPO and RLOO: logits in tiles, by kernels of Triton on a device and by torch's operations on the CPU.
const (
	FusedHead  = "trl-fused"
	FusedTorch = "trl-fused-torch"
)

// Limits of the numbers of a Setup. Sums of bytes stay exact in float64 far beyond any device.
const (
	maxBatch = 1 << 20
	maxSeq   = 1 << 24
	maxRank  = 1 << 16
)

// UsageError is a Setup that cannot be planned.
type UsageError struct{ msg string }

func (e *UsageError) Error() string { return e.msg }

func usage(msg string, args ...any) error { return &UsageError{fmt.Sprintf(msg, args...)} }

// near is the end of a message about a word that is none of the known ones.
func near(word string, known ...string) string {
	if n := check.Similar(word, known); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}

// Validate returns a *UsageError that names the first flag that cannot be.
func (s *Setup) Validate() error {
	if s.Model == nil {
		return usage("--model is needed: a name (%s) or a folder with config.json", strings.Join(arch.Names(), ", "))
	}
	for _, n := range []struct {
		flag      string
		value     int
		low, high int
	}{
		{"--batch", s.Batch, 1, maxBatch}, {"--seq", s.Seq, 1, maxSeq}, {"--lora-r", s.Rank, 0, maxRank}, {"--max-new-tokens", s.MaxNew, 0, s.Seq},
		{"--rollout-batch", s.Rollout, 0, maxBatch}, {"--logits-chunk", s.Chunk, 0, math.MaxInt32}, {"--gpus", s.GPUs, 0, 1024},
	} {
		if n.value < n.low || n.value > n.high {
			return usage("%s %d: want a number from %d to %d", n.flag, n.value, n.low, n.high)
		}
	}
	switch {
	case s.kind() == "":
		return usage("--model %s: model_type %q has no formulas here; those of %s have", s.Model.Name, s.Model.Type, strings.Join(Types, ", "))
	case !slices.Contains(Stacks, s.Stack):
		return usage("--stack %q: want hf or plumbline%s", s.Stack, near(string(s.Stack), "hf", "plumbline"))
	case s.DType != "" && Widths[s.DType] == 0:
		return usage("--dtype %q: want float16, bfloat16 or float32%s", s.DType, near(s.DType, "float16", "bfloat16", "float32"))
	case s.Optimiser != "" && !slices.Contains(Optimisers, s.Optimiser):
		return usage("--optimizer %q: want one of %s%s", s.Optimiser, strings.Join(Optimisers, ", "), near(s.Optimiser, Optimisers...))
	case !slices.Contains([]string{"", FusedHead, FusedTorch}, s.Head):
		return usage("--head %q: want %s, %s, or nothing for logits all at once%s", s.Head, FusedHead, FusedTorch, near(s.Head, FusedHead, FusedTorch))
	case s.NF4 && s.Int8:
		return usage("--nf4 and --int8: want one of the two")
	case s.NF4 && s.Stack == Plumbline:
		return usage("--nf4: the plumbline stack has int8")
	case s.NF4 && s.Rank == 0:
		return usage("--nf4 weights cannot be trained: give --lora-r and --targets for an adapter on them")
	case !(s.VLLM >= 0 && s.VLLM < 1):
		return usage("--vllm %g: gpu_memory_utilization is a fraction below 1", s.VLLM)
	case s.VLLM > 0 && !(s.Bytes > 0):
		return usage("--vllm %g needs --device, the memory of the device: 80GiB", s.VLLM)
	case !slices.Contains([]string{"", "eager", "sdpa"}, s.Attention):
		return usage("--attention %q: want eager or sdpa%s", s.Attention, near(s.Attention, "eager", "sdpa"))
	case s.Attention == "sdpa" && s.Model.Type == "gptj":
		return usage("--attention sdpa: GPT-J has none (transformers@5.23.0): eager attention is what it runs without flash_attention_2")
	case s.Int8 && s.Rank == 0:
		return usage("--int8 weights cannot be trained: give --lora-r and --targets for an adapter on them")
	case s.Rank > 0 && len(s.Targets) == 0:
		return usage("--lora-r %d needs --targets, out of %s", s.Rank, strings.Join(s.targetNames(), ", "))
	case s.Rank == 0 && len(s.Targets) > 0:
		return usage("--targets needs --lora-r, the rank of the adapter")
	case s.Rank == 0 && s.Copy && s.Stack == Plumbline:
		return usage("--reference copy: the plumbline stack trains adapters; its reference is the base without one")
	}
	if err := s.validatePolicy(); err != nil {
		return err
	}
	if err := s.validateAutocast(); err != nil {
		return err
	}
	for _, t := range s.Targets {
		if !slices.Contains(s.targetNames(), t) {
			return usage("--targets %s: %s has no such module (PEFT drops it in silence when another one matches); did you mean %q? It has %s",
				t, s.Model.Name, s.nearest(t), strings.Join(s.targetNames(), ", "))
		}
	}
	return s.validateCompanions()
}

// targetNames are the last parts of the names of the linear layers of a block.
func (s *Setup) targetNames() []string {
	var names []string
	for _, l := range s.Model.Adaptable() {
		name := l.Last()
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// nearest returns the module that has the purpose of target, else the one with the nearest name.
func (s *Setup) nearest(target string) string {
	if alike := s.Model.Alike(target); alike != "" {
		return alike
	}
	return check.Nearest(target, s.targetNames())
}

// kind is the architecture whose formulas hold, "" if none do. A layer of Mistral is one of Llama without a setting for biases
// (transformers@5.23.0 models/mistral/modeling_mistral.py).
func (s *Setup) kind() string {
	switch t := s.Model.Type; {
	case !slices.Contains(Types, t):
		return ""
	case t == "mistral":
		return "llama"
	default:
		return t
	}
}

// Types are the values of model_type whose formulas are known.
var Types = []string{"gpt2", "gptj", "llama", "mistral", "qwen2"}

func (s *Setup) width() float64 {
	if s.DType == "" {
		return Widths["float16"]
	}
	return Widths[s.DType]
}

func (s *Setup) dtype() string {
	return cmp.Or(s.DType, "float16")
}

func (s *Setup) rollout() int {
	return cmp.Or(s.Rollout, s.Batch)
}

func (s *Setup) eager() bool { return s.Attention == "eager" || s.Model.Type == "gptj" }

// counts are the numbers of a model by where they lie.
type counts struct {
	linear   float64 // weights of the linear layers of all blocks
	rows     float64 // output features of them: one scale each
	rest     float64 // embeddings, head, norms and biases
	matrices float64 // of rest: embedding and head, which the plumbline stack stores as int8 as well
	lines    float64 // rows of these
}

// count adds up the tensors of m.
func count(m *arch.Model) (c counts) {
	for _, x := range m.Modules() {
		in, out := float64(x.In), float64(x.Out)
		switch {
		case x.Layer >= 0 && x.IsLinear():
			c.linear += in * out
			c.rows += out
		case x.Role == arch.Head && !x.Tied || x.Role == arch.Embedding:
			c.lines += float64(m.Vocab)
		case x.Kind == arch.Table: // learned positions
			c.rest += in * out
		case x.Kind == arch.RMSNorm || x.Kind == arch.LayerNorm:
			c.rest += out
		}
		if x.Bias || x.Kind == arch.LayerNorm {
			c.rest += out
		}
	}
	c.matrices = c.lines * float64(m.Hidden)
	c.rest += c.matrices
	return c
}

// Parameters returns how many numbers m has.
func Parameters(m *arch.Model) float64 {
	c := count(m)
	return c.linear + c.rest
}

// AdapterParameters returns how many numbers the adapter of s has: Σ r·(in + out) over its modules.
func (s *Setup) AdapterParameters() float64 {
	var sum float64
	for _, l := range s.Model.Adaptable() {
		if slices.Contains(s.Targets, l.Last()) {
			sum += float64(s.Model.Layers) * float64(s.Rank) * float64(l.In+l.Out)
		}
	}
	return sum
}
