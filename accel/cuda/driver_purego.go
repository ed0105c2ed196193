//go:build !nocuda && !cu && (linux || darwin) && (amd64 || arm64)

package cuda

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// api are the functions of the driver that are used, under the names that its header gives their current versions.
type api struct {
	Init               func(flags uint32) int32
	DriverGetVersion   func(v *int32) int32
	DeviceGetCount     func(n *int32) int32
	DeviceGet          func(d *int32, ordinal int32) int32
	DeviceGetName      func(name *byte, n int32, d int32) int32
	DeviceGetAttribute func(v *int32, attribute, d int32) int32
	PrimaryRetain      func(ctx *uintptr, d int32) int32
	PrimaryRelease     func(d int32) int32
	CtxSetCurrent      func(ctx uintptr) int32
	CtxSynchronize     func() int32
	MemGetInfo         func(free, total *uint64) int32
	MemAlloc           func(p *uint64, n uint64) int32
	MemFree            func(p uint64) int32
	MemcpyHtoD         func(dst uint64, src unsafe.Pointer, n uint64) int32
	MemcpyDtoH         func(dst unsafe.Pointer, src uint64, n uint64) int32
	ModuleLoadDataEx   func(m *uintptr, image unsafe.Pointer, n uint32, options *int32, values *uintptr) int32
	ModuleUnload       func(m uintptr) int32
	ModuleGetFunction  func(f *uintptr, m uintptr, name *byte) int32
	LaunchKernel       func(f uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params, extra unsafe.Pointer) int32
	EventCreate        func(e *uintptr, flags uint32) int32
	EventRecord        func(e, stream uintptr) int32
	EventSynchronize   func(e uintptr) int32
	EventElapsedTime   func(ms *float32, start, end uintptr) int32
	EventDestroy       func(e uintptr) int32
	GetErrorName       func(code int32, s **byte) int32
	GetErrorString     func(code int32, s **byte) int32
}

// names gives the functions their symbols. Those that changed with CUDA 3.2 and later have a version in them: the plain name is the
// old function with the old sizes.
func (a *api) names() map[string]any {
	return map[string]any{
		"cuInit": &a.Init, "cuDriverGetVersion": &a.DriverGetVersion, "cuDeviceGetCount": &a.DeviceGetCount, "cuDeviceGet": &a.DeviceGet,
		"cuDeviceGetName": &a.DeviceGetName, "cuDeviceGetAttribute": &a.DeviceGetAttribute, "cuDevicePrimaryCtxRetain": &a.PrimaryRetain,
		"cuDevicePrimaryCtxRelease_v2": &a.PrimaryRelease, "cuCtxSetCurrent": &a.CtxSetCurrent, "cuCtxSynchronize": &a.CtxSynchronize,
		"cuMemGetInfo_v2": &a.MemGetInfo, "cuMemAlloc_v2": &a.MemAlloc, "cuMemFree_v2": &a.MemFree, "cuMemcpyHtoD_v2": &a.MemcpyHtoD,
		"cuMemcpyDtoH_v2": &a.MemcpyDtoH, "cuModuleLoadDataEx": &a.ModuleLoadDataEx, "cuModuleUnload": &a.ModuleUnload,
		"cuModuleGetFunction": &a.ModuleGetFunction, "cuLaunchKernel": &a.LaunchKernel, "cuEventCreate": &a.EventCreate, "cuEventRecord": &a.EventRecord,
		"cuEventSynchronize": &a.EventSynchronize, "cuEventElapsedTime": &a.EventElapsedTime, "cuEventDestroy_v2": &a.EventDestroy,
		"cuGetErrorName": &a.GetErrorName, "cuGetErrorString": &a.GetErrorString,
	}
}

// Library is the driver's file where the loader finds it.
const Library = "libcuda.so.1"

// gpu is a device behind the driver. A context belongs to an operating-system thread, so that one locked thread makes all calls.
type gpu struct {
	api
	name    string
	calls   chan func()
	device  int32
	modules []uintptr
}

// Open returns the GPU of an ordinal number behind the driver library at path; "" is [Library]. Where there is no driver, or no GPU,
// the error wraps [ErrNoDevice] and says which.
func Open(path string, ordinal int) (Device, error) {
	path = cmp.Or(path, Library)
	g := &gpu{calls: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range g.calls {
			f()
		}
	}()
	var err error
	g.do(func() { err = g.open(path, ordinal) })
	if err != nil {
		close(g.calls)
		return nil, err
	}
	return g, nil
}

// do runs f on the thread of the context.
func (g *gpu) do(f func()) {
	done := make(chan struct{})
	g.calls <- func() { defer close(done); f() }
	<-done
}

func (g *gpu) open(path string, ordinal int) error {
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("%w: the driver %s cannot be loaded: %v", ErrNoDevice, path, err)
	}
	for name, f := range g.names() {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			return fmt.Errorf("%w: the driver %s has no %s: it is too old", ErrNoDevice, path, name)
		}
		purego.RegisterFunc(f, symbol)
	}
	if err := g.fail("cuInit", g.Init(0)); err != nil {
		return fmt.Errorf("%w: %v", ErrNoDevice, err)
	}
	var n, driver int32
	if err := errors.Join(g.fail("cuDriverGetVersion", g.DriverGetVersion(&driver)), g.fail("cuDeviceGetCount", g.DeviceGetCount(&n))); err != nil {
		return fmt.Errorf("%w: %v", ErrNoDevice, err)
	}
	if ordinal < 0 || ordinal >= int(n) {
		return fmt.Errorf("%w: GPU %d of %d", ErrNoDevice, ordinal, n)
	}
	var major, minor int32
	name := make([]byte, 128)
	const capabilityMajor, capabilityMinor = 75, 76 // CUdevice_attribute
	var ctx uintptr
	for _, call := range []struct {
		name string
		run  func() int32
	}{
		{"cuDeviceGet", func() int32 { return g.DeviceGet(&g.device, int32(ordinal)) }},
		{"cuDeviceGetName", func() int32 { return g.DeviceGetName(&name[0], int32(len(name)), g.device) }},
		{"cuDeviceGetAttribute", func() int32 { return g.DeviceGetAttribute(&major, capabilityMajor, g.device) }},
		{"cuDeviceGetAttribute", func() int32 { return g.DeviceGetAttribute(&minor, capabilityMinor, g.device) }},
		{"cuDevicePrimaryCtxRetain", func() int32 { return g.PrimaryRetain(&ctx, g.device) }},
		{"cuCtxSetCurrent", func() int32 { return g.CtxSetCurrent(ctx) }},
	} {
		if err := g.fail(call.name, call.run()); err != nil {
			return err
		}
	}
	name, _, _ = bytes.Cut(name, []byte{0})
	g.name = fmt.Sprintf("%s (sm_%d%d, driver %d.%d)", name, major, minor, driver/1000, driver%1000/10)
	if major < 8 {
		return fmt.Errorf("%w: %s; the kernels need sm_80 or later", ErrNoDevice, g.name)
	}
	return nil
}

// fail makes an error of a code that is not 0: the call, the number, the driver's name and sentence for it.
func (g *gpu) fail(call string, code int32) error {
	if code == 0 {
		return nil
	}
	var name, text *byte
	g.GetErrorName(code, &name)
	g.GetErrorString(code, &text)
	return fmt.Errorf("cuda: %s: error %d %s: %s", call, code, cString(name), cString(text))
}

func cString(p *byte) string {
	if p == nil {
		return "(no text)"
	}
	var b []byte
	for ; *p != 0 && len(b) < 4096; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		b = append(b, *p)
	}
	return string(b)
}

// run makes one call on the context's thread.
func (g *gpu) run(call string, f func() int32) (err error) {
	g.do(func() { err = g.fail(call, f()) })
	return err
}

func (g *gpu) Name() string    { return g.name }
func (g *gpu) Variant() string { return "cuda" }

func (g *gpu) Memory() (free, total int64, err error) {
	var f, t uint64
	err = g.run("cuMemGetInfo_v2", func() int32 { return g.MemGetInfo(&f, &t) })
	return int64(f), int64(t), err
}

func (g *gpu) Alloc(n int64) (Pointer, error) {
	if n <= 0 {
		return 0, fmt.Errorf("cuda: no memory of %d bytes", n)
	}
	var p uint64
	err := g.run("cuMemAlloc_v2", func() int32 { return g.MemAlloc(&p, uint64(n)) })
	return Pointer(p), err
}

func (g *gpu) Free(p Pointer) error {
	return g.run("cuMemFree_v2", func() int32 { return g.MemFree(uint64(p)) })
}

func (g *gpu) Upload(dst Pointer, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return g.run("cuMemcpyHtoD_v2", func() int32 { return g.MemcpyHtoD(uint64(dst), unsafe.Pointer(&src[0]), uint64(len(src))) })
}

func (g *gpu) Download(dst []byte, src Pointer) error {
	if len(dst) == 0 {
		return nil
	}
	return g.run("cuMemcpyDtoH_v2", func() int32 { return g.MemcpyDtoH(unsafe.Pointer(&dst[0]), uint64(src), uint64(len(dst))) })
}

func (g *gpu) Synchronize() error { return g.run("cuCtxSynchronize", g.CtxSynchronize) }

// Close unloads the modules and gives the context back. The device cannot be used afterwards.
func (g *gpu) Close() error {
	var errs []error
	g.do(func() {
		for _, m := range g.modules {
			errs = append(errs, g.fail("cuModuleUnload", g.ModuleUnload(m)))
		}
		errs = append(errs, g.fail("cuDevicePrimaryCtxRelease_v2", g.PrimaryRelease(g.device)))
	})
	close(g.calls)
	return errors.Join(errs...)
}

// Time returns the milliseconds that the device took for what f launched.
func (g *gpu) Time(f func() error) (ms float32, err error) {
	var events [2]uintptr
	for i := range events {
		if err := g.run("cuEventCreate", func() int32 { return g.EventCreate(&events[i], 0) }); err != nil {
			return 0, err
		}
		defer g.run("cuEventDestroy_v2", func() int32 { return g.EventDestroy(events[i]) })
	}
	if err := g.run("cuEventRecord", func() int32 { return g.EventRecord(events[0], 0) }); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := g.run("cuEventRecord", func() int32 { return g.EventRecord(events[1], 0) }); err != nil {
		return 0, err
	}
	if err := g.run("cuEventSynchronize", func() int32 { return g.EventSynchronize(events[1]) }); err != nil {
		return 0, err
	}
	err = g.run("cuEventElapsedTime", func() int32 { return g.EventElapsedTime(&ms, events[0], events[1]) })
	return ms, err
}

// Options of the compiler inside of the driver (CUjit_option): where it writes its log of errors, and how long that may be.
const (
	jitErrorLog     = 5
	jitErrorLogSize = 6
	jitLogBytes     = 1 << 14
)

func (g *gpu) Load(ptx string) (Module, error) {
	parsed, err := parse(ptx)
	if err != nil {
		return nil, err
	}
	image, log := append([]byte(ptx), 0), make([]byte, jitLogBytes)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&log[0])
	options, values := []int32{jitErrorLog, jitErrorLogSize}, []uintptr{uintptr(unsafe.Pointer(&log[0])), jitLogBytes}
	var m uintptr
	err = g.run("cuModuleLoadDataEx", func() int32 {
		return g.ModuleLoadDataEx(&m, unsafe.Pointer(&image[0]), uint32(len(options)), &options[0], &values[0])
	})
	if err != nil {
		text, _, _ := bytes.Cut(log, []byte{0})
		return nil, fmt.Errorf("%w\n%s\nThe PTX is of ISA %s for %s: a driver that is older refuses it; make ptx with an older compiler writes it anew", err, bytes.TrimSpace(text), parsed.Version, parsed.Target)
	}
	g.modules = append(g.modules, m)
	return gpuModule{g, m, ptx}, nil
}

type gpuModule struct {
	device *gpu
	handle uintptr
	ptx    string
}

func (m gpuModule) Kernel(name string) (Kernel, error) {
	parsed, err := parse(m.ptx)
	if err != nil {
		return nil, err
	}
	layout, err := parsed.Kernel(name)
	if err != nil {
		return nil, err
	}
	var f uintptr
	text := append([]byte(name), 0)
	if err := m.device.run("cuModuleGetFunction", func() int32 { return m.device.ModuleGetFunction(&f, m.handle, &text[0]) }); err != nil {
		return nil, err
	}
	return gpuKernel{m.device, f, layout}, nil
}
