package main

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// A command that was given what belongs to another says so in a sentence with the next command.
func TestRedirects(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, extract("demo/clean", filepath.Join(dir, "run")))
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	_, err := z.Create("archive/data.pkl")
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "torch.safetensors"), archive.Bytes(), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.safetensors"), []byte("\x80\x02}q\x00X\x01\x00\x00\x00a"), 0o666))
	model, err := filepath.Abs("../../internal/assets/tiny")
	require.NoError(t, err)
	for _, c := range []struct {
		args []string
		text string
		code int
	}{
		{[]string{"dump", model}, "is a model, not a dump: verify checkpoint " + model, 4},
		{[]string{"dump", filepath.Join(model, "model.safetensors")}, "is a model, not a dump: verify checkpoint " + model, 4},
		{[]string{"dump", "torch.safetensors"}, "is a pickle of torch under another name", 4},
		{[]string{"dump", "old.safetensors"}, "is a pickle of torch under another name", 4},
		{[]string{"checkpoint", "run"}, "run holds dumps, not a model: verify dump run", 2},
	} {
		out, errs, code := verify(t, dir, c.args...)
		require.Equal(t, c.code, code, "%v %s%s", c.args, out, errs)
		require.Contains(t, errs, c.text)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	}
	_, errs, code := verify(t, dir, "dump", "run") // what is right is not redirected
	require.Zero(t, code, errs)
	_, errs, _ = verify(t, dir, "checkpoint", model)
	require.NotContains(t, errs, "holds dumps")
}

func TestColor(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, extract("demo/clean", filepath.Join(dir, "run")))
	for _, c := range []struct {
		env  map[string]string
		flag string
		want bool
	}{
		{nil, "auto", false},
		{nil, "always", true},
		{map[string]string{"FORCE_COLOR": "1"}, "auto", true},
		{map[string]string{"FORCE_COLOR": "0"}, "auto", false},
		{map[string]string{"CLICOLOR_FORCE": "1"}, "auto", true},
		{map[string]string{"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", false},
		{map[string]string{"FORCE_COLOR": "1"}, "never", false},
		{map[string]string{"NO_COLOR": "1"}, "always", true},
	} {
		for _, name := range []string{"NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"} {
			t.Setenv(name, c.env[name])
		}
		out, errs, code := verify(t, dir, "dump", "run", "--color", c.flag)
		require.Zero(t, code, errs)
		require.Equal(t, c.want, strings.Contains(out, "\x1b[32m"), "%+v: %q", c, out)
	}
	_, errs, code := verify(t, dir, "dump", "run", "--color", "red")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "want one of auto, always, never")
}

func TestVersionCommand(t *testing.T) {
	short, _, code := verify(t, t.TempDir(), "version")
	require.Zero(t, code)
	flag, _, _ := verify(t, t.TempDir(), "--version")
	require.Equal(t, flag, short)
	asJSON, _, _ := verify(t, t.TempDir(), "version", "--json")
	require.Contains(t, asJSON, `"report_schema"`)
}

// The shell is offered values: profiles, checks of the command, options, formats, colours.
func TestCompletion(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"dump --profile ", "trl-grpo@1.16"},
		{"dump --select ", "advantage/group"},
		{"checkpoint --require ", "adapter/config"},
		{"dump --set ", "adv.ddof="},
		{"dump --format ", "junit"},
		{"dump --color ", "never"},
		{"dump --fail-on ", "warn"},
		{"faults --suite ", "vram"},
		{"faults --profile ", "verl-ppo@0.9"},
		{"profiles ", "trl-grpo@1.16"},
		{"explain ", "ADV-DDOF"},
		{"export ", "openrlhf"},
		{"ops --variant ", "avx512vnni"},
		{"ops --require ", "amx"},
		{"ops --run ", "f32.Softmax"},
		{"vram --model ", "gpt-j-6b"},
		{"vram --critic ", "same"},
		{"vram --optimizer ", "adamw8bit"},
		{"vram --head ", "trl-fused"},
		{"checkpoint --plan ", "llama-3.2-1b"},
		{"checkpoint --needs ", "value-head"},
		{"log --kind ", "openrlhf"},
		{"diff --relation ", "toggle="},
		{"shard-plan --engine ", "slurm"},
		{"projection --kind ", "side"},
		{"profiles --format ", "json"},
		{"golden --entry ", "policy_loss"},
	} {
		out, errs, code := verify(t, t.TempDir(), append([]string{"__complete"}, strings.Split(c.args, " ")...)...)
		require.Zero(t, code, errs)
		require.Contains(t, strings.Split(out, "\n"), c.want, c.args)
	}
	out, _, _ := verify(t, t.TempDir(), "__complete", "profiles", "--format", "")
	require.NotContains(t, out, "junit", "it has two")
	out, _, _ = verify(t, t.TempDir(), "__complete", "log", "--set", "")
	require.NotContains(t, out, "adv.ddof", "the options of logs are others")
	out, _, _ = verify(t, t.TempDir(), "__complete", "dump", "--set", "")
	require.Equal(t, len(convention.Options()), strings.Count(out, "=\n"))
}
