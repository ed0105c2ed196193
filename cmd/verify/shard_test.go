package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The report of 1, 2, 3 and 7 shards is that of one process, byte for byte, of a healthy run and of a broken one.
func TestShardsMergeToOneReport(t *testing.T) {
	golden, err := filepath.Abs("../../golden/dumps")
	require.NoError(t, err)
	for _, run := range []string{"trl-grpo/clean/dapo_truncated_masked", "trl-grpo/faulty"} {
		dir := t.TempDir()
		source := filepath.Join(golden, run)
		if filepath.Base(run) == "faulty" {
			list, err := filepath.Glob(filepath.Join(source, "*"))
			require.NoError(t, err)
			source = list[0]
		}
		require.NoError(t, os.Symlink(source, filepath.Join(dir, "run")))
		want, _, code := verify(t, dir, "dump", "run/", "--format", "json")
		counts := []int{1, 2, 3, 7}
		if filepath.Base(run) == "faulty" {
			counts = []int{2}
		}
		for _, n := range counts {
			parts := filepath.Join(dir, fmt.Sprint("parts", n))
			require.NoError(t, os.Mkdir(parts, 0o755))
			args := []string{"merge", "--format", "json"}
			for i := range n {
				_, stderr, code := verify(t, dir, "dump", "run/", "--shard", fmt.Sprintf("%d/%d", i, n), "-o", parts)
				require.Zero(t, code, stderr)
				args = append(args, filepath.Join(parts, fmt.Sprintf("shard-%d-of-%d.json", i, n)))
			}
			got, stderr, merged := verify(t, dir, args...)
			require.Equal(t, code, merged, stderr)
			require.Equal(t, withoutRun(t, want), withoutRun(t, got), "%s, %d shards", run, n)
		}
	}
}

// Partials that are no run are refused by name.
func TestMergeRefuses(t *testing.T) {
	source, err := filepath.Abs("../../golden/dumps/trl-grpo/clean/dapo_truncated_masked")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "run"), os.DirFS(source)))
	shard := func(of, to string, more ...string) string {
		_, stderr, code := verify(t, dir, append([]string{"dump", "run/", "--shard", of, "-o", to}, more...)...)
		require.Zero(t, code, stderr)
		return to
	}
	a, b, c := shard("0/2", "a.json"), shard("1/2", "b.json"), shard("1/3", "c.json")
	other := shard("1/2", "other.json", "--set", "adv.ddof=0")
	edit := func(name, old, by string) string {
		text, err := os.ReadFile(filepath.Join(dir, b))
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), bytes.Replace(text, []byte(old), []byte(by), 1), 0o644))
		return name
	}
	newer := edit("newer.json", `"version":"`, `"version":"9.`)
	damaged := edit("damaged.json", `"n":`, `"n":1`)
	schema := edit("schema.json", `"plumbline_partial":2`, `"plumbline_partial":1`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cut.json"), []byte(`{"plumbline_partial":2,`), 0o644))
	for _, refused := range []struct {
		args []string
		code int
		said string
	}{
		{nil, 2, "takes the partials"},
		{[]string{a}, 2, "shard 1 of 2 is missing"},
		{[]string{a, b, b}, 2, "shard 1 of 2 is there twice: b.json and b.json"},
		{[]string{a, c}, 2, "c.json is of 3 shards"},
		{[]string{a, other}, 2, "adv.ddof=0"},
		{[]string{a, newer}, 2, "newer.json was written by verify 9."},
		{[]string{a, damaged}, 4, "the file is damaged"},
		{[]string{a, schema}, 4, "plumbline_partial"},
		{[]string{a, "cut.json"}, 4, "is no partial of a shard"},
		{[]string{a, "absent.json"}, 2, "absent.json"},
	} {
		_, stderr, code := verify(t, dir, append([]string{"merge"}, refused.args...)...)
		require.Equal(t, refused.code, code, "%v: %s", refused.args, stderr)
		require.Contains(t, stderr, refused.said)
	}
	_, stderr, code := verify(t, dir, "merge", a, b)
	require.Zero(t, code, stderr)

	// A file that has changed since, of the same size, is seen where its step is read again; another size always.
	files, err := filepath.Glob(filepath.Join(dir, "run", "*.safetensors"))
	require.NoError(t, err)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	text[len(text)-1] ^= 1
	require.NoError(t, os.WriteFile(files[0], text, 0o644))
	_, stderr, code = verify(t, dir, "merge", a, b)
	require.Equal(t, 4, code, stderr)
	require.Contains(t, stderr, "has changed since a shard judged it")
	require.NoError(t, os.Remove(files[0]))
	_, stderr, code = verify(t, dir, "merge", a, b)
	require.NotZero(t, code, stderr)
}

func TestParseShard(t *testing.T) {
	env := func(list ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(list); i += 2 {
				if list[i] == name {
					return list[i+1]
				}
			}
			return ""
		}
	}
	for _, good := range []struct {
		text string
		env  func(string) string
		want shard
	}{
		{"0/1", env(), shard{0, 1}}, {"6/7", env(), shard{6, 7}},
		{"auto/4", env("JOB_COMPLETION_INDEX", "3"), shard{3, 4}},
		{"auto/4", env("SLURM_ARRAY_TASK_ID", "2"), shard{2, 4}},
		{"auto", env("SLURM_ARRAY_TASK_ID", "2", "SLURM_ARRAY_TASK_MIN", "1", "SLURM_ARRAY_TASK_COUNT", "4"), shard{1, 4}},
	} {
		s, err := parseShard(good.text, good.env)
		require.NoError(t, err, good.text)
		require.Equal(t, good.want, s)
	}
	for _, bad := range []string{"", "1", "1/1", "-1/2", "0/0", "a/2", "0/b", "auto", "auto/2", "0/2/3", "0/1000000"} {
		_, err := parseShard(bad, env())
		require.Error(t, err, bad)
		require.Equal(t, 2, exitCode(err), bad)
	}
	_, err := parseShard("auto", env("JOB_COMPLETION_INDEX", "0"))
	require.Error(t, err) // Kubernetes does not say how many there are
}
