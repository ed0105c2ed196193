package stage

import (
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Case is a batch under a set of options, and an account of what a check asked for.
type Case struct {
	B    *dump.Batch
	Set  *convention.Set
	Unit float64 // unit roundoff of the computation that is judged

	// Casts says that tensors stored in 16 bits are rounded copies of what the trainer computed with: then their elements carry
	// the error of that rounding.
	Casts bool

	// Promoted says that operations on tensors that both have a 16-bit type round to it.
	Promoted bool

	// What was asked for: options, options without a value, and tensors or facts that are not there.
	Read, Unknown, Absent []string

	chain  map[string]*Prediction // predictions that stand in for tensors that were not dumped
	asking []string               // outputs being predicted, against going in circles
	Used   []string               // tensors that were predicted because they were not dumped
	errors map[string][]float64   // of inputs that are rounded copies
	inert  *inert

	entropies *entropies
	reading   *reading
}

// NewCase returns a case of which nothing has been asked.
func NewCase(b *dump.Batch, set *convention.Set, unit float64) *Case {
	return &Case{B: b, Set: set, Unit: unit, inert: &inert{}, entropies: &entropies{}, reading: &reading{}}
}

// Of returns a case of another batch and set in the arithmetic of c, of which nothing has been asked.
func (c *Case) Of(b *dump.Batch, set *convention.Set) *Case {
	return &Case{B: b, Set: set, Unit: c.Unit, Casts: c.Casts, Promoted: c.Promoted, inert: c.inert, entropies: c.entropies, reading: c.reading}
}

// OK reports whether everything that was asked for is there.
func (c *Case) OK() bool { return len(c.Unknown) == 0 && len(c.Absent) == 0 }

func note(list *[]string, name string) {
	if !slices.Contains(*list, name) {
		*list = append(*list, name)
	}
}

// lacks notes what a prediction wants and is not there: it predicts nothing.
func (c *Case) lacks(name string) *Prediction {
	note(&c.Absent, name)
	return nil
}

func (c *Case) option(name string) convention.Value {
	note(&c.Read, name)
	v := c.Set.Value(name)
	if v.Kind() == convention.Unknown || v.Kind() == convention.NotApplicable {
		note(&c.Unknown, name)
	}
	return v
}

// Enum returns the value of an option that is a word, "" if it is unknown. What does not apply is unknown, too: a check that
// asks for it has found a use for it.
func (c *Case) Enum(name string) string {
	if v := c.option(name); v.Kind() == convention.Enum {
		return v.Text()
	}
	return ""
}

// EnumOr is Enum for an option whose absence has a meaning.
func (c *Case) EnumOr(name, absent string) string {
	note(&c.Read, name)
	if v := c.Set.Value(name); v.Kind() == convention.Enum {
		return v.Text()
	}
	return absent
}

// Num returns the value of an option that is a number, NaN if it is unknown.
func (c *Case) Num(name string) float64 {
	if v := c.option(name); v.Kind() == convention.Number {
		return v.Num()
	}
	return math.NaN()
}

// NumOr is Num for an option that may be none, or may not apply: then it is absent. Unknown stays unknown.
func (c *Case) NumOr(name string, absent float64) float64 {
	note(&c.Read, name)
	switch v := c.Set.Value(name); v.Kind() {
	case convention.Number:
		return v.Num()
	case convention.None, convention.NotApplicable:
		return absent
	}
	note(&c.Unknown, name)
	return absent
}

// Default is Num for an option whose absence has a meaning: what no framework is known to set, and few know of.
func (c *Case) Default(name string, absent float64) float64 {
	note(&c.Read, name)
	if v := c.Set.Value(name); v.Kind() == convention.Number {
		return v.Num()
	}
	return absent
}

// Bool returns the value of an option that is true or false, false if it is unknown.
func (c *Case) Bool(name string) bool {
	if v := c.option(name); v.Kind() == convention.Bool {
		return v.Bool()
	}
	return false
}

// BoolOr is Bool for an option whose absence has a meaning.
func (c *Case) BoolOr(name string, absent bool) bool {
	note(&c.Read, name)
	if v := c.Set.Value(name); v.Kind() == convention.Bool {
		return v.Bool()
	}
	return absent
}

// Fact returns a number of the run, NaN if it is not known.
func (c *Case) Fact(name string) float64 {
	if x := c.FactOr(name, math.NaN()); !math.IsNaN(x) {
		return x
	}
	note(&c.Absent, name)
	return math.NaN()
}

// FactOr is Fact for a number whose absence has a meaning.
func (c *Case) FactOr(name string, absent float64) float64 {
	if v, ok := c.Set.Fact(name); ok {
		if x, ok := v.(float64); ok {
			return x
		}
	}
	return absent
}

// FactList returns a list of numbers of the run, a single number as a list of one, nil if it is not known.
func (c *Case) FactList(name string) []float64 {
	v, _ := c.Set.Fact(name)
	switch v := v.(type) {
	case float64:
		return []float64{v}
	case []any:
		var list []float64
		for _, e := range v {
			x, ok := e.(float64)
			if !ok {
				return nil
			}
			list = append(list, x)
		}
		return list
	}
	return nil
}

// Input is a tensor that a check reads. Err is the error of each element if it was predicted, nil if it was dumped: dumped
// inputs are exact as stored.
type Input struct {
	X, Err []float64
	Half   float64 // unit roundoff of the 16-bit type that it has where that decides what operations on it round to; else 0
}

// E returns the error of element i.
func (in Input) E(i int) float64 {
	if in.Err == nil {
		return 0
	}
	return in.Err[i]
}

// Has reports whether a tensor was dumped.
func (c *Case) Has(name string) bool { return c.B.Tensors[name] != nil }

// Token returns a per-token tensor; a per-row one is spread over the columns. If it was not dumped, it is predicted from
// what comes before it. X is nil if that cannot be done either.
func (c *Case) Token(name string) Input {
	if x := c.B.Token(name); x != nil {
		return Input{X: x, Err: c.rounding(name), Half: c.half(name)}
	}
	if x := c.B.Row(name); len(x) == c.B.Rows {
		in := Input{X: c.spread(x), Half: c.half(name)}
		if e := c.rounding(name); e != nil {
			in.Err = c.spread(e)
		}
		return in
	}
	in := c.predicted(name)
	if len(in.X) == c.B.Rows && c.B.Cols != 1 {
		in.X = c.spread(in.X)
		if in.Err != nil {
			in.Err = c.spread(in.Err)
		}
	}
	return in
}

// Row returns a per-row tensor, predicted if it was not dumped.
func (c *Case) Row(name string) Input {
	if x := c.B.Row(name); x != nil {
		return Input{X: x, Err: c.rounding(name)}
	}
	return c.predicted(name)
}

// half is [halfOf] where promotion decides, else 0.
func (c *Case) half(name string) float64 {
	if !c.Promoted {
		return 0
	}
	return halfOf(c.B, name)
}

// rounding returns the errors u·|x| of a tensor that is a rounded copy, nil if it is exact.
func (c *Case) rounding(name string) []float64 {
	if t := c.B.Tensors[name]; !c.Casts || t == nil || !cast(t) {
		return nil
	}
	if e := c.errors[name]; e != nil {
		return e
	}
	t := c.B.Tensors[name]
	u, eta := t.Type.Unit()
	e := make([]float64, len(t.Data))
	for i, x := range t.Data {
		e[i] = u*math.Abs(x) + eta
	}
	if c.errors == nil {
		c.errors = map[string][]float64{}
	}
	c.errors[name] = e
	return e
}

func (c *Case) spread(x []float64) []float64 {
	y := make([]float64, c.B.Rows*c.B.Cols)
	for i := range y {
		y[i] = x[i/c.B.Cols]
	}
	return y
}

// Standing returns a case of the batch and the options of c in which p stands for a tensor that was not dumped, nil if it was dumped.
func (c *Case) Standing(name string, p *Prediction) *Case {
	if c.Has(name) {
		return nil
	}
	d := c.Of(c.B, c.Set)
	d.chain = map[string]*Prediction{name: p}
	return d
}

// StandingAll is [Case.Standing] of several tensors, none of which was dumped.
func (c *Case) StandingAll(predictions map[string]*Prediction) *Case {
	d := c.Of(c.B, c.Set)
	d.chain = maps.Clone(predictions)
	return d
}

// Producer returns the check whose prediction stands for a tensor that was not dumped, nil if there is none.
func (c *Case) Producer(name string) *Check {
	for _, check := range All() {
		if check.Output != name || check.Predict == nil {
			continue
		}
		sub := c.Of(c.B, c.Set)
		if check.Applies != nil && !check.Applies(sub) {
			continue
		}
		if check.Predict(sub) != nil && sub.OK() {
			return check
		}
	}
	return nil
}

// predicted predicts a tensor that was not dumped by the first check that can.
func (c *Case) predicted(name string) Input {
	if p := c.chain[name]; p != nil {
		return Input{X: p.Want, Err: p.Bound, Half: p.Half}
	}
	if slices.Contains(c.asking, name) {
		note(&c.Absent, name)
		return Input{}
	}
	open := false // options decide what the losses or the KL of tokens are, and nothing else is missing: of those a search tries many
	for _, check := range All() {
		if check.Output != name || check.Predict == nil {
			continue
		}
		sub := &Case{B: c.B, Set: c.Set, Unit: c.Unit, Casts: c.Casts, Promoted: c.Promoted, chain: c.chain, asking: append(slices.Clone(c.asking), name), entropies: c.entropies, reading: c.reading}
		if check.Applies != nil && !check.Applies(sub) {
			continue
		}
		p := check.Predict(sub)
		if p == nil {
			if len(sub.Absent) == 0 {
				open = open || (name == "token_loss" || name == "kl") && len(sub.Unknown) > 0
				for _, o := range sub.Unknown {
					note(&c.Read, o)
					note(&c.Unknown, o)
				}
			}
			continue
		}
		for _, r := range sub.Read {
			note(&c.Read, r)
		}
		if c.chain == nil {
			c.chain = map[string]*Prediction{}
		}
		c.chain[name] = p
		note(&c.Used, name)
		return Input{X: p.Want, Err: p.Bound, Half: p.Half}
	}
	if !open {
		note(&c.Absent, name)
	}
	return Input{}
}

// Optional returns a per-token tensor only if it was dumped; X is nil otherwise, and nothing is noted.
func (c *Case) Optional(name string) Input {
	if c.B.Token(name) == nil && len(c.B.Row(name)) != c.B.Rows {
		return Input{}
	}
	return c.Token(name)
}

// Forget drops what may be large: predictions that stood in for tensors, and errors of inputs.
func (c *Case) Forget() { c.chain, c.errors = nil, nil }
