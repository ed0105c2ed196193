package cli

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercent(t *testing.T) {
	require.Equal(t, 300, percent(0))
	require.Equal(t, 300, percent(4<<20))
	require.Equal(t, 50, percent(24<<20))
	require.Equal(t, 25, percent(48<<20))
	require.Equal(t, 25, percent(100<<30))
}

// The percentage follows what is alive.
func TestPace(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	pace()
	require.Equal(t, 300, current())
	big := make([]byte, 256<<20)
	for current() != 25 { // the finalizer runs in a goroutine of its own
		runtime.GC()
		runtime.Gosched()
	}
	runtime.KeepAlive(big)
	for current() < 100 {
		runtime.GC()
		runtime.Gosched()
	}
}

// current is the percentage in force.
func current() int {
	p := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(p)
	return int(p[0].Value.Uint64())
}

// What a command or GOGC sets stays.
func TestPaceLeavesOthers(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	require.Equal(t, 25, adjust(100, 1<<30))
	require.Equal(t, 25, current())
	debug.SetGCPercent(321)
	require.Equal(t, 25, adjust(25, 0))
	require.Equal(t, 321, current())
	t.Setenv("GOGC", "77")
	pace()
	require.Equal(t, 321, current())
}
