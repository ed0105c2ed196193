package rundir

import (
	"math"
	"os"
	"path/filepath"
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
