package stage

import (
	"math"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Arithmetic is what an output is judged as: computed in a format of unit roundoff Unit from inputs that are exact as stored,
// or, if Casts, from inputs of which the file has rounded copies.
type Arithmetic struct {
	Unit     float64
	Casts    bool
	Promoted bool // operations on tensors that both have a 16-bit type round to it
	Declared bool // by the file, not recognised
}

// String names the format.
func (a Arithmetic) String() string {
	name := map[float64]string{tol.U64: "float64", tol.U32: "float32", tol.U16: "float16", tol.UB: "bfloat16"}[a.Unit]
	if a.Casts {
		name += ", inputs rounded on storing"
	}
	if a.Promoted {
		name += ", and 16 bits where both operands have them"
	}
	return name
}

var units = map[string]float64{"float64": tol.U64, "fp64": tol.U64, "float32": tol.U32, "fp32": tol.U32, "float16": tol.U16, "fp16": tol.U16,
	"half": tol.U16, "bfloat16": tol.UB, "bf16": tol.UB}

// UnitOf returns the unit roundoff of a format by its name in a dump: float32, bf16, …
func UnitOf(name string) (u float64, ok bool) {
	u, ok = units[name]
	return u, ok
}

// Grid returns the unit roundoff of the coarsest of float64, float32, float16 and bfloat16 that holds every element of x
// exactly; 0 if no element tells, being 0, not finite or of few bits.
func Grid(x []float64) float64 {
	var or uint64
	telling := 0
	for _, v := range x {
		if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		or |= math.Float64bits(v)
		telling++
	}
	mantissa := or & (1<<52 - 1)
	switch {
	case mantissa&(1<<29-1) != 0:
		return tol.U64
	case mantissa&(1<<42-1) != 0:
		return tol.U32
	case telling < 8 || mantissa == 0:
		return 0
	case mantissa&(1<<45-1) != 0:
		return tol.U16
	}
	return tol.UB
}

// Arithmetics returns what the output of ch in b is judged as: the first one decides unless it fails, then what the stored
// formats make possible, each with wider bounds than the one before.
func Arithmetics(ch *Check, b *dump.Batch) []Arithmetic {
	first := firstArithmetic(ch, b)
	return append([]Arithmetic{first}, fallbacks(first, b)...)
}

func firstArithmetic(ch *Check, b *dump.Batch) Arithmetic {
	if u, ok := units[b.Meta.ComputeDType]; ok {
		t := b.Tensors[ch.Output]
		if u == tol.U64 && (ch.Stage == convention.Reward || ch.Stage == convention.Advantage) && t != nil && Grid(t.Data) == tol.U32 {
			u = tol.U32 // what becomes of rewards before they meet log-probs has a type of its own
		}
		return Arithmetic{Unit: u, Declared: true}
	}
	if t := b.Tensors[ch.Output]; t != nil && t.Type == format.F64 && Grid(t.Data) == tol.U64 {
		return Arithmetic{Unit: tol.U64}
	}
	return Arithmetic{Unit: tol.U32}
}

// fallbacks returns the arithmetics that the stored formats suggest where the first one does not fit.
func fallbacks(first Arithmetic, b *dump.Batch) []Arithmetic {
	var list []Arithmetic
	if first.Unit == tol.U64 && !first.Declared {
		list = append(list, Arithmetic{Unit: tol.U32})
	}
	if first.Unit <= tol.U32 && inHalf(b) {
		list = append(list, Arithmetic{Unit: max(first.Unit, tol.U32), Promoted: true})
	}
	if len(casts(b)) > 0 {
		list = append(list, Arithmetic{Unit: max(first.Unit, tol.U32), Casts: true})
	}
	return list
}

// casts returns the tensors of b of which the file may hold rounded copies: those stored in 16 bits, and those it says so of.
func casts(b *dump.Batch) []string {
	var names []string
	for _, name := range b.Names() {
		if cast(b.Tensors[name]) {
			names = append(names, name)
		}
	}
	return names
}

// cast reports whether the file may hold a rounded copy.
func cast(t *dump.Tensor) bool {
	return t.Casts || t.Type == format.BF16 || t.Type == format.F16
}

// castUnit is the coarsest unit roundoff of the rounded copies that the case was asked for, 0 if there are none.
func (c *Case) castUnit() (u float64) {
	for name := range c.errors {
		v, _ := c.B.Tensors[name].Type.Unit()
		u = max(u, v)
	}
	return u
}

// Asks reports whether a prediction for c has asked for inputs that are rounded copies, so that its bound has their errors.
func (c *Case) Asks() bool { return len(c.errors) > 0 }
