package train

import (
	"math"

	"plumbline/internal/config"
)

// Supervised is what supervised training of any model is configured by.
type Supervised struct {
	LearningRate  float64
	MinLR         float64
	Warmup, Steps int
	BatchSize     int
	MaxGradNorm   float64
	WeightDecay   float64
	Seed          uint64
	LogInterval   int
	SaveInterval  int
	Keep          int
	OutputDir     string
	EvalSamples   int
}

// settings binds the keys of u; eval says what eval_samples are.
func (u *Supervised) settings(s *config.Settings, eval string) {
	const (
		many = math.MaxInt32
		huge = math.MaxFloat64
	)
	s.Float("sft.learning_rate", &u.LearningRate, 0, huge, "after the warm-up")
	s.Float("sft.min_lr", &u.MinLR, 0, huge, "at the end of the cosine")
	s.Int("sft.warmup_steps", &u.Warmup, 0, many, "updates")
	s.Int("sft.steps", &u.Steps, 0, many, "updates")
	s.Int("sft.batch_size", &u.BatchSize, 1, many, "rows of an update")
	s.Float("sft.max_grad_norm", &u.MaxGradNorm, 0, huge, "of the global norm; 0: no clipping")
	s.Int("sft.eval_samples", &u.EvalSamples, 0, many, eval)
	s.Float("sft.weight_decay", &u.WeightDecay, 0, 1, "decoupled, of tensors with two dimensions and more")
	s.Uint64("training.seed", &u.Seed, "of everything random")
	s.Int("training.log_interval", &u.LogInterval, 1, many, "steps between lines")
	s.Int("training.save_interval", &u.SaveInterval, 0, many, "steps between checkpoints; 0: only the last")
	s.Int("training.keep", &u.Keep, 0, many, "checkpoints that stay; 0: all")
	s.Text("training.output_dir", &u.OutputDir, "folder of the run")
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it.
func (u *Supervised) WithoutEffect() []string {
	return []string{"training.log_interval", "training.save_interval", "training.keep", "training.output_dir"}
}
