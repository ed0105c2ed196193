package runlog_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// Logs that the loggers of verl 0.9.1, OpenRLHF 0.11.2, tensorboardX and torch wrote (golden/gen/logs/loggers.py), and histories that
// wandb 0.31.0 exported (wandb_logs.py): every line is understood but for the two with which verl names its files, healthy ones show
// nothing, and a fault in the numbers is told first in each form, also where pandas made empty cells of NaN.
func TestLogsOfLoggers(t *testing.T) {
	files, err := filepath.Glob("../../golden/logs/loggers/*/*")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 35)
	expect := map[string]string{"verl-nan": "NONFINITE", "openrlhf-nan": "NONFINITE", "verl-temperature": "ENGINE-GAP", "wandb-nan": "NONFINITE", "wandb-verl-temperature": "ENGINE-GAP"}
	for _, path := range files {
		run := filepath.Base(filepath.Dir(path))
		j := judge(t, runlog.Options{}, path)
		other := " 0 not understood"
		if strings.HasSuffix(path, "console.log") && strings.HasPrefix(run, "verl") {
			other = " 2 not understood"
		}
		require.Contains(t, j.report.Inputs[0].What, other, path)
		want, faulty := expect[run]
		if !faulty {
			require.Empty(t, j.top, path)
			require.NotEmpty(t, j.report.Brief.Metrics, path)
			continue
		}
		require.NotEmpty(t, j.top, path)
		require.Equal(t, want, j.top[0], path)
	}
}
