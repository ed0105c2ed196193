package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel"
	"plumbline/accel/cpu"
	"plumbline/accel/cuda"
	"plumbline/verify/check"
)

func TestOps(t *testing.T) {
	dir := t.TempDir()
	out, _, code := verify(t, dir, "ops", "--cases", "8", "--speed=false")
	require.Equal(t, check.ExitPass, code, out)
	for _, k := range kernels() {
		require.Regexp(t, k.Name+` +generic +PASS +8 `, out)
	}
	tiles := check.ExitPass
	switch why := cpu.Missing(cpu.AMX); {
	case unwritten("amx"): // a build without assembly
		tiles = check.ExitNothing
		require.Regexp(t, `every op +amx +not run .*no op has such a variant in this build`, out)
	case why != "":
		tiles = check.ExitNothing
		require.Regexp(t, `i8.Gemm +amx +not run .*`+regexp.QuoteMeta(why), out)
	default:
		require.Regexp(t, `i8.Gemm +amx +PASS +8 `, out)
	}
	out, _, code = verify(t, dir, "ops", "--cases", "3", "--run", "^i8.Gemm$", "--variant", "generic", "--format", "json")
	require.Equal(t, check.ExitPass, code, out)
	require.True(t, json.Valid([]byte(out)))
	out, _, code = verify(t, dir, "ops", "--variant", "amx", "--cases", "3", "--speed=false")
	require.Equal(t, tiles, code, out)
	out, _, code = verify(t, dir, "ops", "--run", "^f32.Gemm$", "--variant", "generic", "--case", "normal/5x7x33x3x1/12", "--speed=false")
	require.Equal(t, check.ExitPass, code, out)
	require.Regexp(t, `PASS +1 +70 `, out) // 35 elements, bit by bit and within the bound
	out, _, code = verify(t, dir, "ops", "--run", "Quantize", "--faults")
	require.Equal(t, check.ExitPass, code, out)
	require.Contains(t, out, "6 of 6 caught")
	for _, args := range [][]string{
		{"--variant", "sse"}, {"--require", "sse"}, {"--run", "("}, {"--run", "f128"}, {"--cases", "0"}, {"--case", "normal/5"}, {"--format", "xml"},
	} {
		_, _, code = verify(t, dir, append([]string{"ops"}, args...)...)
		require.Equal(t, check.ExitUsage, code, "%v", args)
	}
}

// A variant that is required and did not run is a failure.
func TestOpsRequire(t *testing.T) {
	out, _, code := verify(t, t.TempDir(), "ops", "--cases", "2", "--run", "f64", "--variant", "generic", "--require", "amx", "--speed=false")
	require.Equal(t, check.ExitFail, code, out)
	require.Contains(t, out, "required")
	t.Setenv("VERIFY_REQUIRE", "amx")
	_, _, code = verify(t, t.TempDir(), "ops", "--cases", "2", "--run", "f64", "--variant", "generic", "--speed=false")
	require.Equal(t, check.ExitFail, code)
}

// Every op that is registered has a specification here. An op of one portable form is specified and not registered.
func TestEveryProductIsJudged(t *testing.T) {
	judged := map[string]bool{}
	for _, k := range kernels() {
		require.False(t, judged[k.Name])
		judged[k.Name] = true
		variants := 0
		eachVariant(k.Name, func(accel.Variant) { variants++ })
		require.Positive(t, variants, k.Name)
		require.NotEmpty(t, k.Faults)
		require.NotEmpty(t, k.Bound)
	}
	for _, name := range accel.Ops() {
		require.True(t, judged[name], "%s has no specification", name)
	}
}

// The kernels in the simulator, by op and by kernel.
func TestOpsSimulated(t *testing.T) {
	out, _, code := verify(t, t.TempDir(), "ops", "--variant", "sim", "--run", "RMSNorm|Move|RoPE", "--cases", "3")
	require.Equal(t, check.ExitPass, code, out)
	require.Regexp(t, `op +kernel +cases +err/bound +instructions +sectors +bank conflicts`, out)
	require.Regexp(t, `f32.RMSNormBackward +rmsnorm_backward +3 +0\.\d+ +[1-9]\d+ +[1-9]\d+ +0`, out)
	require.Regexp(t, `f32.Move +sim +PASS +3 `, out)
	require.NotContains(t, out, "generic")
	out, _, code = verify(t, t.TempDir(), "ops", "--variant", "sim", "--run", "^f32.PolicyLoss$", "--faults")
	require.Equal(t, check.ExitPass, code, out)
	require.Contains(t, out, "2 of 2 caught")
}

// Without a GPU --variant cuda ends in 3 with one sentence; where it is required that is a failure.
func TestOpsWithoutGPU(t *testing.T) {
	if d, err := cuda.Open("", 0); err == nil {
		require.NoError(t, d.Close())
		t.Skip("not run: this machine has a GPU")
	}
	out, errs, code := verify(t, t.TempDir(), "ops", "--variant", "cuda")
	require.Equal(t, check.ExitInternal, code)
	require.Empty(t, out)
	require.Regexp(t, `^verify: --variant cuda: cuda: no usable NVIDIA GPU: [^\n]+\n$`, errs)
	out, _, code = verify(t, t.TempDir(), "ops", "--variant", "cuda", "--require", "cuda")
	require.Equal(t, check.ExitFail, code)
	require.Regexp(t, `required +cuda +FAIL .*no usable NVIDIA GPU`, out)
	t.Setenv("VERIFY_REQUIRE", "cuda")
	for _, args := range [][]string{{"--variant", "cuda"}, {"--variant", "sim", "--run", "Move", "--cases", "1"}, {"--run", "^f64.Gemm$", "--variant", "generic", "--cases", "1"}} {
		out, _, code = verify(t, t.TempDir(), append([]string{"ops", "--speed=false"}, args...)...)
		require.Equal(t, check.ExitFail, code, out)
		require.Contains(t, out, "no usable NVIDIA GPU")
	}
}

// A certificate is judged by its outputs, and void where a kernel has changed since.
func TestOpsCertificate(t *testing.T) {
	dir := t.TempDir()
	out, _, code := verify(t, dir, "ops", "--variant", "sim", "--run", "PolicyLoss|Move|i8.Gemm$", "--cases", "4", "--record", "c")
	require.Equal(t, check.ExitPass, code, out)
	out, _, code = verify(t, dir, "ops", "--replay", "c")
	require.Equal(t, check.ExitPass, code, out)
	require.Contains(t, out, "recorded on PTX simulator (sim)")
	require.Regexp(t, `f32.PolicyLoss +PASS +4 +\d+ +0\.\d+ +4`, out)

	path := filepath.Join(dir, "c")
	rewrite := func(change func(c *certificate)) {
		c, err := readCertificate(path)
		require.NoError(t, err)
		change(c)
		f, err := os.Create(filepath.Join(dir, "d"))
		require.NoError(t, err)
		z := gzip.NewWriter(f)
		require.NoError(t, json.NewEncoder(z).Encode(c))
		require.NoError(t, errors.Join(z.Close(), f.Close()))
	}
	last := func(c *certificate, op string) *deviceCase {
		for i := range c.Cases {
			if c.Cases[i].Op == op && len(c.Cases[i].Outputs) > 0 {
				return &c.Cases[i]
			}
		}
		t.Fatal("no case of " + op)
		return nil
	}
	for _, bad := range []struct {
		change func(c *certificate)
		code   int
		says   string
	}{
		{func(c *certificate) { last(c, "f32.PolicyLoss").Outputs[0][3] ^= 1 }, check.ExitFail, "the outputs are not those of their hash"},
		{func(c *certificate) { // an output beyond its bound, with its hash
			k := last(c, "f32.PolicyLoss")
			k.Outputs[0][2] ^= 0x20
			k.SHA256 = outputsHash(k.Outputs)
		}, check.ExitFail, "1 of 4 cases fail"},
		{func(c *certificate) { k := last(c, "i8.Gemm"); k.Outputs, k.SHA256 = nil, "" }, check.ExitFail, "other bits than the simulator's"},
		{func(c *certificate) { last(c, "f32.Move").Failed = "a sentinel was overwritten" }, check.ExitFail, "failed on the device: a sentinel"},
		{func(c *certificate) { c.PTX["head"] = "0" }, check.ExitUndetermined, "void: module head has changed since"},
		{func(c *certificate) { c.Cases[0].Op = "f32.Nothing" }, check.ExitMalformed, ""},
		{func(c *certificate) { c.Cases = nil }, check.ExitMalformed, ""},
		{func(c *certificate) { c.Format = "" }, check.ExitMalformed, ""},
	} {
		rewrite(bad.change)
		out, errs, code := verify(t, dir, "ops", "--replay", "d")
		require.Equal(t, bad.code, code, out+errs)
		require.Contains(t, out, bad.says)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "e"), []byte("hello"), 0o600))
	_, _, code = verify(t, dir, "ops", "--replay", "e")
	require.Equal(t, check.ExitMalformed, code)
	for _, args := range [][]string{{"--record", "x"}, {"--record", "x", "--variant", "generic"}, {"--record", "x", "--replay", "c", "--variant", "sim"}, {"--replay", "c", "--variant", "sim"}, {"--replay", "nowhere"}} {
		_, _, code = verify(t, dir, append([]string{"ops"}, args...)...)
		require.Equal(t, check.ExitUsage, code, "%v", args)
	}
}
