package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc returns Normalization Form C of s (Unicode Standard Annex 15), with the data that tokenizers 0.23.3 has. Bytes that
// are not UTF-8 stay as they are.
//
// Package norm gives the properties of the characters, and the answer for text that is normal already. It is not asked to
// compose: norm.NFC v0.28 looks pairs up by the low 16 bits of each, so that U+10041 U+0301 becomes Á, and it breaks up
// runs of more than 30 combining marks by U+034F, as UAX 15 section 13 (Stream-Safe) has it but NFC has not.
func nfc(s string) string {
	if norm.NFC.IsNormalString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for s != "" {
		n := 0
		for n < len(s) {
			r, size := utf8.DecodeRuneInString(s[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		compose(&b, decompose(s[:n]))
		if n < len(s) {
			b.WriteByte(s[n])
			n++
		}
		s = s[n:]
	}
	return b.String()
}

// later are the characters with a combining class or a decomposition that came after Unicode 9.0, which is what the crate
// unicode-normalization-alignments 0.1.12 of tokenizers 0.23.3 knows: to it they are plain characters.
var later = pairs(
	0x07fd, 0x07fd, 0x0898, 0x089f, 0x08ca, 0x08d3, 0x09fe, 0x09fe, 0x0c3c, 0x0c3c, 0x0d3b, 0x0d3c, 0x0eba, 0x0eba,
	0x1715, 0x1715, 0x1abf, 0x1ace, 0x1df6, 0x1dfa, 0xa82c, 0xa82c, 0x10d24, 0x10d27, 0x10eab, 0x10eac, 0x10efd, 0x10eff,
	0x10f46, 0x10f50, 0x10f82, 0x10f85, 0x11070, 0x11070, 0x1133b, 0x1133b, 0x1145e, 0x1145e, 0x11839, 0x1183a, 0x11938, 0x11938,
	0x1193d, 0x1193e, 0x11943, 0x11943, 0x119e0, 0x119e0, 0x11a34, 0x11a34, 0x11a47, 0x11a47, 0x11a99, 0x11a99, 0x11d42, 0x11d42,
	0x11d44, 0x11d45, 0x11d97, 0x11d97, 0x11f41, 0x11f42, 0x16ff0, 0x16ff1, 0x1e08f, 0x1e08f, 0x1e130, 0x1e136, 0x1e2ae, 0x1e2ae,
	0x1e2ec, 0x1e2ef, 0x1e4ec, 0x1e4ef)

// mark is a character and its canonical combining class.
type mark struct {
	r     rune
	class uint8
}

// decompose returns the canonical decomposition of s, in canonical order.
func decompose(s string) []mark {
	marks := make([]mark, 0, len(s))
	for i, r := range s {
		if unicode.Is(later, r) {
			marks = append(marks, mark{r, 0})
			continue
		}
		p := norm.NFD.PropertiesString(s[i:])
		d := p.Decomposition()
		if d == nil {
			marks = append(marks, mark{r, p.CCC()})
			continue
		}
		for _, r := range string(d) {
			marks = append(marks, mark{r, norm.NFD.PropertiesString(string(r)).CCC()})
		}
	}
	for i := 0; i < len(marks); i++ {
		j := i
		for j < len(marks) && marks[j].class > 0 {
			j++
		}
		if j > i+1 {
			slices.SortStableFunc(marks[i:j], func(a, b mark) int { return int(a.class) - int(b.class) })
		}
		i = j
	}
	return marks
}

// compose writes the canonical composition of marks: each is joined to the last starter before it unless a mark of the
// same or a higher class, or a starter, stands between them.
func compose(b *strings.Builder, marks []mark) {
	start, out := -1, 0 // the last starter, and the end of what is composed, which overwrites marks
	for _, m := range marks {
		if start >= 0 && (out == start+1 || marks[out-1].class < m.class) {
			if r, ok := composites()[[2]rune{marks[start].r, m.r}]; ok {
				marks[start].r = r
				continue
			}
			if r, ok := hangul(marks[start].r, m.r); ok && out == start+1 {
				marks[start].r = r
				continue
			}
		}
		if m.class == 0 {
			start = out
		}
		marks[out] = m
		out++
	}
	for _, m := range marks[:out] {
		b.WriteRune(m.r)
	}
}

// composites maps a pair to its primary composite. Those are the characters with a decomposition that are normal as they
// stand; the pair is what all but the last character of the decomposition compose to, and that last one.
var composites = sync.OnceValue(func() map[[2]rune]rune {
	pairs := map[[2]rune]rune{}
	whole := map[string]rune{} // decomposition to composite
	var found []rune
	for r := rune(0x80); r < 0x30000; r++ {
		if 0xac00 <= r && r <= 0xdfff || unicode.Is(later, r) {
			continue // Hangul is composed by rule; surrogates
		}
		c := string(r)
		if d := norm.NFD.PropertiesString(c).Decomposition(); d != nil && norm.NFC.IsNormalString(c) {
			whole[string(d)] = r
			found = append(found, r)
		}
	}
	for _, r := range found {
		d := []rune(string(norm.NFD.PropertiesString(string(r)).Decomposition()))
		head := d[0]
		if len(d) > 2 {
			head = whole[string(d[:len(d)-1])]
		}
		pairs[[2]rune{head, d[len(d)-1]}] = r
	}
	return pairs
})

// hangul composes a leading consonant and a vowel, or a syllable without a trailing consonant and one (The Unicode
// Standard, section 3.12).
func hangul(a, b rune) (rune, bool) {
	const l, v, t, s = 0x1100, 0x1161, 0x11a7, 0xac00
	const vs, ts, ls = 21, 28, 19
	switch {
	case l <= a && a < l+ls && v <= b && b < v+vs:
		return s + ((a-l)*vs+b-v)*ts, true
	case s <= a && a < s+ls*vs*ts && (a-s)%ts == 0 && t < b && b < t+ts:
		return a + b - t, true
	}
	return 0, false
}
