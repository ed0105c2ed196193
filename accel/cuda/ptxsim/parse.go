package ptxsim

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Limits on a text: a module is a few hundred kilobytes.
const (
	maxText      = 16 << 20
	maxRegisters = 1 << 16
	maxSharedMem = 227 << 10 // of a block on sm_90
)

// Parse reads a module. Its errors name the line and its text.
func Parse(text string) (*Module, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("ptxsim: %d bytes of PTX, at most %d are read", len(text), maxText)
	}
	p := &parser{module: &Module{kernels: map[string]*Kernel{}}}
	for n, line := range strings.Split(text, "\n") {
		p.line, p.raw = n+1, line
		if i := strings.Index(line, "//"); i >= 0 {
			line = line[:i]
		}
		for line = strings.TrimSpace(line); line != ""; {
			var err error
			if line, err = p.take(line); err != nil {
				return nil, fmt.Errorf("ptxsim: line %d: %q: %w", p.line, strings.TrimSpace(p.raw), err)
			}
			line = strings.TrimSpace(line)
		}
	}
	if p.kernel != nil || p.header != nil {
		return nil, fmt.Errorf("ptxsim: the text ends inside of a kernel")
	}
	if p.module.Target == "" {
		return nil, fmt.Errorf("ptxsim: no .target: not a PTX text")
	}
	return p.module, nil
}

type parser struct {
	module *Module
	line   int
	raw    string

	header  *Kernel // between .entry and {
	inside  bool    // the parentheses of the parameters
	kernel  *Kernel // between { and }
	depth   int
	regs    map[string]reg
	shared  map[string]uint64
	labels  map[string]int
	pending []jump // branches whose label was not yet seen
}

type jump struct {
	at    int
	label string
	line  int
	text  string
}

// reg is a register: its number among those of its file, and its width in bits; 1 is a predicate.
type reg struct{ index, bits int }

var (
	labelLine = regexp.MustCompile(`^([$%A-Za-z_][$\w]*):`)
	entryLine = regexp.MustCompile(`^\.visible \.entry (\w+)\($`)
	paramLine = regexp.MustCompile(`^\.param \.(u8|u16|u32|u64|s32|s64|f32|f64|b8|b16|b32|b64)\s+(\w+),?$`)
	maxNTID   = regexp.MustCompile(`^\.maxntid (\d+), (\d+), (\d+)$`)
	regLine   = regexp.MustCompile(`^\.reg \.(pred|b8|b16|b32|b64|f32|f64|u16|s16|u32|s32|u64|s64)\s+(.*)$`)
	manyRegs  = regexp.MustCompile(`^(%\w*?)<(\d+)>$`)
	oneReg    = regexp.MustCompile(`^%?\w+$`)
	sharedVar = regexp.MustCompile(`^\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]$`)
	dynShared = regexp.MustCompile(`^\.extern \.shared \.align (\d+) \.b8 (\w+)\[\]$`)
)

var widths = map[string]int{"pred": 1, "b8": 8, "u8": 8, "b16": 16, "u16": 16, "s16": 16, "b32": 32, "u32": 32, "s32": 32, "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64}

// take reads one statement from the front of a line and returns the rest.
func (p *parser) take(line string) (string, error) {
	switch {
	case p.kernel != nil:
		return p.body(line)
	case p.header != nil:
		return "", p.parameter(line)
	case strings.HasPrefix(line, ".version "):
		p.module.Version = strings.TrimSpace(line[len(".version "):])
	case strings.HasPrefix(line, ".target "):
		p.module.Target = strings.TrimSpace(line[len(".target "):])
	case line == ".address_size 64":
	case dynShared.MatchString(strings.TrimSuffix(line, ";")):
		// The bytes that a launch asks for follow those that a kernel declares; one name at most stands for them.
		if p.shared == nil {
			p.shared = map[string]uint64{}
		}
		p.shared[dynShared.FindStringSubmatch(strings.TrimSuffix(line, ";"))[2]] = dynamicAt
	default:
		m := entryLine.FindStringSubmatch(line)
		if m == nil {
			return "", fmt.Errorf("not understood")
		}
		if p.module.kernels[m[1]] != nil {
			return "", fmt.Errorf("the kernel stands twice")
		}
		p.header, p.inside = &Kernel{Name: m[1], granule: 16}, true
	}
	return "", nil
}

// dynamicAt marks the address of shared memory whose size the launch says; it lies behind what the kernel declares.
const dynamicAt = math.MaxUint64

func (p *parser) parameter(line string) error {
	k := p.header
	switch {
	case p.inside && line == ")":
		p.inside = false
	case p.inside:
		m := paramLine.FindStringSubmatch(line)
		if m == nil {
			return fmt.Errorf("not understood as a parameter")
		}
		size := widths[m[1]] / 8
		k.paramBytes = (k.paramBytes + size - 1) / size * size
		k.Params = append(k.Params, Param{Name: m[2], Size: size, Offset: k.paramBytes})
		k.paramBytes += size
	case maxNTID.MatchString(line):
		k.MaxThreads = 1
		for _, n := range maxNTID.FindStringSubmatch(line)[1:] {
			v, err := strconv.Atoi(n)
			if err != nil || v < 1 || v > 1024 || k.MaxThreads*v > 1024 {
				return fmt.Errorf("no size of a block")
			}
			k.MaxThreads *= v
		}
	case line == "{":
		dynamic := map[string]uint64{}
		for name, at := range p.shared {
			if at == dynamicAt {
				dynamic[name] = at
			}
		}
		p.kernel, p.header, p.depth = k, nil, 1
		p.regs, p.shared, p.labels, p.pending = map[string]reg{}, dynamic, map[string]int{}, nil
		k.special = nil
	default:
		return fmt.Errorf("not understood before the body of a kernel")
	}
	return nil
}

// body reads one statement of a kernel.
func (p *parser) body(line string) (string, error) {
	if line[0] == '{' {
		p.depth++
		return line[1:], nil
	}
	if line[0] == '}' {
		p.depth--
		if p.depth == 0 {
			return line[1:], p.close()
		}
		return line[1:], nil
	}
	if m := labelLine.FindString(line); m != "" {
		name := strings.TrimSuffix(m, ":")
		if _, twice := p.labels[name]; twice {
			return "", fmt.Errorf("the label stands twice")
		}
		p.labels[name] = len(p.kernel.code)
		return line[len(m):], nil
	}
	end := strings.IndexByte(line, ';')
	if end < 0 {
		return "", fmt.Errorf("a statement without ;")
	}
	return line[end+1:], p.statement(strings.TrimSpace(line[:end]))
}

func (p *parser) statement(s string) error {
	k := p.kernel
	switch {
	case strings.HasPrefix(s, ".pragma "):
		if s != `.pragma "nounroll"` {
			return fmt.Errorf("unknown pragma")
		}
		return nil
	case strings.HasPrefix(s, ".reg "):
		return p.declare(s)
	case strings.HasPrefix(s, ".shared "):
		m := sharedVar.FindStringSubmatch(s)
		if m == nil {
			return fmt.Errorf("not understood as shared memory")
		}
		align, err1 := strconv.Atoi(m[1])
		size, err2 := strconv.Atoi(m[3])
		if err1 != nil || err2 != nil || align < 1 || align > 1024 || align&(align-1) != 0 || size > maxSharedMem {
			return fmt.Errorf("no shared memory of that size")
		}
		k.Shared = (k.Shared + align - 1) &^ (align - 1)
		p.shared[m[2]] = uint64(k.Shared)
		if k.Shared += size; k.Shared > maxSharedMem {
			return fmt.Errorf("more than %d bytes of shared memory", maxSharedMem)
		}
		return nil
	}
	return p.instruction(s)
}

// declare reads ".reg .b32 %r<12>" and ".reg .pred p, q".
func (p *parser) declare(s string) error {
	m := regLine.FindStringSubmatch(s)
	if m == nil {
		return fmt.Errorf("not understood as registers")
	}
	for _, name := range strings.Split(m[2], ",") {
		name = strings.TrimSpace(name)
		if many := manyRegs.FindStringSubmatch(name); many != nil {
			n, err := strconv.Atoi(many[2])
			if err != nil || n > maxRegisters {
				return fmt.Errorf("too many registers")
			}
			for i := range n {
				if err := p.register(many[1]+strconv.Itoa(i), widths[m[1]]); err != nil {
					return err
				}
			}
			continue
		}
		if !oneReg.MatchString(name) {
			return fmt.Errorf("no name of a register")
		}
		if err := p.register(name, widths[m[1]]); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) register(name string, bits int) error {
	if p.kernel.registers+p.kernel.predicates > maxRegisters {
		return fmt.Errorf("too many registers")
	}
	if bits == 1 {
		p.regs[name] = reg{p.kernel.predicates, 1}
		p.kernel.predicates++
		return nil
	}
	p.regs[name] = reg{p.kernel.registers, bits}
	p.kernel.registers++
	return nil
}

func (p *parser) close() error {
	k := p.kernel
	for _, j := range p.pending {
		at, ok := p.labels[j.label]
		if !ok {
			return fmt.Errorf("line %d: no label %s", j.line, j.label)
		}
		k.code[j.at].target = at
	}
	if n := len(k.code); n == 0 || k.code[n-1].kind != exit && k.code[n-1].kind != branch {
		return fmt.Errorf("kernel %s does not end in ret", k.Name)
	}
	for _, at := range p.labels {
		if at >= len(k.code) {
			return fmt.Errorf("a label of kernel %s stands behind its last instruction", k.Name)
		}
	}
	p.module.kernels[k.Name] = k
	p.module.order = append(p.module.order, k.Name)
	p.kernel = nil
	return nil
}

// operands splits at commas that stand outside of braces and brackets.
func operands(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if rest := strings.TrimSpace(s[from:]); rest != "" || len(out) > 0 {
		out = append(out, rest)
	}
	return out
}

// instruction reads "@%p1 add.s32 %r1, %r2, 7".
func (p *parser) instruction(s string) error {
	in := instr{guard: -1, line: p.line, text: p.raw, target: -1}
	if s[0] == '@' {
		guard, rest, ok := strings.Cut(s[1:], " ")
		if !ok {
			return fmt.Errorf("a guard without an instruction")
		}
		if guard[0] == '!' {
			in.not, guard = true, guard[1:]
		}
		r, known := p.regs[guard]
		if !known || r.bits != 1 {
			return fmt.Errorf("no predicate %s", guard)
		}
		in.guard, s = r.index, strings.TrimSpace(rest)
	}
	op, rest, _ := strings.Cut(strings.ReplaceAll(s, "\t", " "), " ")
	args := operands(strings.TrimSpace(rest))
	switch op {
	case "ret", "exit":
		in.kind = exit
		if len(args) != 0 {
			return fmt.Errorf("%s takes nothing", op)
		}
	case "bra", "bra.uni":
		if len(args) != 1 {
			return fmt.Errorf("%s takes a label", op)
		}
		in.kind = branch
		p.pending = append(p.pending, jump{len(p.kernel.code), args[0], p.line, s})
	case "bar.sync":
		if len(args) != 1 || args[0] != "0" {
			return fmt.Errorf("only the barrier 0 of the whole block is known")
		}
		in.kind = blockBarrier
	default:
		build, ok := builders[op]
		if !ok {
			return fmt.Errorf("unknown instruction %s", op)
		}
		c := &compiler{p: p, op: op, args: args}
		in.exec = build(c)
		if c.err != nil {
			return c.err
		}
		if c.next != len(args) {
			return fmt.Errorf("%s takes %d operands, not %d", op, c.next, len(args))
		}
	}
	p.kernel.code = append(p.kernel.code, in)
	return nil
}
