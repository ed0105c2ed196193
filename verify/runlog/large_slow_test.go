//go:build slow

package runlog_test

import (
	"bufio"
	"context"
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

// A gigabyte of JSON lines takes at most 10 s and 200 MB: here a sixth of that, in which the time is that of the processor, so that
// another load of the machine does not count; and 10⁷ steps are read to the end.
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
		began := processor(t)
		r, err := runlog.Judge(context.Background(), []string{path}, runlog.Options{})
		took := processor(t) - began
		require.NoError(t, err, name)
		require.Zero(t, see(r).exit, name)
		bytes := r.Inputs[0].Size
		perGB := took.Seconds() / float64(bytes) * 1e9
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%s: %d bytes, %.2f s of processor a gigabyte, %d MB from the system", name, bytes, perGB, m.Sys>>20)
		require.Contains(t, r.Inputs[0].What, fmt.Sprint(c.rows, " JSON; 0 not understood"))
		require.LessOrEqual(t, perGB, 10., name)
		require.Less(t, m.Sys, uint64(200e6), name)
	}
}
