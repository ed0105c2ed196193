package train

import (
	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
)

// maskedDumper writes the numbers of one iteration, a file for every micro-step that was used. A nil one writes nothing.
type maskedDumper struct {
	c    *GRPO
	env  MaskedEnv
	iter int
}

func (c *GRPO) dumper(env MaskedEnv, iter int) *maskedDumper {
	if c.Dump.Every == 0 || iter%c.Dump.Every != 0 {
		return nil
	}
	return &maskedDumper{c, env, iter}
}

// after writes the dump, also where training failed with err, and returns the first error.
func (d *maskedDumper) after(err error, used []*microStep) error {
	if d == nil {
		return err
	}
	if writing := d.write(used); err == nil {
		return writing
	}
	return err
}

func (d *maskedDumper) write(used []*microStep) error {
	whole := used
	if n := len(used); n > 0 && used[n-1].logp == nil {
		whole = used[:n-1] // it failed before
	}
	metrics := d.c.metrics(whole, 0)
	return d.c.Dump.step(d.env.Env, d.iter+1, len(whole), func(path string, k int) error { return d.file(path, whole[k], k, len(used), metrics) })
}

// maxDumpedLogits bounds the logits in a dump: with more a file is not small any more.
const maxDumpedLogits = 1 << 18

func (d *maskedDumper) file(path string, m *microStep, k, of int, metrics []rl.Metric) error {
	c, rows, cols := d.c, m.completions.Rows, m.completions.Time
	agg, std := "seq_mean_token_sum", "batch_std"
	if c.LossOver == "masked_mean" {
		agg = "seq_mean_token_mean"
	}
	if c.AdvScope == "group" {
		std = "group_std"
	}
	meta := dump.Meta{Framework: "plumbline", Version: "1", Algorithm: "grpo", Profile: "grpo-mlm@1", Step: d.iter + 1, WorldSize: 1, MicroBatch: k, MicroBatches: of,
		ComputeDType: "float64", DLogpScale: 1, ScalarsScope: "optimizer_step",
		Options: []dump.Option{{Name: "kl.kind", Value: c.KLEstimator}, {Name: "kl.beta", Value: c.KLBeta}, {Name: "agg.kind", Value: agg}},
		Scalars: []dump.Scalar{{Name: "loss", Value: metric(metrics, "loss")}, {Name: "pg_loss", Value: metric(metrics, "pg_loss")}}}
	if c.AdvScope == "batch" && of > 1 {
		// The standard deviation is that of the micro-step's samples, not of all that the step has: the centred rewards are whitened in
		// each file.
		meta.Options = append(meta.Options, dump.Option{Name: "adv.kind", Value: "rfpp_baseline"}, dump.Option{Name: "whiten.scope", Value: "minibatch"},
			dump.Option{Name: "whiten.shift_mean", Value: "true"}, dump.Option{Name: "whiten.ddof", Value: 1.}, dump.Option{Name: "whiten.eps_place", Value: "add_std"},
			dump.Option{Name: "whiten.eps", Value: 1e-8}, dump.Option{Name: "whiten.constant_zero", Value: true})
	} else {
		meta.Options = append(meta.Options, dump.Option{Name: "adv.scale", Value: std})
	}
	kl, _ := rl.KL(nil, nil, m.logp, m.ref, nil, c.loss().KL)
	dlogp, ids, group := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows)
	for i := range dlogp {
		dlogp[i], ids[i] = m.result.DLogp[i]/float64(of), float64(m.completions.IDs[i])
	}
	for i := range group {
		group[i] = float64(k*c.BatchSize + i/c.GroupSize)
	}
	n := float64(of)
	tensors := []*dump.Tensor{dump.NewMask("response_mask", rows, cols, m.masked), perToken("response_ids", format.I32, rows, cols, ids),
		perRow("group_id", format.I32, group), perRow("scores", format.F64, m.rewards), perRow("advantages", format.F64, m.advantages),
		perToken("logp_new", format.F64, rows, cols, m.logp), perToken("logp_ref", format.F64, rows, cols, m.ref), perToken("kl", format.F64, rows, cols, kl),
		perToken("dlogp", format.F64, rows, cols, dlogp), perFile("pg_loss", m.result.Policy/n), perFile("kl_loss", m.result.KL/n), perFile("loss", m.result.Loss/n)}
	if v := m.logits.Vocab; rows*cols*v <= maxDumpedLogits {
		t := &dump.Tensor{Name: "logits", Layout: dump.PerToken, Width: v, Shape: []int{rows, cols, v}, Type: format.F64}
		for i := range rows {
			of := i / c.GroupSize * cols * v
			t.Data = append(t.Data, m.logits.Data[of:of+cols*v]...)
		}
		tensors = append(tensors, t)
	}
	return dump.WriteFile(path, meta, tensors...)
}
