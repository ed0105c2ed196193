package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/cli"
	"plumbline/verify/check"
)

// table runs the command with its arguments.
func table(t *testing.T, args ...string) (string, int) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.Execute()
	var exit cli.Exit
	switch {
	case err == nil:
		return out.String(), check.ExitPass
	case errors.As(err, &exit):
		return out.String(), exit.Code
	}
	return out.String() + err.Error(), exitCode(err)
}

// lines are n runs of a benchmark whose times are base and up to a hundredth more.
func lines(name string, n int, base float64) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "Benchmark%s-2 \t 100\t %g ns/op\t %g %%probe\t 12.5 Gop/s\n", name, base*(1+float64(i%5)/400), 50+float64(i%3))
	}
	return b.String()
}

func file(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "bench.txt")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestOneFile(t *testing.T) {
	path := file(t, "goos: linux\ncpu: X\n"+lines("Gemm/512x512/avx2", 3, 1000)+"PASS\nok  x 1s\n"+"BenchmarkSkipped\n--- SKIP: BenchmarkSkipped\n")
	out, code := table(t, path)
	require.Equal(t, check.ExitPass, code, out)
	require.Regexp(t, `Gemm/512x512/avx2 +3 +1000 \(1002\) +12.5 \(12.5\) +52 \(51\)`, out)
	out, code = table(t, path, "--format", "markdown")
	require.Equal(t, check.ExitPass, code)
	require.Equal(t, "| benchmark | runs | ns/op | Gop/s | %probe |\n|---|---|---|---|---|\n| Gemm/512x512/avx2 | 3 | 1000 (1002) | 12.5 (12.5) | 52 (51) |\n", out)
}

// A claim needs ten runs on both sides, and an interval that leaves out 1.
func TestTwoFiles(t *testing.T) {
	before := file(t, lines("A", 10, 1000)+lines("B", 10, 1000)+lines("C", 10, 1000)+lines("D", 4, 1000)+lines("Gone", 10, 1))
	after := file(t, lines("A", 10, 1000)+lines("B", 10, 800)+lines("C", 10, 1300)+lines("D", 4, 5000))
	out, code := table(t, before, after)
	require.Equal(t, check.ExitPass, code, out)
	require.Regexp(t, `A .* 1\.000 .* same`, out)
	require.Regexp(t, `B .* 0\.800 .* better .* 51 → 51 %`, out)
	require.Regexp(t, `C .* 1\.300 .* WORSE`, out)
	require.Regexp(t, `D .* 5\.000 .* too few runs`, out)
	require.NotContains(t, out, "Gone")
	_, code = table(t, before, after, "--limit", "1.5")
	require.Equal(t, check.ExitPass, code)
	_, code = table(t, before, after, "--limit", "1.2")
	require.Equal(t, check.ExitFail, code)
	again, _ := table(t, before, after)
	require.Equal(t, out, again, "the resampling has a fixed seed")
}

// Of rates more is better.
func TestRates(t *testing.T) {
	require.Equal(t, "WORSE", compare([]float64{9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, []float64{8, 8, 8, 8, 8, 8, 8, 8, 8, 8}).verdict("Gop/s"))
	require.Equal(t, "better", compare([]float64{9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, []float64{8, 8, 8, 8, 8, 8, 8, 8, 8, 8}).verdict("B/op"))
	require.Equal(t, 9.0, best("Gop/s", []float64{3, 9, 5}))
	require.Equal(t, 3.0, best("ns/op", []float64{3, 9, 5}))
	require.Equal(t, 4.0, median([]float64{3, 9, 5, 1}))
}

func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"no file":       {nil, check.ExitUsage},
		"three files":   {[]string{"a", "b", "c"}, check.ExitUsage},
		"missing":       {[]string{filepath.Join(t.TempDir(), "none")}, check.ExitUsage},
		"format":        {[]string{file(t, lines("A", 1, 1)), "--format", "xml"}, check.ExitUsage},
		"pattern":       {[]string{file(t, lines("A", 1, 1)), "--run", "("}, check.ExitUsage},
		"flag":          {[]string{"--nope"}, check.ExitUsage},
		"nothing":       {[]string{file(t, "PASS\n")}, check.ExitNothing},
		"none selected": {[]string{file(t, lines("A", 1, 1)), "--run", "B"}, check.ExitNothing},
		"none shared":   {[]string{file(t, lines("A", 1, 1)), file(t, lines("B", 1, 1))}, check.ExitNothing},
		"broken line":   {[]string{file(t, "BenchmarkA-2 10 5 ns/op 7\n")}, check.ExitMalformed},
		"no number":     {[]string{file(t, "BenchmarkA-2 10 x ns/op\n")}, check.ExitMalformed},
	} {
		out, code := table(t, c.args...)
		require.Equal(t, c.code, code, "%s: %s", name, out)
	}
}
