package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/golden"
)

// goldenFolder writes sections of the embedded set to a new folder.
func goldenFolder(t *testing.T, sections ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, s := range sections {
		for _, ext := range []string{".json", ".safetensors"} {
			content, err := golden.Data.ReadFile("rl/" + s + ext)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, s+ext), content, 0o644))
		}
	}
	return dir
}

// One exit code and one fragment of the output for each case, from the built program.
func TestGoldenCases(t *testing.T) {
	kl := goldenFolder(t, "kl")
	broken := goldenFolder(t, "kl")
	require.NoError(t, os.Truncate(filepath.Join(broken, "kl.safetensors"), 100))
	differs := goldenFolder(t, "kl", "adamw")
	text, err := os.ReadFile(filepath.Join(differs, "kl.json"))
	require.NoError(t, err)
	changed := strings.Replace(string(text), `"kind":"abs"`, `"kind":"k2"`, 1)
	require.NotEqual(t, string(text), changed)
	require.NoError(t, os.WriteFile(filepath.Join(differs, "kl.json"), []byte(changed), 0o644))
	unknown := goldenFolder(t, "kl")
	require.NoError(t, os.WriteFile(filepath.Join(unknown, "rope.json"), []byte(`{"section":"rope","entries":[{"id":"rope/0","peer":"a","function":"f"}]}`), 0o644))
	one := goldenFolder(t, "kl")
	text, err = os.ReadFile(filepath.Join(one, "kl.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(one, "kl.json"), []byte(strings.Replace(string(text), `"outputs":{`, `"outputs":{"more":7,`, 1)), 0o644))
	both := goldenFolder(t, "kl", "adamw")
	require.NoError(t, os.WriteFile(filepath.Join(both, "adamw.json"), []byte(`{}`), 0o644))

	for _, c := range []struct {
		name     string
		args     []string
		code     int
		fragment string // of stdout or stderr
	}{
		{"the set in the program", nil, 0, "1448 entries: 1448 agree, 0 differ, 0 undetermined"},
		{"one section", []string{"--select", "golden/gae"}, 0, "118 entries: 118 agree"},
		{"all but one", []string{"--ignore", "golden/gae"}, 0, "1330 entries: 1330 agree"},
		{"one entry", []string{"--entry", "gae/0012"}, 0, "1 entry: 1 agree"},
		{"one function", []string{"--entry", "PolicyLoss"}, 0, "60 entries: 60 agree"},
		{"one model", []string{"--entry", "models/gptj/*", "-v"}, 0, "4 entries: 4 agree"},
		{"texts", []string{"--select", "golden/tokenizer"}, 0, "150 entries: 150 agree"},
		{"leaks are named", []string{"-v", "--select", "golden/adamw"}, 0, "parameters and moments are float32"},
		{"a required check without entries", []string{"--entry", "gae/0012", "--require", "golden/kl"}, 6, "asked for by name"},
		{"a folder", []string{"--dir", kl}, 0, "72 entries: 72 agree"},
		{"a folder without a manifest", []string{"--dir", kl, "--fail-on", "warn"}, 1, "no MANIFEST.json"},
		{"a folder that differs", []string{"--dir", differs}, 1, "options kind \"k2\""},
		{"where it differs", []string{"--dir", differs}, 1, "verl@0.9.1 kl_penalty, case"},
		{"how to repeat it", []string{"--dir", differs}, 1, "--dir " + differs + " --select golden/kl --entry kl/0"},
		{"quiet", []string{"--dir", differs, "-q"}, 1, "FAIL"},
		{"another section of it", []string{"--dir", differs, "--select", "golden/adamw"}, 0, "9 entries: 9 agree"},
		{"an unknown section", []string{"--dir", unknown}, 6, "no check knows this section"},
		{"an unknown section left out", []string{"--dir", unknown, "--ignore", "golden/unknown"}, 0, "72 agree"},
		{"an empty folder", []string{"--dir", t.TempDir()}, 5, "nothing was checked"},
		{"cut tensors", []string{"--dir", broken}, 4, "kl.safetensors"},
		{"one entry of many broken", []string{"--dir", one}, 4, "71 agree, 0 differ, 1 undetermined"},
		{"which one is broken", []string{"--dir", one}, 4, "malformed: "},
		{"one section of two broken", []string{"--dir", both}, 4, "adamw.json"},
		{"no such folder", []string{"--dir", filepath.Join(kl, "none")}, 2, "no such file"},
		{"a file", []string{"--dir", filepath.Join(kl, "kl.json")}, 2, "not a directory"},
		{"no folder", []string{"--dir", ""}, 2, "want a folder"},
		{"no such entry", []string{"--entry", "gae/9999"}, 2, "did you mean"},
		{"no such check", []string{"--select", "golden/gea"}, 2, "golden/gae"},
		{"an argument", []string{kl}, 2, "no arguments"},
		{"an output over an input", []string{"--dir", kl, "-o", filepath.Join(kl, "kl.json")}, 2, "is an input of this run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := verify(t, ".", append([]string{"golden"}, c.args...)...)
			require.Equal(t, c.code, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout+stderr, c.fragment)
			require.NotContains(t, stderr, "internal error")
		})
	}
}

// The JSON form has the numbers, the error of a broken folder, and a command that repeats the finding.
func TestGoldenJSON(t *testing.T) {
	dir := goldenFolder(t, "kl")
	type form struct {
		Exit    int
		Error   string
		Inputs  []struct{ Path, SHA256 string }
		Results []struct {
			Check, Subject, Verdict, Where, Repeat string
			Compared                               int
			Measured, Ratio                        float64
		}
	}
	read := func(args ...string) form {
		stdout, stderr, _ := verify(t, ".", append([]string{"golden", "--format", "json"}, args...)...)
		var f form
		require.NoError(t, json.Unmarshal([]byte(stdout), &f), stderr)
		return f
	}
	f := read()
	require.Zero(t, f.Exit)
	require.Len(t, f.Inputs, 12, "the manifests")
	for _, r := range f.Results {
		require.Equal(t, "PASS", r.Verdict)
		require.NotZero(t, r.Compared, r.Check)
		require.LessOrEqual(t, r.Measured, 1.0, r.Check)
	}
	f = read("--dir", dir)
	require.Len(t, f.Inputs, 2)
	require.Len(t, f.Inputs[0].SHA256, 64)

	text, err := os.ReadFile(filepath.Join(dir, "kl.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kl.json"), []byte(strings.Replace(string(text), `"kind":"abs"`, `"kind":"k2"`, 1)), 0o644))
	f = read("--dir", dir)
	require.Equal(t, 1, f.Exit)
	repeated := false
	for _, r := range f.Results {
		if r.Verdict == "FAIL" {
			require.Contains(t, r.Repeat, "--entry")
			args := strings.Fields(r.Repeat)
			stdout, stderr, code := verify(t, ".", args[1:]...)
			require.Equal(t, 1, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout, "1 entry: 0 agree, 1 differ")
			repeated = true
		}
	}
	require.True(t, repeated)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "kl.json"), []byte("{"), 0o644))
	f = read("--dir", dir)
	require.Equal(t, 4, f.Exit)
	require.Contains(t, f.Error, "kl.json")
}
