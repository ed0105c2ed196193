//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// What lies in a run's folder in place of its own files and folders is refused within the run's first steps, never followed and never
// waited on, and what a link names stays as it is.
func TestRunFolderOfLinks(t *testing.T) {
	ppo := func(dir string) []string {
		return []string{"ppo", "--config", "config_debug", "training.output_dir=" + dir, "training.total_ppo_steps=1", "--resume", "auto", "dump.every=1"}
	}
	arc := func(dir string) []string {
		return []string{"arc", "output_dir=" + dir, "epochs=1", "max_batches=1", "tasks=2"}
	}
	for i, c := range []struct {
		name string
		args func(dir string) []string
	}{
		{"LOCK", ppo}, {"env.json", ppo}, {"effective_config.yaml", ppo}, {"effective_config.json", ppo}, {"metrics.jsonl", ppo}, {"samples.jsonl", ppo},
		{"dump", ppo}, {"dump/step_000001_mb_0.safetensors", ppo}, {"lora_init", smallShielded}, {"lora_init/adapter_config.json", smallShielded},
		{"lora_init/adapter_model.safetensors", smallShielded}, {"basis.safetensors", smallShielded}, {"best", arc}, {"best_metadata.json", arc},
	} {
		for k, at := range []struct {
			place string
			put   func(path, outside string) error
		}{
			{"link", func(path, outside string) error { return os.Symlink(outside, path) }},
			{"dead link", func(path, outside string) error { return os.Symlink(outside+".none", path) }},
			{"hard link", func(path, outside string) error {
				if info, err := os.Stat(outside); err == nil && info.IsDir() {
					return os.Symlink(outside, path) // a folder has none
				}
				return os.Link(outside, path)
			}},
			{"FIFO", func(path, _ string) error { return syscall.Mkfifo(path, 0o644) }},
		} {
			if (i+k)%cases.Every != 0 {
				continue
			}
			dir := t.TempDir()
			outside := filepath.Join(dir, "outside")
			if filepath.Ext(c.name) == "" && c.name != "LOCK" {
				require.NoError(t, os.Mkdir(outside, 0o755))
				require.NoError(t, os.Mkdir(filepath.Join(outside, "step_7.tmp-1"), 0o755)) // what a sweep there would take away
			} else {
				require.NoError(t, os.WriteFile(outside, []byte("keep"), 0o644))
			}
			run := filepath.Join(dir, "run")
			path := filepath.Join(run, c.name)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, at.put(path, outside))
			_, errs, code := program(t, c.args(run)...)
			require.Equal(t, 4, code, "%s, %s: %s", c.name, at.place, errs)
			require.Contains(t, errs, c.name)
			if info, err := os.Stat(outside); err == nil && info.IsDir() {
				list, err := os.ReadDir(outside)
				require.NoError(t, err)
				require.Len(t, list, 1, "%s, %s", c.name, at.place)
			} else {
				text, err := os.ReadFile(outside)
				require.NoError(t, err)
				require.Equal(t, "keep", string(text), "%s, %s", c.name, at.place)
			}
			require.NoFileExists(t, outside+".none")
		}
	}
}

// The configuration of a run that is resumed is read through the same door.
func TestResumeOfLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	trains(t, small(dir)...)
	path := filepath.Join(dir, "effective_config.json")
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o644))
	_, errs, code := program(t, append(small(dir), "ppo.lam=0.5")...)
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "effective_config.json does not say which")

	// A checkpoint that is a link to one elsewhere is passed over.
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Rename(filepath.Join(dir, "final"), filepath.Join(filepath.Dir(dir), "final")))
	require.NoError(t, os.Symlink("../final", filepath.Join(dir, "final")))
	_, errs, code = program(t, small(dir)...)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "final is not whole and is passed over")
}
