package vram

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/verify/checkpoint"
)

// ofModel sums what a plan has under a prefix in a phase.
func ofModel(p *Plan, prefix string, phase Phase) (sum float64) {
	for _, i := range p.Items {
		if strings.HasPrefix(i.Name, prefix) && i.In[phase] {
			sum += i.Bytes
		}
	}
	return sum
}

// A model with one output has the policy's numbers less those of the head, and C for the output: as transformers counted it.
func TestValueHead(t *testing.T) {
	text, err := os.ReadFile("../../golden/checkpoint/EXPECT.json")
	require.NoError(t, err)
	var golden struct {
		Folders map[string]struct {
			Family    string
			Params    float64 `json:"params"`
			ScoreHead bool    `json:"score_head"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	n := 0
	for name, f := range golden.Folders {
		if f.Family != "hf" || !f.ScoreHead {
			continue
		}
		m, err := checkpoint.FindModel("../../golden/checkpoint/" + name)
		require.NoError(t, err)
		c := (&Setup{Model: m, valueHead: true}).counts()
		require.Equal(t, f.Params, c.linear+c.rest, name)
		n++
	}
	require.Positive(t, n)
	for name, less := range map[string]float64{
		"llama-3.1-8b": 128256*4096 - 4096,         // a head of its own
		"llama-3.2-1b": -2048,                      // the embedding, which stays
		"gpt-j-6b":     50400*4096 + 50400 - 4096., // with a bias
	} {
		c := (&Setup{Model: arch.Find(name), valueHead: true}).counts()
		require.Equal(t, Parameters(arch.Find(name))-less, c.linear+c.rest, name)
	}
}

// A critic of the same model costs what the policy costs, less the head and its logits, and one output of each token.
func TestCritic(t *testing.T) {
	s := Setup{Model: arch.Find("llama-3.1-8b"), Stack: HF, DType: "bfloat16", Batch: 2, Seq: 512, MaxNew: 128}
	alone := New(s)
	s.Critic = s.Model
	require.NoError(t, s.Validate())
	p := New(s)
	const head, tokens = 128256*4096 - 4096.0, 2 * 512.0
	policy := alone.Base() + alone.Item(Gradients).Bytes + alone.Item(OptimiserState).Bytes + alone.Item(Activations).Bytes
	require.Equal(t, policy-head*(2+2+4)+tokens*12, ofModel(p, OfCritic, Update))
	require.InDelta(t, alone.Total(Update).Bytes+ofModel(p, OfCritic, Update), p.Total(Update).Bytes, 1)
	require.Equal(t, alone.Base()+alone.Item(OptimiserState).Bytes-head*(2+4), ofModel(p, OfCritic, Rollout))
	for _, i := range alone.Items { // the policy itself is planned as before
		require.Equal(t, i, p.Item(i.Name))
	}
	// A trainer that updates one after the other holds the activations of one.
	require.Zero(t, p.Item(OfCritic+Activations).Low)
	require.Zero(t, p.Item(OfCritic+Logits).Bytes)

	s.Critic = arch.Find("llama-3.2-1b")
	small := New(s)
	require.Less(t, ofModel(small, OfCritic, Update), ofModel(p, OfCritic, Update)/4)

	// Under autocast the critic has casts, of one row of a head.
	s.Critic, s.DType, s.Autocast = s.Model, "float32", "bfloat16"
	require.NoError(t, s.Validate())
	p = New(s)
	require.Equal(t, p.Item(Casts).Bytes-2*head, p.Item(OfCritic+Casts).Bytes)

	// With an adapter of its own, and one beside a quantised policy.
	s = Setup{Model: arch.Find("llama-3.1-8b"), Stack: HF, DType: "bfloat16", Int8: true, Rank: 8, Targets: []string{"q_proj"}, Batch: 2, Seq: 512}
	s.Critic, s.CriticRank = s.Model, 8
	require.NoError(t, s.Validate())
	p = New(s)
	require.Equal(t, p.Item(LinearWeights).Bytes, p.Item(OfCritic+LinearWeights).Bytes)
	require.Equal(t, p.Item(AdapterWeights).Bytes+4*4096, p.Item(OfCritic+AdapterWeights).Bytes)
	s.CriticRank = 0
	p = New(s)
	require.Equal(t, "--critic-lora-r 8", p.Advise(Limit{})[0].Flag)
	require.Equal(t, 2*p.Item(LinearWeights).Bytes, p.Item(OfCritic+LinearWeights).Bytes, "what is trained is not quantised")
}

// A reward model has weights and nothing else; what scoring needs beyond generation is added to the rollout alone.
func TestReward(t *testing.T) {
	s := Setup{Model: arch.Find("llama-3.2-1b"), Stack: HF, DType: "bfloat16", Rank: 8, Targets: []string{"q_proj"}, Batch: 2, Seq: 512, MaxNew: 128}
	alone := New(s)
	s.Reward = arch.Find("llama-3.1-8b")
	require.NoError(t, s.Validate())
	p := New(s)
	weights := 2 * (Parameters(s.Reward) - 128256*4096 + 4096)
	require.Equal(t, weights, ofModel(p, OfReward, Update))
	require.Equal(t, weights, ofModel(p, OfReward, Rollout))
	require.InDelta(t, alone.Total(Update).Bytes+weights, p.Total(Update).Bytes, 1)
	require.InDelta(t, alone.Total(Rollout).Bytes+weights+p.Item(Scoring).Bytes, p.Total(Rollout).Bytes, 1)

	base := s
	for fragment, spoil := range map[string]func(*Setup){
		"--critic-lora-r needs --critic": func(s *Setup) { s.CriticRank = 8 },
		"needs --lora-r":                 func(s *Setup) { s.Critic, s.CriticRank, s.Rank, s.Targets = s.Model, 8, 0, nil },
		"--critic-lora-r -1":             func(s *Setup) { s.CriticRank = -1 },
		"plumbline stack":                func(s *Setup) { s.Stack = Plumbline },
		"GRPO and RLOO":                  func(s *Setup) { s.Critic, s.Head = s.Model, FusedHead },
		"--critic: --targets":            func(s *Setup) { s.Critic, s.CriticRank = arch.Find("gpt2"), 8 },
		"--reward: --model":              func(s *Setup) { s.Reward = &arch.Model{Config: arch.Config{Type: "gemma"}} },
		"--reward: --attention":          func(s *Setup) { s.Attention, s.Reward = "sdpa", arch.Find("gpt-j-6b") },
	} {
		bad := base
		spoil(&bad)
		require.ErrorContains(t, bad.Validate(), fragment)
		require.ErrorAs(t, bad.Validate(), new(*UsageError))
	}
}
