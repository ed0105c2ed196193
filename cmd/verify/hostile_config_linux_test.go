package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A configuration is opened by the same door as every other file, and one that says nothing is no configuration.
func TestLogConfigHostile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("a.jsonl", strings.Repeat(`{"step":1,"loss":0.1}`+"\n", 3))
	write("words.yaml", "only words\n")
	write("empty.yaml", "")
	write("nul.yaml", "kl_beta: 0.1\n\x00")
	write("wf.yaml", "? x\n")
	write("good.yaml", "kl_beta: 0.1\n")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large.yaml"), nil, 0o644))
	require.NoError(t, os.Truncate(filepath.Join(dir, "large.yaml"), 50<<30))
	for _, c := range []struct {
		file     string
		code     int
		fragment string
	}{
		{"good.yaml", 0, "nothing unhealthy"},
		{"/dev/zero", 4, "want a regular file"},
		{"fifo", 4, "is a FIFO"},
		{"large.yaml", 4, "want at most"},
		{".", 4, "is a directory"},
		{"missing.yaml", 2, "no such file"},
		{"words.yaml", 2, "no line is OPTION=VALUE"},
		{"empty.yaml", 2, "no line is OPTION=VALUE"},
		{"nul.yaml", 2, "a NUL byte"},
	} {
		for _, shard := range [][]string{nil, {"--shard", "0/2"}} {
			args := append([]string{"log", "a.jsonl", "--config", c.file}, shard...)
			stdout, stderr, code := verify(t, dir, args...)
			require.Equal(t, c.code, code, "%v: %s%s", args, stdout, stderr)
			if shard == nil {
				require.Contains(t, strings.Join(strings.Fields(stdout+stderr), " "), c.fragment)
			}
		}
	}
}

// No part of a list is dropped in silence, and an empty one (an unset variable in CI) is not the same as none.
func TestListsAreWhole(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.jsonl"), []byte(strings.Repeat(`{"step":1,"loss":0.1}`+"\n", 3)), 0o644))
	vram := []string{"vram", "--model", "gpt-j-6b", "--batch", "1", "--seq", "8", "--limit", "80GB", "--lora-r", "4"}
	for _, c := range []struct {
		args     []string
		code     int
		fragment string
	}{
		{[]string{"log", "a.jsonl", "--require", "log/sum\nnope"}, 2, "no check matches"},
		{[]string{"log", "a.jsonl", "--select", "log/sum\n"}, 2, "no check matches"},
		{[]string{"log", "a.jsonl", "--require", ""}, 2, "an empty name"},
		{[]string{"log", "a.jsonl", "--require", "log/sum,,log/step"}, 2, "an empty name"},
		{[]string{"log", "a.jsonl", "--ignore", "log/sum, log/nope"}, 2, "log/nope"},
		{append(vram, "--targets", "q_proj\nnope"), 2, ""},
		{append(vram, "--targets", "q_proj\n::error::x"), 2, ""},
		{append(vram, "--targets", "q_proj, v_proj"), 0, ""},
		{append(vram, "--targets", "q_proj", "--targets", "v_proj"), 0, ""},
		{[]string{"log", "a.jsonl", "--stall", "-5s"}, 2, "--stall"},
	} {
		stdout, stderr, code := verify(t, dir, c.args...)
		require.Equal(t, c.code, code, "%q: %s%s", c.args, stdout, stderr)
		require.Contains(t, stdout+stderr, c.fragment)
		require.NotContains(t, stdout+stderr, "\n::error")
	}
}

// The command that repeats a run is text of the one who named its paths, too.
func TestRepeatIsPrintable(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a\n::error::b", "a\x1b[31mb", "a\u202eb"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "a.jsonl"), []byte(`{"step":1,"loss":0.1}`+"\n"), 0o644))
		for _, form := range []string{"human", "json", "junit", "markdown", "html", "sarif"} {
			stdout, stderr, code := verify(t, dir, "log", name, "--format", form)
			require.Zero(t, code)
			for line := range strings.Lines(stdout + stderr) {
				require.False(t, form != "html" && strings.HasPrefix(strings.TrimSpace(line), "::"), "%s: %q", form, line) // a page is not printed
			}
			require.NotContains(t, stdout, "\x1b", form)
			require.NotContains(t, stdout, "\u202e", form)
		}
	}
}
