//go:build unix

package rundir

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openFlags keeps an open from following a link and from waiting for a FIFO that took a file's place.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// lock takes the exclusive lock of a file, which ends with the process however it ends. A process that was killed leaves the
// file and no lock.
func lock(name string) (*os.File, error) {
	f, err := openOwn(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		holder := make([]byte, 20)
		n, _ := f.Read(holder)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &LockedError{File: name, Holder: string(holder[:n])}
		}
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	if err := f.Truncate(0); err == nil { // for the message of the next one; the lock holds without it
		fmt.Fprintf(f, "%d", os.Getpid())
	}
	return f, nil
}
