package runlog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/runlog"
)

// A chart has the values of its metric, and the first bad step of the finding marked; a healthy metric has no mark. The finding names its
// results, so that a baseline knows it.
func TestCharts(t *testing.T) {
	j := text(t, "a.jsonl", lines(30, func(i int) string {
		return fmt.Sprintf(`{"step": %d, "actor/pg_loss": %g, "actor/pg_clipfrac": %g}`, i, wave(i), map[bool]float64{true: .1, false: 1.5}[i < 20])
	}))
	require.Equal(t, []string{"SHARE-RANGE"}, j.top[:1])
	require.Len(t, j.report.Charts, 2)
	c := j.report.Charts[0]
	require.Equal(t, "actor/pg_clipfrac", c.Title)
	require.Contains(t, c.Marks, check.Mark{X: 20, Text: "SHARE-RANGE"})
	require.Len(t, c.Series[0].X, 30)
	require.Equal(t, 1.5, c.Series[0].Y[29])
	require.Empty(t, j.report.Charts[1].Marks)
	first := j.report.Brief.Findings[0]
	require.NotEmpty(t, first.Results)
	require.Contains(t, j.report.Results[first.Results[0]].Reason, "SHARE-RANGE")
	require.Equal(t, 21, j.report.Results[first.Results[0]].At.Number)
}

// What a finding says of an option points to the line that set it: of the configuration, of the log, or of another log of the run.
func TestOptionLines(t *testing.T) {
	at := func(j judged) *check.FileLine {
		for _, r := range j.report.Results {
			if len(r.Explanations) > 0 && r.Explanations[0].Fault == "C16" {
				return r.At
			}
		}
		t.Fatal("no C16")
		return nil
	}
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	metrics := lines(5, func(i int) string { return ppoLine(i, nil) })
	config := put("a/effective_config.yaml", "# a run\nppo:\n  epochs: 2\n  max_grad_norm: 0\n")
	put("a/metrics.jsonl", metrics)
	require.Equal(t, &check.FileLine{Path: config, Number: 4}, at(judge(t, runlog.Options{}, filepath.Join(dir, "a"))))

	log := put("b/log.txt", "config ppo.epochs=2\nconfig ppo.max_grad_norm=0\n")
	put("b/metrics.jsonl", metrics)
	require.Equal(t, &check.FileLine{Path: log, Number: 2}, at(judge(t, runlog.Options{}, filepath.Join(dir, "b"))))

	path := put("c/metrics.jsonl", metrics)
	require.Nil(t, at(judge(t, runlog.Options{Config: map[string]string{"ppo.max_grad_norm": "0"}}, path)), "of --set")
}
