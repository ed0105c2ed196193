package memory

import (
	"errors"
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestBounds(t *testing.T) {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	require.Equal(t, []bound{{"available on this machine", 2048 * 1024}}, machine(fstest.MapFS{"proc/meminfo": text("MemTotal: 9999 kB\nMemAvailable:    2048 kB\n")}))
	require.Empty(t, machine(fstest.MapFS{}))
	require.Empty(t, machine(fstest.MapFS{"proc/meminfo": text("MemAvailable:\n")}))

	// Version 2: a group without a limit in one that has one.
	require.Equal(t, []bound{{"the limit of the control group, /sys/fs/cgroup/a/memory.max", 1000 - (600 - 100)}}, groups(fstest.MapFS{
		"proc/self/cgroup":                   text("0::/a/b\n"),
		"sys/fs/cgroup/a/b/memory.max":       text("max\n"),
		"sys/fs/cgroup/a/b/memory.current":   text("500\n"),
		"sys/fs/cgroup/a/memory.max":         text("1000\n"),
		"sys/fs/cgroup/a/memory.current":     text("600\n"),
		"sys/fs/cgroup/a/memory.stat":        text("anon 500\nfile 100\ninactive_file 100\n"),
		"sys/fs/cgroup/unrelated/memory.max": text("1\n"),
	}))
	// Version 1, in a container that sees its group at the top.
	require.Equal(t, []bound{{"the limit of the control group, /sys/fs/cgroup/memory/memory.limit_in_bytes", 700}}, groups(fstest.MapFS{
		"proc/self/cgroup":                           text("5:cpu:/x\n4:memory:/docker/0123\n"),
		"sys/fs/cgroup/memory/memory.limit_in_bytes": text("1000\n"),
		"sys/fs/cgroup/memory/memory.usage_in_bytes": text("300\n"),
	}))
	require.Empty(t, groups(fstest.MapFS{"proc/self/cgroup": text("4:memory:/\nrubbish\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": text("9223372036854771712\n"),
		"sys/fs/cgroup/memory/memory.usage_in_bytes": text("300\n")}), "no limit in version 1 is a number that no machine has")
}

func TestNeed(t *testing.T) {
	bytes, limit := Available()
	require.Positive(t, bytes)
	require.NotEmpty(t, limit)
	require.NoError(t, Need(0, "nothing"))
	err := Need(1e18, "a prompt of %d tokens", 5)
	var e *Error
	require.True(t, errors.As(err, &e), "no machine has 10¹⁸ bytes: %v", err)
	require.Contains(t, err.Error(), "a prompt of 5 tokens needs about 1 EB of memory, and there are ")
	require.Error(t, Need(math.Inf(1), "all"))
	require.Error(t, Need(math.NaN(), "what is not known"))
}
