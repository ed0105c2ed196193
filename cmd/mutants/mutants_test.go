package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const source = `package p

func f(a, b int, s string, ok bool) (string, float64) {
	if ok {
		a += b
	}
	for a < 3 && !ok {
		a++
	}
	return s + "x", 2.5
}
`

func TestSites(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, 0)
	require.NoError(t, err)
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.Default()}
	_, err = conf.Check("p", fset, []*ast.File{f}, info)
	require.NoError(t, err)
	got := map[string]string{}
	for _, s := range sitesOf(fset, f, "p.go", info) {
		after := string(s.apply([]byte(source)))
		_, err := parser.ParseFile(token.NewFileSet(), "p.go", after, 0)
		require.NoError(t, err, "%+v", s)
		require.NotEqual(t, source, after)
		m := &module{source: map[string][]byte{"p.go": []byte(source)}}
		_, line := m.lines(s)
		got[line] += s.Operator
	}
	require.Equal(t, map[string]string{
		"if !ok {": "negation", "a -= b": "arithmetic", "": "dropped statementdropped statement", "a--": "arithmetic",
		"for a <= 3 && !ok {": "boundary", "for a >= 3 && !ok {": "comparison", "for a < 4 && !ok {": "constant", "for a < 2 && !ok {": "constant",
		"for a < 3 || !ok {": "logic", "for a < 3 && ok {": "negation", `return s + "x", (1.1*2.5)`: "constant",
	}, got, "a sum of strings is no arithmetic")
}

// A module whose tests see one half of a function: mutants there die, those of the other half live, and the sample is the same twice.
func TestTry(t *testing.T) {
	if testing.Short() {
		t.Skip("links a dozen test programs")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":        "module m\n\ngo 1.26\n",
		"p/p.go":        "package p\n\nfunc Seen(a int) int { return a * 3 }\n\nfunc Unseen(a int) int { return a - 5 }\n\nfunc Used(a int) int { return a << 2 }\n",
		"p/p_test.go":   "package p\n\nimport \"testing\"\n\nfunc TestSeen(t *testing.T) {\n\tif Seen(7) != 21 {\n\t\tt.Fatal()\n\t}\n}\n",
		"q/q_test.go":   "package q\n\nimport (\n\t\"testing\"\n\n\t\"m/p\"\n)\n\nfunc TestUsed(t *testing.T) {\n\tif p.Used(3) != 12 {\n\t\tt.Fatal()\n\t}\n}\n",
		"bad/b_test.go": "package bad\n\nimport (\n\t\"testing\"\n\n\t_ \"m/p\"\n)\n\nfunc TestAlways(t *testing.T) { t.Fatal() }\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	t.Chdir(dir)
	m, err := load([]string{"./p"})
	require.NoError(t, err)
	sample := m.sample(100, rand.New(rand.NewPCG(1, 0)))
	require.Equal(t, sample, m.sample(100, rand.New(rand.NewPCG(1, 0))))
	require.Len(t, sample, m.count(), "all of them compile")
	b := &bench{module: m, limit: time.Minute, usual: map[string]func() (float64, error){}}
	tried := map[int]bool{}
	for _, s := range sample {
		if tried[s.Line] {
			continue
		}
		tried[s.Line] = true
		result, err := b.try(s)
		require.NoError(t, err)
		want := map[int]string{3: "killed m/p TestSeen", 5: "survived ", 7: "killed m/q TestUsed"}[s.Line]
		require.Equal(t, want, result.Outcome+" "+result.By, "%+v", s)
	}
	require.Len(t, tried, 3)
}
