package golden

import (
	"fmt"

	"plumbline/internal/format"
	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// maskedModel recomputes a masked language model or its judge.
func maskedModel(c *call) []answer {
	m := c.modelOf()
	group := c.group("float64", "float32")
	if !c.ok() {
		return nil
	}
	config := maskedConfig(m)
	if err := config.object.Err(); err != nil {
		c.malformed("%v", err)
	} else if err := config.Validate(); err != nil {
		c.undetermined("%v", err)
	}
	if config.attention != "bidirectional" || config.positions != "rotary" {
		c.undetermined("%s attention with %s positions", short(config.attention), short(config.positions))
	}
	r := &modelRun{folder: m, inexact: group == "float32", optional: func(string) bool { return group != "float64" }, only: everywhere, excuse: compared}
	if config.Mode == model.SequenceScorer {
		config.judge(c, r)
	} else {
		config.generator(c, r)
	}
	if !c.ok() {
		return nil
	}
	return r.answers(c)
}

// maskedGPT is the configuration of a masked model.
type maskedGPT struct {
	model.MaskedGPTConfig
	object               *format.Object
	attention, positions string
}

func maskedConfig(m *modelFolder) maskedGPT {
	o := m.config.Object
	_, cls := m.weights.Tensor("cls_embedding")
	size := func(key string) int { return o.Int(key, 0, 0, 1<<24) }
	return maskedGPT{object: o, attention: o.Text("attention_type", ""), positions: o.Text("position_encoding", ""),
		MaskedGPTConfig: model.MaskedGPTConfig{Mode: model.Mode(o.Text("mode", "")), Vocab: size("vocab_size"), Hidden: size("n_embd"), Layers: size("n_layer"), Heads: size("n_head"),
			MaxPositions: size("block_size"), Bias: o.Bool("bias", false), Mask: size("mask_token_id"), Pad: size("pad_token_id"), CLS: size("cls_token_id"), CLSEmbedding: cls}}
}

// batch reads a batch of ids, and of a mask if it has one.
func (g maskedGPT) batch(c *call, ids, mask string) model.Input {
	_, rows, cols := c.grid(ids)
	if !c.ok() {
		return model.Input{}
	}
	if g.Heads > 0 && (rows > maxScores/cols/cols/g.Heads || rows*cols > maxScores/max(1, g.Vocab)) {
		c.undetermined("%d rows of %d tokens: too large to recompute", rows, cols)
		return model.Input{}
	}
	in := model.Input{Batch: rows, Time: cols, IDs: c.ints(ids, 0, g.Vocab, rows, cols)}
	if mask != "" {
		in.Real = c.mask(mask, rows, cols)
	}
	return in
}

// on puts the model on a new tape, every weight a parameter.
func (g maskedGPT) on(m *modelFolder, walk int) (*ad.Tape, *model.MaskedNet, error) {
	built, err := model.NewMaskedGPT(g.MaskedGPTConfig, m.moved(walk))
	if err != nil {
		return nil, nil, err
	}
	t := new(ad.Tape)
	return t, built.On(t, func(string) bool { return true }), nil
}

// gradients adds those of every weight.
func (g maskedGPT) gradients(out map[string][]float64, n *model.MaskedNet) {
	for _, w := range g.Tensors() {
		out["grad/"+w.Name] = n.Var(w.Name).Grad()
	}
}

// generator is the language model: log-probs of the tokens that fill in what is masked.
func (g maskedGPT) generator(c *call, r *modelRun) {
	in := g.batch(c, "ids", "attention_mask")
	completion := c.ints("completion_ids", 0, g.Vocab, in.Batch, in.Time)
	if c.ok() {
		if err := g.Check(in); err != nil {
			c.malformed("%v", err)
		}
	}
	r.key = fmt.Sprint(in, completion)
	r.only = func(output string) []bool {
		switch output {
		case "hidden":
			return spreadOver(in.Real, g.Hidden)
		case "logits":
			return spreadOver(in.Real, g.Vocab)
		case "logp":
			return in.Real
		}
		return nil
	}
	r.compute = func(walk int) (map[string][]float64, error) {
		_, n, err := g.on(r.folder, walk)
		if err != nil {
			return nil, err
		}
		hidden := n.Forward(in).Hidden
		sequence := n.SequenceLogProb(in, completion)
		fill := 0
		for _, id := range in.IDs {
			if id == g.Mask {
				fill++
			}
		}
		mean := ad.Scale(ad.Sum(sequence, false), 1/float64(fill))
		ad.Backward(mean, []float64{1})
		out := map[string][]float64{"hidden": hidden.Data(), "logits": n.Logits(hidden).Data(), "logp": n.LogProbs(in, completion).Data(),
			"sequence_logp": sequence.Data(), "mean_logp": mean.Data()}
		g.gradients(out, n)
		return out, nil
	}
}

// judge scores texts, and one that is longer than the model's context.
func (g maskedGPT) judge(c *call, r *modelRun) {
	text, long := g.batch(c, "text_ids", "text_mask"), g.batch(c, "long_text_ids", "")
	read := g.batch(c, "ids", "attention_mask")
	targets := c.shaped("targets", text.Batch)
	if c.ok() {
		if err := g.Check(read); err != nil {
			c.malformed("%v", err)
		}
	}
	if c.ok() && fmt.Sprint(g.JudgeInput(text)) != fmt.Sprint(read) {
		c.malformed("input ids is not CLS before text_ids")
	}
	r.key = fmt.Sprint(text, long, targets)
	r.only = func(output string) []bool {
		if output == "hidden" {
			return spreadOver(read.Real, g.Hidden)
		}
		return nil
	}
	r.compute = func(walk int) (map[string][]float64, error) {
		t, n, err := g.on(r.folder, walk)
		if err != nil {
			return nil, err
		}
		score := n.Score(read)
		d := ad.Sub(score, t.Const(targets, len(targets)))
		loss := ad.Mean(ad.Mul(d, d), false)
		ad.Backward(loss, []float64{1})
		reward := make([]float64, text.Batch)
		for i, y := range score.Data() {
			reward[i] = 1 - min(max(y, 0), 1)
		}
		out := map[string][]float64{"hidden": n.Forward(read).Hidden.Data(), "score": score.Data(), "long_score": n.Score(g.JudgeInput(long)).Data(),
			"reward": reward, "loss": loss.Data()}
		g.gradients(out, n)
		return out, nil
	}
}
