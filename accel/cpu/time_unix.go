//go:build unix

package cpu

import (
	"syscall"
	"time"
)

// Time is what this process has used of all cores. Other work on the machine does not count in it, though it slows this down where
// cores share units or caches.
func Time() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("cpu: the time used is not known: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
