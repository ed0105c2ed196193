package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// generation is what the updates between two rollouts learn from: N completions of N/G prompts.
type generation struct {
	batch      Batch
	mask       []bool    // [N, R]
	old, ref   []float64 // [N, R]; old is nil where each completion is learned from once, ref where β is 0
	gen        []float64 // [N, R], under the distribution that was drawn from
	funcs      []float64 // [N, F]: the rewards
	scores     []float64 // [N]: their weighted sum
	advantages []float64 // [N]
	index      []int     // of the questions
	promptLen  []int
	texts      []string
	unfinished int
}

// causalMicro is what one micro-batch of an update computed.
type causalMicro struct {
	rows      []int
	batch     Batch
	mask      []bool
	advantage []float64 // [B, R]
	scores    Scores
	old, ref  []float64
	result    rl.PolicyResult
	clipped   []float64
	kl        []float64
}

// Train runs GRPO of a causal language model as TRL does: every prompt is answered num_generations times, reward functions score
// the answers, the advantage of an answer is its reward's distance from the mean of its group over their standard deviation, and
// num_iterations updates are made with the loss of loss_type. It returns the metrics of the last update.
func (c *GRPOCausal) Train(ctx context.Context, env Env) (last []rl.Metric, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	r, err := env.begin(plan{trainer: TrainerGRPOCausal, model: env.Policy, base: env.Policy.Fingerprint(), optimizer: env.optimizer(env.Policy.Params(), false),
		steps: c.Steps, every: c.SaveInterval, options: map[string]string{"reward_weights": fmt.Sprint(c.RewardWeights)}})
	if err != nil {
		return nil, err
	}
	defer r.close()
	n := c.BatchSize * c.Accumulation
	fmt.Fprintf(env.Out, "%d prompts x %d generations = %d completions, %d updates of each, %d micro-batches of %d\n", n/c.Generations, c.Generations, n, c.Iterations, c.Accumulation, c.BatchSize)
	schedule := optim.Schedule{Decay: optim.Cosine, LR: c.LearningRate, MinLR: min(c.MinLR, c.LearningRate), Warmup: c.Warmup, Total: c.Steps}
	order := dataset.NewOrder(rng.New(c.Seed, streamData), len(env.Questions))
	err = r.train(ctx, func() error {
		g, err := c.generate(ctx, r, order)
		if err != nil {
			return err
		}
		r.Samples += n
		for range c.Iterations {
			if last, err = c.learn(r, schedule, g); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return last, err
	}
	return last, c.evaluate(ctx, env)
}

// learn makes one update and writes of it.
func (c *GRPOCausal) learn(r *run, schedule optim.Schedule, g *generation) ([]rl.Metric, error) {
	step := r.Step + 1
	micros, lr, norm, err := c.update(r, schedule, g, step)
	if err != nil {
		return nil, err
	}
	r.Step, r.Updates, r.Tokens = step, r.Updates+1, r.Tokens+count(g.mask)
	last := c.metrics(g, micros)
	fields := []rundir.Field{{Key: "step", Value: step}}
	for _, m := range append(last, rl.Metric{Name: "grad_norm", Value: norm}, rl.Metric{Name: "learning_rate", Value: lr}) {
		fields = append(fields, rundir.Field{Key: m.Name, Value: m.Value})
	}
	if err := r.log(step, true, append(fields, rundir.Field{Key: "num_tokens", Value: r.Tokens})); err != nil {
		return nil, err
	}
	if step%c.LogInterval == 0 || step == c.Steps {
		fmt.Fprintf(r.env.Out, "step %d/%d loss %.6f reward %.4f±%.4f kl %.6f clip %.3f entropy %.4f length %.1f gnorm %.3f\n", step, c.Steps, metric(last, "loss"), metric(last, "reward"),
			metric(last, "reward_std"), metric(last, "kl"), metric(last, "clip_ratio/region_mean"), metric(last, "entropy"), metric(last, "completions/mean_length"), norm)
	}
	return last, nil
}

func count(mask []bool) (n int) {
	for _, m := range mask {
		if m {
			n++
		}
	}
	return n
}

// answer draws completions of questions, each with the random numbers of its sample.
func (c *GRPOCausal) answer(ctx context.Context, env Env, questions []dataset.Question, stream rng.Stream, first int, progress func(Drawn)) (prompts, completions [][]int, gen [][]float64, err error) {
	for _, q := range questions {
		ids := env.Tokenizer.Encode(strings.ReplaceAll(c.PromptFormat, "{question}", q.Question))
		if len(ids) == 0 {
			return nil, nil, nil, fmt.Errorf("the prompt of %q has no tokens", q.Question)
		}
		prompts = append(prompts, ids)
	}
	completions, gen, err = env.Policy.Sample(ctx, leftPad(prompts, env.Tokenizer.Pad()), Sampling{Temperature: 1, TopP: 1, MaxNew: c.MaxCompletion}, stream, first, env.Tokenizer.EOS(), progress)
	return prompts, completions, gen, err
}

// reward stores the rewards of a completion in dst [F].
func (c *GRPOCausal) reward(dst []float64, text string, tokens int, q dataset.Question) {
	for k, name := range c.RewardFuncs {
		dst[k] = rewardFuncs[name](text, float64(tokens)/float64(c.MaxCompletion), q)
	}
}

// generate answers the next prompts and computes everything of the answers that does not change while they are learned from.
func (c *GRPOCausal) generate(ctx context.Context, r *run, order *dataset.Order) (*generation, error) {
	g, env, first, step := &generation{}, r.env, r.Samples, r.Step+1
	eos, pad, n, f := env.Tokenizer.EOS(), env.Tokenizer.Pad(), c.BatchSize*c.Accumulation, len(c.RewardFuncs)
	var questions []dataset.Question
	for i := range n {
		g.index = append(g.index, order.At((first+i)/c.Generations))
		questions = append(questions, env.Questions[g.index[i]])
	}
	prompts, completions, gen, err := c.answer(ctx, env, questions, rng.New(c.Seed, streamSample), first, r.rollout(n, c.MaxCompletion).next(n))
	if err != nil {
		return nil, fmt.Errorf("step %d: %w", step, err)
	}
	g.batch, g.mask = leftPad(prompts, pad).withResponses(completions, pad)
	g.funcs, g.scores = make([]float64, n*f), make([]float64, n)
	for i, ids := range completions {
		g.promptLen = append(g.promptLen, len(prompts[i]))
		g.texts = append(g.texts, env.Tokenizer.Decode(ids))
		c.reward(g.funcs[i*f:(i+1)*f], g.texts[i], len(ids), questions[i])
		if ids[len(ids)-1] != eos {
			g.unfinished++
			if c.MaskTruncated {
				clear(g.mask[i*g.batch.Response : (i+1)*g.batch.Response])
			}
		}
	}
	if err := finite(step, "rewards", g.funcs, nil); err != nil {
		return nil, err
	}
	rl.WeightedReward(g.scores, g.funcs, c.weights, n)
	o, how := c.advantage()
	if g.advantages, err = rl.MultiAdvantage(nil, g.funcs, c.weights, rl.GroupBlocks(n, c.Generations), how, o); err != nil {
		return nil, err
	}
	g.gen = padded(gen, g.batch.Response)
	old, ref, err := scored(ctx, env.Policy, g.batch, c.BatchSize, c.Iterations > 1, c.Beta != 0)
	g.old, g.ref = old.LogProbs, ref
	return g, err
}

// update makes one update from all completions.
func (c *GRPOCausal) update(r *run, schedule optim.Schedule, g *generation, step int) (micros []*causalMicro, lr, norm float64, err error) {
	env := r.env
	options := c.loss(float64(count(g.mask)))
	cols := g.batch.Response
	for k := range c.Accumulation {
		m := &causalMicro{rows: span(k*c.BatchSize, c.BatchSize)}
		m.batch, m.mask = g.batch.rows(m.rows), pick(g.mask, cols, m.rows)
		m.advantage = rl.Broadcast(nil, pick(g.advantages, 1, m.rows), nil, c.BatchSize, cols)
		if g.ref != nil {
			m.ref = pick(g.ref, cols, m.rows)
		}
		err = env.Policy.Accumulate(m.batch, func(now Scores) (Slopes, error) {
			m.scores = now
			batch := rl.PolicyBatch{Rows: c.BatchSize, Cols: cols, LogProbs: now.LogProbs, Ref: m.ref, Adv: m.advantage, Mask: m.mask}
			if g.old != nil {
				m.old = pick(g.old, cols, m.rows)
				batch.Old = m.old
			} else {
				m.old = append([]float64(nil), now.LogProbs...)
			}
			if err := rl.Policy(&m.result, batch, options); err != nil {
				return Slopes{}, fmt.Errorf("step %d: %w", step, err)
			}
			m.clipped = rl.Clipped(nil, m.result.Ratio, m.advantage, rl.ClipFracBinding, options.Clip)
			if m.ref != nil {
				m.kl, _ = rl.KL(nil, nil, now.LogProbs, m.ref, nil, rl.KLOptions{Kind: options.KL.Kind})
				for i, ratio := range m.result.Ratio {
					if c.CorrectKL {
						m.kl[i] *= ratio
					}
				}
			}
			return Slopes{LogProbs: m.result.DLogp}, finite(step, "loss", []float64{m.result.Loss}, nil)
		})
		micros = append(micros, m)
		if err != nil {
			return nil, 0, 0, c.dumpAfter(env, err, g, micros, step)
		}
	}
	lr = schedule.At(step - 1)
	rule := optim.Adam{LR: lr, Beta1: .9, Beta2: .999, Eps: 1e-8, WeightDecay: c.WeightDecay}
	moved, err := r.optimizer.Step(Update{Step: step, Rule: rule, MaxNorm: c.MaxGradNorm})
	return micros, lr, moved.Norm, c.dumpAfter(env, err, g, micros, step)
}

// metrics are those of an update under TRL's names: the loss is the sum of the micro-batches, which each have their share of it.
func (c *GRPOCausal) metrics(g *generation, micros []*causalMicro) []rl.Metric {
	var loss, kl, entropy, clipped float64
	tokens := float64(max(1, count(g.mask)))
	for _, m := range micros {
		loss += m.result.Loss
		for i, on := range m.mask {
			if !on {
				continue
			}
			entropy += m.scores.Entropy[i] / tokens
			clipped += m.clipped[i] / tokens
			if m.kl != nil {
				kl += m.kl[i] / tokens
			}
		}
	}
	reward, _ := meanStd(g.scores)
	groups, std, flat := len(g.scores)/c.Generations, 0.0, 0.0
	for i := range groups {
		_, s := meanStd(g.scores[i*c.Generations : (i+1)*c.Generations])
		std += s / float64(groups)
		if s == 0 {
			flat += 1 / float64(groups)
		}
	}
	list := []rl.Metric{{Name: "loss", Value: loss}, {Name: "reward", Value: reward}, {Name: "reward_std", Value: std}, {Name: "frac_reward_zero_std", Value: flat}, {Name: "kl", Value: kl},
		{Name: "entropy", Value: entropy}, {Name: "clip_ratio/region_mean", Value: clipped}, {Name: "completions/mean_length", Value: tokens / float64(len(g.scores))},
		{Name: "completions/clipped_ratio", Value: float64(g.unfinished) / float64(len(g.scores))}}
	for k, name := range c.RewardFuncs {
		var x []float64
		for i := range g.scores {
			x = append(x, g.funcs[i*len(c.RewardFuncs)+k])
		}
		mean, s := meanStd(x)
		list = append(list, rl.Metric{Name: "rewards/" + name + "/mean", Value: mean}, rl.Metric{Name: "rewards/" + name + "/std", Value: s})
	}
	return list
}

// evaluate answers every held-out question eval_samples times, writes its mean reward to eval.jsonl and prints the mean of all with
// its standard error. The random numbers depend on the seed alone, so runs with other hyper-parameters are compared question by
// question.
func (c *GRPOCausal) evaluate(ctx context.Context, env Env) error {
	if len(env.HeldOut) == 0 || c.EvalSamples == 0 {
		return nil
	}
	log, err := rundir.CreateLog(filepath.Join(env.Run.Path(), "eval.jsonl"))
	if err != nil {
		return err
	}
	defer log.Close()
	var rewards []float64
	for at, q := range env.HeldOut {
		_, completions, _, err := c.answer(ctx, env, slices.Repeat([]dataset.Question{q}, c.EvalSamples), rng.New(c.Seed, streamEval), at*c.EvalSamples, nil)
		if err != nil {
			return err
		}
		r := 0.0
		for _, ids := range completions {
			each := make([]float64, len(c.RewardFuncs))
			c.reward(each, env.Tokenizer.Decode(ids), len(ids), q)
			r += rl.WeightedReward(nil, each, c.weights, 1)[0] / float64(c.EvalSamples)
		}
		rewards = append(rewards, r)
		if err := log.Append(rundir.Field{Key: "question", Value: q.Question}, rundir.Field{Key: "reward", Value: r}); err != nil {
			return err
		}
	}
	mean, std := meanStd(rewards)
	fmt.Fprintf(env.Out, "held-out reward %.4f ± %.4f (%d questions, %d answers to each)\n", mean, std/math.Sqrt(float64(len(rewards))), len(rewards), c.EvalSamples)
	return nil
}
