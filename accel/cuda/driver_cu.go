//go:build cu && !nocuda

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"plumbline/accel/cuda/ptxsim"
)

// Library is the driver's file, which this program is linked against.
const Library = "libcuda.so.1"

// gpu is a device behind gorgonia.org/cu. A context belongs to an operating-system thread, so that one locked thread makes all calls.
type gpu struct {
	name    string
	calls   chan func()
	device  cu.Device
	modules []cu.Module
}

// Open returns the GPU of an ordinal number. The driver is the one that the program is linked against: path must be "" or [Library]. Without a GPU
// the package ends the process before this is called.
func Open(path string, ordinal int) (Device, error) {
	if path != "" && path != Library {
		return nil, fmt.Errorf("%w: this program is linked against %s and opens no %s", ErrNoDevice, Library, path)
	}
	g := &gpu{calls: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range g.calls {
			f()
		}
	}()
	if err := g.run("open", func() error { return g.open(ordinal) }); err != nil {
		close(g.calls)
		return nil, err
	}
	return g, nil
}

// run makes calls on the thread of the context.
func (g *gpu) run(call string, f func() error) error {
	done := make(chan error, 1)
	g.calls <- func() { done <- f() }
	if err := <-done; err != nil {
		if errors.Is(err, ErrNoDevice) {
			return err
		}
		return fmt.Errorf("cuda: %s: %w", call, err)
	}
	return nil
}

func (g *gpu) open(ordinal int) error {
	n, err := cu.NumDevices()
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNoDevice, err)
	}
	if ordinal < 0 || ordinal >= n {
		return fmt.Errorf("%w: GPU %d of %d", ErrNoDevice, ordinal, n)
	}
	if g.device, err = cu.GetDevice(ordinal); err != nil {
		return err
	}
	name, err := g.device.Name()
	if err != nil {
		return err
	}
	major, err := g.device.Attribute(cu.ComputeCapabilityMajor)
	if err != nil {
		return err
	}
	minor, err := g.device.Attribute(cu.ComputeCapabilityMinor)
	if err != nil {
		return err
	}
	driver := cu.Version()
	g.name = fmt.Sprintf("%s (sm_%d%d, driver %d.%d)", name, major, minor, driver/1000, driver%1000/10)
	if major < 8 {
		return fmt.Errorf("%w: %s; the kernels need sm_80 or later", ErrNoDevice, g.name)
	}
	ctx, err := g.device.RetainPrimaryCtx()
	if err != nil {
		return err
	}
	return cu.SetCurrentContext(ctx)
}

func (g *gpu) Name() string    { return g.name }
func (g *gpu) Variant() string { return "cuda" }

func (g *gpu) Memory() (free, total int64, err error) {
	err = g.run("cuMemGetInfo", func() (err error) { free, total, err = cu.MemInfo(); return err })
	return free, total, err
}

func (g *gpu) Alloc(n int64) (Pointer, error) {
	if n <= 0 {
		return 0, fmt.Errorf("cuda: no memory of %d bytes", n)
	}
	var p cu.DevicePtr
	err := g.run("cuMemAlloc", func() (err error) { p, err = cu.MemAlloc(n); return err })
	return Pointer(p), err
}

func (g *gpu) Free(p Pointer) error {
	return g.run("cuMemFree", func() error { return cu.MemFree(cu.DevicePtr(p)) })
}

func (g *gpu) Upload(dst Pointer, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return g.run("cuMemcpyHtoD", func() error { return cu.MemcpyHtoD(cu.DevicePtr(dst), unsafe.Pointer(&src[0]), int64(len(src))) })
}

func (g *gpu) Download(dst []byte, src Pointer) error {
	if len(dst) == 0 {
		return nil
	}
	return g.run("cuMemcpyDtoH", func() error { return cu.MemcpyDtoH(unsafe.Pointer(&dst[0]), cu.DevicePtr(src), int64(len(dst))) })
}

func (g *gpu) Synchronize() error { return g.run("cuCtxSynchronize", cu.Synchronize) }

// Close unloads the modules and gives the context back. The device cannot be used afterwards.
func (g *gpu) Close() error {
	err := g.run("close", func() error {
		var errs []error
		for _, m := range g.modules {
			errs = append(errs, m.Unload())
		}
		return errors.Join(append(errs, g.device.ReleasePrimaryCtx())...)
	})
	close(g.calls)
	return err
}

const jitLogBytes = 1 << 14

func (g *gpu) Load(ptx string) (Module, error) {
	parsed, err := parse(ptx)
	if err != nil {
		return nil, err
	}
	var m cu.Module
	log := &cu.JITErrorLogBuffer{Buffer: make([]byte, jitLogBytes)}
	if err := g.run("cuModuleLoadDataEx", func() (err error) { m, err = cu.LoadDataEx(ptx, log); return err }); err != nil {
		text, _, _ := bytes.Cut(log.Buffer, []byte{0})
		return nil, fmt.Errorf("%w\n%s\nThe PTX is of ISA %s for %s: a driver that is older refuses it; make ptx with an older compiler writes it anew", err, bytes.TrimSpace(text), parsed.Version, parsed.Target)
	}
	g.modules = append(g.modules, m)
	return gpuModule{g, m, parsed}, nil
}

type gpuModule struct {
	device *gpu
	module cu.Module
	parsed *ptxsim.Module
}

func (m gpuModule) Kernel(name string) (Kernel, error) {
	layout, err := m.parsed.Kernel(name)
	if err != nil {
		return nil, err
	}
	var f cu.Function
	if err := m.device.run("cuModuleGetFunction", func() (err error) { f, err = m.module.Function(name); return err }); err != nil {
		return nil, err
	}
	return gpuKernel{m.device, f, layout}, nil
}

type gpuKernel struct {
	device   *gpu
	function cu.Function
	layout   *ptxsim.Kernel
}

// Launch hands every argument over as eight bytes, of which the driver reads as many as the kernel's parameter has.
func (k gpuKernel) Launch(grid, block [3]int, shared int, args ...any) error {
	packed, err := pack(k.layout.Name, k.layout.Params, args)
	if err != nil {
		return err
	}
	if err := launchable(k.layout.Name, grid, block); err != nil {
		return err
	}
	values, pointers := make([]uint64, len(args)), make([]unsafe.Pointer, len(args))
	for i, p := range k.layout.Params {
		var b [8]byte
		copy(b[:], packed[p.Offset:p.Offset+p.Size])
		values[i] = binary.LittleEndian.Uint64(b[:])
		pointers[i] = unsafe.Pointer(&values[i])
	}
	return k.device.run("cuLaunchKernel "+k.layout.Name, func() error {
		return k.function.Launch(grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, cu.NoStream, pointers)
	})
}
