package train_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/cases"
	"plumbline/internal/dataset"
	"plumbline/internal/format/dump"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/rl"
)

// shielded is a run of two steps with six short answers each, in micro-batches of four.
func shielded(overrides ...string) *train.Shielded {
	var c train.Shielded
	s := c.Settings()
	for _, o := range append([]string{"model.name=tiny-gptj", "steps=2", "ppo_batch=6", "sim_batch=6", "micro_batch_size=4", "max_new_tokens=6", "temperature=1", "top_p=1",
		"reward=shaped", "lr=0.01", "lora.r=2", "save_every=1", "basis.rank=5"}, overrides...) {
		if err := s.Override(o); err != nil {
			panic(err)
		}
	}
	if err := s.Resolve(); err != nil {
		panic(err)
	}
	return &c
}

// numbers are those of all parameters.
func numbers(p train.Policy) (all []float64) {
	for _, q := range p.Params() {
		all = append(all, q.Data...)
	}
	return all
}

// outcome is what a run leaves.
type outcome struct {
	last   []rl.Metric
	err    error
	out    string
	warned []string
	dir    string
	basis  *train.Basis
	policy *bind.Language
}

func (o outcome) metric(name string) float64 {
	for _, m := range o.last {
		if m.Name == name {
			return m.Value
		}
	}
	return math.NaN()
}

// lines are those of metrics.jsonl.
func (o outcome) lines(t testing.TB) (list []map[string]any) {
	lines, err := rundir.ReadLog(filepath.Join(o.dir, "metrics.jsonl"))
	require.NoError(t, err)
	for _, l := range lines {
		m := map[string]any{}
		require.NoError(t, json.Unmarshal(l.Text, &m))
		list = append(list, m)
	}
	return list
}

func gptj(t testing.TB, c *train.Shielded) (*bind.Language, *bind.Text) {
	m, extra, err := bind.Open(c.Model, c.Seed)
	require.NoError(t, err)
	text, err := bind.NewText(m)
	require.NoError(t, err)
	adapter, err := bind.NewAdapter(m.Base.Config, c.LoRA.R, c.LoRA.Alpha, c.LoRA.Targets, c.Seed)
	require.NoError(t, err)
	p, err := bind.NewLanguage(m.Base, bind.Options{Seed: c.Seed, Extra: extra, Adapter: adapter, PEFT: bind.AdapterConfig(c.Model, c.LoRA), Int8: c.Int8})
	require.NoError(t, err)
	return p, text
}

// basisFor is one of normal vectors, flat or side.
func basisFor(t testing.TB, c *train.Shielded, p train.Policy) *train.Basis {
	d, kind := 64, c.Projection.Kind
	if kind == train.Flat {
		d = len(numbers(p))
	} else {
		kind = train.Side
	}
	b, err := train.NewBasis(normals(77, 8*d), d, c.BasisRank)
	require.NoError(t, err)
	b.Kind = kind
	if kind == train.Flat {
		b.Order = train.Flattened(p.Params())
	}
	return b
}

// runIn trains in a folder, with a policy that change may replace.
func runIn(t testing.TB, dir string, c *train.Shielded, change func(*bind.Language) train.Policy) (o outcome) {
	p, text := gptj(t, c)
	o.dir, o.policy, o.basis = dir, p, basisFor(t, c, p)
	run, err := rundir.Create(dir, rundir.Options{})
	require.NoError(t, err)
	defer run.Close()
	from, _, err := rundir.Newest(dir)
	require.NoError(t, err)
	if from != nil {
		_, err = run.Resume(from)
		require.NoError(t, err)
	}
	var policy train.Policy = p
	if change != nil {
		policy = change(p)
	}
	var out bytes.Buffer
	o.last, o.err = c.Train(context.Background(), train.ShieldedEnv{Basis: o.basis, Prompts: dataset.ItemPrompts("books"), Env: train.Env{Policy: policy, Tokenizer: text, Run: run, From: from,
		Out: &out, Warn: func(f string, a ...any) { o.warned = append(o.warned, fmt.Sprintf(f, a...)) }}})
	o.out = out.String()
	return o
}

func runShielded(t testing.TB, overrides ...string) outcome {
	o := runIn(t, filepath.Join(t.TempDir(), "run"), shielded(overrides...), nil)
	require.NoError(t, o.err)
	return o
}

// The first update: the policy is the reference, so that loss_kl is exactly 0 and every ratio exactly 1; every lora_A has a gradient of
// exactly 0 and every lora_B has one; the line about the gradient flow is that of the source.
func TestShieldedFirstUpdate(t *testing.T) {
	o := runShielded(t)
	first := o.lines(t)[0]
	for name, want := range map[string]float64{"kl": 0, "loss_kl": 0, "ratio_mean": 1, "ratio_min": 1, "ratio_max": 1} {
		require.Equal(t, want, first[name], name)
	}
	require.Equal(t, first["loss"], first["loss_pg"])
	seen := 0
	for name, v := range first {
		if strings.HasPrefix(name, "grad_flow/") {
			seen++
			require.Equal(t, strings.HasSuffix(name, "lora_A.weight"), v == 0., name)
		}
	}
	require.Equal(t, 16, seen)
	flow := regexp.MustCompile(`(?m)^Gradient flow: min=0\.000000, max=(\d+\.\d{6}), mean=(\d+\.\d{6})$`)
	require.Len(t, flow.FindAllString(o.out, -1), 1, o.out)
	require.Regexp(t, flow, o.out)
	require.NotContains(t, first, "ctr_step")
	for _, key := range []string{"reward_mean", "grad_norm_raw", "grad_norm_projected", "proj_max_before", "proj_max_after", "time_project_ms", "time_step_ms", "mem_peak_mb", "shield_drift", "epoch"} {
		require.Contains(t, first, key)
	}
	require.Less(t, first["time_project_ms"], first["time_step_ms"])
	require.Greater(t, o.lines(t)[1]["kl"], 0.)
}

// The dump of an update, computed again by the formulas of systems A.3.
func TestShieldedFormulas(t *testing.T) {
	o := runShielded(t, "dump.every=1", "inner_epochs=2", "kl_beta=0.3", "clip_eps=0.01")
	lines := o.lines(t)
	for update := 1; update <= 4; update++ {
		paths, err := filepath.Glob(filepath.Join(o.dir, "dump", fmt.Sprintf("step_%06d_mb_*.safetensors", update)))
		require.NoError(t, err)
		require.Len(t, paths, 2) // 4 + 2 rows
		var scores, pg, kl, slopes, dumped []float64
		var adv [][]float64
		tokens, clipped := 0, 0
		for _, path := range paths {
			run, err := dump.Open(context.Background(), []string{path})
			require.NoError(t, err)
			var b *dump.Batch
			for batch, err := range run.Batches(context.Background()) {
				require.NoError(t, err)
				b = batch
			}
			lpNew, lpOld, lpRef, a := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("advantages")
			for i, s := range b.Row("scores") {
				scores = append(scores, s)
				var row []float64
				for j := i * b.Cols; j < (i+1)*b.Cols; j++ {
					if !b.Mask[j] {
						continue
					}
					tokens++
					rho := math.Exp(lpNew[j] - lpOld[j])
					c := min(max(rho, .99), 1.01)
					if min(rho*a[j], c*a[j]) != rho*a[j] {
						clipped++
					}
					pg, kl = append(pg, -min(rho*a[j], c*a[j])), append(kl, math.Expm1(lpRef[j]-lpNew[j])-(lpRef[j]-lpNew[j]))
					row = append(row, a[j])
					slope := .3 * -math.Expm1(lpRef[j]-lpNew[j]) // of the KL term
					if min(rho*a[j], c*a[j]) == rho*a[j] {
						slope -= rho * a[j]
					}
					slopes, dumped = append(slopes, slope), append(dumped, b.Token("dlogp")[j])
				}
				adv = append(adv, row)
			}
		}
		mean, variance := 0.0, 0.0
		for _, s := range scores {
			mean += s / float64(len(scores))
		}
		for _, s := range scores {
			variance += (s - mean) * (s - mean) / float64(len(scores))
		}
		for i, row := range adv {
			for _, a := range row {
				require.InDelta(t, (scores[i]-mean)/math.Sqrt(variance+1e-8), a, 1e-12)
			}
		}
		for i := range slopes {
			require.InDelta(t, slopes[i]/float64(tokens), dumped[i], 1e-14)
		}
		sumPG, sumKL := 0.0, 0.0
		for i := range pg {
			sumPG, sumKL = sumPG+pg[i], sumKL+kl[i]
		}
		if update%2 == 0 { // the line of a step is of its last update
			line := lines[update/2-1]
			require.InDelta(t, sumPG/float64(tokens), line["loss_pg"], 1e-13)
			require.InDelta(t, .3*sumKL/float64(tokens), line["loss_kl"], 1e-13)
			require.InDelta(t, (sumPG+.3*sumKL)/float64(tokens), line["loss"], 1e-13)
			require.EqualValues(t, tokens, line["tokens"])
			require.Greater(t, clipped, 0, "the clip shows")
		}
	}
}

// On the answers of one rollout the policy loss falls from update to update. From rollout to rollout it need not: with a whitened
// advantage and a ratio of 1 it is minus the covariance of advantage and length over the mean length, whatever was learned.
func TestShieldedSurrogateFalls(t *testing.T) {
	for i, seed := range []string{"seed=1", "seed=2", "seed=3"} {
		if i%cases.Every != 0 {
			continue
		}
		var losses []float64
		for _, n := range []string{"1", "3", "6"} {
			losses = append(losses, runShielded(t, "steps=1", "kl_beta=0", "lr=0.003", "max_new_tokens=24", "inner_epochs="+n, seed).metric("loss_pg"))
		}
		require.Less(t, losses[1], losses[0], seed)
		require.Less(t, losses[2], losses[1], seed)
	}
}

// What an update has used is forgotten.
func TestShieldedForgets(t *testing.T) {
	for _, p := range runShielded(t, "steps=1").policy.Params() {
		for _, g := range p.Grad {
			require.Zero(t, g, p.Name)
		}
	}
}

// Equal rewards give an advantage of exactly 0, and so no policy gradient: also where their mean, rounded, is not their value.
func TestShieldedEqualRewards(t *testing.T) {
	for _, c := range []struct {
		settings string
		reward   float64
	}{
		{"reward=words", 0},                      // six tokens are never more than twenty words
		{"reward=shaped max_new_tokens=2", .025}, // a space and a letter: one word; six times .025 is 0.15 less a rounding
	} {
		o := runShielded(t, append(strings.Fields(c.settings), "steps=1")...)
		require.InDelta(t, c.reward, o.metric("reward_mean"), 1e-15, c.settings)
		require.Equal(t, 0., o.metric("loss_pg"), c.settings)
		require.Equal(t, 0., o.metric("grad_norm_raw"), c.settings)
	}
}

// The micro-batches are no part of the result but for rounding, and with more of them nothing is divided twice.
func TestShieldedMicroBatches(t *testing.T) {
	one, many := runShielded(t, "micro_batch_size=6"), runShielded(t, "micro_batch_size=1")
	for _, name := range []string{"loss", "loss_pg", "kl", "grad_norm_raw", "reward_mean"} {
		require.InDelta(t, one.metric(name), many.metric(name), 1e-6, name) // weights are float32: one of them may round the other way
	}
	a, b := numbers(one.policy), numbers(many.policy)
	for i := range a {
		require.InDelta(t, a[i], b[i], 1e-5)
	}
}

// The shield: the update projected leaves nothing in span(Q), flat and side, with Adam and SGD. Without it, or with gradients
// projected before Adam, the weights leak; before SGD they do not.
func TestShieldedDrift(t *testing.T) {
	for _, c := range []struct {
		settings string
		leaks    bool
	}{
		{"projection.mode=update projection.kind=side", false}, {"projection.mode=update projection.kind=flat", false},
		{"projection.mode=update projection.kind=flat optimizer=sgd lr=10", false}, {"projection.mode=update projection.passes=1", false},
		{"projection.mode=grad projection.kind=side", true}, {"projection.mode=grad projection.kind=flat", true},
		{"projection.mode=grad projection.kind=side optimizer=sgd lr=10", false}, {"projection.mode=off projection.kind=side", true},
	} {
		o := runShielded(t, strings.Fields(c.settings)...)
		drift := o.metric("shield_drift")
		require.Equal(t, c.leaks, drift > 1e-5, "%s: %g", c.settings, drift)
		moved := 0.0
		for _, p := range o.policy.Params() {
			if strings.Contains(p.Name, "lora_B") {
				for _, w := range p.Data {
					moved = max(moved, math.Abs(w))
				}
			}
		}
		require.Greater(t, moved, 1e-3, "the weights have moved: %s", c.settings)
		if !strings.Contains(c.settings, "off") {
			require.Less(t, o.metric("proj_max_after"), 1e-15, c.settings)
			require.Greater(t, o.metric("proj_max_before"), 1e-5, c.settings)
		}
		require.Equal(t, c.leaks && strings.Contains(c.settings, "grad"), strings.Contains(strings.Join(o.warned, "\n"), "H3a"), c.settings)
	}
}

// N+M steps are N steps, a load and M steps, to the last byte; and a run is a function of its seed.
func TestShieldedResume(t *testing.T) {
	for i, opt := range []string{"optimizer=adam", "optimizer=sgd"} {
		if i%cases.Every != 0 {
			continue
		}
		settings := []string{"steps=3", "reward=clicks", "max_new_tokens=20", "ppo_batch=8", opt}
		whole := runShielded(t, settings...)
		for _, l := range whole.lines(t) {
			require.NotZero(t, l["grad_norm_raw"], "some users click and some do not: there is something to learn")
		}
		dir := filepath.Join(t.TempDir(), "run")
		part := runIn(t, dir, shielded(settings...), nil)
		require.NoError(t, part.err)
		for _, name := range []string{"final", "step_2"} {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
		}
		again := runIn(t, dir, shielded(settings...), nil)
		require.NoError(t, again.err)
		for _, name := range []string{"final", "step_1", "step_2"} {
			entries, err := os.ReadDir(filepath.Join(whole.dir, name))
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(entries), 6)
			for _, e := range entries {
				want, err := os.ReadFile(filepath.Join(whole.dir, name, e.Name()))
				require.NoError(t, err)
				got, err := os.ReadFile(filepath.Join(dir, name, e.Name()))
				require.NoError(t, err)
				require.Equal(t, string(want), string(got), "%s/%s", name, e.Name())
			}
		}
		want, got := whole.lines(t), again.lines(t)
		require.Len(t, got, 3)
		for i := range want {
			for key := range want[i] {
				if !strings.HasPrefix(key, "time_") && key != "mem_peak_mb" && key != "epoch_time" {
					require.Equal(t, want[i][key], got[i][key], "%d %s", i, key)
				}
			}
		}
	}
	a, b := runShielded(t), runShielded(t, "seed=43")
	require.NotEqual(t, numbers(a.policy), numbers(b.policy))
}
