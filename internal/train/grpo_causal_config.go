package train

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/reference/rl"
)

// rewardFuncs score the text of an answer; length is its share of max_completion_length, in (0, 1].
var rewardFuncs = map[string]func(text string, length float64, q dataset.Question) float64{
	"answer": func(text string, _ float64, q dataset.Question) float64 { return dataset.Reward(text, q.Truth) }, // 1, 0.1 or 0
	"correct": func(text string, _ float64, q dataset.Question) float64 { // 1 or 0
		return math.Floor(dataset.Reward(text, q.Truth))
	},
	"format": func(text string, _ float64, _ dataset.Question) float64 { // 1 with a number after ####
		if _, ok := dataset.Number(text); ok {
			return 1
		}
		return 0
	},
	"close": func(text string, _ float64, q dataset.Question) float64 { // 1 at the true number, falling to 0 at a distance of 10
		x, ok := dataset.Number(text)
		if !ok {
			return 0
		}
		return 1 - min(math.Abs(x-q.Truth)/10, 1)
	},
	"brevity": func(_ string, length float64, _ dataset.Question) float64 { return 1 - length },
}

// lossTypes are TRL's, as GRPOTrainer of 1.16.0 computes them.
var lossTypes = []string{"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"}

// GRPOCausal is the configuration of [GRPOCausal.Train]: TRL's GRPOConfig, under its names where it has one.
type GRPOCausal struct {
	Cluster                 string // who draws the samples: [NoCluster], embedded or a URL
	Trainer                 string
	Model                   string
	LoRA                    LoRA
	Dataset                 string
	AdditionsMost           int
	NumSamples, HeldOut     int
	EvalSamples             int
	PromptFormat            string
	RewardFuncs             []string
	RewardWeights           []string
	Aggregation             string
	LossType                string
	Generations             int
	BatchSize, Accumulation int
	Iterations              int
	MaxCompletion           int
	MaskTruncated           bool
	Beta                    float64
	CorrectKL               bool
	Epsilon, EpsilonHigh    float64
	Importance              string
	ScaleRewards            string
	LearningRate, MinLR     float64
	Warmup, Steps           int
	WeightDecay             float64
	Checkpointing           bool
	MaxGradNorm             float64
	Seed                    uint64
	LogInterval             int
	SaveInterval, Keep      int
	OutputDir               string
	Dump                    Dump

	weights []float64 // of the reward functions, by Check
}

// Settings binds the keys of c to their defaults.
func (c *GRPOCausal) Settings() *config.Settings {
	*c = GRPOCausal{Trainer: TrainerGRPOCausal, Model: "tiny", Dataset: "additions", AdditionsMost: 9, NumSamples: 2000, HeldOut: 20, EvalSamples: 8, PromptFormat: "Question: {question}\nAnswer:",
		RewardFuncs: []string{"answer"}, Aggregation: "sum_then_normalize", LossType: "dapo", Generations: 8, BatchSize: 8, Accumulation: 1, Iterations: 1, MaxCompletion: 256,
		CorrectKL: true, Epsilon: .2, EpsilonHigh: .2, Importance: "token", ScaleRewards: "group", LearningRate: 1e-6, Steps: 100, MaxGradNorm: 1, Seed: 42, LogInterval: 1, SaveInterval: 0,
		OutputDir: "outputs/grpo_causal"}
	s := config.NewSettings()
	s.Choice("trainer", &c.Trainer, []string{TrainerGRPOCausal}, "a causal language model; grpo is another configuration")
	s.Text("model.name", &c.Model, "folder of a Hugging Face model, a GGUF file, or tiny: the embedded one")
	c.LoRA.settings(s)
	s.Text("dataset.name", &c.Dataset, "JSON lines {question, answer}, or additions: generated ones")
	s.Int("dataset.additions_most", &c.AdditionsMost, 1, 1_000_000, "largest number of generated additions")
	s.Int("dataset.num_samples", &c.NumSamples, 0, many, "rows that are used; 0: all")
	s.Int("dataset.held_out", &c.HeldOut, 0, many, "questions that are answered at the end, and not trained on")
	s.Int("eval_samples", &c.EvalSamples, 0, many, "answers to each of them")
	s.Text("dataset.prompt_format", &c.PromptFormat, "the prompt, with {question} in it")
	s.Texts("reward_funcs", &c.RewardFuncs, "of "+strings.Join(slices.Sorted(maps.Keys(rewardFuncs)), ", "))
	s.Texts("reward_weights", &c.RewardWeights, "a number for each of reward_funcs; empty: 1")
	s.Choice("multi_objective_aggregation", &c.Aggregation, []string{"sum_then_normalize", "normalize_then_sum"}, "of several reward functions; the second is GDPO")
	s.Choice("loss_type", &c.LossType, lossTypes, "of TRL 1.16.0")
	s.Int("num_generations", &c.Generations, 1, many, "answers to a prompt, at least 2")
	s.Int("per_device_train_batch_size", &c.BatchSize, 1, many, "completions of a micro-batch")
	s.Int("gradient_accumulation_steps", &c.Accumulation, 1, many, "micro-batches of an update; all of them are generated at once")
	s.Int("num_iterations", &c.Iterations, 1, many, "updates from the same completions")
	s.Int("max_completion_length", &c.MaxCompletion, 1, MaxTokens, "tokens of a completion")
	s.Bool("mask_truncated_completions", &c.MaskTruncated, "completions without an end teach nothing")
	s.Float("beta", &c.Beta, 0, huge, "weight of the KL to the reference, k3 per token; 0: no reference")
	s.Bool("use_bias_correction_kl", &c.CorrectKL, "the KL is multiplied by the ratio")
	s.Float("epsilon", &c.Epsilon, 0, huge, "the ratio is clipped at 1 - epsilon")
	s.Float("epsilon_high", &c.EpsilonHigh, 0, huge, "and at 1 + epsilon_high; cispo: at epsilon_high itself")
	s.Choice("importance_sampling_level", &c.Importance, []string{"token", "sequence"}, "of the ratio")
	s.Choice("scale_rewards", &c.ScaleRewards, []string{"group", "batch", "none"}, "the standard deviation that centred rewards are divided by")
	s.Float("learning_rate", &c.LearningRate, 0, huge, "after the warm-up")
	s.Float("min_lr", &c.MinLR, 0, huge, "at the end of the cosine")
	s.Int("warmup_steps", &c.Warmup, 0, many, "updates")
	s.Int("max_steps", &c.Steps, 0, many, "updates, a multiple of num_iterations")
	s.Float("weight_decay", &c.WeightDecay, 0, 1, "decoupled, of tensors with two dimensions and more")
	s.Bool("gradient_checkpointing", &c.Checkpointing, "keep what the layers read and run them once more backwards: less memory, the same bits")
	s.Float("max_grad_norm", &c.MaxGradNorm, 0, huge, "of the global norm; 0: no clipping")
	s.Uint64("seed", &c.Seed, "of everything random")
	s.Int("logging_steps", &c.LogInterval, 1, many, "updates between lines")
	s.Int("save_steps", &c.SaveInterval, 0, many, "updates between checkpoints, a multiple of num_iterations; 0: only the last")
	s.Int("save_total_limit", &c.Keep, 0, many, "checkpoints that stay; 0: all")
	s.Text("output_dir", &c.OutputDir, "folder of the run")
	clusterKey(s, &c.Cluster)
	c.Dump.settings(s)
	return s
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it.
func (c *GRPOCausal) WithoutEffect() []string {
	return []string{"logging_steps", "save_steps", "save_total_limit", "output_dir", "cluster", "dump.dir", "dump.every", "eval_samples", "gradient_checkpointing"}
}

// Check refuses what cannot be trained: a *[ConfigError].
func (c *GRPOCausal) Check() error {
	n := c.BatchSize * c.Accumulation
	switch {
	case c.Generations < 2:
		return refuse("num_generations %d: one completion has no advantage over itself; give 2 or more", c.Generations)
	case n%c.Generations != 0:
		return refuse("per_device_train_batch_size x gradient_accumulation_steps = %d is not divisible by num_generations %d: a group would be incomplete", n, c.Generations)
	case c.Steps%c.Iterations != 0 || c.SaveInterval%c.Iterations != 0:
		return refuse("max_steps %d and save_steps %d must be multiples of num_iterations %d: a checkpoint lies between two generations", c.Steps, c.SaveInterval, c.Iterations)
	case !strings.Contains(c.PromptFormat, "{question}"):
		return refuse("dataset.prompt_format %q has no {question}", c.PromptFormat)
	case c.LossType == "luspo" && c.Importance != "sequence":
		return refuse("loss_type luspo needs importance_sampling_level=sequence")
	case len(c.RewardFuncs) == 0:
		return refuse("reward_funcs is empty: nothing to learn from")
	case c.MinLR > c.LearningRate && c.LearningRate > 0:
		return refuse("min_lr %g is above learning_rate %g", c.MinLR, c.LearningRate)
	case len(c.RewardWeights) > 0 && len(c.RewardWeights) != len(c.RewardFuncs):
		return refuse("reward_weights has %d numbers for %d reward_funcs", len(c.RewardWeights), len(c.RewardFuncs))
	}
	c.weights = nil
	for i, name := range c.RewardFuncs {
		if rewardFuncs[name] == nil {
			return refuse("reward_funcs: there is no %.40q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(rewardFuncs)), ", "))
		}
		w := 1.0
		if len(c.RewardWeights) > 0 {
			var err error
			if w, err = strconv.ParseFloat(c.RewardWeights[i], 64); err != nil || math.IsNaN(w) || math.IsInf(w, 0) {
				return refuse("reward_weights: %.40q is no number", c.RewardWeights[i])
			}
		}
		c.weights = append(c.weights, w)
	}
	return nil
}

// advantage returns how rewards become advantages: GRPOTrainer's, with its ε of 1e-4.
func (c *GRPOCausal) advantage() (rl.GroupOptions, rl.MultiReward) {
	o := rl.GroupOptions{DDof: 1, Eps: 1e-4, ZeroStd: rl.ZeroStdDivide, SkipNaN: true}
	switch c.ScaleRewards {
	case "group":
		o.Scale = rl.ScaleGroupStd
	case "batch":
		o.Scale = rl.ScaleBatchStd
	}
	how, err := rl.ParseMultiReward(c.Aggregation)
	if err != nil {
		panic("train: " + err.Error()) // the setting has these names only
	}
	if how == rl.NormalizeThenSum {
		o.Scale = rl.ScaleGroupStd
	}
	return o, how
}

// loss returns the options of an update of so many tokens.
func (c *GRPOCausal) loss(tokens float64) rl.PolicyOptions {
	o := rl.PolicyOptions{Clip: rl.ClipOptions{Low: c.Epsilon, High: c.EpsilonHigh}, TauPos: 1, TauNeg: 1.05, KLBeta: c.Beta, KL: rl.KLOptions{Kind: rl.KLK3}}
	if c.CorrectKL {
		o.KL.Grad = rl.KLISCorrected
	}
	if c.Importance == "sequence" {
		o.Ratio.Level = rl.RatioSeqMean
	}
	o.Agg = rl.AggOptions{Steps: float64(c.Accumulation), EmptyRows: rl.AggCounted, Empty: rl.EmptyZero, Outside: rl.OutsideIgnore}
	switch c.LossType {
	case "grpo":
		o.Agg.Kind = rl.AggSeqMeanTokenMean
	case "sapo":
		o.Kind, o.Agg.Kind = rl.LossSAPO, rl.AggSeqMeanTokenMean
	case "bnpo":
		o.Agg.Kind = rl.AggToken
	case "dr_grpo":
		o.Agg.Kind, o.Agg.DivBatch, o.Agg.Length = rl.AggSeqSumConst, true, float64(c.MaxCompletion)
	case "luspo":
		o.Kind, o.Agg.Kind = rl.LossLUSPO, rl.AggSeqMeanTokenSum
	case "dapo", "cispo":
		o.Agg.Kind, o.Agg.Denominator, o.Agg.Tokens, o.Agg.Steps = rl.AggToken, rl.AggGlobal, tokens, 0
		if c.LossType == "cispo" {
			o.Kind, o.Clip = rl.LossCISPO, rl.ClipOptions{Low: math.Inf(1), High: c.EpsilonHigh, HighAbsolute: true}
		}
	}
	return o
}
