package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const pageLimit = 1_000_000

// The page of a log of 1000 steps and sixty metrics, healthy and with findings, has at most a megabyte.
func TestHTMLOfALongLog(t *testing.T) {
	dir := t.TempDir()
	for name, nan := range map[string]int{"healthy.jsonl": math.MaxInt, "failing.jsonl": 700} {
		var b strings.Builder
		for i := range 1000 {
			entropy := 2.
			if i >= nan {
				entropy = -3
			}
			fmt.Fprintf(&b, `{"step":%d,"loss":%g,"grad_norm":1.5,"entropy":%g,"completions/mean_length":9`, i+1, .1*math.Sin(float64(i)), entropy)
			for k := range 56 {
				fmt.Fprintf(&b, `,"rewards/f%d/mean":%.17g`, k, math.Sin(float64(i*k+k)))
			}
			b.WriteString("}\n")
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
		_, stderr, code := verify(t, dir, "log", path, "--format", "html", "-o", path+".html")
		require.Equal(t, nan < 1000, code == 1, stderr)
		page, err := os.ReadFile(path + ".html")
		require.NoError(t, err)
		t.Logf("%s: %d bytes of log, %d of the page", name, b.Len(), len(page))
		require.Less(t, len(page), pageLimit)
		require.GreaterOrEqual(t, strings.Count(string(page), "<figure>"), 20)
		require.True(t, strings.Contains(string(page), "<figcaption><bdi>entropy</bdi>"), "the metric of the finding is drawn")
	}
}
