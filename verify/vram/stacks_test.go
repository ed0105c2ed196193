package vram

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
)

// The fused head of TRL, four bits and a vLLM, computed by hand for Llama 3.2 1B: V = 128256, C = 2048.
func TestStacksOfOthers(t *testing.T) {
	base := Setup{Model: arch.Find("llama-3.2-1b"), Stack: HF, Rank: 8, Targets: []string{"q_proj"}, DType: "bfloat16", Batch: 4, Seq: 768, MaxNew: 512}
	with := func(change func(*Setup)) *Plan {
		s := base
		change(&s)
		require.NoError(t, s.Validate())
		return New(s)
	}
	plain := with(func(*Setup) {})
	fused := with(func(s *Setup) { s.Head = FusedHead })
	// 4·767 positions: a tile of 3068·32768 · 2 B, and 3068·2048 · (4 + 2·2) B of hidden states and their gradient.
	require.Equal(t, 3068.0*32768*2+3068*2048*8, fused.Item(Logits).Bytes)
	require.Greater(t, plain.Item(Logits).Bytes, 10*fused.Item(Logits).Bytes)
	torch := with(func(s *Setup) { s.Head = FusedTorch })
	require.Equal(t, fused.Item(Logits).Bytes+3068*32768*29, torch.Item(Logits).Bytes)
	full := with(func(s *Setup) { s.Head, s.Rank, s.Targets = FusedHead, 0, nil })
	require.Equal(t, fused.Item(Logits).Bytes+128256*2048*4, full.Item(Logits).Bytes)

	four := with(func(s *Setup) { s.NF4 = true })
	linear := plain.Item(LinearWeights).Bytes / 2
	require.Equal(t, linear/2, four.Item(LinearWeights).Bytes)
	require.Equal(t, linear/64*4, four.Item(Scales).Bytes)
	require.Equal(t, plain.Item(OtherWeights).Bytes, four.Item(OtherWeights).Bytes)

	engine := with(func(s *Setup) { s.VLLM, s.Bytes = 0.3, 80<<30 })
	require.Equal(t, 0.3*(80<<30), engine.Item(Engine).Bytes)
	require.Zero(t, engine.Item(KVCache).Bytes)
	require.Greater(t, engine.Total(Update).Bytes, plain.Total(Update).Bytes)

	for name, spoil := range map[string]func(*Setup){
		"--head":   func(s *Setup) { s.Head = "liger" },
		"--device": func(s *Setup) { s.VLLM = 0.3 },
		"--vllm":   func(s *Setup) { s.VLLM = 1.5 },
		"--int8":   func(s *Setup) { s.NF4, s.Int8 = true, true },
		"--nf4":    func(s *Setup) { s.NF4, s.Rank, s.Targets = true, 0, nil },
		"formulas": func(s *Setup) { s.Model = &arch.Model{Config: arch.Config{Type: "gemma"}} },
	} {
		s := base
		spoil(&s)
		require.ErrorContains(t, s.Validate(), name)
	}
}
