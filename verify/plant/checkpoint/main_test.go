package checkpoint_test

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // folders in memory are short-lived: a quarter of the time would go to collecting
	os.Exit(m.Run())
}
