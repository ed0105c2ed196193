package ptxsim

import "strings"

func init() {
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
