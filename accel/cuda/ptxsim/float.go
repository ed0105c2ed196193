package ptxsim

import (
	"math"

	kernels "plumbline/accel/f32"
)

func init() {
	binary(32, 32, 32, func(a, b uint64) uint64 { return b32(f32(a) + f32(b)) }, "add.rn.f32", "add.f32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return b32(f32(a) - f32(b)) }, "sub.rn.f32", "sub.f32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return b32(f32(a) * f32(b)) }, "mul.rn.f32", "mul.f32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return b32(f32(a) / f32(b)) }, "div.rn.f32")
	ternary(32, 32, 32, 32, func(a, b, c uint64) uint64 { return b32(kernels.FMA(f32(a), f32(b), f32(c))) }, "fma.rn.f32")
	unary(32, 32, func(a uint64) uint64 { return b32(1 / f32(a)) }, "rcp.rn.f32")
	unary(32, 32, func(a uint64) uint64 { return b32(float32(math.Sqrt(float64(f32(a))))) }, "sqrt.rn.f32")
	unary(32, 32, func(a uint64) uint64 { return a ^ 1<<31 }, "neg.f32")
	unary(32, 32, func(a uint64) uint64 { return a &^ (1 << 31) }, "abs.f32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return b32(smaller(f32(a), f32(b))) }, "min.f32")
	binary(32, 32, 32, func(a, b uint64) uint64 { return b32(-smaller(-f32(a), -f32(b))) }, "max.f32")
	binary(64, 64, 64, func(a, b uint64) uint64 { return b64(f64(a) + f64(b)) }, "add.rn.f64", "add.f64")
	binary(64, 64, 64, func(a, b uint64) uint64 { return b64(f64(a) - f64(b)) }, "sub.rn.f64", "sub.f64")
	binary(64, 64, 64, func(a, b uint64) uint64 { return b64(f64(a) * f64(b)) }, "mul.rn.f64", "mul.f64")
	binary(64, 64, 64, func(a, b uint64) uint64 { return b64(f64(a) / f64(b)) }, "div.rn.f64")
	ternary(64, 64, 64, 64, func(a, b, c uint64) uint64 { return b64(math.FMA(f64(a), f64(b), f64(c))) }, "fma.rn.f64")
	unary(64, 64, func(a uint64) uint64 { return b64(math.Sqrt(f64(a))) }, "sqrt.rn.f64")
	unary(64, 64, func(a uint64) uint64 { return a ^ 1<<63 }, "neg.f64")
	unary(64, 64, func(a uint64) uint64 { return a &^ (1 << 63) }, "abs.f64")
	for name, t := range map[string]struct {
		ordered func(a, b float64) bool
		nan     bool // what it says of NaN
	}{
		"eq": {func(a, b float64) bool { return a == b }, false}, "ne": {func(a, b float64) bool { return a < b || a > b }, false},
		"lt": {func(a, b float64) bool { return a < b }, false}, "le": {func(a, b float64) bool { return a <= b }, false},
		"gt": {func(a, b float64) bool { return a > b }, false}, "ge": {func(a, b float64) bool { return a >= b }, false},
		"equ": {func(a, b float64) bool { return a == b }, true}, "neu": {func(a, b float64) bool { return a != b }, true},
		"ltu": {func(a, b float64) bool { return a < b }, true}, "leu": {func(a, b float64) bool { return a <= b }, true},
		"gtu": {func(a, b float64) bool { return a > b }, true}, "geu": {func(a, b float64) bool { return a >= b }, true},
		"num": {func(a, b float64) bool { return true }, false}, "nan": {func(a, b float64) bool { return false }, true},
	} {
		test := func(a, b float64) bool {
			if a != a || b != b {
				return t.nan
			}
			return t.ordered(a, b)
		}
		compare(name+".f32", 32, func(a, b uint64) bool { return test(float64(f32(a)), float64(f32(b))) })
		compare(name+".f64", 64, func(a, b uint64) bool { return test(f64(a), f64(b)) })
	}
	builders["ex2.approx.f32"] = approximate(math.Exp2, func(y float64) float64 { return y })
	builders["lg2.approx.f32"] = approximate(math.Log2, func(y float64) float64 { return max(1, math.Abs(y)) })
	conversions()
}

// approximate is rounded from float64, or lies at an end of its documented error 2⁻²²·scale(y). What is no finite number, 0 and
// exact powers stay.
func approximate(f func(float64) float64, scale func(y float64) float64) func(c *compiler) exec {
	return func(c *compiler) exec {
		d, a := c.dst(32), c.src(32)
		return func(w *warp, m uint32) {
			x := a.get(w, m)
			y := d.put(w, m)
			for l := range 32 {
				if m>>l&1 != 0 {
					v := f(float64(f32(x[l])))
					if r := float32(v); w.launch.Approx != Nearest && v != 0 && float64(r) != v && !math.IsInf(float64(r), 0) {
						e := 0x1p-22 * scale(v)
						if w.launch.Approx == Lowest {
							e = -e
						}
						v += e
					}
					y[l] = b32(float32(v))
				}
			}
		}
	}
}

// smaller is min.f32: a number wins over NaN, −0 lies below +0.
func smaller(a, b float32) float32 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	case a == 0 && b == 0:
		return math.Float32frombits(math.Float32bits(a) | math.Float32bits(b))
	}
	return min(a, b)
}

func conversions() {
	// Between integers: cvt.d.s takes the source as s, then the lowest bits of d. A register may be wider than the type.
	type kind struct {
		name   string
		bits   int
		signed bool
	}
	var kinds []kind
	for _, w := range []int{8, 16, 32, 64} {
		n := map[int]string{8: "8", 16: "16", 32: "32", 64: "64"}[w]
		kinds = append(kinds, kind{"u" + n, w, false}, kind{"s" + n, w, true})
	}
	register := func(w int) int { // no register has 8 bits
		if w == 8 {
			return 0
		}
		return w
	}
	for _, d := range kinds {
		for _, s := range kinds {
			mask := ^uint64(0)
			if d.bits < 64 {
				mask = 1<<d.bits - 1
			}
			unaryAny("cvt."+d.name+"."+s.name, register(d.bits), register(s.bits), func(a uint64, width int) uint64 {
				v := a << (64 - s.bits) >> (64 - s.bits)
				if s.signed {
					v = uint64(int64(a<<(64-s.bits)) >> (64 - s.bits))
				}
				v &= mask
				if d.signed && d.bits < width { // a narrow signed number fills a wider register with its sign
					v = uint64(int64(v<<(64-d.bits)) >> (64 - d.bits))
					if width < 64 {
						v &= 1<<width - 1
					}
				}
				return v
			})
		}
	}
	for _, s := range kinds {
		value := func(a uint64) (v int64, u uint64) {
			if s.signed {
				v = int64(a<<(64-s.bits)) >> (64 - s.bits)
				return v, uint64(v)
			}
			u = a << (64 - s.bits) >> (64 - s.bits)
			return int64(u), u
		}
		unaryAny("cvt.rn.f32."+s.name, 32, register(s.bits), func(a uint64, _ int) uint64 {
			v, u := value(a)
			if s.signed {
				return b32(float32(v))
			}
			return b32(float32(u))
		})
		unaryAny("cvt.rn.f64."+s.name, 64, register(s.bits), func(a uint64, _ int) uint64 {
			v, u := value(a)
			if s.signed {
				return b64(float64(v))
			}
			return b64(float64(u))
		})
		// To integers the result is held within its range; NaN gives 0.
		for mode, round := range map[string]func(float64) float64{"rzi": math.Trunc, "rni": math.RoundToEven, "rmi": math.Floor, "rpi": math.Ceil} {
			to := func(v float64) uint64 {
				v = round(v)
				lo, hi := 0.0, math.Ldexp(1, s.bits)-1
				if s.signed {
					lo, hi = -math.Ldexp(1, s.bits-1), math.Ldexp(1, s.bits-1)-1
				}
				mask := ^uint64(0) >> (64 - s.bits)
				switch {
				case v != v:
					return 0
				case v <= lo:
					return uint64(int64(lo)) & mask
				case v >= hi:
					if s.signed {
						return mask >> 1
					}
					return mask
				case s.signed:
					return uint64(int64(v)) & mask
				}
				return uint64(v)
			}
			unaryAny("cvt."+mode+"."+s.name+".f32", register(s.bits), 32, func(a uint64, _ int) uint64 { return to(float64(f32(a))) })
			unaryAny("cvt."+mode+"."+s.name+".f64", register(s.bits), 64, func(a uint64, _ int) uint64 { return to(f64(a)) })
		}
	}
	for mode, round := range map[string]func(float64) float64{"rzi": math.Trunc, "rni": math.RoundToEven, "rmi": math.Floor, "rpi": math.Ceil} {
		unary(32, 32, func(a uint64) uint64 { return b32(float32(round(float64(f32(a))))) }, "cvt."+mode+".f32.f32")
	}
	unary(64, 32, func(a uint64) uint64 { return b64(float64(f32(a))) }, "cvt.f64.f32")
	unary(32, 64, func(a uint64) uint64 { return b32(float32(f64(a))) }, "cvt.rn.f32.f64")
	unary(16, 32, func(a uint64) uint64 { return uint64(bf16(f32(a))) }, "cvt.rn.bf16.f32")
	// The first source goes into the upper half.
	binary(32, 32, 32, func(hi, lo uint64) uint64 { return uint64(bf16(f32(hi)))<<16 | uint64(bf16(f32(lo))) }, "cvt.rn.bf16x2.f32")
	unary(64, 64, func(a uint64) uint64 { return a }, "cvta.to.global.u64", "cvta.global.u64")
	unary(64, 64, func(a uint64) uint64 { return a + sharedWindow }, "cvta.shared.u64")
	unary(64, 64, func(a uint64) uint64 { return a - sharedWindow }, "cvta.to.shared.u64")
}

// sharedWindow is where shared memory lies among generic addresses.
const sharedWindow = 0x7f << 40

// unaryAny registers an instruction whose function wants the width of the register that it writes.
func unaryAny(name string, dbits, abits int, f func(a uint64, width int) uint64) {
	builders[name] = func(c *compiler) exec {
		width := 64
		if c.next < len(c.args) {
			width = c.p.regs[c.args[c.next]].bits
		}
		d, a := c.dst(dbits), c.src(abits)
		return func(w *warp, m uint32) {
			x := a.get(w, m)
			y := d.put(w, m)
			for l := range 32 {
				if m>>l&1 != 0 {
					y[l] = f(x[l], width)
				}
			}
		}
	}
}

// bf16 rounds to bfloat16, half to even; NaN becomes 0x7fff as on the devices.
func bf16(v float32) uint16 {
	if v != v {
		return 0x7fff
	}
	u := math.Float32bits(v)
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}
