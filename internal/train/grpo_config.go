package train

import (
	"plumbline/internal/config"
	"plumbline/reference/rl"
)

// The trainers behind train grpo.
const (
	TrainerGRPO       = "grpo"        // of a masked language model
	TrainerGRPOCausal = "grpo_causal" // of a causal one
)

// GRPO is the configuration of [GRPO.Train]: source document B under nanoGPT's names. The defaults are the document's; block_size,
// compile, device, log and evaluation are ours.
type GRPO struct {
	Trainer                  string
	GroupSize, BatchSize     int
	Accumulation             int
	KLBeta                   float64
	KLEstimator              string
	LossOver, AdvScope       string
	Temperature, TopP        float64
	LearningRate, MinLR      float64
	MaxIters                 int
	WarmupIters, DecayIters  int
	WeightDecay              float64
	Beta1, Beta2, GradClip   float64
	BlockSize                int
	MaskRatio                float64
	Dataset, Composition     string
	LogInterval              int
	SaveInterval, Keep       int
	SampleInterval           int
	EvalSamples              int
	OutDir                   string
	InitFrom                 string
	Generator, Judge, Frozen string
	Seed                     uint64
	DropoutInRollout         bool
	FailOnZeroLoss           bool
	TimeLimit                float64
	WandbLog                 bool
	WandbProject             string
	Device, DType, Backend   string
	PeakFLOPS                float64
	Compile                  bool
	Dump                     Dump

	warned map[string]bool // the faults whose cause and fix were said
}

// cause says once what a symptom comes from and what helps.
func (c *GRPO) cause(env MaskedEnv, id, text string) {
	if c.warned == nil {
		c.warned = map[string]bool{}
	}
	if !c.warned[id] {
		c.warned[id] = true
		env.Warn("%s: %s", id, text)
	}
}

// Settings binds the keys of c to their defaults.
func (c *GRPO) Settings() *config.Settings {
	*c = GRPO{Trainer: TrainerGRPO, GroupSize: 8, KLBeta: .1, Temperature: .8, TopP: .95, BatchSize: 1, Accumulation: 16, LearningRate: 1e-5, MinLR: 1e-6, MaxIters: 10000, WarmupIters: 100,
		DecayIters: 10000, WeightDecay: .1, Beta1: .9, Beta2: .95, GradClip: 1, BlockSize: 1024, Dataset: CharDiffusion, Composition: "complex", LogInterval: 1, SaveInterval: 100,
		OutDir: "out-grpo", PeakFLOPS: 312e12, WandbProject: "grpo", Device: "cpu", DType: "bfloat16", Backend: "nccl", Seed: 1337, InitFrom: "resume", Generator: "tiny_masked", Judge: "tiny_judge",
		KLEstimator: "k3", LossOver: "masked_sum", AdvScope: "batch", MaskRatio: .3, EvalSamples: 64}
	s := config.NewSettings()
	s.Choice("trainer", &c.Trainer, []string{TrainerGRPO}, "a masked language model; grpo_causal is another configuration")
	s.Int("group_size", &c.GroupSize, 1, many, "completions of an input, at least 2")
	s.Float("kl_beta", &c.KLBeta, 0, huge, "weight of the KL to the reference")
	s.Choice("kl_estimator", &c.KLEstimator, []string{"k1", "k2", "k3"}, "of a masked token; k1 is the original's, whose expected gradient is 0")
	s.Choice("loss_over", &c.LossOver, []string{"masked_sum", "masked_mean"}, "log-probability and KL of a completion: sum over the masked tokens, the original, or mean")
	s.Choice("adv_scope", &c.AdvScope, []string{"batch", "group"}, "what the standard deviation of the advantages is of; batch is the original")
	s.Float("temperature", &c.Temperature, 1e-6, 1e6, "of the sampler; log-probabilities are of temperature 1")
	s.Float("top_p", &c.TopP, 1e-9, 1, "mass of the nucleus; 1: off")
	s.Int("batch_size", &c.BatchSize, 1, many, "inputs of a micro-step")
	s.Int("gradient_accumulation_steps", &c.Accumulation, 1, many, "micro-steps of an iteration")
	s.Float("learning_rate", &c.LearningRate, 0, huge, "after the warm-up")
	s.Float("min_lr", &c.MinLR, 0, huge, "at lr_decay_iters and after")
	s.Int("max_iters", &c.MaxIters, 0, many, "iterations, an update each")
	s.Int("warmup_iters", &c.WarmupIters, 0, many, "iterations from 0 to learning_rate")
	s.Int("lr_decay_iters", &c.DecayIters, 0, many, "end of the cosine")
	s.Float("weight_decay", &c.WeightDecay, 0, 1, "decoupled, of tensors with two dimensions and more")
	s.Float("beta1", &c.Beta1, 0, .999999, "of Adam")
	s.Float("beta2", &c.Beta2, 0, .999999, "of Adam")
	s.Float("grad_clip", &c.GradClip, 0, huge, "of the global norm; 0: no clipping")
	s.Int("block_size", &c.BlockSize, 1, MaxTokens, "characters of an input")
	s.Float("mask_ratio", &c.MaskRatio, 1e-9, 1, "share of the positions that are chosen for masking; 80% of them become MASK and are actions")
	s.Text("dataset", &c.Dataset, "a text file, or char_diffusion: the embedded sonnets")
	s.Text("composition_config", &c.Composition, "has no effect: mask_ratio says what is masked")
	s.Int("log_interval", &c.LogInterval, 1, many, "iterations between lines")
	s.Int("save_interval", &c.SaveInterval, 0, many, "iterations between checkpoints; 0: only the last")
	s.Int("keep", &c.Keep, 0, many, "checkpoints that stay; 0: all")
	s.Int("sample_interval", &c.SampleInterval, 0, many, "iterations between samples in samples.jsonl; 0: none")
	s.Int("eval_samples", &c.EvalSamples, 0, many, "held-out inputs whose mean reward is printed at the end")
	s.Text("out_dir", &c.OutDir, "folder of the run")
	s.Choice("init_from", &c.InitFrom, []string{"resume", "scratch"}, "resume: the weights of generator_checkpoint; scratch: its layout with weights from the seed")
	s.Text("generator_checkpoint", &c.Generator, "folder of a masked language model, or tiny_masked: the embedded one")
	s.Text("judge_checkpoint", &c.Judge, "folder of a sequence scorer, or tiny_judge")
	s.Text("reference_checkpoint", &c.Frozen, "folder of the frozen model of the KL; empty: a copy of the generator as it begins")
	s.Uint64("seed", &c.Seed, "of everything random")
	s.Bool("dropout_in_rollout", &c.DropoutInRollout, "has no effect: the models have no dropout")
	s.Bool("fail_on_zero_loss", &c.FailOnZeroLoss, "an iteration whose loss is exactly 0 ends the run with exit code 1 (B11)")
	s.Float("time_limit_s", &c.TimeLimit, 0, huge, "seconds after which the run has failed (B11); 0: none")
	s.Bool("wandb_log", &c.WandbLog, "has no effect: metrics go to metrics.jsonl")
	s.Text("wandb_project", &c.WandbProject, "has no effect")
	s.Checked("device", &c.Device, checkDevice, "cpu; another one is not there: a warning")
	s.Choice("dtype", &c.DType, []string{"float32", "bfloat16", "float16"}, "recorded; masters are float32, and the reference computes in float64")
	s.Float("peak_flops", &c.PeakFLOPS, 1, huge, "a second, what mfu_pct is a share of; nanoGPT's are those of an A100 in bfloat16")
	s.Bool("compile", &c.Compile, "has no effect: there is no compiler")
	s.Text("backend", &c.Backend, "has no effect: one process")
	c.Dump.settings(s)
	return s
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it: where and how often something is written,
// and how long it goes on.
func (c *GRPO) WithoutEffect() []string {
	return []string{"max_iters", "eval_samples", "log_interval", "save_interval", "keep", "sample_interval", "out_dir", "dump.dir", "dump.every", "wandb_log", "wandb_project", "time_limit_s", "fail_on_zero_loss",
		"compile", "device", "dtype", "backend", "peak_flops", "composition_config"}
}

// Check refuses what cannot be trained: a *[ConfigError].
func (c *GRPO) Check() error {
	switch {
	case c.GroupSize < 2:
		return refuse("group_size 1: the standard deviation of one reward is NaN, and one completion has no advantage over itself; give group_size=2 or more")
	case c.MinLR > c.LearningRate && c.LearningRate > 0:
		return refuse("min_lr %g is above learning_rate %g", c.MinLR, c.LearningRate)
	}
	return nil
}

// loss returns the options of the objective.
func (c *GRPO) loss() rl.SequenceOptions {
	kind, err := rl.ParseKLKind(c.KLEstimator)
	if err != nil {
		panic("train: " + err.Error()) // the setting has these names only
	}
	return rl.SequenceOptions{Beta: c.KLBeta, KL: rl.KLOptions{Kind: kind}, Mean: c.LossOver == "masked_mean"}
}

// scope returns what the standard deviation of the advantages is of.
func (c *GRPO) scope() rl.AdvScope {
	scope, err := rl.ParseAdvScope(c.AdvScope)
	if err != nil {
		panic("train: " + err.Error())
	}
	return scope
}
