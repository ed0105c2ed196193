package golden

import (
	"fmt"
	"strings"

	"plumbline/internal/format"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/nn"
)

// arcRun is the solver of grids, and one batch: a sentence about a task, a grid, its target, and what the policy that
// refines the prompt is given.
type arcRun struct {
	folder               *modelFolder
	config               model.ArcAgentConfig
	rule                 []int
	grid, target         model.Grid
	control, task, noise []float64
	reward               float64
}

// arcModel recomputes the solver.
func arcModel(c *call) []answer {
	a := &arcRun{folder: c.modelOf()}
	group := c.group("float64", "float32")
	if c.ok() {
		a.read(c)
	}
	if !c.ok() {
		return nil
	}
	r := &modelRun{folder: a.folder, key: fmt.Sprint(a.rule, a.grid, a.target, a.control, a.task, a.noise, a.reward), compute: a.compute,
		inexact: group == "float32", optional: func(output string) bool {
			return group != "float64" || strings.Contains(output, "grad/") // of weights that a loss does not reach there is none
		}, only: everywhere, excuse: compared}
	return r.answers(c)
}

// read reads the configuration and the batch.
func (a *arcRun) read(c *call) {
	o := a.folder.config.Object
	size := func(o *format.Object, key string) int {
		if o == nil {
			return 0
		}
		return o.Int(key, 0, 0, 1<<20)
	}
	p, text := o.Object("policy"), o.Object("text")
	a.config = model.ArcAgentConfig{Colors: size(o, "num_colors"), Prompt: size(o, "prompt_dim"), Hidden: size(o, "hidden_dim"), Encoder: size(o, "encoder_dim"), Steps: size(o, "max_steps"),
		Policy: model.ArcPolicyConfig{Control: size(p, "ctrl_dim"), Features: size(p, "feat_dim"), Hidden: size(p, "hidden")}, Text: arcText(text)}
	if p != nil {
		a.config.Policy.DeltaScale = p.Float("delta_scale", 0, 0, 1e9)
	}
	if err := o.Err(); err != nil {
		c.malformed("%v", err)
		return
	}
	if err := a.config.Validate(); err != nil {
		c.undetermined("%v", err)
		return
	}
	a.reward = c.numOr("reward", 0)
	if _, rows, n := c.grid("rule_ids"); c.ok() && (rows != 1 || n > a.config.Text.MaxPositions) {
		c.malformed("input rule_ids has %d rows of %d tokens, want one of at most %d", rows, n, a.config.Text.MaxPositions)
	} else if c.ok() {
		a.rule = c.ints("rule_ids", 0, a.config.Text.Vocab, 1, n)
		if n > maxScores/n/a.config.Text.Heads {
			c.undetermined("%d tokens: too large to recompute", n)
		}
	}
	a.grid, a.target = a.picture(c, "grid"), a.picture(c, "target")
	a.control, a.task, a.noise = c.shaped("ctrl", a.config.Policy.Control), c.shaped("feat", a.config.Policy.Features), c.shaped("noise", a.config.Prompt)
}

// arcText returns the configuration of the text encoder, a Qwen2 without a head of its own.
func arcText(o *format.Object) model.Config {
	if o == nil {
		return model.Config{}
	}
	size := func(key string) int { return o.Int(key, 0, 1, 1<<20) }
	c := model.Config{Kind: model.Kind(o.Text("model_type", "")), Vocab: size("vocab_size"), Hidden: size("hidden_size"), Layers: size("num_hidden_layers"),
		Heads: size("num_attention_heads"), KVHeads: size("num_key_value_heads"), Intermediate: size("intermediate_size"), MaxPositions: size("max_position_embeddings"),
		Eps: o.Float("rms_norm_eps", 0, 0, 1), Activation: "silu", Tied: true, QKVBias: true}
	if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	if r := o.Object("rope_parameters"); r != nil {
		c.RoPE = nn.RoPE{Dim: c.HeadDim, Theta: r.Float("rope_theta", 0, 1, 1e18), Scaling: nn.RoPEScaling{Type: r.Text("rope_type", "default")}}
	}
	return c
}

// picture reads a grid of colours.
func (a *arcRun) picture(c *call, name string) model.Grid {
	_, rows, cols := c.grid(name)
	if !c.ok() {
		return model.Grid{}
	}
	if rows*cols > maxScores/max(a.config.Hidden, a.config.Encoder, a.config.Colors*a.config.Steps) {
		c.undetermined("a grid of %d×%d: too large to recompute", rows, cols)
		return model.Grid{}
	}
	return model.Grid{H: rows, W: cols, Cells: c.ints(name, 0, a.config.Colors, rows, cols)}
}

// compute runs the batch: prompt, prediction, refinement, prediction again, the log-prob of the target and its gradient, then
// the loss of the policy and its gradient. For the update, state, sample and refined prompt are constants, and so is the
// value inside the advantage.
func (a *arcRun) compute(walk int) (map[string][]float64, error) {
	m, err := model.NewArcAgent(a.config, a.folder.moved(walk))
	if err != nil {
		return nil, err
	}
	t := new(ad.Tape)
	n := m.On(t, func(string) bool { return true })
	constant := func(x []float64) *ad.Var { return t.Const(x, len(x)) }
	control, task := constant(a.control), constant(a.task)
	out := map[string][]float64{}
	keep := func(name string, v *ad.Var) { out[name] = v.Data() }

	keep("hidden", n.Text.Forward(model.Input{Batch: 1, Time: len(a.rule), IDs: a.rule}).Hidden)
	prompt := n.PromptOf(a.rule)
	before := n.Predict(a.grid, prompt)
	r := n.Refine(prompt, control, task, constant(a.noise))
	after := n.Predict(a.grid, r.Prompt)
	resized := model.ResizeLogits(after, a.target.H, a.target.W)
	lp := nn.LogProb(ad.Slice(resized, 0, a.config.Steps-1, a.config.Steps), a.target.Cells)
	mean := ad.Mean(lp, false)
	for name, v := range map[string]*ad.Var{"prompt": prompt, "logits_before": before, "x": r.State, "mu": r.Mean, "u": r.U, "delta": r.Delta, "alpha": r.Alpha,
		"refined": r.Prompt, "value": r.Value, "features_after": n.Features(a.grid, r.Prompt), "logits_after": after, "logits_resized": resized, "logp": lp, "mean_logp": mean} {
		keep(name, v)
	}
	out["predictions_before"] = floats(model.GridOf(before).Cells)
	out["predictions_after"] = floats(model.GridOf(after).Cells)
	out["predictions_resized"] = floats(model.GridOf(after).Resize(a.target.H, a.target.W).Cells)

	x := ad.Detach(r.State)
	logp, value, entropy := n.Evaluate(x, ad.Detach(r.U))
	icm := n.Curiosity(x, ad.Detach(r.Delta), ad.Detach(ad.Concat(0, r.Prompt, control, task)))
	d := ad.AddScalar(value, -a.reward)
	loss := ad.Add(ad.Mul(logp, ad.Detach(d)), ad.Scale(ad.Mul(d, d), 0.5))
	loss = ad.Add(loss, ad.Sub(ad.Scale(icm, 0.1), ad.Scale(entropy, 0.01)))
	for name, v := range map[string]*ad.Var{"policy_logp": logp, "entropy": entropy, "icm": icm, "policy_loss": loss} {
		keep(name, v)
	}

	ad.Backward(mean, []float64{1})
	a.gradients(out, "grad/", n)
	ad.Backward(loss, []float64{1})
	a.gradients(out, "policy_grad/", n)
	return out, nil
}

// gradients moves those of every weight to out.
func (a *arcRun) gradients(out map[string][]float64, prefix string, n *model.ArcNet) {
	for _, w := range a.config.Tensors() {
		g := n.Var(w.Name)
		out[prefix+w.Name] = append([]float64(nil), g.Grad()...)
		g.ZeroGrad()
	}
}
