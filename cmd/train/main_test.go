package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/built"
)

// binaryPath is the built program: exit codes and streams are those of a process.
var binaryPath string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "train-test-")
	if err != nil {
		panic(err)
	}
	binaryPath = filepath.Join(dir, "train")
	if err := built.Program(binaryPath, "."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, set := os.LookupEnv("GOGC"); !set { // a test that measures its own program has set it
		os.Setenv("GOGC", built.GOGC)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// program runs the built program.
func program(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binaryPath, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// goldens are small models of transformers, with adapters of PEFT.
const goldens = "../../golden/peft"

// chatML is the template that most models with ChatML have.
const chatML = `{% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`

// healthy makes a folder with a small model of 29 tokens and its tokenizer.
func healthy(t testing.TB) string {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		copyFile(t, filepath.Join(goldens, "llama", name), filepath.Join(dir, name))
	}
	copyFile(t, "../../internal/refmodel/testdata/tokenizer.json", filepath.Join(dir, "tokenizer.json"))
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"eos_token": {"content": "<|endoftext|>"}}`)
	write(t, filepath.Join(dir, "chat_template.jinja"), chatML)
	return dir
}

func copyFile(t testing.TB, from, to string) {
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	write(t, to, string(b))
}

func write(t testing.TB, path, text string) {
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestSample(t *testing.T) {
	dir := healthy(t)
	sample := func(args ...string) string {
		t.Helper()
		out, errs, code := program(t, append([]string{"sample", "--model", dir}, args...)...)
		require.Zero(t, code, errs)
		if slices.Contains(args, "--adapter") {
			require.Contains(t, errs, `train: note: `)
			require.Contains(t, errs, `the adapter was made for "llama"`)
		} else {
			require.Empty(t, errs)
		}
		require.True(t, strings.HasSuffix(out, "\n"))
		return strings.TrimSuffix(out, "\n")
	}
	// golden/peft/expect.json: what transformers generates after these tokens
	ids := "3,1,4,1,5,9,2,6"
	require.Equal(t, "16,16,16,16,16,16,16,16,16,16,16,16", sample("--prompt-ids", ids, "--ids", "--tokens", "12"))
	require.Equal(t, "16,18,10,16,19,14,19,14,16,6,6,6", sample("--prompt-ids", ids, "--ids", "--tokens", "12", "--adapter", filepath.Join(goldens, "cases", "list")))
	require.Equal(t, "16,16,16,0", sample("--prompt-ids", ids, "--ids", "--adapter", filepath.Join(goldens, "cases", "layers")), "token 0 ends the text")
	require.Equal(t, "ooo", sample("--prompt-ids", ids, "--adapter", filepath.Join(goldens, "cases", "layers")), "token 16 is o, special tokens are no text")

	text := sample("--prompt", "the sun is", "--tokens", "8")
	// t h e ␣ s u n ␣ i s, where "su" is no "us"
	require.Equal(t, text, sample("--prompt-ids", "20,11,9,4,19,21,15,4,12,19", "--tokens", "8"))
	require.NotEqual(t, text, sample("--prompt", "the sun us", "--tokens", "8"))
	// <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
	require.Equal(t, sample("--prompt-ids", "1,28,9,18,3,11,12,2,3,1,5,19,19,12,19,20,5,15,20,3", "--ids"), sample("--chat", "--prompt", "hi", "--ids"))
	require.Equal(t, sample("--prompt-ids", "11,2,11", "--ids"), sample("--prompt", "h<|im_end|>h", "--parse-special", "--ids"))
	require.NotEqual(t, sample("--prompt-ids", "11,2,11", "--ids"), sample("--prompt", "h<|im_end|>h", "--ids"))

	drawn := []string{"--prompt", "the", "--ids", "--temperature", "1.5", "--seed"}
	first := sample(append(drawn, "1")...)
	require.Equal(t, first, sample(append(drawn, "1")...))
	require.NotEqual(t, first, sample(append(drawn, "2")...))
	require.Equal(t, sample("--prompt", "the", "--ids"), sample(append(drawn, "1", "--top-k", "1")...))
	require.Equal(t, sample("--prompt", "the", "--ids"), sample(append(drawn, "1", "--top-p", "1e-9")...))
}

func TestUsage(t *testing.T) {
	dir := healthy(t)
	none := healthy(t)
	require.NoError(t, os.Remove(filepath.Join(none, "chat_template.jinja")))
	other := healthy(t)
	write(t, filepath.Join(other, "chat_template.jinja"), "{{ messages }}")
	for _, c := range []struct{ args, says string }{
		{"", "Usage:"},
		{"smaple", `unknown command "smaple"; did you mean "sample"?`},
		{"sample --modle x", "did you mean --model?"},
		{"sample", "--model is missing"},
		{"sample --model DIR", "one of --prompt and --prompt-ids is needed"},
		{"sample --model DIR --prompt a --prompt-ids 1", "one of --prompt and --prompt-ids is needed"},
		{"sample --model DIR --prompt a b", `unexpected argument "b"`},
		{"sample --model DIR --prompt-ids 1,x", "invalid argument"},
		{"sample --model DIR --prompt-ids 1 --chat", "--chat needs --prompt"},
		{"sample --model DIR --prompt a --chat --parse-special", "does not go with --chat"},
		{"sample --model DIR --prompt a --tokens 0", "--tokens is 0, want 1"},
		{"sample --model DIR --prompt a --temperature -1", "--temperature is -1"},
		{"sample --model DIR --prompt a --temperature NaN", "--temperature is NaN"},
		{"sample --model DIR --prompt a --temperature 1 --top-k -1", "--top-k is -1"},
		{"sample --model DIR --prompt a --temperature 1 --top-p 0", "--top-p is 0"},
		{"sample --model DIR --prompt a --seed 1", "--seed has no effect without --temperature"},
		{"sample --model DIR/absent --prompt a", "no such file or directory"},
		{"sample --model DIR --prompt a --adapter DIR/absent", "no such file or directory"},
		{"sample --model DIR --prompt-ids 29", "token 0 of the prompt is 29, the vocabulary has 29 rows"},
		{"sample --model DIR --prompt-ids -1", "is -1"},
		{"sample --model DIR --prompt %", "the prompt has no tokens"}, // the tokenizer has no such byte
		{"sample --model NONE --prompt a --chat", "has none"},
		{"sample --model OTHER --prompt a --chat", "is not known; render with the trainer and pass token ids"},
		{"sample --model " + goldens + "/gpt2 --prompt-ids 1 --ids --tokens 33", "need 33 positions, the model has 32"},
	} {
		args := strings.Fields(strings.NewReplacer("DIR", dir, "NONE", none, "OTHER", other).Replace(c.args))
		out, errs, code := program(t, args...)
		require.Equal(t, 2, code, "%s\n%s", c.args, errs)
		require.Contains(t, out+errs, c.says, c.args)
		if c.args != "" {
			require.Empty(t, out, c.args)
		}
	}
	out, _, code := program(t, "sample", "--help")
	require.Zero(t, code)
	require.Contains(t, out, "--prompt-ids")
	out, _, code = program(t, "sample", "--model", goldens+"/gpt2", "--prompt-ids", "1", "--ids", "--tokens", "32")
	require.Zero(t, code)
	require.NotEmpty(t, out)
}

func TestLostOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		require.Empty(t, os.Getenv("CI")+os.Getenv("HOSTILE"), "a lock is not tried: no /dev/full here")
		t.Skip("no /dev/full here")
	}
	defer full.Close()
	cmd := exec.Command(binaryPath, "sample", "--model", healthy(t), "--prompt", "a")
	cmd.Stdout = full
	require.Error(t, cmd.Run())
	require.Equal(t, 3, cmd.ProcessState.ExitCode())
}

func TestVisible(t *testing.T) {
	require.Equal(t, "a\ufffd[31m\tb\n\ufffd", visible("a\x1b[31m\tb\n\u009b"))
}
