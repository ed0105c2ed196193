//go:build unix

package main

import (
	"bufio"
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/verify/dump"
)

// small is a run of four steps with 6 rows each, so that the micro-batches of 2 leave one over for an update of its own.
func small(dir string, more ...string) []string {
	return merged([]string{"ppo", "training.output_dir=" + dir, "training.total_ppo_steps=4", "training.save_interval=1", "ppo.rollout_samples=6", "ppo.mini_batch_size=2",
		"ppo.gradient_accumulation_steps=2", "ppo.batch_size=3", "ppo.kl_coeff=0.05", "ppo.use_8bit_adam=false", "dataset.max_gen_length=4", "eval.samples=0", "ppo.epochs=2",
		"ppo.learning_rate=1e-3", "ppo.warmup_steps=2", "dataset.held_out=0", "dataset.prompt_format=Question: {question}\nAnswer:"}, more...)
}

// kinds are the ways to train that differ in what a checkpoint holds.
var kinds = map[string][]string{
	"full":      nil,
	"full8bit":  {"ppo.use_8bit_adam=true"},
	"lora":      {"lora.r=2"},
	"lora8bit":  {"lora.r=64", "ppo.use_8bit_adam=true", "lora.targets=q_proj,down_proj"},
	"constant3": {"ppo.scheduler=constant", "ppo.epochs=3"},
}

func trains(t testing.TB, args ...string) string {
	t.Helper()
	out, errs, code := program(t, args...)
	require.Zero(t, code, errs)
	return out
}

// sameRun demands that two runs ended in the same: every byte of the last checkpoint, every line of metrics and samples.
func sameRun(t testing.TB, want, got string) {
	t.Helper()
	sameFolder(t, filepath.Join(want, "final"), filepath.Join(got, "final"))
	for _, name := range []string{"metrics.jsonl", "samples.jsonl"} {
		a, err := os.ReadFile(filepath.Join(want, name))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(got, name))
		require.NoError(t, err)
		require.NotEmpty(t, a)
		require.Equal(t, string(a), string(b), name)
	}
}

func sameFolder(t testing.TB, want, got string) {
	t.Helper()
	entries, err := os.ReadDir(want)
	require.NoError(t, err)
	others, err := os.ReadDir(got)
	require.NoError(t, err)
	require.Equal(t, len(entries), len(others))
	for _, e := range entries {
		a, err := os.ReadFile(filepath.Join(want, e.Name()))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(got, e.Name()))
		require.NoError(t, err)
		require.True(t, bytes.Equal(a, b), "%s differs", e.Name())
	}
}

// cut copies a run and takes away the checkpoints after a step, as if the process had died before the next save.
func cut(t testing.TB, from string, steps ...string) string {
	dir := filepath.Join(t.TempDir(), "cut")
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	for _, name := range steps {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
	}
	return dir
}

// N+M steps are N steps, a save, and M steps of another process.
func TestResume(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(kinds)) {
		more := kinds[name]
		if (i+1)%cases.Every != 0 || testing.Short() && name != "full8bit" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			whole := filepath.Join(t.TempDir(), "whole")
			trains(t, small(whole, more...)...)
			resumed := cut(t, whole, "final", "step_3")
			out := trains(t, small(resumed, more...)...)
			require.Contains(t, out, "step_2, step 2\n")
			require.NotContains(t, out, "\nstep 2/4")
			sameRun(t, whole, resumed)

			// A run that has ended has nothing to do.
			trains(t, small(resumed, more...)...)
			sameRun(t, whole, resumed)
		})
	}
}

func newestOf(t testing.TB, dir string) *rundir.Checkpoint {
	c, refused, err := rundir.Newest(dir)
	require.NoError(t, err)
	require.Empty(t, refused)
	return c
}

func TestInterrupted(t *testing.T) {
	whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
	args := func(dir string) []string { return small(dir, "training.save_interval=0") }
	trains(t, args(whole)...)
	cmd := exec.Command(binaryPath, args(dir)...)
	lines, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for in := bufio.NewScanner(lines); in.Scan() && !strings.HasPrefix(in.Text(), "step 1/"); {
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	c := newestOf(t, dir)
	require.NotNil(t, c, "it is saved")
	require.GreaterOrEqual(t, c.Manifest.Step, 1)
	trains(t, args(dir)...)
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "state.json"} { // the manifest names its parent
		a, err := os.ReadFile(filepath.Join(whole, "final", name))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(dir, "final", name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(a, b), name)
	}
}

// Both signals end a run in the middle of a rollout that would take minutes, long before it has made a step.
func TestInterruptedInARollout(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		dir := filepath.Join(t.TempDir(), "run")
		cmd := exec.Command(binaryPath, small(dir, "dataset.max_gen_length=450", "generation.min_new_tokens=450", "ppo.rollout_samples=2048")...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		lines, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		in := bufio.NewScanner(lines)
		for in.Scan() && !strings.HasPrefix(in.Text(), "effective batch") {
		}
		began := time.Now()
		require.NoError(t, cmd.Process.Signal(signal))
		require.False(t, in.Scan(), "no step is made")
		cmd.Wait()
		t.Logf("%v: gone after %v", signal, time.Since(began))
		require.Equal(t, 130, cmd.ProcessState.ExitCode())
		require.Equal(t, "train: interrupted before its first step: there is nothing to save\n", errs.String())
		require.Nil(t, newestOf(t, dir))
	}
}

// A disk that is full, here a limit of the size of files, fails the save, and the checkpoint before is the newest.
func TestDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	trains(t, small(dir)...)
	dir = cut(t, dir, "final", "step_3")
	limited := func(kb string) (string, int) {
		cmd := exec.Command("bash", append([]string{"-c", `ulimit -f ` + kb + ` && exec "$0" "$@"`, binaryPath}, small(dir)...)...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		cmd.Run()
		return errs.String(), cmd.ProcessState.ExitCode()
	}
	for range 2 {
		errs, code := limited("500") // the file of the optimiser has more
		require.Equal(t, 3, code, errs)
		require.Contains(t, errs, "saving "+filepath.Join(dir, "step_3"))
		require.Contains(t, errs, "file too large")
		require.Equal(t, 2, newestOf(t, dir).Manifest.Step)
		latest, err := os.ReadFile(filepath.Join(dir, "latest"))
		require.NoError(t, err)
		require.Equal(t, "step_2\n", string(latest), "the newest that is whole")
	}
	trains(t, small(dir)...)
	require.Equal(t, "final", newestOf(t, dir).Name)
}

func TestTruncatedCheckpoint(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	trains(t, small(whole)...)
	dir := cut(t, whole, "final")
	require.NoError(t, os.Truncate(filepath.Join(dir, "step_3", "model.safetensors"), 4096))
	_, errs, code := program(t, small(dir)...)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "step_3 is not whole and is passed over")
	require.Contains(t, errs, "model.safetensors: has 4096 bytes, its manifest says")
	require.Contains(t, errs, "step_3.aside-1")
	sameRun(t, whole, dir)

	for _, name := range []string{"final", "step_1", "step_2", "step_3"} {
		require.NoError(t, os.Truncate(filepath.Join(dir, name, "optimizer.safetensors"), 10))
	}
	_, errs, code = program(t, small(dir)...)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "no checkpoint of "+dir+" is whole: the run starts anew")
}

func TestRunFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	trains(t, small(dir, "training.total_ppo_steps=2")...)
	for _, name := range []string{"effective_config.yaml", "env.json", "metrics.jsonl", "samples.jsonl", "step_1/MANIFEST.json", "final/MANIFEST.json", "final/tokenizer.json", "final/config.json",
		"final/model.safetensors", "final/optimizer.safetensors", "final/state.json", "LOCK"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	events, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	require.NoError(t, err)
	require.Len(t, events, 1)
	text, err := os.ReadFile(filepath.Join(dir, "effective_config.yaml"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "defaults")
	require.NotContains(t, string(text), "${")

	refused := func(code int, says string, more ...string) {
		t.Helper()
		_, errs, got := program(t, small(dir, append([]string{"training.total_ppo_steps=2"}, more...)...)...)
		require.Equal(t, code, got, errs)
		require.Contains(t, errs, says)
	}
	refused(2, "ppo.gamma (was 0.99, is 0.9)", "ppo.gamma=0.9")
	refused(2, "training.total_ppo_steps (was 2, is 3)", "training.total_ppo_steps=3")
	refused(2, "holds a run already", "--resume", "never")
	refused(2, "unknown key", "ppo.gama=0.9")
	refused(2, "did you mean ppo.gamma?", "ppo.gama=0.9")
	refused(2, "ppo.min_lr 1e-07 is above ppo.learning_rate 1e-08", "--ppo.learning_rate=1e-8", "--allow-config-change", "ppo.learning_rate")
	trains(t, small(dir, "training.total_ppo_steps=3", "--allow-config-change", "training.total_ppo_steps")...)
	require.Equal(t, 3, newestOf(t, dir).Manifest.Step)

	held, err := rundir.Create(dir, rundir.Options{})
	require.NoError(t, err)
	defer held.Close()
	refused(2, "is training in this folder")
}

func TestNotFinite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	trains(t, small(dir)...)
	dir = cut(t, dir, "final", "step_3")
	// A learning rate beyond float32 makes the first weight that moves infinite.
	_, errs, code := program(t, small(dir, "ppo.learning_rate=1e60", "--allow-config-change", "ppo.learning_rate")...)
	require.Equal(t, 1, code, errs)
	require.Regexp(t, `step 3: model\.\S+\[\d+\] is [-+]Inf: training stops, the last checkpoint is good`, errs)
	require.Equal(t, 2, newestOf(t, dir).Manifest.Step)
}

func TestVerifyWhileTraining(t *testing.T) {
	dir, dumps := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "dumps")
	trains(t, small(dir, "--verify", "--dump", dumps, "training.total_ppo_steps=2", "ppo.gradient_accumulation_steps=3")...)
	dump.Require(t, dump.Options{FirstStep: true}, dumps)
	dump.Require(t, dump.Options{}, filepath.Join(dumps, "rollouts"))
	files, err := filepath.Glob(filepath.Join(dumps, "*.safetensors"))
	require.NoError(t, err)
	require.Len(t, files, 2*2*3, "steps, epochs, micro-batches")

	// Updates of a part of the rollout: what is whitened over all of it is judged there.
	dir, dumps = filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "dumps")
	trains(t, small(dir, "--verify", "--dump", dumps, "training.total_ppo_steps=1")...)
	dump.Require(t, dump.Options{}, filepath.Join(dumps, "rollouts"))

	// A sampler whose distribution is not the policy's: the end suppressed, temperature, top-k and top-p.
	for _, logprobs := range []string{"raw", "processed"} {
		trains(t, small(filepath.Join(t.TempDir(), "run"), "--verify", "training.total_ppo_steps=1", "dataset.prompt_format=Question: {question}", "generation.min_new_tokens=2",
			"generation.temperature=0.7", "generation.top_k=50", "generation.top_p=0.95", "generation.logprobs="+logprobs)...)
	}

	dir = filepath.Join(t.TempDir(), "run")
	trains(t, small(dir, "--verify", "training.total_ppo_steps=1")...)
	files, err = filepath.Glob(filepath.Join(dir, "dump", "*", "*.safetensors"))
	require.NoError(t, err)
	require.Empty(t, files, "what passes is not kept unless it is asked for")
}

func TestConfigurations(t *testing.T) {
	out := trains(t, "--list-configs")
	for _, name := range []string{"config ", "config_debug ", "sft "} {
		require.Contains(t, "\n"+out, "\n"+name)
	}
	run := func(args ...string) (string, int) {
		_, errs, code := program(t, append([]string{"ppo", "training.output_dir=" + filepath.Join(t.TempDir(), "run"), "training.total_ppo_steps=0"}, args...)...)
		return errs, code
	}
	errs, code := run("--config", "config", "dataset.name=additions")
	require.Zero(t, code, errs)
	for _, id := range []string{"C1: ", "C2: ", "the embedded tiny model takes its place"} {
		require.Contains(t, errs, id)
	}
	errs, code = run("--config", "config")
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "dataset.name: ")
	errs, code = run("--config", "config_debug")
	require.Zero(t, code)
	require.NotContains(t, errs, "C1")
	errs, code = run("training.device=cuda", "training.strict_device=true")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "C1")
	errs, code = run("--config", "absent.yaml")
	require.Equal(t, 2, code)
	require.Equal(t, "train: config not found: absent.yaml (train --list-configs)\n", errs)
	bad := filepath.Join(t.TempDir(), "rows.jsonl")
	write(t, bad, `{"question": "1+1", "answer": "#### 2"}`+"\n"+`{"answer": "#### 2"}`+"\n")
	errs, code = run("dataset.name=" + bad)
	require.Equal(t, 4, code)
	require.Contains(t, errs, `line 2: no field "question"`)
	errs, code = run("dataset.held_out=1000")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "dataset.held_out")
}

// A run's folder may have the name of a configuration, and a file of that name is given with its folder.
func TestConfigByName(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("grpo", 0o755))
	write(t, "config_debug", "# not this one\nnonsense: 1\n")
	for name, embedded := range map[string]bool{"grpo": true, "config_debug": true, "config_debug.yaml": true, "configs/config_debug.yaml": true, "./config_debug": false} {
		text, err := openConfig(name)
		require.NoError(t, err, name)
		require.Equal(t, embedded, !strings.Contains(string(text), "nonsense"), name)
	}
	_, err := openConfig("./grpo")
	require.Error(t, err)
}

func TestOverrideForms(t *testing.T) {
	for in, want := range map[string]string{
		"ppo --ppo.gamma=0.5 ppo.lam=1":      "ppo ppo.gamma=0.5 ppo.lam=1",
		"ppo --ppo.gamma 0.5 --verify":       "ppo ppo.gamma=0.5 --verify",
		"ppo --config --ppo.x --resume=auto": "ppo --config --ppo.x --resume=auto",
		"ppo --verfy":                        "ppo --verfy",
		"ppo -- --ppo.gamma=1":               "ppo -- --ppo.gamma=1",
		"sample --modle=x":                   "sample --modle=x",
	} {
		require.Equal(t, strings.Fields(want), withOverrides(newRoot(), strings.Fields(in)), in)
	}
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	tick := func() time.Time { clock = clock.Add(time.Second); return clock }
	show := progress(&out, true, tick)
	said := func(p train.Progress) string {
		out.Reset()
		show(p)
		return strings.TrimPrefix(out.String(), "\r\x1b[K")
	}
	require.Equal(t, "[------------------------------] 0/3", said(train.Progress{Steps: 3}))
	require.Equal(t, "[------------------------------] 0/3, rollout 25%, 12 tokens, 12.0 tokens/s, at most 3s", said(train.Progress{Steps: 3, Tokens: 12, Share: .25}))
	require.Equal(t, "[##########--------------------] 1/3, 4s left", said(train.Progress{Step: 1, Steps: 3}), "a step takes two seconds")
	require.Equal(t, "[##########--------------------] 1/3, 4s left, rollout 50%, 7 tokens, 7.0 tokens/s, at most 1s", said(train.Progress{Step: 1, Steps: 3, Tokens: 7, Share: .5}))
	require.Empty(t, said(train.Progress{Step: 3, Steps: 3}))
	// A run that goes on knows how long a step takes when it has made one.
	show = progress(&out, true, tick)
	require.Equal(t, "[####################----------] 2/3", said(train.Progress{Step: 2, Steps: 3}))
	// Twice within a fifth of a second nothing is drawn.
	show = progress(&out, true, func() time.Time { clock = clock.Add(150 * time.Millisecond); return clock })
	said(train.Progress{Steps: 3})
	require.Empty(t, said(train.Progress{Steps: 3, Tokens: 1, Share: .1}))
	require.NotEmpty(t, said(train.Progress{Steps: 3, Tokens: 2, Share: .2}))
	// Where it is no terminal, a line tells of a rollout that takes longer than half a minute, and of nothing else.
	show = progress(&out, false, tick)
	require.Empty(t, said(train.Progress{Steps: 3}))
	for i := range 29 {
		require.Empty(t, said(train.Progress{Steps: 3, Tokens: 2*i + 1, Share: .01}))
	}
	require.Equal(t, "step 1/3: rollout 20%, 60 tokens, 2.0 tokens/s, at most 2m0s\n", said(train.Progress{Steps: 3, Tokens: 60, Share: .2}))
	require.Empty(t, said(train.Progress{Steps: 3, Tokens: 62, Share: .2}))
	require.Empty(t, said(train.Progress{Step: 1, Steps: 3}))
}
