package ptxsim

import (
	bin "encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// text wraps a body into a kernel with the pointers %in and %out: the harness for single instructions.
func text(body string) string {
	return `.version 9.0
.target sm_80
.address_size 64
.visible .entry k(
	.param .u64 k_0,
	.param .u64 k_1
)
{
	.reg .pred %p<8>;
	.reg .b16 %rs<8>;
	.reg .b32 %r<32>;
	.reg .f32 %f<32>;
	.reg .b64 %rd<16>;
	.reg .f64 %fd<8>;
	.shared .align 16 .b8 buffer[1024];
	ld.param.u64 %rd0, [k_0];
	ld.param.u64 %rd1, [k_1];
	mov.u32 %r0, %tid.x;
	mov.u32 %r31, buffer;
` + body + "\n\tret;\n}\n"
}

func runText(t require.TestingT, ptx string, threads int, in, out []byte, o Options) (Stats, error) {
	return runBlocks(t, ptx, 1, threads, in, out, o)
}

func runBlocks(t require.TestingT, ptx string, blocks, threads int, in, out []byte, o Options) (Stats, error) {
	m, err := Parse(ptx)
	require.NoError(t, err)
	k, err := m.Kernel("k")
	require.NoError(t, err)
	var mem Memory
	a, err := mem.Alloc(int64(max(len(in), 1)))
	require.NoError(t, err)
	require.NoError(t, mem.Write(a, in))
	b, err := mem.Alloc(int64(max(len(out), 1)))
	require.NoError(t, err)
	args := bin.LittleEndian.AppendUint64(bin.LittleEndian.AppendUint64(nil, a), b)
	stats, err := k.Run(&mem, Launch{Grid: [3]int{blocks, 1, 1}, Block: [3]int{threads, 1, 1}, Args: args, Options: o})
	if err == nil {
		err = mem.Read(out, b)
	}
	return stats, err
}

// lanes runs a body that reads n words %r1 … of each lane and leaves m words in %r20 …
func lanesOf(t require.TestingT, body string, in [][32]uint32, m int) [][32]uint32 {
	var s strings.Builder
	fmt.Fprintf(&s, "\tmul.wide.u32 %%rd2, %%r0, %d;\n\tadd.s64 %%rd2, %%rd0, %%rd2;\n\tmul.wide.u32 %%rd3, %%r0, %d;\n\tadd.s64 %%rd3, %%rd1, %%rd3;\n", 4*len(in), 4*m)
	for i := range in {
		fmt.Fprintf(&s, "\tld.global.u32 %%r%d, [%%rd2+%d];\n", i+1, 4*i)
	}
	s.WriteString(body)
	for i := range m {
		fmt.Fprintf(&s, "\n\tst.global.u32 [%%rd3+%d], %%r%d;", 4*i, 20+i)
	}
	var b []byte
	for l := range 32 {
		for i := range in {
			b = bin.LittleEndian.AppendUint32(b, in[i][l])
		}
	}
	out := make([]byte, 4*32*m)
	_, err := runText(t, text(s.String()), 32, b, out, Options{})
	require.NoError(t, err, body)
	res := make([][32]uint32, m)
	for l := range 32 {
		for i := range m {
			res[i][l] = bin.LittleEndian.Uint32(out[4*(l*m+i):])
		}
	}
	return res
}

func words(r *rand.Rand, n int) [][32]uint32 {
	in := make([][32]uint32, n)
	for i := range in {
		for l := range in[i] {
			in[i][l] = r.Uint32()
		}
	}
	return in
}

// The fragments of mma, element by element as the ISA lists them (9.7.15, figures of m16n8k16 and m16n8k32): the simulator goes by
// registers instead.
func TestFragments(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5 {
		in := words(r, 10)
		var a [16][32]int
		var b [32][8]int
		for l := range 32 {
			group, in4 := l>>2, l%4
			for i := range 16 {
				row := group + 8
				if i < 4 || i >= 8 && i < 12 {
					row = group
				}
				col := in4*4 + i&3
				if i >= 8 {
					col += 16
				}
				a[row][col] = int(int8(in[i/4][l] >> (8 * (i & 3))))
			}
			for i := range 8 {
				row := in4*4 + i&3
				if i >= 4 {
					row += 16
				}
				b[row][group] = int(int8(in[4+i/4][l] >> (8 * (i & 3))))
			}
		}
		got := lanesOf(t, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%r7,%r8,%r9,%r10};", in, 4)
		for l := range 32 {
			for i := range 4 {
				row, col := l>>2, (l%4)*2+i&1
				if i >= 2 {
					row += 8
				}
				s := int32(in[6+i][l])
				for k := range 32 {
					s += int32(a[row][k] * b[k][col])
				}
				require.Equal(t, s, int32(got[i][l]), "lane %d, element %d", l, i)
			}
		}
	}
	for range 5 { // bfloat16 holds small integers, whose sums are exact in any order
		in := words(r, 10)
		small := func(v uint32) (uint32, float64) {
			f := float32(int(v%255) - 127)
			return math.Float32bits(f) >> 16, float64(f)
		}
		var a [16][16]float64
		var b [16][8]float64
		for l := range 32 {
			group, in4 := l>>2, l%4
			var regs [6]uint32
			for i := range 8 {
				row := group + 8
				if i < 2 || i >= 4 && i < 6 {
					row = group
				}
				col := in4*2 + i&1
				if i >= 4 {
					col += 8
				}
				bits, v := small(r.Uint32())
				a[row][col] = v
				regs[i/2] |= bits << (16 * (i & 1))
			}
			for i := range 4 {
				row := in4*2 + i&1
				if i >= 2 {
					row += 8
				}
				bits, v := small(r.Uint32())
				b[row][group] = v
				regs[4+i/2] |= bits << (16 * (i & 1))
			}
			for i, v := range regs {
				in[i][l] = v
			}
			for i := 6; i < 10; i++ {
				in[i][l] = math.Float32bits(float32(int(in[i][l] % 1000)))
			}
		}
		got := lanesOf(t, `
	mov.b32 %f1, %r7; mov.b32 %f2, %r8; mov.b32 %f3, %r9; mov.b32 %f4, %r10;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};
	mov.b32 %r20, %f1; mov.b32 %r21, %f2; mov.b32 %r22, %f3; mov.b32 %r23, %f4;`, in, 4)
		for l := range 32 {
			for i := range 4 {
				row, col := l>>2+8*(i>>1), (l%4)*2+i&1
				s := float64(math.Float32frombits(in[6+i][l]))
				for k := range 16 {
					s += a[row][k] * b[k][col]
				}
				require.Equal(t, float32(s), math.Float32frombits(got[i][l]))
			}
		}
	}
}

// ldmatrix: thread l holds, of matrix i, elements 2(l%4) and 2(l%4)+1 of row l/4 (transposed: of column l/4).
func TestLoadMatrix(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for _, trans := range []string{"", ".trans"} {
		in := words(r, 4) // 16 bytes a lane: row l%8 of matrix l/8
		got := lanesOf(t, `
	shl.b32 %r11, %r0, 4;
	add.s32 %r11, %r31, %r11;
	st.shared.v4.u32 [%r11], {%r1, %r2, %r3, %r4};
	bar.sync 0;
	ldmatrix.sync.aligned.m8n8.x4`+trans+`.shared.b16 {%r20, %r21, %r22, %r23}, [%r11];`, in, 4)
		element := func(m, row, col int) uint32 { return in[col/2][8*m+row] >> (16 * (col % 2)) & 0xffff }
		for m := range 4 {
			for l := range 32 {
				want := element(m, l/4, l%4*2) | element(m, l/4, l%4*2+1)<<16
				if trans != "" {
					want = element(m, l%4*2, l/4) | element(m, l%4*2+1, l/4)<<16
				}
				require.Equal(t, want, got[m][l], "matrix %d, lane %d %s", m, l, trans)
			}
		}
	}
}

func TestInstructions(t *testing.T) {
	edges := []uint32{0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x4b000001, 0x12345678, 0x3f808000, 0x3f818000, 0xbf828000}
	r := rand.New(rand.NewPCG(1, 9))
	f := math.Float32frombits
	bit := math.Float32bits
	for _, c := range []struct {
		body string
		want func(a, b, c uint32) uint32
	}{
		{"add.s32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return a + b }},
		{"sub.s32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return a - b }},
		{"mul.lo.s32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return a * b }},
		{"mul.hi.s32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return uint32(int64(int32(a)) * int64(int32(b)) >> 32) }},
		{"mul.hi.u32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }},
		{"mad.lo.s32 %r20, %r1, %r2, %r3;", func(a, b, c uint32) uint32 { return a*b + c }},
		{"shl.b32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 {
			if b > 31 {
				return 0
			}
			return a << b
		}},
		{"shr.s32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return uint32(int32(a) >> min(b, 31)) }},
		{"shr.u32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return uint32(uint64(a) >> min(b, 63)) }},
		{"min.s32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return uint32(min(int32(a), int32(b))) }},
		{"max.u32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return max(a, b) }},
		{"abs.s32 %r20, %r1;", func(a, _, _ uint32) uint32 {
			if int32(a) < 0 {
				return -a
			}
			return a
		}},
		{"not.b32 %r20, %r1;", func(a, _, _ uint32) uint32 { return ^a }},
		{"xor.b32 %r20, %r1, %r2;", func(a, b, _ uint32) uint32 { return a ^ b }},
		{"popc.b32 %r20, %r1;", func(a, _, _ uint32) uint32 { return uint32(bits.OnesCount32(a)) }},
		{"brev.b32 %r20, %r1;", func(a, _, _ uint32) uint32 { return bits.Reverse32(a) }},
		{"clz.b32 %r20, %r1;", func(a, _, _ uint32) uint32 { return uint32(bits.LeadingZeros32(a)) }},
		{"bfe.u32 %r20, %r1, 5, 9;", func(a, _, _ uint32) uint32 { return a >> 5 & 511 }},
		{"bfe.s32 %r20, %r1, 24, 20;", func(a, _, _ uint32) uint32 { return uint32(int32(a) >> 24) }},
		{"bfi.b32 %r20, %r1, %r2, 8, 12;", func(a, b, _ uint32) uint32 { return b&^(0xfff<<8) | a&0xfff<<8 }},
		{"prmt.b32 %r20, %r1, %r2, 0x7531;", func(a, b, _ uint32) uint32 {
			return a>>8&255 | a>>24<<8 | b>>8&255<<16 | b>>24<<24
		}},
		{"shf.r.wrap.b32 %r20, %r1, %r2, 7;", func(a, b, _ uint32) uint32 { return a>>7 | b<<25 }},
		{"setp.lt.s32 %p1, %r1, %r2; selp.b32 %r20, %r1, %r2, %p1;", func(a, b, _ uint32) uint32 { return uint32(min(int32(a), int32(b))) }},
		{"setp.lt.u32 %p1, %r1, %r2; selp.b32 %r20, %r1, %r2, %p1;", func(a, b, _ uint32) uint32 { return min(a, b) }},
		{"setp.eq.s32 %p2, %r1, %r2; setp.ne.or.s32 %p1, %r1, %r3, !%p2; selp.b32 %r20, 1, 0, %p1;", func(a, b, c uint32) uint32 {
			if a != c || a != b {
				return 1
			}
			return 0
		}},
		{"cvt.u16.u32 %rs1, %r1; cvt.s16.s8 %rs2, %rs1; cvt.s32.s16 %r20, %rs2;", func(a, _, _ uint32) uint32 { return uint32(int32(int8(a))) }},
		{"mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r20, {%rs2, %rs1};", func(a, _, _ uint32) uint32 { return a<<16 | a>>16 }},
		{"cvt.u64.u32 %rd4, %r1; shl.b64 %rd4, %rd4, 32; cvt.u64.u32 %rd5, %r2; or.b64 %rd4, %rd4, %rd5; mov.b64 {%r20, %r19}, %rd4;", func(_, b, _ uint32) uint32 { return b }},
		{"mov.b32 %f1, %r1; mov.b32 %f2, %r2; add.rn.f32 %f3, %f1, %f2; mov.b32 %r20, %f3;", func(a, b, _ uint32) uint32 { return bit(f(a) + f(b)) }},
		{"mov.b32 %f1, %r1; mov.b32 %f2, %r2; div.rn.f32 %f3, %f1, %f2; mov.b32 %r20, %f3;", func(a, b, _ uint32) uint32 { return bit(f(a) / f(b)) }},
		{"mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3; fma.rn.f32 %f4, %f1, %f2, %f3; mov.b32 %r20, %f4;", func(a, b, c uint32) uint32 { return bit(exactFMA(f(a), f(b), f(c))) }},
		{"mov.b32 %f1, %r1; neg.f32 %f2, %f1; mov.b32 %r20, %f2;", func(a, _, _ uint32) uint32 { return a ^ 1<<31 }},
		{"mov.b32 %f1, %r1; cvt.rzi.s32.f32 %r20, %f1;", func(a, _, _ uint32) uint32 { return saturate(math.Trunc(float64(f(a)))) }},
		{"mov.b32 %f1, %r1; cvt.rni.s32.f32 %r20, %f1;", func(a, _, _ uint32) uint32 { return saturate(math.RoundToEven(float64(f(a)))) }},
		{"cvt.rn.f32.s32 %f1, %r1; mov.b32 %r20, %f1;", func(a, _, _ uint32) uint32 { return bit(float32(int32(a))) }},
		{"mov.b32 %f1, %r1; mov.b32 %f2, %r2; min.f32 %f3, %f1, %f2; mov.b32 %r20, %f3;", func(a, b, _ uint32) uint32 {
			switch x, y := f(a), f(b); {
			case x != x:
				return b
			case y != y || x < y || x == 0 && y == 0 && math.Signbit(float64(x)):
				return a
			default:
				return b
			}
		}},
		{"mov.b32 %f1, %r1; mov.b32 %f2, %r2; setp.gtu.f32 %p1, %f1, %f2; selp.b32 %r20, 1, 0, %p1;", func(a, b, _ uint32) uint32 {
			if !(f(a) <= f(b)) {
				return 1
			}
			return 0
		}},
		{"mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.bf16x2.f32 %r20, %f1, %f2;", func(a, b, _ uint32) uint32 { return nearestBF16(f(a))<<16 | nearestBF16(f(b)) }},
		{"mul.wide.s32 %rd4, %r1, %r2; mov.b64 {%r19, %r20}, %rd4;", func(a, b, _ uint32) uint32 { return uint32(int64(int32(a)) * int64(int32(b)) >> 32) }},
		{"mul.wide.u32 %rd4, %r1, %r2; mov.b64 {%r19, %r20}, %rd4;", func(a, b, _ uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }},
		{"shfl.sync.bfly.b32 %r20|%p1, %r1, 0, 31, -1;", func(a, _, _ uint32) uint32 { return a }},
	} {
		for range 12 {
			in := words(r, 3)
			for i := range in {
				for l := range in[i] {
					if r.IntN(2) == 0 {
						in[i][l] = edges[r.IntN(len(edges))]
					}
				}
			}
			got := lanesOf(t, c.body, in, 1)
			for l := range 32 {
				want := c.want(in[0][l], in[1][l], in[2][l])
				if g := got[0][l]; g != want && !(strings.Contains(c.body, "mov.b32 %r20, %f") && f(g) != f(g) && f(want) != f(want)) {
					require.Equal(t, want, g, "%s of %#x, %#x, %#x", c.body, in[0][l], in[1][l], in[2][l])
				}
			}
		}
	}
}

// exactFMA rounds once, by numbers of arbitrary precision.
func exactFMA(a, b, c float32) float32 {
	for _, v := range []float32{a, b, c} {
		if v != v || math.IsInf(float64(v), 0) {
			return float32(math.FMA(float64(a), float64(b), float64(c)))
		}
	}
	x := new(big.Float).SetPrec(600).SetFloat64(float64(a))
	x.Mul(x, new(big.Float).SetPrec(600).SetFloat64(float64(b)))
	x.Add(x, new(big.Float).SetPrec(600).SetFloat64(float64(c)))
	if x.Sign() == 0 {
		return float32(float64(a)*float64(b) + float64(c))
	}
	v, _ := x.Float32()
	return v
}

func saturate(v float64) uint32 {
	switch {
	case v != v:
		return 0
	case v >= math.MaxInt32:
		return math.MaxInt32
	case v <= math.MinInt32:
		return 1 << 31
	}
	return uint32(int32(v))
}

// nearestBF16 tries the two neighbours.
func nearestBF16(v float32) uint32 {
	if v != v {
		return 0x7fff
	}
	down := math.Float32bits(v) >> 16
	if math.Float32bits(v)&0xffff == 0 {
		return down
	}
	at := func(b uint32) float64 {
		if b&0x7fff == 0x7f80 { // beyond the largest number the next one would be 2^128
			return math.Copysign(0x1p128, float64(v))
		}
		return float64(math.Float32frombits(b << 16))
	}
	a, b := math.Abs(float64(v)-at(down)), math.Abs(at(down+1)-float64(v))
	if a < b || a == b && down&1 == 0 {
		return down
	}
	return down + 1
}

func TestShuffle(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	in := words(r, 1)
	for body, from := range map[string]func(l int) (int, bool){
		"shfl.sync.bfly.b32 %r20|%p1, %r1, 5, 31, -1;":   func(l int) (int, bool) { return l ^ 5, true },
		"shfl.sync.up.b32 %r20|%p1, %r1, 3, 0, -1;":      func(l int) (int, bool) { return l - 3, l >= 3 },
		"shfl.sync.down.b32 %r20|%p1, %r1, 3, 31, -1;":   func(l int) (int, bool) { return l + 3, l+3 < 32 },
		"shfl.sync.idx.b32 %r20|%p1, %r1, 17, 31, -1;":   func(int) (int, bool) { return 17, true },
		"shfl.sync.down.b32 %r20|%p1, %r1, 3, 6175, -1;": func(l int) (int, bool) { return l + 3, l%8+3 < 8 },                     // width 8: (32 − 8)·256 + 31
		"shfl.sync.idx.b32 %r20|%p1, %r1, 10, 6175, -1;": func(l int) (int, bool) { return l/8*8 + 2, true },                      // 10 mod 8 within the segment
		"shfl.sync.up.b32 %r20|%p1, %r1, 2, 7168, -1;":   func(l int) (int, bool) { return l - 2, l%4 >= 2 },                      // width 4
		"shfl.sync.bfly.b32 %r20|%p1, %r1, 4, 7199, -1;": func(l int) (int, bool) { return l ^ 4, l^4 < l|3+1 && (l^4)/4 == l/4 }, // leaves the segment of 4
	} {
		got := lanesOf(t, body+" selp.b32 %r21, 1, 0, %p1;", in, 2)
		for l := range 32 {
			j, ok := from(l)
			if body[:len("shfl.sync.bfly")] == "shfl.sync.bfly" && strings.Contains(body, "7199") {
				ok = l^4 <= l|3 // the ISA's rule: the source must not lie behind the segment
			}
			if !ok {
				j = l
			}
			require.Equal(t, in[0][j], got[0][l], "%s lane %d", body, l)
			require.Equal(t, ok, got[1][l] == 1, "%s lane %d", body, l)
		}
	}
}
