package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/reference/ad"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// ArcEnv is what [Arc.Train] works with.
type ArcEnv struct {
	Env
	Agent ArcAgent
	Tasks []dataset.ArcTask
}

// arcRun is a run under way.
type arcRun struct {
	*Arc
	env         ArcEnv
	agent       ArcAgent
	pairs, held []arcSample
	groups      []arcGroup
	efe         map[string]*Param    // the trainable parameters of the loss
	wanted      map[string][]float64 // target preferences by size, a distribution of colours in every cell
	cache       map[[32]byte][]float64
	best        *rundir.Run
	run         *run
	more        arcState
	warned      once
}

// arcGroup is a group of the optimiser: parameters that are clipped together and have one learning rate.
type arcGroup struct {
	name string
	*adam
	lr, decay, limit float64
}

// arcBatch is what one batch was: the fields of its line in metrics.jsonl.
type arcBatch struct {
	sample                       arcSample
	fresh                        bool // the prompt was made, with a gradient, and not taken from the cache
	before, after                float64
	reward, mask, factor, weight float64
	terms                        rl.EFETerms
	loss, qwen                   float64
	norms                        map[string]float64
	policy                       arcPolicy
	encoderMS, stepMS            float64
}

// arcPolicy is what the update of the policy was.
type arcPolicy struct{ loss, logp, value, advantage, entropy, icm, mean, valueGrad float64 }

// Train runs source document D, one pair a batch: a prompt from the task's examples, a prediction before and one after the policy has
// refined the prompt, the expected free energy of the latter, and after that step an update of policy and value from the state that
// was seen. Validation follows every epoch.
func (c *Arc) Train(ctx context.Context, env ArcEnv) error {
	r := &arcRun{Arc: c, env: env, agent: env.Agent, cache: map[[32]byte][]float64{}, warned: once{}}
	if err := r.start(); err != nil {
		return err
	}
	each := r.perEpoch()
	var err error
	r.run, err = env.begin(plan{trainer: "arc", model: env.Agent, base: env.Agent.Fingerprint(), optimizer: r.all(), steps: c.Epochs * each, every: c.SaveEvery,
		files: r.files, restore: r.restore})
	if err != nil {
		return err
	}
	defer r.run.close()
	best := filepath.Join(env.Run.Path(), "best")
	if err := format.OwnDir(best); err != nil {
		return err
	}
	if r.best, err = rundir.Create(best, rundir.Options{Keep: 1}); err != nil {
		return err
	}
	defer r.best.Close()
	if _, err := r.best.Resume(&rundir.Checkpoint{Name: fmt.Sprintf("step_%d", r.more.BestStep), Path: filepath.Join(r.best.Path(), fmt.Sprintf("step_%d", r.more.BestStep))}); err != nil {
		return err
	}
	fmt.Fprintln(env.Out, "\nStarting complete training...")
	order := dataset.NewOrder(rng.New(c.Seed, streamData), len(r.pairs))
	began := time.Now()
	err = r.run.train(ctx, func() error {
		step := r.run.Step + 1
		epoch, batch := (step-1)/each, (step-1)%each
		if batch%c.LogEvery == 0 {
			fmt.Fprintf(env.Out, "\nEpoch %d (All Fixes): %3d%% %d/%d\n", epoch, 100*batch/each, batch, each)
		}
		at := time.Now()
		b, err := r.batch(step, epoch, batch, r.pairs[order.At(epoch*len(r.pairs)+batch)])
		if err != nil {
			return err
		}
		b.stepMS = milliseconds(at)
		r.run.state = state{Step: step, Updates: step, Samples: step}
		if err := r.exploding(b.terms.Total); err != nil {
			return err
		}
		if err := r.run.log(step, true, b.line(step, epoch, batch)); err != nil {
			return err
		}
		if batch%c.LogEvery == 0 {
			fmt.Fprintf(env.Out, "[Batch %4d] Reward: %7.4f | Loss: %7.4f | Qwen_grad: %.2e | Mask_ratio: %.4f\n", batch, b.reward, b.loss, b.qwen, b.mask)
		}
		if batch < each-1 {
			return nil
		}
		v, err := r.validate()
		if err != nil {
			return err
		}
		v.report(env.Out, epoch, time.Since(began))
		began = time.Now()
		return errors.Join(r.run.log(step, true, v.line(step, epoch)), r.keepBest(v, epoch))
	})
	if err != nil {
		return err
	}
	return r.summary()
}

// batch is one batch, step by step as systems D.2 numbers them.
func (r *arcRun) batch(step, epoch, batch int, s arcSample) (b *arcBatch, err error) {
	b = &arcBatch{sample: s}
	tape, shape := &ad.Tape{}, r.agent.Shape()
	net := r.agent.On(tape, true)
	vector := func(x []float64) *ad.Var { return tape.Const(x, len(x)) }

	// 1. The prompt: made, or one that was made, as a constant.
	at := time.Now()
	prompt := r.prompt(net, tape, s, batch, b)
	b.encoderMS = milliseconds(at)
	if err := finite(step, "prompt", prompt.Data(), nil); err != nil {
		return nil, err
	}

	// 2. The prediction before.
	h, w := s.output.H, s.output.W
	first := net.Predict(s.input, prompt)
	b.before = 1 - wrong(net.Grid(first, h, w), s.output)

	// 3. The policy refines the prompt.
	noise := make([]float64, shape.Prompt)
	for i := range noise {
		noise[i] = rng.New(r.Seed, streamArcNoise).Normal(uint64(step)*uint64(shape.Prompt) + uint64(i))
	}
	refined := net.Refine(prompt, vector(s.control(shape.Control)), vector(s.features(shape.Features)), vector(noise))

	// 4. The prediction after, at the size of the target.
	after := net.Predict(s.input, refined.Prompt)
	logits := net.Resize(after, h, w)
	predicted := net.Grid(after, h, w)
	b.after = 1 - wrong(predicted, s.output)

	// 5. to 8. The reward, the weight of wrong cells, the curriculum, the loss.
	b.reward = r.RewardScale * (b.after - b.before)
	if r.RewardOf == rewardProbability {
		b.reward = r.RewardScale * (certainty(logits, s.output) - certainty(net.Resize(first, h, w), s.output))
	}
	b.mask = wrong(predicted, s.output)
	b.factor = 0.5 + 0.5*b.mask
	if r.FloorRule == "original" && !(b.mask > 0.01) {
		b.factor = 1
	}
	b.weight = r.curriculum[min(epoch, len(r.curriculum)-1)]
	size := sizeOf(h, w)
	table := r.efe["preference."+size]
	if table == nil {
		return nil, unfit("there is no preference table for grids of %s: they are made before the optimiser is", size)
	}
	project, bias := r.efe["prompt_proj.weight"], r.efe["prompt_proj.bias"]
	terms, slopes := rl.EFE(rl.EFEBatch{Steps: r.Steps, H: h, W: w, Colors: dataset.ArcColors, Logits: logits.Data(), Target: s.output.Cells, Table: table.Data,
		Prompt: refined.Prompt.Data(), Weight: project.Data, Bias: bias.Data, Wanted: r.wanted[size]}, r.EFE)
	b.terms = terms
	scale := 0.7 * b.weight * b.factor
	b.loss = scale*terms.Total - 0.3*b.reward
	err = finite(step, "logits", logits.Data(), nil)
	if err == nil {
		err = finite(step, "loss", []float64{b.loss}, nil)
	}
	if err := errors.Join(err, r.writeDump(step, b, logits.Data())); err != nil {
		return nil, err
	}

	// 9. Backward, clip, step. The scalar has the gradient of the loss by the logits and by the refined prompt.
	loss := ad.Add(ad.Sum(ad.Mul(logits, tape.Const(slopes.Logits, logits.Shape()...)), false), ad.Sum(ad.Mul(refined.Prompt, vector(slopes.Prompt)), false))
	if !loss.NeedsGrad() {
		return nil, unfit("step %d: the loss has no gradient path (D18): something before it is detached", step)
	}
	ad.Backward(loss, []float64{scale})
	net.Collect()
	for _, x := range []struct {
		to     *Param
		slopes []float64
	}{{table, slopes.Table}, {project, slopes.Weight}, {bias, slopes.Bias}} {
		for i, g := range x.slopes {
			x.to.Grad[i] += scale * g
		}
	}
	if err := r.connected(step, b); err != nil {
		return nil, err
	}
	b.norms = map[string]float64{}
	for _, g := range r.groups {
		if g.name == groupPolicy {
			for _, p := range g.params {
				clear(p.Grad) // the policy learns from its reward, below, and not from this loss
			}
			continue
		}
		rule := optim.Adam{LR: g.lr, Beta1: .9, Beta2: .999, Eps: 1e-8, WeightDecay: g.decay, Coupled: true}
		moved, err := g.Step(Update{Step: step, Rule: rule, MaxNorm: g.limit})
		if err != nil {
			return nil, err
		}
		b.norms[g.name] = moved.Norm
	}

	// 9. After that step: the policy and its value learn from the state as it was seen.
	if err := r.updatePolicy(step, b, slices.Clone(refined.State.Data()), slices.Clone(refined.U.Data()), slices.Clone(refined.Prompt.Data())); err != nil {
		return nil, err
	}
	r.prefer(size, s.output, b.after)
	return b, nil
}

// prompt returns the prompt of a sample: every r.CacheEvery-th batch of an epoch, and where none is known, made with a gradient and
// remembered; else the one that was made of the same examples and grid, as a constant.
func (r *arcRun) prompt(net ArcNet, tape *ad.Tape, s arcSample, batch int, b *arcBatch) *ad.Var {
	key := s.key()
	if known, ok := r.cache[key]; ok && r.CacheEvery > 1 && batch%r.CacheEvery != 0 {
		return tape.Const(known, len(known))
	}
	b.fresh = true
	prompt := net.PromptOf(r.agent.Encode(s.sentence()))
	if r.CacheEvery > 1 {
		r.cache[key] = slices.Clone(prompt.Data())
	}
	return prompt
}

// updatePolicy makes one step of the policy's own optimiser. x is the state and u the action that was drawn there, without a graph:
// log-density, value and entropy are computed anew, so that they have gradients of their own.
func (r *arcRun) updatePolicy(step int, b *arcBatch, x, u, refined []float64) error {
	tape := &ad.Tape{}
	net := r.agent.On(tape, true)
	state, action := tape.Const(x, len(x)), tape.Const(u, len(u))
	logp, value, entropy := net.Evaluate(state, action)
	p := &b.policy
	reward := math.Tanh(b.reward)
	p.logp, p.value, p.entropy = logp.Item(), value.Item(), entropy.Item()
	p.advantage = reward - p.value
	miss := ad.AddScalar(value, -reward)
	loss := ad.Add(ad.Reshape(ad.Scale(logp, -p.advantage), 1), ad.Reshape(ad.Scale(ad.Mul(miss, miss), 0.5), 1))
	loss = ad.Sub(loss, ad.Reshape(ad.Scale(entropy, 0.01), 1))
	if r.ICM > 0 {
		next := tape.Const(append(slices.Clone(refined), x[len(refined):]...), len(x))
		icm := net.Curiosity(state, action, next)
		p.icm = icm.Item()
		loss = ad.Add(loss, ad.Reshape(ad.Scale(icm, r.ICM), 1))
	}
	p.loss = loss.Item()
	if err := finite(step, "policy loss", []float64{p.loss}, nil); err != nil {
		return err
	}
	ad.Backward(loss, []float64{1})
	net.Collect()
	for _, g := range r.groups {
		if g.name != groupPolicy {
			continue
		}
		p.mean, p.valueGrad = gradNorm(g.params, "policy_rl.pi_mean."), gradNorm(g.params, "policy_rl.v.")
		if p.mean == 0 || p.valueGrad == 0 {
			r.warned.warn(r.env.Env, "H8", "step %d: the gradient of the policy's mean is %.2g and of its value %.2g (H8): what the update uses is detached as a whole; detach the state, and compute log-density, value and entropy anew",
				step, p.mean, p.valueGrad)
		}
		if _, err := g.Step(Update{Step: step, Rule: optim.Adam{LR: g.lr, Beta1: .9, Beta2: .999, Eps: 1e-8}, MaxNorm: g.limit}); err != nil {
			return err
		}
	}
	return nil
}

// prefer moves the target preference of a size towards the target, by 0.05 and 0.15 times the accuracy. It begins as uniform.
func (r *arcRun) prefer(size string, target dataset.Grid, accuracy float64) {
	want := r.wanted[size]
	if want == nil {
		want = slices.Repeat([]float64{1. / dataset.ArcColors}, len(target.Cells)*dataset.ArcColors)
		r.wanted[size] = want
	}
	rate := 0.05 + 0.15*accuracy
	for i := range want {
		want[i] *= 1 - rate
	}
	for i, v := range target.Cells {
		want[i*dataset.ArcColors+v] += rate
	}
}

// connected looks at the gradients before they are clipped.
func (r *arcRun) connected(step int, b *arcBatch) error {
	params := r.agent.Params()
	b.qwen = gradNorm(params, encoderPrefix)
	if b.fresh && r.EncoderTrain != EncoderFrozen {
		if r.GradCheck && !r.more.Checked {
			seen := gradNorm(params, encoderPrefix+"layers.0.") > 0
			fmt.Fprintf(r.env.Out, "Qwen gradients flowing? %s\n", map[bool]string{true: "True", false: "False"}[seen])
			r.more.Checked = true
			if !seen {
				return unfit("step %d: no gradient reaches qwen.transformer.layers[0] (D17): the graph is cut before it: no_grad (D2), or .detach() on the prompt (D16)", step)
			}
		}
		if b.qwen == 0 {
			r.warned.warn(r.env.Env, "D2", "step %d: Qwen_grad is 0.00e+00 though the prompt was made in this batch (D2, D16, D20): no_grad around the refinement, or .detach() on the prompt", step)
		}
	}
	if b.fresh {
		r.more.ZeroFrom = r.zeroSince(step, b.qwen)
	}
	if r.EncoderTrain != EncoderFrozen && r.more.ZeroFrom > 0 && step-r.more.ZeroFrom >= 100 {
		return unfit("steps %d to %d: Qwen_grad: 0.00e+00 for 100 batches (D2): remove no_grad; is the encoder in the optimiser (D14), qwen.train() called (D15), the prompt not detached (D16), the cache keyed (H12)?", r.more.ZeroFrom, step)
	}
	return nil
}

func (r *arcRun) zeroSince(step int, norm float64) int {
	switch {
	case norm != 0:
		return 0
	case r.more.ZeroFrom == 0:
		return step
	}
	return r.more.ZeroFrom
}

// exploding stops a run whose loss, without its weights and its reward, is in the mean of ten batches above three times the first.
func (r *arcRun) exploding(efe float64) error {
	if r.run.Step == 1 {
		r.more.First = efe
	}
	r.more.Recent = append(r.more.Recent, efe)
	if n := len(r.more.Recent); n > 10 {
		r.more.Recent = slices.Clone(r.more.Recent[n-10:])
	}
	if m := mean(r.more.Recent); len(r.more.Recent) == 10 && !(m <= 3*math.Abs(r.more.First)) {
		return unfit("step %d: the loss explodes (D19): L_efe is %.4g in the mean of ten batches, %.4g in the first; %s", r.run.Step, m, r.more.First, ExplodesAdvice)
	}
	return nil
}

// ExplodesAdvice is what the source says of a loss that explodes.
const ExplodesAdvice = "reduce qwen_lr from 5e-5 to 1e-5 and agent_lr with it, check that gradients are clipped (max_grad_norm=1), and that there is no NaN in the prompt"

func gradNorm(params []Param, prefix string) float64 {
	var list [][]float64
	for _, p := range params {
		if strings.HasPrefix(p.Name, prefix) {
			list = append(list, p.Grad)
		}
	}
	return globalNorm(list)
}

// wrong is the share of cells that are.
func wrong(got, want dataset.Grid) float64 {
	return float64(errorsIn(got, want)) / float64(len(want.Cells))
}

func errorsIn(got, want dataset.Grid) (n int) {
	for i, v := range want.Cells {
		if got.Cells[i] != v {
			n++
		}
	}
	return n
}

// certainty is the mean probability of the right colour over the cells, by the last planning step of logits [steps, h, w, colours].
func certainty(logits *ad.Var, want dataset.Grid) (mean float64) {
	n := len(want.Cells)
	last := logits.Data()[len(logits.Data())-n*dataset.ArcColors:]
	for i, v := range want.Cells {
		cell := last[i*dataset.ArcColors : (i+1)*dataset.ArcColors]
		top, sum := slices.Max(cell), 0.0
		for _, x := range cell {
			sum += math.Exp(x - top)
		}
		mean += math.Exp(cell[v]-top) / sum / float64(n)
	}
	return mean
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1e3 }
