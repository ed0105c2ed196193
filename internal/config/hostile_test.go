package config_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/config"
)

// size is that of the texts: with the tag slow of the largest configuration, by default an eighth of it.
func size() int {
	if testing.Short() || !cases.All {
		return 1 << 17
	}
	return 1 << 20
}

// patience is a minute for the largest configuration, and shrinks with the square of the size, as does the time of what would pass it.
func patience() time.Duration {
	return max(2*time.Second, time.Duration(math.Pow(float64(size())/(1<<20), 2)*float64(time.Minute)))
}

// full repeats text up to that size, between head and tail.
func full(head, text, tail string) string {
	return head + strings.Repeat(text, (size()-len(head)-len(tail))/len(text)) + tail
}

// numbered is full with a number in place of each %d.
func numbered(head, text, tail string) string {
	var b strings.Builder
	b.WriteString(head)
	for i := 0; b.Len() < size()-len(tail)-len(text)-8; i++ {
		fmt.Fprintf(&b, text, i)
	}
	return b.String() + tail
}

// TestHostile reads texts that are made to cost as much as they can: each takes a time and a memory that its size explains.
func TestHostile(t *testing.T) {
	long := strings.Repeat("k", size()/2)
	for name, text := range map[string]string{
		"long.json":       numbered(`{"`+long+`":{"a":1`, `,"%d":1`, `}}`),
		"unread.json":     numbered(`{"`+long+`":{"a":1`, `,"%d":"???"`, `}}`),
		"keys.json":       numbered(`{"a":1`, `,"%d":1`, `}`),
		"numbers.json":    full(`{"a":[1`, `,1`, `]}`),
		"references.json": numbered(`{"b":"${`+long+`"`, `,"%d":"${b}"`, `}`),
		"long.yaml":       numbered(long+":\n a: 1\n", " a%d: 1\n", ""),
		"sequence.yaml":   full("", "- ", ""),
		"brackets.yaml":   full("a: ", "[", ""),
		"braces.yaml":     full("a: ", "{", ""),
		"closed.yaml":     full("a: ", "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]],", ""),
		"questions.yaml":  full("", "? ", ""),
		"colons.yaml":     full("", "a: ", ""),
		"comments.yaml":   full("", "#\n", "a: 1\n"),
		"comments2.yaml":  full("a:\n", " # x\n", " b: 1\n"),
		"commented.yaml":  numbered("", "a%d: 1 # x\n", ""),
		"lines.yaml":      full("a: |\n", " x\n", ""),
		"folded.yaml":     full("a: >\n", " x\n\n", ""),
		"quoted.yaml":     full(`a: "`, `\n`, "\"\n"),
		"spaces.yaml":     full("a:", " ", "1\n"),
		"list.yaml":       full("a:\n", "- 1\n", ""),
		"flow.yaml":       full("a: [1", ",1", "]\n"),
		"flowmap.yaml":    numbered("a: {a: 1", ",b%d: 1", "}\n"),
		"anchors.yaml":    numbered("a:\n", "- &a%d 1\n", ""),
		"aliases.yaml":    full("a: &a 1\nb:\n", "- *a\n", ""),
		"documents.yaml":  full("a: 1\n", "---\na: 1\n", ""),
		"tabs.yaml":       full("a: 1\n", "\t\n", ""),
		"plain.yaml":      full("a: ", "x ", "\n"),
		"multiline.yaml":  full("a: x\n", " x\n", ""),
		"keyless.yaml":    full("{", ",", "}"),
		"words.sh":        full("run ", "a ", "\n"),
		"commands.sh":     full("", "a\n", ""),
		"variables.sh":    full("A='"+strings.Repeat("a ", size()/5)+"'\nrun ", "$A ", "\n"),
		"lists.sh":        full("A=("+strings.Repeat("a ", size()/5)+")\nrun ", `"${A[@]}" `, "\n"),
		"brackets.sh":     full("run ", "$(", ""),
		"nested.sh":       full("run ", "${", "}"),
		"assignments.sh":  numbered("run ", "a.b%d=1 ", "\n"),
		"dotted.sh":       numbered("run ", strings.Repeat("a.", 60)+"b%d=1 ", "\n"),
		"flags.sh":        numbered("run ", "--a%d ", "\n"),
		"values.sh":       full("run --a ", "1 ", "\n"),
		"dashes.sh":       full("run ", "-- ", "\n"),
		"deletions.sh":    numbered("run a.b=1 ", "~a.b%d ", "\n"),
		"quotes.sh":       full("run ", `""''`, "\n"),
		"arithmetic.sh":   full("run ", "$((1+1)) ", "\n"),
		"backslashes.sh":  full("run ", "\\\n", "\n"),
		"equals.sh":       full("run ", "=", "\n"),
		"plus.sh":         full("run ", "a=1 ", "\n"),
		"overrideList.sh": full("run a.b=[1", ",1", "]\n"),
		"interpolated.sh": full("run a=${", "a", "}\n"),
		"unread.sh":       numbered("run ", "a%d=$B ", "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
			metrics.Read(s)
			before, started := s[0].Value.Uint64(), time.Now()
			_, err := config.Parse(name, []byte(text))
			took := time.Since(started)
			metrics.Read(s)
			got := s[0].Value.Uint64() - before
			t.Logf("%d MiB, %v, %.80v", got>>20, took, err)
			require.Less(t, took, patience())
			require.Less(t, got, uint64(1<<30+512*size())) // what variables stand for is bounded by 8 MiB however small the file; the pools of a race build forget
		})
	}
}

// What follows the first document is none, even if it is no YAML.
func TestBehindTheDocument(t *testing.T) {
	for _, text := range []string{"a: 1\n---\nb: 2\n", "a: 1\n---\n[b", "a: 1\n---\n\t@"} {
		_, err := config.Parse("a.yaml", []byte(text))
		require.Error(t, err, text)
		s := config.NewSettings()
		var a int
		s.Int("a", &a, 0, 9, "")
		s.Open = func(string) ([]byte, error) { return []byte(text), nil }
		require.Error(t, s.ReadFile("a.yaml"), text)
	}
}

// An error names the byte at which it is.
func TestJSONOffset(t *testing.T) {
	_, err := config.Parse("a.json", []byte(`{"a": x}`))
	require.ErrorContains(t, err, "byte 6:")
}

// Keys that refer to others many times over, which grow or only take time.
func TestSettingsBombs(t *testing.T) {
	var text [24]string
	settings := func() *config.Settings {
		s := config.NewSettings()
		for i := range text {
			text[i] = ""
			s.Text(fmt.Sprintf("k%02d", i), &text[i], "")
		}
		return s
	}
	read := func(s *config.Settings, yaml string) error {
		s.Open = func(string) ([]byte, error) { return []byte(yaml), nil }
		if err := s.ReadFile("c.yaml"); err != nil {
			return err
		}
		return s.Resolve()
	}
	chain := func(first string, times int) string {
		b := "k00: '" + first + "'\n"
		for i := 1; i < len(text); i++ {
			b += fmt.Sprintf("k%02d: '%s'\n", i, strings.Repeat(fmt.Sprintf("${k%02d}", i-1), times))
		}
		return b
	}
	started := time.Now()
	require.NoError(t, read(settings(), chain("", 1000)), "nothing, 10⁶⁹ times over")
	require.Empty(t, text[len(text)-1])
	require.ErrorContains(t, read(settings(), chain("lol", 1000)), "grows beyond all bounds")
	require.ErrorContains(t, read(settings(), "k00: '"+strings.Repeat("x", 400_000)+"'\nk01: '"+strings.Repeat("${k00}", 100_000)+"'\n"), "grows beyond all bounds")
	require.ErrorContains(t, read(settings(), "? "+strings.Repeat("k", 500_000)+"\n: "+strings.Repeat("{a: 1}", 1)+"\n"), "a key of more than")
	require.ErrorContains(t, settings().Override(strings.Repeat("k", 1<<20)+"=1"), "unknown key")
	require.Less(t, time.Since(started), time.Minute)
}

// Only a regular file of the size of a configuration is read.
func TestSettingsFile(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.yaml")
	require.NoError(t, os.WriteFile(large, nil, 0o644))
	require.NoError(t, os.Truncate(large, 1<<40)) // a hole
	for _, name := range []string{large, dir, "/dev/zero"} {
		if _, err := os.Stat(name); err != nil {
			continue // no such device
		}
		require.Error(t, config.NewSettings().ReadFile(name), name)
	}
	require.ErrorIs(t, config.NewSettings().ReadFile(filepath.Join(dir, "absent")), os.ErrNotExist)
}
