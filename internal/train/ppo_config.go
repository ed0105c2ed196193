package train

import (
	"fmt"
	"math"

	"plumbline/internal/config"
)

// PPO is the configuration of [PPO.Train]: source document C under its own keys. The defaults are those of its config.yaml, and of
// transformers and PyTorch where it says nothing.
type PPO struct {
	Cluster string // who draws the samples: [NoCluster], embedded or a URL
	Model   struct {
		Name, Tokenizer, DType, Adapter string
		TrustRemoteCode                 bool
	}
	LoRA    LoRA
	Dataset struct {
		Name, Config, Split, PromptFormat string
		MaxPrompt, MaxGen, NumSamples     int
		HeldOut                           int
		AdditionsMost                     int
	}
	LearningRate            float64
	Epochs                  int
	BatchSize               int
	MiniBatch, Accumulation int
	KLCoeff                 float64
	ClipRatio, ClipValue    float64
	VFCoeff, EntropyCoeff   float64
	Gamma, Lambda           float64
	Adam8bit                bool
	MaxGradNorm             float64
	RolloutSamples          int
	Scheduler               string
	Warmup                  int
	MinLR                   float64
	Steps                   int
	Seed                    uint64
	LogInterval             int
	SaveInterval, Keep      int
	OutputDir               string
	Device                  string
	StrictDevice            bool
	Checkpointing           bool
	MaxNew, MinNew, TopK    int
	Temperature, TopP       float64
	DoSample                bool
	LogProbs                string
	Wandb                   Wandb
	EvalSamples             int
	Dump                    Dump
}

// LoRA says what an adapter updates. R 0 trains all weights.
type LoRA struct {
	R       int
	Alpha   float64
	Targets []string
}

// Wandb is accepted for the sake of the configurations that have it. It has no effect.
type Wandb struct {
	Report        bool
	Project, Name string
}

// Dump says where the numbers of the updates go, for verify dump. Every 0 writes none.
type Dump struct {
	Dir   string
	Every int
}

func (l *LoRA) settings(s *config.Settings) {
	l.Targets = []string{"q_proj", "k_proj", "v_proj", "o_proj"}
	l.Alpha = 16
	s.Int("lora.r", &l.R, 0, 4096, "rank of the adapter; 0 trains all weights")
	s.Float("lora.alpha", &l.Alpha, 0, math.MaxFloat64, "the update is alpha/r·B·A")
	s.Texts("lora.targets", &l.Targets, "names of the layers that it updates")
}

func (d *Dump) settings(s *config.Settings) {
	s.Text("dump.dir", &d.Dir, "folder for the numbers of the updates; empty: OUTPUT_DIR/dump")
	s.Int("dump.every", &d.Every, 0, math.MaxInt32, "write those of every N-th update; 0: none")
}

func (w *Wandb) settings(s *config.Settings) {
	s.Bool("wandb.report_to_wandb", &w.Report, "has no effect: metrics go to metrics.jsonl")
	s.Text("wandb.project", &w.Project, "has no effect")
	s.Text("wandb.name", &w.Name, "has no effect")
}

// Settings binds the keys of c to their defaults.
func (c *PPO) Settings() *config.Settings {
	*c = PPO{LearningRate: 2e-6, Epochs: 2, BatchSize: 8, MiniBatch: 2, Accumulation: 8, KLCoeff: .05, ClipRatio: .2, ClipValue: .2, VFCoeff: .1,
		EntropyCoeff: .01, Gamma: .99, Lambda: .95, Adam8bit: true, MaxGradNorm: 1, RolloutSamples: 512, Scheduler: "cosine_with_min_lr", Warmup: 5,
		MinLR: 1e-7, Steps: 100, Seed: 42, LogInterval: 1, SaveInterval: 10, OutputDir: "outputs/ppo_gsm8k_${model.name}", Device: "cuda",
		Checkpointing: true, MinNew: 5, TopK: 50, Temperature: .7, TopP: .95, DoSample: true, MaxNew: 256, LogProbs: "raw"}
	c.Model.Name, c.Model.Tokenizer, c.Model.DType, c.Model.TrustRemoteCode = "Qwen/Qwen1.5-1.8B-Chat", "${model.name}", "bfloat16", true
	d := &c.Dataset
	d.Name, d.Config, d.Split, d.PromptFormat, d.MaxPrompt, d.MaxGen, d.AdditionsMost = "gsm8k", "main", "train", "Question: {question}\nAnswer:", 512, 256, 9
	c.Wandb = Wandb{Report: true, Project: "tinier-zero"}

	s := config.NewSettings()
	s.Text("model.name", &c.Model.Name, "folder of a Hugging Face model, a GGUF file, or tiny: the embedded one")
	s.Text("model.tokenizer_name", &c.Model.Tokenizer, "has to be model.name: a model and its tokenizer belong together")
	s.Choice("model.torch_dtype", &c.Model.DType, []string{"float32", "bfloat16", "float16", "auto"}, "recorded; masters are float32, and the reference computes in float64")
	s.Bool("model.trust_remote_code", &c.Model.TrustRemoteCode, "has no effect: nothing from a model's folder is executed")
	c.LoRA.settings(s)
	s.Text("dataset.name", &d.Name, "JSON lines {question, answer}, or additions: generated ones")
	s.Text("dataset.config", &d.Config, "has no effect on a file")
	s.Text("dataset.split", &d.Split, "has no effect on a file")
	s.Text("dataset.prompt_format", &d.PromptFormat, "the prompt, with {question} in it")
	s.Int("dataset.max_prompt_length", &d.MaxPrompt, 1, many, "tokens; a longer prompt is cut on the left and counted")
	s.Int("dataset.max_gen_length", &d.MaxGen, 1, MaxTokens, "default of generation.max_new_tokens")
	s.Int("dataset.num_samples", &d.NumSamples, 0, many, "rows that are used; 0: all")
	s.Int("dataset.additions_most", &d.AdditionsMost, 1, 1_000_000, "largest number of generated additions")
	s.Int("dataset.held_out", &d.HeldOut, 0, many, "questions that are not trained on, for eval.samples")
	s.Float("ppo.learning_rate", &c.LearningRate, 0, huge, "after the warm-up")
	s.Int("ppo.epochs", &c.Epochs, 1, 1000, "passes over a rollout; typically 2 to 10")
	s.Int("ppo.batch_size", &c.BatchSize, 1, many, "prompts that are generated from and scored at once")
	s.Int("ppo.mini_batch_size", &c.MiniBatch, 1, many, "rows of a micro-batch")
	s.Int("ppo.gradient_accumulation_steps", &c.Accumulation, 1, many, "micro-batches of an update")
	s.Float("ppo.kl_coeff", &c.KLCoeff, 0, huge, "of the KL penalty in the token rewards")
	s.Float("ppo.clip_ratio", &c.ClipRatio, 0, huge, "epsilon of the policy loss")
	s.Float("ppo.clip_range_value", &c.ClipValue, 0, huge, "of the value loss")
	s.Float("ppo.vf_coeff", &c.VFCoeff, 0, huge, "of the value loss in the total")
	s.Float("ppo.entropy_coeff", &c.EntropyCoeff, 0, huge, "of the entropy bonus")
	s.Float("ppo.gamma", &c.Gamma, 0, 1, "discount per token")
	s.Float("ppo.lam", &c.Lambda, 0, 1, "lambda of GAE")
	s.Bool("ppo.use_8bit_adam", &c.Adam8bit, "moments in 8 bits, quantised by blocks")
	s.Float("ppo.max_grad_norm", &c.MaxGradNorm, 0, huge, "of the global norm; 0: no clipping")
	s.Int("ppo.rollout_samples", &c.RolloutSamples, 1, many, "responses of a step")
	s.Choice("ppo.scheduler", &c.Scheduler, []string{"cosine_with_min_lr", "cosine", "linear", "constant"}, "course of the learning rate")
	s.Int("ppo.warmup_steps", &c.Warmup, 0, many, "updates")
	s.Float("ppo.min_lr", &c.MinLR, 0, huge, "end of cosine_with_min_lr")
	s.Int("training.total_ppo_steps", &c.Steps, 0, many, "rollouts, each with its epochs")
	s.Uint64("training.seed", &c.Seed, "of everything random")
	s.Int("training.log_interval", &c.LogInterval, 1, many, "steps between lines and samples")
	s.Int("training.save_interval", &c.SaveInterval, 0, many, "steps between checkpoints; 0: only the last")
	s.Int("training.keep", &c.Keep, 0, many, "checkpoints that stay; 0: all")
	s.Text("training.output_dir", &c.OutputDir, "folder of the run")
	s.Checked("training.device", &c.Device, checkDevice, "cpu; another one is not there: a warning")
	s.Bool("training.strict_device", &c.StrictDevice, "a device that is not there is an error")
	s.Bool("training.gradient_checkpointing", &c.Checkpointing, "keep what the layers read and run them once more backwards: less memory, the same bits")
	s.Int("generation.max_new_tokens", &c.MaxNew, 1, MaxTokens, "longest response")
	s.Int("generation.min_new_tokens", &c.MinNew, 0, MaxTokens, "the end is suppressed before")
	s.Float("generation.temperature", &c.Temperature, 1e-6, 1e6, "of the sampler; log-probabilities are of temperature 1")
	s.Int("generation.top_k", &c.TopK, 0, many, "0: off")
	s.Float("generation.top_p", &c.TopP, 1e-9, 1, "1: off")
	s.Bool("generation.do_sample", &c.DoSample, "false: the likeliest token, and nothing to learn from")
	s.Choice("generation.logprobs", &c.LogProbs, []string{"raw", "processed"}, "of the sampler, in dumps: at temperature 1 over the whole vocabulary, or of the distribution that was drawn from")
	s.Int("eval.samples", &c.EvalSamples, 0, MaxTokens, "responses to every held-out question at the end; 0: none")
	c.Wandb.settings(s)
	clusterKey(s, &c.Cluster)
	c.Dump.settings(s)
	return s
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it: where and how often something is written,
// and how long it goes on.
func (c *PPO) WithoutEffect() []string {
	return []string{"training.log_interval", "training.save_interval", "training.keep", "training.output_dir", "cluster", "dump.dir", "dump.every", "wandb.report_to_wandb",
		"wandb.project", "wandb.name", "ppo.batch_size", "training.gradient_checkpointing", "eval.samples", "generation.logprobs"}
}

// Uses8bit reports whether the moments are kept in 8 bits: where they are asked for, but for a device that is not there.
func (c *PPO) Uses8bit() bool { return c.Adam8bit && c.Device == "cpu" }

// Warnings are what is legal, and may not be meant or has no effect, each with symptom, cause, fix and the id of its fault.
func (c *PPO) Warnings() (list []string) {
	say := func(format string, a ...any) { list = append(list, fmt.Sprintf(format, a...)) }
	if c.Device != "cpu" {
		say("C1: training.device is %s, which is not there: the run is on the CPU; say training.device=cpu, or training.strict_device=true to refuse", c.Device)
		if c.Adam8bit {
			say("C2: ppo.use_8bit_adam for training.device %s, which is not there: AdamW in 32 bits instead; say training.device=cpu for 8-bit Adam here, or ppo.use_8bit_adam=false", c.Device)
		}
	}
	if c.MaxGradNorm == 0 {
		say("C16: ppo.max_grad_norm is 0: gradients are not clipped and updates may be unstable; say ppo.max_grad_norm=1.0")
	}
	if !c.DoSample {
		say("C17: generation.do_sample is false: rollouts are greedy, nothing is explored and nothing can be learned from their comparison; say generation.do_sample=true")
	}
	if c.Epochs < 2 || c.Epochs > 10 {
		say("C18: ppo.epochs is %d: one epoch makes little of a rollout, more than ten learn from stale data; usual are 2 to 10", c.Epochs)
	}
	if c.Wandb.Report {
		say("wandb.report_to_wandb has no effect: metrics go to metrics.jsonl and TensorBoard; say wandb.report_to_wandb=false")
	}
	if c.Model.TrustRemoteCode {
		say("model.trust_remote_code has no effect: no code of a model is run; say model.trust_remote_code=false")
	}
	if c.Model.DType != "float32" && c.Model.DType != "auto" {
		say("model.torch_dtype %s has no effect: weights are float32, so that small updates are not rounded away (H13g); say model.torch_dtype=float32", c.Model.DType)
	}
	return list
}
