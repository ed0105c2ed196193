//go:build slow

package wheel_test

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/verify/wheel"
)

// The program in the wheel is static, has no path of the machine that built it, and says its version.
func TestBinary(t *testing.T) {
	p := wheel.Platforms()[0]
	file := filepath.Join(t.TempDir(), "verify")
	cmd := exec.Command("go", wheel.BuildArgs(file)...)
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.GOOS, "GOARCH="+p.GOARCH)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	binary, err := os.ReadFile(file)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(binary))
	require.NoError(t, err)
	require.Equal(t, elf.EM_X86_64, f.Machine)
	for _, prog := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, prog.Type, "a dynamic program")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	require.False(t, bytes.Contains(binary, []byte(root+"/cmd")), "the path of the build")
	license, err := os.ReadFile("../../../LICENSE")
	require.NoError(t, err)
	c := &wheel.Contents{Version: "0.1.0", Platform: p, Binary: binary, License: license}
	var data bytes.Buffer
	require.NoError(t, c.Write(&data))
	structure(t, c, data.Bytes())
}
