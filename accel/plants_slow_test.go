//go:build slow && amd64 && !purego

package accel_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cpu"
	part "plumbline/internal/cases"
	"plumbline/verify/op"
)

// sources are the files that the edit changes. The assembler reads what a source includes past an overlay, so that a header is put
// in the place of its line.
func (p *sourcePlant) sources(t *testing.T) map[string]string {
	if !strings.HasSuffix(p.file, ".h") {
		return map[string]string{p.file: p.edited(t)}
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(p.file), "*.s"))
	require.NoError(t, err)
	line, changed := `#include "`+filepath.Base(p.file)+`"`, map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(text), line) {
			changed[file] = strings.Replace(string(text), line, p.edited(t), 1)
		}
	}
	require.NotEmpty(t, changed, p.id)
	return changed
}

// variants are the first letters of those that run what is edited.
func (p *sourcePlant) variants() string {
	for _, room := range []string{"tile512/", "vnni/", "vdp/", "attention512/"} {
		if strings.HasPrefix(p.id, room) {
			return "avx512"
		}
	}
	if strings.HasPrefix(p.id, "amx/") {
		return "amx"
	}
	return ""
}

// need is the variant that runs what is edited.
func (p *sourcePlant) need() string {
	switch room, _, _ := strings.Cut(p.id, "/"); room {
	case "tile512", "attention512":
		return "avx512"
	case "vnni":
		return "avx512vnni"
	case "vdp":
		return "avx512bf16"
	case "amx":
		return "amx"
	}
	return "avx2"
}

// missing says why this machine cannot run it, "" if it can.
func (p *sourcePlant) missing() string {
	return cpu.Missing(map[string]cpu.Feature{"avx2": cpu.AVX2, "avx512": cpu.AVX512, "avx512vnni": cpu.AVX512VNNI, "avx512bf16": cpu.AVX512BF16, "amx": cpu.AMX}[p.need()])
}

// Each plant is compiled into the test of its op, which must then fail, or that of its own room: 98 of 100 at least of those that this machine can run.
func TestPlantedInKernels(t *testing.T) {
	tried, caught := 0, 0
	var missed []string
	for i, p := range sourcePlants {
		if !part.Due(i) {
			continue
		}
		t.Run(p.id, func(t *testing.T) {
			if why := p.missing(); why != "" {
				op.Skip(t, p.need(), why)
			}
			tried++
			dir := t.TempDir()
			overlay, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "test")
			replaced := map[string]string{}
			for file, text := range p.sources(t) {
				path, err := filepath.Abs(filepath.FromSlash(file))
				require.NoError(t, err)
				replaced[path] = filepath.Join(dir, strconv.Itoa(len(replaced))+filepath.Ext(path))
				require.NoError(t, os.WriteFile(replaced[path], []byte(text), 0o644))
			}
			replace, err := json.Marshal(map[string]any{"Replace": replaced})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, replace, 0o644))
			log, err := exec.Command("go", "test", "-overlay", overlay, "-vet=off", "-c", "-o", binary, ".").CombinedOutput()
			require.NoError(t, err, "%s does not compile: %s", p.id, log)
			log, err = exec.Command(binary, "-test.run", "^Test(Row)?Ops$/^"+p.op+"$/^"+p.variants(), "-cases", "150").CombinedOutput()
			if err == nil && p.need() == "amx" { // the shapes that go through every way of its blocks
				log, err = exec.Command(binary, "-test.run", "^TestTiles$/^"+p.op+"$").CombinedOutput()
			}
			if err == nil { // what a case in a hundred shows
				log, err = exec.Command(binary, "-test.run", "^Test(Row)?Ops$/^"+p.op+"$/^"+p.variants(), "-cases", "3000").CombinedOutput()
			}
			if err == nil { // the tests of its own room see what random cases seldom meet
				log, err = exec.Command("go", "test", "-overlay", overlay, "-vet=off", "./"+filepath.Dir(p.file)).CombinedOutput()
			}
			if err == nil {
				missed = append(missed, p.id)
				return
			}
			caught++
			t.Logf("%.400s", regexp.MustCompile(`(?s).*?ops_test.go`).ReplaceAll(log, nil))
		})
	}
	t.Logf("%d of %d caught; not: %v", caught, tried, missed)
	require.GreaterOrEqual(t, 100*caught, 98*tried)
}

// No correct kernel is accused: 10,000 cases of every op and variant, or as many as the variable CHECKS says.
func TestTenThousandCases(t *testing.T) {
	log, err := exec.Command("go", "test", "-count=1", "-timeout=60m", "-run", "^Test(Row)?Ops$", "-v", ".", "-cases", strconv.Itoa(part.Checks())).CombinedOutput()
	require.NoError(t, err, "%s", log)
	t.Logf("%s", log)
}
