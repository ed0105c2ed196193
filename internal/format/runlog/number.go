package runlog

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"unsafe"
)

// number reads a number as trainers write it: one of JSON, NaN and infinity in the spellings of JSON libraries, Python and C, each
// also in quotes or as np.float64(…) or tensor(…), true and false, and null, None or nothing for one that is missing.
func number(s []byte) (v float64, missing, ok bool) {
	if len(s) == 0 {
		return math.NaN(), true, true
	}
	switch c := s[0]; {
	case c >= '0' && c <= '9', c == '-', c == '+', c == '.':
		return finite(s)
	case c == '"' || c == '\'':
		if len(s) < 2 || s[len(s)-1] != c {
			return 0, false, false
		}
		inner := bytes.TrimSpace(s[1 : len(s)-1])
		if len(inner) == 0 || inner[0] == '"' || inner[0] == '\'' {
			return 0, false, false
		}
		v, missing, ok = number(inner)
		if ok && (bytes.EqualFold(inner, []byte("true")) || bytes.EqualFold(inner, []byte("false"))) {
			return 0, false, false // a word
		}
		return v, missing, ok
	}
	switch {
	case is(s, "nan"):
		return math.NaN(), false, true
	case is(s, "inf"), is(s, "infinity"):
		return math.Inf(1), false, true
	case is(s, "null"), is(s, "none"), is(s, "n/a"):
		return math.NaN(), true, true
	case is(s, "true"):
		return 1, false, true
	case is(s, "false"):
		return 0, false, true
	}
	if open := bytes.IndexByte(s, '('); open > 0 && s[len(s)-1] == ')' { // np.float64(0.1), tensor(0.1, device='cuda:0')
		for _, c := range s[:open] {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_') {
				return 0, false, false
			}
		}
		inner := s[open+1 : len(s)-1]
		if comma := bytes.IndexByte(inner, ','); comma >= 0 {
			inner = inner[:comma]
		}
		if len(inner) > 0 {
			return number(bytes.TrimSpace(inner))
		}
	}
	return 0, false, false
}

func is(s []byte, word string) bool {
	return len(s) == len(word) && bytes.EqualFold(s, []byte(word))
}

// finite reads what begins like a number.
func finite(s []byte) (v float64, missing, ok bool) {
	if v, ok := short(s); ok {
		return v, false, true
	}
	if rest := s[1:]; (s[0] == '-' || s[0] == '+') && len(rest) > 0 && rest[0] != '.' && (rest[0] < '0' || rest[0] > '9') {
		switch {
		case is(rest, "nan"):
			return math.NaN(), false, true
		case is(rest, "inf"), is(rest, "infinity"):
			return math.Inf(map[byte]int{'-': -1, '+': 1}[s[0]]), false, true
		}
		return 0, false, false
	}
	for _, c := range s { // ParseFloat also takes hexadecimal numbers and underscores
		if !(c >= '0' && c <= '9' || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E') {
			return 0, false, false
		}
	}
	v, err := strconv.ParseFloat(unsafe.String(&s[0], len(s)), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // 1e999 is infinite
		return 0, false, false
	}
	return v, false, true
}

var tens = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// short reads a decimal number of at most 15 digits without an exponent, which one division rounds correctly.
func short(s []byte) (float64, bool) {
	i, negative := 0, false
	if s[0] == '-' {
		i, negative = 1, true
	}
	if len(s)-i > 16 || len(s) == i {
		return 0, false
	}
	var m uint64
	digits, point := 0, -1
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			m = m*10 + uint64(c-'0')
			digits++
		case c == '.' && point < 0:
			point = digits
		default:
			return 0, false
		}
	}
	if digits == 0 || digits > 15 {
		return 0, false
	}
	v := float64(m)
	if point >= 0 {
		v /= tens[digits-point]
	}
	if negative {
		v = -v
	}
	return v, true
}

// half returns half a unit of the last digit of a number as it is written, and whether it ends in zeros that it does not need: 0.10, 0.000.
func half(s []byte) (unit float64, padded bool) {
	places, point, exponent := 0, false, 0
digits:
	for i, c := range s {
		switch {
		case c == '(': // np.float64(0.1), tensor(0.1, device='cuda:0')
			places, point = 0, false
		case c == ',':
			break digits
		case c == '.':
			point = true
		case c >= '0' && c <= '9':
			if point {
				places++
			}
			padded = c == '0'
		case c == 'e' || c == 'E':
			exponent, _ = strconv.Atoi(string(bytes.TrimRight(bytes.TrimPrefix(s[i+1:], []byte("+")), `"' `)))
			if exponent -= places; exponent < -300 || exponent > 300 {
				return 0, false
			}
			return 0.5 * math.Pow(10, float64(exponent)), false
		}
	}
	if places < len(tens) {
		return 0.5 / tens[places], padded && places > 1
	}
	return 0.5 * math.Pow(10, float64(-min(places, 300))), padded
}
