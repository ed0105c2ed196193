package runlog_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
	"plumbline/verify/runlog"
)

// Logs of trainers that ran with a fault in them (golden/gen/logs/trainers.py): the symptom of the fault is within the first three, and
// first in 95 % of them. A symptom below another one stands one place behind it; a note counts where there are notes alone.
func TestRowsOfTrainers(t *testing.T) {
	const folder = "testdata/rows"
	table, err := os.ReadFile(filepath.Join(folder, "rows.txt"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	require.GreaterOrEqual(t, len(lines), 49)
	ids := map[string]bool{}
	first := 0
	for _, line := range lines {
		row := strings.Split(line, "\t")
		require.Len(t, row, 3, line)
		name, want := row[0], row[1]
		require.NotNil(t, bug.FindSymptom(want), line)
		ids[want] = true
		j := judge(t, runlog.Options{}, filepath.Join(folder, name))
		top := j.top
		if len(top) == 0 { // of notes alone
			top = j.all
		}
		at := slices.Index(top, want)
		for i, f := range j.report.Brief.Findings {
			if at < 0 && slices.ContainsFunc(f.Follows, func(s string) bool { return strings.HasPrefix(s, want+" ") }) {
				at = i + 1 // seen, below another
			}
		}
		if at == 0 {
			first++
		} else {
			t.Logf("%s: %s is at %d of %v, all %v", name, want, at, j.top, j.all)
		}
		if at < 0 || at > 2 {
			t.Errorf("%s: %s is not within three", name, want)
		}
	}
	require.GreaterOrEqual(t, len(ids), 30)
	require.GreaterOrEqual(t, 100*first, 95*len(lines), "first in %d of %d", first, len(lines))
}
