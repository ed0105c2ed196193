package trainer_test

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // batches and tapes are short-lived: a fifth of the time would go to collecting
	os.Exit(m.Run())
}
