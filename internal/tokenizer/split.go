package tokenizer

import (
	"math"
	"strings"
	"unicode/utf8"
)

// A splitter returns the length of the first piece of s, which is not empty. It is a regular expression whose alternatives
// match any text: what it matches at the start of s. Package regexp lacks the look-ahead of \s+(?!\S). Each alternative
// is tried in the order written, and the first that matches wins.
type splitter func(s string) int

// The patterns, as they stand in the tokenizer.json of the families.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// patterns are the regular expressions that are known, with what they do.
var patterns = map[string]splitter{patternGPT2: splitGPT2, patternQwen2: splitQwen2, patternLlama3: splitLlama3}

// splitGPT2 implements patternGPT2, the pattern of openai/gpt-2 src/encoder.py and of ByteLevel with use_regex.
func splitGPT2(s string) int {
	if n := contraction(s); n > 0 {
		return n
	}
	skip := 0
	if s[0] == ' ' {
		skip = 1
	}
	if c, _ := first(s[skip:]); c != space && c != end {
		return skip + run(s[skip:], c, math.MaxInt)
	}
	return splitSpace(s)
}

// splitQwen2 implements patternQwen2: every digit is a piece.
func splitQwen2(s string) int { return splitFolded(s, 1) }

// splitLlama3 implements patternLlama3: digits come in threes, counted from the left.
func splitLlama3(s string) int { return splitFolded(s, 3) }

func splitFolded(s string, digits int) int {
	if n := contractionFolded(s); n > 0 {
		return n
	}
	c, size := first(s)
	switch {
	case c == letter:
		return run(s, letter, math.MaxInt)
	case c == number:
		return run(s, number, digits)
	case s[0] != '\r' && s[0] != '\n':
		if n := run(s[size:], letter, math.MaxInt); n > 0 {
			return size + n
		}
	}
	skip := 0
	if s[0] == ' ' {
		skip = 1
	}
	if n := run(s[skip:], other, math.MaxInt); n > 0 {
		n += skip
		for n < len(s) && (s[n] == '\r' || s[n] == '\n') {
			n++
		}
		return n
	}
	// \s*[\r\n]+ takes the white space up to its last line break.
	if n := strings.LastIndexAny(s[:run(s, space, math.MaxInt)], "\r\n"); n >= 0 {
		return n + 1
	}
	return splitSpace(s)
}

// splitSpace implements \s+(?!\S)|\s+: a run of white space before another character gives up its last, unless it is the
// only one.
func splitSpace(s string) int {
	n, last := 0, 0
	for {
		c, size := first(s[n:])
		switch {
		case c == space:
			n, last = n+size, n
			continue
		case c != end && last > 0:
			return last
		}
		return n
	}
}

// contraction implements 's|'t|'re|'ve|'m|'ll|'d and returns 0 where that does not match.
func contraction(s string) int {
	if s[0] != '\'' || len(s) == 1 {
		return 0
	}
	switch s[1] {
	case 's', 't', 'm', 'd':
		return 2
	}
	if strings.HasPrefix(s, "'re") || strings.HasPrefix(s, "'ve") || strings.HasPrefix(s, "'ll") {
		return 3
	}
	return 0
}

// contractionFolded is contraction without regard to case, where U+017F, the long s, folds to s.
func contractionFolded(s string) int {
	if s[0] != '\'' {
		return 0
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return len("'ſ")
	}
	var low [3]byte
	for i := range min(3, len(s)) {
		if low[i] = s[i]; 'A' <= low[i] && low[i] <= 'Z' {
			low[i] |= 0x20
		}
	}
	return contraction(string(low[:min(3, len(s))]))
}

// step is a stage of the pre-tokenizer; it cuts what the stage before it left.
type step struct {
	split  splitter // nil: the text stays as it is
	prefix bool     // ByteLevel with add_prefix_space: a text that starts with no space gets one
}

// splitDigits implements Digits with individual_digits: a digit, or what is between two.
func splitDigits(s string) int {
	for i, r := range s {
		if numeric(r) {
			if i > 0 {
				return i
			}
			return utf8.RuneLen(r)
		}
	}
	return len(s)
}

// splitNumbers implements Digits without individual_digits: a run of digits, or what is between two.
func splitNumbers(s string) int {
	r, _ := utf8.DecodeRuneInString(s)
	want := !numeric(r)
	for i, r := range s {
		if numeric(r) == want {
			return i
		}
	}
	return len(s)
}

// split calls f with every piece of s after the given steps. Pieces are never empty.
func split(s string, steps []step, f func(string)) {
	if s == "" {
		return
	}
	if len(steps) == 0 {
		f(s)
		return
	}
	if steps[0].prefix && s[0] != ' ' {
		s = " " + s
	}
	if steps[0].split == nil {
		split(s, steps[1:], f)
		return
	}
	for s != "" {
		n := steps[0].split(s)
		split(s[:n], steps[1:], f)
		s = s[n:]
	}
}
