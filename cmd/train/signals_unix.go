//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// A limit of file sizes is an error of the write that meets it, as a full disk is, not the end of the process: the checkpoint
// before stays the newest, and the error names the file.
func init() { signal.Ignore(syscall.SIGXFSZ) }
