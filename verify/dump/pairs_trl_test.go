package dump_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// What TRL's own code makes of pairs passes under what its configuration says; a planted bug is named.
func TestPairsOfTRL(t *testing.T) {
	const root = "../../golden/pairs"
	var expect map[string]string
	data, err := os.ReadFile(filepath.Join(root, "EXPECT.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &expect))
	require.Greater(t, len(expect), 25)
	for name, want := range expect {
		t.Run(name, func(t *testing.T) {
			report := judge(t, filepath.Join(root, name), dump.Options{})
			passed, named := 0, false
			for _, r := range report.Results {
				switch r.Verdict {
				case check.Pass:
					passed++
				case check.Fail, check.Convention:
					require.NotEmpty(t, want, "%s%s", name, describe([]check.Result{r}))
					for _, e := range r.Explanations {
						named = named || e.Fault == want
					}
				case check.Undetermined:
					require.NotEmpty(t, want, "%s: %s %s", name, r.Check, r.Reason)
				}
			}
			require.Equal(t, want != "", named)
			require.GreaterOrEqual(t, passed, 3)
		})
	}
}
