package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
)

// docs/bugs.md is what verify explain --bugs prints, and has every bug of the registry.
func TestBugPage(t *testing.T) {
	var printed bytes.Buffer
	require.NoError(t, printBugs(&printed))
	page, err := os.ReadFile("../../docs/bugs.md")
	require.NoError(t, err)
	require.True(t, bytes.Equal(page, printed.Bytes()), "go run ./cmd/verify explain --bugs > docs/bugs.md")
	require.Equal(t, len(bug.All()), strings.Count(string(page), "\n## "))
	for _, b := range bugs() {
		require.Contains(t, string(page), "\n## "+b.ID+"\n")
		require.NotEmpty(t, strings.Join(append(b.checks, b.options...), "")+b.Shows, "%s: how does a dump show it?", b.ID)
	}
	require.True(t, utf8.Valid(page))
	out, errs, code := verify(t, t.TempDir(), "explain", "--bugs")
	require.Zero(t, code, errs)
	require.Equal(t, string(page), out)
	_, errs, code = verify(t, t.TempDir(), "explain", "--bugs", "ADV-DDOF")
	require.Equal(t, 2, code, errs)
}
