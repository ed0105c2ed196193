package vram

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
)

// mixedEntry is one measured configuration under autocast.
type mixedEntry struct {
	ModelType            string `json:"model_type"`
	Attention, Autocast  string
	Rules                string
	Hidden, Heads        int
	KVHeads              int `json:"kv_heads"`
	Inner, Batch, Tokens int
	Layers, Vocab        int
	Targets              []string
	R                    int
	Checkpointing        bool
	Trained              bool
	Bytes                float64 `json:"bytes_per_layer"`
	Peak                 float64 `json:"peak_bytes"`
	StepPeak             float64 `json:"peak"`
}

func (e *mixedEntry) setup(layers int) Setup {
	m := &arch.Model{Config: arch.Config{Type: e.ModelType, Layers: layers, Hidden: e.Hidden, Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.Hidden / e.Heads, Inner: e.Inner, Vocab: 97}}
	return Setup{Model: m, Stack: HF, DType: "float32", Autocast: e.Autocast, Rank: e.R, Targets: e.Targets, Batch: e.Batch, Seq: e.Tokens, Attention: e.Attention, Checkpointing: e.Checkpointing}
}

func (e *mixedEntry) String() string {
	return fmt.Sprintf("%s %s %s %s T=%d I=%d kv=%d %v r=%d checkpointing %t", e.Rules, e.ModelType, e.Attention, e.Autocast, e.Tokens, e.Inner, e.KVHeads, e.Targets, e.R, e.Checkpointing)
}

// What a layer keeps under autocast is what the plan says of its casts and its activations: within 1 % of the formula, and in the stated
// range where it is computed again with checkpointing. A plan that leaves autocast out misses it.
func TestActivationsAutocast(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/activations_autocast.json")
	require.NoError(t, err)
	var golden struct {
		Cache   map[string][2]float64
		Entries []mixedEntry
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 130)
	seen, missed := map[string]int{}, 0
	for _, e := range golden.Entries {
		s := e.setup(1)
		require.NoError(t, s.Validate())
		p := New(s)
		casts := 2*count(s.Model).linear + 2*s.AdapterParameters()
		require.Equal(t, casts+2*97*float64(e.Hidden), p.Item(Casts).Bytes, e.String())
		i := p.Item(Activations)
		if e.Checkpointing {
			i = p.Item(LiveBlock)
		} else {
			require.InEpsilon(t, e.Bytes, i.Bytes+casts, 0.01, e.String())
		}
		require.True(t, i.Low <= e.Bytes-casts && e.Bytes-casts <= i.High, "%s: measured %g, planned %g to %g", &e, e.Bytes-casts, i.Low, i.High)
		seen[e.Rules]++
		seen[e.ModelType]++
		seen[e.Autocast]++
		seen[fmt.Sprint("r=", e.R)]++

		plain := s
		plain.Autocast, plain.DType, plain.Checkpointing = "", "bfloat16", false
		if w := New(plain).Item(Activations); !(w.Low <= e.Bytes && e.Bytes <= w.High) {
			missed++
		}
	}
	for _, what := range append([]string{"cuda", "cpu", "bfloat16", "float16", "r=0", "r=8"}, Types...) {
		require.GreaterOrEqual(t, seen[what], 6, what)
	}
	require.Greater(t, missed, len(golden.Entries)*9/10, "a plan of 16-bit weights is another")

	require.Len(t, golden.Cache, len(Types))
	for kind, widths := range golden.Cache {
		s := Setup{Model: &arch.Model{Config: arch.Config{Type: kind}}, DType: "float32", Autocast: "bfloat16"}
		require.Equal(t, widths, [2]float64{s.cacheWidth(), s.cacheWidth()}, kind)
	}
}

// What was alive at once while a prompt was read under autocast lies in the range of the pass and of the casts.
func TestPromptPassAutocast(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/prompt_autocast.json")
	require.NoError(t, err)
	var golden struct{ Entries []mixedEntry }
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 60)
	for _, e := range golden.Entries {
		e.Autocast = "bfloat16"
		s := e.setup(2)
		if !e.Trained {
			s.Rank, s.Targets = 1, s.targetNames()[:1]
		}
		require.NoError(t, s.Validate())
		p := New(s)
		pass, casts := p.Item(PromptPass), p.Item(RolloutCasts)
		require.True(t, pass.Low+casts.Low <= e.Peak && e.Peak <= pass.High+casts.High, "%s trained %t: measured %g, planned %g + %g to %g + %g", &e, e.Trained, e.Peak, pass.Low, casts.Low, pass.High, casts.High)
	}
}

// The peak of a whole step on the CPU above weights and moments, by torch's profiler: within a tenth of what the plan has of activations,
// casts and logits. Where every weight is trained gradients grow while activations are freed, so that they raise the peak by a part of theirs.
// With checkpointing the logits are gone before the live block is there: of the sum of both the range alone is demanded.
func TestAutocastStep(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/autocast_step.json")
	require.NoError(t, err)
	var golden struct{ Entries []mixedEntry }
	require.NoError(t, json.Unmarshal(text, &golden))
	require.GreaterOrEqual(t, len(golden.Entries), 12)
	for _, e := range golden.Entries {
		e.Autocast = "bfloat16"
		s := e.setup(e.Layers)
		s.Model.Vocab = e.Vocab
		require.NoError(t, s.Validate())
		p := New(s)
		var planned, low, high float64
		for _, name := range []string{Activations, LiveBlock, Casts, Logits} {
			i := p.Item(name)
			planned, low, high = planned+i.Bytes, low+i.Low, high+i.High
		}
		t.Logf("%s: measured %g, planned %g: %+.1f %%", &e, e.StepPeak, planned, 100*(planned/e.StepPeak-1))
		if !e.Checkpointing {
			require.InEpsilon(t, e.StepPeak, planned, 0.1, "%s: measured %g, planned %g", &e, e.StepPeak, planned)
		}
		require.True(t, low <= e.StepPeak && e.StepPeak <= high+p.Item(Gradients).High, "%s: measured %g, planned %g to %g and gradients", &e, e.StepPeak, low, high)
	}
}

// Float32 masters: 4 bytes for weights and gradients, 8 for moments, 2 for casts. Llama 3.2 1B, whose head is its embedding.
func TestMasters(t *testing.T) {
	s := Setup{Model: arch.Find("llama-3.2-1b"), Stack: HF, DType: "float32", Autocast: "bfloat16", Batch: 2, Seq: 512}
	require.NoError(t, s.Validate())
	p, n := New(s), Parameters(s.Model)
	require.Equal(t, 4*n, p.Base())
	require.Equal(t, 4*n, p.Item(Gradients).Bytes)
	require.Equal(t, 8*n, p.Item(OptimiserState).Bytes)
	linear := 16 * (2048.0*2048*2 + 2048*512*2 + 3*2048*8192)
	require.Equal(t, 2*linear+2*128256*2048, p.Item(Casts).Bytes)
	// 16 layers of 1024 tokens: 30·2048 + 4·512 + 8·8192 + 8 + 4·32 heads.
	require.Equal(t, 16*1024.0*(30*2048+4*512+8*8192+8+4*32), p.Item(Activations).Bytes)
	s.Checkpointing = true
	p = New(s)
	require.Equal(t, 16*1024.0*2048*4, p.Item(Activations).Bytes)
	s.Rank, s.Targets = 8, []string{"q_proj"}
	p = New(s)
	require.Equal(t, 2*linear/16+2*128256*2048+2*16*8*(2048+2048), p.Item(Casts).Bytes)

	for fragment, spoil := range map[string]func(*Setup){
		"bfloat16 or float16": func(s *Setup) { s.Autocast = "float32" },
		"plumbline stack":     func(s *Setup) { s.Stack, s.DType = Plumbline, "" },
	} {
		bad := s
		spoil(&bad)
		require.ErrorContains(t, bad.Validate(), fragment)
		require.ErrorAs(t, bad.Validate(), new(*UsageError))
	}
	for fragment, spoil := range map[string]func(*Setup){
		"quantised":        func(s *Setup) { s.Int8 = true },
		"on quantised":     func(s *Setup) { s.NF4 = true },
		"on bfloat16":      func(s *Setup) { s.DType = "bfloat16" },
		"--head trl-fused": func(s *Setup) { s.Head = FusedHead },
		"--kv int8":        func(s *Setup) { s.KVInt8 = true },
	} {
		bad := s
		spoil(&bad)
		require.ErrorContains(t, bad.Validate(), fragment)
		require.ErrorAs(t, bad.Validate(), new(*UnmeasuredError))
	}
}
