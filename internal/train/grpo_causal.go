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
	opt := newOptimizer(env.Policy.Params(), c.MaxGradNorm)
	var st state
	if env.From != nil {
		if st, err = c.resume(env, opt); err != nil {
			return nil, err
		}
	}
	log, err := openJournal(env.Run.Path(), env.From != nil, st.Step)
	if err != nil {
		return nil, err
	}
	defer log.close()
	n := c.BatchSize * c.Accumulation
	fmt.Fprintf(env.Out, "%d prompts x %d generations = %d completions, %d updates of each, %d micro-batches of %d\n", n/c.Generations, c.Generations, n, c.Iterations, c.Accumulation, c.BatchSize)
	schedule := optim.Schedule{Decay: optim.Cosine, LR: c.LearningRate, MinLR: min(c.MinLR, c.LearningRate), Warmup: c.Warmup, Total: c.Steps}
	order := dataset.NewOrder(rng.New(c.Seed, streamData), len(env.Questions))
	for st.Step < c.Steps {
		g, err := c.generate(env, order, st.Samples, st.Step+1)
		if err != nil {
			return nil, err
		}
		st.Samples += n
		for range c.Iterations {
			step := st.Step + 1
			micros, lr, norm, err := c.update(env, opt, schedule, g, step)
			if err != nil {
				return nil, err
			}
			st.Step, st.Updates, st.Tokens = step, st.Updates+1, st.Tokens+count(g.mask)
			last = c.metrics(g, micros)
			fields := []rundir.Field{{Key: "step", Value: step}}
			for _, m := range append(last, rl.Metric{Name: "grad_norm", Value: norm}, rl.Metric{Name: "learning_rate", Value: lr}) {
				fields = append(fields, rundir.Field{Key: m.Name, Value: m.Value})
			}
			if err := log.add(step, true, append(fields, rundir.Field{Key: "num_tokens", Value: st.Tokens})); err != nil {
				return nil, err
			}
			if step%c.LogInterval == 0 || step == c.Steps {
				fmt.Fprintf(env.Out, "step %d/%d loss %.6f reward %.4f±%.4f kl %.6f clip %.3f entropy %.4f length %.1f gnorm %.3f\n", step, c.Steps, metric(last, "loss"), metric(last, "reward"),
					metric(last, "reward_std"), metric(last, "kl"), metric(last, "clip_ratio/region_mean"), metric(last, "entropy"), metric(last, "completions/mean_length"), norm)
			}
			if env.Progress != nil {
				env.Progress(step, c.Steps)
			}
		}
		stop := ctx.Err() != nil
		if stop || st.Step < c.Steps && c.SaveInterval > 0 && st.Step%c.SaveInterval == 0 {
			if err := c.save(env, opt, st, fmt.Sprintf("step_%d", st.Step)); err != nil {
				return nil, err
			}
		}
		if stop {
			return last, ErrInterrupted
		}
	}
	if env.From == nil || env.From.Name != "final" || st.Step != c.Steps {
		if err := c.save(env, opt, st, "final"); err != nil {
			return nil, err
		}
	}
	return last, c.evaluate(env)
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
func (c *GRPOCausal) answer(env Env, questions []dataset.Question, stream rng.Stream, first int) (prompts, completions [][]int, gen [][]float64, err error) {
	for _, q := range questions {
		ids := env.Tokenizer.Encode(strings.ReplaceAll(c.PromptFormat, "{question}", q.Question))
		if len(ids) == 0 {
			return nil, nil, nil, fmt.Errorf("the prompt of %q has no tokens", q.Question)
		}
		prompts = append(prompts, ids)
	}
	completions, gen, err = sample(env.Policy, leftPad(prompts, env.Tokenizer.Pad()), Sampling{Temperature: 1, TopP: 1, MaxNew: c.MaxCompletion}, env.Tokenizer.EOS(), stream, first)
	return prompts, completions, gen, err
}

// reward stores the rewards of a completion in dst [F].
func (c *GRPOCausal) reward(dst []float64, text string, tokens int, q dataset.Question) {
	for k, name := range c.RewardFuncs {
		dst[k] = rewardFuncs[name](text, float64(tokens)/float64(c.MaxCompletion), q)
	}
}

// generate answers the next prompts and computes everything of the answers that does not change while they are learned from.
func (c *GRPOCausal) generate(env Env, order *dataset.Order, first, step int) (*generation, error) {
	g := &generation{}
	eos, pad, n, f := env.Tokenizer.EOS(), env.Tokenizer.Pad(), c.BatchSize*c.Accumulation, len(c.RewardFuncs)
	var questions []dataset.Question
	for i := range n {
		g.index = append(g.index, order.At((first+i)/c.Generations))
		questions = append(questions, env.Questions[g.index[i]])
	}
	prompts, completions, gen, err := c.answer(env, questions, rng.New(c.Seed, streamSample), first)
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
		g.gen = append(append(g.gen, gen[i]...), make([]float64, g.batch.Response-len(ids))...)
	}
	if err := finite(step, "rewards", g.funcs, nil); err != nil {
		return nil, err
	}
	rl.WeightedReward(g.scores, g.funcs, c.weights, n)
	o, how := c.advantage()
	if g.advantages, err = rl.MultiAdvantage(nil, g.funcs, c.weights, rl.GroupBlocks(n, c.Generations), how, o); err != nil {
		return nil, err
	}
	for at := 0; at < n; at += c.BatchSize {
		part := g.batch.rows(span(at, c.BatchSize))
		if c.Iterations > 1 {
			g.old = append(g.old, env.Policy.Score(part).LogProbs...)
		}
		if c.Beta != 0 {
			g.ref = append(g.ref, env.Policy.Reference(part)...)
		}
	}
	return g, nil
}

func span(from, n int) []int {
	index := make([]int, n)
	for i := range index {
		index[i] = from + i
	}
	return index
}

// update makes one update from all completions.
func (c *GRPOCausal) update(env Env, opt *optimizer, schedule optim.Schedule, g *generation, step int) (micros []*causalMicro, lr, norm float64, err error) {
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
	norm, err = opt.step(step, optim.Adam{LR: lr, Beta1: .9, Beta2: .999, Eps: 1e-8, WeightDecay: c.WeightDecay})
	return micros, lr, norm, c.dumpAfter(env, err, g, micros, step)
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
func (c *GRPOCausal) evaluate(env Env) error {
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
		_, completions, _, err := c.answer(env, slices.Repeat([]dataset.Question{q}, c.EvalSamples), rng.New(c.Seed, streamEval), at*c.EvalSamples)
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

func (c *GRPOCausal) save(env Env, opt *optimizer, st state, name string) error {
	m := rundir.Manifest{Step: st.Step, Trainer: TrainerGRPOCausal, ConfigSHA256: env.ConfigSHA, BaseFingerprint: env.Policy.Fingerprint(), Variant: "reference",
		RNG: map[string]uint64{"samples": uint64(st.Samples)}}
	files, err := env.Policy.Files()
	if err != nil {
		return err
	}
	return env.Run.Save(name, m, append(files, opt.file(), st.file()))
}

// resume restores what a checkpoint holds.
func (c *GRPOCausal) resume(env Env, opt *optimizer) (state, error) {
	st, err := readState(env.From.Path)
	if err == nil {
		err = env.Policy.Restore(env.From.Path)
	}
	if err == nil {
		err = opt.restore(env.From.Path, st.Updates)
	}
	return st, err
}
