package pickle

import (
	"fmt"
	"math/bits"
)

// Bounds of what is kept, as a base and one more for so many bytes of the file. What lies beyond is not followed and a
// note says so; opcodes and globals are listed all the same.
const (
	base       = 16_384
	maxText    = 1 << 10 // bytes of a name or key
	maxGlobals = 10_000
	maxTuple   = block
	maxDepth   = 64
)

// legacyMagic is the number that a file of torch.save before version 1.6 begins with, as LONG1 has it.
const legacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

// machine follows a pickle program without making any object.
type machine struct {
	stream
	out   *Summary
	size  int64
	lost  bool // the stack is not followed any more
	magic bool // the first object is legacyMagic

	op  opcode // at hand
	at  int64  // its offset
	bad string // what it did not find on the stack

	stack    []value
	memo     memo
	nodes    arena[node]
	pairs    arena[pair]
	integers int // pairs whose value is a whole number
	reals    int // the same with a fraction
	children arena[value]

	globals  map[[2]string]int
	texts    map[string]interned // of globals, keys and storages
	storages map[string]int      // index in out.Storages
	counts   [256]int
	filled   map[string]bool
	decoded  []byte // of the text at hand
	budget   int64  // bytes of texts, names and shapes
}

// room reports whether one more of have things may be kept, of which the file may have base and one per bytes.
func (m *machine) room(have int, per int64, what string) bool {
	if int64(have) < base+min(m.size, 1<<34)/per { // an index has 31 bits
		return true
	}
	m.full(what, have)
	return false
}

// full notes once that there is no room for more.
func (m *machine) full(what string, have int) {
	if m.filled[what] {
		return
	}
	m.filled[what] = true
	m.out.note("%s beyond the first %d are not followed", what, have)
}

// program runs one pickle up to its STOP and returns what it leaves.
func (m *machine) program() (value, error) {
	m.stack = m.stack[:0]
	m.memo.n, m.memo.sparse, m.memo.most, m.memo.few = 0, nil, int(base+m.size/8), int(base/2+m.size/64)
	m.lost = false
	start := m.pos
	for {
		at := m.pos
		b, err := m.take(1)
		if err != nil {
			if at == m.end {
				err = m.malformed(at, "pickle ends without STOP")
			}
			return 0, err
		}
		code := b[0]
		op := opcodes[code]
		if op.name == "" {
			what := "no pickle"
			if at > start {
				what = "no opcode"
			}
			return 0, m.malformed(at, "%s: byte %#02x", what, code)
		}
		m.counts[code]++
		a, err := m.argument(op)
		if err != nil {
			return 0, err
		}
		if code == opStop {
			top := opaque
			if len(m.stack) > 0 {
				top = m.stack[len(m.stack)-1]
			} else if !m.lost {
				return 0, m.malformed(at, "STOP with an empty stack")
			}
			return top, nil
		}
		if err := m.step(code, op, at, a); err != nil {
			return 0, err
		}
	}
}

// operand is what follows an opcode: a number, or where the text lies.
type operand struct {
	n      uint64
	sp, s2 span
}

// argument reads the bytes that belong to op.
func (m *machine) argument(op opcode) (a operand, err error) {
	widths := [...]int64{fixed1: 1, fixed2: 2, fixed4: 4, fixed8: 8, counted1: 1, counted4: 4, counted8: 8, signed4: 4, line: 0, lines2: 0}
	switch op.arg {
	case none:
	case fixed1, fixed2, fixed4, fixed8:
		a.n, err = m.number(widths[op.arg])
	case counted1, counted4, counted8, signed4:
		if a.n, err = m.number(widths[op.arg]); err != nil {
			return a, err
		}
		if op.arg == signed4 && int32(a.n) < 0 {
			return a, m.malformed(m.pos-4, "%s of %d bytes", op.name, int32(a.n))
		}
		a.sp = span{m.pos, int64(min(a.n, 1<<62))}
		err = m.skip(a.n)
	case line, lines2:
		a.sp, err = m.line()
		if err == nil && op.arg == lines2 {
			a.s2, err = m.line()
		}
	}
	return a, err
}

// step carries out one opcode.
func (m *machine) step(code byte, op opcode, at int64, a operand) error {
	m.op, m.at, m.bad = op, at, ""
	switch code {
	case opProto:
		if a.n > 5 {
			return m.malformed(at, "protocol %d, want at most 5", a.n)
		}
		m.out.Protocol = max(m.out.Protocol, int(a.n))
	case opFrame:
		if a.n > uint64(m.end-m.pos) {
			return m.malformed(at, "frame of %d bytes, %d are left", a.n, m.end-m.pos)
		}
	case opMark:
		m.push(mark)
	case '0':
		if n := len(m.stack); n > 0 && m.stack[n-1] == mark { // protocol 0 throws a mark away like this
			m.stack = m.stack[:n-1]
			break
		}
		m.pop()
	case '1':
		m.items()
	case '2':
		v := m.pop()
		m.push(v)
		m.push(v)
	case 'G':
		m.push(floating(bits.ReverseBytes64(a.n)))
	case 'N', 'F', 0x88, 0x89:
		if code >= 0x88 {
			m.push(boolean | value(0x89-code))
		} else {
			m.push(opaque)
		}
	case 'B', 'C', 0x8e, 0x96, 0x97, 0x8b:
		m.push(opaque)
	case 'I', 'L':
		v, err := m.decimal(a.sp)
		if err != nil {
			return err
		}
		m.push(v)
	case 'J':
		m.push(integral(int64(int32(a.n))))
	case 'K', 'M':
		m.push(integral(int64(a.n)))
	case 0x8a: // LONG1
		v, err := m.long(a.sp)
		if err != nil {
			return err
		}
		m.push(v)
	case 'S':
		m.push(textual(quoted, a.sp))
	case 'V':
		m.push(textual(escaped, a.sp))
	case 'T', 'U', 'X', 0x8c, 0x8d:
		m.push(textual(text, a.sp))
	case 'c', 'i':
		module, err := m.name(a.sp)
		if err != nil {
			return err
		}
		name, err := m.name(a.s2)
		if err != nil {
			return err
		}
		g := m.global(module, name, op, at)
		if code == 'c' {
			m.push(g)
			break
		}
		m.call(g, m.tuple(m.items()))
	case 0x93: // STACK_GLOBAL
		name, module := m.pop(), m.pop()
		if !module.textual() || !name.textual() {
			m.push(m.global("", "", op, at))
			break
		}
		mod, err := m.read(module)
		if err != nil {
			return err
		}
		text, err := m.read(name)
		if err != nil {
			return err
		}
		m.push(m.global(mod, text, op, at))
	case 0x82, 0x83, 0x84: // EXT1, EXT2, EXT4
		m.push(m.global("copyreg", fmt.Sprintf("extension %d", a.n), op, at))
	case 'P':
		m.push(opaque)
	case 'Q':
		return m.persistent()
	case 'R', 0x81:
		args, callee := m.pop(), m.pop()
		m.call(callee, args)
	case 0x92: // NEWOBJ_EX
		m.pop()
		args, callee := m.pop(), m.pop()
		m.call(callee, args)
	case 'o':
		items := m.items()
		if len(items) == 0 {
			m.bad = "want a class above the mark"
			break
		}
		m.call(items[0], m.tuple(items[1:]))
	case 'b':
		state := m.pop()
		if obj := m.top(); obj.kind() == object {
			m.add(obj, opaque, state)
		}
	case ')', 0x85, 0x86, 0x87:
		n := 0
		if code != ')' {
			n = int(code - 0x84)
		}
		m.push(m.tuple(m.several(n)))
	case 't':
		m.push(m.tuple(m.items()))
	case '}':
		m.push(m.node(node{kind: dictNode}))
	case ']':
		m.push(m.node(node{kind: listNode}))
	case 0x8f: // EMPTY_SET
		m.push(opaque)
	case 0x91: // FROZENSET
		m.items()
		m.push(opaque)
	case 0x90: // ADDITEMS
		m.items()
		m.top()
	case 'l':
		items := m.items()
		v := m.node(node{kind: listNode})
		m.extend(v, items)
		m.push(v)
	case 'a':
		v := m.pop()
		m.extend(m.top(), []value{v})
	case 'e':
		items := m.items()
		m.extend(m.top(), items)
	case 'd':
		items := m.items()
		v := m.node(node{kind: dictNode})
		if err := m.set(v, items); err != nil {
			return err
		}
		m.push(v)
	case 's':
		items := m.several(2)
		return m.stop(m.set(m.top(), items))
	case 'u':
		items := m.items()
		return m.stop(m.set(m.top(), items))
	case 'g', 'h', 'j':
		i, err := m.slot(a, op)
		if err != nil {
			return err
		}
		v, there := m.memo.get(i)
		if !there && !m.out.partial {
			return m.malformed(at, "%s of %d, which was never stored", op.name, i)
		}
		m.push(v)
	case 'p', 'q', 'r', 0x94:
		i, err := m.slot(a, op)
		if err != nil {
			return err
		}
		if code == 0x94 {
			i = m.memo.len()
		}
		if !m.memo.put(i, m.top()) {
			m.full("objects in the memo", int(m.memo.len()))
		}
	case 0x98: // READONLY_BUFFER
		m.top()
	}
	return m.stop(nil)
}
