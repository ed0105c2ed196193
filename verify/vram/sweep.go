package vram

import (
	"fmt"
	"math/rand/v2"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// PlantAll plants every fault of the suite in a healthy configuration.
func PlantAll(seed uint64) ([]check.Planted[*Input], error) {
	return Suite.PlantAll(seed, func(*rand.Rand) *Input { return healthy() })
}

// Healthy draws a configuration of any known model and stack that fits, with a measured peak inside the range of its plan.
func Healthy(r *rand.Rand) *Input {
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	s := Setup{
		Model: &arch.Models[r.IntN(len(arch.Models))], Stack: Stacks[r.IntN(len(Stacks))], DType: pick([]string{"", "bfloat16", "float32"}),
		Optimiser: pick(Optimisers), Batch: 1 + r.IntN(16), Seq: 16 + r.IntN(2048), Checkpointing: r.IntN(2) == 0, KVInt8: r.IntN(2) == 0,
		Chunk: 128 * r.IntN(3), Rollout: r.IntN(32), DeviceMap: pick([]string{"", "auto"}), GPUs: 1,
	}
	s.MaxNew = r.IntN(s.Seq)
	if r.IntN(4) > 0 {
		names := s.targetNames()
		s.Rank, s.Targets, s.Int8, s.Copy = 1+r.IntN(64), names[:1+r.IntN(len(names))], r.IntN(2) == 0, r.IntN(2) == 0
	}
	if s.Stack == HF {
		if s.DType == "float32" && !s.Int8 && !s.KVInt8 {
			s.Autocast = pick(append([]string{""}, Autocasts...))
		}
		if r.IntN(4) == 0 {
			s.Critic, s.Reward = s.Model, &arch.Models[r.IntN(len(arch.Models))]
		}
	}
	p := New(s)
	_, t := p.Peak()
	room := max(p.Total(Update).High, p.Total(Rollout).High) / margin * 1.01
	in := &Input{Plan: p, Limit: Limit{Text: "drawn", Bytes: room, Hard: room}}
	in.Measured = &Measurement{Path: "drawn", Samples: 2, Devices: []Device{{Index: "0", Peak: t.Low + r.Float64()*(t.High-t.Low), Line: 2}}}
	return in
}

// Alarm describes a result that no healthy input may have, "" if there is none.
func Alarm(in *Input, results []check.Result) string {
	for _, r := range results {
		if r.Verdict != check.Pass {
			return fmt.Sprintf("%s, batch %d, %d tokens: %s %s: %s", in.Plan.Setup.Model.Name, in.Plan.Setup.Batch, in.Plan.Setup.Seq, r.Verdict, r.Check, r.Reason)
		}
	}
	if len(results) == 0 {
		return "nothing was decided"
	}
	return ""
}
