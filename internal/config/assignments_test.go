package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sample are settings with a key of each kind under nanoGPT's names.
func nano() (s *Settings, lr *float64, iters *int, compile *bool, out *string) {
	lr, iters, compile, out = new(float64), new(int), new(bool), new(string)
	s = NewSettings()
	s.Float("learning_rate", lr, 0, 1, "")
	s.Int("max_iters", iters, 0, 1<<20, "")
	s.Bool("compile", compile, "")
	s.Text("out_dir", out, "")
	return
}

func TestAssignments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grpo_config.py")
	require.NoError(t, os.WriteFile(path, []byte("# quick\nlearning_rate = 1e-5  # small\nmax_iters = 10_000\ncompile = True\nout_dir = 'a#\\'b' # c\n\n"), 0o644))
	s, lr, iters, compile, out := nano()
	require.NoError(t, s.ReadFile(path))
	require.NoError(t, s.Resolve())
	require.Empty(t, s.Warnings)
	require.Equal(t, 1e-5, *lr)
	require.Equal(t, 10_000, *iters)
	require.True(t, *compile)
	require.Equal(t, "a#'b", *out)
}

func TestAssignmentsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"import os":                         "c.py:1: want name = literal",
		"max_iters = 2*5":                   `"2*5" is no literal`,
		"max_iters = int(3)":                "is no literal",
		"\nmax_iters = 010":                 "want an integer",
		"max_iters = 1.5":                   "want an integer",
		"max_iters = 1\nmax_iters = 2":      "c.py:2: \"max_iters\" is given twice",
		"max_itres = 1":                     "did you mean max_iters?",
		"max_iters += 1":                    "want name = literal",
		"max_iters == 1":                    "want name = literal",
		"  max_iters = 1":                   "want name = literal",
		"max_iters = None":                  "max_iters",
		"compile = true":                    "is no literal",
		"compile = 'True'":                  "want true or false",
		"out_dir = f'x'":                    "is no literal",
		"out_dir = 'x":                      "has no end",
		"out_dir = 'x' + 'y'":               "follows the text",
		`out_dir = '\x41'`:                  "escape",
		"out_dir = '''x'''":                 "follows the text",
		"out_dir = x":                       "is no literal",
		"out_dir = 3":                       "want text",
		"learning_rate = 1e999":             "out of range",
		"learning_rate = 'a'":               "want a number",
		"learning_rate = \xff":              "UTF-8",
		"learning_rate = 1\x00":             "NUL",
		strings.Repeat("#\n", maxBytes/2+1): "at most",
	} {
		s, _, _, _, _ := nano()
		s.Open = func(string) ([]byte, error) { return []byte(text), nil }
		err := s.ReadFile("c.py")
		if err == nil {
			err = s.Resolve()
		}
		require.ErrorContains(t, err, says, "%.80q", text)
	}
}

func FuzzAssignments(f *testing.F) {
	for _, seed := range []string{"a = 1\n", "a = 'x' # y", "b = \"\\n\"", "c = 1_000.5e-3", "d = None\r\n", "=", "a ="} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := parseAssignments("c.py", data)
		if err != nil {
			require.ErrorContains(t, err, "c.py")
			return
		}
		for _, v := range values {
			require.NotEmpty(t, v.name)
			require.Contains(t, v.where, "c.py:")
		}
	})
}
