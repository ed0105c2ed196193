package stage_test

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)       // batches and tapes are short-lived: a fifth of the time would go to collecting
	debug.SetMemoryLimit(3 << 30) // the laws of long rows hold more than a gigabyte
	os.Exit(m.Run())
}
