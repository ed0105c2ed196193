package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"
)

// Host runs the ops of this package on memory of the host: each uploads its operands, launches, and copies the results back. On a GPU every
// buffer lies between two sentinels, which are looked at when the op is done; in the simulator a byte beyond a buffer is a finding.
//
// With several devices an op runs on each, and all must give the same bits. The ops have the signatures of the specs in verify/op and no
// error: a call that fails panics with a [*HostError].
type Host struct {
	devices []*Context
}

// NewHost returns the ops of devices, of one at least.
func NewHost(devices ...Device) *Host {
	h := &Host{}
	for _, d := range devices {
		c := NewContext(d)
		c.listed = true
		h.devices = append(h.devices, c)
	}
	return h
}

// HostError is why an op could not run on a device.
type HostError struct {
	Variant string
	Err     error
}

func (e *HostError) Error() string    { return e.Err.Error() }
func (e *HostError) Unwrap() error    { return e.Err }
func (e *HostError) OnDevice() string { return e.Variant }

// Launched are the kernels that the first device launched since the last call.
func (h *Host) Launched() []string {
	list := h.devices[0].launched
	h.devices[0].launched = nil
	return list
}

// exact reports whether a device watches every byte itself, so that buffers need no sentinels and what nothing wrote is known.
func exact(d Device) bool { return d.Variant() == "sim" || d.Variant() == "record" }

// sentinel is what lies before and behind a buffer, in bytes.
const (
	sentinel     = 256
	sentinelByte = 0xa5
)

// call is one op on one device.
type call struct {
	c       *Context
	err     error
	held    []held
	results []result
}

type held struct {
	start   Pointer
	bytes   int64
	guarded bool
}

type result struct {
	bytes []byte // as the device has them
	from  Pointer
	store func() // to the caller's memory
}

func (h *Host) run(f func(k *call)) {
	var first *call
	for i, c := range h.devices {
		k := &call{c: c}
		f(k)
		k.do(c.Synchronize())
		k.finish()
		if k.err != nil {
			panic(&HostError{c.Variant(), k.err})
		}
		if i == 0 {
			first = k
			continue
		}
		c.launched = nil
		for j, r := range k.results {
			if !bytes.Equal(r.bytes, first.results[j].bytes) {
				panic(&HostError{c.Variant(), fmt.Errorf("cuda: device %d gives other bits than the first: result %d", i, j)})
			}
		}
	}
	for _, r := range first.results {
		r.store()
	}
}

func (k *call) do(err error) {
	if k.err == nil {
		k.err = err
	}
}

// alloc returns memory for n elements; with a GPU it lies between sentinels.
func alloc[T Number](k *call, n int) Pointer {
	if n == 0 || k.err != nil {
		return 0
	}
	size := int64(n) * int64(unsafe.Sizeof(*new(T)))
	if exact(k.c) {
		p, err := k.c.Alloc(size)
		k.do(err)
		k.held = append(k.held, held{p, size, false})
		return p
	}
	p, err := k.c.Alloc(size + 2*sentinel)
	k.do(err)
	if err != nil {
		return 0
	}
	k.held = append(k.held, held{p, size, true})
	guard := bytes.Repeat([]byte{sentinelByte}, sentinel)
	k.do(k.c.Upload(p, guard))
	k.do(k.c.Upload(p+Pointer(sentinel+size), guard))
	return p + sentinel
}

// finish looks at the sentinels, fetches the results and frees what was allocated.
func (k *call) finish() {
	for i, h := range k.held {
		if !h.guarded || k.err != nil {
			continue
		}
		side := make([]byte, sentinel)
		for _, at := range []int64{0, sentinel + h.bytes} {
			k.do(k.c.Download(side, h.start+Pointer(at)))
			for j, b := range side {
				if b != sentinelByte && k.err == nil {
					k.err = fmt.Errorf("cuda: a sentinel was overwritten %d bytes from the start of operand %d of %d bytes, by one of the kernels %v",
						at+int64(j)-sentinel, i, h.bytes, slices.Compact(slices.Clone(k.c.launched)))
				}
			}
		}
	}
	for _, r := range k.results {
		if k.err == nil && len(r.bytes) > 0 {
			k.do(k.c.Download(r.bytes, r.from))
		}
	}
	var errs []error
	for _, h := range k.held {
		errs = append(errs, k.c.Free(h.start))
	}
	k.do(errors.Join(errs...))
}

// in uploads a matrix whose rows lie ld apart, as rows that lie to apart on the device. What lies between them is never to be read.
func in[T Number](k *call, x []T, rows, cols, ld, to int) Pointer {
	if rows*cols == 0 {
		return 0
	}
	dense := x[:min(len(x), rows*to)]
	if ld != to || len(x) < rows*to {
		dense = make([]T, rows*to)
		for i := range raw(dense) {
			raw(dense)[i] = 0x7f
		}
		for i := range rows {
			copy(dense[i*to:], x[i*ld:i*ld+cols])
		}
	}
	p := alloc[T](k, len(dense))
	if k.err == nil {
		k.do(k.c.Upload(p, raw(dense)))
	}
	return p
}

// vector uploads x; nil is the pointer 0.
func vector[T Number](k *call, x []T) Pointer { return in(k, x, 1, len(x), len(x), len(x)) }

// out returns memory for a result [rows, cols], dense on the device, that is stored in dst with rows ld apart. A kernel that reads what dst holds
// says so; else the memory holds nothing in the simulator and what dst held on a GPU.
func out[T Number](k *call, dst []T, rows, cols, ld int, read bool) Pointer {
	if rows*cols == 0 {
		return 0
	}
	var p Pointer
	if read || !exact(k.c) {
		p = in(k, dst, rows, cols, ld, cols)
	} else {
		p = alloc[T](k, rows*cols)
	}
	got := make([]T, rows*cols)
	k.results = append(k.results, result{raw(got), p, func() {
		for i := range rows {
			copy(dst[i*ld:i*ld+cols], got[i*cols:(i+1)*cols])
		}
	}})
	return p
}

// flat is out for a vector that the kernel does not read, inout for one that it does.
func flat[T Number](k *call, dst []T) Pointer  { return out(k, dst, 1, len(dst), len(dst), false) }
func inout[T Number](k *call, dst []T) Pointer { return out(k, dst, 1, len(dst), len(dst), true) }

// scratch is memory that stays on the device.
func scratch(k *call, n int) Pointer { return alloc[float32](k, n) }

func (k *call) launch(f func() error) {
	if k.err == nil {
		k.err = f()
	}
}
