package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/documented"
)

// Every command of train in the README and the pages has a name and flags that there are: what is pasted is understood. docs/documents.md is
// run whole, by TestDocuments.
func TestDocumentedTrainCommands(t *testing.T) {
	found, err := documented.Commands("../..", "train")
	require.NoError(t, err)
	require.Greater(t, len(found), 20)
	for _, c := range found {
		root := newRoot()
		cmd, rest, err := root.Find(withOverrides(root, c.Args))
		require.NoError(t, err, "%s: %s", c.Page, c.Line)
		require.NotEqual(t, root, cmd, "%s: %s: no such command", c.Page, c.Line)
		require.NoError(t, cmd.ParseFlags(rest), "%s: %s", c.Page, c.Line)
	}
}
