package ptxsim

import "strings"

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
				v := little(w.Args[p.Offset:], p.Size)
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
