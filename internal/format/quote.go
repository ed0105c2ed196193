package format

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ShellQuote returns s as one word of a shell on one line, for commands that a user may paste: unchanged where every character is harmless,
// else in single quotes, and where a control or bidi character or a byte that is no UTF-8 is in it in those of bash, $'…', with escapes.
func ShellQuote(s string) string {
	if s != "" && strings.IndexFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-./:=,+%@", c))
	}) < 0 {
		return s
	}
	if utf8.ValidString(s) && strings.IndexFunc(s, drives) < 0 {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for len(s) > 0 {
		c, n := utf8.DecodeRuneInString(s)
		switch {
		case c == utf8.RuneError && n == 1 || drives(c):
			for _, x := range []byte(s[:n]) {
				fmt.Fprintf(&b, `\%03o`, x)
			}
		case c == '\'' || c == '\\':
			b.WriteString(`\` + s[:n])
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String() + "'"
}

// drives reports whether c can move a cursor, end a line or turn text around.
func drives(c rune) bool {
	return unicode.In(c, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
