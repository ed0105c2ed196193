package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What lies in a run's folder in place of its own files is refused, and the file that a link names stays as it is.
func TestRunFolderOfLinks(t *testing.T) {
	for _, name := range []string{"env.json", "effective_config.yaml"} {
		dir := t.TempDir()
		outside := filepath.Join(dir, "outside")
		require.NoError(t, os.WriteFile(outside, []byte("keep"), 0o666))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "run"), 0o777))
		require.NoError(t, os.Symlink(outside, filepath.Join(dir, "run", name)))
		_, errs, code := program(t, "ppo", "--config", "config_debug", "training.output_dir="+filepath.Join(dir, "run"), "training.total_ppo_steps=1", "--resume", "auto")
		require.NotZero(t, code, name)
		require.Contains(t, errs, name)
		text, err := os.ReadFile(outside)
		require.NoError(t, err)
		require.Equal(t, "keep", string(text), name)
	}
}
