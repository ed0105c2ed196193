package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages are a failing and a healthy run, as the command writes them.
func pages(t *testing.T, args ...string) (bad, good string) {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []struct {
		into *string
		run  string
		code int
	}{{&bad, "pad_in_denominator", 1}, {&good, "clean", 0}} {
		path := filepath.Join(dir, p.run+".html")
		_, stderr, code := verify(t, dir, append([]string{"dump", demoDumps(t, p.run), "--format", "html", "-o", path}, args...)...)
		require.Equal(t, p.code, code, stderr)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		*p.into = string(text)
	}
	return bad, good
}

func demoDumps(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../golden/demo/" + name)
	require.NoError(t, err)
	return path
}

func TestHTMLOfARun(t *testing.T) {
	bad, good := pages(t)
	for _, want := range []string{"AGG-PAD-DENOMINATOR", "(loss * mask).mean(-1)", "first bad: step 1, loss", "gradient/dlogp, step 1", `class="h5" data-t`, "by the explanation", "sha256", `<li class="FAIL"`} {
		require.Contains(t, bad, want)
	}
	require.Contains(t, good, "agree with TRL 1.16.0")
	require.Contains(t, good, "the nearest to its limit")
	require.NotContains(t, good, `class="h4" data-t`, "nothing is beyond its limit")
	require.NotContains(t, good, `<li class="FAIL"`)
	for _, page := range []string{bad, good} {
		require.Less(t, len(page), 1_000_000)
		require.NotRegexp(t, `(src|href)="http`, page)
	}
}

// With --redact no token has a text; without it they have.
func TestHTMLRedacted(t *testing.T) {
	shown := regexp.MustCompile(`<i class="[^"]*" data-t="[^"]*" data-v="[^"]*">([^<]*)</i>`)
	texts := func(page string) (n int) {
		for _, m := range shown.FindAllStringSubmatch(page, -1) {
			if strings.TrimSpace(m[1]) != "" {
				n++
			}
		}
		return n
	}
	bad, good := pages(t)
	require.Greater(t, texts(bad), 100)
	require.Greater(t, texts(good), 100)
	bad, good = pages(t, "--redact")
	require.Zero(t, texts(bad)+texts(good))
	require.NotRegexp(t, `\bid \d`, bad+good)
	require.Contains(t, bad, `<i class="h5"`, "the map is there")
}

// A run whose findings are in its baseline ends with 0 and says that they are known; the same run with another bug does not.
func TestBaselineOfARun(t *testing.T) {
	dir := t.TempDir()
	run := demoDumps(t, "pad_in_denominator")
	_, _, code := verify(t, dir, "dump", run, "--format", "json", "-o", "old.json")
	require.Equal(t, 1, code)
	stdout, _, code := verify(t, dir, "dump", run, "--baseline", "old.json")
	require.Zero(t, code)
	require.Contains(t, stdout, "known: ")
	require.Contains(t, stdout, "1 known from the baseline")
	_, _, code = verify(t, dir, "dump", run, "--baseline", "old.json", "--set", "kl.beta=0.2")
	require.Equal(t, 1, code)
}
