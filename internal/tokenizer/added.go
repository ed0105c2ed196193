package tokenizer

import (
	"cmp"
	"slices"
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

// matcher finds added tokens, sorted by what is looked for, which must differ.
type matcher struct {
	text   []string
	tokens []*addedToken
	starts [257]int // tokens that start with byte b are starts[b]:starts[b+1]
}

func newMatcher(tokens []*addedToken, spelling func(*addedToken) string) *matcher {
	m := &matcher{tokens: slices.Clone(tokens)}
	slices.SortFunc(m.tokens, func(a, b *addedToken) int { return cmp.Compare(spelling(a), spelling(b)) })
	for _, t := range m.tokens {
		s := spelling(t)
		m.text = append(m.text, s)
		m.starts[int(s[0])+1]++
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

// longest returns the longest token at the start of s, nil if there is none. A token is narrowed down byte by byte in the
// sorted list, which takes the length of the token times the logarithm of their number.
func (m *matcher) longest(s string) (found *addedToken, size int) {
	lo, hi := m.starts[s[0]], m.starts[int(s[0])+1]
	for n := 1; lo < hi; n++ {
		if len(m.text[lo]) == n {
			found, size = m.tokens[lo], n
			if lo++; lo == hi {
				break
			}
		}
		if n == len(s) {
			break
		}
		c := s[n]
		part := m.text[lo:hi]
		from, _ := slices.BinarySearchFunc(part, c, func(t string, c byte) int { return cmp.Compare(t[n], c) })
		to, _ := slices.BinarySearchFunc(part[from:], int(c)+1, func(t string, c int) int { return cmp.Compare(int(t[n]), c) })
		lo, hi = lo+from, lo+from+to
	}
	return found, size
}

// cut calls token for every added token in s and text for what is between them, in order. The leftmost match is taken, of
// those the longest; one that is then refused (a special token while special is false, SingleWord) has used up its text.
// It implements AddedVocabulary::find_matches of tokenizers 0.23.3.
func (m *matcher) cut(s string, special bool, text func(string), token func(t *addedToken, size int)) {
	done := 0
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
			from = max(from-trailingSpace(s[:from]), done)
		}
		if t.rstrip {
			to += run(s[to:], space, len(s))
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

// trailingSpace returns the length of the white space at the end of s.
func trailingSpace(s string) int {
	n := len(s)
	for n > 0 {
		r, size := utf8.DecodeLastRuneInString(s[:n])
		if classOf(r) != space {
			break
		}
		n -= size
	}
	return len(s) - n
}
