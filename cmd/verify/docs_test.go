package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The finding that the README shows is the one that a reader gets by the README's commands.
func TestFindingOfReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	dir := t.TempDir()
	_, _, code := verify(t, dir, "demo", "--keep", "demo", "--plot", "")
	require.Zero(t, code)
	out, _, code := verify(t, filepath.Join(dir, "demo"), "dump", "dumps/pad_in_denominator")
	require.Equal(t, 1, code)
	require.True(t, strings.Contains(string(readme), "```\n"+out+"```\n"), "README.md shows another finding than this, paste it:\n%s", out)
}
