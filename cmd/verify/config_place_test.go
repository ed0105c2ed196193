package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A finding that an option of --config explains is placed on the line that sets it, whatever the form of the file; known findings stay known.
func TestLineOfConfiguration(t *testing.T) {
	dir := t.TempDir()
	run := demoDumps(t, "clean")
	places := func(name, text string, more ...string) map[string][]int {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		stdout, stderr, code := verify(t, dir, append([]string{"dump", run, "--config", name, "--format", "sarif"}, more...)...)
		require.NotEqual(t, 2, code, stderr)
		var log struct {
			Runs []struct {
				Results []struct {
					RuleID        string
					BaselineState string
					Locations     []struct {
						PhysicalLocation struct {
							ArtifactLocation struct{ URI string }
							Region           *struct{ StartLine int }
						}
					}
				}
			}
		}
		require.NoError(t, json.Unmarshal([]byte(stdout), &log), stdout)
		at := map[string][]int{}
		for _, r := range log.Runs[0].Results {
			line := 0
			if len(r.Locations) > 0 && r.Locations[0].PhysicalLocation.Region != nil {
				line = r.Locations[0].PhysicalLocation.Region.StartLine
				require.Equal(t, name, r.Locations[0].PhysicalLocation.ArtifactLocation.URI)
			}
			at[r.RuleID+r.BaselineState] = append(at[r.RuleID+r.BaselineState], line)
		}
		return at
	}
	const yaml = "# of the trainer\nloss_type: grpo\n\nbeta: 0.2\nscale_rewards: group\n"
	for _, lines := range places("c.yaml", yaml) {
		require.Equal(t, 4, lines[0])
	}
	require.NotEmpty(t, places("c.yaml", yaml))
	require.Equal(t, 3, first(t, places("c.json", "{\n \"loss_type\": \"grpo\",\n \"beta\": 0.2\n}\n")))
	require.Equal(t, 1, first(t, places("one.json", `{"loss_type": "grpo", "beta": 0.2}`)))
	require.Empty(t, places("right.yaml", "loss_type: grpo\nbeta: 0.04\n"), "nothing differs")

	_, _, code := verify(t, dir, "dump", run, "--config", "c.yaml", "--format", "json", "-o", "old.json")
	require.Equal(t, 1, code)
	known := places("c.yaml", yaml, "--baseline", "old.json")
	require.NotEmpty(t, known)
	for id := range known {
		require.Contains(t, id, "unchanged")
	}
	for id := range places("c.yaml", "loss_type: grpo\nbeta: 0.5\nepsilon: 0.11\nepsilon_high: 0.3\n", "--baseline", "old.json") {
		if id == "KL-BETAunchanged" {
			continue
		}
		require.NotContains(t, id, "CLIP-BOUNDunchanged", "another option is a new finding")
	}
}

func first(t *testing.T, places map[string][]int) int {
	t.Helper()
	require.NotEmpty(t, places)
	line := 0
	for _, lines := range places {
		for _, l := range lines {
			line = max(line, l)
		}
	}
	return line
}
