package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
)

// cited are the codes in a text. What looks like one and is something else: a GPU, element types, versions of npy.
func cited(text string) (codes []string) {
	other := map[string]bool{"A100": true, "C64": true, "V2": true, "P1": true}
	for _, c := range code.FindAllString(text, -1) {
		if !other[c] {
			codes = append(codes, c)
		}
	}
	return codes
}

var (
	code = regexp.MustCompile(`\b[ABCDHPV][0-9]{1,3}[a-z]?\b`)
	// document finds sections of documents that the reader does not have.
	document = regexp.MustCompile(`\b(conventions|tolerances|systems|formats|faults\.md|source document) ?[A-D0-9]`)
)

// Every code in a text of the checks, the faults, the commands and the trainers resolves by verify explain, and no text cites a
// document that is not here.
func TestCodesResolve(t *testing.T) {
	n, bad := 0, []string(nil)
	for _, room := range []string{"../../verify", "../../cmd", "../../internal/train", "../../internal/bind"} {
		require.NoError(t, filepath.WalkDir(room, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(node ast.Node) bool {
				if l, ok := node.(*ast.BasicLit); ok && l.Kind == token.STRING {
					bad = append(bad, document.FindAllString(l.Value, -1)...)
					for _, c := range cited(l.Value) {
						if n++; bug.FindCode(c) == nil {
							bad = append(bad, path+" "+c)
						}
					}
				}
				return true
			})
			return nil
		}))
	}
	require.Empty(t, bad, "cited, and neither in verify/bug/codes.txt nor a document that a reader has")
	require.Greater(t, n, 150)
	for _, c := range bug.Codes()[:40] { // whatever explain finds by a code, it prints the code first
		var out bytes.Buffer
		require.NoError(t, explain(&out, c.ID))
		require.Contains(t, out.String(), c.Text)
	}
}

func TestCited(t *testing.T) {
	require.Equal(t, []string{"V19", "P012", "H13a"}, cited("V19; trl#2617 (P012), H13a on an A100"))
	require.Regexp(t, document, "conventions 2.9")
	require.Regexp(t, document, "source document B, Projection Not Working")
	require.NotRegexp(t, document, "shielded PPO, Projection Not Working")
	require.NotRegexp(t, document, "two formats")
}
