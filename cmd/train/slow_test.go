//go:build slow && linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One forward pass over 64 tokens of SmolLM2-135M, loading included, takes at most 20 s of one core's time and 3 GB, from a
// GGUF file and from a folder; the text is that of transformers (golden/models/smollm2).
func TestSmolLM2(t *testing.T) {
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir := filepath.Join(cache, "plumbline", "smollm2")
	if _, err := os.Stat(filepath.Join(dir, "hf", "model.safetensors")); err != nil {
		t.Skipf("SmolLM2 is not in %s: run make real-model", dir)
	}
	text, err := os.ReadFile("../../golden/models/smollm2/golden.json")
	require.NoError(t, err)
	var g struct {
		Prompts map[string]struct {
			Text   string
			Greedy []int
		}
	}
	require.NoError(t, json.Unmarshal(text, &g))
	ids := make([]string, 64)
	for i := range ids {
		ids[i] = fmt.Sprint(100 + 7*i)
	}
	for _, path := range []string{filepath.Join(dir, "SmolLM2-135M-Instruct.Q4_1.gguf"), filepath.Join(dir, "hf")} {
		cmd := exec.Command(binaryPath, "sample", "--model", path, "--prompt-ids", strings.Join(ids, ","), "--ids", "--tokens", "1")
		cmd.Env = append(os.Environ(), "GOGC=")
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Len(t, strings.Split(string(out), ","), 1)
		used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		peak := int64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) * 1024
		t.Logf("%s: %v of CPU, %d MB", filepath.Base(path), used, peak/1e6)
		require.LessOrEqual(t, used, 20*time.Second)
		require.LessOrEqual(t, peak, int64(3e9))
	}

	p := g.Prompts["capital"]
	var want []string
	for _, id := range p.Greedy {
		want = append(want, fmt.Sprint(id))
	}
	require.False(t, slices.Contains(p.Greedy, 2), "the text does not end")
	got, errs, code := program(t, "sample", "--model", filepath.Join(dir, "hf"), "--prompt", p.Text, "--tokens", "20", "--ids")
	require.Zero(t, code, errs)
	require.Equal(t, strings.Join(want, ",")+"\n", got)
}
