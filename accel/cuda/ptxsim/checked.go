package ptxsim

import "fmt"

// bytes returns the bytes of an access by a lane, checked and noted; nil after a finding.
func (w *warp) bytes(addr uint64, n, lane int, shared, write, atomic bool) []byte {
	if addr%uint64(n) != 0 {
		w.fail(Misaligned, 1<<lane, addr, "%d bytes at an address that is no multiple of %d", n, n)
		return nil
	}
	if shared {
		return w.sharedBytes(addr, n, lane, write, atomic)
	}
	a := w.launch.last
	if a == nil || addr-a.base >= uint64(len(a.data)) {
		a = w.memory.find(addr)
	}
	if a == nil || uint64(len(a.data))-(addr-a.base) < uint64(n) {
		w.fail(Bounds, 1<<lane, addr, "%s", outside(w.memory, addr, n))
		return nil
	}
	w.launch.last = a
	if a.marks == nil {
		a.marks = make([]mark, (len(a.data)+3)/4)
	}
	at := int(addr - a.base)
	who := w.who(lane)
	w.stats.GlobalBytes += uint64(n)
	if !write || atomic {
		for i := range n {
			if !a.set[at+i] {
				w.fail(Uninitialised, 1<<lane, addr, "byte %d of %d was never written", i, n)
				return nil
			}
		}
	}
	// Writes of single bytes by neighbours share a mark: only accesses of four bytes and more are held against each other.
	if n >= 4 {
		for i := at / 4; i < (at+n)/4; i++ {
			k := &a.marks[i]
			k.fresh(w.id)
			if write && !k.mayWrite(who, atomic) || !write && !k.read(who) {
				w.fail(Race, 1<<lane, addr, "another thread touched these bytes and nothing came between")
				return nil
			}
			if write {
				k.write(who, atomic)
			}
		}
	}
	if write {
		for i := range n {
			a.set[at+i] = true
		}
	}
	return a.data[at : at+n]
}

// outside says how an access misses the allocation next to it.
func outside(m *Memory, addr uint64, n int) string {
	for _, a := range m.blocks {
		end := a.base + uint64(len(a.data))
		if addr < end && addr+uint64(n) > end || addr >= end && addr-end < 4096 {
			return fmt.Sprintf("%d bytes from %d bytes behind the start of an allocation of %d", n, addr-a.base, len(a.data))
		}
	}
	return fmt.Sprintf("%d bytes in no allocation", n)
}

func (w *warp) sharedBytes(addr uint64, n, lane int, write, atomic bool) []byte {
	if addr+uint64(n) > uint64(len(w.shared)) || addr > addr+uint64(n) {
		w.fail(Bounds, 1<<lane, addr, "%d bytes at %d of %d bytes of shared memory", n, addr, len(w.shared))
		return nil
	}
	who, g := w.who(lane), w.kernel.granule
	for i := int(addr) / g; i*g < int(addr)+n; i++ {
		k := &w.marks[i]
		switch {
		case k.pending:
			w.fail(Async, 1<<lane, addr, "an asynchronous copy of thread %d writes here and was not waited for", k.pendingBy)
		case (!write || atomic) && !k.written:
			w.fail(Uninitialised, 1<<lane, addr, "shared memory that nothing has written")
		case write && !k.mayWrite(who, atomic) || !write && !k.read(who):
			w.fail(Race, 1<<lane, addr, "another thread touched this shared memory and no barrier came between")
		}
		if w.failure != nil {
			return nil
		}
		if write {
			k.write(who, atomic)
		}
	}
	return w.shared[addr : addr+uint64(n)]
}

// touch counts sectors of 32 bytes, or passes over the 32 banks of 4 bytes: lanes that name one word share it. An access of 8 or 16
// bytes goes by half or quarter warps.
func (w *warp) touch(base *[32]uint64, offset uint64, n int, m uint32, shared bool) {
	if !shared {
		var seen [128]uint64
		count := 0
		for l := range 32 {
			if m>>l&1 == 0 {
				continue
			}
			for s := (base[l] + offset) / 32; s <= (base[l]+offset+uint64(n)-1)/32; s++ {
				known := false
				for i := count - 1; i >= 0 && !known; i-- {
					known = seen[i] == s
				}
				if !known && count < len(seen) {
					seen[count] = s
					count++
				}
			}
		}
		w.stats.Sectors += uint64(count)
		return
	}
	lanes := 32
	if n > 4 {
		lanes = 32 * 4 / n
	}
	for from := 0; from < 32; from += lanes {
		part := m >> from & uint32(1<<lanes-1)
		if part == 0 {
			continue
		}
		var words [32]uint64
		var used [32]int
		var more [32][]uint64
		passes := 0
		for l := range lanes {
			if part>>l&1 == 0 {
				continue
			}
			first := (base[from+l] + offset) / 4
			for k := range uint64(max(n/4, 1)) {
				word := first + k
				bank := word % 32
				known := used[bank] > 0 && words[bank] == word
				for _, o := range more[bank] {
					known = known || o == word
				}
				if !known {
					if used[bank] == 0 {
						words[bank] = word
					} else {
						more[bank] = append(more[bank], word)
					}
					used[bank]++
				}
				passes = max(passes, used[bank])
			}
		}
		w.stats.BankConflicts += uint64(passes - 1)
	}
}
