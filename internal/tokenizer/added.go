package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before it is split, by its spelling alone.
type addedToken struct {
	id         int
	content    string
	special    bool // control token: left out by DecodeOptions.SkipSpecial, found in text only with EncodeOptions.ParseSpecial
	lstrip     bool // swallows the white space before it
	rstrip     bool // swallows the white space after it
	singleWord bool // not found beside a letter, digit, mark or connector
	normalized bool // looked for in the normalised text, and itself normalised
}

// spelled is an added token under the text that is looked for.
type spelled struct {
	text  string
	token *addedToken
}

// matcher finds added tokens, sorted by what is looked for, which must differ.
type matcher struct {
	text   []string
	tokens []*addedToken
	within []int32  // the longest other token that each begins with, -1: none
	starts [257]int // tokens that start with byte b are starts[b]:starts[b+1]
}

func newMatcher(list []spelled) *matcher {
	slices.SortFunc(list, func(a, b spelled) int { return cmp.Compare(a.text, b.text) })
	m := new(matcher)
	for i, t := range list {
		m.text, m.tokens = append(m.text, t.text), append(m.tokens, t.token)
		m.starts[int(t.text[0])+1]++
		from := int32(i) - 1
		for from >= 0 && !strings.HasPrefix(t.text, m.text[from]) {
			from = m.within[from]
		}
		m.within = append(m.within, from)
	}
	for b := range 256 {
		m.starts[b+1] += m.starts[b]
	}
	return m
}

// same returns two tokens that are looked for by the same text, nil if there are none.
func (m *matcher) same() (a, b *addedToken) {
	for i := 1; i < len(m.text); i++ {
		if m.text[i] == m.text[i-1] {
			return m.tokens[i-1], m.tokens[i]
		}
	}
	return nil, nil
}

// longest returns the longest token at the start of s, nil if there is none. Every token that s begins with is s itself or
// stands before it in the sorted list, and the last one there that is no such token begins, like s, with all of them.
func (m *matcher) longest(s string) (found *addedToken, size int) {
	lo, hi := m.starts[s[0]], m.starts[int(s[0])+1]
	if lo == hi {
		return nil, 0
	}
	at, same := slices.BinarySearch(m.text[lo:hi], s)
	if at += lo; !same {
		at--
	}
	if at < lo {
		return nil, 0
	}
	n := 0 // bytes that s has in common with the token at at
	for n < len(s) && n < len(m.text[at]) && s[n] == m.text[at][n] {
		n++
	}
	for i := int32(at); i >= 0; i = m.within[i] {
		if len(m.text[i]) <= n {
			return m.tokens[i], len(m.text[i])
		}
	}
	return nil, 0
}

// cut calls token for every added token in s and text for what is between them, in order. The leftmost match is taken, of
// those the longest; one that is then refused (a special token while special is false, SingleWord) has used up its text.
// It implements AddedVocabulary::find_matches of tokenizers 0.23.3.
func (m *matcher) cut(s string, special bool, text func(string), token func(t *addedToken, size int)) {
	done, spaces := 0, 0 // s up to done is dealt with; up to spaces there is white space from a token on
	for i := 0; i < len(s) && len(m.tokens) > 0; {
		t, size := m.longest(s[i:])
		if t == nil {
			i++
			continue
		}
		from, to := i, i+size
		i = to
		if t.special && !special || t.singleWord && (endsInWord(s[:from]) || startsWithWord(s[to:])) {
			continue
		}
		if t.lstrip {
			from = max(from-trailingSpace(s[:from], from-done), done)
		}
		if t.rstrip {
			if to >= spaces {
				spaces = to + run(s[to:], space, len(s))
			}
			to = spaces
		}
		if done < from {
			text(s[done:from])
		}
		token(t, to-max(from, done))
		done = to
	}
	if done < len(s) {
		text(s[done:])
	}
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && word(r)
}

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && word(r)
}

// trailingSpace returns the length of the white space at the end of s, of which no more is looked at than most bytes need.
func trailingSpace(s string, most int) int {
	n := len(s)
	for n > 0 && len(s)-n < most {
		r, size := utf8.DecodeLastRuneInString(s[:n])
		if classOf(r) != space {
			break
		}
		n -= size
	}
	return len(s) - n
}
