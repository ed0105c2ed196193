//go:build slow

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/rundir"
)

// rewards returns reward_mean and shield_drift of every step of a run.
func rewards(t *testing.T, dir string) (reward, drift []float64) {
	lines, err := rundir.ReadLog(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	for _, l := range lines {
		var m struct {
			Reward float64 `json:"reward_mean"`
			Drift  float64 `json:"shield_drift"`
		}
		require.NoError(t, json.Unmarshal(l.Text, &m))
		reward, drift = append(reward, m.Reward), append(drift, m.Drift)
	}
	return reward, drift
}

func average(x []float64) (mean float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	return mean
}

// The toy run: in every seed the reward of the last ten steps is above that of the same steps at lr 0, in less than two minutes of
// two cores; every checkpoint passes verify projection and verify checkpoint, the dumps pass verify dump. Without the projection,
// and with gradients projected before Adam, verify projection fails.
func TestShieldedToy(t *testing.T) {
	verify := filepath.Join(t.TempDir(), "verify")
	out, err := exec.Command("go", "build", "-o", verify, "../verify").CombinedOutput()
	require.NoError(t, err, "%s", out)
	judge := func(want int, args ...string) {
		t.Helper()
		cmd := exec.Command(verify, args...)
		out, _ := cmd.CombinedOutput()
		require.Equal(t, want, cmd.ProcessState.ExitCode(), "verify %v\n%s", args, out)
	}
	train := func(dir string, args ...string) time.Duration {
		t.Helper()
		cmd := exec.Command(binaryPath, append([]string{"shielded", "--config", "shielded_toy", "output_dir=" + dir}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	for _, seed := range []string{"42", "1", "2"}[:seeds] {
		run, still := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "still")
		used := train(run, "--seed", seed, "dump.every=10")
		require.Less(t, used, 4*time.Minute, "two minutes of two cores")
		train(still, "--seed", seed, "lr=0", "save_every=0")
		got, drift := rewards(t, run)
		base, none := rewards(t, still)
		require.Len(t, got, 30)
		require.Equal(t, base[0], got[0], "the first answers are drawn from the same model")
		t.Logf("seed %s: reward %.4f, at lr 0 %.4f, shield_drift %.2g, %v of CPU", seed, average(got[20:]), average(base[20:]), drift[29], used)
		require.Greater(t, average(got[20:]), average(base[20:])+.05)
		require.Equal(t, 0., none[29])
		for _, step := range []string{"step_10", "step_20", "final"} {
			judge(0, "projection", "--basis", filepath.Join(run, "basis.safetensors"), "--adapter", filepath.Join(run, step), "--init", filepath.Join(run, "lora_init"))
			judge(0, "checkpoint", filepath.Join(run, step), "--init", filepath.Join(run, "lora_init"), "--base", "../../internal/assets/tiny_gptj")
		}
		judge(0, "dump", filepath.Join(run, "dump"))
	}
	basis := filepath.Join(t.TempDir(), "basis.safetensors")
	for _, ablation := range []string{"--no-projection", "projection.mode=grad"} {
		run := filepath.Join(t.TempDir(), "run")
		train(run, ablation, "steps=10", "projection.basis="+basis)
		_, drift := rewards(t, run)
		t.Logf("%s: shield_drift %.2g after 10 steps", ablation, drift[9])
		judge(1, "projection", "--basis", basis, "--adapter", filepath.Join(run, "final"), "--init", filepath.Join(run, "lora_init"))
	}
}

// planted are faults of systems A and of the catalogue, planted in the source: id, file, what stands there, what is put there, and
// the tests that must fail.
var planted = []struct{ id, file, old, new, pkg, tests string }{
	{"A2: the projection forgets the components of the last column", "internal/train/shielded_shield.go", "for j := range s.K {\n\t\trow, to", "for j := range s.K - 1 {\n\t\trow, to", "internal/train", "TestShield"},
	{"A3: kl_beta is not multiplied", "internal/train/shielded.go", "KLBeta: r.KLBeta, Agg: agg}", "KLBeta: 1, Agg: agg}", "internal/train", "TestShieldedFormulas"},
	{"A5: the sign of the projection", "internal/train/shielded_shield.go", "to[l] -= float64(q * w)", "to[l] += float64(q * w)", "internal/train", "TestShield"},
	{"A5: max without the norm", "internal/train/shielded_shield.go", "top / max(1, math.Sqrt(norm))", "top", "internal/train", "TestShieldHandVectors"},
	{"A8: the state of the optimiser is lost", "internal/train/shielded_run.go", "append(files, r.opt.file(), r.st.file(), shield)", "append(files, r.st.file(), shield)", "internal/train", "TestShieldedCheckpoint|TestShieldedResume"},
	{"A10: the flow is printed after the gradient is gone", "internal/train/shielded_reward.go", "sum += math.Abs(g)", "sum += math.Abs(0 * g)", "internal/train", "TestShieldedFirstUpdate"},
	{"A: ddof 1", "internal/train/shielded.go", "Var: rl.VarOptions{Single", "Var: rl.VarOptions{DDof: 1, Single", "internal/train", "TestShieldedFormulas"},
	{"A: equal rewards are divided", "internal/train/shielded.go", "Remask: true, ConstantZero: true", "Remask: true", "internal/train", "TestShieldedEqualRewards"},
	{"A: no baseline", "internal/train/shielded.go", "a.adv = rl.Broadcast(nil, white,", "copy(white, a.scores)\n\ta.adv = rl.Broadcast(nil, white,", "internal/train", "TestShieldedFormulas|TestShieldedEqualRewards"},
	{"A: each micro-batch has its own denominator", "internal/train/shielded.go", "Denominator: rl.AggRank, ", "", "internal/train", "TestShieldedMicroBatches|TestShieldedFormulas"},
	{"A: the KL is against the policy of the rollout", "internal/train/shielded.go", "Ref: pick(a.ref,", "Ref: pick(a.old,", "internal/train", "TestShieldedFirstUpdate"},
	{"A: the clip is at twice its range", "internal/train/shielded.go", "Low: r.ClipEps, High: r.ClipEps}", "Low: 2 * r.ClipEps, High: 2 * r.ClipEps}", "internal/train", "TestShieldedFormulas"},
	{"A: gradients are not forgotten", "internal/train/shielded.go", "\t\tclear(p.Grad)\n\t\tif err := finite(r.st.Step, p.Name", "\t\tif err := finite(r.st.Step, p.Name", "internal/train", "TestShieldedForgets"},
	{"A: weights between the steps are not those of the file", "internal/train/shielded.go", "p.Data[j] = float64(float32(p.Data[j] + u))", "p.Data[j] += u", "internal/train", "TestShieldedResume"},
	{"H1: the old log-probabilities are zeros", "internal/train/shielded.go", "append(a.old, r.env.Policy.Score(part).LogProbs...)", "append(a.old, make([]float64, len(part.IDs)/(part.Prompt+part.Response)*part.Response)...)", "internal/train", "TestShieldedFirstUpdate"},
	{"H2: the projection does nothing", "internal/train/shielded_shield.go", "\t\tb.scatter(v, x)\n", "", "internal/train", "TestShieldedDrift"},
	{"H3a: the gradient is projected where the update should be", "internal/train/shielded.go", "if err := project(update)", "if err := project(grads)", "internal/train", "TestShieldedDrift"},
	{"H3b: the drift is of the weights, not of their change", "internal/train/shielded.go", "w-r.init[i][j]", "w-0*r.init[i][j]", "internal/train", "TestShieldedDrift"},
	{"H4a: only the first target is looked at", "cmd/train/shielded.go", "for _, t := range c.LoRA.Targets {", "for _, t := range c.LoRA.Targets[:1] {", "cmd/train", "TestShieldedRefuses"},
	{"H4b: a basis of the whole space passes", "internal/train/shielded_basis.go", "case b.K >= b.D:", "case b.K > b.D:", "internal/train", "TestReadBasisRefuses"},
	{"A.4: the tolerance is absolute", "internal/train/shielded_span.go", "s[k] > spanTolerance*s[0]", "s[k] > spanTolerance", "internal/train", "TestNewBasis"},
	{"A6: int8 spread over devices starts", "internal/train/shielded_config.go", "if c.GPUs > 1 {", "if c.GPUs > 100 {", "cmd/train", "TestShieldedRefuses"},
}

// Every planted fault makes its tests fail, in a build with that one edit.
func TestShieldedPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for i, p := range planted {
		t.Run(p.id, func(t *testing.T) {
			path := filepath.Join(root, p.file)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			edited := replaceOnce(t, string(text), p.old, p.new)
			dir := t.TempDir()
			write(t, filepath.Join(dir, "edited.go"), edited)
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(dir, "edited.go")}})
			require.NoError(t, err)
			write(t, filepath.Join(dir, "overlay.json"), string(overlay))
			vet := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "./"+p.pkg)
			vet.Dir = root
			out, err := vet.CombinedOutput()
			require.NoError(t, err, "the edit compiles\n%s", out)
			args := []string{"test", "-overlay", filepath.Join(dir, "overlay.json"), "./" + p.pkg, "-run", "^(" + p.tests + ")"}
			if p.pkg == "internal/train" {
				args = append(args, "-rapid.nofailfile") // a failure that is wanted leaves nothing in the tree
			}
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "GOFLAGS=-overlay="+filepath.Join(dir, "overlay.json"))
			out, err = cmd.CombinedOutput()
			require.Error(t, err, "fault %d is not caught by %s\n%s", i, p.tests, out)
			require.Contains(t, string(out), "--- FAIL", fmt.Sprint(p.id))
		})
	}
}

// replaceOnce replaces what must be there exactly once.
func replaceOnce(t testing.TB, text, old, new string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, old), "%q", old)
	return strings.Replace(text, old, new, 1)
}
