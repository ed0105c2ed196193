//go:build slow

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// longRun is a run of so many steps: the files of one step of a demo, under other numbers.
func longRun(t *testing.T, name string, steps int) string {
	t.Helper()
	dir := t.TempDir()
	for mb := range 2 {
		data, err := os.ReadFile(filepath.Join("../../golden/demo", name, fmt.Sprintf("step_0001_mb_%d.safetensors", mb)))
		require.NoError(t, err)
		n := binary.LittleEndian.Uint64(data)
		header, body := string(data[8:8+n]), data[8+n:]
		const first = `\"step\": 1,`
		require.Equal(t, 1, strings.Count(header, first))
		for step := 1; step <= steps; step++ {
			h := strings.Replace(header, first, fmt.Sprintf(`\"step\": %d,`, step), 1)
			h += strings.Repeat(" ", (8-len(h)%8)%8)
			out := append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...)
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("step_%04d_mb_%d.safetensors", step, mb)), append(out, body...), 0o600))
		}
	}
	return dir
}

// The page of a run of 1000 steps has at most a megabyte, failing and healthy, and with --redact no text of a token.
func TestHTMLOfALongRun(t *testing.T) {
	for name, code := range map[string]int{"pad_in_denominator": 1, "clean": 0} {
		dir := longRun(t, name, 1000)
		path := filepath.Join(t.TempDir(), "page.html")
		for _, more := range [][]string{nil, {"--redact"}} {
			_, stderr, got := verify(t, dir, append([]string{"dump", ".", "--format", "html", "-o", path}, more...)...)
			require.Equal(t, code, got, stderr)
			page, err := os.ReadFile(path)
			require.NoError(t, err)
			t.Logf("%s %v: %d bytes", name, more, len(page))
			require.Less(t, len(page), pageLimit)
			require.Contains(t, string(page), "1000")
			if more != nil {
				require.NotRegexp(t, `\bid \d`, string(page))
			}
		}
	}
}
