package convention

import (
	"math"
	"strconv"
	"strings"
)

// Kind is the state or the type of a [Value].
type Kind uint8

const (
	Unknown       Kind = iota // not read anywhere, or absent from a dump: the search runs over it
	NotApplicable             // the program has nothing to which the option could apply
	None                      // there is such a thing and it is off: no clamp, no clip
	Number
	Bool
	Enum
	Tuple // two or three numbers
)

// Value is a value of an option, or the reason why there is none. It is comparable with ==; the zero Value is unknown.
type Value struct {
	kind Kind
	n    uint8 // of Tuple
	b    bool
	num  [3]float64
	text string
}

// Kind returns the kind of v.
func (v Value) Kind() Kind { return v.kind }

// Known reports whether v is a value, none included, rather than unknown or not applicable.
func (v Value) Known() bool { return v.kind > NotApplicable }

// Num returns the number v. It panics if v is of another kind.
func (v Value) Num() float64 {
	v.need(Number)
	return v.num[0]
}

// Bool returns the truth value v. It panics if v is of another kind.
func (v Value) Bool() bool {
	v.need(Bool)
	return v.b
}

// Text returns the enumerated value v, as package rl parses it. It panics if v is of another kind.
func (v Value) Text() string {
	v.need(Enum)
	return v.text
}

// Nums returns the two or three numbers of v. It panics if v is of another kind.
func (v Value) Nums() []float64 {
	v.need(Tuple)
	return v.num[:v.n:v.n]
}

func (v Value) need(k Kind) {
	if v.kind != k {
		panic("convention: value is of another kind")
	}
}

// String returns the text that [Option.Parse] reads as v: "?" for unknown, "–" for not applicable, numbers in the shortest
// form that has the same float64, tuples with commas.
func (v Value) String() string {
	switch v.kind {
	case NotApplicable:
		return "–"
	case None:
		return "none"
	case Number:
		return number(v.num[0])
	case Bool:
		return strconv.FormatBool(v.b)
	case Enum:
		return v.text
	case Tuple:
		parts := make([]string, v.n)
		for i := range parts {
			parts[i] = number(v.num[i])
		}
		return strings.Join(parts, ",")
	}
	return "?"
}

// number formats x as people write it: the shorter of 0.05 and 5e-2, of 1e-8 and 0.00000001, and the first if both are as
// long. What is not finite is no value of an option, and has a text that nothing parses.
func number(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	plain := strconv.FormatFloat(x, 'f', -1, 64)
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e")
	sign := strings.TrimPrefix(exponent[:1], "+")
	if short := mantissa + "e" + sign + strings.TrimLeft(exponent[1:], "0"); len(short) < len(plain) {
		return short
	}
	return plain
}

// parseNumber reads a finite decimal number; ok is false for anything else, hexadecimal and underscores included.
func parseNumber(s string) (x float64, ok bool) {
	if s == "" || strings.Trim(s, "0123456789.eE+-") != "" {
		return 0, false
	}
	x, err := strconv.ParseFloat(s, 64)
	return x + 0, err == nil && !math.IsInf(x, 0) // +0 turns −0 into 0, which is printed without a sign
}
