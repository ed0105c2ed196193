package train

import (
	"fmt"
	"math"
	"strings"

	"plumbline/internal/config"
)

// Shielded is the configuration of [Shielded.Train]: source document A. Its keys are the names of the source's flags, and where it
// has none (rank, alpha, targets, projection, basis) those of systems A.2; so are the defaults.
type Shielded struct {
	Cluster                       string // who draws the samples: [NoCluster], embedded or a URL
	Dataset, Prompts              string
	Epochs, Steps, InnerEpochs    int
	PPOBatch, SimBatch, Micro     int
	KLBeta, LR, ClipEps, MaxNorm  float64
	Int8                          bool
	MaxNew, MaxPrompt             int
	Temperature, TopP             float64
	Seed                          uint64
	Optimizer, Reward             string
	Checkpointing                 bool
	DeviceMap                     string
	GPUs                          int
	MemoryLimit                   string
	Model, DType                  string
	LoRA                          LoRA
	Dropout                       float64
	Bias                          string
	Projection                    Projection
	BasisFrom                     string
	BasisRank                     int
	FlowEvery, LogEvery           int
	SaveEvery, Keep               int
	OutputDir                     string
	InitOnly, VerifyOnly, NoWandb bool
	Dump                          Dump
}

// Projection says what is kept out of span(Q), and how.
type Projection struct {
	Mode   string // update, grad or off
	Kind   string // auto, flat or side
	Passes int
	Basis  string // path
	Skip   []string
}

// Settings binds the keys of c to their defaults.
func (c *Shielded) Settings() *config.Settings {
	*c = Shielded{Dataset: "books", Epochs: 8, InnerEpochs: 1, PPOBatch: 256, SimBatch: 32, Micro: 4, KLBeta: .05, LR: 3e-5, ClipEps: .2, MaxNorm: 1, Int8: true,
		MaxNew: 40, MaxPrompt: 384, Temperature: .7, TopP: .9, Seed: 42, Optimizer: "adam", Reward: "clicks", DeviceMap: `{"": 0}`, Model: "gpt-j-6b", DType: "auto",
		LoRA: LoRA{R: 16, Alpha: 16, Targets: []string{"q_proj", "v_proj", "k_proj", "out_proj"}}, Bias: "none", FlowEvery: 10, LogEvery: 1, SaveEvery: 10, OutputDir: "outputs/shielded_${dataset}",
		Projection: Projection{Mode: ProjectUpdate, Kind: "auto", Passes: 2, Basis: "checkpoints/basis_${dataset}.safetensors"}}
	s := config.NewSettings()
	s.Choice("dataset", &c.Dataset, []string{"books", "ml25m", "ml", "steam"}, "the catalogue of items; ml is ml25m")
	s.Text("prompts", &c.Prompts, "file with a prompt on every line; empty: the 64 questions of the catalogue")
	s.Int("epochs", &c.Epochs, 1, many, "passes over the prompts, if steps is 0")
	s.Int("steps", &c.Steps, 0, many, "rollouts; 0: as many as the epochs take")
	s.Int("inner_epochs", &c.InnerEpochs, 1, 1000, "updates from one rollout")
	s.Int("ppo_batch", &c.PPOBatch, 1, many, "sequences of an update")
	s.Int("sim_batch", &c.SimBatch, 1, many, "simulated users that are answered at a time")
	s.Int("micro_batch_size", &c.Micro, 1, many, "sequences of a forward and backward pass; the result does not depend on it but for rounding")
	s.Float("kl_beta", &c.KLBeta, 0, huge, "weight of the KL term; 0.05 to 0.1")
	s.Float("lr", &c.LR, 0, huge, "learning rate; there is no weight decay")
	s.Float("clip_eps", &c.ClipEps, math.SmallestNonzeroFloat64, huge, "the ratio is clipped to 1-clip_eps and 1+clip_eps")
	s.Float("max_grad_norm", &c.MaxNorm, 0, huge, "of the global norm; 0: no clipping")
	s.Choice("optimizer", &c.Optimizer, []string{"adam", "sgd"}, "adam: betas 0.9 and 0.999, eps 1e-8")
	s.Bool("int8", &c.Int8, "the linear layers of the blocks are int8, row by row")
	s.Int("max_new_tokens", &c.MaxNew, 1, MaxTokens, "longest response")
	s.Int("max_prompt_tokens", &c.MaxPrompt, 1, many, "a longer prompt is cut on the left and counted")
	s.Float("temperature", &c.Temperature, 1e-6, 1e6, "of the sampler; log-probabilities are of temperature 1")
	s.Float("top_p", &c.TopP, 1e-9, 1, "1: off")
	s.Choice("reward", &c.Reward, []string{"words", "shaped", "clicks"}, "words: 1 above 20 words; shaped: length, keywords, sentences; clicks: a simulated user")
	s.Uint64("seed", &c.Seed, "of everything random")
	s.Text("model.name", &c.Model, "folder of a Hugging Face model, a GGUF file, tiny-gptj: the embedded one; of gpt-j-6b only the sizes are known")
	s.Choice("model.dtype", &c.DType, []string{"auto", "float32", "bfloat16", "float16"}, "auto: the checkpoint's; recorded, the reference computes in float64")
	s.Int("lora.r", &c.LoRA.R, math.MinInt32, 4096, "rank of the adapter")
	s.Float("lora.alpha", &c.LoRA.Alpha, 0, huge, "the update is alpha/r·B·A")
	s.Texts("lora.targets", &c.LoRA.Targets, "modules with an adapter; GPT-J has out_proj, not o_proj")
	s.Float("lora.dropout", &c.Dropout, 0, 1, "0: with another one the first ratio is not 1")
	s.Choice("lora.bias", &c.Bias, []string{"none"}, "biases are not trained")
	p := &c.Projection
	s.Choice("projection.mode", &p.Mode, []string{ProjectUpdate, ProjectGrad, ProjectOff}, "update: what the optimiser adds; grad: the gradient, which Adam takes out of the subspace again")
	s.Choice("projection.kind", &p.Kind, []string{"auto", "flat", "side"}, "flat: one vector of all LoRA numbers; side: every lora_B from the left; auto: what the basis says or fits")
	s.Int("projection.passes", &p.Passes, 1, 2, "how often g - Q(Q'g) is applied")
	s.Text("projection.basis", &p.Basis, "file of the basis; with basis.from it is written, empty then: OUTPUT_DIR/basis.safetensors")
	s.Texts("projection.skip", &p.Skip, "targets of another width that a side basis does not shield")
	s.Text("basis.from", &c.BasisFrom, "embeddings, gradients (of the log-probability of the prompts), or a file of vectors (n, d): their span becomes the basis")
	s.Int("basis.rank", &c.BasisRank, 0, many, "most columns of a basis that is made, within a quarter of its rows; 0: that quarter")
	s.Bool("gradient_checkpointing", &c.Checkpointing, "keep what the layers read and run them once more backwards: less memory, the same bits")
	s.Checked("device_map", &c.DeviceMap, checkDeviceMap, "of the memory plan; auto with int8 on several devices is refused")
	s.Int("gpus", &c.GPUs, 0, 1024, "devices that the process sees; 0: as CUDA_VISIBLE_DEVICES says")
	s.Text("memory_limit", &c.MemoryLimit, "of the device, 18GB: the memory plan is compared with it")
	s.Int("grad_flow_every", &c.FlowEvery, 0, many, "steps between lines about the gradient flow; 0: none")
	s.Int("log_every", &c.LogEvery, 1, many, "steps between lines and samples")
	s.Int("save_every", &c.SaveEvery, 0, many, "steps between checkpoints; 0: only the last")
	s.Int("keep", &c.Keep, 0, many, "checkpoints that stay; 0: all")
	s.Text("output_dir", &c.OutputDir, "folder of the run")
	s.Bool("init_only", &c.InitOnly, "write OUTPUT_DIR/lora_init and stop")
	s.Bool("verify_only", &c.VerifyOnly, "check configuration, basis, targets and memory, and stop")
	s.Bool("no_wandb", &c.NoWandb, "has no effect: metrics go to metrics.jsonl")
	clusterKey(s, &c.Cluster)
	c.Dump.settings(s)
	return s
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it.
func (c *Shielded) WithoutEffect() []string {
	return []string{"log_every", "save_every", "keep", "output_dir", "cluster", "dump.dir", "dump.every", "no_wandb", "device_map", "gpus", "memory_limit",
		"gradient_checkpointing", "grad_flow_every", "init_only", "verify_only"}
}

// Check refuses what contradicts itself, and warns of what the source's faults are about.
func (c *Shielded) Check(warn func(format string, a ...any)) error {
	if c.Dataset == "ml" {
		c.Dataset = "ml25m"
	}
	switch {
	case c.LoRA.R < 1:
		return fmt.Errorf("lora.r %d: an adapter has at least rank 1", c.LoRA.R)
	case c.Dropout != 0:
		return fmt.Errorf("lora.dropout %g: dropout is not there; with it the ratio of the first update would not be 1", c.Dropout)
	}
	if c.Int8 && strings.TrimSpace(c.DeviceMap) == "auto" {
		advice := `CUDA_VISIBLE_DEVICES=0 with device_map {"": 0}, or split the model with accelerate`
		if c.GPUs > 1 {
			return fmt.Errorf("device_map auto with int8 on %d devices (A6): generation hangs when bitsandbytes layers are spread over devices; %s", c.GPUs, advice)
		}
		warn("device_map auto with int8 (A6): on several devices generation hangs; %s", advice)
	}
	if c.KLBeta < .05 {
		warn("kl_beta %g is below 0.05 (A3): loss_kl may become very large because nothing holds the policy; kl_beta 0.05 to 0.1", c.KLBeta)
	}
	if c.KLBeta > .1 {
		warn("kl_beta %g is above 0.1 (A3, a note): the policy hardly moves; 0.05 to 0.1 is the source's range", c.KLBeta)
	}
	switch c.Projection.Mode {
	case ProjectOff:
		warn("projection.mode off: nothing is shielded, shield_drift says what that does (an ablation)")
	case ProjectGrad:
		if c.Optimizer == "adam" {
			warn("projection.mode grad with adam (H3a): the weights leave the complement of the basis though the gradients do not, since Adam divides every coordinate by its own root; projection.mode=update, or optimizer=sgd")
		}
	}
	return nil
}
