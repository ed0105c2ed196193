package train

import (
	"context"
	"fmt"

	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
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
	s.Int("dataset.block_size", &c.BlockSize, 1, MaxTokens, "characters of a row")
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
	r, err := env.begin(plan{trainer: c.Trainer, model: m, optimizer: env.optimizer(m.Params(), false), steps: c.Steps, every: c.SaveInterval})
	if err != nil {
		return 0, err
	}
	defer r.close()
	err = r.train(ctx, func() error {
		if loss, err = c.accumulate(env, text, r.Samples, r.Step+1); err != nil {
			return err
		}
		return c.step(r, loss, c.BatchSize, c.BatchSize*c.BlockSize)
	})
	if err != nil {
		return loss, err
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
