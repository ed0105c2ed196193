// Package cuda runs the kernels of this folder on an NVIDIA GPU, or in a simulator where there is none. Both stand behind one interface, so
// that the code that launches kernels and the tests that judge them are the same.
//
// [Open] finds libcuda at run time; nothing here is linked against CUDA. [Simulator] needs nothing at all.
package cuda

import (
	"errors"
	"fmt"
	"math"

	"plumbline/accel/cuda/ptxsim"
)

// ErrNoDevice says that this machine has no GPU that can be used, or no driver for it.
var ErrNoDevice = errors.New("cuda: no usable NVIDIA GPU")

// Pointer is an address in the memory of a device; 0 is none.
type Pointer uint64

// Device is a GPU, or what stands for one. Its methods are called from one goroutine at a time; calls run in order.
type Device interface {
	// Name is the product's, and Variant "cuda" or "sim".
	Name() string
	Variant() string
	// Memory is what is free and what there is, in bytes.
	Memory() (free, total int64, err error)
	// Alloc returns the address of n bytes that hold nothing yet, a multiple of 256.
	Alloc(n int64) (Pointer, error)
	Free(p Pointer) error
	// Upload and Download copy between the host and the device and return when the copy is done.
	Upload(dst Pointer, src []byte) error
	Download(dst []byte, src Pointer) error
	// Load makes the kernels of a PTX text callable. An error holds the compiler's log.
	Load(ptx string) (Module, error)
	// Synchronize waits for all launches and returns the first error among them.
	Synchronize() error
	Close() error
}

// Module is a loaded PTX text.
type Module interface {
	// Kernel returns an entry of the text.
	Kernel(name string) (Kernel, error)
}

// Kernel is an entry that can be launched.
type Kernel interface {
	// Launch runs the kernel over a grid of blocks, with shared bytes beside those it declares. Arguments are Pointer, int32 and
	// float32; their number and sizes must be those of the PTX.
	Launch(grid, block [3]int, shared int, args ...any) error
}

// pack writes arguments at the places that the PTX gives them.
func pack(name string, params []ptxsim.Param, args []any) ([]byte, error) {
	if len(args) != len(params) {
		return nil, fmt.Errorf("cuda: kernel %s takes %d arguments, not %d", name, len(params), len(args))
	}
	var out []byte
	for i, p := range params {
		for len(out) < p.Offset {
			out = append(out, 0)
		}
		var v uint64
		size := 4
		switch a := args[i].(type) {
		case Pointer:
			v, size = uint64(a), 8
		case int32:
			v = uint64(uint32(a))
		case float32:
			v = uint64(math.Float32bits(a))
		default:
			return nil, fmt.Errorf("cuda: argument %d of kernel %s is a %T; Pointer, int32 and float32 are known", i, name, a)
		}
		if size != p.Size {
			return nil, fmt.Errorf("cuda: argument %d of kernel %s has %d bytes, %T has %d", i, name, p.Size, args[i], size)
		}
		for b := range size {
			out = append(out, byte(v>>(8*b)))
		}
	}
	return out, nil
}

// launchable refuses a grid that no device has.
func launchable(kernel string, grid, block [3]int) error {
	for i := range 3 {
		if grid[i] < 1 || block[i] < 1 || block[i] > 1024 || grid[i] > 1<<31-1 {
			return fmt.Errorf("cuda: kernel %s: a grid of %v blocks of %v threads", kernel, grid, block)
		}
	}
	return nil
}
