package train

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/internal/rundir"
	"plumbline/reference/rl"
)

// each returns the sum over the masked positions of every row of x [N, T].
func (m *microStep) each(x []float64) []float64 {
	sums := make([]float64, m.completions.Rows)
	for i := range x {
		if m.masked[i] {
			sums[i/m.completions.Time] += x[i]
		}
	}
	return sums
}

// meanKL returns the mean over the rows of the sum of log p − log p_ref.
func (m *microStep) meanKL() float64 {
	a, _ := meanStd(m.each(m.logp))
	b, _ := meanStd(m.each(m.ref))
	return a - b
}

// metrics are the numbers of an iteration: means over the micro-steps that were used, NaN without one.
func (c *GRPO) metrics(used []*microStep, skipped int) []rl.Metric {
	n := float64(len(used))
	var loss, policy, kl, meanKL, logp, masked float64
	var rewards, advantages []float64
	identical, last := 0, math.NaN()
	for _, m := range used {
		loss += m.result.Loss / n
		policy += m.result.Policy / n
		kl += m.result.KL / n
		meanKL += m.meanKL() / n
		s, _ := meanStd(m.each(m.logp))
		logp += s / n
		masked += m.perRow / n
		rewards, advantages = append(rewards, m.rewards...), append(advantages, m.advantages...)
		identical += m.identical
		last = m.result.Loss
	}
	reward, std := meanStd(rewards)
	advantage, _ := meanStd(advantages)
	flat := math.NaN()
	if len(used) > 0 {
		flat = rl.ZeroStdRatio(rewards, c.GroupSize)
	} else {
		loss, policy, kl, meanKL, logp = math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()
		reward, std, advantage = math.NaN(), math.NaN(), math.NaN()
	}
	return []rl.Metric{{Name: "loss", Value: loss}, {Name: "loss_last", Value: last}, {Name: "pg_loss", Value: policy}, {Name: "kl_penalty", Value: kl}, {Name: "mean_reward", Value: reward},
		{Name: "std_reward", Value: std}, {Name: "mean_advantage", Value: advantage}, {Name: "mean_kl", Value: meanKL}, {Name: "mean_log_prob", Value: logp},
		{Name: "zero_std_ratio", Value: flat}, {Name: "num_masked", Value: masked}, {Name: "skipped_micro_steps", Value: float64(skipped)},
		{Name: "identical_completions", Value: float64(identical)}}
}

// line is a line of metrics.jsonl. mfu_pct counts the generator's passes over the micro-steps that were used, three forward and one
// backward, which costs two.
func (c *GRPO) line(env MaskedEnv, iter int, lr, norm, took float64, used []*microStep, metrics []rl.Metric) []rundir.Field {
	fields := []rundir.Field{{Key: "step", Value: iter + 1}, {Key: "iter", Value: iter}}
	for _, m := range metrics {
		fields = append(fields, rundir.Field{Key: m.Name, Value: m.Value})
	}
	var fetch, backward float64
	for _, m := range used {
		fetch += 1e3 * m.seconds[0]
		backward += 1e3 * m.backward
	}
	flops := 5 * env.Generator.FLOPs(c.BlockSize) * float64(len(used)*c.BatchSize*c.BlockSize)
	return append(fields, rundir.Field{Key: "mfu_pct", Value: 100 * flops / took / c.PeakFLOPS}, rundir.Field{Key: "grad_norm", Value: norm}, rundir.Field{Key: "lr", Value: lr}, rundir.Field{Key: "time_ms", Value: 1e3 * took},
		rundir.Field{Key: "time_fetch_ms", Value: fetch}, rundir.Field{Key: "time_backward_ms", Value: backward}, rundir.Field{Key: "mem_resident_mb", Value: env.Memory()})
}

// sample writes the first completion of an iteration to samples.jsonl.
func (c *GRPO) sample(env MaskedEnv, iter int, used []*microStep) error {
	if c.SampleInterval == 0 || iter%c.SampleInterval != 0 || len(used) == 0 {
		return nil
	}
	log, err := rundir.OpenLog(filepath.Join(env.Run.Path(), "samples.jsonl"))
	if err != nil {
		return err
	}
	defer log.Close()
	m := used[0]
	return log.Append(rundir.Field{Key: "step", Value: iter + 1}, rundir.Field{Key: "input", Value: env.Generator.Decode(m.inputs.row(0))},
		rundir.Field{Key: "completion", Value: env.Generator.Decode(m.completions.row(0))}, rundir.Field{Key: "reward", Value: m.rewards[0]})
}

// phases collects the durations of the phases and what the lines of a run are read for.
type phases struct {
	seconds [5][]float64 // fetch, sampling, scoring, loss, backward
	std     []float64
	zeros   int
}

func (p *phases) add(m *microStep) {
	s := m.seconds
	for i, v := range []float64{s[0], s[2], s[3] - s[2], s[4] - s[3], m.backward} {
		p.seconds[i] = append(p.seconds[i], v)
	}
	_, std := meanStd(m.rewards)
	p.std = append(p.std, std)
	if m.result.Policy == 0 || m.result.Loss == 0 {
		p.zeros++
	}
}

// summary prints the slow step, the variation of the rewards, and the loss components that were zero.
func (p *phases) summary(w io.Writer) {
	if len(p.std) == 0 {
		return
	}
	names, slowest := []string{"batch fetch", "sampling", "scoring", "current and reference forward", "backward"}, 0
	median := func(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/2] }
	for i := range p.seconds {
		if median(p.seconds[i]) > median(p.seconds[slowest]) {
			slowest = i
		}
	}
	fmt.Fprintf(w, "slowest phase: %s, median %.3fs; reward std of a micro-step: median %.4f, least %.4f; micro-steps with a zero loss component: %d of %d\n",
		names[slowest], median(p.seconds[slowest]), median(p.std), slices.Min(p.std), p.zeros, len(p.std))
}

// folder makes the folder of a run's dump and returns its name.
func (d Dump) folder(env Env) (string, error) {
	dir := d.Dir
	if dir == "" {
		dir = filepath.Join(env.Run.Path(), "dump")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

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
	dir, err := d.c.Dump.folder(d.env.Env)
	if err != nil {
		return err
	}
	var files []string
	metrics := d.c.metrics(used, 0)
	for k, m := range used {
		if m.logp == nil {
			continue // it failed before
		}
		path := filepath.Join(dir, fmt.Sprintf("step_%06d_mb_%d.safetensors", d.iter+1, k))
		if err := d.file(path, m, k, len(used), metrics); err != nil {
			return err
		}
		files = append(files, path)
	}
	if d.env.Observe == nil {
		return nil
	}
	return d.env.Observe(d.iter+1, files)
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

func perToken(name string, t format.DType, rows, cols int, x []float64) *dump.Tensor {
	return &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: t}
}

func perRow(name string, t format.DType, x []float64) *dump.Tensor {
	return &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{len(x)}, Data: x, Type: t}
}

func perFile(name string, x float64) *dump.Tensor {
	return &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Shape: []int{}, Data: []float64{x}, Type: format.F64}
}
