// Package model is the forward pass of the language models that are fine-tuned here, in float64 on the tape of
// [plumbline/reference/ad]: one file per family, readable next to the modelling file of transformers that it states. The
// tape differentiates; no backward pass is written.
//
// A [Model] is a [Config] and weights. [Model.On] puts it on a tape, as a [Net], where weights and LoRA factors are
// parameters or constants as [Trainable] says, and [Net.Forward] computes hidden states from tokens:
//
//	m, err := model.New(config, weights)       // weights: func(name string, shape ...int) ([]float64, error)
//	var tape ad.Tape
//	n := m.On(&tape, model.Trainable{Adapter: adapter, LoRA: true})
//	out := n.Forward(model.Input{Batch: b, Time: t, IDs: ids, Real: mask})
//	logits := n.Logits(out.Hidden)             // [b, t, V]; slice Hidden first for the last position only
//	ad.Backward(n.MeanLogProb(in), []float64{1})
//	n.Factors(name)                            // A and B, with their gradients
//
// Without a parameter the tape keeps nothing: inference is the same code on a tape of constants. The weights are never
// copied, so they must not change while the model is in use.
//
// # Names
//
// A weight has the name that it has in the state dict of transformers' model for causal language modelling, in full:
// model.layers.0.self_attn.q_proj.weight (llama, qwen2), transformer.h.0.attn.c_attn.weight (gpt2, gptj), lm_head.weight.
// Files that leave the first part out, as OpenAI's GPT-2 does, are the reader's to rename. A LoRA update has the name of its
// layer, without .weight: what stands in an adapter of PEFT between base_model.model. and .lora_A.weight.
// [Config.Tensors] lists all names and shapes.
//
// # What is equal bit for bit
//
// A row of a batch and the row alone; a sequence and the same sequence padded on either side, at its real tokens; sequences
// packed into one row with [Input.Segment] and each by itself; decoding with a [Cache], token by token or in chunks, and the
// whole sequence at once; a model with and without an adapter that is not put on the tape. What a query may not see has a
// weight of exactly 0 in its attention and a gradient of exactly 0. The hidden states of padding are defined, but mean
// nothing.
package model
