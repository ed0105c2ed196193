package train

import (
	"fmt"
	"math"

	"plumbline/internal/config"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
)

// Limits of settings that have none of their own.
const (
	many = math.MaxInt32
	huge = math.MaxFloat64
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

// schedule is the cosine of the learning rate.
func (u *Supervised) schedule() optim.Schedule {
	return optim.Schedule{Decay: optim.Cosine, LR: u.LearningRate, MinLR: min(u.MinLR, u.LearningRate), Warmup: u.Warmup, Total: u.Steps}
}

// step makes a step of AdamW with the gradient that was accumulated from so many rows and tokens, and writes of it.
func (u *Supervised) step(r *run, loss float64, rows, tokens int) error {
	step, lr := r.Step+1, u.schedule().At(r.Updates)
	moved, err := r.optimizer.Step(Update{Step: step, Rule: optim.Adam{LR: lr, Beta1: .9, Beta2: .999, Eps: 1e-8, WeightDecay: u.WeightDecay}, MaxNorm: u.MaxGradNorm})
	if err != nil {
		return err
	}
	r.state = state{Step: step, Updates: r.Updates + 1, Samples: r.Samples + rows, Tokens: r.Tokens + tokens}
	if err := r.log(step, true, []rundir.Field{{Key: "step", Value: step}, {Key: "loss", Value: loss}, {Key: "grad_norm", Value: moved.Norm}, {Key: "learning_rate", Value: lr}}); err != nil {
		return err
	}
	if step%u.LogInterval == 0 || step == u.Steps {
		fmt.Fprintf(r.env.Out, "step %d/%d loss %.4f gnorm %.3f lr %.2e\n", step, u.Steps, loss, moved.Norm, lr)
	}
	return nil
}

// WithoutEffect are the keys that may differ between a run and the one that resumes it.
func (u *Supervised) WithoutEffect() []string {
	return []string{"training.log_interval", "training.save_interval", "training.keep", "training.output_dir"}
}
