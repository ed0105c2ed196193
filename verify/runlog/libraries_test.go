package runlog_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/runlog"
)

const trl = "../../golden/logs/trl"

var written = []string{"console.txt", "trainer_state.json", "events.out.tfevents.1"}

// Logs that TRL 1.16 and transformers 5.23 wrote (golden/gen/logs) of healthy runs of five trainers fail nothing, every name in them is known,
// and the three forms of a run are judged alike.
func TestHealthyLogsOfLibraries(t *testing.T) {
	runs, err := os.ReadDir(filepath.Join(trl, "healthy"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(runs), 10)
	for _, run := range runs {
		var first []string
		for i, name := range written {
			j := judge(t, runlog.Options{}, filepath.Join(trl, "healthy", run.Name(), name))
			require.Empty(t, j.fails, "%s %s", run.Name(), name)
			require.Zero(t, j.exit, "%s %s", run.Name(), name)
			for _, l := range j.report.Lists {
				require.NotContains(t, l.Title, "no dictionary", "%s %s: %v", run.Name(), name, l.Items)
			}
			passed := 0
			for _, r := range j.report.Results {
				if r.Verdict == check.Pass {
					passed++
				}
			}
			require.GreaterOrEqual(t, passed, 3, "%s %s", run.Name(), name)
			slices.Sort(j.top)
			if i == 0 {
				first = j.top
			} else {
				require.Equal(t, first, j.top, "%s: %s is judged otherwise than %s", run.Name(), name, written[0])
			}
		}
	}
}

// A fault that was planted in such a run is the first thing that each form of its log is told.
func TestFaultyLogsOfLibraries(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(trl, "expect.json"))
	require.NoError(t, err)
	var expect map[string]string
	require.NoError(t, json.Unmarshal(data, &expect))
	require.GreaterOrEqual(t, len(expect), 5)
	for run, symptom := range expect {
		for _, name := range written {
			j := judge(t, runlog.Options{}, filepath.Join(trl, "faulty", run, name))
			require.NotEmpty(t, j.top, "%s %s", run, name)
			require.Equal(t, symptom, j.top[0], "%s %s", run, name)
		}
	}
}
