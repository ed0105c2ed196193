//go:build slow

package block

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The generator writes the source that is here.
func TestGenerated(t *testing.T) {
	cmd := exec.Command("go", "run", "make.go")
	cmd.Stderr = os.Stderr
	made, err := cmd.Output()
	require.NoError(t, err)
	here, err := os.ReadFile("bf16_amd64.s")
	require.NoError(t, err)
	require.Equal(t, string(here), string(made))
}
