package cuda

import (
	"cmp"
	"fmt"

	"plumbline/accel/cuda/ptxsim"
)

// Simulated is a device that interprets PTX. It counts what its kernels do.
type Simulated struct {
	Options ptxsim.Options
	Stats   map[string]ptxsim.Stats // by kernel, of all launches
	memory  ptxsim.Memory
	limit   int64
}

// Simulator returns a device with so many bytes of memory; 0 is 1 GiB.
func Simulator(o ptxsim.Options, bytes int64) *Simulated {
	bytes = cmp.Or(bytes, 1<<30)
	return &Simulated{Options: o, Stats: map[string]ptxsim.Stats{}, memory: ptxsim.Memory{Limit: bytes}, limit: bytes}
}

// Name says that nothing here is a GPU.
func (s *Simulated) Name() string { return "PTX simulator" }

// Variant is "sim".
func (s *Simulated) Variant() string { return "sim" }

// Memory is what was not allocated, of the limit.
func (s *Simulated) Memory() (free, total int64, err error) {
	return s.limit - s.memory.Used(), s.limit, nil
}

// Alloc returns memory that nothing has written: reading it is a finding.
func (s *Simulated) Alloc(n int64) (Pointer, error) {
	p, err := s.memory.Alloc(n)
	return Pointer(p), err
}

// Free gives memory back.
func (s *Simulated) Free(p Pointer) error { return s.memory.Free(uint64(p)) }

// Upload copies to the device.
func (s *Simulated) Upload(dst Pointer, src []byte) error { return s.memory.Write(uint64(dst), src) }

// Download copies from the device; bytes that nothing has written are an error.
func (s *Simulated) Download(dst []byte, src Pointer) error { return s.memory.Read(dst, uint64(src)) }

// Load parses a PTX text.
func (s *Simulated) Load(ptx string) (Module, error) {
	m, err := parse(ptx)
	if err != nil {
		return nil, err
	}
	return simulatedModule{s, m}, nil
}

// Synchronize has nothing to wait for.
func (s *Simulated) Synchronize() error { return nil }

// Close frees nothing: the memory is Go's.
func (s *Simulated) Close() error { return nil }

type simulatedModule struct {
	device *Simulated
	module *ptxsim.Module
}

func (m simulatedModule) Kernel(name string) (Kernel, error) {
	k, err := m.module.Kernel(name)
	if err != nil {
		return nil, err
	}
	return simulatedKernel{m.device, k}, nil
}

type simulatedKernel struct {
	device *Simulated
	kernel *ptxsim.Kernel
}

func (k simulatedKernel) Launch(grid, block [3]int, shared int, args ...any) error {
	packed, err := pack(k.kernel.Name, k.kernel.Params, args)
	if err != nil {
		return err
	}
	stats, err := k.kernel.Run(&k.device.memory, ptxsim.Launch{Grid: grid, Block: block, Shared: shared, Args: packed, Options: k.device.Options})
	sum := k.device.Stats[k.kernel.Name]
	sum.Add(stats)
	k.device.Stats[k.kernel.Name] = sum
	if err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	return nil
}
