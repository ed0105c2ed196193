package ptxsim

import "math/bits"

func init() {
	for _, w := range []int{16, 32, 64} {
		mask := uint64(1)<<w - 1
		if w == 64 {
			mask = ^uint64(0)
		}
		signed := func(v uint64) int64 { return int64(v<<(64-w)) >> (64 - w) }
		of := func(op string, kinds string) (names []string) {
			for _, k := range kinds {
				names = append(names, op+"."+string(k)+itoa(w))
			}
			return names
		}
		binary(w, w, w, func(a, b uint64) uint64 { return (a + b) & mask }, of("add", "us")...)
		binary(w, w, w, func(a, b uint64) uint64 { return (a - b) & mask }, of("sub", "us")...)
		binary(w, w, w, func(a, b uint64) uint64 { return (a * b) & mask }, of("mul.lo", "us")...)
		ternary(w, w, w, w, func(a, b, c uint64) uint64 { return (a*b + c) & mask }, of("mad.lo", "us")...)
		binary(w, w, w, func(a, b uint64) uint64 { return min(a, b) }, of("min", "u")...)
		binary(w, w, w, func(a, b uint64) uint64 { return max(a, b) }, of("max", "u")...)
		binary(w, w, w, func(a, b uint64) uint64 { return uint64(min(signed(a), signed(b))) & mask }, of("min", "s")...)
		binary(w, w, w, func(a, b uint64) uint64 { return uint64(max(signed(a), signed(b))) & mask }, of("max", "s")...)
		binary(w, w, w, func(a, b uint64) uint64 { return a & b }, of("and", "b")...)
		binary(w, w, w, func(a, b uint64) uint64 { return a | b }, of("or", "b")...)
		binary(w, w, w, func(a, b uint64) uint64 { return a ^ b }, of("xor", "b")...)
		unary(w, w, func(a uint64) uint64 { return ^a & mask }, of("not", "b")...)
		unary(w, w, func(a uint64) uint64 { return -a & mask }, of("neg", "s")...)
		unary(w, w, func(a uint64) uint64 {
			if signed(a) < 0 {
				return -a & mask
			}
			return a
		}, of("abs", "s")...)
		// A shift by the width or more leaves nothing, or the sign; the amount has 32 bits and no sign.
		binary(w, w, 32, func(a, b uint64) uint64 { return a << b & mask }, of("shl", "b")...)
		binary(w, w, 32, func(a, b uint64) uint64 { return a >> b }, of("shr", "ub")...)
		binary(w, w, 32, func(a, b uint64) uint64 { return uint64(signed(a)>>min(b, 63)) & mask }, of("shr", "s")...)
		// A division by 0 has no defined value: all ones, as on the devices there are.
		binary(w, w, w, func(a, b uint64) uint64 {
			if b == 0 {
				return mask
			}
			return a / b
		}, of("div", "u")...)
		binary(w, w, w, func(a, b uint64) uint64 {
			if b == 0 {
				return mask
			}
			return uint64(signed(a)/signed(b)) & mask
		}, of("div", "s")...)
		binary(w, w, w, func(a, b uint64) uint64 {
			if b == 0 {
				return a
			}
			return a % b
		}, of("rem", "u")...)
		binary(w, w, w, func(a, b uint64) uint64 {
			if b == 0 {
				return a
			}
			return uint64(signed(a)%signed(b)) & mask
		}, of("rem", "s")...)
		for name, test := range map[string]func(a, b uint64) bool{
			"eq": func(a, b uint64) bool { return a == b }, "ne": func(a, b uint64) bool { return a != b },
		} {
			for _, k := range "usb" {
				compare(name+"."+string(k)+itoa(w), w, test)
			}
		}
		for name, test := range map[string]func(a, b int64) bool{
			"lt": func(a, b int64) bool { return a < b }, "le": func(a, b int64) bool { return a <= b },
			"gt": func(a, b int64) bool { return a > b }, "ge": func(a, b int64) bool { return a >= b },
		} {
			compare(name+".s"+itoa(w), w, func(a, b uint64) bool { return test(signed(a), signed(b)) })
			// Unsigned order is signed order with the sign bit turned.
			compare(name+".u"+itoa(w), w, func(a, b uint64) bool { return test(int64(a^1<<63), int64(b^1<<63)) })
		}
		for _, k := range "usbf" {
			selectAndMove(string(k)+itoa(w), w)
		}
	}
	binary(64, 32, 32, func(a, b uint64) uint64 { return a * b }, "mul.wide.u32")
	binary(64, 32, 32, func(a, b uint64) uint64 { return uint64(int64(int32(a)) * int64(int32(b))) }, "mul.wide.s32")
	binary(32, 16, 16, func(a, b uint64) uint64 { return a * b }, "mul.wide.u16")
	binary(32, 16, 16, func(a, b uint64) uint64 { return low32(uint64(int32(int16(a)) * int32(int16(b)))) }, "mul.wide.s16")
	ternary(64, 32, 32, 64, func(a, b, c uint64) uint64 { return a*b + c }, "mad.wide.u32")
	ternary(64, 32, 32, 64, func(a, b, c uint64) uint64 { return uint64(int64(int32(a))*int64(int32(b))) + c }, "mad.wide.s32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return a * b >> 32 }, "mul.hi.u32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return low32(uint64(int64(int32(a)) * int64(int32(b)) >> 32)) }, "mul.hi.s32")
	binary(64, 64, 64, func(a, b uint64) uint64 { hi, _ := bits.Mul64(a, b); return hi }, "mul.hi.u64")
	unary(32, 32, func(a uint64) uint64 { return uint64(bits.OnesCount32(uint32(a))) }, "popc.b32")
	unary(32, 64, func(a uint64) uint64 { return uint64(bits.OnesCount64(a)) }, "popc.b64")
	unary(32, 32, func(a uint64) uint64 { return uint64(bits.LeadingZeros32(uint32(a))) }, "clz.b32")
	unary(32, 32, func(a uint64) uint64 { return uint64(bits.Reverse32(uint32(a))) }, "brev.b32")
	ternary(32, 32, 32, 32, func(a, pos, n uint64) uint64 { return extract(a, pos, n, false) }, "bfe.u32")
	ternary(32, 32, 32, 32, func(a, pos, n uint64) uint64 { return extract(a, pos, n, true) }, "bfe.s32")
	ternary(32, 32, 32, 32, permute, "prmt.b32")
	ternary(32, 32, 32, 32, func(lo, hi, n uint64) uint64 { return low32((hi<<32 | lo) >> (n & 31)) }, "shf.r.wrap.b32")
	ternary(32, 32, 32, 32, func(lo, hi, n uint64) uint64 { return (hi<<32 | lo) << (n & 31) >> 32 }, "shf.l.wrap.b32")
	ternary(32, 32, 32, 32, func(a, b, c uint64) uint64 { return low32(dp4a(a, b) + c) }, "dp4a.s32.s32")
	builders["bfi.b32"] = func(c *compiler) exec {
		d, a, b, pos, n := c.dst(32), c.src(32), c.src(32), c.src(32), c.src(32)
		return func(w *warp, m uint32) {
			x, y, p, k := a.get(w, m), b.get(w, m), pos.get(w, m), n.get(w, m)
			z := d.put(w, m)
			for l := range 32 {
				if m>>l&1 != 0 {
					at, width := p[l]&255, k[l]&255
					field := low32((uint64(1)<<min(width, 32) - 1) << at)
					z[l] = low32(y[l]&^field | x[l]<<at&field)
				}
			}
		}
	}
	predicates("and", func(a, b uint32) uint32 { return a & b })
	predicates("or", func(a, b uint32) uint32 { return a | b })
	predicates("xor", func(a, b uint32) uint32 { return a ^ b })
	builders["not.pred"] = func(c *compiler) exec {
		d, a := c.pred(), c.predSource()
		return func(w *warp, m uint32) { w.setPred(d, m, ^a.get(w, m)) }
	}
	builders["mov.pred"] = func(c *compiler) exec {
		d, a := c.pred(), c.predSource()
		return func(w *warp, m uint32) { w.setPred(d, m, a.get(w, m)) }
	}
	builders["mov.b32"] = moveHalves(32, 16)
	builders["mov.b64"] = moveHalves(64, 32)
}

func itoa(w int) string { return map[int]string{8: "8", 16: "16", 32: "32", 64: "64"}[w] }

// extract takes n bits of a from pos on; beyond the highest bit stands the sign of the field.
func extract(a, pos, n uint64, signed bool) uint64 {
	pos, n = pos&255, n&255
	if n == 0 {
		return 0
	}
	top := min(pos+n-1, 31)
	fill := signed && a>>top&1 != 0
	var v uint64
	for i := range min(n, 32) {
		bit := fill
		if pos+i <= 31 {
			bit = a>>(pos+i)&1 != 0
		}
		if bit {
			v |= 1 << i
		}
	}
	if fill {
		for i := n; i < 32; i++ {
			v |= 1 << i
		}
	}
	return low32(v)
}

// permute picks four of the eight bytes of b:a; bit 3 of a selector spreads the sign of the byte instead.
func permute(a, b, selectors uint64) uint64 {
	all := b<<32 | a
	var v uint64
	for i := range 4 {
		s := selectors >> (4 * i) & 15
		x := all >> (8 * (s & 7)) & 255
		if s&8 != 0 {
			x = uint64(uint8(int8(x) >> 7))
		}
		v |= x << (8 * i)
	}
	return v
}

func dp4a(a, b uint64) uint64 {
	var s int32
	for i := range 4 {
		s += int32(int8(a>>(8*i))) * int32(int8(b>>(8*i)))
	}
	return uint64(uint32(s))
}

// compare registers setp, alone and joined with a predicate.
func compare(name string, bits int, test func(a, b uint64) bool) {
	run := func(w *warp, m uint32, a, b source) uint32 {
		x, y := a.get(w, m), b.get(w, m)
		var p uint32
		for l := range 32 {
			if m>>l&1 != 0 && test(x[l], y[l]) {
				p |= 1 << l
			}
		}
		return p
	}
	builders["setp."+name] = func(c *compiler) exec {
		d, a, b := c.pred(), c.src(bits), c.src(bits)
		return func(w *warp, m uint32) { w.setPred(d, m, run(w, m, a, b)) }
	}
	cmp, kind := name[:len(name)-len(kindOf(name))-1], kindOf(name)
	for join, f := range map[string]func(p, q uint32) uint32{
		"and": func(p, q uint32) uint32 { return p & q }, "or": func(p, q uint32) uint32 { return p | q }, "xor": func(p, q uint32) uint32 { return p ^ q },
	} {
		builders["setp."+cmp+"."+join+"."+kind] = func(c *compiler) exec {
			d, a, b, q := c.pred(), c.src(bits), c.src(bits), c.predSource()
			return func(w *warp, m uint32) { w.setPred(d, m, f(run(w, m, a, b), q.get(w, m))) }
		}
	}
}

func kindOf(name string) string {
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '.' {
			return name[i+1:]
		}
	}
	return name
}

func selectAndMove(kind string, bits int) {
	builders["selp."+kind] = func(c *compiler) exec {
		d, a, b, p := c.dst(bits), c.src(bits), c.src(bits), c.predSource()
		return func(w *warp, m uint32) {
			// Only the operand that is taken must hold something.
			q := p.get(w, m)
			x, y := a.get(w, m&q), b.get(w, m&^q)
			z := d.put(w, m)
			for l := range 32 {
				if m>>l&1 != 0 {
					if q>>l&1 != 0 {
						z[l] = x[l]
					} else {
						z[l] = y[l]
					}
				}
			}
		}
	}
	builders["mov."+kind] = func(c *compiler) exec {
		d, a := c.dst(bits), c.src(0)
		if a.reg >= 0 && bits == 16 {
			c.fail("mov.%s from a wider register", kind)
		}
		return move(d, a)
	}
	if bits == 16 {
		builders["mov."+kind] = func(c *compiler) exec { return move(c.dst(16), c.src(16)) }
	}
}

func move(d target, a source) exec {
	return func(w *warp, m uint32) {
		x := a.get(w, m)
		y := d.put(w, m)
		if m == full {
			*y = *x
			return
		}
		for l := range 32 {
			if m>>l&1 != 0 {
				y[l] = x[l]
			}
		}
	}
}

// moveHalves reads mov.b32 %r, {%rs1, %rs2}, mov.b32 {%rs1, %rs2}, %r and the plain move.
func moveHalves(bits, half int) func(c *compiler) exec {
	return func(c *compiler) exec {
		if len(c.args) == 2 && c.args[0] != "" && c.args[0][0] == '{' {
			d, a := c.targets(2, half), c.src(bits)
			return func(w *warp, m uint32) {
				x := a.get(w, m)
				lo, hi := d[0].put(w, m), d[1].put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						v := x[l]
						lo[l], hi[l] = v&(1<<half-1), v>>half
					}
				}
			}
		}
		if len(c.args) == 2 && c.args[1] != "" && c.args[1][0] == '{' {
			d, a := c.dst(bits), c.sources(2, half)
			return func(w *warp, m uint32) {
				lo, hi := a[0].get(w, m), a[1].get(w, m)
				y := d.put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						y[l] = hi[l]<<half | lo[l]
					}
				}
			}
		}
		return move(c.dst(bits), c.src(bits))
	}
}

// predSource is a predicate that is read; ! turns it.
type predSource struct {
	index int
	not   bool
	value int // −1: a predicate, 0 or 1: a number
}

func (c *compiler) predSource() predSource {
	name := c.arg()
	switch name {
	case "0":
		return predSource{value: 0}
	case "1", "-1":
		return predSource{value: 1}
	}
	s := predSource{value: -1}
	if name != "" && name[0] == '!' {
		s.not, name = true, name[1:]
	}
	s.index = c.predicate(name)
	return s
}

func (s predSource) get(w *warp, m uint32) uint32 {
	switch s.value {
	case 0:
		return 0
	case 1:
		return full
	}
	p := w.pred(s.index, m)
	if s.not {
		return ^p
	}
	return p
}

func predicates(name string, f func(a, b uint32) uint32) {
	builders[name+".pred"] = func(c *compiler) exec {
		d, a, b := c.pred(), c.predSource(), c.predSource()
		return func(w *warp, m uint32) { w.setPred(d, m, f(a.get(w, m), b.get(w, m))) }
	}
}
