package model

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tinyArc is the smallest agent that has every part.
func tinyArc() ArcAgentConfig {
	return ArcAgentConfig{Colors: 3, Prompt: 3, Hidden: 2, Encoder: 1, Steps: 2, Policy: ArcPolicyConfig{Control: 1, Features: 2, Hidden: 3, DeltaScale: 0.2},
		Text: Config{Kind: Qwen2, Vocab: 4, Hidden: 3, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 2, Intermediate: 3, MaxPositions: 16, Eps: 1e-6, Activation: "silu", Tied: true, QKVBias: true,
			RoPE: nn.RoPE{Dim: 2, Theta: 10000}}}
}

// randomArc is an agent with random sizes and weights, a grid for it and a prompt.
func randomArc(t *rapid.T) (*ArcAgent, Grid, []float64) {
	size := func(lo, hi int, name string) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	c := tinyArc()
	c.Colors, c.Prompt, c.Hidden, c.Encoder, c.Steps = size(2, 4, "colors"), size(1, 4, "P"), size(1, 3, "C"), size(1, 3, "E"), size(1, 3, "T")
	seed := rapid.Uint64().Draw(t, "seed")
	m, err := NewArcAgent(c, drawn(seed))
	require.NoError(t, err)
	g := Grid{H: size(1, 5, "H"), W: size(1, 5, "W")}
	rng := rand.New(rand.NewPCG(seed, 2))
	for range g.H * g.W {
		g.Cells = append(g.Cells, rng.IntN(c.Colors))
	}
	prompt := make([]float64, c.Prompt)
	for i := range prompt {
		prompt[i] = rng.NormFloat64()
	}
	return m, g, prompt
}

// predict returns logits without a tape.
func (m *ArcAgent) predict(g Grid, prompt []float64) *ad.Var {
	n := m.On(new(ad.Tape), nil)
	return n.Predict(g, n.tape.Const(prompt, len(prompt)))
}

// change returns the agent with one weight replaced by f of it as a tensor.
func (m *ArcAgent) change(f func(name string, w *ad.Var) *ad.Var) *ArcAgent {
	other := *m
	other.data = map[string][]float64{}
	for _, t := range m.tensors {
		other.data[t.Name] = f(t.Name, new(ad.Tape).Const(m.data[t.Name], t.Shape...)).Data()
	}
	return &other
}

// A picture turned at its diagonal, with all kernels turned too, gives the turned prediction.
func TestArcTransposed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, g, prompt := randomArc(t)
		turned := Grid{H: g.W, W: g.H}
		for j := range g.W {
			for i := range g.H {
				turned.Cells = append(turned.Cells, g.Cells[i*g.W+j])
			}
		}
		other := m.change(func(_ string, w *ad.Var) *ad.Var {
			if len(w.Shape()) == 4 {
				return ad.Transpose(w, 2, 3)
			}
			return w
		})
		want := ad.Transpose(m.predict(g, prompt), 1, 2)
		got := other.predict(turned, prompt)
		require.Equal(t, want.Shape(), got.Shape())
		require.InDeltaSlice(t, want.Data(), got.Data(), 1e-10)
	})
}

// Colours are names: renaming them in the grid, in the first kernel and in the heads renames them in the prediction.
func TestArcColours(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, g, prompt := randomArc(t)
		c := m.Config.Colors
		turn := func(v int) int { return (v + 1) % c }
		renamed := Grid{H: g.H, W: g.W}
		for _, v := range g.Cells {
			renamed.Cells = append(renamed.Cells, turn(v))
		}
		roll := func(w *ad.Var, axis int) *ad.Var {
			return ad.Concat(axis, ad.Slice(w, axis, c-1, c), ad.Slice(w, axis, 0, c-1))
		}
		other := m.change(func(name string, w *ad.Var) *ad.Var {
			switch {
			case name == "agent.input_encoder.0.weight":
				return roll(w, 1)
			case strings.HasPrefix(name, "agent.planning_steps") && (strings.HasSuffix(name, ".2.weight") || strings.HasSuffix(name, ".2.bias")):
				return roll(w, 0)
			}
			return w
		})
		require.InDeltaSlice(t, roll(m.predict(g, prompt), 3).Data(), other.predict(renamed, prompt).Data(), 1e-10)
	})
}

// The planning steps stand side by side: another first head leaves the others bit by bit.
func TestArcStepsAreParallel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, g, prompt := randomArc(t)
		other := m.change(func(name string, w *ad.Var) *ad.Var {
			if strings.HasPrefix(name, "agent.planning_steps.0.2") {
				return ad.AddScalar(w, 1)
			}
			return w
		})
		a, b := m.predict(g, prompt).Data(), other.predict(g, prompt).Data()
		n := len(a) / m.Config.Steps
		require.NotEqual(t, a[:n], b[:n])
		require.Equal(t, a[n:], b[n:])
	})
}

// The refined prompt is (1 − α)·prompt + α·(prompt + δ), nowhere further from the prompt than DeltaScale·α; with u = 0 it is
// the prompt bit by bit.
func TestArcRefine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, _, prompt := randomArc(t)
		noise := make([]float64, len(prompt))
		for i := range noise {
			noise[i] = rapid.Float64Range(-3, 3).Draw(t, "noise")
		}
		run := func(m *ArcAgent, noise []float64) Refinement {
			n := m.On(new(ad.Tape), nil)
			of := func(x ...float64) *ad.Var { return n.tape.Const(x, len(x)) }
			return n.Refine(of(prompt...), of(0.3), of(-1, 2), of(noise...))
		}
		r := run(m, noise)
		alpha := r.Alpha.Item()
		require.True(t, alpha > 0 && alpha < 1)
		for i, p := range prompt {
			d := r.Delta.Data()[i]
			require.LessOrEqual(t, math.Abs(d), m.Config.Policy.DeltaScale)
			require.InDelta(t, (1-alpha)*p+alpha*(p+d), r.Prompt.Data()[i], 1e-12)
			require.InDelta(t, 0.2*math.Tanh(r.U.Data()[i]), d, 1e-15)
		}
		still := m.change(func(name string, w *ad.Var) *ad.Var {
			if strings.HasPrefix(name, "policy_rl.pi_mean.4") {
				return ad.Scale(w, 0)
			}
			return w
		})
		require.Equal(t, prompt, run(still, make([]float64, len(prompt))).Prompt.Data())
	})
}

// The density of an action integrates to 1 over (−s, s); its logarithm is that of the change of variables wherever that can
// be computed, and finite beyond.
func TestTanhNormal(t *testing.T) {
	var tape ad.Tape
	of := func(x float64) *ad.Var { return tape.Const([]float64{x}, 1) }
	for _, c := range []struct{ mean, std, s float64 }{{0, 0.5, 0.2}, {0.3, 0.4, 1}, {-0.6, 0.3, 5}} {
		const n = 5000
		var mass float64
		for i := range n {
			d := c.s * (2*(float64(i)+0.5)/n - 1)
			mass += math.Exp(tanhNormal(of(math.Atanh(d/c.s)), of(c.mean), of(math.Log(c.std)), c.s).Item()) * 2 * c.s / n
		}
		require.InDelta(t, 1, mass, 1e-6)
	}
	for _, u := range []float64{0, 1e-9, 0.5, -0.5, 3, -3, 8} {
		naive := -u*u/2 - math.Log(2*math.Pi)/2 - math.Log(0.2*(1-math.Tanh(u)*math.Tanh(u)))
		require.InDelta(t, naive, tanhNormal(of(u), of(0), of(0), 0.2).Item(), 1e-8)
	}
	for _, u := range []float64{40, -40, 400, -400} {
		want := -math.Log(2*math.Pi)/2 - math.Log(0.2) - 2*math.Ln2 + 2*math.Abs(u)
		require.InDelta(t, want, tanhNormal(of(u), of(u), of(0), 0.2).Item(), 1e-9)
	}
}

// The entropy is the mean of −ln of the Gaussian density, here of many draws; 6 standard errors.
func TestArcEntropy(t *testing.T) {
	m, err := NewArcAgent(tinyArc(), drawn(11))
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(12, 0))
	x := m.On(new(ad.Tape), nil)
	_, _, entropy := x.Evaluate(x.tape.Const(make([]float64, 6), 6), x.tape.Const(make([]float64, 3), 3))
	var sum, squares float64
	const n = 40000
	for range n {
		var h float64
		for _, s := range m.data["policy_rl.pi_logstd"] {
			z := rng.NormFloat64()
			h += z*z/2 + s + math.Log(2*math.Pi)/2
		}
		sum += h
		squares += h * h
	}
	mean := sum / n
	require.InDelta(t, mean, entropy.Item(), 6*math.Sqrt((squares/n-mean*mean)/n))
}

// Interpolation by the formula, cell by cell.
func TestResizeLogits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string) int { return rapid.IntRange(1, 6).Draw(t, name) }
		steps, rows, cols, colours, h, w := size("T"), size("H"), size("W"), size("C"), size("h"), size("w")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		data := make([]float64, steps*rows*cols*colours)
		for i := range data {
			data[i] = rng.NormFloat64()
		}
		x := new(ad.Tape).Const(data, steps, rows, cols, colours)
		require.Equal(t, data, ResizeLogits(x, rows, cols).Data(), "the same size")
		y := ResizeLogits(x, h, w)
		require.Equal(t, []int{steps, h, w, colours}, y.Shape())
		at := func(i, m, n int) (lo, hi int, part float64) {
			s := max(0, (float64(i)+0.5)*float64(n)/float64(m)-0.5)
			lo = int(math.Floor(s))
			return lo, min(lo+1, n-1), s - math.Floor(s)
		}
		k := 0
		for s := range steps {
			for i := range h {
				top, bottom, down := at(i, h, rows)
				for j := range w {
					left, right, across := at(j, w, cols)
					for v := range colours {
						cell := func(r, c int) float64 { return data[((s*rows+r)*cols+c)*colours+v] }
						want := (1-down)*((1-across)*cell(top, left)+across*cell(top, right)) + down*((1-across)*cell(bottom, left)+across*cell(bottom, right))
						require.InDelta(t, want, y.Data()[k], 1e-12)
						k++
					}
				}
			}
		}
	})
}

func TestGridResize(t *testing.T) {
	g := Grid{H: 2, W: 3, Cells: []int{1, 2, 3, 4, 5, 6}}
	require.Equal(t, g, g.Resize(2, 3))
	require.Equal(t, Grid{4, 3, []int{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}}, g.Resize(4, 3))
	require.Equal(t, Grid{1, 2, []int{1, 2}}, g.Resize(1, 2))
	require.Equal(t, Grid{3, 5, []int{1, 1, 2, 2, 3, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6}}, g.Resize(3, 5))
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string) int { return rapid.IntRange(1, 9).Draw(t, name) }
		g := Grid{H: size("H"), W: size("W")}
		for i := range g.H * g.W {
			g.Cells = append(g.Cells, i)
		}
		k := size("k")
		require.Equal(t, g, g.Resize(k*g.H, k*g.W).Resize(g.H, g.W), "up by a whole factor and back")
	})
}

func TestGridOf(t *testing.T) {
	logits := new(ad.Tape).Const([]float64{9, 0, 0, 0, 9, 0, 1, 2, 2, -1, -3, -2}, 2, 1, 2, 3)
	require.Equal(t, Grid{1, 2, []int{1, 0}}, GridOf(logits), "the last step, the first of equals")
}

// All weights of a tiny agent, the text encoder's among them, by central differences and the adjoint identity: through
// prompt, refinement, prediction and resizing, and through density, value and curiosity.
func TestArcGradients(t *testing.T) {
	c := tinyArc()
	m, err := NewArcAgent(c, drawn(21))
	require.NoError(t, err)
	w := drawn(22)
	var in []ad.Tensor
	for _, s := range c.Tensors() {
		x, _ := w(s.Name, s.Shape...)
		in = append(in, ad.Tensor{Shape: s.Shape, Data: x})
	}
	grid := Grid{2, 3, []int{0, 1, 2, 2, 1, 1}}
	batch := func(x []*ad.Var) *ad.Var {
		tape := x[0].Tape()
		n, text := &params{tape: tape, vars: map[string]*ad.Var{}}, &params{tape: tape, vars: map[string]*ad.Var{}, lora: map[string]nn.LoRA{}}
		for i, s := range c.Tensors() {
			if inner, ok := textName(s.Name); ok {
				text.vars[inner] = x[i]
			} else {
				n.vars[s.Name] = x[i]
			}
		}
		a := &ArcNet{n, c, m.text.net(text), m.ops}
		of := func(x ...float64) *ad.Var { return tape.Const(x, len(x)) }
		r := a.Refine(a.PromptOf([]int{1, 3, 0}), of(0.7), of(-0.4, 1.1), of(0.9, -1.3, 0.2))
		logits := ResizeLogits(a.Predict(grid, r.Prompt), 3, 2)
		logp, value, entropy := a.Evaluate(r.State, r.U)
		icm := a.Curiosity(r.State, r.Delta, ad.Concat(0, r.Prompt, of(0.7), of(-0.4, 1.1)))
		return ad.Concat(0, ad.Reshape(logits, -1), ad.Reshape(logp, 1), value, ad.Reshape(entropy, 1), ad.Reshape(icm, 1))
	}
	rng := rand.New(rand.NewPCG(23, 0))
	require.NoError(t, ad.CheckGrad("arcagent", batch, in, rng))

	var tape ad.Tape
	var x []*ad.Var
	for _, w := range in {
		x = append(x, tape.Param(w.Data, w.Shape...))
	}
	y := batch(x)
	cotangent := make([]float64, y.Size())
	for i := range cotangent {
		cotangent[i] = rng.NormFloat64()
	}
	ad.Backward(y, cotangent)
	for i, w := range c.Tensors() {
		require.False(t, allZero(x[i].Grad()), "the batch does not depend on %s: nothing was checked", w.Name)
	}
}

// Inference is the same code on constants: the same bits, and nothing is recorded.
func TestArcInference(t *testing.T) {
	g := readArc(t)
	m := g.model(t)
	run := func(weight func(string) bool) (*ad.Var, *ad.Var) {
		n := m.On(new(ad.Tape), weight)
		prompt := n.PromptOf(g.values.ints("rule_ids"))
		return prompt, n.Predict(g.grid("grid"), prompt)
	}
	prompt, logits := run(nil)
	require.False(t, logits.NeedsGrad())
	for _, name := range []string{"qwen.transformer.layers.0.mlp.up_proj.weight", "agent.fusion.0.bias"} {
		p, l := run(func(s string) bool { return s == name })
		require.Equal(t, strings.HasPrefix(name, "qwen"), p.NeedsGrad())
		require.True(t, l.NeedsGrad())
		require.Equal(t, prompt.Data(), p.Data())
		require.Equal(t, logits.Data(), l.Data())
	}
}

func TestArcRefuses(t *testing.T) {
	require.NoError(t, tinyArc().Validate())
	for want, change := range map[string]func(c *ArcAgentConfig){
		"num_colors 0":                          func(c *ArcAgentConfig) { c.Colors = 0 },
		"max_steps -1":                          func(c *ArcAgentConfig) { c.Steps = -1 },
		"policy.feat_dim 0":                     func(c *ArcAgentConfig) { c.Policy.Features = 0 },
		"policy.delta_scale NaN":                func(c *ArcAgentConfig) { c.Policy.DeltaScale = math.NaN() },
		"is a qwen2 without a head":             func(c *ArcAgentConfig) { c.Text.Tied = false },
		"model: arcagent: text: model: \"qwen2": func(c *ArcAgentConfig) { c.Text.Vocab = 0 },
	} {
		c := tinyArc()
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
		_, err := NewArcAgent(c, drawn(1))
		require.ErrorContains(t, err, want)
	}
	for _, missing := range []string{"qwen.transformer.embed_tokens.weight", "policy_rl.pi_logstd"} {
		_, err := NewArcAgent(tinyArc(), func(name string, shape ...int) ([]float64, error) {
			if name == missing {
				return nil, errors.New("there is none")
			}
			return drawn(1)(name, shape...)
		})
		require.ErrorContains(t, err, "there is none")
	}
	var asked []string
	_, err := NewArcAgent(tinyArc(), func(name string, shape ...int) ([]float64, error) {
		asked = append(asked, name)
		return drawn(1)(name, shape...)
	})
	require.NoError(t, err)
	var listed []string
	for _, w := range tinyArc().Tensors() {
		listed = append(listed, w.Name)
	}
	require.Equal(t, listed, asked, "each weight is asked for once, by its name in the file")
	require.True(t, slices.Contains(listed, "qwen.transformer.layers.0.self_attn.q_proj.weight"))

	m, err := NewArcAgent(tinyArc(), drawn(1))
	require.NoError(t, err)
	n := m.On(new(ad.Tape), nil)
	of := func(k int) *ad.Var { return n.tape.Const(make([]float64, k), k) }
	for want, f := range map[string]func(){
		"colour 3 at row 1, column 0":             func() { n.Predict(Grid{2, 1, []int{0, 3}}, of(3)) },
		"a grid of 2×2 with 3 cells":              func() { n.Predict(Grid{2, 2, []int{0, 1, 2}}, of(3)) },
		"and a prompt of 2":                       func() { n.Predict(Grid{1, 1, []int{0}}, of(2)) },
		"refinement of a prompt of 3 with 2 cont": func() { n.Refine(of(3), of(2), of(2), of(3)) },
		"input: 1 rows of 0 tokens":               func() { n.PromptOf(nil) },
		"logits of shape [3] at 2×2":              func() { ResizeLogits(of(3), 2, 2) },
		"1 cells at 0×1":                          func() { Grid{1, 1, []int{0}}.Resize(0, 1) },
		"the colours of logits of shape [3]":      func() { GridOf(of(3)) },
		"there is no weight \"agent.x\"":          func() { n.Var("agent.x") },
	} {
		func() {
			defer func() { require.Contains(t, recover(), want) }()
			f()
		}()
	}
}
