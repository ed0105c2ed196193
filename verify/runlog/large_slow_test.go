//go:build slow

package runlog_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/verify/runlog"
)

// processor is the time that this process has had of all cores.
func processor(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// gauge is what the processor needs to find the end of every line and whether it is JSON, no more, with the standard library.
func gauge(t *testing.T, path string) time.Duration {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	began := processor(t)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		require.True(t, json.Valid(lines.Bytes()))
	}
	require.NoError(t, lines.Err())
	return processor(t) - began
}

// A gigabyte of JSON lines is read in 10 s (docs/log.md) and 200 MB: here a sixth of that, and 10⁷ steps are read to the end. Seconds of a
// processor are no measure where another thread shares its core, so the time is held against that of plain passes before and after: reading
// and judging take 1.0 to 1.5 of one.
func TestLargeLogs(t *testing.T) {
	for name, c := range map[string]struct {
		rows int
		row  func(w io.Writer, i int)
	}{
		"many metrics": {700_000, func(w io.Writer, i int) {
			fmt.Fprintf(w, `{"step":%d,"loss":%.12f,"reward":%.12f,"reward_std":0.3,"kl":%.12f,"grad_norm":%.12f,"learning_rate":1e-06,"entropy":%.10f,"completions/mean_length":%.6f,"frac_reward_zero_std":0.125}`+"\n",
				i, .1*wave(i), .3+.01*wave(i), .01+.001*wave(i), .5+.1*wave(i), 2+.1*wave(i), 100+wave(i))
		}},
		"many steps": {10_000_000, func(w io.Writer, i int) { fmt.Fprintf(w, "{\"step\":%d,\"loss\":0.5}\n", i) }},
	} {
		path := filepath.Join(t.TempDir(), "log.jsonl")
		f, err := os.Create(path)
		require.NoError(t, err)
		b := bufio.NewWriterSize(f, 1<<20)
		for i := range c.rows {
			c.row(b, i)
		}
		require.NoError(t, b.Flush())
		require.NoError(t, f.Close())
		plain := gauge(t, path)
		began := processor(t)
		r, err := runlog.Judge(context.Background(), []string{path}, runlog.Options{})
		took := processor(t) - began
		plain += gauge(t, path)
		require.NoError(t, err, name)
		require.Zero(t, see(r).exit, name)
		bytes := r.Inputs[0].Size
		perGB, passes := took.Seconds()/float64(bytes)*1e9, 2*took.Seconds()/plain.Seconds()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%s: %d bytes, %.2f s of processor a gigabyte, %.2f plain passes, %d MB from the system", name, bytes, perGB, passes, m.Sys>>20)
		require.Contains(t, r.Inputs[0].What, fmt.Sprint(c.rows, " JSON; 0 not understood"))
		require.LessOrEqual(t, passes, 2., name)
		require.Less(t, m.Sys, uint64(200e6), name)
	}
}
