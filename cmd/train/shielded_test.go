package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
	"plumbline/verify/projection"
)

// quick makes the toy run one step of four short answers.
var quick = []string{"shielded", "steps=1", "ppo_batch=4", "sim_batch=4", "micro_batch_size=4", "max_new_tokens=3"}

func shieldedIn(t testing.TB, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return program(t, append(append(append([]string{}, quick...), "output_dir="+filepath.Join(dir, "run")), args...)...)
}

func basisFile(t testing.TB, shape ...int) string {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = float64(i%7) - 3
	}
	path := filepath.Join(t.TempDir(), "Q.safetensors")
	require.NoError(t, safetensors.WriteFile(path, nil, []safetensors.Tensor{{Name: "Q", DType: format.F32, Shape: shape, Data: data}}))
	return path
}

// Bad input of systems A: what it says, and the exit code.
func TestShieldedRefuses(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
	empty := filepath.Join(t.TempDir(), "none.txt")
	write(t, empty, "\n \n")
	truncated := filepath.Join(t.TempDir(), "cut.safetensors")
	write(t, truncated, "\xff\x00\x00\x00\x00\x00\x00\x00{")
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"basis.from= projection.basis=absent.safetensors", "no basis: stat absent.safetensors: no such file or directory", 2},
		{"basis.from= projection.basis=absent.safetensors", "train shielded basis.from=embeddings projection.basis=absent.safetensors", 2},
		{"basis.from= projection.basis=" + basisFile(t, 201, 12), "the basis has d = 201 rows; the flat vector has P = 4096 numbers, the outputs of the targets are [64] wide", 1},
		{"basis.from= projection.basis=" + basisFile(t, 64, 64), "spans the whole space (H4b)", 1},
		{"basis.from= projection.basis=" + truncated, truncated, 4},
		{"basis.from=" + basisFile(t, 5, 201) + " projection.basis=" + filepath.Join(t.TempDir(), "Q.safetensors"), "a side basis of d = 201 rows", 1},
		{"basis.from=foo", `basis.from "foo": want embeddings, gradients, or a file of vectors`, 2},
		{"projection.basis=Q.npy", "basis.from=embeddings makes a .safetensors file", 2},
		{"lora.targets=q_proj,o_proj", "no module of tiny-gptj is called o_proj (H4a", 2},
		{"lora.targets=q_proj,o_proj", "did you mean out_proj?", 2},
		{"lora.targets=q_prj", "did you mean q_proj?", 2},
		{"lora.targets=q_proj,fc_in", "fc_in is 128 wide and the side basis has d = 64", 1},
		{"device_map=auto", "device_map auto with int8 on 2 devices (A6): generation hangs", 2},
		{"device_map=auto", "CUDA_VISIBLE_DEVICES=0 with device_map {\"\": 0}, or split the model with accelerate", 2},
		{"kl_beta=-0.1", "want a number from 0", 2},
		{"clip_eps=0", "clip_eps", 2},
		{"lora.r=0", "lora.r 0: an adapter has at least rank 1", 2},
		{"lora.dropout=0.05", "lora.dropout 0.05: dropout is not there", 2},
		{"prompts=" + empty, "holds no prompts", 2},
		{"prompts=/does/not/exist", "/does/not/exist", 2},
		{"model.name=gpt-j-6b", "only its sizes are known here", 2},
		{"model.name=gpt2 lora.targets=q_proj", "did you mean", 2},
		{"klbeta=1", "kl_beta", 2},
		{"dataset=boks", "books", 2},
		{"projection.kind=flat", "basis.from embeddings makes a side basis", 2},
		{"memory_limit=18", "memory_limit", 2},
		{"lr=1e300 max_grad_norm=0 steps=2", "a smaller lr", 1},
	} {
		_, errs, code := shieldedIn(t, t.TempDir(), strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s\n%s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
	}
}

// A basis that the user has made is not written over by one that the run makes; the run's own is.
func TestShieldedKeepsBasis(t *testing.T) {
	dir := t.TempDir()
	theirs := basisFile(t, 64, 3)
	before, err := os.ReadFile(theirs)
	require.NoError(t, err)
	_, errs, code := shieldedIn(t, dir, "projection.basis="+theirs)
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "is there and is another basis than basis.from=embeddings makes")
	after, err := os.ReadFile(theirs)
	require.NoError(t, err)
	require.Equal(t, before, after)

	ours := filepath.Join(t.TempDir(), "Q.safetensors")
	for range 2 {
		out, errs, code := shieldedIn(t, dir, "verify_only=true", "projection.basis="+ours)
		require.Zero(t, code, errs)
		require.Contains(t, out, "is in "+ours)
	}
}

// What is legal and may not be meant.
func TestShieldedWarns(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	for args, says := range map[string]string{
		"kl_beta=0.01":         "kl_beta 0.01 is below 0.05 (A3)",
		"kl_beta=0.5":          "kl_beta 0.5 is above 0.1 (A3, a note)",
		"--no-projection":      "projection.mode off: nothing is shielded",
		"projection.mode=grad": "projection.mode grad with adam (H3a)",
		"device_map=auto":      "device_map auto with int8 (A6)",
		"basis.from= projection.basis=" + basisFile(t, 64, 3): "the basis is not orthonormal (A5)",
		"basis.rank=64":     "basis.rank 64: the basis has 16 columns",
		"memory_limit=10MB": "is above 0.95 of memory_limit 10MB",
	} {
		_, errs, code := shieldedIn(t, t.TempDir(), append(strings.Fields(args), "verify_only=true")...)
		require.Zero(t, code, "%s\n%s", args, errs)
		require.Contains(t, errs, says, args)
	}
	out, errs, code := shieldedIn(t, t.TempDir(), "--verify-only")
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	require.Contains(t, out, "verify_only: configuration, basis, targets and memory are in order")
}

// The flags of the source's scripts set the keys.
func TestShieldedFlags(t *testing.T) {
	dir := t.TempDir()
	out, errs, code := shieldedIn(t, dir, "--dataset", "ml", "--seed", "7", "--lr", "0.001", "--kl_beta", "0.06", "--no-wandb", "--int8=false", "--cfg", "shielded_toy", "--verify-only")
	require.Zero(t, code, errs)
	require.NotContains(t, out, "int8:")
	text, err := os.ReadFile(filepath.Join(dir, "run", "effective_config.json"))
	require.NoError(t, err)
	got := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &got))
	for key, want := range map[string]any{"seed": 7., "lr": .001, "kl_beta": .06, "no_wandb": true, "int8": false, "model.name": "tiny-gptj"} {
		require.Equal(t, want, got[key], key)
	}
}

// The shipped configurations: the numbers of systems A.2 and A.6, and the memory plan before anything is loaded.
func TestShieldedConfigs(t *testing.T) {
	run := func(config string, args ...string) (string, string, int) {
		return program(t, append([]string{"shielded", "--config", config, "output_dir=" + filepath.Join(t.TempDir(), "run")}, args...)...)
	}
	out, errs, code := run("shielded")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "model.name gpt-j-6b: only its sizes are known here")
	require.Regexp(t, regexp.MustCompile(`memory plan: base 6\.47 GB \(6\.0[23] GiB\), rollout 15\.\d\d GB .*, update 9\.\d\d GB`), out)
	require.NotContains(t, errs, "memory_limit", "the defaults fit the 18 GB that the document asks for")
	out, errs, _ = run("shielded", "gradient_checkpointing=false")
	require.Regexp(t, regexp.MustCompile(`update 21\.1\d GB`), out) // A.6: 19.5 at B = 4, T = 424; the adapters of k and out keep 0.84 GB each of their inputs
	require.Contains(t, errs, "is above 0.95 of memory_limit 18GB: max_new_tokens=20, gradient_checkpointing=true, a smaller micro_batch_size")
	require.NotContains(t, errs, "device_map", "int8 and device_map auto do not go together")
	_, errs, _ = run("shielded", "int8=false", "model.dtype=float16")
	require.Contains(t, errs, `device_map="auto" over several devices`)
	out, _, _ = run("shielded_26mb", "--verify-only")
	require.Contains(t, out, "config lora.r=4")
	require.Contains(t, out, "config projection.skip=[fc_in]")
}

// A run of one step: its files, and that its basis is the one it says.
func TestShieldedRun(t *testing.T) {
	dir := t.TempDir()
	out, errs, code := shieldedIn(t, dir, "dump.every=1")
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	for _, says := range []string{"memory plan: base", "int8: 12 layers are quantised row by row", "basis: (64, 16) side from embeddings is in", "shield: side basis (64, 16), projection of the update, 2 passes",
		"Gradient flow: min=0.000000, max=", "step 1/1 loss ", "orthonormal to", "shield_drift"} {
		require.Contains(t, out, says)
	}
	f, err := safetensors.Open(filepath.Join(dir, "run", "basis.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, map[string]string{"kind": "side", "from": "embeddings"}, f.Metadata)
	a, ok := f.Tensor("Q")
	require.True(t, ok)
	require.Equal(t, []int{64, 16}, a.Shape)
	for _, name := range []string{"lora_init/adapter_model.safetensors", "lora_init/meta.json", "final/adapter_model.safetensors", "dump/step_000001_mb_0.safetensors", "metrics.jsonl", "samples.jsonl", "effective_config.yaml"} {
		_, err := os.Stat(filepath.Join(dir, "run", name))
		require.NoError(t, err, name)
	}
	// every update, judged while training as verify dump does
	out, errs, code = shieldedIn(t, t.TempDir(), "--verify", "steps=2", "inner_epochs=2", "micro_batch_size=3", "reward=shaped")
	require.Zero(t, code, "%s%s", out, errs)
	// a flat basis of the gradients of the prompts, with the order of its tensors
	flat := filepath.Join(dir, "flat.safetensors")
	out, errs, code = shieldedIn(t, t.TempDir(), "basis.from=gradients", "projection.kind=flat", "basis.rank=9", "projection.basis="+flat)
	require.Zero(t, code, errs)
	require.Contains(t, out, "basis: (4096, 9) flat from gradients")
	g, err := safetensors.Open(flat)
	require.NoError(t, err)
	defer g.Close()
	require.True(t, strings.HasPrefix(g.Metadata["order"], `[["base_model.model.transformer.h.0.attn.k_proj.lora_A.weight",256],`), g.Metadata["order"])
	q, ok := g.Tensor("Q")
	require.True(t, ok)
	x, err := q.Float64s()
	require.NoError(t, err)
	for _, v := range x {
		require.False(t, math.IsNaN(v))
	}
	// and a run by that file
	_, errs, code = shieldedIn(t, t.TempDir(), "basis.from=", "projection.basis="+flat)
	require.Zero(t, code, errs)
}

// What verify projection says of a run: the update projected passes, the gradient projected before Adam and nothing projected fail.
func TestShieldedIsProjected(t *testing.T) {
	for arg, want := range map[string]int{"projection.mode=update": check.ExitPass, "projection.mode=grad": check.ExitFail, "--no-projection": check.ExitFail} {
		dir := t.TempDir()
		out, errs, code := shieldedIn(t, dir, "steps=2", arg)
		require.Zero(t, code, "%s%s", out, errs)
		run := filepath.Join(dir, "run")
		l, err := projection.Load(context.Background(), projection.Paths{Basis: filepath.Join(run, "basis.safetensors"), Adapter: filepath.Join(run, "final"), Init: filepath.Join(run, "lora_init")})
		require.NoError(t, err)
		results, err := projection.Suite.Run(l.Input, check.Selection{})
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.Equal(t, want, check.Exit(results, check.Policy{}), "%s: %v", arg, results)
	}
}

// The dumps of a shielded run hold, beside them, the gradient and what was added to the parameters, as verify projection takes them: raw
// and projected are one pair by the formula, what was added stays out of the basis, and the raw gradient alone does not.
func TestShieldedGradients(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	trains(t, append(smallShielded(dir), "dump.every=1")...)
	list, err := filepath.Glob(filepath.Join(dir, "dump", "gradients", "*_raw.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, list)
	last := strings.TrimSuffix(list[len(list)-1], "_raw.safetensors")
	judge := func(p projection.Paths) []check.Result {
		p.Basis = filepath.Join(dir, "basis.safetensors")
		in, err := projection.Load(t.Context(), p)
		require.NoError(t, err)
		defer in.Close()
		in.Input.Tol = projection.DefaultTol
		results, err := projection.Suite.Run(in.Input, check.Selection{Ignore: []string{"gradient/flow"}}) // of few steps, in which lora_B is still 0
		require.NoError(t, err)
		return results
	}
	results := judge(projection.Paths{Grads: []string{last + "_raw.safetensors"}, Projected: []string{last + "_projected.safetensors"}, Updates: []string{last + "_update.safetensors"}})
	require.Equal(t, check.ExitPass, check.Exit(results, check.Policy{}), "%v", results)
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.Check] = seen[r.Check] || r.Verdict == check.Pass
	}
	for _, id := range []string{"projection/formula", "update/component", "gradient/component"} {
		require.True(t, seen[id], id)
	}
	require.Equal(t, check.ExitFail, check.Exit(judge(projection.Paths{Grads: []string{last + "_raw.safetensors"}}), check.Policy{}))
}
