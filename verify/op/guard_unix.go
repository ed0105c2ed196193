//go:build linux || darwin

package op

import (
	"os"
	"syscall"
)

// newRegion maps size bytes, a multiple of the page, between two pages that can neither be read nor written.
func newRegion(size int) *region {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic("op: no memory for an operand: " + err.Error())
	}
	for _, closed := range [][]byte{all[:page], all[page+size:]} {
		if err := syscall.Mprotect(closed, syscall.PROT_NONE); err != nil {
			panic("op: a page cannot be closed: " + err.Error())
		}
	}
	return &region{all: all, open: all[page : page+size]}
}

func (r *region) free() { _ = syscall.Munmap(r.all) } // the process has it back at its end
