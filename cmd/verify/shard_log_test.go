package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// shardCounts are in how many parts a judgement is cut.
func shardCounts() []int {
	if cases.All {
		return []int{1, 2, 3, 7}
	}
	return []int{2}
}

// logFolder is a run of six logs of several forms: numbers that are not finite or −0, a configuration beside them, two files that
// agree and one of another run, lines that nobody knows.
func logFolder(t *testing.T, dir string) {
	t.Helper()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	var lines, verl, csv strings.Builder
	csv.WriteString("step,loss,grad_norm,late\n")
	for i := range 2500 {
		loss := []string{"-0.0", "0.25", "1e-3"}[i%3]
		fmt.Fprintf(&lines, "{\"step\": %d, \"loss\": %s, \"reward\": %g, \"kl\": %g, \"entropy\": %g, \"name_%d\": 1}\n", i, loss, .5-float64(i)/5000, .01*float64(i), 2.5-.001*float64(i), i/500)
		if i%10 == 0 {
			fmt.Fprintf(&verl, "step:%d - actor/entropy:%g - actor/pg_loss:%g - critic/score/mean:%g\n", i, 3+.1*float64(i), .1, .2)
		}
		fmt.Fprintf(&csv, "%d,%g,%s,\n", i, .1, []string{"nan", "1.5"}[min(1, i%7)])
	}
	write("metrics.jsonl", lines.String()+"what is this\n")
	write("console.log", verl.String()+"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
	write("table.csv", csv.String())
	write("effective_config.yaml", "kl_coeff: 0.1\n")
	write("again/metrics.jsonl", "{\"step\": 1, \"loss\": NaN}\n{\"step\": 2, \"loss\": -0.0, \"clip_fraction\": 1.5}\n")
	write("again/log.txt", "config kl_coeff=0.2\nstep 1/2 loss 0.5 kl -0.1\n")
	write("other.out", "nothing that anybody knows\n")
}

// partials runs a command in n shards and returns the arguments of the merge; a shard ends with code.
func partials(t *testing.T, dir string, n, code int, args ...string) []string {
	t.Helper()
	merge := []string{"merge", "--format", "json"}
	for i := range n {
		part := fmt.Sprintf("%s-%d-of-%d.json", args[0], i, n)
		_, stderr, got := verify(t, dir, append(args, "--shard", fmt.Sprintf("%d/%d", i, n), "-o", part)...)
		require.True(t, got == 0 || got == code, "%d: %s", got, stderr)
		merge = append(merge, part)
	}
	return merge
}

// The report of logs that were read in shards is that of one process.
func TestLogShardsMerge(t *testing.T) {
	dir := t.TempDir()
	logFolder(t, filepath.Join(dir, "run"))
	for _, args := range [][]string{{"log", "run"}, {"log", "run", "--vocab", "12", "--set", "kl_beta=0.5"}, {"log", "run/metrics.jsonl", "run/table.csv", "run/metrics.jsonl"}} {
		want, _, code := verify(t, dir, append(args, "--format", "json")...)
		require.Equal(t, 1, code)
		for _, n := range shardCounts() {
			got, stderr, merged := verify(t, dir, partials(t, dir, n, 0, args...)...)
			require.Equal(t, code, merged, stderr)
			require.Equal(t, withoutRun(t, want), withoutRun(t, got), "%v, %d shards", args, n)
		}
	}
	merge := partials(t, dir, 3, 0, "log", "run")
	for said, wrong := range map[string][]string{"shard 2 of 3 is missing": merge[:5], "shard 2 of 3 is there twice": append(merge, merge[5])} {
		_, stderr, code := verify(t, dir, wrong...)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, said)
	}
	f, err := os.OpenFile(filepath.Join(dir, "run", "console.log"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("step:1\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, stderr, code := verify(t, dir, merge...)
	require.Equal(t, 4, code, stderr)
	require.Contains(t, stderr, "have changed since")
	for _, args := range [][]string{{"log", "-"}, {"log", "run", "--follow"}} {
		_, stderr, code := verify(t, dir, append(args, "--shard", "0/2")...)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "neither stdin nor --follow")
	}
}

// A log that is malformed in its middle is judged as far as it goes, in shards as in one process.
func TestLogShardsOfMalformed(t *testing.T) {
	dir := t.TempDir()
	logFolder(t, filepath.Join(dir, "run"))
	path := filepath.Join(dir, "run", "metrics.jsonl")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[len(text)/2] = 0
	require.NoError(t, os.WriteFile(path, text, 0o644))
	want, _, code := verify(t, dir, "log", "run", "--format", "json")
	require.Equal(t, 4, code)
	got, stderr, merged := verify(t, dir, partials(t, dir, 2, 4, "log", "run")...)
	require.Equal(t, code, merged, stderr)
	require.Equal(t, withoutRun(t, want), withoutRun(t, got))
}

// The report of ops that were judged in shards is that of one process, on the processor and on simulated kernels; a failure that
// --require makes is the merge's.
func TestOpsShardsMerge(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"ops", "--run", "i8", "--cases", "2", "--speed=false", "--require", "generic"},
		{"ops", "--run", "i8.Embedding|f32.Move", "--variant", "sim,generic", "--cases", "2", "--speed=false"},
		{"ops", "--run", "i8.Quantize", "--cases", "1", "--speed=false", "--require", "sim"},
	} {
		want, _, code := verify(t, dir, append(args, "--format", "json")...)
		for _, n := range shardCounts() {
			got, stderr, merged := verify(t, dir, partials(t, dir, n, 0, args...)...)
			require.Equal(t, code, merged, stderr)
			require.Equal(t, withoutRun(t, want), withoutRun(t, got), "%v, %d shards", args, n)
		}
	}
	merge := partials(t, dir, 3, 0, "ops", "--run", "i8.Quantize", "--cases", "1")
	for said, wrong := range map[string][]string{"shard 2 of 3 is missing": merge[:5], "shard 2 of 3 is there twice": append(merge, merge[5]), "verify ops has no --quiet": append(merge, "--quiet")} {
		_, stderr, code := verify(t, dir, wrong...)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, said)
	}
	text, err := os.ReadFile(filepath.Join(dir, merge[3]))
	require.NoError(t, err)
	at := strings.Index(string(text), `"inputs":"`) + len(`"inputs":"`)
	text[at] ^= 1 // as a machine of other features writes it
	require.NoError(t, os.WriteFile(filepath.Join(dir, merge[3]), text, 0o644))
	_, stderr, code := verify(t, dir, merge...)
	require.Equal(t, 2, code, stderr)
	require.Contains(t, stderr, "the machines have other features")
	for _, more := range []string{"--faults", "--record=x", "--replay=x"} {
		_, stderr, code := verify(t, dir, "ops", "--shard", "0/2", more)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "goes with it")
	}
}

// The plan of every command that has shards gives the report of one process.
func TestShardPlanOfEachCommand(t *testing.T) {
	folders := goldenFolders(t)
	logFolder(t, filepath.Join(folders, "run"))
	for _, args := range [][]string{{"log", "run"}, {"checkpoint", "peft_gptj", "--base", "hf_gptj"}, {"ops", "--run", "i8.Quantize", "--cases", "1"}} {
		want, _, code := verify(t, folders, append(args, "--format", "json")...)
		_, stderr, planned := verify(t, folders, append([]string{"shard-plan", "--shards", "2", "--engine", "slurm", "-o", "job.sh", "--parts", args[0], "--"}, args...)...)
		require.Zero(t, planned, stderr)
		programs := t.TempDir()
		require.NoError(t, os.Symlink(binaryPath, filepath.Join(programs, "verify")))
		for i := range 2 {
			require.Zero(t, engineRun(t, folders, programs, []string{"bash", "job.sh"}, fmt.Sprint("SLURM_ARRAY_TASK_ID=", i), "SLURM_ARRAY_TASK_MIN=0", "SLURM_ARRAY_TASK_COUNT=2"))
		}
		require.Equal(t, code, engineRun(t, folders, programs, []string{"bash", "job.sh"}))
		got, err := os.ReadFile(filepath.Join(folders, args[0], "report.json"))
		require.NoError(t, err)
		require.Equal(t, withoutRun(t, want), withoutRun(t, string(got)), args[0])
	}
}
