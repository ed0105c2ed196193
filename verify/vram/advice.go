package vram

import (
	"fmt"
	"slices"
)

// Advice is a change of the configuration and what the plan is after it.
type Advice struct {
	Flag  string // of this command
	Fault string // id of the choice that it undoes
	What  string
	Saved float64 // bytes of the phase that needs most
	After Total   // the peak after it
}

// least is the part of the peak that a change must save to be worth a line.
const least = 0.01

// Advise returns the changes that make p need less, from the one that saves most. A device map is among them only for a
// base that is not int8: with int8 on several devices generation hangs (bitsandbytes with device_map="auto").
func (p *Plan) Advise(limit Limit) []Advice {
	s := p.Setup
	_, before := p.Peak()
	if before.Bytes <= limit.Bytes {
		limit = Limit{} // it fits: there is nothing to find the largest of
	}
	var list []Advice
	try := func(flag, fault, what string, change func(*Setup)) {
		next := s
		change(&next)
		if next.Validate() != nil {
			return
		}
		_, after := New(next).Peak()
		if saved := before.Bytes - after.Bytes; saved > least*before.Bytes {
			list = append(list, Advice{flag, fault, what, saved, after})
		}
	}
	if !s.Checkpointing {
		try("--checkpointing", "A4-CHECKPOINTING", "gradient checkpointing: activations are computed again in the backward pass", func(s *Setup) { s.Checkpointing = true })
	}
	if s.Copy {
		try("--reference adapter", "A4-REFERENCE", "the base with its adapter off as the reference, in place of a second copy", func(s *Setup) { s.Copy = false })
	}
	if !s.Int8 && s.Rank > 0 {
		try("--int8", "A4-INT8", "the linear layers of the base in int8", func(s *Setup) { s.Int8 = true })
	}
	if s.Rank == 0 {
		targets := s.targetNames()[:1]
		if slices.Contains(s.targetNames(), "q_proj") {
			targets = []string{"q_proj", "v_proj"}
		}
		try("--lora-r 16", "A4-FULL", "an adapter in place of all weights", func(s *Setup) { s.Rank, s.Targets = 16, targets })
	}
	if s.Critic != nil && s.CriticRank == 0 && s.Rank > 0 {
		try(fmt.Sprintf("--critic-lora-r %d", s.Rank), "A4-CRITIC", "an adapter of the critic in place of all its weights", func(s *Setup) { s.CriticRank = s.Rank })
	}
	if s.Optimiser == "" || s.Optimiser == "adamw" {
		try("--optimizer adamw8bit", "A4-OPTIMIZER", "moments of 8 bits", func(s *Setup) { s.Optimiser = "adamw8bit" })
	}
	if s.Batch > 1 {
		if b := s.fits(limit, s.Batch, func(s *Setup, n int) { s.Batch = n }); b > 0 {
			try(fmt.Sprintf("--batch %d", b), "A4-BATCH", "the largest batch that fits, with more steps of accumulation", func(s *Setup) { s.Batch = b })
		} else {
			try(fmt.Sprintf("--batch %d", s.Batch/2), "A4-BATCH", "half the batch, with twice the steps of accumulation", func(s *Setup) { s.Batch /= 2 })
		}
	}
	if s.MaxNew > 20 {
		try(fmt.Sprintf("--max-new-tokens 20 --seq %d", s.Seq-s.MaxNew+20), "A4-SEQ", "max_new_tokens=20", func(s *Setup) { s.Seq, s.MaxNew = s.Seq-s.MaxNew+20, 20 })
	} else if s.MaxNew == 0 && s.Seq > 64 {
		if n := s.fits(limit, s.Seq, func(s *Setup, n int) { s.Seq = n }); n >= 32 {
			try(fmt.Sprintf("--seq %d", n), "A4-SEQ", "shorter prompts or a smaller max_new_tokens: the longest sequence that fits", func(s *Setup) { s.Seq = n })
		} else {
			try(fmt.Sprintf("--seq %d", s.Seq/2), "A4-SEQ", "shorter prompts or a smaller max_new_tokens: half the tokens", func(s *Setup) { s.Seq /= 2 })
		}
	}
	if s.Chunk == 0 && s.Stack == HF {
		try("--logits-chunk 256", "A4-LOGITS", "logits of 256 tokens at a time", func(s *Setup) { s.Chunk = 256 })
	}
	if s.rollout() > 1 {
		n := s.fits(limit, s.rollout(), func(s *Setup, n int) { s.Rollout = n })
		if n == 0 {
			n = (s.rollout() + 1) / 2
		}
		try(fmt.Sprintf("--rollout-batch %d", n), "A4-KV", "fewer sequences generated at a time", func(s *Setup) { s.Rollout = n })
	}
	if s.DType == "float32" {
		try("--dtype bfloat16", "A4-FLOAT32", "the weights that are not int8 in 16 bits", func(s *Setup) { s.DType, s.Autocast = "bfloat16", "" })
	}
	if !s.KVInt8 && s.Stack == Plumbline && !s.host() {
		try("--kv int8", "A4-KV", "a KV cache of int8", func(s *Setup) { s.KVInt8 = true })
	}
	if half := p.Base() / 2; !s.Int8 && s.Stack == HF && half > least*before.Bytes {
		list = append(list, Advice{"--device-map auto", "", "device_map=\"auto\" over two devices: half the layers on each", half, Total{before.Bytes - half, before.Low - half, before.High - half}})
	}
	slices.SortStableFunc(list, func(a, b Advice) int {
		switch {
		case a.Saved > b.Saved:
			return -1
		case a.Saved < b.Saved:
			return 1
		}
		return 0
	})
	return list
}

// fits returns the largest n below most for which the plan stays within the limit, 0 if there is none or no limit.
func (s *Setup) fits(limit Limit, most int, set func(*Setup, int)) int {
	if limit.Bytes == 0 {
		return 0
	}
	low, high := 0, most // low fits or is 0, high does not or is not wanted
	for high-low > 1 {
		mid := low + (high-low)/2
		next := *s
		set(&next, mid)
		if next.Validate() != nil {
			return 0
		}
		if _, t := New(next).Peak(); t.Bytes <= limit.Bytes {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// Conflict returns the lines about a device map that int8 does not allow, none if there is no conflict to mention.
func (s *Setup) Conflict() []string {
	if !s.Int8 {
		return nil
	}
	return []string{
		`device_map="auto" is no advice here: bitsandbytes int8 over several devices hangs in generation`,
		`one device: CUDA_VISIBLE_DEVICES=0, device_map={"": 0}; or split the batch over devices with accelerate launch`,
	}
}
