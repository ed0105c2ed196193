package op

import "unsafe"

// margin is how many bytes beside an operand are watched where no page can be closed.
const margin = 512

const pattern = 0xA5

// Memory gives out operands that stand against pages which cannot be touched, and watches the bytes on their other side.
type Memory struct {
	regions map[int][]*region // that are free, by size
	used    []*region
}

// region is memory between two closed pages, of which a slice is given out.
type region struct {
	all    []byte // with the closed pages
	open   []byte
	lo, hi int // what was given out of open
}

// Allocate returns n elements that end where memory ends, or begin where it begins. What they hold is undefined.
func Allocate[T Number](m *Memory, n int, back bool) []T {
	var zero T
	size := int(unsafe.Sizeof(zero))
	r := m.get(n*size + margin)
	r.lo = 0
	if back {
		r.lo = len(r.open) - n*size
	}
	r.hi = r.lo + n*size
	for i := range r.beside() {
		*r.watched(i) = pattern
	}
	if n == 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&r.open[r.lo])), n)
}

// beside is the number of watched bytes.
func (r *region) beside() int { return min(2*margin, len(r.open)-(r.hi-r.lo)) }

// watched is byte i of those beside what was given out.
func (r *region) watched(i int) *byte {
	if before := min(margin, r.lo); i < before {
		return &r.open[r.lo-1-i]
	} else if at := r.hi + i - before; at < len(r.open) {
		return &r.open[at]
	}
	return new(byte(pattern))
}

// broken reports whether a watched byte has changed.
func (m *Memory) broken() bool {
	for _, r := range m.used {
		for i := range r.beside() {
			if *r.watched(i) != pattern {
				return true
			}
		}
	}
	return false
}

func (m *Memory) get(bytes int) *region {
	size := 1 << 12
	for size < bytes {
		size *= 2
	}
	var r *region
	if free := m.regions[size]; len(free) > 0 {
		r = free[len(free)-1]
		m.regions[size] = free[:len(free)-1]
	} else {
		r = newRegion(size)
	}
	m.used = append(m.used, r)
	return r
}

// reset takes all operands back.
func (m *Memory) reset() {
	if m.regions == nil {
		m.regions = map[int][]*region{}
	}
	for _, r := range m.used {
		m.regions[len(r.open)] = append(m.regions[len(r.open)], r)
	}
	m.used = m.used[:0]
}

// Free returns the memory to the operating system. What was given out must not be used any more.
func (m *Memory) Free() {
	m.reset()
	for _, free := range m.regions {
		for _, r := range free {
			r.free()
		}
	}
	m.regions = nil
}
