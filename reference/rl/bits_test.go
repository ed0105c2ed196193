package rl

import (
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// bitsOf is FNV-1a over the bits of x, little-endian.
func bitsOf(x []float64) string {
	h := fnv.New64a()
	for _, v := range x {
		h.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)))
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// TestBits: every exported function has the same bits under GOAMD64=v1 and v3, with and without the tag purego, on one thread
// and on eight. The digest was printed by this test under GOAMD64=v1, Go 1.26; it guards against change, that the numbers are
// right is for the other tests.
//
// What math.Exp, Log and Expm1 give is not the same on every machine (math.Exp picks its instructions at run time). The
// digest is that of machines where they give what they gave where it was printed; elsewhere this half is skipped.
func TestBits(t *testing.T) {
	const want, wantMath = "8beb4044f8b9d26a", "f379850042f2db7a"
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	var names []string
	for name := range bitCases {
		names = append(names, name)
	}
	slices.Sort(names)
	b := newBitBatch()
	text := ""
	for _, name := range names {
		x := bitCases[name](b)
		require.NotEmpty(t, x, name)
		for _, v := range x {
			require.False(t, math.IsNaN(v), name)
		}
		text += name + " " + bitsOf(x) + "\n"
		var all [8][]float64
		var group sync.WaitGroup
		for i := range all {
			group.Go(func() { all[i] = bitCases[name](b) }) // all read the same batch
		}
		group.Wait()
		for _, y := range all {
			require.Equal(t, bitsOf(x), bitsOf(y), "%s on eight threads", name)
		}
	}
	require.Equal(t, bitsOf(join(newBitBatch().lp, newBitBatch().logits, newBitBatch().rows)), bitsOf(join(b.lp, b.logits, b.rows)), "inputs are not written")

	var probe []float64
	for _, x := range bitFill(11, 1000) {
		probe = append(probe, math.Exp(x), math.Expm1(x), math.Log(math.Abs(x)+.1), math.Exp(9*x))
	}
	if got := bitsOf(probe); got != wantMath {
		t.Skipf("math.Exp, Expm1 or Log have other bits here: %s, not %s", got, wantMath)
	}
	h := fnv.New64a()
	h.Write([]byte(text))
	require.Equal(t, want, fmt.Sprintf("%016x", h.Sum64()), text)
}

// TestBitsCoversAll: no exported function is left out of bitCases but those that read and print option values.
func TestBitsCoversAll(t *testing.T) {
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || name == "words.go" || strings.HasPrefix(f.Name.Name, "Parse") || f.Name.Name == "String" || f.Name.Name == "Error" {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				name = fmt.Sprint(f.Recv.List[0].Type) + "." + name
			}
			require.Contains(t, bitCases, name)
		}
	}
}
