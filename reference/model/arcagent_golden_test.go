package model

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

// The golden arcagent was computed by golden/gen/models/arc.py in float64: the text encoder by transformers 5.23.0, the rest
// by torch 2.15.0. golden.json beside it says what each tensor is, and how far it is from the code of wonnowone/ARC-EFE.
type arcGolden struct {
	config ArcAgentConfig
	reward float64
	base   tensorFile
	values tensorFile
}

func readArc(t testing.TB) arcGolden {
	dir := filepath.Join(maskedGoldens, "arcagent")
	g := arcGolden{base: readTensors(t, filepath.Join(dir, "base", "model.safetensors")), values: readTensors(t, filepath.Join(dir, "golden.safetensors"))}
	var j struct {
		Colors  int `json:"num_colors"`
		Prompt  int `json:"prompt_dim"`
		Hidden  int `json:"hidden_dim"`
		Encoder int `json:"encoder_dim"`
		Steps   int `json:"max_steps"`
		Policy  struct {
			Control  int     `json:"ctrl_dim"`
			Features int     `json:"feat_dim"`
			Hidden   int     `json:"hidden"`
			Scale    float64 `json:"delta_scale"`
		}
		Text struct {
			Vocab  int     `json:"vocab_size"`
			Hidden int     `json:"hidden_size"`
			Inner  int     `json:"intermediate_size"`
			Layers int     `json:"num_hidden_layers"`
			Heads  int     `json:"num_attention_heads"`
			KV     int     `json:"num_key_value_heads"`
			Max    int     `json:"max_position_embeddings"`
			Eps    float64 `json:"rms_norm_eps"`
			RoPE   struct {
				Theta float64 `json:"rope_theta"`
			} `json:"rope_parameters"`
		}
	}
	readJSON(t, filepath.Join(dir, "base", "config.json"), &j)
	x := j.Text
	g.config = ArcAgentConfig{Colors: j.Colors, Prompt: j.Prompt, Hidden: j.Hidden, Encoder: j.Encoder, Steps: j.Steps,
		Policy: ArcPolicyConfig{j.Policy.Control, j.Policy.Features, j.Policy.Hidden, j.Policy.Scale},
		Text: Config{Kind: Qwen2, Vocab: x.Vocab, Hidden: x.Hidden, Layers: x.Layers, Heads: x.Heads, KVHeads: x.KV, HeadDim: x.Hidden / x.Heads, Intermediate: x.Inner,
			MaxPositions: x.Max, Eps: x.Eps, Activation: "silu", Tied: true, QKVBias: true, RoPE: nn.RoPE{Dim: x.Hidden / x.Heads, Theta: x.RoPE.Theta}}}
	var about struct{ Spec struct{ Reward float64 } }
	readJSON(t, filepath.Join(dir, "golden.json"), &about)
	g.reward = about.Spec.Reward
	return g
}

func (g arcGolden) model(t testing.TB) *ArcAgent {
	m, err := NewArcAgent(g.config, g.base.weights)
	require.NoError(t, err)
	return m
}

func (g arcGolden) grid(name string) Grid {
	s := g.values[name].shape
	return Grid{s[0], s[1], g.values.ints(name)}
}

// arcUsage is how a trainer uses the model.
type arcUsage struct {
	grid   func(Grid) Grid
	step   func(r *Refinement)                   // between the policy and the agent
	resize func(x *ad.Var, h, w int) *ad.Var     //
	next   func(r Refinement) *ad.Var            // the prompt of the state that curiosity predicts
	action func(r Refinement) *ad.Var            // what Evaluate and the update take as sampled
	detach func(x *ad.Var) *ad.Var               // of what an update holds constant
	loss   func(logp, advantage *ad.Var) *ad.Var // the policy's part
}

func healthyArc() arcUsage {
	return arcUsage{
		grid:   func(g Grid) Grid { return g },
		step:   func(*Refinement) {},
		resize: ResizeLogits,
		next:   func(r Refinement) *ad.Var { return r.Prompt },
		action: func(r Refinement) *ad.Var { return r.U },
		detach: ad.Detach,
		loss:   func(logp, advantage *ad.Var) *ad.Var { return ad.Neg(ad.Mul(logp, advantage)) },
	}
}

// compare runs one batch: prompt, prediction, refinement, prediction again, the log-probability of the target, and the loss
// of the policy. Both gradients are taken.
func (g arcGolden) compare(m *ArcAgent, u arcUsage) misses {
	var tape ad.Tape
	n := m.On(&tape, func(string) bool { return true })
	at := func(name string) []float64 { return g.values["float64/"+name].data }
	constant := func(name string) *ad.Var { return tape.Const(g.values[name].data, len(g.values[name].data)) }
	control, features := constant("ctrl"), constant("feat")
	w := misses{}
	note := func(name string, v *ad.Var) { w[name] = worst(v.Data(), at(name), 1, nil) }

	rule := g.values.ints("rule_ids")
	note("hidden", n.Text.Forward(Input{Batch: 1, Time: len(rule), IDs: rule}).Hidden)
	prompt := n.PromptOf(rule)
	note("prompt", prompt)
	grid, target := u.grid(g.grid("grid")), g.grid("target")
	before := n.Predict(grid, prompt)
	note("logits_before", before)
	r := n.Refine(prompt, control, features, constant("noise"))
	u.step(&r)
	note("x", r.State)
	note("mu", r.Mean)
	note("u", r.U)
	note("delta", r.Delta)
	note("alpha", r.Alpha)
	note("refined", r.Prompt)
	note("value", r.Value)
	note("features_after", n.Features(grid, r.Prompt))
	after := n.Predict(grid, r.Prompt)
	note("logits_after", after)
	resized := u.resize(after, target.H, target.W)
	note("logits_resized", resized)
	last := ad.Slice(resized, 0, m.Config.Steps-1, m.Config.Steps)
	lp := nn.LogProb(last, target.Cells)
	note("logp", lp)
	mean := ad.Mean(lp, false)
	note("mean_logp", mean)

	x := u.detach(r.State)
	logp, value, entropy := n.Evaluate(x, u.detach(u.action(r)))
	next := u.detach(ad.Concat(0, u.next(r), control, features))
	icm := n.Curiosity(x, u.detach(r.Delta), next)
	d := ad.AddScalar(value, -g.reward)
	loss := u.loss(logp, ad.Neg(ad.Detach(d)))
	loss = ad.Add(loss, ad.Scale(ad.Mul(d, d), 0.5))
	loss = ad.Add(loss, ad.Sub(ad.Scale(icm, 0.1), ad.Scale(entropy, 0.01)))
	note("policy_logp", logp)
	note("entropy", entropy)
	note("icm", icm)
	note("policy_loss", loss)

	ad.Backward(mean, []float64{1})
	w["grad"] = gradients(g.values, "float64/grad/", n.Var)
	w["elsewhere"] = 0
	for _, t := range m.Config.Tensors() {
		if _, ok := g.values["float64/grad/"+t.Name]; !ok { // a weight that autograd did not reach
			for _, d := range n.Var(t.Name).Grad() {
				w["elsewhere"] = max(w["elsewhere"], math.Abs(d))
			}
		}
		n.Var(t.Name).ZeroGrad()
	}
	ad.Backward(loss, []float64{1})
	w["policy_grad"] = gradients(g.values, "float64/policy_grad/", n.Var)
	w["policy_elsewhere"] = 0
	for _, t := range m.Config.Tensors() {
		if _, ok := g.values["float64/policy_grad/"+t.Name]; !ok {
			for _, d := range n.Var(t.Name).Grad() {
				w["policy_elsewhere"] = max(w["policy_elsewhere"], math.Abs(d))
			}
		}
	}
	return w
}

func TestArcGolden(t *testing.T) {
	g := readArc(t)
	m := g.model(t)
	w := g.compare(m, healthyArc())
	t.Logf("%v", w)
	require.Empty(t, w.outside(), "%v", w)

	n := m.On(new(ad.Tape), nil)
	prompt := n.tape.Const(g.values["float64/prompt"].data, m.Config.Prompt)
	require.Equal(t, g.grid("predictions_before"), GridOf(n.Predict(g.grid("grid"), prompt)))
	prompt = n.tape.Const(g.values["float64/refined"].data, m.Config.Prompt)
	after := GridOf(n.Predict(g.grid("grid"), prompt))
	require.Equal(t, g.grid("predictions_after"), after)
	require.Equal(t, g.grid("predictions_resized"), after.Resize(6, 3))
}

// Between them the two gradients of the golden reach every weight, and autograd names the same weights as the formulas: the
// first reaches the encoder through the refined prompt, the second stays inside the policy.
func TestArcGoldenIsWhole(t *testing.T) {
	g := readArc(t)
	for _, w := range g.config.Tensors() {
		policy := strings.HasPrefix(w.Name, "policy_rl.")
		acts := strings.HasPrefix(w.Name, "policy_rl.pi_") || strings.HasPrefix(w.Name, "policy_rl.alpha_head")
		_, first := g.values["float64/grad/"+w.Name]
		_, second := g.values["float64/policy_grad/"+w.Name]
		// only the last of the planning steps is judged, and nothing but α depends on alpha_head
		step := strings.HasPrefix(w.Name, "agent.planning_steps.") && !strings.HasPrefix(w.Name, "agent.planning_steps.2.")
		require.Equal(t, (!policy || acts) && !step, first && !allZero(g.values["float64/grad/"+w.Name].data), w.Name)
		require.Equal(t, policy && !strings.HasPrefix(w.Name, "policy_rl.alpha_head"), second && !allZero(g.values["float64/policy_grad/"+w.Name].data), w.Name)
	}
}

func allZero(x []float64) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}

// Faults of the ARC agent, and the golden value that shows each.
func TestArcFaults(t *testing.T) {
	g := readArc(t)
	// kernel replaces the kernels [O, I, M, N] of the convolutions.
	kernel := func(f func(w *ad.Var) *ad.Var) func(*ArcAgent, *arcUsage) {
		return func(m *ArcAgent, _ *arcUsage) {
			m.ops.conv = func(x, w, b *ad.Var, pad int) *ad.Var { return nn.Conv2D(x, f(w), b, pad) }
		}
	}
	for _, f := range []struct {
		fault, caught string
		plant         func(m *ArcAgent, u *arcUsage)
	}{
		{"rows and columns of the kernels exchanged", "logits_before", kernel(func(w *ad.Var) *ad.Var { return ad.Transpose(w, 2, 3) })},
		{"kernels flipped", "logits_before", kernel(func(w *ad.Var) *ad.Var {
			s := w.Shape()
			var places []*ad.Var
			flat := ad.Reshape(w, s[0], s[1], s[2]*s[3])
			for i := s[2]*s[3] - 1; i >= 0; i-- {
				places = append(places, ad.Slice(flat, 2, i, i+1))
			}
			return ad.Reshape(ad.Concat(2, places...), s...)
		})},
		{"biases of the convolutions dropped", "logits_before", func(m *ArcAgent, _ *arcUsage) {
			m.ops.conv = func(x, w, _ *ad.Var, pad int) *ad.Var { return nn.Conv2D(x, w, nil, pad) }
		}},
		{"the border repeated in place of zeros", "logits_before", func(m *ArcAgent, _ *arcUsage) {
			m.ops.conv = func(x, w, b *ad.Var, pad int) *ad.Var {
				for axis := 2; axis < 4 && pad > 0; axis++ {
					n := x.Shape()[axis]
					x = ad.Concat(axis, ad.Slice(x, axis, 0, 1), x, ad.Slice(x, axis, n-1, n))
				}
				return nn.Conv2D(x, w, b, 0)
			}
		}},
		{"the grid transposed", "logits_before", func(_ *ArcAgent, u *arcUsage) {
			u.grid = func(g Grid) Grid {
				r := Grid{H: g.H, W: g.W, Cells: make([]int, len(g.Cells))}
				for i := range g.H {
					for j := range g.W {
						r.Cells[j*g.H+i] = g.Cells[i*g.W+j]
					}
				}
				return r
			}
		}},
		{"GELU for ReLU", "logits_before", func(m *ArcAgent, _ *arcUsage) { m.ops.relu = nn.GELU }},
		{"prompt before the grid's channels", "logits_before", func(m *ArcAgent, _ *arcUsage) {
			m.ops.join = func(grid, prompt *ad.Var) *ad.Var { return ad.Concat(1, prompt, grid) }
		}},
		{"prompt ignored by the agent", "logits_before", func(m *ArcAgent, _ *arcUsage) {
			m.ops.join = func(grid, prompt *ad.Var) *ad.Var { return ad.Concat(1, grid, ad.Scale(prompt, 0)) }
		}},
		{"prompt from the last token", "prompt", func(m *ArcAgent, _ *arcUsage) {
			m.ops.pool = func(h *ad.Var) *ad.Var {
				s := h.Shape()
				return ad.Reshape(ad.Slice(h, 1, s[1]-1, s[1]), 1, s[2])
			}
		}},
		{"prompt from the first token", "prompt", func(m *ArcAgent, _ *arcUsage) {
			m.ops.pool = func(h *ad.Var) *ad.Var { return ad.Reshape(ad.Slice(h, 1, 0, 1), 1, -1) }
		}},
		{"encoder detached (detach)", "grad", func(m *ArcAgent, _ *arcUsage) {
			m.ops.pool = func(h *ad.Var) *ad.Var { return ad.Detach(ad.Mean(h, false, 1)) }
		}},
		{"refinement without gradient (no_grad)", "grad", func(_ *ArcAgent, u *arcUsage) {
			u.step = func(r *Refinement) { r.Prompt = ad.Detach(r.Prompt) }
		}},
		{"gradient through δ only", "grad", func(m *ArcAgent, _ *arcUsage) {
			m.ops.refine = func(prompt, alpha, delta *ad.Var) *ad.Var { return ad.Add(prompt, ad.Mul(ad.Detach(alpha), delta)) }
		}},
		{"α on the prompt too", "refined", func(m *ArcAgent, _ *arcUsage) {
			m.ops.refine = func(prompt, alpha, delta *ad.Var) *ad.Var { return ad.Mul(alpha, ad.Add(prompt, delta)) }
		}},
		{"δ for α·δ", "refined", func(m *ArcAgent, _ *arcUsage) {
			m.ops.refine = func(prompt, _, delta *ad.Var) *ad.Var { return ad.Add(prompt, delta) }
		}},
		{"nearest for bilinear", "logits_resized", func(_ *ArcAgent, u *arcUsage) {
			u.resize = func(x *ad.Var, h, w int) *ad.Var {
				s := x.Shape()
				rows := Grid{H: s[1], W: s[2]}
				for i := range s[1] * s[2] {
					rows.Cells = append(rows.Cells, i)
				}
				table := ad.Reshape(ad.Permute(x, 1, 2, 0, 3), s[1]*s[2], s[0]*s[3])
				return ad.Permute(ad.Reshape(ad.Embedding(table, rows.Resize(h, w).Cells, h*w), h, w, s[0], s[3]), 2, 0, 1, 3)
			}
		}},
		{"bilinear with aligned corners", "logits_resized", func(_ *ArcAgent, u *arcUsage) {
			u.resize = func(x *ad.Var, h, w int) *ad.Var {
				aligned := func(m, n int) *ad.Var {
					r := make([]float64, m*n)
					for i := range m {
						s := float64(i) * float64(n-1) / float64(m-1)
						lo := min(int(s), n-1)
						r[i*n+lo] += 1 - (s - float64(lo))
						r[i*n+min(lo+1, n-1)] += s - float64(lo)
					}
					return x.Tape().Const(r, m, n)
				}
				s := x.Shape()
				y := ad.MatMul(ad.MatMul(aligned(h, s[1]), ad.Permute(x, 0, 3, 1, 2), false, false), aligned(w, s[2]), false, true)
				return ad.Permute(y, 0, 2, 3, 1)
			}
		}},
		{"density of the Gaussian at u, no change of variables", "policy_logp", func(m *ArcAgent, _ *arcUsage) {
			m.ops.logp = func(u, mean, logstd *ad.Var, s float64) *ad.Var {
				z := ad.Div(ad.Sub(u, mean), ad.Exp(logstd))
				return ad.Sum(ad.AddScalar(ad.Sub(ad.Scale(ad.Mul(z, z), -0.5), logstd), -math.Log(2*math.Pi)/2), false)
			}
		}},
		{"density at δ, as the original has it", "policy_logp", func(m *ArcAgent, u *arcUsage) {
			u.action = func(r Refinement) *ad.Var { return r.Delta }
		}},
		{"scale of δ left out of the density", "policy_logp", func(m *ArcAgent, _ *arcUsage) {
			m.ops.logp = func(u, mean, logstd *ad.Var, _ float64) *ad.Var { return tanhNormal(u, mean, logstd, 1) }
		}},
		{"σ for σ² in the density", "policy_logp", func(m *ArcAgent, _ *arcUsage) {
			m.ops.logp = func(u, mean, logstd *ad.Var, s float64) *ad.Var {
				return tanhNormal(u, mean, ad.Scale(logstd, 0.5), s)
			}
		}},
		{"curiosity about the same state, as the original has it", "icm", func(_ *ArcAgent, u *arcUsage) {
			u.next = func(r Refinement) *ad.Var { return ad.Slice(r.State, 0, 0, r.Prompt.Size()) }
		}},
		{"the update's state not detached", "policy_elsewhere", func(_ *ArcAgent, u *arcUsage) {
			u.detach = func(x *ad.Var) *ad.Var { return x }
		}},
		{"log-density detached in the update", "policy_grad", func(_ *ArcAgent, u *arcUsage) {
			u.loss = func(logp, advantage *ad.Var) *ad.Var { return ad.Neg(ad.Mul(ad.Detach(logp), advantage)) }
		}},
		{"sign of the advantage", "policy_loss", func(_ *ArcAgent, u *arcUsage) {
			u.loss = func(logp, advantage *ad.Var) *ad.Var { return ad.Mul(logp, advantage) }
		}},
	} {
		t.Run(f.fault, func(t *testing.T) {
			m, u := g.model(t), healthyArc()
			f.plant(m, &u)
			w := g.compare(m, u)
			require.False(t, math.IsNaN(w[f.caught]))
			require.Contains(t, w.outside(), f.caught)
		})
	}
}
