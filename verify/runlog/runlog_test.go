package runlog_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/runlog"
)

// judged is what a log in text shows: ids of the findings in order, and of all with what lies below them and notes.
type judged struct {
	top, all []string
	fails    []string
	report   *runlog.Report
	exit     int
}

func judge(t *testing.T, o runlog.Options, paths ...string) judged {
	t.Helper()
	r, err := runlog.Judge(context.Background(), paths, o)
	require.NoError(t, err)
	return see(r)
}

func see(r *runlog.Report) judged {
	j := judged{report: r, exit: check.Exit(r.Results, check.Policy{})}
	for _, f := range r.Brief.Findings {
		j.top = append(j.top, f.Name)
	}
	for _, res := range r.Results {
		for _, e := range res.Explanations {
			j.all = append(j.all, e.Fault)
			if res.Verdict == check.Fail {
				j.fails = append(j.fails, e.Fault)
			}
		}
	}
	return j
}

// text judges a log that is given as text.
func text(t *testing.T, name, content string, options ...string) judged {
	t.Helper()
	o := runlog.Options{Config: map[string]string{}}
	for _, s := range options {
		k, v, _ := strings.Cut(s, "=")
		if k == "kind" {
			o.Kind = v
			continue
		}
		o.Config[k] = v
	}
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return judge(t, o, path)
}

// The excerpts of the guides: one has a warning and no failure, one a hypothesis that its own causes lack, one no numbers at all.
func TestExcerptsOfTheGuides(t *testing.T) {
	j := judge(t, runlog.Options{}, "testdata/arc_healthy.log")
	require.Equal(t, []string{"D7"}, j.top)
	require.Empty(t, j.fails)
	require.Contains(t, j.all, "D5")

	j = judge(t, runlog.Options{}, "testdata/grpo_zero.log")
	require.Equal(t, []string{"H5", "B5"}, j.top)
	require.Empty(t, j.fails)
	require.Contains(t, j.all, "B4")
	require.Equal(t, []string{"B1", "B2"}, j.report.Brief.Findings[0].Or)

	j = judge(t, runlog.Options{}, "testdata/grpo_format.log")
	require.Empty(t, j.top)
}

// Healthy runs of the trainers of this project show nothing.
func TestHealthyRuns(t *testing.T) {
	dirs, err := filepath.Glob("../dump/testdata/runs/*")
	require.NoError(t, err)
	require.Len(t, dirs, 5)
	for _, dir := range dirs {
		j := judge(t, runlog.Options{}, dir)
		require.Empty(t, j.top, dir)
		require.Zero(t, j.exit, dir)
		for _, name := range []string{"log.txt", "metrics.jsonl"} {
			require.Empty(t, judge(t, runlog.Options{}, filepath.Join(dir, name)).top, dir+"/"+name)
		}
	}
	states, err := filepath.Glob("../../golden/checkpoint/*/*/trainer_state.json")
	require.NoError(t, err)
	require.Len(t, states, 2)
	for _, path := range states {
		j := judge(t, runlog.Options{}, path)
		require.Empty(t, j.top, path)
		require.NotEmpty(t, j.report.Brief.Metrics, path)
	}
}

// lines makes a log: a function of the step for each line.
func lines(n int, line func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i))
		b.WriteByte('\n')
	}
	return b.String()
}

// wave is noise that is the same in every run.
func wave(i int) float64 { return math.Sin(float64(i)*1.7) * math.Cos(float64(i)*.3) }

// ppoLine is a line of a healthy PPO with some numbers replaced.
func ppoLine(i int, change map[string]float64) string {
	m := map[string]float64{"loss/policy": .01 * wave(i), "loss/value": .5*math.Exp(-float64(i)/20) + .05 + .002*wave(i), "loss/entropy": -2 + .002*float64(i),
		"params/policy_clip_frac": .05 + .01*wave(i), "params/value_clip_frac": .02 + .01*wave(i), "params/approx_kl": .01 + .002*wave(i), "params/grad_norm": .8 + .1*wave(i),
		"rollout/reward_mean": .1 + .003*float64(i) + .01*wave(i), "params/learning_rate": 1e-6}
	for k, v := range change {
		m[k] = v
	}
	if _, ok := m["loss/total"]; !ok {
		m["loss/total"] = m["loss/policy"] + .1*m["loss/value"] + .01*m["loss/entropy"]
	}
	parts := []string{fmt.Sprintf(`"step":%d`, i+1)}
	for _, k := range []string{"loss/policy", "loss/value", "loss/entropy", "loss/total", "params/policy_clip_frac", "params/value_clip_frac", "params/approx_kl", "params/grad_norm", "rollout/reward_mean", "params/learning_rate"} {
		v := fmt.Sprint(m[k])
		if math.IsNaN(m[k]) {
			v = `"NaN"`
		}
		parts = append(parts, fmt.Sprintf("%q:%s", k, v))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func ppo(n int, change func(i int) map[string]float64) string {
	return lines(n, func(i int) string { return ppoLine(i, change(i)) })
}

// Every row of the catalogue that a log shows, from a log in the documented format: its id comes first.
func TestRows(t *testing.T) {
	shielded := func(i int, loss, kl, ratio float64) string {
		return fmt.Sprintf(`{"step":%d,"loss":%g,"loss_pg":%g,"loss_kl":%g,"kl":%g,"ratio_mean":%g,"reward_mean":%g,"time_project_ms":1,"time_step_ms":100}`, i+1, loss+kl, loss, kl, kl/.05, ratio, .2+.01*float64(i))
	}
	micro := func(std, pg, kl, total float64) string {
		return fmt.Sprintf("[Micro 0] 1. Iteration start: mem=100 MB, time=0.000s\n[Micro 0] 2. Samples generated: mem=100 MB, time=0.500s\n[Micro 0] 3. Samples scored: mem=100 MB, time=0.700s, rewards=0.5000±%.4f\n[Micro 0] 4. Loss computed: mem=100 MB, time=1.500s, pg_loss=%.6f, kl=%.6f, total=%.6f\n5. Optimizer step finished: mem=100 MB, time=2.300s total", std, pg, kl, total)
	}
	for _, c := range []struct {
		id, name, log string
		options       string
	}{
		{"A1", "a.log", "step 1/2 loss 0.1 kl 0.2\nRuntimeError: expected scalar type Half but found Float\n", ""},
		{"A1", "a.log", "RuntimeError:  Expected scalar  type Float but found Half\n", ""},
		{"A2", "m.jsonl", lines(12, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss_pg":-0.1,"loss_kl":0.001,"loss":-0.099,"time_project_ms":40,"time_step_ms":100}`, i)
		}), ""},
		{"A3", "m.jsonl", lines(30, func(i int) string { return shielded(i, -.01*float64(i), math.Exp(float64(i)/3)*1e-3, 1) }), ""},
		{"A4", "a.log", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", ""},
		{"A6", "a.log", "warning: no new token for 75 s\n", ""},
		{"A6", "a.log", "2025-01-01 10:00:00 INFO generating 32 responses\n2025-01-01 10:03:00 INFO step\n", ""},
		{"H7e", "g.log", strings.ReplaceAll(micro(.2, -.1, .01, -.09), "±0.2000", "±nan") + "\n", ""},
		{"NONFINITE", "g.log", strings.ReplaceAll(micro(.2, -.1, .01, -.09), "total=-0.090000", "total=nan") + "\n", ""},
		{"B11", "g.log", "config max_iters=10\nconfig group_size=4\nconfig gradient_accumulation_steps=1\nconfig batch_size=1\n" + lines(10, func(i int) string {
			return fmt.Sprintf("iter %d: loss 0.1000 (main 0.1000, critic 0.0000), time 1900.00ms", i)
		}) + "iter 10: loss 0.1000 (main 0.1000, critic 0.0000), time 1990.00ms\niter 11: loss 0.1000 (main 0.1000, critic 0.0000), time 59900.00ms\n", ""},
		{"C14", "p.log", lines(12, func(i int) string {
			return fmt.Sprintf("[Step %d/100] Loss: %.4f | Grad_norm: 250.5", i, 1+.1*float64(i))
		}), ""},
		{"A7", "m.jsonl", lines(30, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss_pg":%g,"loss_kl":0.001,"reward_mean":%g}`, i, -1+.02*float64(i), .5-.01*float64(i))
		}), ""},
		{"A9", "smi.csv", "memory.used [MiB]\n15000 MiB\n19000 MiB\n", ""},
		{"A9", "smi.log", "15000 MiB\n18800 MiB\n", ""},
		{"A10", "a.log", "Gradient flow: min=0.000000, max=0.001000, mean=0.000400\nGradient flow: min=0.000000, max=0.000000, mean=0.000000\nGradient flow: min=0.000000, max=0.000000, mean=0.000000\n", ""},
		{"H1", "m.jsonl", lines(12, func(i int) string { return shielded(i, -.1, 40, 1e-9) }), ""},
		{"B1", "g.log", "WARNING: All advantages are near zero! rewards_grouped=[0.5 0.5]\niter 0: loss 0.0000 (main 0.0000, critic 0.0000), time 2000.00ms\n", ""},
		{"B1", "g.log", micro(0, 0, 0, 0) + "\niter 0: loss 0.0000 (main 0.0000, critic 0.0000), time 2300.00ms\n" + micro(0, 0, 0, 0) + "\niter 1: loss 0.0000 (main 0.0000, critic 0.0000), time 2300.00ms\n", ""},
		{"B2", "g.log", "WARNING: All sequence_log_probs are near zero! num_masked=0.0\niter 0: loss 0.0000 (main 0.0000, critic 0.0000), time 2000.00ms\n", ""},
		{"B4", "g.jsonl", lines(4, func(i int) string {
			return fmt.Sprintf(`{"iter":%d,"loss":0,"pg_loss":0,"kl_penalty":0,"std_reward":0.2}`, i)
		}), ""},
		{"B5", "g.log", "iter 0: loss 0.1235 (main 0.1235, critic 0.0000), time 41747.97ms\niter 1: loss 0.2235 (main 0.2235, critic 0.0000), time 103634.20ms\n", ""},
		{"B7", "g.log", strings.ReplaceAll(micro(.2, -.1, .01, -.09), "time=0.500s", "time=0.050s") + "\n" + strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(micro(.2, -.1, .01, -.09), "time=0.500s", "time=6.000s"), "time=0.700s", "time=6.200s"), "time=1.500s", "time=7.000s") + "\n" +
			strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(micro(.2, -.1, .01, -.09), "time=0.500s", "time=6.000s"), "time=0.700s", "time=6.200s"), "time=1.500s", "time=7.000s") + "\n", ""},
		{"B10", "g.jsonl", lines(4, func(i int) string {
			return fmt.Sprintf(`{"iter":%d,"loss":4.9,"pg_loss":-0.1,"kl_penalty":5,"std_reward":0.2}`, i+3)
		}), ""},
		{"H5", "g.log", "iter 0: loss 0.1235 (main 0.1235, critic 0.0000), time 2000.00ms\niter 1: loss 0.0000 (main 0.0000, critic 0.0000), time 2000.00ms\n", ""},
		{"H7a", "g.log", "config kl_beta=0.1\n" + micro(.2, -.1, .02, -.08) + "\niter 0: loss -0.0800 (main -0.0800, critic 0.0000), time 2300.00ms\n", ""},
		{"H7c", "g.log", micro(.2, -.1, 0, -.1) + "\niter 0: loss -0.1000 (main -0.1000, critic 0.0000), time 2300.00ms\n" + micro(.2, -.1, -.02, -.12) + "\niter 1: loss -0.1200 (main -0.1200, critic 0.0000), time 2300.00ms\n", ""},
		{"H7d", "g.log", micro(.2, -.1, 0, -.1) + "\niter 0: loss -0.1000 (main -0.1000, critic 0.0000), time 9300.00ms\n", ""},
		{"LOSS-SUM", "g.log", micro(.2, -.1, .02, -.5) + "\niter 0: loss -0.5000 (main -0.5000, critic 0.0000), time 2300.00ms\n", ""},
		{"LOSS-SUM", "g.log", "iter 0: loss 0.2000 (main 0.1000, critic 0.0000), time 2300.00ms\niter 1: loss 0.4000 (main 0.2000, critic 0.0000), time 2300.00ms\n", ""},
		{"C1", "a.log", "RuntimeError: No CUDA GPUs are available\n", ""},
		{"C2", "a.log", "The installed version of bitsandbytes was compiled without GPU support.\n", ""},
		{"C3", "m.jsonl", ppo(12, func(i int) map[string]float64 {
			if i > 6 {
				return map[string]float64{"loss/value": math.NaN(), "loss/total": math.NaN()}
			}
			return nil
		}), ""},
		{"C6", "a.log", "config ppo.mini_batch_size=2\nRuntimeError: CUDA out of memory\n", ""},
		{"C7", "m.jsonl", ppo(60, func(i int) map[string]float64 {
			return map[string]float64{"params/approx_kl": 1e-6 * wave(i), "rollout/reward_mean": .3}
		}), ""},
		{"C8", "m.jsonl", ppo(60, func(i int) map[string]float64 {
			return map[string]float64{"loss/entropy": -3 * math.Exp(-float64(i)/8)}
		}), ""},
		{"C9", "a.log", "All rewards are zero, skipping PPO update\n", ""},
		{"C10", "m.jsonl", ppo(260, func(i int) map[string]float64 {
			return map[string]float64{"rollout/reward_mean": .3 - .001*float64(i)}
		}), ""},
		{"C11", "m.jsonl", ppo(60, func(i int) map[string]float64 {
			return map[string]float64{"loss/value": .5 + .01*float64(i)}
		}), ""},
		{"C12", "m.jsonl", ppo(60, func(i int) map[string]float64 {
			return map[string]float64{"params/approx_kl": .2 + .01*wave(i)}
		}), ""},
		{"C13", "m.jsonl", ppo(40, func(i int) map[string]float64 {
			return map[string]float64{"params/policy_clip_frac": .35 + .01*wave(i)}
		}), ""},
		{"C14", "m.jsonl", ppo(40, func(i int) map[string]float64 {
			return map[string]float64{"params/grad_norm": 250 + wave(i), "loss/policy": .1 * float64(i)}
		}), ""},
		{"C15", "m.jsonl", ppo(40, func(i int) map[string]float64 {
			v := .6 + .001*wave(i)
			return map[string]float64{"params/policy_clip_frac": .7, "params/grad_norm": 60, "loss/value": v, "loss/policy": -.02 * float64(i)}
		}), ""},
		{"C16", "a.log", "config ppo.max_grad_norm=0\n" + "step 1/2 reward 0.1 policy 0.1 value 0.1 entropy -1 kl 0 clip 0/0 gnorm 1\n", ""},
		{"LOSS-SUM", "m.jsonl", ppo(20, func(i int) map[string]float64 { return map[string]float64{"loss/total": wave(3*i) * 2} }), ""},
		{"D1", "a.log", "RuntimeError: Expected floating point type for target with class probabilities, got Long\n", ""},
		{"D2", "a.log", lines(5, func(i int) string { return batch(i, 50, .1, 2.6-.1*float64(i), 0, .9-.05*float64(i)) }), ""},
		{"D3", "a.log", "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors)\n", ""},
		{"D4", "m.log", lines(12, func(i int) string { m := 1 - .08*float64(i); return batch(i, 5, .02, .7*.6*6.2*m, 1e-5, m) }), ""},
		{"D7", "a.log", batch(0, 50, 0, 4.7, 1.5e-5, 1) + "\n", ""},
		{"D9", "a.log", lines(30, func(i int) string {
			m := 1 - .01*float64(i)
			return batch(i, 10, .02, .7*.6*(.5+.5*m)*(6.2+.02*float64(i)), 1e-5, m)
		}), ""},
		{"D10", "a.log", batch(0, 50, .1, 2.6, 1e-5, 1) + "\n[Batch   50] Reward:  0.0100 | Loss:     nan | Qwen_grad: nan | Mask_ratio: 0.9000\n", ""},
		{"D11", "a.log", lines(5, func(i int) string { return batch(i, 50, 0, 2.6-.1*float64(i), 1e-5, .9-.05*float64(i)) }), ""},
		{"D12", "a.log", lines(31, func(i int) string {
			return batch(i, 10, .02, .7*.6*(.5+.5*.9)*(6.2-.02*float64(i)), 1e-5, .9+.001*float64(i))
		}), ""},
		{"D13", "a.log", batch(0, 50, .1, 2.6, 1e-5, 1) + "\n[Epoch 0] Val Accuracy: 0.3000 (30/100)\n[Epoch 1] Val Accuracy: 0.2900 (29/100)\n[Epoch 2] Val Accuracy: 0.2800 (28/100)\n[Epoch 3] Val Accuracy: 0.2500 (25/100)\n", ""},
		{"D17", "a.log", "Qwen gradients flowing? False\n", ""},
		{"D18", "a.log", "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n", ""},
		{"D19", "a.log", lines(8, func(i int) string { return batch(i, 50, .1, 2.6*math.Exp(float64(i)/3), 1e-5, 1) }), ""},
		{"D20", "a.log", batch(0, 50, .1, 2.6, 0, 1) + "\n" + batch(1, 50, .1, 2.5, 0, .9) + "\n", ""},
		{"H11", "a.log", "ValueError: Attempting to unscale FP16 gradients.\n", ""},
		{"KL-NEGATIVE", "t.jsonl", lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"kl":%g,"completions/mean_length":10,"reward":0.1,"clip_ratio":0}`, i, .01-.005*float64(i))
		}), ""},
		{"ENTROPY-RANGE", "t.jsonl", lines(3, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"entropy":%g,"completions/mean_length":10}`, i, 13.+float64(i))
		}), ""},
		{"SHARE-RANGE", "t.jsonl", lines(3, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"clip_ratio/region_mean":%g,"completions/mean_length":10}`, i, 1.5)
		}), ""},
		{"REWARD-SUM", "t.jsonl", lines(5, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"reward":%g,"rewards/a/mean":%g,"rewards/b/mean":%g,"completions/mean_length":9}`, i, .5+.1*float64(i)+.2, .5+.1*float64(i), .2)
		}), "reward_weights=[1.0,0.5]"},
		{"ORDER-RANGE", "t.jsonl", lines(3, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"response_length/mean":10,"response_length/max":8,"actor/pg_loss":0.1}`, i)
		}), ""},
		{"NAN-FILTERED", "t.log", "{'loss': 0.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}\n", ""},
		{"NONFINITE", "v.log", "step:1 - actor/pg_loss:-0.1 - actor/grad_norm:0.5\nstep:2 - actor/pg_loss:np.float64(nan) - actor/grad_norm:nan\n", ""},
		{"GRAD-ZERO", "t.jsonl", lines(5, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.0,"grad_norm":0.0,"reward_std":0.3,"completions/mean_length":9}`, i)
		}), ""},
		{"LR-ZERO", "t.jsonl", lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"grad_norm":0.5,"learning_rate":0.0,"completions/mean_length":9}`, i)
		}), ""},
		{"ZERO-STD", "t.jsonl", lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"grad_norm":0.5,"frac_reward_zero_std":1.0,"completions/mean_length":9}`, i)
		}), ""},
		{"TRUNCATED", "t.jsonl", lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"grad_norm":0.5,"completions/clipped_ratio":0.87,"completions/mean_length":9}`, i)
		}), ""},
		{"ENGINE-GAP", "t.jsonl", lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"sampling/sampling_logp_difference/mean":0.2,"completions/mean_length":9}`, i)
		}), ""},
		{"STEPS-BACK", "t.jsonl", "{\"step\":3,\"loss\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":1,\"loss\":1}\n", ""},
		{"TWO-RUNS", "t.jsonl", lines(40, func(i int) string { return fmt.Sprintf(`{"step":%d,"loss":%g}`, i/2+i%2*100, 1+wave(i)) }), ""},
		{"KL-K1-FALLING", "t.jsonl", lines(40, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"objective/kl":%g,"objective/rlhf_reward":%g}`, i, -.2*float64(i)+.1*wave(i), .1*float64(i))
		}), ""},
	} {
		t.Run(c.id, func(t *testing.T) {
			j := text(t, c.name, c.log, strings.Fields(c.options)...)
			require.NotEmpty(t, j.top, "%s: nothing was found\n%s", c.id, c.log)
			require.Equal(t, c.id, j.top[0], "found %v, all %v", j.top, j.all)
		})
	}
}

// batch is a line of the ARC solver.
func batch(i, every int, reward, loss, grad, mask float64) string {
	return fmt.Sprintf("[Batch %4d] Reward: %7.4f | Loss: %7.4f | Qwen_grad: %.2e | Mask_ratio: %.4f", i*every, reward, loss, grad, mask)
}

// Zeros from some batch on are a gradient that is cut, or prompts that were cached: the lines cannot tell, and a warning says so.
func TestZerosAfterAGradient(t *testing.T) {
	for from, exit := range map[int]int{0: 1, 1: 0} {
		j := text(t, "a.log", lines(5, func(i int) string {
			grad := 1e-5
			if i >= from {
				grad = 0
			}
			return batch(i, 50, .1, 2.6-.1*float64(i), grad, .9-.05*float64(i))
		}))
		require.Equal(t, "D2", j.top[0])
		require.Equal(t, exit, j.exit, "zeros from line %d", from)
	}
}

// The healthy line that the faulty ones are made of shows nothing.
func TestHealthyPPO(t *testing.T) {
	for _, n := range []int{1, 5, 12, 60, 300} {
		j := text(t, "m.jsonl", ppo(n, func(int) map[string]float64 { return nil }))
		require.Empty(t, j.top)
		require.Zero(t, j.exit)
	}
}

func TestSymptomsResolve(t *testing.T) {
	for _, s := range bug.Symptoms() {
		require.NotNil(t, bug.FindSymptom(s.ID))
	}
	require.Len(t, runlog.Infos(), 8)
}

// Logs that trainers of this project wrote with absurd settings: the learning rate of a shielded run, a temperature of 0.01.
func TestRealFaults(t *testing.T) {
	for dir, want := range map[string][]string{"shielded_ok": nil, "shielded_lr": {"A3"}, "grpo_ok": nil, "grpo_cold": {"B1"}, "arc_lr": {"D19"}} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*"))
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, path := range append(files, filepath.Join("testdata", dir)) {
			if j := judge(t, runlog.Options{}, path); want == nil {
				require.Empty(t, j.top, path)
			} else if dir != "arc_lr" || filepath.Base(path) != "log.txt" { // it stopped before its second line
				require.NotEmpty(t, j.top, path)
				require.Equal(t, want[0], j.top[0], path)
			}
		}
	}
}

// A folder is judged once: what a console rounds is not held against a file with all digits.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "log.txt"), []byte("iter 0: loss 0.1235 (main 0.1235, critic 0.0000), time 200.00ms\niter 1: loss 0.0000 (main 0.0000, critic 0.0000), time 200.00ms\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(`{"iter":0,"loss":0.1235,"pg_loss":0.1235,"kl_penalty":0,"num_masked":5}`+"\n"+`{"iter":1,"loss":0.00002,"pg_loss":0.00002,"kl_penalty":0,"num_masked":5}`+"\n"), 0o644))
	require.Empty(t, judge(t, runlog.Options{}, dir).top)
	require.Equal(t, []string{"H5"}, judge(t, runlog.Options{}, filepath.Join(dir, "log.txt")).top)

	_, err := runlog.Judge(context.Background(), []string{t.TempDir()}, runlog.Options{})
	require.ErrorIs(t, err, runlog.ErrNothing)
	_, err = runlog.Judge(context.Background(), []string{filepath.Join(dir, "no")}, runlog.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Lines that nothing understands are counted, and a log of them alone decides nothing.
func TestNotUnderstood(t *testing.T) {
	j := text(t, "a.log", "hello\nworld\n\x1b[31mred\x1b[0m\n")
	require.Equal(t, check.ExitNothing, j.exit)
	require.Contains(t, j.report.Inputs[0].What, "3 not understood")
	require.NotContains(t, strings.Join(j.report.Lists[0].Items, " "), "\x1b")
}

// NaN of a history of W&B, for steps in which a metric was not logged, is no NaN of the run.
func TestSparseHistory(t *testing.T) {
	row := func(bad int) func(i int) string {
		return func(i int) string {
			v := "NaN"
			if i%5 == 0 && i < bad {
				v = "0.5"
			}
			return fmt.Sprintf(`{"_step":%d,"loss":%g,"reward":%s}`, i, 1-.01*float64(i), v)
		}
	}
	require.Empty(t, text(t, "wandb-history.jsonl", lines(40, row(100))).top)
	require.Equal(t, []string{"NONFINITE"}, text(t, "wandb-history.jsonl", lines(40, row(20))).top)
}

// What the names mean decides what is judged: the same number under one name is impossible for one program and not for another.
func TestEqualNames(t *testing.T) {
	row := func(name string, v float64, more string) string {
		return lines(4, func(i int) string { return fmt.Sprintf(`{"step":%d,%q:%g,%s}`, i, name, v, more) })
	}
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "m.jsonl", row("kl", -.1, `"completions/mean_length":9`)).top, "k3 of TRL's GRPO")
	require.Empty(t, text(t, "m.jsonl", row("objective/kl", -.1, `"objective/rlhf_reward":1`)).top, "k1 of TRL's PPO")
	require.Empty(t, text(t, "m.jsonl", row("kl", -.1, `"actor_lr":1e-6`)).top, "of the estimator that is configured, OpenRLHF")
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "m.jsonl", row("losses/approx_kl", -.1, `"losses/clipfrac":0`)).top, "k3 of CleanRL")
	require.Empty(t, text(t, "m.jsonl", row("params/approx_kl", -.01, `"params/grad_norm":1`)).top, "k1 of the tutorial")
	require.Empty(t, text(t, "m.jsonl", row("policy/entropy", 90, `"qwen_grad":1e-5,"loss":2.6,"reward":0.1,"mask_ratio":0.9`)).top, "of a Gaussian")
	require.Equal(t, []string{"ENTROPY-RANGE"}, text(t, "m.jsonl", row("entropy", 13, `"completions/mean_length":9`)).top)
}

// A run of many steps keeps its first bad step and its trend.
func TestLongRun(t *testing.T) {
	j := text(t, "m.jsonl", lines(30_000, func(i int) string {
		v := .01
		if i == 12_345 {
			v = -.5
		}
		return fmt.Sprintf(`{"step":%d,"kl":%g,"completions/mean_length":9,"cispo_clip_ratio":0}`, i, v)
	}))
	require.Equal(t, []string{"KL-NEGATIVE"}, j.top)
	require.InDelta(t, 12_345, j.report.Brief.Findings[0].First, 16)
}
