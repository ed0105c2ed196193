package ptxsim

import (
	bin "encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every rule has a kernel that breaks it and nothing else, and whose output a GPU would most likely give right.
func TestFindings(t *testing.T) {
	const store = `
	mul.wide.u32 %rd2, %r0, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r5;`
	const neighbour = `
	mul.lo.s32 %r1, %r0, 4;
	add.s32 %r1, %r31, %r1;
	xor.b32 %r2, %r0, 32;
	mul.lo.s32 %r2, %r2, 4;
	add.s32 %r2, %r31, %r2;
	st.shared.u32 [%r1], %r31; bar.sync 0;`
	const lane = `
	mul.lo.s32 %r1, %r0, 4;
	add.s32 %r1, %r31, %r1;
	xor.b32 %r2, %r0, 1;
	mul.lo.s32 %r2, %r2, 4;
	add.s32 %r2, %r31, %r2;
	st.shared.u32 [%r1], %r31; bar.sync 0;`
	for _, c := range []struct {
		name    string
		kind    Kind
		body    string
		mended  string // the same kernel as it should be, "" where a replacement says it
		replace [2]string
		says    string
	}{
		{name: "store behind the end", kind: Bounds, body: "mov.u32 %r5, 1; add.s64 %rd1, %rd1, 4;" + store, replace: [2]string{"add.s64 %rd1, %rd1, 4;", ""}, says: "behind the start of an allocation of 256"},
		{name: "load before the start", kind: Bounds, body: "ld.global.u32 %r5, [%rd0+-4];" + store, replace: [2]string{"+-4", "+4"}, says: "in no allocation"},
		{name: "shared memory behind the end", kind: Bounds, body: "st.shared.u32 [%r31+1024], %r0; mov.u32 %r5, 1;" + store, replace: [2]string{"st.shared.u32 [%r31+1024], %r0;", ""}, says: "1024 bytes of shared memory"},
		{name: "misaligned load", kind: Misaligned, body: "ld.global.u32 %r5, [%rd0+2];" + store, replace: [2]string{"+2", "+8"}, says: "no multiple of 4"},
		{name: "misaligned vector", kind: Misaligned, body: "ld.global.v2.u32 {%r5, %r6}, [%rd0+4];" + store, replace: [2]string{"+4", "+8"}, says: "no multiple of 8"},
		{name: "register never written", kind: Uninitialised, body: "add.s32 %r5, %r7, %r0;" + store, replace: [2]string{"%r7", "%r0"}, says: "register"},
		{name: "predicate never written", kind: Uninitialised, body: "mov.u32 %r5, 1; @%p3 mov.u32 %r5, 2;" + store, replace: [2]string{"@%p3 ", ""}, says: "predicate"},
		{name: "register written by half of the lanes", kind: Uninitialised, body: "setp.lt.u32 %p1, %r0, 16; @%p1 mov.u32 %r5, 2;" + store, replace: [2]string{"@%p1 ", ""}, says: "register"},
		{name: "output read before it is written", kind: Uninitialised, body: "ld.global.u32 %r5, [%rd1]; bar.sync 0;" + store, replace: [2]string{"[%rd1]", "[%rd0]"}, says: "never written"},
		{name: "shared memory never written", kind: Uninitialised, body: "ld.shared.u32 %r5, [%r31];" + store, replace: [2]string{"ld.shared.u32 %r5, [%r31]", "mov.u32 %r5, 0"}, says: "nothing has written"},
		{name: "no barrier between write and read", kind: Race, body: neighbour + "st.shared.u32 [%r1], %r0; ld.shared.u32 %r5, [%r2];" + store,
			replace: [2]string{"%r0; ld", "%r0; bar.sync 0; ld"}, says: "no barrier"},
		{name: "no barrier between read and write", kind: Race, body: neighbour + "st.shared.u32 [%r1], %r0; bar.sync 0; ld.shared.u32 %r5, [%r2]; st.shared.u32 [%r1], %r5;" + store,
			replace: [2]string{"[%r2]; st", "[%r2]; bar.sync 0; st"}, says: "no barrier"},
		{name: "bar.warp.sync between two warps", kind: Race, body: neighbour + "setp.lt.u32 %p1, %r0, 32; mov.u32 %r5, 1; @%p1 ld.shared.u32 %r5, [%r2]; bar.warp.sync -1; @!%p1 st.shared.u32 [%r1], %r5;" + store,
			replace: [2]string{"bar.warp.sync -1", "bar.sync 0"}, says: "no barrier"},
		{name: "two lanes write one word", kind: Race, body: "st.shared.u32 [%r31], %r31; mov.u32 %r5, 1;" + store, replace: [2]string{"[%r31], %r31", "[%r1], %r31"}, mended: "mad.lo.s32 %r1, %r0, 4, %r31;", says: "no barrier"},
		{name: "lanes of a warp without bar.warp.sync", kind: Race, body: lane + "st.shared.u32 [%r1], %r0; ld.shared.u32 %r5, [%r2];" + store,
			replace: [2]string{"%r0; ld", "%r0; bar.warp.sync -1; ld"}, says: "no barrier"},
		{name: "two warps write one word of memory", kind: Race, body: "and.b32 %r6, %r0, 31; mul.wide.u32 %rd2, %r6, 4; add.s64 %rd3, %rd1, %rd2; mov.u32 %r5, 7; st.global.u32 [%rd3], %r5; add.s64 %rd3, %rd3, 128; st.global.u32 [%rd3], %r5;",
			replace: [2]string{"and.b32 %r6, %r0, 31;", "shl.b32 %r6, %r0, 6; mov.u32 %r6, %r0; setp.gt.u32 %p1, %r0, 31; @%p1 ret;"}, says: "nothing came between"},
		{name: "half of the warp at a barrier", kind: Barrier, body: "mov.u32 %r5, 1; setp.lt.u32 %p1, %r0, 16; @%p1 bar.sync 0;" + store, replace: [2]string{"@%p1 ", ""}, says: "lanes 0000ffff"},
		{name: "a warp ends before a barrier", kind: Barrier, body: "mov.u32 %r5, 1;" + store + " setp.gt.u32 %p1, %r0, 31; @%p1 ret; bar.sync 0;", replace: [2]string{"@%p1 ret; bar.sync 0;", "bar.sync 0;"}, says: "1 of 2 warps ended"},
		{name: "copy read before it was waited for", kind: Async, body: "mul.lo.s32 %r1, %r0, 16; add.s32 %r1, %r31, %r1; and.b32 %r6, %r0, 1; mul.wide.u32 %rd2, %r6, 16; add.s64 %rd4, %rd0, %rd2; cp.async.cg.shared.global [%r1], [%rd4], 16; cp.async.commit_group; ld.shared.u32 %r5, [%r1];" + store,
			replace: [2]string{"commit_group;", "commit_group; cp.async.wait_group 0;"}, says: "not waited for"},
		{name: "copy waited for one group too few", kind: Async, body: "mul.lo.s32 %r1, %r0, 16; add.s32 %r1, %r31, %r1; cp.async.cg.shared.global [%r1], [%rd0], 16; cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r5, [%r1];" + store,
			replace: [2]string{"wait_group 1", "wait_group 0"}, says: "not waited for"},
		{name: "copies of a neighbour without a barrier", kind: Race, body: "mul.lo.s32 %r1, %r0, 16; add.s32 %r1, %r31, %r1; st.shared.u32 [%r1], %r0; bar.sync 0; cp.async.cg.shared.global [%r1], [%rd0], 16; cp.async.commit_group; cp.async.wait_group 0; xor.b32 %r2, %r0, 32; mul.lo.s32 %r2, %r2, 16; add.s32 %r2, %r31, %r2; ld.shared.u32 %r5, [%r2];" + store,
			replace: [2]string{"wait_group 0;", "wait_group 0; bar.sync 0;"}, says: "no barrier"},
		{name: "lane that is not there", kind: Inactive, body: "mov.u32 %r5, 1; setp.lt.u32 %p1, %r0, 16; @%p1 shfl.sync.down.b32 %r5|%p2, %r0, 4, 31, 65535;" + store, replace: [2]string{"@%p1 shfl.sync.down.b32 %r5|%p2, %r0, 4, 31, 65535", "shfl.sync.down.b32 %r5|%p2, %r0, 4, 31, -1"}, says: "not here"},
		{name: "mask of lanes that are elsewhere", kind: Inactive, body: "mov.u32 %r5, 1; setp.lt.u32 %p1, %r0, 16; @%p1 shfl.sync.bfly.b32 %r5|%p2, %r0, 1, 31, -1;" + store, replace: [2]string{"@%p1 ", ""}, says: "the mask names"},
		{name: "no end", kind: Endless, body: "mov.u32 %r5, 1;" + store + " $again: bra $again;", replace: [2]string{"$again: bra $again;", ""}, says: "1000000 instructions"},
	} {
		in := make([]byte, 256)
		threads := 64
		if strings.Contains(c.name, "lane") || strings.Contains(c.name, "mask of") || strings.Contains(c.name, "half") || c.name == "copy read before it was waited for" {
			threads = 32
		}
		for _, o := range Schedules {
			o.Budget = 1e6
			_, err := runText(t, text(c.body), threads, in, make([]byte, 256)[:4*threads], o)
			var f *Finding
			require.ErrorAs(t, err, &f, "%s: %v", c.name, err)
			require.Equal(t, c.kind, f.Kind, "%s: %v", c.name, err)
			require.ErrorContains(t, err, c.says, c.name)
			require.Contains(t, err.Error(), "kernel k, block (0,0,0), thread (", c.name)
			require.NotZero(t, f.Line)
		}
		mended := c.mended + strings.Replace(c.body, c.replace[0], c.replace[1], 1)
		require.NotEqual(t, c.body, mended, c.name)
		for _, o := range Schedules {
			if _, err := runText(t, text(mended), threads, in, make([]byte, 4*threads), o); err != nil {
				require.NoError(t, err, c.name)
			}
		}
	}
}

// Nothing orders two blocks of a launch, and what one has left in its registers is not there for the next.
func TestAcrossBlocks(t *testing.T) {
	for body, kind := range map[string]Kind{
		"mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 0; mov.u32 %r5, 7; @%p1 ld.global.u32 %r5, [%rd0]; @!%p1 st.global.u32 [%rd0], %r5;": Race,
		"mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 0; mov.u32 %r5, 7; @%p1 st.global.u32 [%rd0], %r5; @!%p1 ld.global.u32 %r5, [%rd0];": Race,
		"st.global.u32 [%rd1], %r0;": Race,
		"mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 0; @%p1 mov.u32 %r5, 7; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r5;": Uninitialised,
	} {
		_, err := runBlocks(t, text(body), 2, 1, make([]byte, 64), make([]byte, 64), Options{})
		var f *Finding
		require.ErrorAs(t, err, &f, body)
		require.Equal(t, kind, f.Kind, "%s: %v", body, err)
	}
	out := make([]byte, 8)
	_, err := runBlocks(t, text("mov.u32 %r4, %ctaid.x; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r4;"), 2, 1, make([]byte, 8), out, Options{})
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 1, 0, 0, 0}, out)
}

// A parameter lies at a multiple of its size.
func TestParameters(t *testing.T) {
	m, err := Parse(strings.Replace(text("mov.u32 %r1, 1;"), "\t.param .u64 k_0,", "\t.param .u32 k_a,\n\t.param .u64 k_0,\n\t.param .u8 k_b,", 1))
	require.NoError(t, err)
	k, err := m.Kernel("k")
	require.NoError(t, err)
	require.Equal(t, []Param{{"k_a", 4, 0}, {"k_0", 8, 8}, {"k_b", 1, 16}, {"k_1", 8, 24}}, k.Params)
}

func TestTextsThatAreRefused(t *testing.T) {
	for body, says := range map[string]string{
		"add.ftz.f32 %f1, %f2, %f3;":                  "unknown instruction add.ftz.f32",
		"fma.rz.f32 %f1, %f2, %f3, %f4;":              "unknown instruction fma.rz.f32",
		"ex2.approx.ftz.f32 %f1, %f2;":                "unknown instruction",
		"wgmma.fence.sync.aligned;":                   "unknown instruction",
		"add.s32 %r1, %r2;":                           "operand is missing",
		"add.s32 %r1, %r2, %r3, %r4;":                 "takes 3 operands, not 4",
		"add.s32 %r1, %r2, %rd3;":                     "has 64 bits, add.s32 reads 32",
		"add.s32 %f1;":                                "operand is missing",
		"add.s32 %r99, %r1, %r2;":                     "is no register",
		"add.s32 %r1, %r2, banana;":                   "no register and no number",
		"bra $nowhere;":                               "no label $nowhere",
		"bar.sync 1;":                                 "only the barrier 0",
		"@%p99 add.s32 %r1, %r1, %r1;":                "no predicate %p99",
		"ld.global.u32 %r1, %rd1;":                    "is no address",
		"ld.global.v2.u32 {%r1}, [%rd1];":             "holds 1 registers, not 2",
		"ld.param.u64 %rd1, [k_7];":                   "no parameter",
		"ld.param.u32 %r1, [k_0];":                    "reads 4 bytes of a parameter of 8",
		"cp.async.cg.shared.global [%r1], [%rd1], 7;": "of 7 bytes",
		".reg .f128 %q<2>;":                           "not understood as registers",
		".reg .b32 %z<9999999>;":                      "too many registers",
		".shared .align 4 .b8 big[9999999];":          "no shared memory of that size",
		".pragma \"unroll\";":                         "unknown pragma",
		"add.s32 %r1, %r2, %r3":                       "without ;",
		"lab: mov.u32 %r1, 1; lab: mov.u32 %r1, 1;":   "stands twice",
	} {
		_, err := Parse(text(body))
		require.ErrorContains(t, err, says, body)
		require.ErrorContains(t, err, "line ", body)
	}
	for ptx, says := range map[string]string{
		"":      "no .target",
		"hello": "line 1",
		strings.TrimSuffix(text("mov.u32 %r1, 1;"), "}\n"):                               "ends inside",
		strings.Replace(text("mov.u32 %r1, 1;"), "ret;", "", 1):                          "does not end in ret",
		strings.Replace(text("mov.u32 %r1, 1;"), ".param .u64 k_1", ".param .b5 k_1", 1): "not understood as a parameter",
		text("ret;") + text("ret;"):                                                      "not understood",
	} {
		_, err := Parse(ptx)
		if ptx == text("ret;")+text("ret;") {
			require.ErrorContains(t, err, "stands twice")
			continue
		}
		require.ErrorContains(t, err, says)
	}
}

func TestLaunchesThatAreRefused(t *testing.T) {
	m, err := Parse(strings.Replace(text("mov.u32 %r1, 1;"), "\n{", "\n.maxntid 64, 1, 1\n{", 1))
	require.NoError(t, err)
	k, err := m.Kernel("k")
	require.NoError(t, err)
	require.Equal(t, 64, k.MaxThreads)
	one := [3]int{1, 1, 1}
	for says, l := range map[string]Launch{
		"takes 16 bytes":   {Grid: one, Block: one, Args: make([]byte, 15)},
		"a grid of":        {Grid: [3]int{1, 0, 1}, Block: one, Args: make([]byte, 16)},
		"at most 64":       {Grid: one, Block: [3]int{65, 1, 1}, Args: make([]byte, 16)},
		"of shared memory": {Grid: one, Block: one, Args: make([]byte, 16), Shared: 1 << 20},
	} {
		_, err := k.Run(&Memory{}, l)
		require.ErrorContains(t, err, says)
		var f *Finding
		require.False(t, errors.As(err, &f))
	}
	_, err = m.Kernel("other")
	require.ErrorContains(t, err, `no kernel "other"; there are k`)
}

func TestMemory(t *testing.T) {
	m := Memory{Limit: 1000}
	a, err := m.Alloc(100)
	require.NoError(t, err)
	require.Zero(t, a%256)
	_, err = m.Alloc(901)
	require.ErrorContains(t, err, "no memory for 901 bytes")
	_, err = m.Alloc(0)
	require.Error(t, err)
	require.ErrorContains(t, m.Read(make([]byte, 1), a), "never written")
	require.ErrorContains(t, m.Write(a+50, make([]byte, 51)), "no allocation holds 51 bytes")
	require.NoError(t, m.Write(a, bin.LittleEndian.AppendUint64(nil, 77)))
	b := make([]byte, 8)
	require.NoError(t, m.Read(b, a))
	require.Equal(t, uint64(77), bin.LittleEndian.Uint64(b))
	require.Equal(t, int64(100), m.Used())
	require.NoError(t, m.Free(a))
	require.Error(t, m.Free(a))
	require.Error(t, m.Read(b, a))
	c, err := m.Alloc(1000)
	require.NoError(t, err)
	require.Greater(t, c, a+100)
}

// What a kernel does is counted by hand here: 64 lanes read and write 4 bytes each, neighbours or 128 bytes apart.
func TestStats(t *testing.T) {
	body := func(stride string) string {
		return "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd1, %rd2; mul.wide.u32 %rd4, %r0, " + stride + "; add.s64 %rd4, %rd0, %rd4; ld.global.u32 %r5, [%rd4]; st.global.u32 [%rd3], %r5; " +
			"mul.lo.s32 %r6, %r0, " + stride + "; and.b32 %r6, %r6, 1023; setp.lt.u32 %p1, %r0, 8; @%p1 st.shared.u32 [%r6], %r5; bar.sync 0;"
	}
	near, err := runText(t, text(body("4")), 64, make([]byte, 64*128), make([]byte, 256), Options{})
	require.NoError(t, err)
	far, err := runText(t, text(body("128")), 64, make([]byte, 64*128), make([]byte, 256), Options{})
	require.NoError(t, err)
	require.Equal(t, Stats{Blocks: 1, Warps: 2, Instructions: 2 * 16, ThreadInstructions: 64*15 + 8, GlobalBytes: 512, Sectors: 16, Barriers: 1}, near)
	require.Equal(t, uint64(64+8), far.Sectors)
	require.Equal(t, uint64(7), far.BankConflicts) // eight lanes of one warp, one bank
	require.Equal(t, near.Instructions, far.Instructions)
}

func FuzzParse(f *testing.F) {
	f.Add(text("mov.u32 %r1, 1;"))
	f.Add(text("$L: @%p1 bra $L; shfl.sync.bfly.b32 %r20|%p1, %r1, 0, 31, -1; ld.shared.v4.u32 {%r1,%r2,%r3,%r4}, [buffer+16];"))
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := Parse(s); err == nil {
			for _, name := range m.Kernels() {
				k, err := m.Kernel(name)
				require.NoError(t, err)
				_, _ = k.Run(&Memory{Limit: 1 << 16}, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}, Args: make([]byte, k.paramBytes), Options: Options{Budget: 1000}})
			}
		}
	})
}
