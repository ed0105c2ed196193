package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// Streams of random numbers of a run, by what they decide.
const (
	streamData = iota + 1
	streamSample
	streamShuffle
	streamAdditions
	streamEval
)

// ppoRollout is what one step learns from: N responses with prompts to P and responses to R tokens.
type ppoRollout struct {
	batch                           Batch
	mask                            []bool
	old, ref, gen, values           []float64
	scores, kl, advantages, returns []float64
	rewards                         []float64 // of tokens: less the KL penalty, and the score at the end
	promptLen, index                []int
	texts                           []string
	cut, unfinished                 int // prompts that were cut, responses without an end
}

// Train runs the algorithm of source document C: rollouts of fresh prompts, a reward of 1, 0.1 or 0, the KL penalty to the frozen
// model in the token rewards, GAE with whitened advantages, and epochs of clipped updates of policy and value. It returns the
// metrics of the last step.
func (c *PPO) Train(ctx context.Context, env Env) (last []rl.Metric, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	r, err := env.begin(plan{trainer: "ppo", model: env.Policy, base: env.Policy.Fingerprint(), optimizer: env.optimizer(env.Policy.Params(), c.Uses8bit()),
		steps: c.Steps, every: c.SaveInterval, options: map[string]string{"vf_coeff": fmt.Sprint(c.VFCoeff), "entropy_coeff": fmt.Sprint(c.EntropyCoeff)}})
	if err != nil {
		return nil, err
	}
	defer r.close()
	perEpoch := len(rl.PlanUpdates((c.RolloutSamples+c.MiniBatch-1)/c.MiniBatch, c.Accumulation, nil))
	schedule := c.schedule(c.Steps * c.Epochs * perEpoch)
	fmt.Fprintf(env.Out, "effective batch %d, %d updates per epoch, %d per step, %d in all\n",
		c.MiniBatch*c.Accumulation, perEpoch, perEpoch*c.Epochs, schedule.Total)
	order := dataset.NewOrder(rng.New(c.Seed, streamData), len(env.Questions))
	err = r.train(ctx, func() error {
		step := r.Step + 1
		roll, err := c.rollout(ctx, r, order, step)
		if err != nil {
			return err
		}
		if err := c.dumpRollout(env, roll, step); err != nil {
			return err
		}
		r.Step, r.Samples, r.Tokens = step, r.Samples+c.RolloutSamples, r.Tokens+count(roll.mask)
		reward := 0.0
		for _, s := range roll.scores {
			reward += s / float64(len(roll.scores))
		}
		for epoch := range c.Epochs {
			result, err := c.update(r, schedule, roll, epoch)
			if err != nil {
				return err
			}
			last = append(result, rl.Metric{Name: "rollout/reward_mean", Value: reward})
			if err := r.log(step, epoch == c.Epochs-1, c.line(step, epoch, schedule.At(r.Updates-1), roll, last)); err != nil {
				return err
			}
		}
		if step%c.LogInterval == 0 || step == c.Steps {
			return c.report(r, roll, reward, last)
		}
		return nil
	})
	return last, err
}

// report prints the line of a step and keeps three answers.
func (c *PPO) report(r *run, roll *ppoRollout, reward float64, last []rl.Metric) error {
	m := func(name string) float64 { return metric(last, name) }
	fmt.Fprintf(r.env.Out, "step %d/%d reward %.4f policy %.4f value %.4f entropy %.4f kl %.6f clip %.3f/%.3f gnorm %.3f\n", r.Step, c.Steps,
		reward, m("loss/policy"), m("loss/value"), m("loss/entropy"), m("params/approx_kl"), m("params/policy_clip_frac"), m("params/value_clip_frac"), m("params/grad_norm"))
	for i := range min(3, len(roll.texts)) {
		if err := r.sample(rundir.Field{Key: "step", Value: r.Step}, rundir.Field{Key: "question", Value: r.env.Questions[roll.index[i]].Question},
			rundir.Field{Key: "response", Value: roll.texts[i]}, rundir.Field{Key: "reward", Value: roll.scores[i]}); err != nil {
			return err
		}
	}
	return nil
}

// Check refuses what contradicts itself.
func (c *PPO) Check() error {
	switch {
	case c.MinNew > c.MaxNew:
		return fmt.Errorf("generation.min_new_tokens %d is above generation.max_new_tokens %d", c.MinNew, c.MaxNew)
	case !strings.Contains(c.Dataset.PromptFormat, "{question}"):
		return fmt.Errorf("dataset.prompt_format %q has no {question}", c.Dataset.PromptFormat)
	case c.MinLR > c.LearningRate && c.Scheduler == "cosine_with_min_lr" && c.LearningRate > 0:
		return fmt.Errorf("ppo.min_lr %g is above ppo.learning_rate %g", c.MinLR, c.LearningRate)
	}
	return nil
}

func (c *PPO) schedule(total int) optim.Schedule {
	s := optim.Schedule{LR: c.LearningRate, Warmup: c.Warmup, Total: total}
	switch c.Scheduler {
	case "cosine_with_min_lr":
		s.Decay, s.MinLR = optim.Cosine, min(c.MinLR, c.LearningRate)
	case "cosine":
		s.Decay = optim.Cosine
	case "linear":
		s.Decay = optim.Linear
	}
	return s
}

// rollout draws responses to the next prompts and computes everything of them that does not change while they are learned from.
func (c *PPO) rollout(ctx context.Context, run *run, order *dataset.Order, step int) (*ppoRollout, error) {
	r, env, first, drawing := &ppoRollout{}, run.env, run.Samples, run.rollout(c.RolloutSamples, c.MaxNew)
	eos, pad := env.Tokenizer.EOS(), env.Tokenizer.Pad()
	var prompts, responses [][]int
	var gen [][]float64
	sampling := Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinNew: c.MinNew, MaxNew: c.MaxNew, Greedy: !c.DoSample, Raw: c.LogProbs == "raw"}
	for from := 0; from < c.RolloutSamples; from += c.BatchSize {
		n := min(c.BatchSize, c.RolloutSamples-from)
		var chunk [][]int
		for i := range n {
			row := order.At(first + from + i)
			ids := env.Tokenizer.Encode(strings.ReplaceAll(c.Dataset.PromptFormat, "{question}", env.Questions[row].Question))
			if len(ids) > c.Dataset.MaxPrompt {
				ids = ids[len(ids)-c.Dataset.MaxPrompt:]
				r.cut++
			}
			if len(ids) == 0 {
				return nil, fmt.Errorf("row %d: the prompt has no tokens", row+1)
			}
			chunk, r.index = append(chunk, ids), append(r.index, row)
			r.promptLen = append(r.promptLen, len(ids))
		}
		ids, lp, err := env.Policy.Sample(ctx, leftPad(chunk, pad), sampling, rng.New(c.Seed, streamSample), first+from, eos, drawing.next(n))
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		prompts, responses, gen = append(prompts, chunk...), append(responses, ids...), append(gen, lp...)
	}
	r.batch, r.mask = leftPad(prompts, pad).withResponses(responses, pad)
	cols := r.batch.Response
	for i, ids := range responses {
		if ids[len(ids)-1] != eos {
			r.unfinished++
		}
		text := env.Tokenizer.Decode(ids)
		r.texts = append(r.texts, text)
		r.scores = append(r.scores, dataset.Reward(text, env.Questions[r.index[i]].Truth))
	}
	now, ref, err := scored(ctx, env.Policy, r.batch, c.BatchSize, true, true)
	if err != nil {
		return nil, err
	}
	r.gen = padded(gen, cols)
	r.old, r.values, r.ref = now.LogProbs, now.Values, ref
	r.kl = make([]float64, len(r.old))
	penalty := make([]float64, len(r.old))
	r.rewards = make([]float64, len(r.old))
	for i := range r.kl {
		if r.mask[i] {
			r.kl[i] = r.old[i] - r.ref[i]
			penalty[i] = c.KLCoeff * r.kl[i]
			r.rewards[i] = -penalty[i]
		}
	}
	for i, ids := range responses {
		r.rewards[i*cols+len(ids)-1] += r.scores[i]
	}
	for name, x := range map[string][]float64{"log-probabilities": r.old, "reference log-probabilities": r.ref, "values": r.values} {
		if err := finite(step, name, x, r.mask); err != nil {
			return nil, err
		}
	}
	r.advantages, r.returns, err = rl.ComputeGAEAdvantages(r.scores, penalty, r.values, r.mask, r.batch.Rows, cols, c.Gamma, c.Lambda)
	return r, err
}

// update makes one epoch of updates from a rollout, in a new order of its rows.
func (c *PPO) update(run *run, schedule optim.Schedule, r *ppoRollout, epoch int) ([]rl.Metric, error) {
	env, st := run.env, &run.state
	n := r.batch.Rows
	shuffled := dataset.NewOrder(rng.New(c.Seed, streamShuffle), n)
	pass := (st.Step-1)*c.Epochs + epoch
	rows := make([]int, n)
	for i := range rows {
		rows[i] = shuffled.At(pass*n + i)
	}
	micros := slices.Collect(slices.Chunk(rows, c.MiniBatch))
	options := rl.UpdateOptions{ClipRatio: c.ClipRatio, ClipRangeValue: c.ClipValue, VFCoeff: c.VFCoeff, EntropyCoeff: c.EntropyCoeff, Accumulation: 1}
	result := rl.UpdateEpoch{Steps: rl.PlanUpdates(len(micros), c.Accumulation, nil), Micro: make([]rl.MicroUpdate, len(micros))}
	var norms []float64
	for _, s := range result.Steps {
		dumped := c.dumper(env, r, st, s, len(micros))
		for k := s.From; k < s.To; k++ {
			index := micros[k]
			batch := rl.UpdateBatch{Rows: len(index), Cols: r.batch.Response, Mask: pick(r.mask, r.batch.Response, index),
				LogpOld: pick(r.old, r.batch.Response, index), ValuesOld: pick(r.values, r.batch.Response, index),
				Returns: pick(r.returns, r.batch.Response, index), Advantages: pick(r.advantages, r.batch.Response, index)}
			err := env.Policy.Accumulate(r.batch.rows(index), func(now Scores) (Slopes, error) {
				batch.LogpNew, batch.ValuesNew, batch.Entropy = now.LogProbs, now.Values, now.Entropy
				e, err := rl.RunPPOUpdateEpoch([]rl.UpdateBatch{batch}, options)
				if err != nil {
					return Slopes{}, err
				}
				u := e.Micro[0]
				for _, d := range [][]float64{u.DLogp, u.DValue, u.DEntropy} {
					for i := range d {
						d[i] /= float64(s.Divisor)
					}
				}
				result.Micro[k] = u
				dumped.add(index, batch, u)
				return Slopes{LogProbs: u.DLogp, Entropy: u.DEntropy, Values: u.DValue}, finite(st.Step, "loss", []float64{u.TotalLoss}, nil)
			})
			if err != nil {
				return nil, errors.Join(err, dumped.write())
			}
		}
		rule := optim.Adam{LR: schedule.At(st.Updates), Beta1: .9, Beta2: .999, Eps: 1e-8}
		moved, err := run.optimizer.Step(Update{Step: st.Step, Rule: rule, MaxNorm: c.MaxGradNorm})
		norms = append(norms, moved.Norm)
		st.Updates++
		if err := errors.Join(err, dumped.write()); err != nil {
			return nil, err
		}
	}
	return result.Metrics(norms), nil
}

// line is a line of metrics.jsonl: one for every epoch.
func (c *PPO) line(step, epoch int, lr float64, r *ppoRollout, metrics []rl.Metric) []rundir.Field {
	fields := []rundir.Field{{Key: "step", Value: step}, {Key: "epoch", Value: epoch + 1}}
	for _, m := range metrics {
		fields = append(fields, rundir.Field{Key: m.Name, Value: m.Value})
	}
	tokens, kl := 0, 0.0
	for i, m := range r.mask {
		if m {
			tokens++
			kl += r.kl[i]
		}
	}
	return append(fields, rundir.Field{Key: "params/learning_rate", Value: lr},
		rundir.Field{Key: "rollout/kl_mean", Value: kl / float64(max(1, tokens))},
		rundir.Field{Key: "rollout/response_length", Value: float64(tokens) / float64(len(r.scores))},
		rundir.Field{Key: "rollout/unfinished", Value: r.unfinished}, rundir.Field{Key: "rollout/prompts_cut", Value: r.cut})
}

func metric(list []rl.Metric, name string) float64 {
	for _, m := range list {
		if m.Name == name {
			return m.Value
		}
	}
	return math.NaN()
}
