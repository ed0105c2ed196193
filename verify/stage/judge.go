package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Outcome is what judging one check on one batch gave.
type Outcome struct {
	Check   *Check
	Verdict check.Verdict // Pass, Fail, Undetermined, NotSeen or Skip (does not apply)
	Case    *Case         // what was asked for, and what was missing
	Tally   *tol.Tally    // nil where nothing was compared
	Pred    *Prediction
	Got     []float64
	Exact   int // elements that are not finite and are the same on both sides

	Arithmetic Arithmetic // under which the output was judged
	Rules      *Assertion // of a check that asserts
}

// Arithmetic is what an output is judged as: computed in a format of unit roundoff Unit from inputs that are exact as stored,
// or, if Casts, from inputs of which the file has rounded copies.
type Arithmetic struct {
	Unit     float64
	Casts    bool
	Declared bool // by the file, not recognised
}

// String names the format.
func (a Arithmetic) String() string {
	name := map[float64]string{tol.U64: "float64", tol.U32: "float32", tol.U16: "float16", tol.UB: "bfloat16"}[a.Unit]
	if a.Casts {
		name += ", inputs rounded on storing"
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

// Judge compares an output with its prediction, or asserts what must hold.
//
// The arithmetic is the declared one; else float32, or float64 where the output has more bits than a float32. A comparison that
// fails is repeated as what the stored formats make possible: an output with float64 bits may come from float32 intermediate
// results, and inputs stored in 16 bits may be rounded copies. Whether a failure is what arithmetic in 16 bits would do is for
// [Coarser] to say, after everything else has been tried.
func Judge(ch *Check, b *dump.Batch, set *convention.Set) *Outcome {
	c := NewCase(b, set, tol.U32)
	if !present(ch, c) {
		return &Outcome{Check: ch, Verdict: check.NotSeen, Case: c}
	}
	if ch.Applies != nil && !ch.Applies(c) {
		return &Outcome{Check: ch, Verdict: check.Skip, Case: c}
	}
	if ch.Assert != nil {
		return assert(ch, c)
	}
	first := firstArithmetic(ch, b)
	o := JudgeAs(ch, b, set, first)
	if o.Verdict != check.Fail {
		return o
	}
	for _, a := range fallbacks(first, b) {
		if p := JudgeAs(ch, b, set, a); p.Verdict != check.Fail {
			return p
		}
	}
	return o
}

func present(ch *Check, c *Case) bool {
	return ch.Output == "" || c.Has(ch.Output) || strings.HasPrefix(ch.Output, "scalars/")
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
	if len(casts(b)) > 0 {
		list = append(list, Arithmetic{Unit: max(first.Unit, tol.U32), Casts: true})
	}
	return list
}

// Coarser returns the outcome under the finest arithmetic of 16 bits in which a failed output could have been computed, nil if
// there is none. It is a finding, not a pass. Rounding leaves its mark on most cells: an output of which a few are wrong, or
// that has only a few, is no sign of it. A bound too wide to tell is a finding only for what lies on a grid of 16 bits.
func Coarser(o *Outcome) *Outcome {
	if o.Verdict != check.Fail || o.Check.Predict == nil || o.Tally.N < fewCells || 4*o.Tally.Failed < o.nonzero() {
		return nil
	}
	onGrid := Grid(o.Got) > tol.U32
	for _, u := range []float64{tol.U16, tol.UB} {
		for _, cast := range []bool{false, true} {
			if u <= o.Arithmetic.Unit || cast && len(casts(o.Case.B)) == 0 {
				continue
			}
			if p := JudgeAs(o.Check, o.Case.B, o.Case.Set, Arithmetic{Unit: u, Casts: cast}); p.Verdict == check.Pass || onGrid && p.Verdict == check.Undetermined && p.Tally != nil {
				return p
			}
		}
	}
	return nil
}

// nonzero returns the number of compared elements, those left out that are 0 on both sides: cells that nothing was computed for.
func (o *Outcome) nonzero() int {
	n := o.Tally.N
	for i, want := range o.Pred.Want {
		if want == 0 && o.Got[i] == 0 && (o.Pred.Judge == nil || o.Pred.Judge[i]) && (o.Pred.Judge != nil || len(o.Got) != len(o.Case.B.Mask) || o.Case.B.Mask[i]) {
			n--
		}
	}
	return n
}

// JudgeAs compares an output with its prediction as computed in arithmetic a.
func JudgeAs(ch *Check, b *dump.Batch, set *convention.Set, a Arithmetic) *Outcome {
	return judgeAs(ch, b, set, a, false)
}

func judgeAs(ch *Check, b *dump.Batch, set *convention.Set, a Arithmetic, coarse bool) *Outcome {
	c := NewCase(b, set, a.Unit)
	c.Casts = a.Casts
	p := ch.Predict(c)
	o := &Outcome{Check: ch, Verdict: check.Undetermined, Case: c, Pred: p, Arithmetic: a}
	if !c.OK() {
		return o
	}
	if p == nil {
		o.Verdict = check.Skip
		return o
	}
	if a.Casts && len(c.errors) == 0 { // it asks for no [Input]
		p.Bound = addSpread(ch, c, p)
	}
	o.compare(p, coarse)
	return o
}

// Compare judges the output of ch in b as if it should be p: a prediction made otherwise than by ch itself. Its tally has no
// resolution.
func Compare(ch *Check, c *Case, p *Prediction, a Arithmetic) *Outcome {
	o := &Outcome{Check: ch, Verdict: check.Undetermined, Case: c, Pred: p, Arithmetic: a}
	if p != nil {
		o.compare(p, true)
	}
	return o
}

// compare fills in the tally and the verdict; a coarse tally has no resolution, and takes less time.
func (o *Outcome) compare(p *Prediction, coarse bool) {
	b := o.Case.B
	got, unit, eta, layout := p.Got, p.GotUnit, tol.Eta32, dump.Free
	if t := b.Tensors[o.Check.Output]; got == nil && t != nil {
		got, layout = t.Data, t.Layout
		unit, eta = t.Type.Unit()
	}
	slack := 1 + 8*max(o.Arithmetic.Unit, unit, o.Case.castUnit()) // second order; and what is stored is as far from ref as the bound says
	o.Got = got
	if len(got) != len(p.Want) || len(p.Bound) != len(p.Want) {
		panic("stage: " + o.Check.ID + " predicts another number of elements than its output has")
	}
	judged := func(i int) bool {
		switch {
		case p.Judge != nil:
			return p.Judge[i]
		case layout == dump.PerToken && len(b.Mask) == len(got):
			return b.Mask[i]
		}
		return true
	}
	scale := p.Scale
	if scale == 0 {
		scale = rms(p.Want, judged)
	}
	t := &tol.Tally{Scale: max(scale, 0x1p-100), Coarse: coarse}
	for i, want := range p.Want {
		if !judged(i) {
			continue
		}
		ref, out := want, got[i]
		bound := (p.Bound[i] + tol.Storage(ref, unit, eta)) * slack
		if p.Alt != nil && !math.IsNaN(p.Alt[i]) && math.Abs(out-p.Alt[i]) < math.Abs(out-ref) {
			ref = p.Alt[i]
			bound = max(bound, (p.Bound[i]+tol.Storage(ref, unit, eta))*slack)
		}
		switch {
		case same(ref, out):
			o.Exact++
		case math.IsNaN(ref) || math.IsInf(ref, 0):
			t.Add(i, ref, math.NaN(), 0)
			t.Bad = ""
			t.Worst = tol.Element{Index: i, Ref: ref, Out: out, Err: math.Inf(1), Ratio: math.Inf(1)}
		default:
			t.Add(i, ref, out, bound)
		}
	}
	o.Tally = t
	switch {
	case t.Failed > 0:
		o.Verdict = check.Fail
	case t.Bad != "":
		o.Verdict = check.Undetermined
	case t.N+o.Exact == 0 || float64(t.Undetermined) > 0.05*float64(t.N):
		o.Verdict = check.Undetermined
	default:
		o.Verdict = check.Pass
	}
}

// same reports whether both are NaN or the same infinity: the convention says that the number is none.
func same(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.IsInf(a, 0) && a == b
}

func rms(x []float64, judged func(int) bool) float64 {
	var sum, n float64
	for i, v := range x {
		if judged(i) && !math.IsNaN(v) && !math.IsInf(v, 0) {
			sum += float64(v * v)
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return math.Sqrt(sum / n)
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

// fewCells is the number of cells below which 16-bit arithmetic is not recognised by its errors.
const fewCells = 16

// addSpread returns the bound of p and what rounding those inputs on storing can add to it that a check does not ask for as
// an [Input], whose errors it knows: four times the largest difference over runs with the input moved by its rounding unit
// (tolerances 5.20, the empirical allowance).
func addSpread(ch *Check, c *Case, p *Prediction) []float64 {
	r := rand.New(rand.NewPCG(uint64(len(p.Want)), 1))
	random := func(x float64) float64 { return x * float64(2*r.IntN(2)-1) }
	spread := make([]float64, len(p.Want))
	for _, name := range casts(c.B) {
		t := c.B.Tensors[name]
		u, _ := t.Type.Unit()
		if name == ch.Output || u == 0 || c.errors[name] != nil {
			continue
		}
		most := make([]float64, len(p.Want))
		for _, by := range []func(x float64) float64{
			func(x float64) float64 { return x }, func(x float64) float64 { return -x },
			math.Abs, func(x float64) float64 { return -math.Abs(x) },
			random, random, random, random,
		} {
			moved := make([]float64, len(t.Data))
			for i, x := range t.Data {
				moved[i] = x + float64(u*by(x))
			}
			q := ch.Predict(c.Of(c.B.With(name, moved), c.Set))
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

func assert(ch *Check, c *Case) *Outcome {
	o := &Outcome{Check: ch, Case: c}
	a := ch.Assert(c)
	o.Rules = a
	switch {
	case !c.OK():
		o.Verdict = check.Undetermined
	case a == nil:
		o.Verdict = check.Skip
	case len(a.Violations) > 0 && a.Warning:
		o.Verdict = check.Warn
	case len(a.Violations) > 0:
		o.Verdict = check.Fail
	case a.Checked == 0:
		o.Verdict = check.NotSeen
	default:
		o.Verdict = check.Pass
	}
	return o
}

// Lacking says in words what an undetermined outcome lacks, "" if it lacks nothing.
func (o *Outcome) Lacking() string {
	var parts []string
	if len(o.Case.Unknown) > 0 {
		parts = append(parts, "unknown option "+strings.Join(o.Case.Unknown, ", "))
	}
	if len(o.Case.Absent) > 0 {
		text := "not in the dump: " + strings.Join(o.Case.Absent, ", ")
		if missing := o.Case.B.Missing; len(missing) > 0 && strings.Contains(strings.Join(o.Case.Absent, ""), " ") && !strings.Contains(text, missing[0]) {
			text += "; missing: " + strings.Join(missing[:min(3, len(missing))], ", ") // more than a tensor is not there
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 && o.Tally != nil && o.Tally.Undetermined > 0 {
		parts = append(parts, fmt.Sprintf("the bound of %d of %d elements is too wide to tell", o.Tally.Undetermined, o.Tally.N))
	}
	return strings.Join(parts, "; ")
}
