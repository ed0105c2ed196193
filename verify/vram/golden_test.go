package vram

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/verify/checkpoint"
)

// Parameters are those that transformers and peft count.
func TestParameters(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/sizes.json")
	require.NoError(t, err)
	var golden struct {
		Models map[string]struct {
			Parameters, Linear float64
			Adapters           []struct {
				Targets    []string
				R          int
				Parameters float64
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Models), 10)
	for _, m := range arch.Models {
		want, ok := golden.Models[m.Name]
		require.True(t, ok, "%s: sizes.py does not count it", m.Name)
		require.Equal(t, want.Parameters, Parameters(&m), m.Name)
		require.Equal(t, want.Linear, count(&m).linear, m.Name)
		for _, a := range want.Adapters {
			s := Setup{Model: &m, Rank: a.R, Targets: a.Targets}
			require.Equal(t, a.Parameters, s.AdapterParameters(), "%s %v", m.Name, a.Targets)
		}
	}
}

// The folders that transformers saved hold as many bytes as the plan says of their weights.
func TestFolders(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/EXPECT.json")
	require.NoError(t, err)
	var golden struct {
		Folders map[string]struct {
			Family, Kind string
			Params       float64 `json:"params"`
			Quantised    string
			ScoreHead    bool `json:"score_head"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	n := 0
	for name, f := range golden.Folders {
		if f.Family != "hf" || f.Quantised != "" || f.ScoreHead {
			continue
		}
		m, err := checkpoint.FindModel("../../golden/checkpoint/" + name)
		require.NoError(t, err)
		require.Equal(t, f.Params, Parameters(m), name)
		n++
	}
	require.GreaterOrEqual(t, n, 10)
}

// What autograd kept in released transformers lies in the range of the plan for every model, attention, width and length
// that was measured.
func TestActivations(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/activations.json")
	require.NoError(t, err)
	var golden struct {
		Entries []struct {
			ModelType     string `json:"model_type"`
			Attention     string
			Hidden, Heads int
			KVHeads       int `json:"kv_heads"`
			Inner, Batch  int
			Tokens        int
			Targets       []string
			R             int
			Bytes         float64 `json:"bytes_per_layer"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 70)
	full := 0
	for _, e := range golden.Entries {
		m := &arch.Model{Config: arch.Config{Type: e.ModelType, Layers: 1, Hidden: e.Hidden, Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.Hidden / e.Heads, Inner: e.Inner, Vocab: 97}}
		s := Setup{Model: m, Stack: HF, Rank: e.R, Targets: e.Targets, DType: "bfloat16", Batch: e.Batch, Seq: e.Tokens, Attention: e.Attention}
		require.NoError(t, s.Validate())
		a := New(s).Item(Activations)
		what := fmt.Sprintf("%s %s T=%d I=%d %v r=%d", e.ModelType, e.Attention, e.Tokens, e.Inner, e.Targets, e.R)
		require.True(t, a.Low <= e.Bytes && e.Bytes <= a.High, "%s: measured %g, planned %g to %g", what, e.Bytes, a.Low, a.High)
		k := frozenKept
		if e.R == 0 {
			k = trainedKept
			full++
		}
		require.InEpsilon(t, e.Bytes, k[e.ModelType+" "+e.Attention].layer(&s, s.adapters()), 0.02, what)
	}
	require.GreaterOrEqual(t, full, 20)
}

// The same in float32, where adapters that read one tensor keep it once, and for Mistral, whose formulas are Llama's.
func TestActivationsFloat32(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/activations_float32.json")
	require.NoError(t, err)
	var golden struct {
		Entries []struct {
			ModelType     string `json:"model_type"`
			Attention     string
			Hidden, Heads int
			KVHeads       int `json:"kv_heads"`
			Inner, Batch  int
			Tokens        int
			Targets       []string
			R             int
			Bytes         float64 `json:"bytes_per_layer"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 60)
	for _, e := range golden.Entries {
		m := &arch.Model{Config: arch.Config{Type: e.ModelType, Layers: 1, Hidden: e.Hidden, Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.Hidden / e.Heads, Inner: e.Inner, Vocab: 97}}
		s := Setup{Model: m, Stack: HF, Rank: e.R, Targets: e.Targets, DType: "float32", Batch: e.Batch, Seq: e.Tokens, Attention: e.Attention}
		require.NoError(t, s.Validate())
		a := New(s).Item(Activations)
		require.InEpsilon(t, e.Bytes, a.Bytes, 0.02, "%s %s T=%d I=%d %v r=%d", e.ModelType, e.Attention, e.Tokens, e.Inner, e.Targets, e.R)
		require.True(t, a.Low <= e.Bytes && e.Bytes <= a.High)
	}
}

// What was alive at once while released transformers read a prompt lies in the range of the plan.
func TestPromptPass(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/prompt.json")
	require.NoError(t, err)
	var golden struct {
		Entries []struct {
			ModelType     string `json:"model_type"`
			Attention     string
			Hidden, Heads int
			KVHeads       int `json:"kv_heads"`
			Inner, Batch  int
			Tokens        int
			Bytes         float64 `json:"peak_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 20)
	for _, e := range golden.Entries {
		m := &arch.Model{Config: arch.Config{Type: e.ModelType, Layers: 2, Hidden: e.Hidden, Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.Hidden / e.Heads, Inner: e.Inner, Vocab: 97}}
		s := Setup{Model: m, Stack: HF, Batch: e.Batch, Seq: e.Tokens, Attention: e.Attention}
		require.NoError(t, s.Validate())
		i := New(s).Item(PromptPass)
		require.True(t, i.Low <= e.Bytes && e.Bytes <= i.High, "%s %s T=%d I=%d: measured %g, planned %g to %g", e.ModelType, e.Attention, e.Tokens, e.Inner, e.Bytes, i.Low, i.High)
	}
}

// The peak of a step of TRL's GRPO on the CPU, above weights and moments, by torch's profiler: within a tenth of the plan.
func TestGRPO(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/grpo.json")
	require.NoError(t, err)
	var golden struct {
		Entries []struct {
			ModelType             string `json:"model_type"`
			Layers, Hidden, Heads int
			KVHeads               int `json:"kv_heads"`
			Inner, Vocab, R       int
			Targets               []string
			DType, Attention      string
			Checkpointing         bool
			Comp, Prompt, Batch   int
			Peak                  float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 5)
	for _, e := range golden.Entries {
		m := &arch.Model{Config: arch.Config{Type: e.ModelType, Layers: e.Layers, Hidden: e.Hidden, Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.Hidden / e.Heads, Inner: e.Inner, Vocab: e.Vocab}}
		s := Setup{Model: m, Stack: HF, Rank: e.R, Targets: e.Targets, DType: e.DType, Batch: e.Batch, Seq: e.Prompt + e.Comp, MaxNew: e.Comp, Attention: e.Attention, Checkpointing: e.Checkpointing, Head: FusedTorch}
		require.NoError(t, s.Validate())
		p := New(s)
		planned := p.Item(Activations).Bytes + p.Item(LiveBlock).Bytes + p.Item(Logits).Bytes
		require.InEpsilon(t, e.Peak, planned, 0.1, "%s %s r=%d checkpointing %t: measured %g, planned %g", e.ModelType, e.DType, e.R, e.Checkpointing, e.Peak, planned)
	}
}

// Sizes that no formula was fitted to, in three types, with checkpointing and without: at least 95 of 100 lie in the range of the plan.
func TestActivationsSweep(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/activations_sweep.json")
	require.NoError(t, err)
	var golden struct {
		Entries []struct {
			ModelType        string `json:"model_type"`
			Attention, DType string
			Hidden, Heads    int
			KVHeads          int `json:"kv_heads"`
			Inner, Batch     int
			Tokens           int
			Targets          []string
			R                int
			Checkpointing    bool
			Bytes            float64 `json:"bytes_per_layer"`
			Block            float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	inside := 0
	var outside []string
	for _, e := range golden.Entries {
		m := &arch.Model{Config: arch.Config{Type: e.ModelType, Layers: 1, Hidden: e.Hidden, Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.Hidden / e.Heads, Inner: e.Inner, Vocab: 97}}
		s := Setup{Model: m, Stack: HF, Rank: e.R, Targets: e.Targets, DType: e.DType, Batch: e.Batch, Seq: e.Tokens, Attention: e.Attention, Checkpointing: e.Checkpointing}
		require.NoError(t, s.Validate())
		i, measured := New(s).Item(Activations), e.Bytes
		if e.Checkpointing {
			i, measured = New(s).Item(LiveBlock), e.Block
		}
		require.Positive(t, measured)
		if i.Low <= measured && measured <= i.High {
			inside++
		} else {
			outside = append(outside, fmt.Sprintf("%s %s %s r=%d checkpointing %t: measured %g, planned %g to %g", e.ModelType, e.Attention, e.DType, e.R, e.Checkpointing, measured, i.Low, i.High))
		}
	}
	require.GreaterOrEqual(t, len(golden.Entries), 40)
	require.GreaterOrEqual(t, float64(inside), 0.95*float64(len(golden.Entries)), "%v", outside)
}
