package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bounded runs the program in an address space of so many GB.
func bounded(t *testing.T, gigabytes int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -v %d && exec "$0" "$@"`, gigabytes*1e6), binaryPath}, args...)...)
	cmd.Env = append(os.Environ(), "GOGC=")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// What needs more memory than there is is refused in words before the work: Go ends a process whose allocation fails with exit code 2 and
// the stacks of all goroutines.
func TestMemoryBeforeWork(t *testing.T) {
	dir := healthy(t)
	ids := func(n int) string { return strings.TrimSuffix(strings.Repeat("1,", n), ",") }
	sample := func(n int) []string {
		return []string{"sample", "--model", dir, "--prompt-ids", ids(n), "--ids", "--tokens", "1"}
	}
	_, errs, code := program(t, sample(33)...)
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "a prompt of 33 tokens and 1 new ones need 33 positions, the model has 32 (max_position_embeddings)")
	_, errs, code = program(t, sample(32)...)
	require.Zero(t, code, errs)

	replace(t, dir+"/config.json", `"max_position_embeddings": 32`, `"max_position_embeddings": 100000`)
	_, errs, code = bounded(t, 4, sample(20000)...)
	require.Equal(t, 3, code, errs)
	require.Contains(t, errs, "a prompt of 20000 tokens needs about 64.1 GB of memory, and there are ")
	require.Contains(t, errs, "(the limit of the address space, ulimit -v)")
	require.NotContains(t, errs, "goroutine")
	_, errs, code = bounded(t, 4, sample(200)...)
	require.Zero(t, code, errs)

	_, errs, code = bounded(t, 4, "sft", "training.output_dir="+filepath.Join(t.TempDir(), "run"), "sft.batch_size=20000", "sft.steps=1", "sft.eval_samples=0")
	require.Equal(t, 3, code, errs)
	require.Contains(t, errs, "a pass over 20000 rows of ")
}

// A task of 20,000 tiny pairs: every sample sees all the others, and together they must not take the square of it, 32 GB.
func TestManyTinyPairs(t *testing.T) {
	dir := t.TempDir()
	pair := `{"input":[[1]],"output":[[2]]}`
	path := filepath.Join(dir, "tasks.json")
	write(t, path, `{"train":[`+strings.Repeat(pair+",", 20_000)+pair+`],"test":[`+pair+`]}`)
	_, errs, code := bounded(t, 4, "arc", "data="+path, "output_dir="+filepath.Join(dir, "run"), "epochs=1", "max_batches=2", "save_every=0")
	require.Zero(t, code, errs)
}
