package train

import (
	"fmt"
	"io"
	"math"
	"slices"

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
func (c *GRPO) sample(r *run, env MaskedEnv, iter int, used []*microStep) error {
	if c.SampleInterval == 0 || iter%c.SampleInterval != 0 || len(used) == 0 {
		return nil
	}
	m := used[0]
	return r.sample(rundir.Field{Key: "step", Value: iter + 1}, rundir.Field{Key: "input", Value: env.Generator.Decode(m.inputs.row(0))},
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
