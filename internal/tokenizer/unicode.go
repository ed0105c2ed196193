package tokenizer

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// class is the kind of a character in the patterns of the splitters.
type class uint8

const (
	other  class = iota // [^\s\p{L}\p{N}], and every byte that is not UTF-8
	letter              // \p{L}
	number              // \p{N}
	space               // \s, the property White_Space
	end                 // no character
)

// The tables of package unicode are those of Unicode 15.0 in Go 1.26. The regular expressions of tokenizers 0.23.3 have
// those of 16.0 (Oniguruma for the splitters, Rust's crate regex for single words), and its Digits those of 17.0 (Rust's
// char::is_numeric). What they have beyond 15.0 follows, read off by asking that version about every code point.
var (
	letters16 = pairs(0x1c89, 0x1c8a, 0xa7cb, 0xa7cd, 0xa7da, 0xa7dc, 0x105c0, 0x105f3, 0x10d4a, 0x10d65, 0x10d6f, 0x10d85,
		0x10ec2, 0x10ec4, 0x11380, 0x11389, 0x1138b, 0x1138b, 0x1138e, 0x1138e, 0x11390, 0x113b5, 0x113b7, 0x113b7,
		0x113d1, 0x113d1, 0x113d3, 0x113d3, 0x11bc0, 0x11be0, 0x13460, 0x143fa, 0x16100, 0x1611d, 0x16d40, 0x16d6c,
		0x18cff, 0x18cff, 0x1e5d0, 0x1e5ed, 0x1e5f0, 0x1e5f0, 0x2ebf0, 0x2ee5d)
	numbers16 = pairs(0x10d40, 0x10d49, 0x116d0, 0x116e3, 0x11bf0, 0x11bf9, 0x16130, 0x16139, 0x16d70, 0x16d79,
		0x1ccf0, 0x1ccf9, 0x1e5f1, 0x1e5fa)
	words16 = pairs(0x0897, 0x0897, 0x1c89, 0x1c8a, 0xa7cb, 0xa7cd, 0xa7da, 0xa7dc, 0x105c0, 0x105f3, 0x10d40, 0x10d65,
		0x10d69, 0x10d6d, 0x10d6f, 0x10d85, 0x10ec2, 0x10ec4, 0x10efc, 0x10efc, 0x11380, 0x11389, 0x1138b, 0x1138b,
		0x1138e, 0x1138e, 0x11390, 0x113b5, 0x113b7, 0x113c0, 0x113c2, 0x113c2, 0x113c5, 0x113c5, 0x113c7, 0x113ca,
		0x113cc, 0x113d3, 0x113e1, 0x113e2, 0x116d0, 0x116e3, 0x11bc0, 0x11be0, 0x11bf0, 0x11bf9, 0x11f5a, 0x11f5a,
		0x13460, 0x143fa, 0x16100, 0x16139, 0x16d40, 0x16d6c, 0x16d70, 0x16d79, 0x18cff, 0x18cff, 0x1ccf0, 0x1ccf9,
		0x1e5d0, 0x1e5fa, 0x2ebf0, 0x2ee5d)
	numbers17 = pairs(0x11de0, 0x11de9, 0x16ff4, 0x16ff6)
)

// pairs returns the table of the ranges that bounds gives, first and last by turns, in increasing order.
func pairs(bounds ...uint32) *unicode.RangeTable {
	t := new(unicode.RangeTable)
	for b := range slices.Chunk(bounds, 2) {
		if b[1] <= 0xffff {
			t.R16 = append(t.R16, unicode.Range16{Lo: uint16(b[0]), Hi: uint16(b[1]), Stride: 1})
		} else {
			t.R32 = append(t.R32, unicode.Range32{Lo: b[0], Hi: b[1], Stride: 1})
		}
	}
	return t
}

// ascii holds the class of every ASCII character.
var ascii [utf8.RuneSelf]class

func init() {
	for r := range rune(utf8.RuneSelf) {
		ascii[r] = classOf(r)
	}
}

func classOf(r rune) class {
	switch {
	case unicode.IsLetter(r) || unicode.Is(letters16, r):
		return letter
	case unicode.IsNumber(r) || unicode.Is(numbers16, r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

// first returns the class and the length of the first character of s.
func first(s string) (class, int) {
	if s == "" {
		return end, 0
	}
	if s[0] < utf8.RuneSelf {
		return ascii[s[0]], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	return classOf(r), n
}

// run returns the length of the characters of class c at the start of s, of which at most most are taken.
func run(s string, c class, most int) int {
	n := 0
	for ; most > 0; most-- {
		k, size := first(s[n:])
		if k != c {
			break
		}
		n += size
	}
	return n
}

// numeric reports whether the Digits splitter takes r for a digit: Nd, Nl and No.
func numeric(r rune) bool { return classOf(r) == number || unicode.Is(numbers17, r) }

// word reports whether r is a \w of Rust's crate regex: Alphabetic, M, Nd, Pc or Join_Control.
func word(r rune) bool {
	return unicode.Is(words16, r) || unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic,
		unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control)
}
