package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command of train in the README and the pages has a name and flags that there are: what is pasted is understood. docs/documents.md is
// run whole, by TestDocuments.
func TestDocumentedTrainCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		fenced := false
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced && strings.HasPrefix(line, "```sh")
				continue
			}
			command, _, _ := strings.Cut(line, "#")
			command, _, _ = strings.Cut(command, "&&")
			args, ok := strings.CutPrefix(command, "train ")
			if !fenced || !ok || strings.ContainsAny(args, `"'|`) { // quoted prompts are those of train sample, whose flags the help has
				continue
			}
			found++
			root := newRoot()
			cmd, rest, err := root.Find(withOverrides(root, strings.Fields(args)))
			require.NoError(t, err, "%s: %s", page, line)
			require.NotEqual(t, root, cmd, "%s: %s: no such command", page, line)
			require.NoError(t, cmd.ParseFlags(rest), "%s: %s", page, line)
		}
	}
	require.Greater(t, found, 20)
}
