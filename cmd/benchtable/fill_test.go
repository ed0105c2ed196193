package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// The tables of the measurements are what this program makes of the stored output of go test -bench, bit by bit.
func TestMeasurements(t *testing.T) {
	const page = "../../benchmarks/README.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	filled, n, err := fill(string(text), filepath.Dir(page))
	require.NoError(t, err)
	require.Positive(t, n, "no table is generated")
	require.Equal(t, filled, string(text), "the tables are not what benchtable --fill benchmarks/README.md writes")
	// A number that someone wrote by hand is seen.
	at := strings.Index(filled, " |\n<!-- /benchtable -->")
	require.Positive(t, at)
	changed := filled[:at] + "9" + filled[at:]
	again, _, err := fill(changed, filepath.Dir(page))
	require.NoError(t, err)
	require.Equal(t, filled, again)
	require.NotEqual(t, changed, again)
}

func TestFill(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte(lines("Gemm/512x896x896/avx2", 3, 1000)+lines("Other", 1, 5)), 0o600))
	path := filepath.Join(dir, "page.md")
	before := "one\n<!-- benchtable a.txt --run Gemm --columns %probe -->\nold | table\n<!-- /benchtable -->\ntwo\n<!-- benchtable a.txt --run Other --columns ns/op -->\n<!-- /benchtable -->\n"
	require.NoError(t, os.WriteFile(path, []byte(before), 0o600))
	out, code := table(t, "--fill", path)
	require.Equal(t, check.ExitPass, code, out)
	require.Contains(t, out, "2 tables")
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one\n<!-- benchtable a.txt --run Gemm --columns %probe -->\n| benchmark | runs | %probe |\n|---|---|---|\n| Gemm/512x896x896/avx2 | 3 | 52 (51) |\n<!-- /benchtable -->\ntwo\n"+
		"<!-- benchtable a.txt --run Other --columns ns/op -->\n| benchmark | runs | ns/op |\n|---|---|---|\n| Other | 1 | 5 |\n<!-- /benchtable -->\n", string(got))
	_, code = table(t, "--fill", path)
	require.Equal(t, check.ExitPass, code)
	for what, text := range map[string]string{
		"no marker":      "plain\n",
		"not closed":     "<!-- benchtable a.txt -->\n| a |\n",
		"closed twice":   "<!-- benchtable a.txt -->\n<!-- /benchtable -->\n<!-- /benchtable -->\n",
		"two in one":     "<!-- benchtable a.txt -->\n<!-- benchtable a.txt -->\n<!-- /benchtable -->\n",
		"no such file":   "<!-- benchtable b.txt -->\n<!-- /benchtable -->\n",
		"outside":        "<!-- benchtable ../a.txt -->\n<!-- /benchtable -->\n",
		"no benchmark":   "<!-- benchtable a.txt --run Nothing -->\n<!-- /benchtable -->\n",
		"unknown flag":   "<!-- benchtable a.txt --what -->\n<!-- /benchtable -->\n",
		"unknown column": "<!-- benchtable a.txt --columns parsec -->\n<!-- /benchtable -->\n",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		out, code := table(t, "--fill", path)
		require.NotEqual(t, check.ExitPass, code, "%s: %s", what, out)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(got), what)
	}
	_, code = table(t, "--fill", path, "x")
	require.Equal(t, check.ExitUsage, code)
}
