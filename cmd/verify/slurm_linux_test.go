//go:build slow

package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/verify/op"
)

// slurm starts munged, slurmctld and slurmd on this machine, under a configuration of their own, and returns the variable by which the
// commands find it. They end with the test.
func slurm(t *testing.T) (conf string) {
	for _, name := range []string{"munged", "slurmctld", "slurmd", "sbatch"} {
		if _, err := exec.LookPath(name); err != nil {
			op.Skip(t, "slurm", "apt-get install munge slurmctld slurmd slurm-client: "+err.Error())
		}
	}
	if os.Geteuid() != 0 {
		op.Skip(t, "slurm", "slurmd runs as root")
	}
	dir, err := os.MkdirTemp("", "slurm") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Mkdir(filepath.Join(dir, "munge"), 0o700))
	key := make([]byte, 1024)
	rand.Read(key)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "munge", "key"), key, 0o400))
	port := func() int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	host, err := os.Hostname()
	require.NoError(t, err)
	host, _, _ = strings.Cut(host, ".")
	text := fmt.Sprintf(`ClusterName=test
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[3]d
SlurmdPort=%[4]d
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
NodeName=%[1]s NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=%[1]s Default=YES MaxTime=INFINITE State=UP
`, host, dir, port(), port())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "slurm.conf"), []byte(text), 0o644))
	for _, sub := range []string{"state", "spool"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	in := func(name string) string { return filepath.Join(dir, "munge", name) }
	for _, words := range [][]string{
		{"munged", "--foreground", "--force", "--key-file=" + in("key"), "--socket=" + in("socket"), "--log-file=" + in("log"), "--pid-file=" + in("pid"), "--seed-file=" + in("seed")},
		{"slurmctld", "-D", "-f", filepath.Join(dir, "slurm.conf")},
		{"slurmd", "-D", "-f", filepath.Join(dir, "slurm.conf")},
	} {
		cmd, said := exec.Command(words[0], words[1:]...), &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = said, said
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			if t.Failed() {
				t.Logf("%s: %s", words[0], said)
			}
		})
		if words[0] == "munged" {
			require.Eventually(t, func() bool { _, err := os.Stat(in("socket")); return err == nil }, 10*time.Second, 10*time.Millisecond)
		}
	}
	conf = "SLURM_CONF=" + filepath.Join(dir, "slurm.conf")
	require.Eventually(t, func() bool {
		cmd := exec.Command("sinfo", "-h", "-o", "%T")
		cmd.Env = append(os.Environ(), conf)
		out, err := cmd.Output()
		return err == nil && strings.TrimSpace(string(out)) == "idle"
	}, time.Minute, 200*time.Millisecond, "no node is idle")
	return conf
}

// The batch script runs under Slurm as its head says, though every shard fails once for its environment, and leaves the report of one process.
func TestSlurmRuns(t *testing.T) {
	conf := slurm(t)
	source, err := filepath.Abs("../../golden/dumps/trl-grpo/clean/dapo_truncated_masked")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "a run"), os.DirFS(source)))
	want, _, code := verify(t, dir, "dump", "a run/", "--format", "json")
	_, stderr, planned := verify(t, dir, "shard-plan", "--shards", "3", "--engine", "slurm", "-o", "job.sh", "--", "dump", "a run/")
	require.Zero(t, planned, stderr)
	submit := func(words ...string) (string, int) {
		cmd := exec.Command("sbatch", append(append([]string{"--parsable"}, words...), "job.sh")...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), conf, "PATH="+flaky(t, filepath.Join(dir, "programs"))+":"+os.Getenv("PATH"))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		var exit *exec.ExitError
		require.True(t, err == nil || errors.As(err, &exit), "%v", err)
		return strings.TrimSpace(string(out)), cmd.ProcessState.ExitCode()
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "programs"), 0o755))
	id, submitted := submit("--array=0-2%3")
	require.Zero(t, submitted)
	_, merged := submit("--wait", "--dependency=afterok:"+id)
	outputs, err := filepath.Glob(filepath.Join(dir, "slurm-*.out"))
	require.NoError(t, err)
	tried := 0
	for _, path := range outputs {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		t.Logf("%s: %s", filepath.Base(path), text)
		tried += strings.Count(string(text), "the environment failed, try 0")
	}
	require.Equal(t, 3, tried)
	require.Equal(t, code, merged)
	got, err := os.ReadFile(filepath.Join(dir, "parts", "report.json"))
	require.NoError(t, err)
	require.Equal(t, withoutRun(t, want), withoutRun(t, strings.TrimSpace(string(got))+"\n"))
}
