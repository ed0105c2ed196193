package ad

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// A Func builds a tensor from the inputs x on their tape, which x[0].Tape()
// returns. It must be a function of x alone: it is called again and again.
type Func func(x []*Var) *Var

// A Tensor is the shape and the row-major elements of an input of a check.
type Tensor struct {
	Shape []int
	Data  []float64
}

// ErrNothing is returned by a check that found no elements to compare.
var ErrNothing = errors.New("nothing to compare")

// unit is the unit roundoff of float64.
const unit = 0x1p-53

// CheckGrad checks the derivatives of f at the inputs in the three ways of
// [CheckVJP], [CheckAdjoint] and [CheckJVP] and returns the first finding. The
// name appears in the error. The inputs must be finite and keep a distance from
// kinks and from the border of the domain, see CheckVJP for how much.
//
// All three contract with random vectors that have full mantissas. A cotangent
// of ones would not do: Σ softmax(x) is 1, so its gradient is 0, and a backward
// pass that returns 0, or −1000 times the right thing, would pass.
func CheckGrad(name string, f Func, inputs []Tensor, rng *rand.Rand) error {
	if err := CheckVJP(name, f, inputs, rng); err != nil {
		return err
	}
	if err := CheckAdjoint(name, f, inputs, rng); err != nil {
		return err
	}
	return CheckJVP(name, f, inputs, rng)
}

// CheckVJP draws a cotangent v and compares every element of the gradient of
// φ(x) = ⟨v, f(x)⟩ with central differences.
//
// For element x_i of an input with root mean square s, the step h is the power
// of two at or below ∛(2⁻⁵²)·max(|x_i|, s), or ∛(2⁻⁵²) if that input is 0
// everywhere. With x± = x_i ± h as rounded, and x₊ − x₋ exact,
//
//	D(h) = ⟨v, f(x₊) − f(x₋)⟩ / (x₊ − x₋) = g_i + T(h) + R(h)
//
// T is the truncation error, h²/6·φ”' + O(h⁴), so T(h/2) is near T(h)/4. As
// soon as halving the step halves the error, |T(h/2)| ≤ |T(h) − T(h/2)|. R is
// the rounding error: two values of φ, each wrong by ε at most, give
// |R(h)| ≤ ε/h and |R(h/2)| ≤ 2ε/h. Hence
//
//	|D(h/2) − g_i| ≤ |D(h) − D(h/2)| + 5ε/h
//
// with ε from the tape itself, see roundoff. f must be smooth within h, and so
// should be at a few h from a kink.
//
// An element that fails is an error, and so is one that the differences cannot
// judge: where the bound exceeds 1 % of both |D(h/2)| and Σ|v·f|/max(|x_i|, s).
func CheckVJP(name string, f Func, inputs []Tensor, rng *rand.Rand) error {
	p, err := newTrial(name, f, inputs)
	if err != nil {
		return err
	}
	return p.differences(draw(rng, len(p.y.data)))
}

// CheckAdjoint draws a tangent u of all inputs and a cotangent v and compares
//
//	⟨v, J·u⟩ with ⟨Jᵀ·v, u⟩
//
// which are equal for every u and v if and only if the VJP is the transpose of
// the JVP. The first is computed by [JVP], the second by [Backward].
//
// Each side is a sum over paths through the tape, cut at the output or at the
// inputs. At any node w the same sum is Σ w̄·ẇ, so to first order each rounding
// of w̄ or ẇ moves a side by at most u·|w̄·ẇ|. The bound is
//
//	16·n·u·Σ_w Σ |w̄·ẇ|
//
// over all nodes and elements, those inside of a [Checkpoint] included, where
// terms may cancel, too, with n the size of the largest node: no sum in a rule
// has more terms. 16 counts the roundings of one term in both rules, most
// of them in the derivative of an elementary function. n also pays for terms
// that cancel inside one matrix product, where it exceeds their number by far.
func CheckAdjoint(name string, f Func, inputs []Tensor, rng *rand.Rand) error {
	p, err := newTrial(name, f, inputs)
	if err != nil {
		return err
	}
	u := make([][]float64, len(p.x))
	for k, x := range p.x {
		u[k] = draw(rng, len(x.data))
	}
	return p.adjoint(u, draw(rng, len(p.y.data)))
}

// CheckJVP draws a tangent u of all inputs and a cotangent v and compares
// ⟨v, J·u⟩, computed by [JVP], with the central difference of ⟨v, f⟩ along u.
// Element i of u is uniform in (−1, 1) times the root mean square of its input,
// so that the step is h = 2⁻¹⁸; bound and verdict are those of [CheckVJP].
func CheckJVP(name string, f Func, inputs []Tensor, rng *rand.Rand) error {
	p, err := newTrial(name, f, inputs)
	if err != nil {
		return err
	}
	u := make([][]float64, len(p.x))
	for k, x := range p.x {
		u[k] = scaled(draw(rng, len(x.data)), rootMeanSquare(x.data))
	}
	return p.direction(u, draw(rng, len(p.y.data)))
}

// trial is one evaluation of a Func with its inputs as parameters.
type trial struct {
	name   string
	f      Func
	inputs []Tensor
	x      []*Var
	y      *Var
	worst  float64 // the largest |difference|/bound so far
}

// newTrial records f, or tells why there is nothing to compare.
func newTrial(name string, f Func, inputs []Tensor) (*trial, error) {
	var tape Tape
	p, elements := &trial{name: name, f: f, inputs: inputs}, 0
	for k, in := range inputs {
		if !finite(in.Data) {
			return nil, fmt.Errorf("ad: %s: input %d %v is not finite", name, k, in.Shape)
		}
		elements += len(in.Data)
		p.x = append(p.x, tape.Param(in.Data, in.Shape...))
	}
	if elements == 0 {
		return nil, fmt.Errorf("ad: %s: inputs are empty: %w", name, ErrNothing)
	}
	p.y = f(p.x)
	if len(p.y.data) == 0 {
		return nil, fmt.Errorf("ad: %s: output %v is empty: %w", name, p.y.shape, ErrNothing)
	}
	if !finite(p.y.data) {
		return nil, fmt.Errorf("ad: %s: output %v is not finite", name, p.y.shape)
	}
	return p, nil
}

// evaluate returns f(inputs) without recording.
func evaluate(f Func, inputs []Tensor) *Var {
	var tape Tape
	x := make([]*Var, len(inputs))
	for k, in := range inputs {
		x[k] = tape.Const(in.Data, in.Shape...)
	}
	return f(x)
}

// differences is CheckVJP with the cotangent v.
func (p *trial) differences(v []float64) error {
	var (
		adj  = adjoints(p.y, v)
		err5 = 5 * p.roundoff(v)
		size = dot(absolute(v), absolute(p.y.data)) // Σ|v·f|
	)
	for k, in := range p.inputs {
		rms := rootMeanSquare(in.Data)
		for i, x := range in.Data {
			scale := max(math.Abs(x), rms)
			h := math.Exp2(math.Floor(math.Log2(math.Cbrt(0x1p-52) * scale)))
			at := slices.Clone(p.inputs)
			at[k].Data = slices.Clone(in.Data)
			central := func(h float64) float64 {
				at[k].Data[i] = x + h
				plus := evaluate(p.f, at).data
				at[k].Data[i] = x - h
				minus := evaluate(p.f, at).data
				return dotDiff(v, plus, minus) / ((x + h) - (x - h))
			}
			var got float64
			if id := p.x[k].id; id < len(adj) && adj[id] != nil {
				got = adj[id][i]
			}
			where := fmt.Sprintf("input %d %v element %d", k, in.Shape, i)
			if err := p.judge(where, got, central(h), central(h/2), err5/h, size/scale); err != nil {
				return err
			}
		}
	}
	return nil
}

// judge compares got with the central difference d2 = D(h/2), given d1 = D(h),
// the bound of the rounding errors, and the size below which a derivative does
// not matter.
func (p *trial) judge(where string, got, d1, d2, rounding, size float64) error {
	diff, bound := math.Abs(got-d2), math.Abs(d1-d2)+rounding
	p.note(diff, bound)
	switch {
	case !(diff <= bound) || math.IsInf(bound, 0):
		return fmt.Errorf("ad: %s: %s: %g by the tape, %g by central differences: |difference| %.3g > bound %.3g",
			p.name, where, got, d2, diff, bound)
	case !(bound <= 0.01*max(math.Abs(d2), size)):
		return fmt.Errorf("ad: %s: %s: undetermined: the bound %.3g is too wide for a derivative of %g by the tape, %g by central differences",
			p.name, where, bound, got, d2)
	}
	return nil
}

// direction is CheckJVP with the tangents u and the cotangent v.
func (p *trial) direction(u [][]float64, v []float64) error {
	moved := func(h float64) []float64 {
		at := make([]Tensor, len(p.inputs))
		for k, in := range p.inputs {
			at[k] = Tensor{in.Shape, slices.Clone(in.Data)}
			for i := range at[k].Data {
				at[k].Data[i] += float64(h * u[k][i])
			}
		}
		return evaluate(p.f, at).data
	}
	const h = 0x1p-18
	d1 := dotDiff(v, moved(h), moved(-h)) / (2 * h)
	d2 := dotDiff(v, moved(h/2), moved(-h/2)) / h
	got := dot(v, JVP(p.y, p.x, u))
	return p.judge("along a random direction", got, d1, d2,
		5*p.roundoff(v)/h, dot(absolute(v), absolute(p.y.data)))
}

// adjoint is CheckAdjoint with the tangents u and the cotangent v.
func (p *trial) adjoint(u [][]float64, v []float64) error {
	adj, tan := adjoints(p.y, v), tangents(p.y, p.x, u)
	var (
		lhs = dot(v, JVP(p.y, p.x, u))
		rhs float64
	)
	for k, x := range p.x {
		if x.id < len(adj) && adj[x.id] != nil {
			rhs += dot(adj[x.id], u[k])
		}
	}
	terms, largest := products(p.y, adj, tan)
	diff, bound := math.Abs(lhs-rhs), 16*unit*float64(largest)*terms
	p.note(diff, bound)
	if !(diff <= bound) || math.IsInf(bound, 0) {
		return fmt.Errorf("ad: %s: adjoint identity: ⟨v, J·u⟩ = %g by the JVP, ⟨Jᵀ·v, u⟩ = %g by the VJP: |difference| %.3g > bound %.3g",
			p.name, lhs, rhs, diff, bound)
	}
	return nil
}

// products returns Σ_w Σ |w̄·ẇ| over the nodes w up to y and those inside of them, and the size of the largest.
func products(y *Var, adj, tan [][]float64) (terms float64, largest int) {
	for id := range adj {
		if adj[id] == nil || tan[id] == nil {
			continue
		}
		largest = max(largest, len(adj[id]))
		terms += dot(absolute(adj[id]), absolute(tan[id]))
		w := y.tape.nodes[id]
		if w.inside == nil {
			continue
		}
		x, z := w.inside()
		var moved []*Var
		var u [][]float64
		for k, v := range w.in {
			if x[k] != nil && tan[v.id] != nil {
				moved, u = append(moved, x[k]), append(u, tan[v.id])
			}
		}
		more, size := products(z, adjoints(z, adj[id]), tangents(z, moved, u))
		terms, largest = terms+more, max(largest, size)
	}
	return terms, largest
}

// note keeps the largest ratio of a difference to its bound.
func (p *trial) note(diff, bound float64) {
	if bound > 0 {
		p.worst = max(p.worst, diff/bound)
	}
}

// roundoff returns a bound, to first order, of the rounding error in φ = ⟨v, f(x)⟩:
//
//	ε = u·Σ_w Σ |w̄|·m_w
//
// over all nodes w of the tape and their elements, where w̄ = ∂φ/∂w tells how an
// error made at w reaches φ, and u·m_w bounds the error made there (Linnainmaa
// 1976). m_w is 4·|w|, enough for the elementary functions of package math and
// for inputs that were moved; for a sum of k terms it is k·Σ|terms|, valid in
// any order (Jeannerod and Rump 2013). A node with w̄ = 0 does not count, so
// that −Inf may stand in masked places.
func (p *trial) roundoff(v []float64) float64 { return unit * magnitude(p.y, v) }

// magnitude returns Σ_w Σ |w̄|·m_w of φ = ⟨v, y⟩.
func magnitude(y *Var, v []float64) (sum float64) {
	for id, adj := range adjoints(y, v) {
		if adj == nil {
			continue
		}
		w := y.tape.nodes[id]
		var m []float64
		if w.mag != nil {
			m = w.mag()
		} else {
			m = scaled(absolute(w.data), 4)
		}
		for i, a := range adj {
			if a != 0 {
				sum += float64(math.Abs(a) * m[i])
			}
		}
	}
	return sum
}

// draw returns n multiples of 2⁻⁵³, uniform in [−1, 1).
func draw(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(int64(rng.Uint64())>>10) * 0x1p-53
	}
	return x
}

// rootMeanSquare returns √(Σx²/n), or 1 if x is 0 everywhere.
func rootMeanSquare(x []float64) float64 {
	if s := math.Sqrt(dot(x, x) / float64(max(1, len(x)))); s != 0 {
		return s
	}
	return 1
}

func dot(a, b []float64) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i] * b[i])
	}
	return sum
}

// dotDiff returns ⟨v, a − b⟩.
func dotDiff(v, a, b []float64) float64 {
	var sum float64
	for i := range v {
		sum += float64(v[i] * (a[i] - b[i]))
	}
	return sum
}
