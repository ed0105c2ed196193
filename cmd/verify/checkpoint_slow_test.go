//go:build slow && unix

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// bf16Shards writes eight shards of ten matrices [8192, 4096] of bfloat16 each: 5.37 GB of numbers between −2 and 2.
func bf16Shards(t *testing.T, dir string) {
	t.Helper()
	matrix := make([]byte, 64<<20)
	x := uint64(88172645463325252)
	for i := 0; i < len(matrix); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(matrix[i:], x&0xBFFFBFFFBFFFBFFF)
	}
	var index []string
	for s := range 8 {
		var entries []string
		shard := fmt.Sprintf("model-%05d-of-00008.safetensors", s+1)
		for i := range 10 {
			name := fmt.Sprintf("layers.%d.w%d.weight", s, i)
			entries = append(entries, fmt.Sprintf(`"%s":{"dtype":"BF16","shape":[8192,4096],"data_offsets":[%d,%d]}`, name, i*len(matrix), (i+1)*len(matrix)))
			index = append(index, fmt.Sprintf(`"%s":"%s"`, name, shard))
		}
		header := "{" + strings.Join(entries, ",") + "}"
		f, err := os.Create(filepath.Join(dir, shard))
		require.NoError(t, err)
		_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
		require.NoError(t, err)
		for range 10 {
			_, err = f.Write(matrix)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map":{`+strings.Join(index, ",")+`}}`), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"other"}`), 0o644))
}

// timed runs the program and returns its output, the wall time, and the most memory that it held, in bytes.
func timed(t *testing.T, args ...string) (stdout string, wall time.Duration, peak int64, code int) {
	t.Helper()
	cmd := exec.Command(binaryPath, args...)
	cmd.Env = append(os.Environ(), "GOGC=")
	var out strings.Builder
	cmd.Stdout = &out
	start := time.Now()
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		// Maxrss counts that of the process that started it, too: this one, with what the tests before have needed.
		peak = max(peak, highWater(cmd.Process.Pid))
		select {
		case <-ended:
			if peak == 0 {
				peak = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss * 1024
			}
			return out.String(), time.Since(start), peak, cmd.ProcessState.ExitCode()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// highWater is the most memory that a process has held so far, in bytes; 0 where the system does not say.
func highWater(pid int) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes int64
	fmt.Sscan(text, &kilobytes)
	return kilobytes * 1024
}

// 5 GB in the page cache are judged at 1 GB/s and more on two cores, in less than 300 MB.
func TestCheckpointSpeed(t *testing.T) {
	dir := t.TempDir()
	bf16Shards(t, dir)
	best := time.Hour
	for range 3 { // the first fills the page cache
		stdout, wall, peak, code := timed(t, "checkpoint", dir)
		require.Equal(t, check.ExitUndetermined, code, "which tensors an unknown architecture has cannot be told\n%s", stdout)
		require.Contains(t, stdout, "2,684,354,560 parameters")
		require.Less(t, peak, int64(300<<20))
		best = min(best, wall)
		t.Logf("%.2f GB/s, %d MiB", 5.369/wall.Seconds(), peak>>20)
	}
	require.Greater(t, 5.369/best.Seconds(), 1.0, "GB/s")

	// One NaN among 2.7 billion numbers is named.
	f, err := os.OpenFile(filepath.Join(dir, "model-00005-of-00008.safetensors"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xC0, 0x7F}, size-2*(4096+5))
	require.NoError(t, err)
	stdout, _, _, code := timed(t, "checkpoint", dir)
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "layers.4.w9.weight")
	require.Contains(t, stdout, "element [8190, 4091]: NaN")
}

// A folder of 100,000 files is listed in seconds and little memory.
func TestCheckpointHundredThousandFiles(t *testing.T) {
	dir := t.TempDir()
	gptJAdapter(t, dir)
	for i := range 100_000 {
		if i%1000 == 0 {
			require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("logs%d", i/1000)), 0o755))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("logs%d/%d.txt", i/1000, i)), nil, 0o644))
	}
	stdout, wall, peak, code := timed(t, "checkpoint", dir)
	require.Zero(t, code, stdout)
	t.Logf("%.2f s, %d MiB", wall.Seconds(), peak>>20)
	require.Less(t, wall, 10*time.Second)
	require.Less(t, peak, int64(300<<20))
}
