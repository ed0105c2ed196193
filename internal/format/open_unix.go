//go:build unix

package format

import (
	"os"
	"syscall"
)

// openFlags keeps an open from waiting for the writer of a FIFO that took a regular file's place.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK
