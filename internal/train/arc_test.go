package train_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/ad"
)

// arc is a run of one epoch of four batches on a very small agent.
func arc(overrides ...string) *train.Arc {
	var c train.Arc
	s := c.Settings()
	for _, o := range append([]string{"encoder.name=tiny-init", "model.prompt_dim=10", "model.channels=4", "policy.ctrl_dim=3", "policy.feat_dim=5", "policy.hidden=6", "agent_lr=1e-3", "qwen_lr=1e-3",
		"policy_lr=1e-3", "device=cpu", "epochs=1", "max_batches=4", "save_every=0", "seed=7"}, overrides...) {
		if err := s.Override(o); err != nil {
			panic(err)
		}
	}
	if err := s.Resolve(); err != nil {
		panic(err)
	}
	if err := c.Check(func(string, ...any) {}); err != nil {
		panic(err)
	}
	return &c
}

// arcWatch is an agent with a record, and with the bugs that a test plants.
type arcWatch struct {
	train.ArcAgent
	events   []string // On, PromptOf, Predict, Refine, Evaluate, Collect; "on" without gradients
	noise    [][]float64
	u, state []float64
	alpha    float64
	grads    [][][]float64 // after every Collect
	weights  [][][]float64 // and at it
	replace  func(n *arcWatchNet)
	extra    []train.Param
	without  string
	onEvent  func(string)
	sentence []string
}

type arcWatchNet struct {
	train.ArcNet
	w        *arcWatch
	prompt   func(*ad.Var) *ad.Var
	predict  func(*ad.Var) *ad.Var
	refine   func(train.ArcRefinement) train.ArcRefinement
	evaluate func(*ad.Var) *ad.Var
}

func (w *arcWatch) note(event string) {
	w.events = append(w.events, event)
	if w.onEvent != nil {
		w.onEvent(event)
	}
}

func (w *arcWatch) On(t *ad.Tape, grad bool) train.ArcNet {
	w.note(map[bool]string{true: "On", false: "on"}[grad])
	n := &arcWatchNet{ArcNet: w.ArcAgent.On(t, grad), w: w}
	if w.replace != nil {
		w.replace(n)
	}
	return n
}

func (w *arcWatch) Encode(sentence string) []int {
	w.sentence = append(w.sentence, sentence)
	return w.ArcAgent.Encode(sentence)
}

func (w *arcWatch) Params() []train.Param {
	list := slices.Clone(w.ArcAgent.Params())
	if w.without != "" {
		list = slices.DeleteFunc(list, func(p train.Param) bool { return strings.HasPrefix(p.Name, w.without) })
	}
	return append(list, w.extra...)
}

func (n *arcWatchNet) PromptOf(ids []int) *ad.Var {
	n.w.note("PromptOf")
	p := n.ArcNet.PromptOf(ids)
	if n.prompt != nil {
		p = n.prompt(p)
	}
	return p
}

func (n *arcWatchNet) Predict(g dataset.Grid, prompt *ad.Var) *ad.Var {
	n.w.note("Predict")
	x := n.ArcNet.Predict(g, prompt)
	if n.predict != nil {
		x = n.predict(x)
	}
	return x
}

func (n *arcWatchNet) Refine(prompt, control, features, noise *ad.Var) train.ArcRefinement {
	n.w.note("Refine")
	n.w.noise = append(n.w.noise, slices.Clone(noise.Data()))
	r := n.ArcNet.Refine(prompt, control, features, noise)
	n.w.alpha = r.Alpha.Item()
	if n.refine != nil {
		r = n.refine(r)
	}
	return r
}

func (n *arcWatchNet) Evaluate(state, u *ad.Var) (logp, value, entropy *ad.Var) {
	n.w.note("Evaluate")
	n.w.u, n.w.state = slices.Clone(u.Data()), slices.Clone(state.Data())
	logp, value, entropy = n.ArcNet.Evaluate(state, u)
	if n.evaluate != nil {
		logp, value = n.evaluate(logp), n.evaluate(value)
	}
	return logp, value, entropy
}

func (n *arcWatchNet) Collect() {
	n.w.note("Collect")
	n.ArcNet.Collect()
	var grads, weights [][]float64
	for _, p := range n.w.ArcAgent.Params() {
		grads, weights = append(grads, slices.Clone(p.Grad)), append(weights, slices.Clone(p.Data))
	}
	n.w.grads, n.w.weights = append(n.w.grads, grads), append(n.w.weights, weights)
}

// param returns the place of a parameter.
func (w *arcWatch) param(t testing.TB, name string) int {
	for i, p := range w.ArcAgent.Params() {
		if p.Name == name {
			return i
		}
	}
	require.Fail(t, "there is no "+name)
	return 0
}

func newArcWatch(t testing.TB, c *train.Arc) *arcWatch {
	a, err := bind.NewArc(c)
	require.NoError(t, err)
	return &arcWatch{ArcAgent: a}
}

func arcTasks(n int) []dataset.ArcTask { return dataset.GeneratedArc(rng.New(3, 9), n) }

// arcOutcome is what a run leaves.
type arcOutcome struct {
	err    error
	out    string
	dir    string
	warned string
}

func (o arcOutcome) lines(t testing.TB) (batches, epochs []map[string]any) {
	for _, m := range (outcome{dir: o.dir}).lines(t) {
		if m["event"] == "validation" {
			epochs = append(epochs, m)
		} else {
			batches = append(batches, m)
		}
	}
	return batches, epochs
}

// runArcIn trains in a folder, and goes on where one was left.
func runArcIn(ctx context.Context, t testing.TB, dir string, c *train.Arc, agent train.ArcAgent, tasks []dataset.ArcTask) arcOutcome {
	run, err := rundir.Create(dir, rundir.Options{Keep: c.Keep})
	require.NoError(t, err)
	defer run.Close()
	from, _, err := rundir.Newest(dir)
	require.NoError(t, err)
	if from != nil {
		_, err = run.Resume(from)
		require.NoError(t, err)
	}
	var out, warned bytes.Buffer
	err = c.Train(ctx, train.ArcEnv{Agent: agent, Tasks: tasks, Env: train.Env{Run: run, From: from, Out: &out,
		Warn: func(f string, a ...any) { fmt.Fprintf(&warned, f+"\n", a...) }}})
	return arcOutcome{err, out.String(), dir, warned.String()}
}

func runArc(t testing.TB, c *train.Arc, agent train.ArcAgent, tasks []dataset.ArcTask) arcOutcome {
	return runArcIn(context.Background(), t, filepath.Join(t.TempDir(), "run"), c, agent, tasks)
}

// The order of a batch: prompt, prediction, refinement, prediction, backward, step, and only then the policy, on a tape of its own and
// with weights that the step has changed. Validation has no gradients (D3, D17).
func TestArcOrder(t *testing.T) {
	c := arc("max_batches=2")
	w := newArcWatch(t, c)
	o := runArc(t, c, w, arcTasks(1))
	require.NoError(t, o.err)
	one := []string{"On", "PromptOf", "Predict", "Refine", "Predict", "Collect", "On", "Evaluate", "Collect"}
	held := []string{"on", "PromptOf", "Refine", "Predict", "Predict"}
	require.Equal(t, slices.Concat(one, one, held, held), w.events)
	require.NotEqual(t, w.noise[0], w.noise[1])
	for i, noise := range w.noise {
		var square float64
		for _, e := range noise {
			square += e * e / float64(len(noise))
		}
		if i < 2 {
			require.True(t, .1 < square && square < 3, "a draw of the policy has the variance 1, not %g", square)
		} else {
			require.Zero(t, square, "validation takes the mean")
		}
	}
	for i, p := range w.ArcAgent.Params() {
		moved := !slices.Equal(w.weights[0][i], w.weights[1][i])
		isPolicy := strings.HasPrefix(p.Name, "policy_rl.") && !strings.HasPrefix(p.Name, "policy_rl.alpha_head.")
		// A key's bias has no gradient but for rounding, and the embedding of a byte that is not there has none.
		require.Equal(t, !isPolicy, moved, "%s has moved before the policy is updated", p.Name)
		require.Equal(t, isPolicy, !slices.Equal(w.weights[1][i], w.weights[2][i]), "%s has moved by the update of the policy", p.Name)
	}
}

// Every line holds what the formulas of systems D.2 make of the others.
func TestArcFormulas(t *testing.T) {
	for _, rule := range []string{"continuous", "original"} {
		c := arc("epochs=3", "hard_cell.floor_rule="+rule, "agent_lr=0.02")
		o := runArc(t, c, newArcWatch(t, c), arcTasks(2)[:1])
		require.NoError(t, o.err)
		lines, _ := o.lines(t)
		require.Len(t, lines, 12)
		for i, l := range lines {
			x := func(key string) float64 { return l[key].(float64) }
			require.EqualValues(t, i+1, l["step"])
			require.EqualValues(t, i/4, l["epoch"])
			require.EqualValues(t, i%4, l["batch"])
			require.InDelta(t, 5*(x("accuracy_after")-x("accuracy_before")), x("reward"), 1e-12)
			require.InDelta(t, 1-x("accuracy_after"), x("mask_ratio"), 1e-12)
			factor := .5 + .5*x("mask_ratio")
			if rule == "original" && x("mask_ratio") <= .01 {
				factor = 1
			}
			require.InDelta(t, factor, x("hard_cell"), 1e-12)
			require.Equal(t, []float64{.6, .3, .3}[i/4], x("curriculum"))
			require.InDelta(t, .7*x("curriculum")*factor*x("efe")-.3*x("reward"), x("loss"), 1e-12)
			terms := 2*x("efe/grid_matching") + x("efe/risk") + x("efe/step") + .5*x("efe/bidirectional") + .2*x("efe/z") + .3*x("efe/prompt") + x("efe/grid_norm")
			require.InDelta(t, terms, x("efe"), 1e-12)
			require.InDelta(t, .7*x("efe/divergence")+.3*x("efe/reversibility"), x("efe/bidirectional"), 1e-12)
			require.InDelta(t, math.Tanh(x("reward"))-x("policy/value"), x("policy/advantage"), 1e-12)
			miss := x("policy/value") - math.Tanh(x("reward"))
			require.InDelta(t, -x("policy/logp")*x("policy/advantage")+.5*miss*miss-.01*x("policy/entropy"), x("policy/loss"), 1e-12)
			require.Positive(t, x("grad_norm/pi_mean"))
			require.Positive(t, x("grad_norm/value"))
			require.Positive(t, x("grad_norm/agent"))
			require.Positive(t, x("grad_norm/efe_loss"))
			require.Equal(t, l["fresh_prompt"], x("qwen_grad") > 0)
		}
		// A prediction that is right.
		task := arcTasks(1)[0]
		task.Train = task.Train[:1]
		w := newArcWatch(t, c)
		w.replace = func(n *arcWatchNet) {
			n.predict = func(x *ad.Var) *ad.Var {
				right := make([]float64, x.Size())
				for i := range right {
					if cells := task.Train[0].Output.Cells; x.Size() == 30*len(cells) && i%10 == cells[i/10%len(cells)] {
						right[i] = 100
					}
				}
				return ad.Add(x, x.Tape().Const(right, x.Shape()...))
			}
		}
		task.Test = nil
		perfect := runArc(t, c, w, []dataset.ArcTask{task})
		require.NoError(t, perfect.err)
		solved, _ := perfect.lines(t)
		require.Equal(t, 0., solved[0]["mask_ratio"])
		require.Equal(t, map[string]any{"continuous": .5, "original": 1.}[rule], solved[0]["hard_cell"])
		require.InDelta(t, .7*.6*solved[0]["hard_cell"].(float64)*solved[0]["efe"].(float64), solved[0]["loss"], 1e-12)

		require.Positive(t, lines[0]["qwen_grad"], "a connected encoder has a gradient in the first batch (D20)")
		require.Less(t, lines[0]["loss"].(float64), 3.6, "D7")
	}
}

// The gradients of a batch are the differences of the loss that is logged, for weights of every stage: encoder, projection, agent,
// share of the refinement (D2, D16, D17). The targets have another size than the inputs.
func TestArcGradient(t *testing.T) {
	tasks := arcTasks(1)
	for i := range tasks[0].Train {
		p := &tasks[0].Train[i].Output
		p.H, p.W, p.Cells = 2, 4, []int{1, 2, 3, 0, 5, 6, 7, 8}
	}
	for _, mode := range []string{train.EncoderFull, train.EncoderLoRA} {
		c := arc("max_batches=1", "encoder.train="+mode, "lora.r=2")
		perturb := func(w *arcWatch) {
			for _, p := range w.ArcAgent.Params() {
				if strings.Contains(p.Name, "lora_B") {
					for i := range p.Data {
						p.Data[i] = .05 * float64(i%5-2)
					}
				}
			}
		}
		w := newArcWatch(t, c)
		perturb(w)
		o := runArc(t, c, w, tasks)
		require.NoError(t, o.err)
		lines, _ := o.lines(t)
		mask := lines[0]["mask_ratio"]
		names := []string{"qwen.proj.weight", "agent.input_encoder.0.weight", "agent.fusion.2.weight", "agent.prompt_processor.0.weight", "agent.planning_steps.1.2.bias", "agent.planning_steps.2.0.weight",
			"policy_rl.alpha_head.4.bias", "policy_rl.pi_mean.4.bias"}
		if mode == train.EncoderFull {
			names = append(names, "qwen.transformer.layers.0.self_attn.q_proj.weight", "qwen.transformer.layers.1.mlp.down_proj.weight", "qwen.transformer.norm.weight")
		} else {
			names = []string{"qwen.transformer.layers.0.self_attn.q_proj.lora_A.weight", "qwen.transformer.layers.0.self_attn.v_proj.lora_B.weight"}
		}
		for _, name := range names {
			slopes, at := w.grads[0][w.param(t, name)], 0
			for i, g := range slopes {
				if math.Abs(g) > math.Abs(slopes[at]) {
					at = i
				}
			}
			loss := func(h float64) float64 {
				v := newArcWatch(t, c)
				perturb(v)
				v.ArcAgent.Params()[v.param(t, name)].Data[at] += h
				o := runArc(t, c, v, tasks)
				require.NoError(t, o.err)
				lines, _ := o.lines(t)
				require.Equal(t, mask, lines[0]["mask_ratio"], "no prediction changes")
				return lines[0]["loss"].(float64)
			}
			const h = 1e-5
			want := (loss(h) - loss(-h)) / (2 * h)
			got := slopes[at]
			require.InDelta(t, want, got, 1e-9+1e-5*math.Abs(want), "%s[%d]", name, at)
			require.NotZero(t, got, name)
		}
	}
}

// A reward of probability is the change of the mean probability of the right colours; it
// is there where no prediction changes.
func TestArcRewardOfProbability(t *testing.T) {
	c := arc("epochs=2", "reward_of=probability")
	o := runArc(t, c, newArcWatch(t, c), arcTasks(2)[:1])
	require.NoError(t, o.err)
	lines, _ := o.lines(t)
	unseen := 0
	for _, l := range lines {
		x := func(key string) float64 { return l[key].(float64) }
		require.Less(t, math.Abs(x("reward")), 5.)
		require.InDelta(t, .7*x("curriculum")*x("hard_cell")*x("efe")-.3*x("reward"), x("loss"), 1e-12)
		require.InDelta(t, math.Tanh(x("reward"))-x("policy/value"), x("policy/advantage"), 1e-12)
		if x("accuracy_after") == x("accuracy_before") && x("reward") != 0 {
			unseen++
		}
	}
	require.Greater(t, unseen, len(lines)/2, "rewards where the accuracy has none: all but those of a prediction that reads nothing of the prompt, every unit being 0")
}

// The update of the policy, in closed form: by the last bias of the mean −A·(u − μ)/σ², by ln σ −A·((u − μ)²/σ² − 1) − 0.01, by the last
// bias of the value V − tanh(reward) (H8).
func TestArcPolicyGradient(t *testing.T) {
	c := arc("max_batches=1", "reward_scale=50", "agent_lr=0") // before the clipping of the optimiser, at σ = 1
	w := newArcWatch(t, c)
	o := runArc(t, c, w, arcTasks(1))
	require.NoError(t, o.err)
	lines, _ := o.lines(t)
	x := func(key string) float64 { return lines[0][key].(float64) }
	a, noise := x("policy/advantage"), w.noise[0]
	mean, logstd := w.grads[1][w.param(t, "policy_rl.pi_mean.4.bias")], w.grads[1][w.param(t, "policy_rl.pi_logstd")]
	for i, e := range noise {
		require.InDelta(t, -a*e, mean[i], 1e-12)
		require.InDelta(t, -a*(e*e-1)-.01, logstd[i], 1e-12)
	}
	require.InDelta(t, x("policy/value")-math.Tanh(x("reward")), w.grads[1][w.param(t, "policy_rl.v.4.bias")][0], 1e-12)
	for _, name := range []string{"agent.fusion.0.weight", "qwen.proj.weight", "policy_rl.alpha_head.4.weight"} {
		for _, g := range w.grads[1][w.param(t, name)] {
			require.Zero(t, g, "%s has no gradient of the policy's loss", name)
		}
	}
	require.Equal(t, 10+3+5, len(w.state))
}

// With a weight the curiosity is in the loss, and its networks learn; without one they are not there to be trained.
func TestArcCuriosity(t *testing.T) {
	without := newArcWatch(t, arc())
	for _, p := range without.Params() {
		require.NotContains(t, p.Name, "policy_rl.phi")
	}
	c := arc("icm=0.1", "max_batches=1")
	w := newArcWatch(t, c)
	o := runArc(t, c, w, arcTasks(1))
	require.NoError(t, o.err)
	lines, _ := o.lines(t)
	x := func(key string) float64 { return lines[0][key].(float64) }
	require.Positive(t, x("policy/icm"))
	miss := x("policy/value") - math.Tanh(x("reward"))
	require.InDelta(t, -x("policy/logp")*x("policy/advantage")+.5*miss*miss-.01*x("policy/entropy")+.1*x("policy/icm"), x("policy/loss"), 1e-12)
	for _, name := range []string{"policy_rl.phi.4.bias", "policy_rl.phi_pred.4.bias"} {
		require.NotZero(t, w.grads[1][w.param(t, name)][0], name)
	}
}
