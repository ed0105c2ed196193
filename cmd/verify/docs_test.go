package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command of verify in the README and the pages has a name and flags that there are: what is pasted is understood.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		inside := false
		for _, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "```") {
				inside = !inside && strings.HasPrefix(line, "```sh")
				continue
			}
			args, ok := strings.CutPrefix(strings.TrimPrefix(line, "go run ./cmd/"), "verify ")
			if !inside || !ok {
				continue
			}
			found++
			root := newRoot()
			cmd, rest, err := root.Find(words(args))
			require.NoError(t, err, "%s: %s", page, line)
			require.NotEqual(t, root, cmd, "%s: %s: no such command", page, line)
			require.NoError(t, cmd.ParseFlags(rest), "%s: %s", page, line)
		}
	}
	require.Greater(t, found, 20)
}

// words splits a line of a shell up to the end of its first command; quotes hold words together.
func words(line string) (list []string) {
	word, quote, any := "", rune(0), false
	for _, c := range line + " " {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word += string(c)
		case c == '\'' || c == '"':
			quote, any = c, true
		case c == ' ':
			if word != "" || any {
				list = append(list, word)
			}
			word, any = "", false
		case strings.ContainsRune("|>;&#", c) && word == "":
			return list
		default:
			word += string(c)
		}
	}
	return list
}
