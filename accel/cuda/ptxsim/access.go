package ptxsim

import (
	"fmt"
	"strings"
)

func init() {
	for _, t := range []struct {
		kind   string
		bytes  int
		signed bool
	}{{"u8", 1, false}, {"s8", 1, true}, {"b8", 1, false}, {"u16", 2, false}, {"s16", 2, true}, {"b16", 2, false}, {"u32", 4, false}, {"s32", 4, true}, {"b32", 4, false},
		{"f32", 4, false}, {"u64", 8, false}, {"s64", 8, true}, {"b64", 8, false}, {"f64", 8, false}} {
		for _, n := range []int{1, 2, 4} {
			if n*t.bytes > 16 {
				continue
			}
			v := map[int]string{1: "", 2: ".v2", 4: ".v4"}[n]
			for _, space := range []string{"global", "global.nc", "shared"} {
				shared := space == "shared"
				builders["ld."+space+v+"."+t.kind] = func(c *compiler) exec { return c.load(n, t.bytes, t.signed, shared) }
				if space != "global.nc" {
					builders["st."+space+v+"."+t.kind] = func(c *compiler) exec { return c.store(n, t.bytes, shared) }
				}
			}
		}
		builders["ld.param."+t.kind] = func(c *compiler) exec { return c.loadParam(t.bytes) }
	}
	for _, op := range []string{"add", "min", "max", "exch", "and", "or", "xor"} {
		for _, kind := range []string{"u32", "s32", "b32", "f32", "u64", "f64"} {
			f := atomics[op+"."+kind]
			if f == nil {
				continue
			}
			size := widths[kind] / 8
			for _, space := range []string{"global", "shared"} {
				builders["atom."+space+"."+op+"."+kind] = func(c *compiler) exec { return c.atomic(f, size, space == "shared", true) }
				builders["red."+space+"."+op+"."+kind] = func(c *compiler) exec { return c.atomic(f, size, space == "shared", false) }
			}
		}
	}
	builders["cp.async.cg.shared.global"] = (*compiler).copyAsync
	builders["cp.async.ca.shared.global"] = (*compiler).copyAsync
	builders["cp.async.commit_group"] = func(c *compiler) exec {
		return func(w *warp, m uint32) {
			for l := range 32 {
				if m>>l&1 != 0 {
					w.groups[l]++
				}
			}
		}
	}
	builders["cp.async.wait_group"] = func(c *compiler) exec {
		n := c.src(32)
		if n.reg >= 0 {
			c.fail("cp.async.wait_group takes a number")
			return nil
		}
		return func(w *warp, m uint32) { w.wait(m, int(n.fixed[0])) }
	}
	builders["cp.async.wait_all"] = func(c *compiler) exec {
		return func(w *warp, m uint32) {
			for l := range 32 {
				if m>>l&1 != 0 {
					w.groups[l]++
				}
			}
			w.wait(m, 0)
		}
	}
	// Accesses happen in the order of the text here, so that a fence has nothing to do; it orders nothing between threads without a barrier.
	for _, name := range []string{"membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.gpu", "fence.acq_rel.cta", "fence.sc.gpu"} {
		builders[name] = func(c *compiler) exec { return func(*warp, uint32) {} }
	}
}

var atomics = map[string]func(old, v uint64) uint64{
	"add.u32": func(a, b uint64) uint64 { return low32(a + b) }, "add.s32": func(a, b uint64) uint64 { return low32(a + b) }, "add.u64": func(a, b uint64) uint64 { return a + b },
	"add.f32": func(a, b uint64) uint64 { return b32(f32(a) + f32(b)) }, "add.f64": func(a, b uint64) uint64 { return b64(f64(a) + f64(b)) },
	"min.u32": func(a, b uint64) uint64 { return min(a, b) }, "max.u32": func(a, b uint64) uint64 { return max(a, b) },
	"min.s32": func(a, b uint64) uint64 { return uint64(uint32(min(int32(a), int32(b)))) }, "max.s32": func(a, b uint64) uint64 { return uint64(uint32(max(int32(a), int32(b)))) },
	"exch.b32": func(_, b uint64) uint64 { return b }, "and.b32": func(a, b uint64) uint64 { return a & b }, "or.b32": func(a, b uint64) uint64 { return a | b },
	"xor.b32": func(a, b uint64) uint64 { return a ^ b },
}

func (c *compiler) registerBits(bytes int) int {
	if bytes == 1 {
		return 0 // a byte goes into a register of 16 bits or more
	}
	return bytes * 8
}

func (c *compiler) smallest(bytes int) { c.p.kernel.granule = min(c.p.kernel.granule, bytes) }

// addresses are 64 bits wide in global memory and 32 or 64 in shared memory.
func addressBits(shared bool) int {
	if shared {
		return 0
	}
	return 64
}

func (c *compiler) load(n, bytes int, signed, shared bool) exec {
	var d []target
	if n == 1 {
		d = []target{c.dst(c.registerBits(bytes))}
	} else {
		d = c.targets(n, c.registerBits(bytes))
	}
	width := 64
	if n == 1 && len(c.args) > 0 {
		width = c.p.regs[c.args[0]].bits
	}
	from := c.place(addressBits(shared))
	if shared {
		c.smallest(n * bytes)
	}
	return func(w *warp, m uint32) {
		base := from.base.get(w, m)
		var cols [4]*[32]uint64
		for i := range d {
			cols[i] = d[i].put(w, m)
		}
		w.touch(base, from.offset, n*bytes, m, shared)
		for l := range 32 {
			if m>>l&1 == 0 {
				continue
			}
			b := w.bytes(base[l]+from.offset, n*bytes, l, shared, false, false)
			if b == nil {
				return
			}
			for i := range d {
				v := little(b[i*bytes:], bytes)
				if signed && bytes < 8 {
					v = uint64(int64(v<<(64-8*bytes)) >> (64 - 8*bytes))
					if width < 64 {
						v &= 1<<width - 1
					}
				}
				cols[i][l] = v
			}
		}
	}
}

func (c *compiler) store(n, bytes int, shared bool) exec {
	to := c.place(addressBits(shared))
	var a []source
	if n == 1 {
		a = []source{c.src(c.registerBits(bytes))}
	} else {
		a = c.sources(n, c.registerBits(bytes))
	}
	if shared {
		c.smallest(n * bytes)
	}
	return func(w *warp, m uint32) {
		base := to.base.get(w, m)
		w.touch(base, to.offset, n*bytes, m, shared)
		var cols [4]*[32]uint64
		for i := range a {
			cols[i] = a[i].get(w, m)
		}
		for l := range 32 {
			if m>>l&1 == 0 {
				continue
			}
			b := w.bytes(base[l]+to.offset, n*bytes, l, shared, true, false)
			if b == nil {
				return
			}
			for i := range a {
				put(b[i*bytes:], cols[i][l], bytes)
			}
		}
	}
}

func (c *compiler) atomic(f func(old, v uint64) uint64, bytes int, shared, returns bool) exec {
	var d target
	if returns {
		d = c.dst(8 * bytes)
	}
	at, a := c.place(addressBits(shared)), c.src(8*bytes)
	if shared {
		c.smallest(bytes)
	}
	return func(w *warp, m uint32) {
		base, x := at.base.get(w, m), a.get(w, m)
		w.touch(base, at.offset, bytes, m, shared)
		var old *[32]uint64
		if returns {
			old = d.put(w, m)
		}
		for l := range 32 {
			if m>>l&1 == 0 {
				continue
			}
			b := w.bytes(base[l]+at.offset, bytes, l, shared, true, true)
			if b == nil {
				return
			}
			v := little(b, bytes)
			put(b, f(v, x[l]), bytes)
			if returns {
				old[l] = v
			}
		}
	}
}

func (c *compiler) loadParam(bytes int) exec {
	d := c.dst(c.registerBits(bytes))
	s := c.arg()
	name, extra, _ := strings.Cut(strings.Trim(s, "[]"), "+")
	for _, p := range c.p.kernel.Params {
		if p.Name == name {
			if extra != "" || bytes != p.Size {
				c.fail("%s reads %d bytes of a parameter of %d", c.op, bytes, p.Size)
			}
			return func(w *warp, m uint32) {
				v := w.argument(p.Offset, p.Size)
				y := d.put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						y[l] = v
					}
				}
			}
		}
	}
	c.fail("no parameter %s", s)
	return nil
}

func little(b []byte, n int) (v uint64) {
	for i := n - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

func put(b []byte, v uint64, n int) {
	for i := range n {
		b[i] = byte(v >> (8 * i))
	}
}

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

// copyAsync is cp.async of 4, 8 or 16 bytes, of which a fourth operand says how many come from memory.
func (c *compiler) copyAsync() exec {
	to, from := c.place(0), c.place(64)
	size := c.src(32)
	n := 0
	if size.reg < 0 {
		n = int(size.fixed[0])
	}
	if n != 4 && n != 8 && n != 16 || n != 16 && strings.Contains(c.op, ".cg.") {
		c.fail("%s of %d bytes", c.op, n)
	}
	some := fixed(uint64(n))
	if c.more() {
		some = c.src(32)
	}
	c.smallest(n)
	return func(w *warp, m uint32) {
		base, src, part := to.base.get(w, m), from.base.get(w, m), some.get(w, m)
		w.touch(base, to.offset, n, m, true)
		w.touch(src, from.offset, n, m, false)
		for l := range 32 {
			if m>>l&1 == 0 {
				continue
			}
			d, s, bytes := base[l]+to.offset, src[l]+from.offset, int(part[l])
			switch {
			case d%uint64(n) != 0 || s%uint64(n) != 0:
				w.fail(Misaligned, 1<<l, s, "cp.async of %d bytes from %#x to %#x", n, s, d)
			case d+uint64(n) > uint64(len(w.shared)):
				w.fail(Bounds, 1<<l, d, "cp.async to %d of %d bytes of shared memory", d, len(w.shared))
			case bytes > n || bytes < 0:
				w.fail(Bounds, 1<<l, s, "cp.async takes %d of %d bytes", bytes, n)
			}
			if w.failure != nil {
				return
			}
			who, g := w.who(l), w.kernel.granule
			for i := int(d) / g; i*g < int(d)+n; i++ {
				k := &w.marks[i]
				if k.pending {
					w.fail(Async, 1<<l, d, "an asynchronous copy of thread %d writes here, too", k.pendingBy)
					return
				}
				if !k.mayWrite(who, false) {
					w.fail(Race, 1<<l, d, "another thread touched this shared memory and no barrier came between")
					return
				}
				k.pending, k.pendingBy = true, who.thread
			}
			cp := copying{w.groups[l], int(d), s, bytes, n}
			if !w.Lazy && !w.transfer(&cp, l) {
				return
			}
			w.copies[l] = append(w.copies[l], cp)
		}
	}
}

// transfer moves the bytes of a copy and says whether it could.
func (w *warp) transfer(cp *copying, lane int) bool {
	clear(w.shared[cp.to : cp.to+cp.all])
	if cp.bytes == 0 {
		return true
	}
	a := w.memory.find(cp.from)
	if a == nil || uint64(len(a.data))-(cp.from-a.base) < uint64(cp.bytes) {
		w.fail(Bounds, 1<<lane, cp.from, "%s", outside(w.memory, cp.from, cp.bytes))
		return false
	}
	at := int(cp.from - a.base)
	for i := range cp.bytes {
		if !a.set[at+i] {
			w.fail(Uninitialised, 1<<lane, cp.from, "byte %d of %d was never written", i, cp.bytes)
			return false
		}
	}
	w.stats.GlobalBytes += uint64(cp.bytes)
	copy(w.shared[cp.to:], a.data[at:at+cp.bytes])
	return true
}

// wait ends the copies of a lane's groups but the last n.
func (w *warp) wait(m uint32, n int) {
	for l := range 32 {
		if m>>l&1 == 0 {
			continue
		}
		kept := w.copies[l][:0]
		for _, cp := range w.copies[l] {
			if cp.group >= w.groups[l]-n {
				kept = append(kept, cp)
				continue
			}
			if w.Lazy && !w.transfer(&cp, l) {
				return
			}
			who, g := w.who(l), w.kernel.granule
			for i := cp.to / g; i*g < cp.to+cp.all; i++ {
				w.marks[i].pending = false
				w.marks[i].write(who, false)
			}
		}
		w.copies[l] = kept
	}
}
