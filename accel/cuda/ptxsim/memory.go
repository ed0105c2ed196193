package ptxsim

import (
	"cmp"
	"fmt"
	"sort"
)

// Memory is the global memory of a simulated device. Every allocation stands alone: what lies between two belongs to nobody.
type Memory struct {
	Limit  int64 // bytes that may be allocated at a time; 0: 1 GiB
	used   int64
	next   uint64
	blocks []*allocation // by address
	launch uint32        // counts launches: marks of an earlier one mean nothing
}

type allocation struct {
	base  uint64
	data  []byte
	set   []bool
	marks []mark // of four bytes each, made when a kernel first touches the allocation
}

const firstAddress = 0x10_0000_0000

// Alloc returns the address of n bytes, a multiple of 256, that nothing has written yet.
func (m *Memory) Alloc(n int64) (uint64, error) {
	limit := cmp.Or(m.Limit, 1<<30)
	if n <= 0 || n > limit-m.used {
		return 0, fmt.Errorf("ptxsim: no memory for %d bytes: %d of %d are in use", n, m.used, limit)
	}
	m.next = cmp.Or(m.next, firstAddress)
	a := &allocation{base: m.next, data: make([]byte, n), set: make([]bool, n)}
	m.blocks = append(m.blocks, a)
	m.used += n
	m.next += (uint64(n)+255)&^255 + 256
	return a.base, nil
}

// Free gives an allocation back. Its addresses are never used again.
func (m *Memory) Free(address uint64) error {
	for i, a := range m.blocks {
		if a.base == address {
			m.used -= int64(len(a.data))
			m.blocks = append(m.blocks[:i], m.blocks[i+1:]...)
			return nil
		}
	}
	return fmt.Errorf("ptxsim: nothing was allocated at %#x", address)
}

// Used is how many bytes are allocated.
func (m *Memory) Used() int64 { return m.used }

// find returns the allocation that holds the byte at an address, or nil.
func (m *Memory) find(address uint64) *allocation {
	i := sort.Search(len(m.blocks), func(i int) bool { return m.blocks[i].base > address })
	if i == 0 {
		return nil
	}
	if a := m.blocks[i-1]; address-a.base < uint64(len(a.data)) {
		return a
	}
	return nil
}

func (m *Memory) span(address uint64, n int) (*allocation, int, error) {
	a := m.find(address)
	if a == nil || uint64(n) > uint64(len(a.data))-(address-a.base) {
		return nil, 0, fmt.Errorf("ptxsim: no allocation holds %d bytes at %#x", n, address)
	}
	return a, int(address - a.base), nil
}

// Write copies bytes of the host to an address.
func (m *Memory) Write(address uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	a, at, err := m.span(address, len(b))
	if err != nil {
		return err
	}
	copy(a.data[at:], b)
	for i := range b {
		a.set[at+i] = true
	}
	return nil
}

// Read copies bytes to the host. What nothing has written is an error.
func (m *Memory) Read(b []byte, address uint64) error {
	if len(b) == 0 {
		return nil
	}
	a, at, err := m.span(address, len(b))
	if err != nil {
		return err
	}
	for i := range b {
		if !a.set[at+i] {
			return fmt.Errorf("ptxsim: byte %#x is read by the host and was never written", address+uint64(i))
		}
	}
	copy(b, a.data[at:])
	return nil
}

// mark says who touched some bytes last. Accesses are ordered within a thread, by a barrier between the threads of a block, by
// bar.warp.sync between the lanes of a warp, and by nothing between blocks of a launch.
type mark struct {
	launch           uint32 // for which the fields hold
	wBlock, rBlock   uint32 // 1 + the block; 0: nobody
	wEpoch, rEpoch   uint32 // barriers of that block before the access
	wSync, rSync     uint32 // bar.warp.sync of that warp before the access
	wThread, rThread int16
	rLanes, rWarps   bool // read by several lanes of a warp; by several warps
	rBlocks          bool // read by several blocks
	pending          bool // an asynchronous copy is on its way
	pendingBy        int16
	written          bool // shared memory: something was written since the block began
	atomic           bool // the last write was atomic
}

// who is the thread that makes an access.
type who struct {
	block, epoch, sync uint32
	thread             int16
}

func (k *mark) fresh(launch uint32) {
	if k.launch != launch {
		*k = mark{launch: launch}
	}
}

// ordered says whether an access by thread t of a block, in an epoch and after sync steps of its warp, comes before one by w.
func (w who) after(block, epoch, sync uint32, t int16) bool {
	switch {
	case block != w.block:
		return false
	case t == w.thread || epoch != w.epoch:
		return true
	}
	return t>>5 == w.thread>>5 && sync != w.sync
}

// read notes a read and says whether it races with a write.
func (k *mark) read(w who) bool {
	if k.wBlock != 0 && !w.after(k.wBlock, k.wEpoch, k.wSync, k.wThread) {
		return false
	}
	switch {
	case k.rBlock == 0:
		k.rBlock, k.rThread, k.rLanes, k.rWarps = w.block, w.thread, false, false
	case k.rBlock != w.block:
		k.rBlocks = true
	case k.rEpoch != w.epoch:
		k.rThread, k.rLanes, k.rWarps = w.thread, false, false
	case k.rThread>>5 != w.thread>>5:
		k.rWarps = true
	case k.rThread != w.thread && k.rSync == w.sync:
		k.rLanes = true
	case k.rThread != w.thread:
		k.rThread, k.rLanes = w.thread, false
	}
	k.rEpoch, k.rSync = w.epoch, w.sync
	return true
}

// mayWrite says whether a write comes after all accesses before it.
func (k *mark) mayWrite(w who, atomic bool) bool {
	if k.wBlock != 0 && !(atomic && k.atomic) && !w.after(k.wBlock, k.wEpoch, k.wSync, k.wThread) {
		return false
	}
	switch {
	case k.rBlock == 0:
		return true
	case k.rBlocks || k.rBlock != w.block:
		return false
	case k.rEpoch != w.epoch:
		return true
	case k.rWarps || k.rThread>>5 != w.thread>>5:
		return false
	case k.rLanes:
		return k.rSync != w.sync
	}
	return k.rThread == w.thread || k.rSync != w.sync
}

func (k *mark) write(w who, atomic bool) {
	k.wBlock, k.wEpoch, k.wSync, k.wThread, k.atomic = w.block, w.epoch, w.sync, w.thread, atomic
	k.rBlock, k.rBlocks, k.rLanes, k.rWarps = 0, false, false, false
	k.written = true
}
