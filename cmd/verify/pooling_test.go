package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A module of sentence-transformers that has no weights is no model whose weights were lost; a dense one is.
func TestModuleWithoutWeights(t *testing.T) {
	dir := t.TempDir()
	for name, code := range map[string]int{"1_Pooling": 6, "2_Normalize": 6, "2_Dense": 1} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "config.json"), []byte(`{"word_embedding_dimension": 384, "pooling_mode_mean_tokens": true}`), 0o644))
		out, errs, got := verify(t, dir, "checkpoint", name)
		require.Equal(t, code, got, "%s: %s%s", name, out, errs)
		if code == 6 {
			require.Contains(t, out, "name the folder above it")
		} else {
			require.Contains(t, out, "CONFIG-ONLY")
		}
	}
}
