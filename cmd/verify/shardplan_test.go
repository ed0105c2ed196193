package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// engineRun runs a command as an engine does: the words, the variables that it sets, in a folder, with verify on the path.
func engineRun(t *testing.T, dir, programs string, words []string, env ...string) int {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH")), env...)
	if words[0] == "verify" {
		cmd.Path, cmd.Err = filepath.Join(programs, "verify"), nil
	}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatalf("%v: %v %s", words, err, out)
	}
	return cmd.ProcessState.ExitCode()
}

// flaky is a verify of which every shard fails once for its environment.
func flaky(t *testing.T, dir string) string {
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = dump ]; then i=${JOB_COMPLETION_INDEX:-$SLURM_ARRAY_TASK_ID}; [ -e %[1]s/$i ] || { : > %[1]s/$i; exit 3; }; fi\nexec %[2]s \"$@\"\n", dir, binaryPath)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "verify"), []byte(script), 0o755))
	return dir
}

// indexed runs the two jobs of a plan as Kubernetes does: every index until it succeeds, its exit code is one of FailIndex or it has
// failed once more than backoffLimitPerIndex; then the second job.
func indexed(t *testing.T, plan, dir, programs string) (merge int) {
	var jobs []k8sJob
	for _, text := range strings.Split(plan, "---\n")[1:] {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		var j k8sJob
		require.NoError(t, d.Decode(&j))
		jobs = append(jobs, j)
	}
	require.Len(t, jobs, 2)
	s := jobs[0].Spec
	require.Equal(t, "Indexed", s.CompletionMode)
	require.True(t, jobs[1].Spec.Suspend)
	for i := range s.Completions {
		c := s.Template.Spec.Containers[0]
		code := -1
		for try := 0; code != 0 && try <= *s.BackoffLimitPerIndex; try++ {
			code = engineRun(t, dir, programs, c.Command, fmt.Sprint("JOB_COMPLETION_INDEX=", i))
			require.False(t, slices.Contains(s.PodFailurePolicy.Rules[0].OnExitCodes.Values, code), "index %d ends with %d for good", i, code)
		}
		require.Zero(t, code, "index %d", i)
	}
	return engineRun(t, dir, programs, jobs[1].Spec.Template.Spec.Containers[0].Command)
}

// The job files, run as their engines run them, give the report of one process, though every shard fails once.
func TestShardPlanRuns(t *testing.T) {
	source, err := filepath.Abs("../../golden/dumps/trl-grpo/clean/dapo_truncated_masked")
	require.NoError(t, err)
	for _, engine := range []string{"kubernetes", "slurm"} {
		t.Run(engine, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Symlink(source, filepath.Join(dir, "a run")))
			want, _, code := verify(t, dir, "dump", "a run/", "--format", "json")
			programs := flaky(t, t.TempDir())
			if engine == "kubernetes" {
				plan, stderr, planned := verify(t, dir, "shard-plan", "--shards", "3", "--engine", engine, "--image", "i", "--claim", "c", "--dir", dir, "--", "dump", "a run/")
				require.Zero(t, planned, stderr)
				require.Equal(t, code, indexed(t, plan, dir, programs))
			} else {
				_, stderr, planned := verify(t, dir, "shard-plan", "--shards", "3", "--engine", engine, "-o", "job.sh", "--", "dump", "a run/")
				require.Zero(t, planned, stderr)
				for i := 7; i < 10; i++ { // an array may begin anywhere
					require.Zero(t, engineRun(t, dir, programs, []string{"bash", "job.sh"}, fmt.Sprint("SLURM_ARRAY_TASK_ID=", i), "SLURM_ARRAY_TASK_MIN=7", "SLURM_ARRAY_TASK_COUNT=3"))
				}
				require.Equal(t, code, engineRun(t, dir, programs, []string{"bash", "job.sh"}))
			}
			got, err := os.ReadFile(filepath.Join(dir, "parts", "report.json"))
			require.NoError(t, err)
			require.Equal(t, withoutRun(t, want), withoutRun(t, string(bytes.TrimSpace(got))+"\n"))
		})
	}
}

func TestShardPlanRefuses(t *testing.T) {
	for text, args := range map[string][]string{
		"want kubernetes or slurm":  {"--shards", "2", "--engine", "lsf", "--", "dump", "run/"},
		"--shards 0":                {"--engine", "slurm", "--", "dump", "run/"},
		"needs --image and --claim": {"--shards", "2", "--engine", "kubernetes", "--", "dump", "run/"},
		"is one of dump":            {"--shards", "2", "--engine", "slurm", "--", "diff", "a", "b"},
		"takes one folder":          {"--shards", "2", "--engine", "slurm", "--", "checkpoint", "a", "b"},
		"takes no argument":         {"--shards", "2", "--engine", "slurm", "--", "ops", "a"},
		"has no stdin":              {"--shards", "2", "--engine", "slurm", "--", "log", "-"},
		"--follow does not go":      {"--shards", "2", "--engine", "slurm", "--", "log", "a", "--follow"},
		"--format is set":           {"--shards", "2", "--engine", "slurm", "--", "dump", "run/", "--format", "json"},
		"unknown flag":              {"--shards", "2", "--engine", "slurm", "--", "dump", "run/", "--nonsense"},
		"takes files":               {"--shards", "2", "--engine", "slurm", "--", "dump"},
		"on one line":               {"--shards", "2", "--engine", "slurm", "--", "dump", "a\nb"},
		"--name":                    {"--shards", "2", "--engine", "slurm", "--name", "a;b", "--", "dump", "run/"},
	} {
		_, stderr, code := verify(t, t.TempDir(), append([]string{"shard-plan"}, args...)...)
		require.Equal(t, 2, code, text)
		require.Contains(t, stderr, text)
	}
}
