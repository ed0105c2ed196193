//go:build !nocuda && !cu && (linux || darwin) && (amd64 || arm64)

package cuda

import (
	"runtime"
	"unsafe"

	"plumbline/accel/cuda/ptxsim"
)

type gpuKernel struct {
	device   *gpu
	function uintptr
	layout   *ptxsim.Kernel
}

// Arguments go to the driver as one buffer with the layout of the PTX (CU_LAUNCH_PARAM_*), so that a device and the simulator read
// the same bytes.
const (
	launchEnd           = 0
	launchBufferPointer = 1
	launchBufferSize    = 2
)

func (k gpuKernel) Launch(grid, block [3]int, shared int, args ...any) error {
	packed, err := pack(k.layout.Name, k.layout.Params, args)
	if err != nil {
		return err
	}
	if err := launchable(k.layout.Name, grid, block); err != nil {
		return err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	size := uint64(len(packed))
	packed = append(packed, 0) // an address even where there are no arguments
	pin.Pin(&packed[0])
	pin.Pin(&size)
	extra := []uintptr{launchBufferPointer, uintptr(unsafe.Pointer(&packed[0])), launchBufferSize, uintptr(unsafe.Pointer(&size)), launchEnd}
	return k.device.run("cuLaunchKernel "+k.layout.Name, func() int32 {
		return k.device.LaunchKernel(k.function, uint32(grid[0]), uint32(grid[1]), uint32(grid[2]), uint32(block[0]), uint32(block[1]), uint32(block[2]),
			uint32(shared), 0, nil, unsafe.Pointer(&extra[0]))
	})
}
