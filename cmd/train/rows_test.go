package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/dump"
	"plumbline/verify/projection"
	"plumbline/verify/vram"
)

// shown demands that each of so many rows of a source document is shown by something that is there. A name is a test, pkg/TestName,
// under any build tag; "check ID", a check of verify; or "log ID", a fault whose only sign is text in a printed log, which is the
// doctor of logs' to find.
func shown(t *testing.T, rows map[string][]string, count int) {
	t.Helper()
	require.Len(t, rows, count)
	checks := map[string]bool{}
	for _, infos := range [][]check.Info{dump.Infos(), checkpoint.Suite.Infos(), projection.Suite.Infos(), vram.Suite.Infos()} {
		for _, info := range infos {
			checks[info.Name] = true
		}
	}
	tests := map[string]map[string]bool{}
	for row, list := range rows {
		require.NotEmpty(t, list, row)
		for _, name := range list {
			if id, is := strings.CutPrefix(name, "check "); is {
				require.True(t, checks[id], "%s: there is no check %s", row, id)
				continue
			}
			if strings.HasPrefix(name, "log ") {
				continue
			}
			dir, test := filepath.Split(name)
			if tests[dir] == nil {
				tests[dir] = testsOf(t, filepath.Join("../..", filepath.FromSlash(dir)))
			}
			require.True(t, tests[dir][test], "%s: there is no %s", row, name)
		}
	}
}

// testsOf returns the names of the test functions of a package, under any build tag.
func testsOf(t *testing.T, dir string) map[string]bool {
	found := map[string]bool{}
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
	}
	return found
}
