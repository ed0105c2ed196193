package ptxsim

import "math/bits"

func init() {
	builders["bar.warp.sync"] = func(c *compiler) exec {
		mask := c.src(32)
		return func(w *warp, m uint32) {
			if w.together(m, mask) {
				w.syncs++
			}
		}
	}
	for mode, from := range map[string]func(lane, b, c int) (int, bool){
		// The last operand clamps: bits 8 to 12 say which bits of the lane stay in the segment, bits 0 to 4 its end.
		"bfly": func(l, b, c int) (int, bool) { j := l ^ b; return j, j <= l&(c>>8)|c&31&^(c>>8) },
		"up":   func(l, b, c int) (int, bool) { j := l - b; return j, j >= l&(c>>8)|c&31&^(c>>8) },
		"down": func(l, b, c int) (int, bool) { j := l + b; return j, j <= l&(c>>8)|c&31&^(c>>8) },
		"idx": func(l, b, c int) (int, bool) {
			j := l&(c>>8) | b&^(c>>8)&31
			return j, j <= l&(c>>8)|c&31&^(c>>8)
		},
	} {
		builders["shfl.sync."+mode+".b32"] = func(c *compiler) exec { return c.shuffle(from) }
	}
	builders["vote.sync.ballot.b32"] = func(c *compiler) exec {
		d, p, mask := c.dst(32), c.predSource(), c.src(32)
		return func(w *warp, m uint32) {
			if w.together(m, mask) {
				v := uint64(p.get(w, m) & m)
				y := d.put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						y[l] = v
					}
				}
			}
		}
	}
	for name, test := range map[string]func(p, m uint32) bool{"all": func(p, m uint32) bool { return p == m }, "any": func(p, m uint32) bool { return p != 0 }} {
		builders["vote.sync."+name+".pred"] = func(c *compiler) exec {
			d, p, mask := c.pred(), c.predSource(), c.src(32)
			return func(w *warp, m uint32) {
				if w.together(m, mask) {
					var v uint32
					if test(p.get(w, m)&m, m) {
						v = full
					}
					w.setPred(d, m, v)
				}
			}
		}
	}
	builders["activemask.b32"] = func(c *compiler) exec {
		d := c.dst(32)
		return func(w *warp, m uint32) {
			y := d.put(w, m)
			for l := range 32 {
				if m>>l&1 != 0 {
					y[l] = uint64(m)
				}
			}
		}
	}
	builders["ldmatrix.sync.aligned.m8n8.x1.shared.b16"] = func(c *compiler) exec { return c.loadMatrix(1, false) }
	builders["ldmatrix.sync.aligned.m8n8.x2.shared.b16"] = func(c *compiler) exec { return c.loadMatrix(2, false) }
	builders["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = func(c *compiler) exec { return c.loadMatrix(4, false) }
	builders["ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16"] = func(c *compiler) exec { return c.loadMatrix(1, true) }
	builders["ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16"] = func(c *compiler) exec { return c.loadMatrix(2, true) }
	builders["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = func(c *compiler) exec { return c.loadMatrix(4, true) }
	builders["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"] = (*compiler).mmaS8
	builders["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = (*compiler).mmaBF16
}

// together demands that the lanes that run are those that the mask of the instruction names.
func (w *warp) together(m uint32, mask source) bool {
	v := mask.get(w, m)
	for l := range 32 {
		if m>>l&1 != 0 && uint32(v[l]) != m {
			w.fail(Inactive, 1<<l, 0, "the mask names lanes %08x, lanes %08x are here", uint32(v[l]), m)
			return false
		}
	}
	return true
}

// whole demands all 32 lanes, as instructions on matrices do.
func (w *warp) whole(m uint32) bool {
	if m != full {
		w.fail(Inactive, m, 0, "%d of 32 lanes are here", bits.OnesCount32(m))
		return false
	}
	return true
}

// shuffle is d|p = a of the lane that from names; where that lies outside of the segment, the lane's own.
func (c *compiler) shuffle(from func(lane, b, clamp int) (int, bool)) exec {
	name := c.arg()
	p := -1
	for i := range name {
		if name[i] == '|' {
			p = c.predicate(name[i+1:])
			name = name[:i]
			break
		}
	}
	d, a, b, clamp, mask := c.target(name, 32), c.src(32), c.src(32), c.src(32), c.src(32)
	return func(w *warp, m uint32) {
		if !w.together(m, mask) {
			return
		}
		x := *a.get(w, m)
		step, seg := b.get(w, m), clamp.get(w, m)
		y := d.put(w, m)
		var inside uint32
		for l := range 32 {
			if m>>l&1 == 0 {
				continue
			}
			j, ok := from(l, int(step[l]&31), int(seg[l]))
			if !ok {
				j = l
			} else {
				inside |= 1 << l
			}
			if m>>j&1 == 0 {
				w.fail(Inactive, 1<<l, 0, "lane %d reads lane %d, which is not here", l, j)
				return
			}
			y[l] = x[j]
		}
		if p >= 0 {
			w.setPred(p, m, inside)
		}
	}
}

// loadMatrix is ldmatrix: lane 8i+r names row r of matrix i, 16 bytes; lane l gets elements 2(l mod 4) and the next of row l/4 of each
// matrix, or with trans the elements of column l/4 in rows 2(l mod 4) and the next.
func (c *compiler) loadMatrix(n int, trans bool) exec {
	d, from := c.targets(n, 32), c.place(0)
	c.smallest(16)
	return func(w *warp, m uint32) {
		if !w.whole(m) {
			return
		}
		base := from.base.get(w, full)
		for i := range n {
			lanes := uint32(255) << (8 * i)
			w.touch(base, from.offset, 16, lanes, true)
			var rows [8][]byte
			for r := range 8 {
				if rows[r] = w.bytes(base[8*i+r]+from.offset, 16, 8*i+r, true, false, false); rows[r] == nil {
					return
				}
			}
			y := d[i].put(w, full)
			for l := range 32 {
				r, col := l/4, l%4*2
				if trans {
					y[l] = little(rows[col][2*r:], 2) | little(rows[col+1][2*r:], 2)<<16
				} else {
					y[l] = little(rows[r][2*col:], 4)
				}
			}
		}
	}
}

// fragments read the operands of mma: four registers of A, two of B, four of C.
func (c *compiler) fragments() (d []target, a, b, add []source) {
	return c.targets(4, 32), c.sources(4, 32), c.sources(2, 32), c.sources(4, 32)
}

// mmaS8 is D = A·B + C for 16×32 and 32×8 bytes. With g = lane/4 and t = lane mod 4, register i of A holds row g + 8(i mod 2) and
// columns 4t + 16(i/2) and the three after it, register i of B rows 4t + 16i … of column g, register i of C and D row g + 8(i/2),
// column 2t + i mod 2 (PTX ISA 9.0, fragments of mma.m16n8k32). Sums wrap.
func (c *compiler) mmaS8() exec {
	d, ra, rb, rc := c.fragments()
	return func(w *warp, m uint32) {
		if !w.whole(m) {
			return
		}
		w.stats.MMA++
		var a [16][32]int32
		var b [8][32]int32
		for i := range ra {
			x := ra[i].get(w, full)
			for l := range 32 {
				row, col := l/4+8*(i%2), 4*(l%4)+16*(i/2)
				for e := range 4 {
					a[row][col+e] = int32(int8(x[l] >> (8 * e)))
				}
			}
		}
		for i := range rb {
			x := rb[i].get(w, full)
			for l := range 32 {
				for e := range 4 {
					b[l/4][4*(l%4)+16*i+e] = int32(int8(x[l] >> (8 * e)))
				}
			}
		}
		for i := range d {
			x := *rc[i].get(w, full)
			y := d[i].put(w, full)
			for l := range 32 {
				row, col := &a[l/4+8*(i/2)], &b[2*(l%4)+i%2]
				s := int32(x[l])
				for k := range 32 {
					s += row[k] * col[k]
				}
				y[l] = uint64(uint32(s))
			}
		}
	}
}

// mmaBF16 is D = A·B + C for 16×16 and 16×8 numbers of bfloat16. Register i of A holds row g + 8(i mod 2) and columns 2t + 8(i/2) and
// the next, register i of B rows 2t + 8i and the next of column g; C and D as in mmaS8. The products of k = 0 … 7 are added exactly to C and the sum is
// rounded to float32, then those of k = 8 … 15: a model, since the ISA leaves order and rounding open.
func (c *compiler) mmaBF16() exec {
	d, ra, rb, rc := c.fragments()
	return func(w *warp, m uint32) {
		if !w.whole(m) {
			return
		}
		w.stats.MMA++
		half := func(v uint64, e int) float64 { return float64(f32(v >> (16 * e) & 0xffff << 16)) }
		var a [16][16]float64
		var b [8][16]float64
		for i := range ra {
			x := ra[i].get(w, full)
			for l := range 32 {
				for e := range 2 {
					a[l/4+8*(i%2)][2*(l%4)+8*(i/2)+e] = half(x[l], e)
				}
			}
		}
		for i := range rb {
			x := rb[i].get(w, full)
			for l := range 32 {
				for e := range 2 {
					b[l/4][2*(l%4)+8*i+e] = half(x[l], e)
				}
			}
		}
		for i := range d {
			x := *rc[i].get(w, full)
			y := d[i].put(w, full)
			for l := range 32 {
				row, col := &a[l/4+8*(i/2)], &b[2*(l%4)+i%2]
				s := f32(x[l])
				for k := 0; k < 16; k += 8 {
					t := float64(s)
					for j := k; j < k+8; j++ {
						t += row[j] * col[j]
					}
					s = float32(t)
				}
				y[l] = b32(s)
			}
		}
	}
}
