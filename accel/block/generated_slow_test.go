//go:build slow

package block

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The generators write the sources that are here.
func TestGenerated(t *testing.T) {
	for file, run := range map[string][]string{
		"bf16_amd64.s": {"make.go"},
		"amx_amd64.s":  {"make_amx.go"},
		filepath.Join("..", "cpu", "probe_amx_amd64.s"): {"make_amx.go", "probe"},
	} {
		cmd := exec.Command("go", append([]string{"run"}, run...)...)
		cmd.Stderr = os.Stderr
		made, err := cmd.Output()
		require.NoError(t, err)
		here, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(here), string(made), file)
	}
}
