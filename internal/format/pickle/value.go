package pickle

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// value is what the machine knows of an object: a kind in the upper four bits, and of that what fits the lower 60. An
// object takes 8 bytes whatever it is, since an opcode of one byte can make one.
type value uint64

const (
	opaque  value = iota << 60 // anything else
	mark                       //
	text                       // UTF-8 in the file: 40 bits of offset, 20 of length
	quoted                     // the same, as Python's repr of a string
	escaped                    // the same, with \u escapes
	integer                    // of 60 bits, signed
	boolean                    //
	global                     // index of Machine.globals
	object                     // index of Machine.nodes
	real                       // a float64 without its lowest four bits
	kinds   = opaque | 15<<60
)

func (v value) kind() value { return v & kinds }
func (v value) index() int  { return int(v &^ kinds) }
func (v value) int() int64  { return int64(v<<4) >> 4 }

// textual returns a value for the text at sp.
func textual(kind value, sp span) value {
	if sp.off >= 1<<40 || sp.n >= 1<<20 {
		return opaque
	}
	return kind | value(sp.off)<<20 | value(sp.n)
}

func (v value) span() span { return span{int64(v &^ kinds >> 20), int64(v & (1<<20 - 1))} }

func integral(n int64) value {
	if n != n<<4>>4 {
		return opaque
	}
	return integer | value(n)&^kinds
}

// floating returns a value for a number, less than 2⁻⁴⁸ of it away.
func floating(bits uint64) value { return real | value(bits>>4) }

func (v value) float() float64 { return math.Float64frombits(uint64(v) << 4) }

func (v value) textual() bool { return v.kind() == text || v.kind() == quoted || v.kind() == escaped }

// decode appends to dst what Python makes of the text s of a value of that kind.
func decode(dst []byte, kind value, s []byte) []byte {
	switch kind {
	case quoted:
		s = bytes.Trim(s, " \t\r")
		if len(s) >= 2 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
			s = s[1 : len(s)-1]
		}
		return unescape(dst, s, "xuU01234567abfnrtv\\'\"")
	case escaped:
		return unescape(dst, s, "uU")
	}
	return appendValid(dst, s)
}

// appendValid appends s to dst, with U+FFFD in the place of each run of bytes that are not UTF-8.
func appendValid(dst, s []byte) []byte {
	if utf8.Valid(s) {
		return append(dst, s...)
	}
	bad := false
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		if r == utf8.RuneError && n == 1 {
			if !bad {
				dst = utf8.AppendRune(dst, utf8.RuneError)
			}
			bad = true
		} else {
			dst, bad = append(dst, s[:n]...), false
		}
		s = s[n:]
	}
	return dst
}

// unescape appends s with the escapes replaced whose letter is one of letters; those that are malformed stay.
func unescape(dst, s []byte, letters string) []byte {
	for {
		at := bytes.IndexByte(s, '\\')
		if at < 0 {
			return appendValid(dst, s)
		}
		dst, s = appendValid(dst, s[:at]), s[at:]
		if len(s) == 1 || strings.IndexByte(letters, s[1]) < 0 {
			dst, s = append(dst, '\\'), s[1:]
			continue
		}
		from, digits, base := 2, 0, 16
		switch c := s[1]; {
		case c == 'x':
			digits = 2
		case c == 'u':
			digits = 4
		case c == 'U':
			digits = 8
		case '0' <= c && c <= '7':
			from, base = 1, 8
			for digits < 3 && 1+digits < len(s) && s[1+digits] >= '0' && s[1+digits] <= '7' {
				digits++
			}
		default:
			if j := strings.IndexByte("abfnrtv", c); j >= 0 {
				c = "\a\b\f\n\r\t\v"[j]
			}
			dst, s = append(dst, c), s[2:]
			continue
		}
		n, err := uint64(0), strconv.ErrSyntax
		if from+digits <= len(s) {
			n, err = strconv.ParseUint(string(s[from:from+digits]), base, 32)
		}
		if err != nil || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
			dst, s = append(dst, '\\'), s[1:]
			continue
		}
		dst, s = utf8.AppendRune(dst, rune(n)), s[from+digits:]
	}
}

// arena holds things in blocks: a slice that grows would allocate several times what it holds in the end.
type arena[T any] struct {
	blocks [][]T
	n      int
}

const block = 1024

func (a *arena[T]) at(i int) *T { return &a.blocks[i/block][i%block] }

func (a *arena[T]) add(v T) {
	if a.n/block == len(a.blocks) {
		a.blocks = append(a.blocks, make([]T, block))
	}
	*a.at(a.n) = v
	a.n++
}

// run adds items one behind the other in one block, and returns where they are.
func (a *arena[T]) run(items []T) int {
	if left := block - a.n%block; left < len(items) && left < block {
		a.n += left
	}
	from := a.n
	for _, v := range items {
		a.add(v)
	}
	return from
}

// slice returns n things from index from on, which run has added.
func (a *arena[T]) slice(from, n int) []T {
	if n == 0 {
		return nil
	}
	return a.blocks[from/block][from%block:][:n]
}

// add is append that doubles: append grows a large slice in small steps, which allocate five times what it ends with.
func add[T any](s []T, v T) []T {
	if len(s) == cap(s) {
		s = append(make([]T, 0, max(16, 2*cap(s))), s...)
	}
	return append(s, v)
}

// memo holds the objects that later opcodes refer to. Pickles number them from 0 on; the few with other numbers lie in a
// map.
type memo struct {
	arena[value]
	sparse map[uint64]value
	most   int // in the arena
	few    int // in sparse
}

// len is the number that MEMOIZE gives.
func (m *memo) len() uint64 { return uint64(m.n + len(m.sparse)) }

// put reports whether there is room for v.
func (m *memo) put(i uint64, v value) bool {
	switch {
	case i < uint64(m.n):
		*m.at(int(i)) = v
	case i == uint64(m.n) && m.n < m.most:
		m.add(v)
		delete(m.sparse, i)
	default:
		if _, there := m.sparse[i]; !there && len(m.sparse) >= m.few {
			return false
		}
		if m.sparse == nil {
			m.sparse = map[uint64]value{}
		}
		m.sparse[i] = v
	}
	return true
}

func (m *memo) get(i uint64) (value, bool) {
	if i < uint64(m.n) {
		return *m.at(int(i)), true
	}
	v, ok := m.sparse[i]
	return v, ok
}

// node is a container or an object whose content the machine follows.
type node struct {
	kind        nodeKind
	n           int32 // children of a tuple; elements of a list
	a, b        value // of a call: what is called, with what
	first, last int32 // of a tuple: its first child; else its pairs, -1 for none
}

type nodeKind uint8

const (
	tupleNode nodeKind = iota
	listNode
	dictNode
	callNode       // REDUCE, NEWOBJ, INST, OBJ
	persistentNode // BINPERSID: a holds its tuple
)

// pair is a member of a list, a dict or an object.
type pair struct {
	key, val value
	next     int32
}
