package train

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
)

// Evaluate draws samples responses to every held-out question as the rollouts are drawn, with random numbers that depend on the
// seed alone, and returns the mean reward of each question and the share of its responses that are right. The same run with other hyper-parameters is compared question by
// question. They are written to eval.jsonl, too.
func (c *PPO) Evaluate(ctx context.Context, env Env, samples int) (rewards, right []float64, err error) {
	sampling := Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinNew: c.MinNew, MaxNew: c.MaxNew, Greedy: !c.DoSample}
	each := max(1, c.BatchSize/samples)
	for at := 0; at < len(env.HeldOut); at += each {
		var prompts [][]int
		for _, q := range env.HeldOut[at:min(at+each, len(env.HeldOut))] {
			ids := env.Tokenizer.Encode(strings.ReplaceAll(c.Dataset.PromptFormat, "{question}", q.Question))
			ids = ids[max(0, len(ids)-c.Dataset.MaxPrompt):]
			prompts = append(prompts, slices.Repeat([][]int{ids}, samples)...)
		}
		responses, _, err := env.Policy.Sample(ctx, leftPad(prompts, env.Tokenizer.Pad()), sampling, rng.New(c.Seed, streamEval), at*samples, env.Tokenizer.EOS(), nil)
		if err != nil {
			return nil, nil, err
		}
		for i, ids := range responses {
			if i%samples == 0 {
				rewards, right = append(rewards, 0), append(right, 0)
			}
			reward := dataset.Reward(env.Tokenizer.Decode(ids), env.HeldOut[at+i/samples].Truth)
			rewards[len(rewards)-1] += reward / float64(samples)
			if reward == 1 {
				right[len(right)-1] += 1 / float64(samples)
			}
		}
	}
	log, err := rundir.CreateLog(filepath.Join(env.Run.Path(), "eval.jsonl"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	for i, r := range rewards {
		if err := log.Append(rundir.Field{Key: "question", Value: env.HeldOut[i].Question}, rundir.Field{Key: "samples", Value: samples},
			rundir.Field{Key: "reward", Value: r}, rundir.Field{Key: "right", Value: right[i]}); err != nil {
			return nil, nil, err
		}
	}
	return rewards, right, nil
}
