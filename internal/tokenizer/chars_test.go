package tokenizer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestChars(t *testing.T) {
	c, err := CharsOf("hello\nWörld")
	require.NoError(t, err)
	require.Equal(t, []rune("\nWdehlorö"), c.runes)
	require.Equal(t, []int{9, 9, 10, 11}, []int{c.Len(), c.Mask, c.Pad, c.CLS})
	ids, err := c.Encode("Wörld")
	require.NoError(t, err)
	require.Equal(t, []int{1, 8, 7, 5, 2}, ids)
	text, err := c.Decode([]int{11, 1, 9, 7, 5, 2, 10, 10}, '_')
	require.NoError(t, err)
	require.Equal(t, "W_rld", text)
	for _, bad := range []struct{ text, want string }{
		{"hex", `"x" at byte 2 is not in it`}, {"h\xff", `"\xff" at byte 1`}, {"\ufffd", `"\ufffd" at byte 0`},
	} {
		_, err = c.Encode(bad.text)
		require.ErrorContains(t, err, bad.want)
	}
	for _, id := range []int{-1, 12, 1 << 40} {
		_, err = c.Decode([]int{0, id}, '_')
		require.ErrorContains(t, err, "position 1: no token has the id")
	}
	require.NoError(t, c.CheckVocab(11, false))
	require.ErrorContains(t, c.CheckVocab(11, true), "has the id 11, the embedding has 11 rows")
	require.ErrorContains(t, c.CheckVocab(10, false), "has the id 10")
}

func TestNewCharsErrors(t *testing.T) {
	for _, bad := range []struct {
		runes          string
		mask, pad, cls int
		want           string
	}{
		{"ab", 2, 3, 3, "PAD and CLS have the same id 3"},
		{"ab", 2, 2, 4, "MASK and PAD have the same id 2"},
		{"ab", 1, 2, 3, "MASK has the id 1, want one in [2,"},
		{"ab", 2, -1, 3, "PAD has the id -1"},
		{"ab", 2, 3, -2, "CLS has the id -2"},
		{"ab", 2, 3, 1 << 30, "CLS has the id"},
		{"aba", 3, 4, 5, `'a' has the ids 0 and 2`},
		{"", 0, 1, 2, "no characters"},
	} {
		_, err := NewChars([]rune(bad.runes), bad.mask, bad.pad, bad.cls)
		require.ErrorContains(t, err, bad.want)
	}
	_, err := NewChars([]rune{0xd800}, 1, 2, 3)
	require.ErrorContains(t, err, "which is not a character")
	_, err = CharsOf("a\xc3")
	require.ErrorContains(t, err, "invalid UTF-8 at byte 1")
	c, err := NewChars([]rune("ab"), 2, 3, -1)
	require.NoError(t, err)
	require.ErrorContains(t, c.CheckVocab(10, true), "no CLS")
	_, err = c.Decode([]int{-1}, '_')
	require.Error(t, err)
}

func TestCharsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringN(1, 60, -1).Draw(t, "text")
		c, err := CharsOf(s)
		require.NoError(t, err)
		ids, err := c.Encode(s)
		require.NoError(t, err)
		for _, id := range ids {
			require.Less(t, id, c.Len())
		}
		back, err := c.Decode(ids, '_')
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}

// CharsOf returns the vocabulary of the characters of text in the order of their code points, the order of nanoGPT's
// data/shakespeare_char/prepare.py, with MASK, PAD and CLS after them in this order.
func CharsOf(text string) (*Chars, error) {
	seen := map[rune]bool{}
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			return nil, fmt.Errorf("character vocabulary: invalid UTF-8 at byte %d", i)
		}
		seen[r] = true
	}
	n := len(seen)
	return NewChars(slices.Sorted(maps.Keys(seen)), n, n+1, n+2)
}
