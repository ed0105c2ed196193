package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

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
	Exact   int  // elements that are not finite and are the same on both sides
	ToLast  int  // 0, or where every element that has a bound too wide to tell agrees to the last place of the type in which it is stored what they count for, see [LeastToLast]
	Few     bool // of [Coarser]: no more cells than rounding in 16 bits could put wrong by chance

	Arithmetic Arithmetic // under which the output was judged
	Rules      *Assertion // of a check that asserts

	unit, eta, slack float64 // of the output as stored, and of second order: see Limit
}

// Limit returns the bound of element i: what the arithmetic and the storing of a correct implementation can be off.
func (o *Outcome) Limit(i int) float64 {
	return (o.Pred.Bound[i] + tol.Storage(o.Pred.Want[i], o.unit, o.eta)) * o.slack
}

// Half reports whether the bounds of an outcome are those of numbers rounded to 16 bits on storing.
func (o *Outcome) Half() bool { return o.Arithmetic.Casts || max(o.unit, o.Arithmetic.Unit) > tol.U32 }

// Judge compares an output with its prediction, or asserts what must hold.
//
// The arithmetic is the declared one; else float32, or float64 where the output has more bits than a float32. A comparison that
// fails is repeated as what the stored formats make possible: an output with float64 bits may come from float32 intermediate
// results, and inputs stored in 16 bits may be rounded copies. Whether a failure is what arithmetic in 16 bits would do is for
// [Coarser] to say, after everything else has been tried. An output that is declared to be computed in 16 bits, and whose bounds are too
// wide there, is judged in the finer ones: what fits them passes.
//
// A comparison that fails is undetermined where something was declared that changes these numbers and that no option expresses.
func Judge(ch *Check, b *dump.Batch, set *convention.Set) *Outcome {
	o := judge(ch, b, set)
	if text := set.Beyond(ch.Stage); text != "" && o.Verdict == check.Fail && ch.Assert == nil {
		o.Verdict = check.Undetermined
		note(&o.Case.Absent, BeyondOptions(text))
	}
	return o
}

// BeyondOptions says what a case lacks where [convention.Set.Beyond] is text.
func BeyondOptions(text string) string { return "an option for what is declared (" + text + ")" }

func judge(ch *Check, b *dump.Batch, set *convention.Set) *Outcome {
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
	arithmetics := Arithmetics(ch, b)
	o := JudgeAs(ch, b, set, arithmetics[0])
	if o.Verdict == check.Undetermined && o.Tally != nil {
		if p := finer(ch, b, set, arithmetics[0]); p != nil {
			return p
		}
	}
	if o.Verdict != check.Fail {
		return o
	}
	for _, a := range arithmetics[1:] {
		p := JudgeAs(ch, b, set, a)
		if p.Verdict != check.Fail {
			return p
		}
		if a.Casts || a.Promoted {
			o = p // what it fails by is what rounding on storing does not excuse
		}
	}
	if o.Case.hidesValueTerm(ch) {
		note(&c.Absent, "value_loss")
		return &Outcome{Check: ch, Verdict: check.Undetermined, Case: c}
	}
	return o
}

// finer judges an output whose bounds are too wide to tell where 16 bits were declared as what it may have been computed in besides: in
// float32 from inputs that are exact as stored, with operations rounded where promotion says so, or from rounded copies. These bounds are
// narrower, and mixed precision runs most of a loss in them, so that a pass is one under the declaration, too. A failure there is none:
// then nil is returned.
func finer(ch *Check, b *dump.Batch, set *convention.Set, declared Arithmetic) *Outcome {
	if !declared.Declared || declared.Unit <= tol.U32 {
		return nil
	}
	single := Arithmetic{Unit: tol.U32}
	for _, a := range append([]Arithmetic{single}, fallbacks(single, b)...) {
		if o := JudgeAs(ch, b, set, a); o.Verdict == check.Pass {
			return o
		}
	}
	return nil
}

func present(ch *Check, c *Case) bool {
	return ch.Output == "" || c.Has(ch.Output) || strings.HasPrefix(ch.Output, "scalars/")
}

// JudgeAs compares an output with its prediction as computed in arithmetic a.
func JudgeAs(ch *Check, b *dump.Batch, set *convention.Set, a Arithmetic) *Outcome {
	return judgeAs(ch, b, set, a, false)
}

func judgeAs(ch *Check, b *dump.Batch, set *convention.Set, a Arithmetic, coarse bool) *Outcome {
	o := predictAs(ch, b, set, a, &reading{})
	switch {
	case !o.Case.OK():
		return o
	case o.Pred == nil:
		o.Verdict = check.Skip
		return o
	}
	if o.compare(o.Pred, coarse); o.Verdict == check.Undetermined {
		if read := o.read(coarse); read != nil {
			return read
		}
	}
	return o
}

// predictAs is an outcome that has not been compared.
func predictAs(ch *Check, b *dump.Batch, set *convention.Set, a Arithmetic, as *reading) *Outcome {
	c := NewCase(b, set, a.Unit)
	c.Casts, c.Promoted, c.reading = a.Casts, a.Promoted, as
	p := ch.Predict(c)
	if p != nil && c.OK() && a.Casts && !c.Asks() {
		p.Bound = Spread(ch.Output, ch.Predict, c, p)
	}
	return &Outcome{Check: ch, Verdict: check.Undetermined, Case: c, Pred: p, Arithmetic: a}
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
	o.unit, o.eta, o.slack = unit, eta, slack
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
	toLast, weight := 0, 0
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
		if p.Near != nil {
			if at, within, ok := p.Near(i, out); ok {
				ref, bound = at, within+tol.Storage(at, unit, eta)
			}
		}
		switch {
		case same(ref, out), ref == 0 && out == 0 && bound > tol.Void*t.Scale: // a 0 that is due is no nearer by any bound
			o.Exact++
		case math.IsNaN(ref) || math.IsInf(ref, 0):
			t.Add(i, ref, math.NaN(), 0)
			t.Bad = ""
			t.Worst = tol.Element{Index: i, Ref: ref, Out: out, Err: math.Inf(1), Ratio: math.Inf(1)}
		default:
			size := max(math.Abs(out), math.Abs(ref))
			place, counts := places32*tol.U32*size, 1
			switch {
			case unit > tol.U32:
				place = lastPlace(size, unit)
			case size > 0:
				counts = int(min(LeastToLast, math.Log2(bound/place)/2))
			}
			if t.Add(i, ref, out, bound); bound > tol.Void*max(math.Abs(ref), t.Scale) && math.Abs(out-ref) <= place {
				toLast++
				weight += max(counts, 1)
			}
		}
	}
	if o.Tally = t; t.Undetermined > 0 && toLast == t.Undetermined {
		o.ToLast = weight
	}
	switch {
	case t.Failed > 0:
		o.Verdict = check.Fail
	case t.Bad != "":
		o.Verdict = check.Undetermined
	case t.N+o.Exact == 0 && !slices.Contains(b.Mask, true):
		o.Verdict = check.NotSeen // a step without a token, as where all responses were cut off and are masked
	case max(t.N, o.ToLast) >= LeastToLast && o.ToLast > 0:
		o.Verdict = check.Pass
	case t.N+o.Exact == 0 || float64(t.Undetermined) > 0.05*float64(t.N):
		o.Verdict = check.Undetermined
	default:
		o.Verdict = check.Pass
	}
}

// LeastToLast is the least number of elements that tell by agreeing to the last place of a 16-bit type, whatever their bounds. A bound that tells nothing is wider
// than [tol.Void] of an element, and the last place is at most 2⁻⁷ of it: other numbers within the bound are there by chance in all of so many elements no oftener
// than in 4⁻⁸ of all cases where bounds are four times as wide, and what differs by less than the last place is not seen in numbers of that type at all. An
// element of float32 that agrees within [places32] roundings counts for as many as the same chance is of: half the octaves that its bound is wider.
const LeastToLast = 8

// places32 are the roundings of float32 that the last places of a sum of some hundred numbers are off by.
const places32 = 64

// lastPlace is the distance of a number x > 0 of a type with unit roundoff u to its neighbour.
func lastPlace(x, u float64) float64 {
	_, e := math.Frexp(x)
	return math.Ldexp(u, e)
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
		var open []string
		for _, name := range o.Case.Unknown {
			if opt, err := convention.Find(name); err == nil && opt.Type == convention.EnumType && len(o.Case.Unknown) == 1 {
				name += " (" + opt.Legal() + ")"
			}
			open = append(open, name)
		}
		parts = append(parts, "not declared: "+strings.Join(open, ", "))
	}
	if len(o.Case.Absent) > 0 {
		text := "not in the dump: " + strings.Join(o.Case.Absent, ", ")
		if missing := o.Case.B.Missing; len(missing) > 0 && strings.Contains(strings.Join(o.Case.Absent, ""), " ") && !strings.Contains(text, missing[0]) {
			text += "; missing: " + strings.Join(missing[:min(3, len(missing))], ", ") // more than a tensor is not there
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 && o.Tally != nil && o.Tally.Undetermined > 0 {
		text := fmt.Sprintf("the bound of %d of %d elements is too wide to tell", o.Tally.Undetermined, o.Tally.N)
		if o.Arithmetic.Declared && o.Arithmetic.Unit > tol.U32 {
			text += " in " + o.Arithmetic.String() + ", which compute_dtype declares: a step computed in float32 tells"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}
