//go:build unix

package format

import (
	"errors"
	"os"
	"syscall"
)

// openFlags keeps an open from waiting for the writer of a FIFO that took a regular file's place.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// ownFlags keep an open from following a link, too.
const ownFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// tryLock takes the exclusive lock of a file, which ends with the process however it ends. It reports whether the file is this process's
// now, and whether locks are known here at all.
func tryLock(f *os.File) (mine, known bool) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, true
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, true
		case !errors.Is(err, syscall.EINTR):
			return false, false
		}
	}
}

// otherNames reports whether a file has a second name: a hard link.
func otherNames(info os.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink > 1
}
