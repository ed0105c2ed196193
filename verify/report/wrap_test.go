package report

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Words of any kind come out as they went in, in lines that fit; colours take no room.
func TestWrapper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(leastWidth, 130).Draw(t, "width")
		word := rapid.StringMatching(`[a-zé∂✓-]{1,60}`)
		var text strings.Builder
		var words []string
		for range rapid.IntRange(0, 12).Draw(t, "lines") {
			text.WriteString(strings.Repeat(" ", rapid.IntRange(0, 30).Draw(t, "indent")))
			for i := range rapid.IntRange(0, 30).Draw(t, "words") {
				w := word.Draw(t, "word")
				if i > 0 {
					text.WriteString(strings.Repeat(" ", rapid.IntRange(1, 3).Draw(t, "gap")))
				}
				words = append(words, w)
				if rapid.IntRange(0, 5).Draw(t, "colour") == 0 {
					w = "\x1b[31;1m" + w + "\x1b[0m"
				}
				text.WriteString(w)
			}
			text.WriteByte('\n')
		}
		var out bytes.Buffer
		x := NewWrapper(&out, width)
		for rest := text.String(); rest != ""; { // in pieces that end anywhere
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			_, err := x.Write([]byte(rest[:n]))
			require.NoError(t, err)
			rest = rest[n:]
		}
		require.NoError(t, x.Close())
		plain := strings.NewReplacer("\x1b[31;1m", "", "\x1b[0m", "").Replace(out.String())
		for _, line := range strings.Split(plain, "\n") {
			require.LessOrEqual(t, utf8.RuneCountInString(line), width, "%q", line)
		}
		require.Equal(t, strings.Join(words, ""), strings.Join(strings.Fields(plain), ""))
	})
}

func TestWrapperIndents(t *testing.T) {
	var out bytes.Buffer
	x := NewWrapper(&out, 40)
	_, _ = x.Write([]byte("fix:     divide by the number of response tokens of the row\n  --flag string   what this flag is for, at length\nno gap in this line but many words and more of them\nend"))
	require.NoError(t, x.Close())
	require.Equal(t, `fix:     divide by the number of
         response tokens of the row
  --flag string   what this flag is for,
                  at length
no gap in this line but many words and
more of them
end`, out.String())
}

// A table takes the width of its writer; what its cells say is all there.
func TestTableFits(t *testing.T) {
	long := "a row keeps its old log-probs over the updates of its rollout, and those of the engine that sampled it"
	for _, width := range []int{0, 80, 120} {
		var out bytes.Buffer
		x := NewWrapper(&out, width)
		require.NoError(t, Table(x, []string{"check", "what it demands", "faults"}, [][]string{{"across/old", long, "3"}, {"x", "short", "12"}}))
		require.NoError(t, x.Close())
		for _, line := range strings.Split(out.String(), "\n") {
			if width > 0 {
				require.LessOrEqual(t, utf8.RuneCountInString(line), width, "%q", line)
			}
		}
		for _, word := range strings.Fields(long) {
			require.Contains(t, out.String(), word)
		}
	}
}

// What is cut on a screen ends with a whole clause, or with a whole word where clauses are long, and always fits.
func TestAbridged(t *testing.T) {
	require.Equal(t, []string{"54 of the 138 bugs would show;", "all ratios are 1; … (-v)"}, abridged("54 of the 138 bugs would show; all ratios are 1; logits: up to +10; entropy: up to +5", 30, 2, "; … (-v)"))
	require.Equal(t, []string{"4 option values could not", "be tried for want of …"}, abridged("4 option values could not be tried for want of data that nobody has dumped", 25, 2, " …"))
	require.Equal(t, []string{"no bug of the catalogue", "gives these numbers …"}, abridged("no bug of the catalogue gives these numbers; 3 option values could not be tried", 25, 2, " …"))
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z;,. ]{0,300}`).Draw(t, "text")
		width, most := rapid.IntRange(20, 80).Draw(t, "width"), rapid.IntRange(1, 4).Draw(t, "most")
		lines := abridged(text, width, most, " …")
		require.LessOrEqual(t, len(lines), most)
		for _, l := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(l), width)
		}
		kept := strings.Join(strings.Fields(strings.TrimSuffix(strings.Join(lines, " "), "…")), "")
		require.True(t, strings.HasPrefix(strings.Join(strings.Fields(text), ""), kept), "%q of %q", kept, text)
	})
}
