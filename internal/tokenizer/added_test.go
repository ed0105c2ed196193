package tokenizer

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A matcher finds what comparing with every token finds.
func TestLongest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{1,6}|[a-c]é?`)
		var list []spelled
		for _, w := range rapid.SliceOfNDistinct(word, 0, 12, rapid.ID[string]).Draw(t, "tokens") {
			list = append(list, spelled{w, &addedToken{content: w}})
		}
		m := newMatcher(list)
		s := rapid.StringMatching(`[abcé]{1,12}`).Draw(t, "text")
		want := ""
		for _, x := range list {
			if strings.HasPrefix(s, x.text) && len(x.text) > len(want) {
				want = x.text
			}
		}
		got, size := m.longest(s)
		require.Equal(t, len(want), size)
		if want != "" {
			require.Equal(t, want, got.content)
		} else {
			require.Nil(t, got)
		}
	})
}

// White space that tokens swallow belongs to the first of them, however many there are: what scanning anew for each gives.
func TestStrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []spelled
		for _, w := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{" ", "  ", "x", " x", "\u00a0", "ab"}), 1, 4, rapid.ID[string]).Draw(t, "tokens") {
			list = append(list, spelled{w, &addedToken{content: w, lstrip: rapid.Bool().Draw(t, "l"), rstrip: rapid.Bool().Draw(t, "r"), singleWord: rapid.Bool().Draw(t, "w")}})
		}
		m := newMatcher(list)
		s := rapid.StringMatching(`[ xab\x{a0}\n]{0,16}`).Draw(t, "text")
		var got, want []string
		m.cut(s, true, func(p string) { got = append(got, "text "+p) }, func(a *addedToken, n int) { got = append(got, fmt.Sprint(a.content, n)) })
		done := 0
		for i := 0; i < len(s); {
			a, size := m.longest(s[i:])
			if a == nil {
				i++
				continue
			}
			from, to := i, i+size
			i = to
			if a.singleWord && (endsInWord(s[:from]) || startsWithWord(s[to:])) {
				continue
			}
			if a.lstrip {
				from = max(len(strings.TrimRightFunc(s[:from], unicode.IsSpace)), done)
			}
			if a.rstrip {
				to = len(s) - len(strings.TrimLeftFunc(s[to:], unicode.IsSpace))
			}
			if done < from {
				want = append(want, "text "+s[done:from])
			}
			want = append(want, fmt.Sprint(a.content, to-max(from, done)))
			done = to
		}
		if done < len(s) {
			want = append(want, "text "+s[done:])
		}
		require.Equal(t, want, got)
	})
}
