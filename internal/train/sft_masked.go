package train

import (
	"context"
	"fmt"

	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// The trainers that [SFTMasked] is.
const (
	TrainerGenerator = "sft_masked" // of a masked language model
	TrainerJudge     = "sft_judge"  // of a sequence scorer
)

// SFTMasked is the configuration of [SFTMasked.Train]: supervised training of a masked language model, or of its judge, on a text.
type SFTMasked struct {
	Trainer   string
	Model     string
	Dataset   string
	BlockSize int
	MaskRatio float64
	Supervised
}

// Settings binds the keys of c to their defaults.
func (c *SFTMasked) Settings() *config.Settings {
	*c = SFTMasked{Trainer: TrainerGenerator, Model: "tiny_masked-init", Dataset: CharDiffusion, BlockSize: 64, MaskRatio: .3,
		Supervised: Supervised{LearningRate: 3e-3, MinLR: 1e-5, Warmup: 20, Steps: 400, EvalSamples: 64, BatchSize: 16, MaxGradNorm: 1, Seed: 1, LogInterval: 10, OutputDir: "outputs/sft_masked"}}
	s := config.NewSettings()
	s.Choice("trainer", &c.Trainer, []string{TrainerGenerator, TrainerJudge}, "what is trained: a masked language model, or a judge of texts")
	s.Text("model.name", &c.Model, "folder of a masked model, tiny_masked or tiny_judge: the embedded ones, or the same with -init: before any training")
	s.Text("dataset.name", &c.Dataset, "a text file, or char_diffusion: the embedded sonnets")
	s.Int("dataset.block_size", &c.BlockSize, 1, maxTokens, "characters of a row")
	s.Float("dataset.mask_ratio", &c.MaskRatio, 1e-9, 1, "share of the positions that are supervised; not for a judge")
	c.Supervised.settings(s, "held-out rows whose loss is printed at the end")
	return s
}

// model returns what is trained.
func (c *SFTMasked) model(env MaskedEnv) MaskedModel {
	if c.Trainer == TrainerJudge {
		return env.Judge
	}
	return env.Generator
}

// Train minimises, for a masked language model, the mean of −log p over the supervised positions, and for a judge the mean square
// of its verdict's distance from [dataset.JudgeTarget]. It returns the loss of the last step.
func (c *SFTMasked) Train(ctx context.Context, env MaskedEnv) (loss float64, err error) {
	m := c.model(env)
	if v := m.Vocabulary(); c.BlockSize > v.BlockSize {
		return 0, refuse("dataset.block_size %d is above that of the model, %d", c.BlockSize, v.BlockSize)
	}
	text, held, err := env.corpora(m, c.BlockSize)
	if err != nil {
		return 0, err
	}
	opt := newOptimizer(m.Params(), c.MaxGradNorm)
	var st state
	if env.From != nil {
		if st, err = restore(env.From.Path, m, opt); err != nil {
			return 0, err
		}
	}
	metrics, err := openJournal(env.Run.Path(), env.From != nil, st.Step)
	if err != nil {
		return 0, err
	}
	defer metrics.close()
	schedule := optim.Schedule{Decay: optim.Cosine, LR: c.LearningRate, MinLR: min(c.MinLR, c.LearningRate), Warmup: c.Warmup, Total: c.Steps}
	for step := st.Step + 1; step <= c.Steps; step++ {
		if loss, err = c.accumulate(env, text, st.Samples, step); err != nil {
			return loss, err
		}
		lr := schedule.At(st.Updates)
		norm, err := opt.step(step, optim.Adam{LR: lr, Beta1: .9, Beta2: .999, Eps: 1e-8, WeightDecay: c.WeightDecay})
		if err != nil {
			return loss, err
		}
		st = state{Step: step, Updates: st.Updates + 1, Samples: st.Samples + c.BatchSize, Tokens: st.Tokens + c.BatchSize*c.BlockSize}
		if err := metrics.add(step, true, []rundir.Field{{Key: "step", Value: step}, {Key: "loss", Value: loss}, {Key: "grad_norm", Value: norm}, {Key: "learning_rate", Value: lr}}); err != nil {
			return loss, err
		}
		if step%c.LogInterval == 0 || step == c.Steps {
			fmt.Fprintf(env.Out, "step %d/%d loss %.4f gnorm %.3f lr %.2e\n", step, c.Steps, loss, norm, lr)
		}
		stop := ctx.Err() != nil
		if stop || step < c.Steps && c.SaveInterval > 0 && step%c.SaveInterval == 0 {
			if err := c.save(env, opt, st, fmt.Sprintf("step_%d", step)); err != nil {
				return loss, err
			}
		}
		if stop {
			return loss, ErrInterrupted
		}
	}
	if env.From == nil || env.From.Name != "final" || st.Step != c.Steps {
		if err := c.save(env, opt, st, "final"); err != nil {
			return loss, err
		}
	}
	c.evaluate(env, held)
	return loss, nil
}

// rows returns n texts from sample first on with what they are to be taught: targets of every position, or of every row.
func (c *SFTMasked) rows(m MaskedModel, text dataset.Corpus, window, change uint64, first, n int) (x Texts, targets []int, verdicts []float64) {
	x = Texts{Rows: n, Time: c.BlockSize}
	for i := first; i < first+n; i++ {
		ids := text.Window(rng.New(c.Seed, window), i, c.BlockSize)
		if c.Trainer == TrainerJudge {
			ids, share := text.Corrupt(rng.New(c.Seed, change), i, ids)
			x.IDs, verdicts = append(x.IDs, ids...), append(verdicts, dataset.JudgeTarget(share))
			continue
		}
		masked, y := text.Mask(rng.New(c.Seed, change), i, ids, c.MaskRatio, m.Vocabulary().Mask)
		x.IDs, targets = append(x.IDs, masked...), append(targets, y...)
	}
	return x, targets, verdicts
}

// accumulate adds the gradient of one batch and returns its loss.
func (c *SFTMasked) accumulate(env MaskedEnv, text dataset.Corpus, first, step int) (loss float64, err error) {
	change := uint64(streamMask)
	if c.Trainer == TrainerJudge {
		change = streamCorrupt
	}
	x, targets, verdicts := c.rows(c.model(env), text, streamWindow, change, first, c.BatchSize)
	if c.Trainer == TrainerJudge {
		err = env.Judge.AccumulateScore(x, func(y []float64) (d []float64, err error) {
			loss, d = meanSquare(y, verdicts)
			return d, finite(step, "loss", []float64{loss}, nil)
		})
		return loss, err
	}
	err = env.Generator.Accumulate(x, func(l Logits) (d []float64, err error) {
		if err := l.fit(x); err != nil {
			return nil, err
		}
		loss, d = crossEntropy(l, targets)
		return d, finite(step, "loss", []float64{loss}, nil)
	})
	return loss, err
}

// meanSquare returns mean (y − t)² and its derivative by y.
func meanSquare(y, t []float64) (loss float64, d []float64) {
	n := float64(len(y))
	for i := range y {
		e := y[i] - t[i]
		loss += e * e / n
		d = append(d, 2*e/n)
	}
	return loss, d
}

// crossEntropy returns the mean of −log p(target) over the positions that have one, 0 if none has, and its derivative by the logits.
func crossEntropy(l Logits, targets []int) (loss float64, d []float64) {
	ids, slope, n := make([]int, len(targets)), make([]float64, len(targets)), 0
	for i, y := range targets {
		if y != dataset.Ignore {
			ids[i] = y
			n++
		}
	}
	lp := rl.LogProbs(nil, l.Data, ids, l.Vocab, rl.LogProbOptions{})
	for i, y := range targets {
		if y != dataset.Ignore {
			loss -= lp[i] / float64(n)
			slope[i] = -1 / float64(n)
		}
	}
	return loss, rl.LogProbsBackward(make([]float64, len(l.Data)), slope, l.Data, ids, l.Vocab, rl.LogProbOptions{})
}

// evaluate prints the loss of held-out rows.
func (c *SFTMasked) evaluate(env MaskedEnv, held dataset.Corpus) {
	if c.EvalSamples == 0 {
		return
	}
	x, targets, verdicts := c.rows(c.model(env), held, streamHeldWindow, streamHeldMask, 0, c.EvalSamples)
	var loss float64
	if c.Trainer == TrainerJudge {
		y, _ := env.Judge.Score(x)
		loss, _ = meanSquare(y, verdicts)
	} else {
		loss, _ = crossEntropy(env.Generator.Logits(x), targets)
	}
	fmt.Fprintf(env.Out, "held-out loss %.4f over %d rows\n", loss, c.EvalSamples)
}

func (c *SFTMasked) save(env MaskedEnv, opt *optimizer, st state, name string) error {
	m := rundir.Manifest{Step: st.Step, Trainer: c.Trainer, ConfigSHA256: env.ConfigSHA, Variant: "reference", RNG: map[string]uint64{"samples": uint64(st.Samples)}}
	files, err := c.model(env).Files()
	if err != nil {
		return err
	}
	return env.Run.Save(name, m, append(files, opt.file(), st.file()))
}

// restore reads the state, the model and the moments of a checkpoint.
func restore(dir string, m MaskedModel, opt *optimizer) (state, error) {
	st, err := readState(dir)
	if err != nil {
		return st, err
	}
	if err := m.Restore(dir); err != nil {
		return st, err
	}
	return st, opt.restore(dir, st.Updates)
}
