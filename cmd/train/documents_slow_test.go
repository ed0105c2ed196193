//go:build slow

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command of docs/documents.md, as it stands, in a folder with links to golden and verify of this checkout: its exit code, its
// words, and no warning that its row does not name.
func TestDocuments(t *testing.T) {
	rows, first := readDocuments(t)
	dir, programs := t.TempDir(), t.TempDir()
	for _, name := range []string{"golden", "verify"} {
		path, err := filepath.Abs("../../" + name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	out, err := exec.Command("go", "build", "-o", programs, "plumbline/cmd/verify").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Symlink(binaryPath, filepath.Join(programs, "train")))
	run := func(command string) (string, int) {
		cmd := exec.Command("bash", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=", "COLUMNS=200", "TERM=dumb")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, command := range first {
		out, code := run(command)
		require.Zero(t, code, "%s\n%s", command, out)
		require.NotContains(t, out, "WARNING", command)
	}
	type ended struct {
		out  string
		code int
	}
	done := map[string]ended{}
	for _, row := range rows {
		if row.command == "" {
			continue
		}
		got, is := done[row.command]
		if !is {
			got.out, got.code = run(row.command)
			done[row.command] = got
		}
		at := row.section + " " + row.number + ": " + row.command
		printed := strings.Join(strings.Fields(got.out), " ")
		if got.code != row.exit {
			t.Errorf("%s\nexit %d, want %d\n%s", at, got.code, row.exit, got.out)
			continue
		}
		warned := false
		for _, word := range row.words {
			if !strings.Contains(printed, word) {
				t.Errorf("%s\nnot printed: %s\n%s", at, word, got.out)
			}
			warned = warned || strings.Contains(got.out, "WARNING") && strings.Contains(got.out[strings.Index(got.out, "WARNING"):], word)
		}
		if strings.Contains(got.out, "train: WARNING") && !warned {
			t.Errorf("%s\na warning that the row does not name\n%s", at, got.out)
		}
	}
}
