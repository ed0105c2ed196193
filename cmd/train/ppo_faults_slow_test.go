//go:build slow && unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// buildWith builds a command with an edited file in place of one of the repository.
func buildWith(t *testing.T, p plant, pkg string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	path := filepath.Join(root, filepath.FromSlash(p.file))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), p.old), "%s has %q once", p.file, p.old)
	dir := t.TempDir()
	edited := filepath.Join(dir, "edited.go")
	write(t, edited, strings.Replace(string(text), p.old, p.new, 1))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: edited}})
	require.NoError(t, err)
	write(t, filepath.Join(dir, "overlay.json"), string(overlay))
	out := filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", out, pkg)
	log, err := build.CombinedOutput()
	require.NoError(t, err, "%s", log)
	return out
}

func runs(t *testing.T, program string, args ...string) (string, int) {
	cmd := exec.Command(program, args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// Every row of the document's defects that a dump shows, planted in the trainer, stops a run with --verify; the same arguments
// without the bug pass.
func TestPlantedWhileTraining(t *testing.T) {
	healthy := map[string]bool{}
	for i, p := range caughtWhileTraining {
		if !cases.Due(i) {
			continue
		}
		t.Run(p.fault+" "+p.name, func(t *testing.T) {
			args := func() []string {
				return small(filepath.Join(t.TempDir(), "run"), append([]string{"--verify", "training.total_ppo_steps=2", "ppo.warmup_steps=0", "dataset.max_gen_length=10"}, p.more...)...)
			}
			if key := strings.Join(p.more, " "); !healthy[key] {
				healthy[key] = true
				out, code := runs(t, binaryPath, args()...)
				require.Zero(t, code, "without the bug: %s", out)
			}
			out, code := runs(t, buildWith(t, p, "."), args()...)
			require.Equal(t, 1, code, out)
			require.Contains(t, out, "fails its own checks")
			require.Regexp(t, p.says, out)
			t.Log(out[strings.Index(out, "fails its own"):])
		})
	}
}

func TestPlantedInCheckpoints(t *testing.T) {
	verify := filepath.Join(t.TempDir(), "verify")
	log, err := exec.Command("go", "build", "-o", verify, "../verify").CombinedOutput()
	require.NoError(t, err, "%s", log)
	dir := filepath.Join(t.TempDir(), "run")
	trains(t, small(dir, "training.total_ppo_steps=2")...)
	out, code := runs(t, verify, "checkpoint", dir)
	require.Zero(t, code, "without a bug: %s", out)
	for i, p := range caughtInCheckpoints {
		if !cases.Due(i) {
			continue
		}
		t.Run(p.fault+" "+p.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			out, code := runs(t, buildWith(t, p, "."), small(dir, "training.total_ppo_steps=2")...)
			require.Zero(t, code, out)
			out, code = runs(t, verify, "checkpoint", dir)
			require.Contains(t, []int{1, 4}, code, out)
			require.Regexp(t, `FAIL +(`+p.says+`)`, out)
		})
	}
}
