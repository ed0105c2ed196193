//go:build unix

package npy

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Opening a FIFO would wait for its writer, reading /dev/zero would never end.
func TestSpecialFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo.npy")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	for path, fragment := range map[string]string{fifo: "is a FIFO", "/dev/zero": "is a device"} {
		errs := make(chan error, 2)
		go func() {
			_, err := Open(path, Options{})
			errs <- err
			_, err = OpenArchive(path, Options{})
			errs <- err
		}()
		for range 2 {
			select {
			case err := <-errs:
				requireRefused(t, err, path, fragment)
			case <-time.After(10 * time.Second):
				t.Fatalf("opening %s does not return", path)
			}
		}
	}
}
