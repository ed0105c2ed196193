package train

import (
	"fmt"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
)

// dumper collects the numbers of one update, a file for every micro-batch. A nil dumper collects nothing.
type dumper struct {
	c     *PPO
	env   Env
	roll  *ppoRollout
	step  int // the number of the update, from 1
	of    int
	parts []dumpPart

	micros int // of the rollout
}

type dumpPart struct {
	index []int
	batch rl.UpdateBatch
	micro rl.MicroUpdate
}

func (c *PPO) dumper(env Env, r *ppoRollout, st *state, s rl.UpdateStep, micros int) *dumper {
	if c.Dump.Every == 0 || st.Updates%c.Dump.Every != 0 {
		return nil
	}
	return &dumper{c: c, env: env, roll: r, step: st.Updates + 1, of: s.Divisor, micros: micros}
}

func (d *dumper) add(index []int, b rl.UpdateBatch, u rl.MicroUpdate) {
	if d != nil {
		d.parts = append(d.parts, dumpPart{index, b, u})
	}
}

// write writes what was collected, also of an update that failed.
func (d *dumper) write() error {
	if d == nil {
		return nil
	}
	return d.c.Dump.step(d.env, d.step, len(d.parts), func(path string, k int) error { return d.writePart(path, k, d.parts[k]) })
}

// dumpRollout writes what does not change while a rollout is learned from into the folder rollouts beside the updates: the
// advantages are whitened over all of it, which the files of an update hold a part of.
func (c *PPO) dumpRollout(env Env, r *ppoRollout, step int) error {
	if c.Dump.Every == 0 {
		return nil
	}
	name := fmt.Sprintf("rollouts/step_%06d.safetensors", step)
	return c.Dump.write(env, 0, []string{name}, func(path string, _ int) error {
		return dump.WriteFile(path, c.dumpMeta(step, 0, 1), c.dumpTensors(r, span(0, r.batch.Rows))...)
	})
}

func (c *PPO) dumpMeta(step, k, of int) dump.Meta {
	return dump.Meta{
		Framework: "plumbline", Version: "1", Algorithm: "ppo", Profile: "ppo-gsm8k@1", Step: step, WorldSize: 1, MicroBatch: k, MicroBatches: of,
		ComputeDType: "float64", DLogpScale: 1, ScalarsScope: "micro_batch",
		Options: []dump.Option{
			{Name: "kl.beta", Value: c.KLCoeff}, {Name: "gae.gamma", Value: c.Gamma}, {Name: "gae.lambda", Value: c.Lambda},
			{Name: "clip.low", Value: c.ClipRatio}, {Name: "clip.high", Value: c.ClipRatio}, {Name: "value.clip", Value: c.ClipValue},
			{Name: "value.coef", Value: c.VFCoeff}, {Name: "entropy.coef", Value: c.EntropyCoeff}, {Name: "optim.epochs", Value: float64(c.Epochs)},
			{Name: "logp.source", Value: c.LogProbs},
		},
	}
}

// dumpTensors returns what a rollout has of the rows in index.
func (c *PPO) dumpTensors(r *ppoRollout, index []int) []*dump.Tensor {
	rows, cols := len(index), r.batch.Response
	width := r.batch.Prompt + cols
	var all, real, ids, lengths, scores []float64
	for _, i := range index {
		for at := i * width; at < (i+1)*width; at++ {
			all, real = append(all, float64(r.batch.IDs[at])), append(real, 0)
			if r.batch.Real[at] {
				real[len(real)-1] = 1
			}
		}
		ids = append(ids, all[len(all)-cols:]...)
		lengths, scores = append(lengths, float64(r.promptLen[i])), append(scores, r.scores[i])
	}
	token := func(name string, x []float64) *dump.Tensor {
		return perToken(name, format.F64, rows, cols, pick(x, cols, index))
	}
	return []*dump.Tensor{
		dump.NewMask("response_mask", rows, cols, pick(r.mask, cols, index)),
		perToken("response_ids", format.I32, rows, cols, ids),
		{Name: "input_ids", Layout: dump.PerRow, Width: width, Shape: []int{rows, width}, Data: all, Type: format.I32},
		{Name: "attention_mask", Layout: dump.PerRow, Width: width, Shape: []int{rows, width}, Data: real, Type: format.Bool},
		perRow("prompt_len", format.I32, lengths), perRow("scores", format.F64, scores), token("logp_old", r.old), token("logp_ref", r.ref), token("logp_gen", r.gen), token("token_rewards", r.rewards),
		token("kl", r.kl), token("values", r.values), token("advantages", r.advantages), token("returns", r.returns),
	}
}

func (d *dumper) writePart(path string, k int, p dumpPart) error {
	rows, cols := p.batch.Rows, p.batch.Cols
	meta := d.c.dumpMeta(d.step, k, d.of)
	// How many micro-batches a rollout has, and an update: whitening was over more than these files hold.
	meta.Options = append(meta.Options, dump.Option{Name: "steps_per_generation", Value: float64(d.micros)},
		dump.Option{Name: "gradient_accumulation_steps", Value: float64(d.of)})
	meta.Scalars = []dump.Scalar{{Name: "loss/policy", Value: p.micro.PolicyLoss}, {Name: "loss/value", Value: p.micro.ValueLoss},
		{Name: "loss/entropy", Value: p.micro.EntropyLoss}, {Name: "params/policy_clip_frac", Value: p.micro.PolicyClipFrac},
		{Name: "params/approx_kl", Value: p.micro.ApproxKL}}
	token := func(name string, x []float64) *dump.Tensor { return perToken(name, format.F64, rows, cols, x) }
	divisor := float64(d.of)
	tensors := append(d.c.dumpTensors(d.roll, p.index),
		token("logp_new", p.batch.LogpNew), token("values_new", p.batch.ValuesNew), token("entropy", p.batch.Entropy),
		token("dlogp", p.micro.DLogp), token("dvalues", p.micro.DValue),
		perFile("pg_loss", p.micro.PolicyLoss/divisor), perFile("value_loss", p.micro.ValueLoss/divisor), perFile("entropy_loss", p.micro.EntropyLoss/divisor),
		perFile("loss", p.micro.TotalLoss/divisor))
	// What the update was given, not what the rollout has: a bug may lie between them.
	for _, t := range tensors {
		given := map[string][]float64{"logp_old": p.batch.LogpOld, "values": p.batch.ValuesOld, "advantages": p.batch.Advantages, "returns": p.batch.Returns}[t.Name]
		if given != nil {
			t.Data = given
		}
	}
	tensors[0] = dump.NewMask("response_mask", rows, cols, p.batch.Mask)
	return dump.WriteFile(path, meta, tensors...)
}
