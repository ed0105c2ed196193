package train

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
)

// SFT is the configuration of [SFT.Train]: supervised training of a causal model on questions and answers.
type SFT struct {
	Model         string
	LoRA          LoRA
	Dataset       string
	AdditionsMost int
	NumSamples    int
	PromptFormat  string
	Separator     string
	Supervised
}

// Settings binds the keys of c to their defaults.
func (c *SFT) Settings() *config.Settings {
	*c = SFT{Model: "tiny-init", Dataset: "additions", AdditionsMost: 9, NumSamples: 2000, PromptFormat: "Question: {question}\nAnswer:", Separator: " ",
		Supervised: Supervised{LearningRate: 3e-3, MinLR: 1e-5, Warmup: 20, Steps: 200, EvalSamples: 200, BatchSize: 16, MaxGradNorm: 1, Seed: 1, LogInterval: 10, OutputDir: "outputs/sft"}}
	s := config.NewSettings()
	s.Text("model.name", &c.Model, "folder of a Hugging Face model, a GGUF file, tiny: the embedded one, or tiny-init: the same before any training")
	c.LoRA.settings(s)
	s.Text("dataset.name", &c.Dataset, "JSON lines {question, answer}, or additions: generated ones")
	s.Int("dataset.additions_most", &c.AdditionsMost, 1, 1_000_000, "largest number of generated additions")
	s.Int("dataset.num_samples", &c.NumSamples, 0, many, "rows that are used; 0: all")
	s.Text("dataset.prompt_format", &c.PromptFormat, "the prompt, with {question} in it")
	s.Text("dataset.separator", &c.Separator, "between prompt and answer")
	c.Supervised.settings(s, "rows that are answered greedily at the end, for their mean reward")
	return s
}

// Train minimises the mean of −log p over the tokens of the answers, each ended by the tokenizer's end. It returns the losses of
// the last step.
func (c *SFT) Train(ctx context.Context, env Env) (loss float64, err error) {
	if !strings.Contains(c.PromptFormat, "{question}") {
		return 0, fmt.Errorf("dataset.prompt_format %q has no {question}", c.PromptFormat)
	}
	r, err := env.begin(plan{trainer: "sft", model: env.Policy, base: env.Policy.Fingerprint(), optimizer: env.optimizer(env.Policy.Params(), false),
		steps: c.Steps, every: c.SaveInterval})
	if err != nil {
		return 0, err
	}
	defer r.close()
	order := dataset.NewOrder(rng.New(c.Seed, streamData), len(env.Questions))
	err = r.train(ctx, func() error {
		step := r.Step + 1
		var prompts, answers [][]int
		tokens := 0
		for i := range c.BatchSize {
			q := env.Questions[order.At(r.Samples+i)]
			prompts = append(prompts, env.Tokenizer.Encode(strings.ReplaceAll(c.PromptFormat, "{question}", q.Question)))
			answers = append(answers, append(env.Tokenizer.Encode(c.Separator+q.Answer), env.Tokenizer.EOS()))
			tokens += len(answers[i])
		}
		batch, mask := leftPad(prompts, env.Tokenizer.Pad()).withResponses(answers, env.Tokenizer.Pad())
		err := env.Policy.Accumulate(batch, func(now Scores) (Slopes, error) {
			d := make([]float64, len(mask))
			loss = 0
			for i, m := range mask {
				if m {
					loss -= now.LogProbs[i] / float64(tokens)
					d[i] = -1 / float64(tokens)
				}
			}
			return Slopes{LogProbs: d}, finite(step, "loss", []float64{loss}, nil)
		})
		if err != nil {
			return err
		}
		return c.step(r, loss, c.BatchSize, tokens)
	})
	if err != nil {
		return loss, err
	}
	return loss, c.evaluate(ctx, env)
}

// evaluate prints what the model can do.
func (c *SFT) evaluate(ctx context.Context, env Env) error {
	env.Questions = env.Questions[:min(c.EvalSamples, len(env.Questions))]
	if len(env.Questions) == 0 {
		return nil
	}
	reward, right, err := Answers(ctx, env, c.PromptFormat, evalTokens)
	if err == nil {
		fmt.Fprintf(env.Out, "greedy answers to %d questions: %d right, mean reward %.4f\n", len(env.Questions), right, reward)
	}
	return err
}

// evalTokens is the longest answer of an evaluation.
const evalTokens = 256

// Answers lets the model answer the questions greedily and returns the mean reward, and how many answers are right.
func Answers(ctx context.Context, env Env, format string, maxNew int) (mean float64, right int, err error) {
	for part := range slices.Chunk(env.Questions, 32) {
		var prompts [][]int
		for _, q := range part {
			prompts = append(prompts, env.Tokenizer.Encode(strings.ReplaceAll(format, "{question}", q.Question)))
		}
		responses, _, err := env.Policy.Sample(ctx, leftPad(prompts, env.Tokenizer.Pad()), Sampling{Greedy: true, MaxNew: maxNew}, rng.New(0, streamSample), 0, env.Tokenizer.EOS(), nil)
		if err != nil {
			return 0, 0, err
		}
		for i, q := range part {
			r := dataset.Reward(env.Tokenizer.Decode(responses[i]), q.Truth)
			mean += r / float64(len(env.Questions))
			if r == 1 {
				right++
			}
		}
	}
	return mean, right, nil
}
