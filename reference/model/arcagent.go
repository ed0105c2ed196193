package model

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// ArcAgentConfig is what an [ArcAgent] is made of. The comments name the keys of its config.json and the sizes of the
// original, wonnowone/ARC-EFE at commit d9e76e2.
type ArcAgentConfig struct {
	Colors  int // num_colors, 10
	Prompt  int // prompt_dim P, 256
	Hidden  int // hidden_dim C of the agent, 256
	Encoder int // encoder_dim, the channels of its first convolution: half of hidden_dim in the original
	Steps   int // max_steps T, the heads of the agent; 5, of which the original uses 3
	Policy  ArcPolicyConfig
	Text    Config // the text encoder: a Qwen2 whose head is not used, so Tied is set
}

// ArcPolicyConfig is the prompt policy of an [ArcAgent].
type ArcPolicyConfig struct {
	Control    int     // ctrl_dim, 256
	Features   int     // feat_dim, 32
	Hidden     int     // hidden, 512
	DeltaScale float64 // delta_scale, the largest change of an element of a prompt, 0.2
}

// Validate returns an error that names the first fact that is out of range.
func (c ArcAgentConfig) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"num_colors", c.Colors}, {"prompt_dim", c.Prompt}, {"hidden_dim", c.Hidden}, {"encoder_dim", c.Encoder}, {"max_steps", c.Steps},
		{"policy.ctrl_dim", c.Policy.Control}, {"policy.feat_dim", c.Policy.Features}, {"policy.hidden", c.Policy.Hidden},
	} {
		if f.value < 1 || f.value > math.MaxInt32 {
			return fmt.Errorf("model: arcagent: %s %d is out of range", f.name, f.value)
		}
	}
	if s := c.Policy.DeltaScale; !(s > 0) || math.IsInf(s, 0) {
		return fmt.Errorf("model: arcagent: policy.delta_scale %g is not positive", s)
	}
	if c.Text.Kind != Qwen2 || !c.Text.Tied {
		return errors.New("model: arcagent: the text encoder is a qwen2 without a head of its own")
	}
	if err := c.Text.Validate(); err != nil {
		return fmt.Errorf("model: arcagent: text: %w", err)
	}
	return nil
}

// textEncoder is where the weights of the text encoder are: qwen.transformer.layers.0 is its first layer.
const textEncoder = "qwen.transformer."

// textName returns the name that a weight of the text encoder has in its own model, and whether it is one.
func textName(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, textEncoder)
	return "model." + rest, ok
}

// Tensors returns the weights in the order of the forward pass. Those of the agent and of the policy have the original's
// names after agent. and policy_rl., except that the original keeps the policy in a rl_augmentor. It panics if c is not
// valid.
func (c ArcAgentConfig) Tensors() []Tensor {
	if err := c.Validate(); err != nil {
		panic(err.Error())
	}
	var t []Tensor
	for _, w := range c.Text.Tensors() {
		t = append(t, Tensor{textEncoder + strings.TrimPrefix(w.Name, "model."), w.Shape})
	}
	return append(t, c.ownTensors()...)
}

// ownTensors returns the weights outside the text encoder.
func (c ArcAgentConfig) ownTensors() []Tensor {
	var t []Tensor
	layer := func(name string, shape ...int) {
		t = append(t, blank(name, "weight", shape...), blank(name, "bias", shape[0]))
	}
	layer("qwen.proj", c.Prompt, c.Text.Hidden)
	layer("agent.input_encoder.0", c.Encoder, c.Colors, 3, 3)
	layer("agent.input_encoder.2", c.Hidden, c.Encoder, 3, 3)
	layer("agent.prompt_processor.0", c.Hidden, c.Prompt)
	layer("agent.prompt_processor.2", c.Hidden, c.Hidden)
	layer("agent.fusion.0", c.Hidden, 2*c.Hidden, 1, 1)
	layer("agent.fusion.2", c.Hidden, c.Hidden, 3, 3)
	for i := range c.Steps {
		p := fmt.Sprintf("agent.planning_steps.%d.", i)
		layer(p+"0", c.Hidden, c.Hidden, 3, 3)
		layer(p+"2", c.Colors, c.Hidden, 1, 1)
	}
	p, x := c.Policy, c.Prompt+c.Policy.Control+c.Policy.Features
	mlp := func(name string, in, out int) {
		layer(name+".0", p.Hidden, in)
		layer(name+".2", p.Hidden, p.Hidden)
		layer(name+".4", out, p.Hidden)
	}
	mlp("policy_rl.pi_mean", x, c.Prompt)
	t = append(t, Tensor{"policy_rl.pi_logstd", []int{c.Prompt}})
	mlp("policy_rl.alpha_head", x, 1)
	mlp("policy_rl.v", x, 1)
	mlp("policy_rl.phi", x, p.Hidden)
	mlp("policy_rl.phi_pred", x+c.Prompt, p.Hidden)
	return t
}

// An ArcAgent solves grids of the ARC tasks: a text encoder makes a prompt from a sentence about a task, a convolutional
// agent predicts a grid from a grid and the prompt, and a policy changes the prompt.
//
// It follows wonnowone/ARC-EFE at commit d9e76e2 where that is sound. There the projection of the encoder's state to the
// prompt is drawn anew in every forward pass and trained by no one; here it is qwen.proj, a weight. The log-density of an
// action and the state that curiosity predicts are those that the formulas ask for, see [ArcNet.Evaluate] and
// [ArcNet.Curiosity].
type ArcAgent struct {
	Config  ArcAgentConfig
	tensors []Tensor // without the text encoder's
	data    map[string][]float64
	text    *Model
	ops     arcOps
}

// arcOps are the operations that may differ between look-alikes of this model. A test replaces one to plant a fault.
type arcOps struct {
	linear func(x, w, b *ad.Var) *ad.Var
	conv   func(x, w, b *ad.Var, pad int) *ad.Var
	relu   func(x *ad.Var) *ad.Var
	pool   func(hidden *ad.Var) *ad.Var                     // [1, T, C] to [1, C]
	join   func(grid, prompt *ad.Var) *ad.Var               // both [1, C, H, W], to [1, 2C, H, W]
	refine func(prompt, alpha, delta *ad.Var) *ad.Var       // [P]
	logp   func(u, mean, logstd *ad.Var, s float64) *ad.Var // [P] to a scalar
}

// NewArcAgent returns the model with the given configuration and weights. It returns an error if the configuration is not
// valid or a weight is missing.
func NewArcAgent(c ArcAgentConfig, w Weights) (*ArcAgent, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	text, err := New(c.Text, func(name string, shape ...int) ([]float64, error) {
		return w(textEncoder+strings.TrimPrefix(name, "model."), shape...)
	})
	if err != nil {
		return nil, err
	}
	m := &ArcAgent{Config: c, tensors: c.ownTensors(), text: text, ops: arcOps{
		linear: nn.Linear,
		conv:   nn.Conv2D,
		relu:   func(x *ad.Var) *ad.Var { return ad.Clamp(x, 0, math.Inf(1)) },
		pool:   func(hidden *ad.Var) *ad.Var { return ad.Mean(hidden, false, 1) },
		join:   func(grid, prompt *ad.Var) *ad.Var { return ad.Concat(1, grid, prompt) },
		refine: func(prompt, alpha, delta *ad.Var) *ad.Var { return ad.Add(prompt, ad.Mul(alpha, delta)) },
		logp:   tanhNormal,
	}}
	m.data, err = load(w, m.tensors)
	return m, err
}

// An ArcNet is an [ArcAgent] on a tape.
type ArcNet struct {
	*params
	Config ArcAgentConfig
	Text   *Net // the text encoder; its weights have the names of [Config.Tensors]
	ops    arcOps
}

// On puts the model on a tape. The weights for which weight says so, by the names of [ArcAgentConfig.Tensors], are
// parameters; nil: none, and the tape keeps nothing.
func (m *ArcAgent) On(t *ad.Tape, weight func(name string) bool) *ArcNet {
	return m.OnAdapted(t, weight, Trainable{})
}

// OnAdapted is On with the adapter of text, whose layers have the names of [Config.Linears]; what text says of the weights is not
// read. Its factors are those of Text.
func (m *ArcAgent) OnAdapted(t *ad.Tape, weight func(name string) bool, text Trainable) *ArcNet {
	train := Trainable{Adapter: text.Adapter, LoRA: text.LoRA}
	if weight != nil {
		train.Weight = func(name string) bool { return weight(textEncoder + strings.TrimPrefix(name, "model.")) }
	}
	return &ArcNet{bind(t, m.tensors, m.data, weight), m.Config, m.text.On(t, train), m.ops}
}

// Var returns a weight on the tape by its name in [ArcAgentConfig.Tensors]. It panics if there is none.
func (n *ArcNet) Var(name string) *ad.Var {
	if inner, ok := textName(name); ok {
		return n.Text.Var(inner)
	}
	return n.params.Var(name)
}

func (n *ArcNet) linear(x *ad.Var, name string) *ad.Var {
	return n.ops.linear(x, n.Var(name+".weight"), n.bias(name))
}

// conv applies a convolution that keeps the size of the grid.
func (n *ArcNet) conv(x *ad.Var, name string) *ad.Var {
	w := n.Var(name + ".weight")
	return n.ops.conv(x, w, n.bias(name), w.Shape()[2]/2)
}

// mlp applies three linear layers with ReLU between them to x [in], as [out].
func (n *ArcNet) mlp(x *ad.Var, name string) *ad.Var {
	h := ad.Reshape(x, 1, -1)
	h = n.ops.relu(n.linear(h, name+".0"))
	h = n.ops.relu(n.linear(h, name+".2"))
	return ad.Reshape(n.linear(h, name+".4"), -1)
}

// PromptOf returns the prompt [P] that the tokens of one sentence make: the projection of the mean, over all of them, of the
// text encoder's last hidden states. It panics if ids is empty or holds an id outside the vocabulary.
func (n *ArcNet) PromptOf(ids []int) *ad.Var {
	hidden := n.Text.Forward(Input{Batch: 1, Time: len(ids), IDs: ids}).Hidden
	return ad.Reshape(n.linear(n.ops.pool(hidden), "qwen.proj"), -1)
}

// A Grid is a picture of H rows and W columns of colours, row-major.
type Grid struct {
	H, W  int
	Cells []int
}

// Features returns the hidden state [1, C, H, W] of a grid under a prompt [P]: two convolutions see the one-hot grid, the
// processed prompt is laid beside their channels at every cell, and two more convolutions mix them. It panics if the grid is
// empty or has a colour outside [0, Colors), or the prompt another length.
func (n *ArcNet) Features(g Grid, prompt *ad.Var) *ad.Var {
	c := n.Config
	if g.H < 1 || g.W < 1 || len(g.Cells) != g.H*g.W || prompt.Size() != c.Prompt {
		panic(fmt.Sprintf("model: arcagent: a grid of %d×%d with %d cells and a prompt of %d", g.H, g.W, len(g.Cells), prompt.Size()))
	}
	hot := make([]float64, c.Colors*g.H*g.W)
	for i, v := range g.Cells {
		if v < 0 || v >= c.Colors {
			panic(fmt.Sprintf("model: arcagent: colour %d at row %d, column %d", v, i/g.W, i%g.W))
		}
		hot[v*g.H*g.W+i] = 1
	}
	x := n.tape.Const(hot, 1, c.Colors, g.H, g.W)
	x = n.ops.relu(n.conv(x, "agent.input_encoder.0"))
	x = n.ops.relu(n.conv(x, "agent.input_encoder.2"))

	p := n.ops.relu(n.linear(ad.Reshape(prompt, 1, -1), "agent.prompt_processor.0"))
	p = n.linear(p, "agent.prompt_processor.2")
	p = ad.BroadcastTo(ad.Reshape(p, 1, c.Hidden, 1, 1), 1, c.Hidden, g.H, g.W)

	x = n.ops.relu(n.conv(n.ops.join(x, p), "agent.fusion.0"))
	return n.ops.relu(n.conv(x, "agent.fusion.2"))
}

// Predict returns the logits [T, H, W, Colors] of the T planning steps for a grid under a prompt [P]: heads of two
// convolutions each, side by side on [ArcNet.Features], none of which reads another's result. It panics as Features does.
func (n *ArcNet) Predict(g Grid, prompt *ad.Var) *ad.Var {
	x := n.Features(g, prompt)
	var steps []*ad.Var
	for i := range n.Config.Steps {
		name := fmt.Sprintf("agent.planning_steps.%d.", i)
		steps = append(steps, n.conv(n.ops.relu(n.conv(x, name+"0")), name+"2"))
	}
	return ad.Permute(ad.Concat(0, steps...), 0, 2, 3, 1)
}

// A Refinement is one step of the prompt policy.
type Refinement struct {
	State  *ad.Var // x = [prompt, control, features]
	Mean   *ad.Var // μ = pi_mean(x), [P]
	U      *ad.Var // u = μ + e^{pi_logstd}·noise, [P]
	Delta  *ad.Var // DeltaScale·tanh(u), [P]
	Alpha  *ad.Var // σ(alpha_head(x)), [1]
	Prompt *ad.Var // the refined prompt: prompt + alpha·delta, [P]
	Value  *ad.Var // v(x), [1]
}

// Refine changes a prompt [P] given a control vector, features of the task and noise [P], a draw from the standard normal
// distribution. (1 − α)·prompt + α·(prompt + δ), as the original writes it, is prompt + α·δ. It panics if a length does not
// fit.
func (n *ArcNet) Refine(prompt, control, features, noise *ad.Var) Refinement {
	c := n.Config
	if prompt.Size() != c.Prompt || noise.Size() != c.Prompt || control.Size() != c.Policy.Control || features.Size() != c.Policy.Features {
		panic(fmt.Sprintf("model: arcagent: refinement of a prompt of %d with %d control, %d features, %d of noise", prompt.Size(), control.Size(), features.Size(), noise.Size()))
	}
	r := Refinement{State: ad.Concat(0, prompt, control, features)}
	r.Mean = n.mlp(r.State, "policy_rl.pi_mean")
	r.U = ad.Add(r.Mean, ad.Mul(ad.Exp(n.Var("policy_rl.pi_logstd")), noise))
	r.Delta = ad.Scale(ad.Tanh(r.U), c.Policy.DeltaScale)
	r.Alpha = ad.Sigmoid(n.mlp(r.State, "policy_rl.alpha_head"))
	r.Prompt = n.ops.refine(prompt, r.Alpha, r.Delta)
	r.Value = n.mlp(r.State, "policy_rl.v")
	return r
}

// Evaluate returns, for a state x and the u [P] sampled there, the log-density of the action δ = s·tanh(u), s = DeltaScale,
// the value of the state and the entropy of u:
//
//	log π = Σ_i [−((u_i − μ_i)/σ_i)²/2 − ln σ_i − ½·ln 2π] − Σ_i ln(s·(1 − tanh²u_i))
//	H     = Σ_i [½·(1 + ln 2π) + ln σ_i]
//
// with μ = pi_mean(x) and σ = e^{pi_logstd}. The second sum is the change of variables from u to δ (Haarnoja et al. 2018,
// https://arxiv.org/abs/1801.01290, Appendix C). α is a function of the state and has no density. The original takes the
// Gaussian's density at δ itself. For an update, x and u are constants: hand in [ad.Detach] of those of [ArcNet.Refine].
func (n *ArcNet) Evaluate(x, u *ad.Var) (logp, value, entropy *ad.Var) {
	logstd := n.Var("policy_rl.pi_logstd")
	logp = n.ops.logp(u, n.mlp(x, "policy_rl.pi_mean"), logstd, n.Config.Policy.DeltaScale)
	value = n.mlp(x, "policy_rl.v")
	entropy = ad.Sum(ad.AddScalar(logstd, (1+math.Log(2*math.Pi))/2), false)
	return logp, value, entropy
}

// tanhNormal returns the log-density of s·tanh(u) where u is normal. ln(1 − tanh²u) is written as
// 2·ln 2 − 2|u| − 2·ln(1 + e^{−2|u|}), which does not cancel where tanh u is near ±1.
func tanhNormal(u, mean, logstd *ad.Var, s float64) *ad.Var {
	z := ad.Div(ad.Sub(u, mean), ad.Exp(logstd))
	normal := ad.AddScalar(ad.Sub(ad.Scale(ad.Mul(z, z), -0.5), logstd), -math.Log(2*math.Pi)/2)
	a := ad.Scale(ad.Abs(u), -2)
	slope := ad.AddScalar(ad.Sub(a, ad.Scale(ad.Log1p(ad.Exp(a)), 2)), 2*math.Ln2+math.Log(s))
	return ad.Sum(ad.Sub(normal, slope), false)
}

// Curiosity returns how badly the embedding of the next state was predicted from a state x and an action a [P]:
//
//	Σ_i (phi_pred([x, a])_i − phi(next)_i)² / Hidden
//
// It is the forward loss of an intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363, Equation
// 5). next is the state that the refined prompt makes; the original hands in x once more.
func (n *ArcNet) Curiosity(x, a, next *ad.Var) *ad.Var {
	d := ad.Sub(n.mlp(ad.Concat(0, x, a), "policy_rl.phi_pred"), n.mlp(next, "policy_rl.phi"))
	return ad.Mean(ad.Mul(d, d), false)
}

// ResizeLogits returns logits [T, H, W, C] at the size h×w by bilinear interpolation, as
// torch.nn.functional.interpolate does with align_corners=False: along each axis of n cells that becomes m, cell i reads
//
//	y_i = (1 − λ)·x_⌊s⌋ + λ·x_{min(⌊s⌋+1, n−1)},   s = max(0, (i + ½)·n/m − ½),   λ = s − ⌊s⌋
//
// It panics if a size is not positive.
func ResizeLogits(x *ad.Var, h, w int) *ad.Var {
	s := x.Shape()
	if len(s) != 4 || s[1] < 1 || s[2] < 1 || h < 1 || w < 1 {
		panic(fmt.Sprintf("model: arcagent: logits of shape %v at %d×%d", s, h, w))
	}
	x = ad.Permute(x, 0, 3, 1, 2)
	x = ad.MatMul(bilinear(x.Tape(), h, s[1]), x, false, false)
	x = ad.MatMul(x, bilinear(x.Tape(), w, s[2]), false, true)
	return ad.Permute(x, 0, 2, 3, 1)
}

// bilinear returns the matrix [m, n] that interpolates n cells at m places.
func bilinear(t *ad.Tape, m, n int) *ad.Var {
	r := make([]float64, m*n)
	for i := range m {
		s := max(0, float64((float64(i)+0.5)*(float64(n)/float64(m)))-0.5)
		lo := min(int(s), n-1)
		part := s - float64(lo)
		r[i*n+lo] += 1 - part
		r[i*n+min(lo+1, n-1)] += part
	}
	return t.Const(r, m, n)
}

// GridOf returns the grid that logits [T, H, W, Colors] predict: the most likely colours of the last step, the first one of
// equals.
func GridOf(logits *ad.Var) Grid {
	s := logits.Shape()
	if len(s) != 4 || s[0] < 1 || s[3] < 1 {
		panic(fmt.Sprintf("model: arcagent: the colours of logits of shape %v", s))
	}
	g := Grid{H: s[1], W: s[2], Cells: make([]int, s[1]*s[2])}
	last := logits.Data()[(s[0]-1)*len(g.Cells)*s[3]:]
	for i := range g.Cells {
		cell := last[i*s[3] : (i+1)*s[3]]
		for v, x := range cell {
			if x > cell[g.Cells[i]] {
				g.Cells[i] = v
			}
		}
	}
	return g
}

// Resize returns the grid at the size h×w by the nearest cell, ⌊i·H/h⌋ and ⌊j·W/w⌋, as torch.nn.functional.interpolate does
// with mode nearest. It panics if a size is not positive.
func (g Grid) Resize(h, w int) Grid {
	if g.H < 1 || g.W < 1 || len(g.Cells) != g.H*g.W || h < 1 || w < 1 {
		panic(fmt.Sprintf("model: arcagent: a grid of %d×%d with %d cells at %d×%d", g.H, g.W, len(g.Cells), h, w))
	}
	r := Grid{H: h, W: w, Cells: make([]int, 0, h*w)}
	for i := range h {
		for j := range w {
			r.Cells = append(r.Cells, g.Cells[i*g.H/h*g.W+j*g.W/w])
		}
	}
	return r
}
