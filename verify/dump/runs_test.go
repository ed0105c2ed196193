package dump_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// The dumps of short runs of the trainers, as make runs wrote them, are healthy under the profiles that they declare. The printed
// log and the metrics of each run lie beside them.
func TestHealthyRuns(t *testing.T) {
	dirs, err := filepath.Glob("testdata/runs/*")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(dirs), 5)
	for _, dir := range dirs {
		results, err := dump.CheckFiles(context.Background(), dump.Options{}, dir)
		require.NoError(t, err)
		require.Equal(t, check.ExitPass, check.Exit(results, check.Policy{Declared: true}), "%s: %v", dir, results)
		passed := 0
		for _, r := range results {
			require.NotEqual(t, check.Undetermined, r.Verdict, "%s: %v", dir, r)
			if r.Verdict == check.Pass {
				passed++
			}
		}
		require.GreaterOrEqual(t, passed, 10, dir)
		for _, name := range []string{"log.txt", "metrics.jsonl"} {
			info, err := os.Stat(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Positive(t, info.Size())
		}
	}
}
