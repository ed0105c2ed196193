package internal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every hole of docs/locks.md has a test, and the test is there.
func TestLocks(t *testing.T) {
	text, err := os.ReadFile("../docs/locks.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| (\d+) \|.*\|([^|]*)\|$`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, 16)
	for i, row := range rows {
		tests := regexp.MustCompile("`([a-z0-9/]+)` `(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row[2], -1)
		require.NotEmpty(t, tests, "hole %d has no lock", i+1)
		require.Equal(t, strings.Count(row[2], "`Test"), len(tests), "a test without its package: %s", row[2])
		for _, lock := range tests {
			files, err := filepath.Glob(filepath.Join("..", lock[1], "*_test.go"))
			require.NoError(t, err)
			found := false
			for _, file := range files {
				source, err := os.ReadFile(file)
				require.NoError(t, err)
				_, body, has := strings.Cut(string(source), "\nfunc "+lock[2]+"(t *testing.T) {")
				body, _, _ = strings.Cut(body, "\n}\n")
				for before, _, skips := strings.Cut(body, "t.Skip"); skips; skips = false {
					require.Contains(t, before, `os.Getenv("CI")`, "hole %d: %s can be skipped in CI", i+1, lock[2])
				}
				found = found || has
			}
			require.True(t, found, "hole %d: %s has no %s", i+1, lock[1], lock[2])
		}
	}
	ci, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^export CI=`, string(ci), "a lock that cannot be tried fails where CI is set")
}
