package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/tfevents"
	"plumbline/verify/bug"
)

// One exit code and one fragment for each kind of log, from the built program.
func TestLogCases(t *testing.T) {
	dir := t.TempDir()
	var events []byte
	for i := range 3 {
		events = tfevents.Append(events, tfevents.Event{WallTime: 1, Step: int64(i), Scalars: []tfevents.Scalar{{Tag: "loss", Value: 1}, {Tag: "completions/mean_length", Value: 9}}})
	}
	badCRC := bytes.Clone(events)
	badCRC[len(events)/2] ^= 1
	longer := bytes.Clone(events)
	copy(longer[len(events)/3:], bytes.Repeat([]byte{0xff}, 12))
	for name, text := range map[string]string{
		"empty.log": "", "zero.log": "iter 0: loss 0.1235 (main 0.1235, critic 0.0000), time 2174.97ms\niter 1: loss 0.0000 (main 0.0000, critic 0.0000), time 2034.20ms\n",
		"text.log": "nothing\nthat is known\n", "nul.log": "loss=1\x00\n", "cut.jsonl": "{\"loss\":1,\"step\":1}\n{\"loss\":", "broken.jsonl": "{\"loss\":1}\n{\"loss\":\n{\"loss\":1}\n",
		"infinite.jsonl": "{\"step\":1,\"loss\":1e999}\n", "back.jsonl": "{\"step\":3,\"loss\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":1,\"loss\":1}\n",
		"clean.jsonl": "{\"step\":1,\"loss\":0.5,\"grad_norm\":1.5}\n{\"step\":2,\"loss\":0.4,\"grad_norm\":1.4}\n", "oom.log": "RuntimeError: CUDA out of memory.\n",
		"active.jsonl": "{\"step\":1,\"<script>alert(1)</script>\":1,\"loss\":0.5,\"x\\u001b[31m\":NaN,\"kl_loss\\u202e\":NaN}\n", "long.log": strings.Repeat("x", 17<<20),
		"events.out.tfevents.1": string(events), "crc.tfevents": string(badCRC), "length.tfevents": string(longer),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nothing"), 0o755))
	for _, c := range []struct {
		args     string
		code     int
		fragment string
	}{
		{"clean.jsonl", 0, "nothing unhealthy"},
		{"zero.log", 0, "H5"},
		{"zero.log --fail-on warn", 1, "H5"},
		{"oom.log", 1, "A4"},
		{"infinite.jsonl", 1, "NONFINITE"},
		{"back.jsonl", 1, "STEPS-BACK"},
		{"cut.jsonl", 0, "the last line is cut"},
		{"active.jsonl", 1, "NONFINITE"},
		{"events.out.tfevents.1", 0, "3 TensorBoard"},
		{"text.log", 5, "2 not understood"},
		{"empty.log", 4, "is empty"},
		{"nul.log", 4, "NUL byte"},
		{"broken.jsonl", 4, "line 2"},
		{"long.log", 4, "a line of more than"},
		{"crc.tfevents", 4, "checksum"},
		{"length.tfevents", 4, "checksum"},
		{"nothing", 5, "no file is a log"},
		{"missing.log", 2, "missing.log"},
		{"", 2, "log takes files"},
		{"clean.jsonl --kind cobol", 2, "--kind"},
		{"clean.jsonl --vocab 1", 2, "--vocab"},
		{"clean.jsonl --set kl_beta", 2, "OPTION=VALUE"},
		{"clean.jsonl --select log/nothing", 2, "no check matches"},
		{"clean.jsonl -o clean.jsonl", 2, "is an input"},
		{"clean.jsonl -o no/where.json", 2, "there is no folder"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := verify(t, dir, append([]string{"log"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, "%s%s", stdout, stderr)
			require.Contains(t, strings.Join(strings.Fields(stdout+stderr), " "), c.fragment)
			require.NotContains(t, stdout, "\x1b")
			require.NotContains(t, stdout, "\u202e")
		})
	}
}

// JSON and JUnit carry the findings; stdin is read; every finding is explained.
func TestLogForms(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.log"), []byte("RuntimeError: expected scalar type Half but found Float\n{'loss': 0.1, 'grad_norm': 1.0}\n"), 0o644))
	stdout, _, code := verify(t, dir, "log", "a.log", "--format", "json")
	require.Equal(t, 1, code)
	var r struct {
		Headline string
		Findings []struct {
			Name, Cause, Fix string
			Better           string `json:"better_cause"`
		}
		Metrics []struct{ Name, Spark, Formula string }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, "A1", r.Findings[0].Name)
	require.Contains(t, r.Findings[0].Cause, "LoRA adapters are float32")
	require.NotEmpty(t, r.Findings[0].Better)
	require.Contains(t, r.Findings[0].Fix, `torch_dtype="auto"`)
	require.Len(t, r.Metrics, 2)
	require.Contains(t, r.Headline, "A1")

	stdout, _, code = verify(t, dir, "log", "a.log", "--format", "junit")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "<failure")

	cmd := exec.Command(binaryPath, "log", "-")
	cmd.Stdin = strings.NewReader("step:1 - actor/pg_loss:0.1 - actor/pg_clipfrac:1.5\n")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "SHARE-RANGE")

	for _, s := range bug.Symptoms() {
		var b bytes.Buffer
		require.NoError(t, explain(&b, s.ID))
		require.Contains(t, b.String(), s.Title)
	}
	var b bytes.Buffer
	require.NoError(t, explain(&b, "approx_kl"))
	require.Contains(t, b.String(), "k2 in TRL's PPO")

	for _, name := range inputs() { // facts, keys of the metadata, tensors
		b.Reset()
		require.NoError(t, explain(&b, name))
		require.Contains(t, b.String(), "declare:", name)
	}
	b.Reset()
	printOptions(&b)
	require.Contains(t, b.String(), "none, row, minibatch, local_batch, global")
}

// A log that grows is judged as it does; one that stands still is a finding.
func TestLogFollow(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run.log")
	require.NoError(t, os.WriteFile(path, []byte("{'loss': 0.5, 'grad_norm': 1.0}\n"), 0o644))
	cmd := exec.Command(binaryPath, "log", path, "--follow", "--stall", "3s")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("{'loss': nan, 'grad_norm': 1.0}\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode(), "%s%s", &stdout, &stderr)
	require.Contains(t, stderr.String(), "FAIL  NONFINITE")
	require.Contains(t, stdout.String(), "STALL")
	require.Contains(t, stdout.String(), "NONFINITE")
	_, out, code := verify(t, dir, "log", "-", "--follow")
	require.Equal(t, 2, code)
	require.Contains(t, out, "stdin is judged at its end")
}
