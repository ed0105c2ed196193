//go:build slow

package ptxsim

import (
	"encoding/json"
	"os"
	command "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// Bugs planted in the simulator itself, one at a time, are caught by its tests: a checker that is wrong would bless what it should stop.
func TestPlantedInSimulator(t *testing.T) {
	for i, f := range []struct{ file, was, is string }{
		{"collective.go", "row, col := l/4+8*(i%2), 4*(l%4)+16*(i/2)", "row, col := l/4+8*(i/2), 4*(l%4)+16*(i%2)"},
		{"collective.go", "b[l/4][4*(l%4)+16*i+e] = int32", "b[l%8][4*(l/8)+16*i+e] = int32"},
		{"collective.go", "a[l/4+8*(i%2)][2*(l%4)+8*(i/2)+e] = half", "a[l/4+8*(i/2)][2*(l%4)+8*(i%2)+e] = half"},
		{"collective.go", "r, col := l/4, l%4*2", "r, col := l%8, l/8*2"},
		{"collective.go", `"down": func(l, b, c int) (int, bool) { j := l + b`, `"down": func(l, b, c int) (int, bool) { j := l - b`},
		{"collective.go", "w.syncs++", "_ = w.syncs"},
		{"collective.go", "uint32(v[l]) != m", "uint32(v[l])&m == 0"},
		{"collective.go", "if m>>j&1 == 0 {", "if false {"},
		{"memory.go", "case t == w.thread || epoch != w.epoch:", "case t == w.thread || epoch <= w.epoch:"},
		{"memory.go", "return t>>5 == w.thread>>5 && sync != w.sync", "return t>>5 == w.thread>>5"},
		{"memory.go", "case k.rBlocks || k.rBlock != w.block:", "case k.rBlocks:"},
		{"memory.go", "case k.rWarps || k.rThread>>5 != w.thread>>5:", "case k.rWarps:"},
		{"memory.go", "m.next += (uint64(n)+255)&^255 + 256", "m.next += uint64(n)"},
		{"checked.go", "if addr%uint64(n) != 0 {", "if addr%4 != 0 {"},
		{"checked.go", "if !a.set[at+i] {\n\t\t\t\tw.fail", "if false {\n\t\t\t\tw.fail"},
		{"checked.go", "case k.pending:\n\t\t\tw.fail", "case false:\n\t\t\tw.fail"},
		{"async.go", "if cp.group >= w.groups[l]-n {", "if cp.group > w.groups[l]-n {"},
		{"checked.go", "case (!write || atomic) && !k.written:", "case false:"},
		{"checked.go", "for s := (base[l] + offset) / 32;", "for s := (base[l] + offset) / 64;"},
		{"checked.go", "bank := word % 32", "bank := word % 64"},
		{"checked.go", "if addr+uint64(n) > uint64(len(w.shared))", "if addr > uint64(len(w.shared))"},
		{"warp.go", "if m != w.live {\n\t\t\t\tw.fail(Barrier", "if false {\n\t\t\t\tw.fail(Barrier"},
		{"warp.go", "if ended > 0 {", "if false {"},
		{"warp.go", "b.epoch++", "_ = b.epoch"},
		{"warp.go", "clear(w.set)", "_ = w.set"},
		{"warp.go", "low = min(low, g.pc)", "low = max(low, g.pc)"},
		{"compile.go", "if missing := m &^ w.set[s.reg]; missing != 0 {", "if missing := m &^ w.set[s.reg]; missing == m && m != 0 && false {"},
		{"float.go", "return uint16((u + 0x7fff + u>>16&1) >> 16)", "return uint16((u + 0x8000) >> 16)"},
		{"float.go", "case v != v:\n\t\t\t\t\treturn 0", "case v != v:\n\t\t\t\t\treturn mask"},
		{"float.go", "return b32(kernels.FMA(f32(a), f32(b), f32(c)))", "return b32(kernels.FMA(f32(a), f32(b), 0) + f32(c))"},
		{"integer.go", "uint64(signed(a)>>min(b, 63)) & mask", "uint64(signed(a)>>(b&31)) & mask"},
		{"integer.go", "return uint64(int64(int32(a)) * int64(int32(b))) }, \"mul.wide.s32\"", "return a * b }, \"mul.wide.s32\""},
		{"integer.go", "if q>>l&1 != 0 {\n\t\t\t\t\t\tz[l] = x[l]", "if q>>l&1 == 0 {\n\t\t\t\t\t\tz[l] = x[l]"},
		{"parse.go", "k.paramBytes = (k.paramBytes + size - 1) / size * size", "k.paramBytes = k.paramBytes + 0"},
		{"parse.go", `return fmt.Errorf("unknown instruction %s", op)`, `return nil`},
	} {
		source, err := os.ReadFile(f.file)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(source), f.was), "%s holds %q not once", f.file, f.was)
		if !cases.Due(i) {
			continue
		}
		dir := t.TempDir()
		planted, overlay := filepath.Join(dir, f.file), filepath.Join(dir, "overlay.json")
		require.NoError(t, os.WriteFile(planted, []byte(strings.Replace(string(source), f.was, f.is, 1)), 0o644))
		here, err := filepath.Abs(f.file)
		require.NoError(t, err)
		b, err := json.Marshal(map[string]map[string]string{"Replace": {here: planted}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(overlay, b, 0o644))
		out, err := command.Command("go", "test", "-overlay", overlay, "-vet=off", "-timeout", "2m", ".").CombinedOutput()
		if err == nil {
			t.Errorf("missed: %s: %s", f.file, f.is)
		} else if strings.Contains(string(out), "[build failed]") {
			t.Errorf("%s: %q does not compile:\n%s", f.file, f.is, out)
		}
	}
}
