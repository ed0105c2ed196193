package cuda

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cuda/ptxsim"
)

var writeCosts = flag.Bool("costs", false, "write testdata/costs.md anew")

// costs runs every kernel once on a fixed problem and returns a table of what it did: figures that no machine has a part in.
func costs(t *testing.T) string {
	sim := Simulator(ptxsim.Options{}, 0)
	d := &device{c: NewContext(sim)}
	f := func(n int) Pointer { return up(d, make([]float32, n)) }
	b := func(n int) Pointer { return up(d, make([]int8, n)) }
	i := func(n int) Pointer { return up(d, make([]int32, n)) }
	c := d.c
	d.do(c.QuantizeRows(f(4*1024), b(4*1024), f(4), 4, 1024, 1024, 1024))
	d.do(c.GemmInt8(b(128*256), b(128*256), i(128*128), f(128*128), f(128), f(128), 128, 128, 256, 256, 256, 128))
	d.do(c.LinearForward(f(64*256), b(128*256), f(128), f(128), f(64*128), 64, 128, 256, 256, false))
	d.do(c.LinearBackward(f(64*128), b(128*256), f(128), f(64*256), 64, 128, 256, 256, false))
	d.do(c.Gemm(f(64*128), f(128*16), f(64*16), 64, 16, 128, false, true, 1, false))
	d.do(c.RMSNormForward(f(4*512), f(512), f(4*512), f(4), 4, 512, 1e-5))
	d.do(c.RMSNormBackward(f(4*512), f(512), f(4), f(4*512), f(4*512), 4, 512, true))
	d.do(c.LayerNormForward(f(4*512), f(512), f(512), f(4*512), f(8), 4, 512, 1e-5))
	d.do(c.LayerNormBackward(f(4*512), f(512), f(8), f(4*512), f(4*512), 4, 512, true))
	for _, size := range []int{64, 128, 256} {
		a := Attention{Batch: 1, TQ: 16, TK: 64, Heads: 2, KV: 1, Size: size, Causal: true, Offset: 48, Scale: 0.125}
		real := make([]uint8, 64)
		for j := range real {
			real[j] = 1
		}
		q, kv, r := 16*2*size, 64*size, up(d, real)
		d.do(c.AttentionForward(f(q), f(kv), f(kv), r, f(q), f(32), a))
		d.do(c.AttentionBackward(f(q), f(kv), f(kv), r, f(q), f(32), f(q), f(q), f(kv), f(kv), f(32), a))
	}
	d.do(c.HeadForward(f(4*2048), i(4), f(4), f(4), f(4), 4, 2048, 1))
	d.do(c.HeadBackward(f(4*2048), i(4), f(4), f(4), f(4), f(4), 4, 2048, 1))
	d.do(c.PolicyLoss(f(512), f(512), f(512), f(512), f(512), f(512), f(512), 512, 0.8, 1.2, 0.1))
	d.do(c.RoPE(f(8*2*64), f(8*32), f(8*32), i(8), 8, 2, 64, 32, false, false))
	d.do(c.SiLUMulForward(f(512), f(512), f(512), 512))
	d.do(c.SiLUMulBackward(f(512), f(512), f(512), f(512), f(512), 512))
	d.do(c.GELUForward(f(512), f(512), 512))
	d.do(c.GELUBackward(f(512), f(512), f(512), 512))
	d.do(c.Add(f(512), f(512), 1, 512))
	d.do(c.Sum(f(512), f(512), f(512), 512))
	d.do(c.Fill(f(512), 1, 512))
	d.do(c.Gather(f(16*64), i(8), f(8*64), 8, 64))
	d.do(c.Scatter(f(1*64), i(1), f(16*64), 1, 64))
	d.do(c.Embedding(b(16*64), f(16), 0, i(8), i(8), f(8*64), 8, 64, 64))
	_, err := c.SumSquares(f(8192), 8192)
	d.do(err)
	d.do(c.AdamWStep(f(512), f(512), f(512), f(512), 512, AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Clip: 1, Step: 1}))
	d.do(c.Project(f(8192*4), f(8192), 8192, 4))
	require.NoError(t, d.err)
	var names []string
	for name := range sim.Stats {
		names = append(names, name)
	}
	sort.Strings(names)
	var s strings.Builder
	s.WriteString("| kernel | warp instructions | sectors of 32 bytes | bank conflicts | mma | barriers |\n|---|---|---|---|---|---|\n")
	for _, name := range names {
		k := sim.Stats[name]
		fmt.Fprintf(&s, "| %s | %d | %d | %d | %d | %d |\n", name, k.Instructions, k.Sectors, k.BankConflicts, k.MMA, k.Barriers)
	}
	return s.String()
}

// What a kernel does on a fixed problem stays within 2 % of the committed table: a change is seen, and written down with -costs.
func TestCosts(t *testing.T) {
	got := costs(t)
	if *writeCosts {
		require.NoError(t, os.WriteFile("testdata/costs.md", []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/costs.md")
	require.NoError(t, err)
	rows := func(s string) map[string][]string {
		m := map[string][]string{}
		for _, line := range strings.Split(strings.TrimSpace(s), "\n")[2:] {
			cells := strings.Split(strings.Trim(line, "| "), " | ")
			m[cells[0]] = cells[1:]
		}
		return m
	}
	a, b := rows(string(want)), rows(got)
	all := 0
	for _, module := range Kernels() {
		text, err := PTX(module)
		require.NoError(t, err)
		m, err := parse(text)
		require.NoError(t, err)
		for _, k := range m.Kernels() {
			all++
			require.Contains(t, b, k, "a kernel without a cost")
		}
	}
	require.Len(t, b, all)
	require.Len(t, a, all)
	for name, cells := range b {
		for i, c := range cells {
			var now, then float64
			fmt.Sscan(c, &now)
			fmt.Sscan(a[name][i], &then)
			if !(now >= 0.98*then && now <= 1.02*then) {
				t.Errorf("%s: column %d is %v, the table says %v: go test ./accel/cuda -run Costs -costs, if it is meant", name, i+1, now, then)
			}
		}
	}
}
