package golden

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// call reads the options and inputs of an entry. The first that does not fit is kept, and everything read after it is
// empty: what is computed from it must ask ok first, since the reference panics on lengths that do not fit.
type call struct {
	e       *Entry
	given   *Entry          // as it was read, where e has inputs moved by a rounding
	err     error           // the entry is malformed
	unknown string          // why the reference has no answer
	used    map[string]bool // options that were read
}

// ok reports whether everything that was read fits.
func (c *call) ok() bool { return c.err == nil && c.unknown == "" }

// malformed notes what is wrong with the entry.
func (c *call) malformed(msg string, args ...any) {
	if c.ok() {
		c.err = format.Malformed(c.e.File, place(c.e), msg, args...)
	}
}

// undetermined notes what the reference does not know.
func (c *call) undetermined(msg string, args ...any) {
	if c.ok() {
		c.unknown = fmt.Sprintf(msg, args...)
	}
}

// unread returns an option that no one has read: it may mean something that the reference does not know.
func (c *call) unread() string {
	var left []string
	for key := range c.e.Options {
		if !c.used[key] {
			left = append(left, short(key))
		}
	}
	slices.Sort(left)
	return strings.Join(left[:min(len(left), 5)], ", ")
}

// ignore marks options that change nothing in what is compared.
func (c *call) ignore(keys ...string) {
	for _, key := range keys {
		c.used[key] = true
	}
}

// has reports whether the entry has that input.
func (c *call) has(name string) bool { return c.e.In[name] != nil }

// tensor returns an input that is a tensor with elements.
func (c *call) tensor(name string) *Value {
	v := c.e.In[name]
	switch {
	case v == nil:
		c.malformed("input %s is missing", name)
	case v.Tensor == "":
		c.malformed("input %s is no tensor", name)
	case len(v.Data) == 0:
		c.malformed("input %s has shape %v, which has no elements", name, v.Shape)
	default:
		return v
	}
	return new(Value)
}

// grid returns an input that is a matrix.
func (c *call) grid(name string) (x []float64, rows, cols int) {
	v := c.tensor(name)
	if v.Data == nil {
		return nil, 0, 0
	}
	if len(v.Shape) != 2 {
		c.malformed("input %s has shape %v, want a matrix", name, v.Shape)
		return nil, 0, 0
	}
	return v.Data, v.Shape[0], v.Shape[1]
}

// shaped returns an input of the given shape.
func (c *call) shaped(name string, shape ...int) []float64 {
	v := c.tensor(name)
	if v.Data != nil && !slices.Equal(v.Shape, shape) {
		c.malformed("input %s has shape %v, want %v", name, v.Shape, shape)
	}
	return v.Data
}

// mask returns an input of the given shape that holds 0 and 1.
func (c *call) mask(name string, shape ...int) []bool {
	x := c.shaped(name, shape...)
	m := make([]bool, len(x))
	for i, v := range x {
		if v != 0 && v != 1 {
			c.malformed("input %s: element %d is %v, want 0 or 1", name, i, v)
			break
		}
		m[i] = v == 1
	}
	return m
}

// ints returns an input of the given shape that holds integers from lo to hi−1.
func (c *call) ints(name string, lo, hi int, shape ...int) []int {
	x := c.shaped(name, shape...)
	n := make([]int, len(x))
	for i, v := range x {
		if !(v >= float64(lo) && v < float64(hi)) || v != math.Trunc(v) {
			c.malformed("input %s: element %d is %v, want an integer from %d to %d", name, i, v, lo, hi-1)
			break
		}
		n[i] = int(v)
	}
	return n
}

// scalar returns an input that is one number.
func (c *call) scalar(name string) float64 {
	v := c.e.In[name]
	switch {
	case v == nil:
		c.malformed("input %s is missing", name)
	case len(v.Data) != 1 || len(v.Shape) > 0:
		c.malformed("input %s is no number", name)
	default:
		return v.Data[0]
	}
	return 0
}

// size returns an input that is a whole number of at least 1 and divides n.
func (c *call) size(name string, n int) int {
	v := c.scalar(name)
	if !(v >= 1 && v <= float64(n)) || v != math.Trunc(v) || n%int(v) != 0 {
		c.malformed("input %s is %v, want a divisor of the %d rows", name, v, n)
		return 1
	}
	return int(v)
}

// option returns an option of any type, nil for null; an absent one is malformed.
func (c *call) option(key string) any {
	c.used[key] = true
	o, ok := c.e.Options[key]
	if !ok {
		c.malformed("option %s is missing", key)
	}
	return o
}

// flag returns a boolean option.
func (c *call) flag(key string) bool {
	b, ok := c.option(key).(bool)
	if !ok {
		c.malformed("option %s is no boolean", key)
	}
	return b
}

// flagOr is flag for an option that may be absent or null.
func (c *call) flagOr(key string, def bool) bool {
	if c.used[key] = true; c.e.Options[key] == nil {
		return def
	}
	return c.flag(key)
}

// text returns a string option.
func (c *call) text(key string) string {
	s, ok := c.option(key).(string)
	if !ok {
		c.malformed("option %s is no string", key)
	}
	return s
}

// num returns a numeric option and whether it is not null.
func (c *call) num(key string) (x float64, on bool) {
	o := c.option(key)
	if o == nil {
		return 0, false
	}
	x, ok := number(o)
	if _, flag := o.(bool); !ok || flag {
		c.malformed("option %s is no number", key)
	}
	return x, true
}

// value is num for an option that must not be null.
func (c *call) value(key string) float64 {
	x, on := c.num(key)
	if !on {
		c.malformed("option %s is null, want a number", key)
	}
	return x
}

// numOr is num for an option that may be absent or null.
func (c *call) numOr(key string, def float64) float64 {
	if c.used[key] = true; c.e.Options[key] == nil {
		return def
	}
	x, _ := c.num(key)
	return x
}

// bounds returns an option that is two numbers in order, and whether it is not null.
func (c *call) bounds(key string) (lo, hi float64, on bool) {
	o := c.option(key)
	if o == nil {
		return 0, 0, false
	}
	list, isList := o.([]any)
	x := numbers(o)
	if !isList || len(list) != 2 || len(x) != 2 || !(x[0] <= x[1]) {
		c.malformed("option %s is not two numbers in order", key)
		return 0, 0, false
	}
	return x[0], x[1], true
}

// within notes an option outside its range.
func (c *call) within(key string, x float64, ok bool, want string) {
	if !ok {
		c.malformed("option %s is %v, want %s", key, x, want)
	}
}
