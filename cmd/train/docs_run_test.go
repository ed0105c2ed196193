package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/documented"
	"plumbline/internal/cases"
)

// notPasted are commands of the pages that need what a test has not, with what tries them.
var notPasted = map[string]string{
	"sample --model SmolLM2-135M-Instruct.Q4_1.gguf --chat --prompt \"What is the capital of France?\"": "the real model: TestSmolLM2",
	"sample --model out/base --prompt-ids 504,3575,282 --ids":                                           "token ids of the real model: TestSmolLM2",
	"ppo --config config dataset.name=gsm8k.jsonl model.name=models/qwen --training.device=cpu":         "512 answers of up to 256 tokens a step: TestGSM8K takes fewer",
	"worker --url nats://127.0.0.1:4222":                                                                "two processes: TestClusterSameBits",
	"grpo --config grpo_causal lora.r=4 cluster=embedded":                                               "two processes: TestClusterSameBits",
}

// Every command of train that the README and the pages show is run as it stands, by a shell, in a folder that has the files that it names. One
// that trains is interrupted when it has made its first step; the others end by themselves.
func TestDocumentedTrainCommandsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("a first step of every trainer and policy")
	}
	dir, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(binaryPath, filepath.Join(bin, "train")))
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	trains(t, smallShielded(at("outputs/shielded_toy"))...)
	require.NoError(t, os.CopyFS(at("out/base"), os.DirFS(at("outputs/shielded_toy/tiny-gptj"))))
	require.NoError(t, os.CopyFS(at("out/step_100"), os.DirFS(at("outputs/shielded_toy/final"))))
	require.NoError(t, os.CopyFS(at("models/qwen"), os.DirFS("../../internal/assets/tiny")))
	trains(t, "arc", "output_dir="+at("outputs/arc"), "epochs=1", "max_batches=1", "tasks=2", "save_every=0", "encoder.train=frozen")
	require.NoError(t, os.MkdirAll(at("ARC/data/training"), 0o755))
	write(t, at("ARC/data/training/0d3d703e.json"), `{"train": [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3, 1]], "output": [[1, 3]]}], "test": [{"input": [[4, 5]], "output": [[5, 4]]}]}`)
	found, err := documented.Commands("../..", "train")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, c := range found {
		line := strings.TrimSpace(c.Line)
		for _, end := range []string{"  #", " && "} {
			if i := strings.Index(line, end); i >= 0 {
				line = strings.TrimSpace(line[:i])
			}
		}
		command := strings.TrimPrefix(line, "train ")
		if filepath.Base(c.Page) == "documents.md" || seen[command] { // TestDocuments runs those
			continue
		}
		seen[command] = true
		if notPasted[command] != "" || len(seen)%cases.Every != 0 {
			continue
		}
		t.Run(command, func(t *testing.T) {
			if strings.HasPrefix(command, "shielded ") { // what was sampled from is another run
				require.NoError(t, os.RemoveAll(at("outputs/shielded_toy")))
			}
			cmd := exec.Command("bash", "-c", "exec "+line)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "TERM=dumb", "ARC_DATA_DIR=")
			var errs strings.Builder
			cmd.Stderr = &errs
			lines, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			steps, said := 0, ""
			for in := bufio.NewScanner(lines); in.Scan(); {
				said += in.Text() + "\n"
				if stepLine.MatchString(in.Text()) {
					if steps++; steps == 1 {
						require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
					}
				}
			}
			_ = cmd.Wait()
			code := cmd.ProcessState.ExitCode()
			if steps > 0 && code == 130 {
				return
			}
			require.Zero(t, code, "%s: %s\n%s%s", c.Page, line, said, errs.String())
			require.NotEmpty(t, said)
		})
	}
	for command := range notPasted {
		require.True(t, seen[command], "no page shows: train %s", command)
	}
}

// Lines of GSM8K train, end to end: the answer behind #### is what the reward compares, and rows are held out.
func TestGSM8K(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gsm8k.jsonl")
	var lines strings.Builder
	for i := range 12 {
		fmt.Fprintf(&lines, `{"question": "Weng earns $%[1]d an hour. She worked 2 hours. How much did she earn?", "answer": "%[1]d * 2 = <<%[1]d*2=%[2]d>>%[2]d\n#### %[2]d"}`+"\n", i, 2*i)
	}
	write(t, file, lines.String())
	dir := filepath.Join(t.TempDir(), "run")
	out := trains(t, small(dir, "dataset.name="+file, "training.total_ppo_steps=1", "dataset.held_out=2", "eval.samples=1")...)
	require.Contains(t, out, "step 1/1 reward ")
	require.Contains(t, out, "held-out right answers ")
	samples, err := os.ReadFile(filepath.Join(dir, "samples.jsonl"))
	require.NoError(t, err)
	require.Contains(t, string(samples), "She worked 2 hours")
	write(t, file, strings.ReplaceAll(lines.String(), "####", "##"))
	_, errs, code := program(t, small(filepath.Join(t.TempDir(), "other"), "dataset.name="+file)...)
	require.Equal(t, 4, code, errs)
}
