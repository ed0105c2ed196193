package stage

import (
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
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

// Spread returns the bound of p, which predict gave for c, and what rounding those inputs on storing can add to it that predict
// does not ask for as an [Input], whose errors it knows: four times the largest difference over runs with the input moved by its
// rounding unit (tolerances 5.20, the empirical allowance).
func Spread(output string, predict func(*Case) *Prediction, c *Case, p *Prediction) []float64 {
	r := rand.New(rand.NewPCG(uint64(len(p.Want)), 1))
	random := func(x float64) float64 { return x * float64(2*r.IntN(2)-1) }
	spread := make([]float64, len(p.Want))
	for _, name := range casts(c.B) {
		t := c.B.Tensors[name]
		u, _ := t.Type.Unit()
		if name == output || u == 0 || c.errors[name] != nil {
			continue
		}
		most := make([]float64, len(p.Want))
		for run, by := range []func(x float64) float64{
			random, func(x float64) float64 { return x }, func(x float64) float64 { return -x },
			math.Abs, func(x float64) float64 { return -math.Abs(x) },
			random, random, random,
		} {
			if run == 2 && !slices.ContainsFunc(most, func(d float64) bool { return d != 0 }) {
				break // predict does not read it
			}
			moved := make([]float64, len(t.Data))
			for i, x := range t.Data {
				moved[i] = x + float64(u*by(x))
			}
			q := predict(c.Of(c.B.With(name, moved), c.Set))
			if q == nil || len(q.Want) != len(p.Want) {
				continue
			}
			for i, w := range q.Want {
				if d := math.Abs(w - p.Want[i]); d > most[i] {
					most[i] = d
				}
			}
		}
		for i, d := range most {
			spread[i] += d
		}
	}
	bound := slices.Clone(p.Bound)
	for i, s := range spread {
		bound[i] += 4 * s
	}
	return bound
}

// Asks reports whether a prediction for c has asked for inputs that are rounded copies, so that its bound has their errors.
func (c *Case) Asks() bool { return len(c.errors) > 0 }
