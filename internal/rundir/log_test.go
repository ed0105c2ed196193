package rundir

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

func texts(t *testing.T, path string) (list []string) {
	t.Helper()
	lines, err := ReadLog(path)
	require.NoError(t, err)
	for _, l := range lines {
		list = append(list, string(l.Text))
	}
	return list
}

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	l, err := OpenLog(path)
	require.NoError(t, err)
	require.NoError(t, l.Append(Field{"step", 1}, Field{"loss/policy", 0.1}, Field{"kl", math.NaN()}, Field{"names", []string{"a\n"}}))
	require.NoError(t, l.Append(Field{"step", 2}, Field{"loss/policy", math.Inf(-1)}, Field{"x", []float64{1, math.Inf(1)}}, Field{"done", true}))
	require.NoError(t, l.Close())
	first := `{"schema":1,"step":1,"loss/policy":0.1,"kl":"NaN","names":["a\n"]}`
	second := `{"schema":1,"step":2,"loss/policy":"-Infinity","x":[1,"Infinity"],"done":true}`
	require.Equal(t, []string{first, second}, texts(t, path))

	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"schema":1,"step":3,"lo`) // killed here
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, []string{first, second}, texts(t, path))
	l, err = OpenLog(path)
	require.NoError(t, err)
	require.NoError(t, l.Append(Field{"event", "done"}))
	require.NoError(t, l.Close())
	require.Equal(t, []string{first, second, `{"schema":1,"event":"done"}`}, texts(t, path))

	require.NoError(t, os.WriteFile(path, []byte("{\"step\":1}\n{\"st\n{\"step\":2}\n"), 0o644))
	_, err = ReadLog(path)
	require.True(t, format.IsMalformed(err), "%v", err)
}

func TestLogLongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	for _, n := range []int{0, 1, 4095, 4096, 4097, 10_000} {
		require.NoError(t, os.WriteFile(path, append([]byte("{}\n"), make([]byte, n)...), 0o644))
		l, err := OpenLog(path)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "{}\n", string(b), n)
	}
}

// A run that goes on after a step has the lines up to it: those behind are of a process that died, or of checkpoints that were put aside,
// and these are kept in a file of their own.
func TestCutLogs(t *testing.T) {
	lines := []string{`{"step":1}`, `{"step":1,"epoch":2}`, `{"event":"x"}`, `{"step":2}`, `{"step":3}`, `{"step":3,"event":"validation"}`}
	const torn = `{"step":4,"lo`
	for after, want := range [][]string{nil, lines[:3], lines[:4], lines, lines} {
		for _, future := range []bool{false, true} {
			run, err := Create(filepath.Join(t.TempDir(), "run"), Options{})
			require.NoError(t, err)
			path := filepath.Join(run.Path(), "metrics.jsonl")
			require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"+torn), 0o644))
			if future {
				require.NoError(t, save(run, 9))
				_, err := run.Resume(&Checkpoint{Name: "step_1", Path: filepath.Join(run.Path(), "step_1")})
				require.NoError(t, err)
			}
			require.NoError(t, run.CutLogs(after, "metrics.jsonl", "samples.jsonl"))
			require.Equal(t, want, texts(t, path))
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NotContains(t, string(b), "lo")
			require.NoFileExists(t, filepath.Join(run.Path(), "samples.jsonl"))
			kept := filepath.Join(run.Path(), "metrics.jsonl.aside-1")
			if future && len(want) < len(lines) {
				require.Equal(t, lines[len(want):], texts(t, kept))
			} else {
				require.NoFileExists(t, kept)
			}
			require.NoError(t, run.Close())
		}
	}
	run, err := Create(filepath.Join(t.TempDir(), "run"), Options{})
	require.NoError(t, err)
	defer run.Close()
	path := filepath.Join(run.Path(), "metrics.jsonl")
	for text, says := range map[string]string{
		"{\"step\":1}\nnonsense\n{\"step\":9}\n":            "metrics.jsonl",
		"{\"step\":-1}\n":                                   "step -1",
		strings.Repeat(" ", maxLine) + "{\"step\":1}\n{}\n": "has a line of more than",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		err := run.CutLogs(1, "metrics.jsonl")
		require.True(t, format.IsMalformed(err), "%v", err)
		require.ErrorContains(t, err, says)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(b), "what is refused stays")
	}
	require.NoError(t, os.Remove(path))
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("{\"step\":9}\n"), 0o644))
	require.NoError(t, os.Symlink(victim, path))
	require.True(t, format.IsMalformed(run.CutLogs(1, "metrics.jsonl")))
	require.Equal(t, []string{`{"step":9}`}, texts(t, victim))
}

// A log of any length costs what is read of it, not what it claims.
func TestLogTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	require.NoError(t, os.Truncate(path, maxLog+1)) // a hole
	_, err := ReadLog(path)
	require.True(t, format.IsMalformed(err), "%v", err)
}

// What lies in the place of a file of the run, and is another thing, is neither written to nor waited on.
func TestLinksInARun(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o644))
	for _, name := range []string{"metrics.jsonl", "LOCK"} {
		require.NoError(t, os.Symlink(victim, filepath.Join(dir, name)))
	}
	_, err := OpenLog(filepath.Join(dir, "metrics.jsonl"))
	require.True(t, format.IsMalformed(err), "%v", err)
	_, err = CreateLog(filepath.Join(dir, "metrics.jsonl"))
	require.True(t, format.IsMalformed(err), "%v", err)
	_, err = Create(dir, Options{})
	require.True(t, format.IsMalformed(err), "%v", err)
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))

	l, err := CreateLog(filepath.Join(dir, "eval.jsonl"))
	require.NoError(t, err)
	require.NoError(t, l.Append(Field{"step", 1}))
	require.NoError(t, l.Close())
	l, err = CreateLog(filepath.Join(dir, "eval.jsonl"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.Empty(t, texts(t, filepath.Join(dir, "eval.jsonl")), "begins anew")
}

// FuzzLog holds what is left of a log that is cut against the plain rule: the whole lines before the first of a later step. It is read as it
// was, and cut again it stays.
func FuzzLog(f *testing.F) {
	f.Add([]byte("{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"x\":[1]}\n{\"st"), 1)
	f.Add([]byte("{\"step\":-1}\n"), 0)
	f.Add([]byte("{\"step\":9223372036854775807}\n{}\n\r\n"), 3)
	run, err := Create(filepath.Join(f.TempDir(), "run"), Options{})
	require.NoError(f, err)
	defer run.Close()
	path := filepath.Join(run.Path(), "metrics.jsonl")
	f.Fuzz(func(t *testing.T, data []byte, after int) {
		require.NoError(t, os.WriteFile(path, data, 0o644))
		got, readErr := ReadLog(path)
		if readErr != nil {
			require.True(t, format.IsMalformed(readErr), "%v", readErr)
		}
		var want []byte
		malformed := false
		for line := range bytes.Lines(data) {
			if line[len(line)-1] != '\n' {
				break
			}
			step, err := lineStep("f", line[:len(line)-1], 0)
			if malformed = err != nil; malformed || step > after {
				break
			}
			want = append(want, line...)
		}
		err := run.CutLogs(after, "metrics.jsonl")
		if malformed {
			require.True(t, format.IsMalformed(err), "%v", err)
			want = data
		} else {
			require.NoError(t, err)
		}
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(left))
		if malformed {
			return
		}
		lines, err := ReadLog(path)
		require.NoError(t, err)
		if readErr == nil && len(lines) > 0 { // no lines are nil, and a part of some is not
			require.Equal(t, got[:len(lines)], lines)
		}
		require.NoError(t, run.CutLogs(after, "metrics.jsonl"))
		again, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, left, again)
	})
}
