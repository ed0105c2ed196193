package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/verify/export"
	"plumbline/verify/check"
)

// Every target prints its file as it is embedded, and nothing else.
func TestExportPrints(t *testing.T) {
	for _, target := range exportTargets {
		out, errs, code := verify(t, t.TempDir(), "export", target.name)
		require.Zero(t, code, errs)
		require.Empty(t, errs)
		text, err := os.ReadFile("export/" + target.file)
		require.NoError(t, err)
		require.Equal(t, string(text), out, target.name)
	}
}

// A hook has at most 49 lines, needs only torch, safetensors, the standard library and the framework that it is for, says at
// its top how it is used, which release it was tested with, and warns where a dump fails.
func TestExportedHooks(t *testing.T) {
	standard := []string{"dataclasses", "functools", "hashlib", "importlib.metadata", "json", "math", "os", "sys", "time", "traceback", "warnings", "torch", "safetensors.torch"}
	releases := map[string]string{"trl": "1.16.0", "trl-rloo": "1.16.0", "trl-dpo": "1.16.0", "verl": "0.9.1", "openrlhf": "0.11.2"}
	imports := regexp.MustCompile(`(?m)^(?:import (.+)|from (\S+) import .+)$`)
	for _, target := range exportTargets {
		if target.name == "pytest" {
			continue
		}
		data, err := export.Files.ReadFile(target.file)
		require.NoError(t, err)
		text := string(data)
		framework, _, _ := strings.Cut(target.name, "-")
		require.LessOrEqual(t, strings.Count(text, "\n"), 49, target.file)
		require.True(t, strings.HasPrefix(text, `"""`) && strings.HasSuffix(text, "\n"), target.file)
		require.NotContains(t, text, "\t", "%s: Python and tabs", target.file)
		found := 0
		for _, m := range imports.FindAllStringSubmatch(text, -1) {
			for _, name := range strings.Split(m[1]+m[2], ",") {
				name, _, _ = strings.Cut(strings.TrimSpace(name), " as ")
				first, _, _ := strings.Cut(name, ".")
				require.True(t, slices.Contains(standard, name) || first == framework, "%s imports %s", target.file, name)
				found++
			}
		}
		require.GreaterOrEqual(t, found, 5, "%s: the expression found no imports", target.file)
		head, _, _ := strings.Cut(text[3:], `"""`)
		require.Contains(t, head, "verify dump", target.file)
		require.Contains(t, head, strings.TrimSuffix(target.file, ".py"), "%s: how it is used", target.file)
		require.Contains(t, head, "raises", "%s: what strict does", target.file)
		require.Contains(t, text, "training goes on", target.file)
		require.Contains(t, text, "schema=1", target.file)
		if release := releases[target.name]; release != "" {
			require.Contains(t, text, fmt.Sprintf(`!= %q: warnings.warn(`, release), target.file)
			require.Contains(t, head, release, target.file)
			require.Contains(t, target.what, release)
		}
		// the gradient is dumped, no file is replaced, and none is seen before it is whole
		for _, name := range []string{"response_mask", "logp_", "dlogp", "os.path.exists(path)", "os.replace(", "run_id("} {
			require.Contains(t, text, name, target.file)
		}
	}
}

func TestExportErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"export"}, "export takes one of trl, trl-rloo, trl-dpo, verl, openrlhf, torch, pytest, not 0 arguments"},
		{[]string{"export", "trl", "verl"}, "not 2 arguments"},
		{[]string{"export", "openrhlf"}, `export "openrhlf": want one of trl, trl-rloo, trl-dpo, verl, openrlhf, torch, pytest; did you mean "openrlhf"?`},
		{[]string{"export", "TRL"}, `did you mean "trl"?`},
		{[]string{"export", ""}, `export "": want one of`},
		{[]string{"export", "../main.go"}, `want one of`},
		{[]string{"export", "trl", "--output", "x"}, "unknown flag: --output"},
		{[]string{"exprt", "trl"}, `did you mean "export"?`},
	} {
		out, errs, code := verify(t, dir, c.args...)
		require.Equal(t, check.ExitUsage, code, c.args)
		require.Empty(t, out)
		require.Contains(t, errs, c.text)
	}
	out, _, code := verify(t, dir, "--help")
	require.Zero(t, code)
	require.Contains(t, out, "export      prints the hook")
	out, _, code = verify(t, dir, "export", "--help")
	require.Zero(t, code)
	for _, target := range exportTargets {
		require.Contains(t, out, target.name)
		require.Contains(t, out, target.file)
	}
	// a lost hook is no success
	if full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil {
		defer full.Close()
		cmd := exec.Command(binaryPath, "export", "trl")
		cmd.Stdout = full
		require.Error(t, cmd.Run())
		require.Equal(t, check.ExitInternal, cmd.ProcessState.ExitCode())
	}
}
