package op

import (
	"fmt"
	"math"

	"plumbline/verify/tol"
)

// Trial is the run of one case: its operands and what was found.
type Trial struct {
	memory   *Memory
	contract Contract
	back     bool // operands end at a page that cannot be touched; else they begin after one
	poison   bool // which of two values fills what must not be read
	checks   []func()
	tally    tol.Tally
	exact    int
	reason   string
}

// Fail notes a failure; the first is kept.
func (t *Trial) Fail(format string, args ...any) {
	if t.reason == "" {
		t.reason = fmt.Sprintf(format, args...)
	}
}

func (t *Trial) checkMemory() {
	for _, check := range t.checks {
		check()
	}
	if t.memory.broken() {
		t.Fail("memory beside an operand was written")
	}
}

// Number is the element type of an operand.
type Number interface {
	~int8 | ~int16 | ~int32 | ~float32 | ~float64
}

// Matrix is a row-major operand [Rows, Cols] whose rows start LD elements apart.
type Matrix[T Number] struct {
	Data           []T
	Rows, Cols, LD int
}

// At returns an element.
func (m *Matrix[T]) At(i, j int) T { return m.Data[i*m.LD+j] }

// poisoned is what stands where nothing may be read: NaN, or for integers one of two values, so that a read changes a result.
func poisoned[T Number](first bool) T {
	var v T
	switch p := any(&v).(type) {
	case *float32:
		*p = float32(math.NaN())
	case *float64:
		*p = math.NaN()
	case *int8:
		if *p = 0x7f; first {
			*p = -0x7f
		}
	case *int16:
		if *p = 0x7f7f; first {
			*p = -0x7f7f
		}
	case *int32:
		if *p = 0x7f7f7f7f; first {
			*p = -0x7f7f7f7f
		}
	}
	return v
}

func same[T Number](a, b T) bool { return a == b && bitsOf(a) == bitsOf(b) || a != a && b != b }

func bitsOf[T Number](v T) uint64 { // apart only for zeros
	return math.Float64bits(float64(v))
}

// alloc returns a matrix full of poison. The slice ends with the last element of the last row.
func alloc[T Number](t *Trial, rows, cols, ld int) Matrix[T] {
	n := 0
	if rows > 0 && cols > 0 {
		n = (rows-1)*ld + cols
	}
	m := Matrix[T]{Allocate[T](t.memory, n, t.back), rows, cols, ld}
	for i := range m.Data {
		m.Data[i] = poisoned[T](t.poison)
	}
	return m
}

// Input returns a matrix whose elements value gives. It must be unchanged when the case ends.
func Input[T Number](t *Trial, rows, cols, ld int, value func(i int) T) Matrix[T] {
	m := alloc[T](t, rows, cols, ld)
	for i := range rows {
		for j := range cols {
			m.Data[i*ld+j] = value(i*cols + j)
		}
	}
	before := append([]T(nil), m.Data...)
	t.checks = append(t.checks, func() {
		for i, v := range m.Data {
			if !same(v, before[i]) {
				t.Fail("an input was written: element %d was %v and is %v", i, before[i], v)
				return
			}
		}
	})
	return m
}

// Output returns a matrix of NaN, of integers of poison. What lies between its rows must be unchanged when the case ends.
func Output[T Number](t *Trial, rows, cols, ld int) Matrix[T] {
	m := alloc[T](t, rows, cols, ld)
	t.checks = append(t.checks, func() {
		for i, v := range m.Data {
			if i%max(ld, 1) >= cols && !same(v, poisoned[T](t.poison)) {
				t.Fail("the output was written between its rows, at element %d", i)
				return
			}
		}
	})
	return m
}

// Equal demands the same bits; a NaN equals any NaN.
func Equal[T Number](t *Trial, what string, got, want T, i, j int) {
	t.exact++
	if !same(got, want) {
		t.Fail("%s[%d,%d] is %v, not %v, bit by bit", what, i, j, got, want)
	}
}

// Within demands |got − want| ≤ bound. Where the reference is no finite number, got must be the same infinity or NaN too.
func (t *Trial) Within(what string, got, want, bound float64, i, j int) {
	if want-want != 0 {
		Equal(t, what, got, want, i, j)
		return
	}
	if t.tally.Scale == 0 {
		t.tally.Scale = math.Abs(want) // of the first element; what is printed of it is the resolution
	}
	t.tally.Add(t.tally.N, want, got, bound)
	if !(math.Abs(got-want) <= bound) {
		t.Fail("%s[%d,%d] is %.9g, not %.9g: the error %.3g is %.3g of the bound", what, i, j, got, want, math.Abs(got-want), math.Abs(got-want)/bound)
	}
}
