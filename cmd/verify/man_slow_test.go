//go:build slow

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// make man writes a page of every command that help shows, with its flags and its tables as they stand; programs without the tag have no
// command man.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	for _, program := range []string{"verify", "train"} {
		out, err := exec.Command("go", "run", "-tags", "man", "../"+program, "man", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() && cmd.HasParent() {
			return
		}
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
		require.NoError(t, err)
		require.Contains(t, string(page), ".SH NAME")
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot())
	page, err := os.ReadFile(filepath.Join(dir, "train-export.1"))
	require.NoError(t, err)
	require.Contains(t, string(page), "GPTNeoXForTokenClassification")
	_, _, code := verify(t, dir, "man", dir)
	require.Equal(t, 2, code)
}
