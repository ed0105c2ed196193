package pickle

import (
	"slices"
	"strconv"
)

// stop returns err, or what the opcode at hand did not find on the stack.
func (m *machine) stop(err error) error {
	if err == nil && m.bad != "" {
		err = m.malformed(m.at, "%s: %s", m.op.name, m.bad)
	}
	return err
}

func (m *machine) push(v value) {
	if m.lost {
		return
	}
	if !m.room(len(m.stack), 16, "objects on the stack") {
		m.lost, m.stack = true, m.stack[:0]
		return
	}
	m.stack = add(m.stack, v)
}

func (m *machine) pop() value {
	v := m.top()
	if len(m.stack) > 0 {
		m.stack = m.stack[:len(m.stack)-1]
	}
	return v
}

func (m *machine) top() value {
	if len(m.stack) == 0 || m.stack[len(m.stack)-1] == mark {
		if !m.lost {
			m.bad = "the stack has nothing for it"
		}
		return opaque
	}
	return m.stack[len(m.stack)-1]
}

// several pops n values and returns them, in the order in which they were pushed, until the next push.
func (m *machine) several(n int) []value {
	if m.lost {
		return nil
	}
	from := len(m.stack) - n
	if from < 0 || slices.Contains(m.stack[from:], mark) {
		m.bad = "the stack has too little for it"
		return nil
	}
	out := m.stack[from:]
	m.stack = m.stack[:from]
	return out
}

// items pops everything down to the last mark and returns what was above it, until the next push.
func (m *machine) items() []value {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if m.stack[i] == mark {
			out := m.stack[i+1:]
			m.stack = m.stack[:i]
			return out
		}
	}
	if !m.lost {
		m.bad = "no mark on the stack"
	}
	return nil
}

// node keeps n and returns a value for it.
func (m *machine) node(n node) value {
	if !m.room(m.nodes.n, 32, "containers and objects") {
		return opaque
	}
	if n.kind != tupleNode {
		n.first, n.last = -1, -1
	}
	m.nodes.add(n)
	return object | value(m.nodes.n-1)
}

func (m *machine) tuple(items []value) value {
	if len(items) > maxTuple {
		return opaque
	}
	if !m.room(m.children.n, 16, "members of tuples") {
		return opaque
	}
	from := m.children.run(items)
	return m.node(node{kind: tupleNode, n: int32(len(items)), first: int32(from)})
}

// elements returns the children of a tuple, or nil.
func (m *machine) elements(v value) []value {
	if v.kind() != object || m.nodes.at(v.index()).kind != tupleNode {
		return nil
	}
	n := m.nodes.at(v.index())
	return m.children.slice(int(n.first), int(n.n))
}

func (m *machine) call(callee, args value) {
	if callee.kind() == global {
		m.out.Globals[callee.index()].Calls++
	}
	m.push(m.node(node{kind: callNode, a: callee, b: args}))
}

// add appends a member to a container that is followed. Only members that are containers or objects themselves, and the first
// numbers, whole ones under a name, are kept.
func (m *machine) add(to, key, v value) {
	if v.kind() == integer && key.textual() && m.integers < maxNumbers {
		m.integers++
	} else if v.kind() == real && m.reals < maxNumbers {
		m.reals++
	} else if v.kind() != object {
		return
	}
	if to.kind() != object || m.nodes.at(to.index()).kind == tupleNode || !m.room(m.pairs.n, 32, "members of containers") {
		return
	}
	n := m.nodes.at(to.index())
	m.pairs.add(pair{key, v, -1})
	i := int32(m.pairs.n - 1)
	if n.first < 0 {
		n.first = i
	} else {
		m.pairs.at(int(n.last)).next = i
	}
	n.last = i
}

// extend appends items to a list. A tuple stays as it is: Python's unpickler gives up there.
func (m *machine) extend(list value, items []value) {
	if list.kind() != object || m.nodes.at(list.index()).kind == tupleNode {
		return
	}
	for _, v := range items {
		n := m.nodes.at(list.index()).n
		m.add(list, integral(int64(n)), v)
		m.nodes.at(list.index()).n = n + 1
	}
}

// set assigns the values of a dict or an object: keys and values in turn.
func (m *machine) set(dict value, items []value) error {
	if len(items)%2 != 0 {
		return m.malformed(m.pos-1, "a key of a dict has no value")
	}
	for i := 0; i < len(items); i += 2 {
		m.add(dict, items[i], items[i+1])
		if !items[i].textual() {
			continue
		}
		key, err := m.read(items[i])
		if err != nil {
			return err
		}
		if t, there := m.texts[key]; there && !t.key && m.room(len(m.out.Keys), 128, "keys of dicts") {
			m.texts[key] = interned{key, true}
			m.out.Keys = add(m.out.Keys, key)
		}
	}
	return nil
}

// decimal reads the text of INT and LONG.
func (m *machine) decimal(sp span) (value, error) {
	if sp.n > 24 {
		return opaque, nil
	}
	b, err := m.bytes(sp)
	if err != nil {
		return 0, err
	}
	s := string(b)
	if s == "00" || s == "01" {
		return boolean | value(s[1]-'0'), nil
	}
	if n := len(s); n > 0 && s[n-1] == 'L' {
		s = s[:n-1]
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return opaque, nil
	}
	return integral(n), nil
}

// long reads the two's complement of LONG1.
func (m *machine) long(sp span) (value, error) {
	if sp.n == int64(len(legacyMagic)) {
		b, err := m.bytes(sp)
		m.magic = m.magic || string(b) == legacyMagic
		return opaque, err
	}
	if sp.n > 8 {
		return opaque, nil
	}
	s, err := m.bytes(sp)
	if err != nil {
		return 0, err
	}
	var n int64
	for i := range s {
		n |= int64(s[i]) << (8 * i)
	}
	if len(s) > 0 && len(s) < 8 && s[len(s)-1] >= 0x80 {
		n -= 1 << (8 * len(s))
	}
	return integral(n), nil
}

// slot is the number in the memo that an opcode names.
func (m *machine) slot(a operand, op opcode) (uint64, error) {
	if op.arg != line {
		return a.n, nil
	}
	v, err := m.decimal(a.sp)
	if err != nil {
		return 0, err
	}
	if v.kind() != integer || v.int() < 0 {
		return 0, m.malformed(a.sp.off, "%s: want a number", op.name)
	}
	return uint64(v.int()), nil
}

// name returns the text at sp as a part of a global's name.
func (m *machine) name(sp span) (string, error) { return m.text(text, sp) }

// interned is a text that is held once.
type interned struct {
	s   string
	key bool // of a dict, listed
}

// read returns the text of v.
func (m *machine) read(v value) (string, error) { return m.text(v.kind(), v.span()) }

// text returns the text at sp, equal texts as one string: a program can name the same text in every second byte. What there
// is no room for is "".
func (m *machine) text(kind value, sp span) (string, error) {
	b, err := m.bytes(sp)
	if err != nil {
		return "", err
	}
	if t, ok := m.texts[string(b)]; ok && kind == text {
		return t.s, nil
	}
	m.decoded = decode(m.decoded[:0], kind, b)
	if t, ok := m.texts[string(m.decoded)]; ok {
		return t.s, nil
	}
	n := int64(len(m.decoded))
	if len(m.texts) >= base+int(m.size/256) || n > m.budget {
		m.full("texts", len(m.texts))
		return "", nil
	}
	m.budget -= n
	s := string(m.decoded)
	m.texts[s] = interned{s: s}
	return s, nil
}

// global lists a name; an empty module says that it is computed.
func (m *machine) global(module, name string, op opcode, at int64) value {
	i, there := m.globals[[2]string{module, name}]
	if !there {
		if len(m.globals) >= maxGlobals {
			m.full("names", maxGlobals)
			return opaque
		}
		i = len(m.out.Globals)
		m.globals[[2]string{module, name}] = i
		m.out.Globals = append(m.out.Globals, Global{Module: module, Name: name, Opcode: op.name, Offset: at})
	}
	m.out.Globals[i].Count++
	return global | value(i)
}
