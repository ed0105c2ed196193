package train

import (
	"math"
	"strconv"

	"plumbline/internal/config"
	"plumbline/reference/rl"
)

// Arc is the configuration of [Arc.Train]: source document D. The keys of its flags have their names; the defaults are those of the
// source, the sizes those of wonnowone/ARC-EFE@d9e76e2.
type Arc struct {
	Epochs, MaxBatches        int
	AgentLR, QwenLR, PolicyLR float64
	Device                    string
	Seed                      uint64
	Data                      string
	Tasks                     int
	RewardScale               float64
	RewardOf                  string
	FloorRule                 string
	Curriculum                []string
	CacheEvery                int
	ICM                       float64
	MaxNorm, WeightDecay      float64
	EFE                       rl.EFEOptions
	BI                        string
	Encoder, EncoderTrain     string
	LoRA                      LoRA
	Prompt, Channels, Steps   int
	Control, Features, Hidden int
	BestBy                    string
	GradCheck                 bool
	LogEvery, SaveEvery, Keep int
	OutputDir                 string
	Dump                      Dump
	curriculum                []float64 // of the epochs; the last one stays
}

// GeneratedTasks is the name of the data that is part of the program.
const GeneratedTasks = "generated"

// What of the text encoder is trained.
const (
	EncoderFrozen = "frozen"
	EncoderLoRA   = "lora"
	EncoderFull   = "full"
)

// What the reward of a refinement is the change of.
const (
	rewardAccuracy    = "accuracy"
	rewardProbability = "probability"
)

// Settings binds the keys of c to their defaults.
func (c *Arc) Settings() *config.Settings {
	*c = Arc{Epochs: 10, AgentLR: 1e-5, QwenLR: 5e-5, PolicyLR: 5e-5, Device: "cuda", Seed: 42, Data: "training.json", Tasks: 20, RewardScale: 5, RewardOf: rewardAccuracy, FloorRule: "continuous",
		Curriculum: []string{"0.6", "0.3"}, CacheEvery: 10, MaxNorm: 1, WeightDecay: 1e-6, EFE: rl.EFEDefaults(), BI: "js", Encoder: "tiny", EncoderTrain: EncoderFull,
		LoRA: LoRA{R: 8, Alpha: 16}, Prompt: 256, Channels: 256, Steps: 3, Control: 256, Features: 32, Hidden: 512, BestBy: "accuracy", LogEvery: 50, SaveEvery: 50, Keep: 5,
		OutputDir: "outputs/arc"}
	s := config.NewSettings()
	s.Int("epochs", &c.Epochs, 0, many, "passes over the training pairs")
	s.Int("max_batches", &c.MaxBatches, 0, many, "batches of an epoch, each of one pair; 0: all pairs")
	s.Float("agent_lr", &c.AgentLR, 0, huge, "of the agent and of the share alpha; the parameters of the loss have half of it")
	s.Float("qwen_lr", &c.QwenLR, 0, huge, "of the text encoder and its projection")
	s.Float("policy_lr", &c.PolicyLR, 0, huge, "of the policy that refines prompts and its value, which have an optimiser of their own")
	s.Checked("device", &c.Device, checkDevice, "cpu; another one is not there: a warning")
	s.Uint64("seed", &c.Seed, "of everything random")
	s.Text("data", &c.Data, "JSON file or folder of ARC tasks; generated: tasks that copy, flip and recolour")
	s.Int("tasks", &c.Tasks, 1, 10_000, "generated tasks")
	s.Float("reward_scale", &c.RewardScale, 0, huge, "the reward is this times the change by the refinement")
	s.Choice("reward_of", &c.RewardOf, []string{rewardAccuracy, rewardProbability}, "what that is the change of: accuracy, the share of right cells, as the original; probability, the mean probability of the right colour, which a small change of the prompt changes, too")
	s.Choice("hard_cell.floor_rule", &c.FloorRule, []string{"continuous", "original"}, "continuous: the factor is 0.5 + 0.5·mask_ratio; original: 1 where mask_ratio is at most 0.01")
	s.Texts("curriculum", &c.Curriculum, "factors of the loss in the epochs, the last one stays; in a file with quotes: [\"0.6\", \"0.3\"]")
	s.Int("cache_every", &c.CacheEvery, 1, many, "every how many batches the prompt is made anew, with a gradient; between them one that was made is used again; 1: no cache")
	s.Float("icm", &c.ICM, 0, huge, "weight of the curiosity loss; 0: no such networks are trained")
	s.Float("max_grad_norm", &c.MaxNorm, 0, huge, "of agent, encoder and policy, each on its own; 0: no clipping")
	s.Float("weight_decay", &c.WeightDecay, 0, 1, "added to the gradient, as Adam has it")
	for _, w := range []struct {
		name string
		to   *float64
	}{{"risk", &c.EFE.Risk}, {"ambiguity", &c.EFE.Ambiguity}, {"step", &c.EFE.Step}, {"consistency", &c.EFE.Consistency}, {"bidirectional", &c.EFE.Bidirectional}, {"z", &c.EFE.Z},
		{"prompt", &c.EFE.Prompt}, {"grid_norm", &c.EFE.GridNorm}} {
		s.Float("efe."+w.name, w.to, 0, huge, "weight of this term of the loss")
	}
	s.Choice("efe.bi", &c.BI, []string{"js", "original"}, "js: the Jensen-Shannon divergence; original: the entropy of the mixture")
	s.Text("encoder.name", &c.Encoder, "text encoder: folder of a Qwen2 model, tiny: the embedded one, tiny-init: the same before any training")
	s.Choice("encoder.train", &c.EncoderTrain, []string{EncoderFrozen, EncoderLoRA, EncoderFull}, "what of it is trained; its projection always is")
	c.LoRA.settings(s)
	s.Int("model.prompt_dim", &c.Prompt, 10, 1<<14, "numbers of a prompt")
	s.Int("model.channels", &c.Channels, 1, 1<<12, "of the agent's convolutions")
	s.Int("model.steps", &c.Steps, 1, 64, "planning steps, side by side")
	s.Int("policy.ctrl_dim", &c.Control, 1, 1<<14, "control vector of the policy's state: what the grid is like")
	s.Int("policy.feat_dim", &c.Features, 1, 1<<14, "features of the policy's state: what the task's examples do")
	s.Int("policy.hidden", &c.Hidden, 1, 1<<14, "of its networks")
	s.Choice("best_by", &c.BestBy, []string{"accuracy", "accuracy_delta"}, "what the best checkpoint is the best by; the original: accuracy_delta")
	s.Bool("grad_check", &c.GradCheck, "say after the first backward pass whether a gradient reaches qwen.transformer.layers[0]; if none does the run fails")
	s.Int("log_every", &c.LogEvery, 1, many, "batches between lines")
	s.Int("save_every", &c.SaveEvery, 0, many, "batches between checkpoints; 0: only the last and the best")
	s.Int("keep", &c.Keep, 0, many, "checkpoints that stay; 0: all")
	s.Text("output_dir", &c.OutputDir, "folder of the run")
	c.Dump.settings(s)
	return s
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it.
func (c *Arc) WithoutEffect() []string {
	return []string{"device", "log_every", "save_every", "keep", "output_dir", "grad_check", "dump.dir", "dump.every"}
}

// Check refuses what contradicts itself, and warns of what the source's faults are about.
func (c *Arc) Check(warn func(format string, a ...any)) error {
	c.curriculum = nil
	for _, text := range c.Curriculum {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0) || math.IsInf(x, 0) {
			return refuse("curriculum: %.40q is not a positive number", text)
		}
		c.curriculum = append(c.curriculum, x)
	}
	if len(c.curriculum) == 0 {
		return refuse("curriculum: no factor")
	}
	if c.EncoderTrain == EncoderLoRA && c.LoRA.R < 1 {
		return refuse("encoder.train lora with lora.r %d: an adapter has at least rank 1", c.LoRA.R)
	}
	var err error
	if c.EFE.Kind, err = rl.ParseEFEKind(c.BI); err != nil {
		return refuse("%v", err)
	}
	if c.Device != "cpu" {
		warn("device %s is not there: the run is on the CPU; --device cpu says so", c.Device)
	}
	if c.curriculum[0] > 0.6 {
		warn("the curriculum begins with %g (D7): the first loss of uniform predictions is then above 3.6, where 0.6 gives 2.45 to 2.88; curriculum=0.6,0.3", c.curriculum[0])
	}
	if c.RewardScale < 5 {
		warn("reward_scale %g (D5): the signal of the refinement is weak; the source multiplies by 5", c.RewardScale)
	}
	if c.EncoderTrain == EncoderFrozen {
		warn("encoder.train frozen: Qwen_grad is 0.00e+00 in every line, by design and not by D2; encoder.train=lora or full")
	}
	if c.QwenLR > 5e-3 {
		warn("qwen_lr %g (D19): a loss that explodes is what a high one does; the source's is 5e-5, and 1e-5 after that", c.QwenLR)
	}
	if c.MaxNorm == 0 {
		warn("max_grad_norm 0 (D19): nothing holds a large gradient; the source clips at 1")
	}
	return nil
}
