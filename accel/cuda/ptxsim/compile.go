package ptxsim

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// exec runs an instruction for the lanes of a mask.
type exec func(w *warp, m uint32)

type instrKind uint8

const (
	plain instrKind = iota
	branch
	blockBarrier
	exit
)

type instr struct {
	exec   exec
	kind   instrKind
	guard  int // predicate, −1 for none
	not    bool
	target int
	line   int
	text   string
}

// builders make the closure of an instruction from its operands, by its whole spelling.
var builders = map[string]func(*compiler) exec{}

// compiler hands out the operands of one instruction in their order. The first error stays.
type compiler struct {
	p    *parser
	op   string
	args []string
	next int
	err  error
}

func (c *compiler) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *compiler) arg() string {
	if c.next >= len(c.args) {
		c.next++
		c.fail("%s: an operand is missing", c.op)
		return ""
	}
	c.next++
	return c.args[c.next-1]
}

func (c *compiler) more() bool { return c.next < len(c.args) }

// source is an operand that is read: a register, or a number that is the same in all lanes.
type source struct {
	reg   int // −1: fixed
	fixed *[32]uint64
}

func (s source) get(w *warp, m uint32) *[32]uint64 {
	if s.reg < 0 {
		return s.fixed
	}
	if missing := m &^ w.set[s.reg]; missing != 0 {
		w.fail(Uninitialised, missing, 0, "a register that nothing has written")
	}
	return w.reg(s.reg)
}

func fixed(v uint64) source {
	var all [32]uint64
	for i := range all {
		all[i] = v
	}
	return source{-1, &all}
}

// target is a register that is written.
type target int

func (t target) put(w *warp, m uint32) *[32]uint64 {
	w.set[t] |= m
	return w.reg(int(t))
}

// dst returns a register of so many bits; 0 takes any.
func (c *compiler) dst(bits int) target { return c.target(c.arg(), bits) }

func (c *compiler) target(name string, bits int) target {
	r, ok := c.p.regs[name]
	if !ok || r.bits == 1 {
		c.fail("%q is no register", name)
		return 0
	}
	if bits != 0 && r.bits != bits {
		c.fail("%s has %d bits, %s writes %d", name, r.bits, c.op, bits)
	}
	return target(r.index)
}

func (c *compiler) pred() int { return c.predicate(c.arg()) }

func (c *compiler) predicate(name string) int {
	r, ok := c.p.regs[name]
	if !ok || r.bits != 1 {
		c.fail("%q is no predicate", name)
	}
	return r.index
}

// src returns an operand of so many bits. A float's number is written as bits: 0f3F800000, 0d3FF0000000000000.
func (c *compiler) src(bits int) source { return c.source(c.arg(), bits) }

func (c *compiler) source(name string, bits int) source {
	if r, ok := c.p.regs[name]; ok {
		if r.bits == 1 || bits != 0 && r.bits != bits {
			c.fail("%s has %d bits, %s reads %d", name, r.bits, c.op, bits)
		}
		return source{reg: r.index}
	}
	if at, ok := c.p.shared[name]; ok {
		return fixed(c.sharedAddress(at))
	}
	if s, ok := c.special(name); ok {
		return source{reg: s}
	}
	v, err := number(name, bits)
	if err != nil {
		c.fail("%q: %w", name, err)
	}
	return fixed(v)
}

func (c *compiler) sharedAddress(at uint64) uint64 {
	if at == dynamicAt {
		// Whatever the kernel declares lies in front of it: nvcc declares before the first instruction.
		c.p.kernel.dynamic = true
		return uint64(c.p.kernel.Shared+15) &^ 15
	}
	return at
}

// number reads an immediate.
func number(s string, bits int) (uint64, error) {
	switch {
	case strings.HasPrefix(s, "0f") && len(s) == 10:
		v, err := strconv.ParseUint(s[2:], 16, 32)
		return v, err
	case strings.HasPrefix(s, "0d") && len(s) == 18:
		return strconv.ParseUint(s[2:], 16, 64)
	}
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		if bits > 0 && bits < 64 {
			return uint64(v) & (1<<bits - 1), nil
		}
		return uint64(v), nil
	}
	if v, err := strconv.ParseUint(s, 0, 64); err == nil {
		return v, nil
	}
	return 0, fmt.Errorf("no register and no number")
}

// special is a register that a warp finds filled: the kind of the number and its register.
type special struct {
	name string
	reg  int
}

var specials = map[string]bool{"%tid.x": true, "%tid.y": true, "%tid.z": true, "%ntid.x": true, "%ntid.y": true, "%ntid.z": true, "%ctaid.x": true, "%ctaid.y": true,
	"%ctaid.z": true, "%nctaid.x": true, "%nctaid.y": true, "%nctaid.z": true, "%laneid": true, "%lanemask_lt": true, "%lanemask_le": true, "%lanemask_gt": true,
	"%lanemask_ge": true, "%lanemask_eq": true}

func (c *compiler) special(name string) (int, bool) {
	if !specials[name] {
		return 0, false
	}
	k := c.p.kernel
	for _, s := range k.special {
		if s.name == name {
			return s.reg, true
		}
	}
	k.special = append(k.special, special{name, k.registers})
	k.registers++
	return k.registers - 1, true
}

var address = regexp.MustCompile(`^\[([^\[\]+]+)(?:\+(-?\d+))?\]$`)

// place is an address: a register or a fixed one, and an offset.
type place struct {
	base   source
	offset uint64
}

// place reads [%rd1+8], of so many bits.
func (c *compiler) place(bits int) place {
	s := c.arg()
	m := address.FindStringSubmatch(s)
	if m == nil {
		c.fail("%q is no address", s)
		return place{base: fixed(0)}
	}
	var off int64
	if m[2] != "" {
		var err error
		if off, err = strconv.ParseInt(m[2], 10, 64); err != nil {
			c.fail("%q is no address", s)
		}
	}
	if at, ok := c.p.shared[m[1]]; ok {
		return place{fixed(c.sharedAddress(at)), uint64(off)}
	}
	return place{c.source(m[1], bits), uint64(off)}
}

// vector reads {%f1, %f2} of n registers.
func (c *compiler) vector(n int) []string {
	s := c.arg()
	if !strings.HasPrefix(s, "{") || !strings.HasSuffix(s, "}") {
		c.fail("%q is no list of registers", s)
		return make([]string, n)
	}
	parts := operands(s[1 : len(s)-1])
	if len(parts) != n {
		c.fail("%q holds %d registers, not %d", s, len(parts), n)
		return make([]string, n)
	}
	return parts
}

func (c *compiler) targets(n, bits int) []target {
	out := make([]target, n)
	for i, name := range c.vector(n) {
		out[i] = c.target(name, bits)
	}
	return out
}

func (c *compiler) sources(n, bits int) []source {
	out := make([]source, n)
	for i, name := range c.vector(n) {
		out[i] = c.source(name, bits)
	}
	return out
}

// unary registers instructions d = f(a).
func unary(dbits, abits int, f func(a uint64) uint64, names ...string) {
	for _, name := range names {
		builders[name] = func(c *compiler) exec {
			d, a := c.dst(dbits), c.src(abits)
			return func(w *warp, m uint32) {
				x := a.get(w, m)
				y := d.put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						y[l] = f(x[l])
					}
				}
			}
		}
	}
}

// binary registers instructions d = f(a, b).
func binary(dbits, abits, bbits int, f func(a, b uint64) uint64, names ...string) {
	for _, name := range names {
		builders[name] = func(c *compiler) exec {
			d, a, b := c.dst(dbits), c.src(abits), c.src(bbits)
			return func(w *warp, m uint32) {
				x, y := a.get(w, m), b.get(w, m)
				z := d.put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						z[l] = f(x[l], y[l])
					}
				}
			}
		}
	}
}

// ternary registers instructions d = f(a, b, c).
func ternary(dbits, abits, bbits, cbits int, f func(a, b, c uint64) uint64, names ...string) {
	for _, name := range names {
		builders[name] = func(c *compiler) exec {
			d, a, b, e := c.dst(dbits), c.src(abits), c.src(bbits), c.src(cbits)
			return func(w *warp, m uint32) {
				x, y, v := a.get(w, m), b.get(w, m), e.get(w, m)
				z := d.put(w, m)
				for l := range 32 {
					if m>>l&1 != 0 {
						z[l] = f(x[l], y[l], v[l])
					}
				}
			}
		}
	}
}

func f32(v uint64) float32  { return math.Float32frombits(uint32(v)) }
func b32(v float32) uint64  { return uint64(math.Float32bits(v)) }
func f64(v uint64) float64  { return math.Float64frombits(v) }
func b64(v float64) uint64  { return math.Float64bits(v) }
func low32(v uint64) uint64 { return v & math.MaxUint32 }
