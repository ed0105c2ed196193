//go:build slow

package dump_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Another repository gates its dumps in three lines: a module of its own, with a replace, builds and tests offline, and its
// test fails where the dump does.
func TestConsumerModule(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	write("go.mod", "module example.com/trainer\n\ngo 1.26\n\nrequire plumbline v0.0.0\n\nreplace plumbline => "+root+"\n")
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	write("go.sum", string(sums))
	write("gate_test.go", `package trainer

import (
	"os"
	"testing"

	"plumbline/verify/dump"
	"plumbline/verify/projection"
)

func TestDump(t *testing.T) {
	dump.Require(t, dump.Options{Profile: "trl-grpo@1.16"}, os.Getenv("RUN"))
}

func TestBasis(t *testing.T) {
	results, err := projection.CheckBasis([]float64{1, 0, 0, 0, 1, 0}, 3, 2, 0)
	if err != nil || len(results) == 0 {
		t.Fatal(results, err)
	}
}
`)
	run := func(dump string) (string, error) {
		cmd := exec.Command("go", "test", "-count=1", "./...")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "RUN="+filepath.Join(root, "golden/dumps/trl-grpo", dump))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("clean/bnpo_batch_std")
	require.NoError(t, err, out)
	out, err = run("faulty/clip_max_for_min")
	require.Error(t, err)
	require.Contains(t, out, "FAIL  token_loss/policy")
	require.Contains(t, out, "gate_test.go:12")
	require.NotContains(t, out, "TestBasis")
}
