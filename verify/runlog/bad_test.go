package runlog_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/runlog"
)

// Logs that are none, or broken: an error with the place where nothing can be read, else a report of what can.
func TestBadInput(t *testing.T) {
	good := "{\"step\": 1, \"loss\": 0.5}\n{\"step\": 2, \"loss\": 0.4}\n"
	for name, c := range map[string]struct{ text, refused, said string }{
		"empty":         {"", "is empty, want a log", ""},
		"binary":        {"\x7fELF\x00\x01\x02\x03", "a NUL byte: this is no log", ""},
		"unknown":       {"hello\nworld\n{'frobs': 3}\n", "", "3 not understood"},
		"not UTF-8":     {"loss=0.5 note=\xff\xfe\nloss=0.4\n" + good, "", "0 not understood"},
		"long line":     {good + strings.Repeat("x", 17<<20) + "\n", "a line of more than 16777216 bytes", ""},
		"clock back":    {"2024-05-06 12:30:45 INFO step=1 loss=0.5\n2024-05-06 11:00:00 INFO step=2 loss=0.4\n2024-05-06 12:31:00 INFO step=3 loss=0.3\n", "", "0 not understood"},
		"cut":           {good + "{\"step\": 3, \"lo", "", "the last line is cut"},
		"active names":  {"{\"step\": 1, \"<script>alert(1)</script>\\u001b[31m\": 1, \"loss\": 0.5}\n", "", "0 not understood"},
		"broken object": {good + "{\"step\": 3,, }\n" + good, "an object that is cut or broken", ""},
	} {
		path := filepath.Join(t.TempDir(), "a.log")
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o644))
		r, err := runlog.Judge(context.Background(), []string{path}, runlog.Options{})
		if c.refused != "" {
			require.ErrorContains(t, err, c.refused, name)
			require.True(t, format.IsMalformed(err), name)
			continue
		}
		require.NoError(t, err, name)
		require.Contains(t, r.Inputs[0].What, c.said, name)
		for _, m := range r.Brief.Metrics {
			require.NotContains(t, m.Name, "\x1b", name)
		}
		for _, l := range r.Lists {
			require.NotContains(t, strings.Join(l.Items, " "), "\x1b", name)
		}
		if name == "clock back" {
			require.Empty(t, r.Brief.Findings, "steps go on; the clock of a line is not a step")
		}
	}
}
