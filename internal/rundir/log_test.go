package rundir

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	require.NoError(t, l.Resume(1))
	require.NoError(t, l.Append(Field{"step", 2}, Field{"again", true}))
	require.NoError(t, l.Append(Field{"event", "done"}))
	require.NoError(t, l.Close())
	require.Equal(t, []string{first, `{"schema":1,"step":2,"again":true}`, `{"schema":1,"event":"done"}`}, texts(t, path))
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(raw), second, "what was lost stays in the file")

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

// A log that resumes as often as it has lines is read in one pass.
func TestLogManyResumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	const n = 100_000
	text := strings.Repeat("{\"step\":5}\n", n) + strings.Repeat("{\"from_step\":5}\n", n) + "{\"step\":6}\n{\"from_step\":7}\n{\"step\":9}\n{\"x\":1}\n{\"from_step\":8}\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	started := time.Now()
	lines, err := ReadLog(path)
	require.NoError(t, err)
	require.Less(t, time.Since(started), time.Minute)
	require.Len(t, lines, n+2)
	require.Equal(t, `{"step":6}`, string(lines[n].Text))
	require.Equal(t, Line{-1, []byte(`{"x":1}`)}, lines[n+1])
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

// FuzzLog holds what is read of a log against the plain rule: a resume takes the later steps before it back.
func FuzzLog(f *testing.F) {
	f.Add([]byte("{\"step\":1}\n{\"step\":2}\n{\"from_step\":1}\n{\"step\":2,\"x\":[1]}\n{\"st"))
	f.Add([]byte("{\"step\":-1}\n"))
	f.Add([]byte("{\"from_step\":9223372036854775807,\"step\":3}\n{}\n\r\n"))
	path := filepath.Join(f.TempDir(), "f")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o644))
		got, err := ReadLog(path)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		var want []Line
		for line := range bytes.Lines(data) {
			if line[len(line)-1] != '\n' {
				break
			}
			step, from, err := lineSteps("f", line[:len(line)-1], 0)
			require.NoError(t, err)
			if from >= 0 {
				want = slices.DeleteFunc(want, func(l Line) bool { return l.Step > from })
			} else {
				want = append(want, Line{step, line[:len(line)-1]})
			}
		}
		require.Equal(t, len(want), len(got))
		for i := range want {
			require.Equal(t, want[i], got[i])
		}
	})
}
