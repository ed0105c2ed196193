package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/assets"
)

// The folder of a run is its model in final; a folder without one is refused as before.
func TestSampleRunFolder(t *testing.T) {
	run := t.TempDir()
	final := filepath.Join(run, "final")
	files, err := fs.Sub(assets.Tiny, "tiny")
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(final, files))
	args := func(model string) []string {
		return []string{"sample", "--model", model, "--prompt", "Question: 1+2\nAnswer:", "--tokens", "6"}
	}
	want, errs, code := program(t, args(final)...)
	require.Zero(t, code, errs)
	require.NotEmpty(t, want)
	got, errs, code := program(t, args(run)...)
	require.Zero(t, code, errs)
	require.Equal(t, want, got)
	require.NoError(t, os.Remove(filepath.Join(final, "config.json")))
	_, _, code = program(t, args(run)...)
	require.NotZero(t, code)
}
