package tokenizer

import "unicode/utf8"

// The byte alphabet of GPT-2: every byte is spelled as one printable code point, so that a vocabulary is text. Bytes
// 33-126, 161-172 and 174-255 stand for themselves; the other 68 are U+0100 and up, in increasing order. It implements
// bytes_to_unicode of openai/gpt-2 src/encoder.py.
var (
	byteRune [256]rune
	runeByte [0x144]int16 // -1 where a code point spells no byte
)

func init() {
	for i := range runeByte {
		runeByte[i] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !(33 <= b && b <= 126 || 161 <= b && b <= 172 || 174 <= b) {
			r = next
			next++
		}
		byteRune[b], runeByte[r] = r, int16(b)
	}
}

// appendSpelled appends the spelling of the bytes of s in the byte alphabet.
func appendSpelled(dst []byte, s string) []byte {
	for i := range len(s) {
		dst = utf8.AppendRune(dst, byteRune[s[i]])
	}
	return dst
}

// appendBytes appends the bytes that a token of the file spells. A token with a character outside the alphabet stands for
// its own UTF-8, as in the ByteLevel decoder of tokenizers; an added token all of whose characters happen to be in the
// alphabet does not: there as here, é alone is the byte e9.
func appendBytes(dst []byte, token string) []byte {
	start := len(dst)
	for _, r := range token {
		if int(r) >= len(runeByte) || runeByte[r] < 0 {
			return append(dst[:start], token...)
		}
		dst = append(dst, byte(runeByte[r]))
	}
	return dst
}

// valid returns the length of the longest prefix of p that is UTF-8 with every invalid part replaced, the prefix with
// U+FFFD in the places of those parts, and nothing of a last character whose end is yet to come. A part is the longest
// start of a character, or one byte: the practice of Unicode 16, section 3.9, table 3-8, which Rust's from_utf8_lossy
// and Python's errors="replace" follow and a Go conversion, one U+FFFD per byte, does not.
func valid(dst, p []byte) ([]byte, int) {
	n := 0
	for n < len(p) {
		r, size := utf8.DecodeRune(p[n:])
		if r != utf8.RuneError || size > 1 {
			dst = append(dst, p[n:n+size]...)
			n += size
			continue
		}
		k := part(p[n:])
		if n+k == len(p) && !utf8.FullRune(p[n:]) {
			return dst, n
		}
		dst = utf8.AppendRune(dst, utf8.RuneError)
		n += k
	}
	return dst, n
}

// part returns the length of the longest prefix of p, at least one byte, that some character starts with; p starts with
// no character.
func part(p []byte) int {
	k := 1
	for k < len(p) && k < utf8.UTFMax-1 && !utf8.FullRune(p[:k+1]) {
		k++
	}
	return k
}

// replace returns p as text, with U+FFFD for what is not UTF-8.
func replace(p []byte) string {
	dst, n := valid(make([]byte, 0, len(p)), p)
	if n < len(p) {
		dst = utf8.AppendRune(dst, utf8.RuneError)
	}
	return string(dst)
}
