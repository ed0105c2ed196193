//go:build slow

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The report of verify golden is the same to the last bit however the compiler was told to build: a fused multiply-add in a
// bound or in the reference would show in a ratio.
func TestGoldenBits(t *testing.T) {
	dir := t.TempDir()
	report := func(name string, env string, tags string) map[string]any {
		path := filepath.Join(dir, name)
		build := exec.Command("go", "build", "-tags", tags, "-o", path, ".")
		build.Env = append(os.Environ(), env)
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))
		run := exec.Command(path, "golden", "--format", "json")
		text, err := run.Output()
		// What the runtime says of a processor that is too old; any other failure is one.
		var ended *exec.ExitError
		if errors.As(err, &ended) && strings.Contains(string(ended.Stderr), "microarchitecture support") && !strings.Contains(os.Getenv("VERIFY_REQUIRE"), "avx2") {
			t.Skipf("this machine does not run GOAMD64=v3: %s", ended.Stderr)
		}
		require.NoError(t, err)
		var r map[string]any
		require.NoError(t, json.Unmarshal(text, &r))
		delete(r, "run")
		return r
	}
	want := report("v1", "GOAMD64=v1", "")
	require.Equal(t, want, report("purego", "GOAMD64=v1", "purego"))
	require.Equal(t, want, report("v3", "GOAMD64=v3", ""))
}
