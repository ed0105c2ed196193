package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
	"plumbline/reference/sampling"
)

// microStep is what one micro-step learns from: B inputs with k completions each, N = B·k rows of T ids.
type microStep struct {
	number      int       // in its iteration, from 0
	inputs      Texts     // X [B, T], with masks
	masked      []bool    // [N, T]: the actions
	completions Texts     // [N, T]
	rewards     []float64 // [N]
	advantages  []float64 // [N]
	logp, ref   []float64 // [N, T]; 0 where nothing is masked
	logits      Logits    // [B, T, V]
	result      rl.SequenceResult
	perRow      float64 // masked positions of a row, on average
	identical   int     // completions that equal an earlier one of their group
	seconds     [5]float64
	backward    float64
}

// Train runs the algorithm of source document B: in every micro-step the masks of a text are filled in k times by one forward pass,
// a judge scores the completions, and the advantages in their group weigh the log-probabilities of the filled-in tokens, with the
// KL to the reference in the loss. It returns the metrics of the last iteration.
//
// The k rows of an input are equal until they are filled in, so the model reads each input once, and its logits serve all k. The
// accumulated gradient is divided by the number of micro-steps that were used.
func (c *GRPO) Train(ctx context.Context, env MaskedEnv) (last []rl.Metric, err error) {
	if err := c.check(env); err != nil {
		return nil, err
	}
	text, held, err := env.corpora(env.Generator, c.BlockSize)
	if err != nil {
		return nil, err
	}
	r, err := env.begin(plan{trainer: TrainerGRPO, model: env.Generator, base: c.Fingerprint(env), optimizer: env.optimizer(env.Generator.Params(), false),
		steps: c.MaxIters, every: c.SaveInterval, own: []string{"B1", "B2"}, options: map[string]string{"kl_beta": fmt.Sprint(c.KLBeta), "kl_estimator": c.KLEstimator, "reference_checkpoint": c.Frozen, "compile": "false",
			"batch_size": fmt.Sprint(c.BatchSize), "group_size": fmt.Sprint(c.GroupSize), "gradient_accumulation_steps": fmt.Sprint(c.Accumulation)}})
	if err != nil {
		return nil, err
	}
	defer r.close()
	fmt.Fprintf(env.Out, "%d inputs x group of %d = %d samples per micro-step, %d per iteration; %d forward passes per iteration (sampling, judge, current, reference)\n",
		c.BatchSize, c.GroupSize, c.BatchSize*c.GroupSize, c.BatchSize*c.GroupSize*c.Accumulation, 4*c.Accumulation)
	var seen phases
	began := env.Clock()
	err = r.train(ctx, func() error {
		if last, err = c.iterate(ctx, r, env, text, &seen); err != nil {
			return err
		}
		if c.TimeLimit > 0 && env.Clock()-began > c.TimeLimit {
			return &FailedError{fmt.Sprintf("the run takes more than %g s (B11): group_size, gradient_accumulation_steps or max_iters are too large", c.TimeLimit)}
		}
		return nil
	})
	if err != nil {
		return last, err
	}
	seen.summary(env.Out)
	if c.FailOnZeroLoss && r.Updates == 0 {
		return last, &FailedError{fmt.Sprintf("none of %d iterations made an update (B2): nothing was learned; raise mask_ratio, temperature or top_p", c.MaxIters)}
	}
	return last, c.evaluate(env, held)
}

// iterate makes one iteration: micro-steps and the update from those that can be used.
func (c *GRPO) iterate(ctx context.Context, r *run, env MaskedEnv, text dataset.Corpus, seen *phases) (last []rl.Metric, err error) {
	start, iter := env.Clock(), r.Step
	var used []*microStep
	skipped := 0
	dumped := c.dumper(env, iter)
	for micro := range c.Accumulation {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := c.rollout(env, text, r.Samples, iter, micro)
		if err != nil {
			return nil, fmt.Errorf("iteration %d: %w", iter, err)
		}
		r.Samples += c.BatchSize
		if m.perRow == 0 || m.identical == len(m.rewards)-c.BatchSize {
			skipped++
			why := "all completions of an input are identical"
			if m.perRow == 0 {
				why = "no position is masked"
			}
			fmt.Fprintf(env.Out, "[Micro %d] skipped: %s\n", micro, why)
			continue
		}
		err = c.learn(env, m, iter)
		used = append(used, m)
		if err != nil {
			return nil, dumped.after(err, used)
		}
		seen.add(m)
	}
	schedule := optim.Schedule{Decay: optim.Cosine, LR: c.LearningRate, MinLR: min(c.MinLR, c.LearningRate), Warmup: c.WarmupIters, Total: c.DecayIters}
	lr, norm := schedule.At(iter), math.NaN()
	if len(used) > 0 {
		for _, p := range env.Generator.Params() {
			for i := range p.Grad {
				p.Grad[i] /= float64(len(used))
			}
		}
		rule := optim.Adam{LR: lr, Beta1: c.Beta1, Beta2: c.Beta2, Eps: 1e-8, WeightDecay: c.WeightDecay}
		moved, err := r.optimizer.Step(Update{Step: iter, Rule: rule, MaxNorm: c.GradClip})
		norm = moved.Norm
		if err := dumped.after(err, used); err != nil {
			return nil, err
		}
		r.Updates++
	} else {
		fmt.Fprintf(env.Out, "WARNING: iteration %d has no usable micro-step: no update\n", iter)
		c.cause(env, "B2", "every micro-step was without masks or had identical completions: raise mask_ratio, temperature or top_p; lower learning_rate if the policy has become certain")
	}
	fmt.Fprintf(env.Out, "5. Optimizer step finished: mem=%.0f MB, time=%.3fs total\n", env.Memory(), env.Clock()-start)
	r.Step = iter + 1
	last = c.metrics(used, skipped)
	took := env.Clock() - start
	if err := r.log(r.Step, true, c.line(env, iter, lr, norm, took, used, last)); err != nil {
		return nil, err
	}
	if loss := metric(last, "loss"); len(used) == 0 {
		fmt.Fprintf(env.Out, "iter %d: loss n/a (main n/a, critic %.4f), time %.2fms\n", iter, 0., took*1e3)
	} else {
		if iter%c.LogInterval == 0 || iter == c.MaxIters-1 {
			fmt.Fprintf(env.Out, "iter %d: loss %.4f (main %.4f, critic %.4f), time %.2fms\n", iter, loss, loss, 0., took*1e3)
		}
		if c.FailOnZeroLoss && loss == 0 {
			return last, &FailedError{fmt.Sprintf("iteration %d: the loss is exactly 0 (B11): see B1, B2 and H5", iter)}
		}
	}
	return last, c.sample(r, env, iter, used)
}

// check refuses models that do not go together, and warns of a judge that is too short.
func (c *GRPO) check(env MaskedEnv) error {
	if err := c.Check(); err != nil {
		return err
	}
	g, j := env.Generator.Vocabulary(), env.Judge.Vocabulary()
	if c.BlockSize > g.BlockSize {
		return refuse("block_size %d is above that of the generator, %d", c.BlockSize, g.BlockSize)
	}
	if c.BlockSize+1 > j.BlockSize {
		env.Warn("block_size %d and CLS are more than the judge's block_size %d (H6): the text is cut at its beginning, CLS stays; give block_size=%d", c.BlockSize, j.BlockSize, j.BlockSize-1)
	}
	return nil
}

// rollout fetches the inputs from sample first on, fills in their masks and scores the completions.
func (c *GRPO) rollout(env MaskedEnv, text dataset.Corpus, first, iter, micro int) (*microStep, error) {
	fetch := env.Clock()
	m := &microStep{number: micro, inputs: c.inputs(env, text, streamWindow, streamMask, first, c.BatchSize)}
	mask := env.Generator.Vocabulary().Mask
	for _, id := range m.inputs.repeat(c.GroupSize).IDs {
		m.masked = append(m.masked, id == mask)
		if id == mask {
			m.perRow += 1 / float64(c.BatchSize*c.GroupSize)
		}
	}
	m.seconds[0] = env.Clock() - fetch
	fmt.Fprintf(env.Out, "[Micro %d] 0. Batch fetched: mem=%.0f MB, time=%.3fs\n", micro, env.Memory(), m.seconds[0])

	start := env.Clock()
	fmt.Fprintf(env.Out, "[Micro %d] 1. Iteration start: mem=%.0f MB, time=%.3fs\n", micro, env.Memory(), 0.)
	var err error
	if m.completions, err = c.fill(env, m.inputs, c.GroupSize, rng.New(c.Seed, streamFill), first*c.GroupSize); err != nil {
		return nil, err
	}
	for i := range m.completions.Rows {
		for j := i / c.GroupSize * c.GroupSize; j < i; j++ {
			if slices.Equal(m.completions.row(i), m.completions.row(j)) {
				m.identical++
				break
			}
		}
	}
	m.seconds[2] = env.Clock() - start
	fmt.Fprintf(env.Out, "[Micro %d] 2. Samples generated: mem=%.0f MB, time=%.3fs\n", micro, env.Memory(), m.seconds[2])

	if m.rewards, err = c.score(env, m.completions, iter); err != nil {
		return nil, err
	}
	mean, std := meanStd(m.rewards)
	m.seconds[3] = env.Clock() - start
	fmt.Fprintf(env.Out, "[Micro %d] 3. Samples scored: mem=%.0f MB, time=%.3fs, rewards=%.4f±%.4f\n", micro, env.Memory(), m.seconds[3], mean, std)
	m.seconds[1] = start
	return m, nil
}

// inputs returns n windows of a text with masks, from sample first on.
func (c *GRPO) inputs(env MaskedEnv, text dataset.Corpus, window, mask uint64, first, n int) Texts {
	x := Texts{Rows: n, Time: c.BlockSize}
	for i := first; i < first+n; i++ {
		ids := text.Window(rng.New(c.Seed, window), i, c.BlockSize)
		ids, _ = text.Mask(rng.New(c.Seed, mask), i, ids, c.MaskRatio, env.Generator.Vocabulary().Mask)
		x.IDs = append(x.IDs, ids...)
	}
	return x
}

// fill is predict_and_sample_tokens: one forward pass, and at every mask a token drawn from its logits, independent of the others
// given the input. Special tokens are not drawn; temperature and nucleus are those of the settings. Sample first+i has random
// numbers of its own. Without a mask an input is returned as it is.
func (c *GRPO) fill(env MaskedEnv, x Texts, k int, stream rng.Stream, first int) (Texts, error) {
	v := env.Generator.Vocabulary()
	logits := env.Generator.Logits(x)
	if err := logits.fit(x); err != nil {
		return Texts{}, err
	}
	out := x.repeat(k)
	z := make([]float64, logits.Vocab)
	for i := range out.Rows {
		for t, id := range out.row(i) {
			if id != v.Mask {
				continue
			}
			copy(z, logits.at(i/k, t))
			for id := range z {
				if id >= v.Characters || id == v.Mask || id == v.Pad {
					z[id] = math.Inf(-1)
				}
			}
			if !sampling.Distribution(z, z, sampling.Options{Temperature: c.Temperature, TopP: c.TopP}) {
				return Texts{}, fmt.Errorf("the logits of input %d at position %d are not finite: training stops, the last checkpoint is good", i/k, t)
			}
			out.row(i)[t] = sampling.Draw(z, Uniform(stream, first+i, t))
		}
	}
	return out, nil
}

// score returns the rewards of texts, 1 − clamp(judge, 0, 1).
func (c *GRPO) score(env MaskedEnv, x Texts, iter int) ([]float64, error) {
	verdicts, _ := env.Judge.Score(x)
	rewards := make([]float64, len(verdicts))
	for i, y := range verdicts {
		rewards[i] = 1 - min(max(y, 0), 1)
	}
	return rewards, finite(iter, "rewards", rewards, nil)
}

// learn computes the loss of a micro-step and adds its gradient.
func (c *GRPO) learn(env MaskedEnv, m *microStep, iter int) (err error) {
	start := m.seconds[1]
	var flat bool
	if m.advantages, flat, err = rl.SequenceAdvantage(nil, m.rewards, c.GroupSize, c.scope()); err != nil {
		return err
	}
	if flat {
		fmt.Fprintf(env.Out, "WARNING: All advantages are near zero! rewards_grouped=%.4f\n", m.rewards)
		c.cause(env, "B1", "the judge gives all completions of an input the same score, so the policy learns nothing: is judge_checkpoint the right one, and a sequence scorer? do the completions differ "+
			"(identical_completions)?")
	}
	reference := env.Generator.Reference(m.inputs)
	if err := reference.fit(m.inputs); err != nil {
		return err
	}
	m.ref = c.logProbs(reference, m)
	err = env.Generator.Accumulate(m.inputs, func(now Logits) ([]float64, error) {
		if err := now.fit(m.inputs); err != nil {
			return nil, err
		}
		m.logits, m.logp = now, c.logProbs(now, m)
		m.result = rl.SequenceLoss(nil, m.logp, m.ref, m.advantages, m.masked, m.completions.Rows, c.BlockSize, c.loss())
		if m.result.SilentLogProbs {
			fmt.Fprintf(env.Out, "WARNING: All sequence_log_probs are near zero! num_masked=%.1f\n", m.perRow)
			c.cause(env, "B2", "no masked position, or a log-probability of another token than the one that was filled in: look at mask_ratio and at the gather; see H5")
		}
		m.seconds[4] = env.Clock() - start
		fmt.Fprintf(env.Out, "[Micro %d] 4. Loss computed: mem=%.0f MB, time=%.3fs, pg_loss=%.6f, kl=%.6f, total=%.6f\n", m.number, env.Memory(), m.seconds[4],
			m.result.Policy, m.result.KL, m.result.Loss)
		if err := finite(iter, "loss", []float64{m.result.Loss}, nil); err != nil {
			return nil, err
		}
		if kl := m.meanKL(); iter == 0 && c.Frozen == "" && !(math.Abs(kl) <= 1e-6) {
			return nil, &FailedError{fmt.Sprintf("the KL of a model to its own copy is %g before the first update, want 0: the two passes differ (dropout, another input or another gather)", kl)}
		}
		d := make([]float64, len(now.Data))
		each := now.Time * now.Vocab
		for i := range m.completions.Rows {
			of := i / c.GroupSize * each
			rl.LogProbsBackward(d[of:of+each], m.result.DLogp[i*c.BlockSize:(i+1)*c.BlockSize], now.Data[of:of+each], m.completions.row(i), now.Vocab, rl.LogProbOptions{})
		}
		return d, nil
	})
	m.backward = env.Clock() - start - m.seconds[4]
	return err
}

// logProbs gathers the log-probabilities of the completions at the masked positions, [N, T], from the raw logits of their inputs:
// temperature 1, the whole vocabulary.
func (c *GRPO) logProbs(l Logits, m *microStep) []float64 {
	var lp []float64
	each := l.Time * l.Vocab
	for i := range m.completions.Rows {
		of := i / c.GroupSize * each
		lp = append(lp, rl.LogProbs(nil, l.Data[of:of+each], m.completions.row(i), l.Vocab, rl.LogProbOptions{})...)
	}
	for i, on := range m.masked {
		if !on {
			lp[i] = 0
		}
	}
	return lp
}

// evaluate writes the rewards of completions of held-out inputs to eval.jsonl and prints their mean with its standard error. Masks
// and random numbers depend on the seed alone, so runs with other hyper-parameters are compared input by input.
func (c *GRPO) evaluate(env MaskedEnv, held dataset.Corpus) error {
	if c.EvalSamples == 0 {
		return nil
	}
	log, err := rundir.CreateLog(filepath.Join(env.Run.Path(), "eval.jsonl"))
	if err != nil {
		return err
	}
	defer log.Close()
	var rewards []float64
	for first := 0; first < c.EvalSamples; first += 8 {
		x := c.inputs(env, held, streamHeldWindow, streamHeldMask, first, min(8, c.EvalSamples-first))
		out, err := c.fill(env, x, 1, rng.New(c.Seed, streamHeldFill), first)
		if err != nil {
			return err
		}
		r, err := c.score(env, out, c.MaxIters)
		if err != nil {
			return err
		}
		for i := range r {
			if err := log.Append(rundir.Field{Key: "completion", Value: env.Generator.Decode(out.row(i))}, rundir.Field{Key: "reward", Value: r[i]}); err != nil {
				return err
			}
		}
		rewards = append(rewards, r...)
	}
	mean, std := meanStd(rewards)
	fmt.Fprintf(env.Out, "held-out reward %.4f ± %.4f (%d inputs)\n", mean, std/math.Sqrt(float64(len(rewards))), len(rewards))
	return nil
}

// Fingerprint identifies the frozen models of a run, reference and judge.
func (c *GRPO) Fingerprint(env MaskedEnv) string {
	return env.Generator.Fingerprint() + env.Judge.Fingerprint()
}

// FailedError says that a run has failed its own check.
type FailedError struct{ Msg string }

func (e *FailedError) Error() string { return e.Msg }

// meanStd returns the mean and the standard deviation, ddof 1, NaN for less than two.
func meanStd(x []float64) (mean, std float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v / n
	}
	for _, v := range x {
		std += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(std / (n - 1))
}
