package ad

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

// gradient returns the gradients of f for the cotangent, one per input.
func gradient(f Func, cotangent []float64, in ...Tensor) [][]float64 {
	var tape Tape
	var x []*Var
	for _, a := range in {
		x = append(x, tape.Param(a.Data, a.Shape...))
	}
	Backward(f(x), cotangent)
	var g [][]float64
	for _, p := range x {
		g = append(g, p.Grad())
	}
	return g
}

// tangent returns ẏ for the tangents.
func tangent(f Func, tangents [][]float64, in ...Tensor) []float64 {
	var tape Tape
	var x []*Var
	for _, a := range in {
		x = append(x, tape.Param(a.Data, a.Shape...))
	}
	return JVP(f(x), x, tangents)
}

func vector(x ...float64) Tensor { return Tensor{[]int{len(x)}, x} }

// requireSame compares bit by bit, but takes all NaNs for one.
func requireSame(t *testing.T, want, got []float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.IsNaN(want[i]) && math.IsNaN(got[i]) {
			continue
		}
		require.Equal(t, math.Float64bits(want[i]+0), math.Float64bits(got[i]+0), "element %d of %v, want %v", i, got, want)
	}
}

// The conventions at points without a derivative, in both rules.
func TestKinks(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Func
		in   []float64
		want []float64
	}{
		{"abs", unaryFunc(Abs), []float64{-1, 0, math.Copysign(0, -1), 2, nan}, []float64{-1, 0, 0, 1, nan}},
		{"clamp, strictly inside", unaryFunc(func(x *Var) *Var { return Clamp(x, -1, 1) }),
			[]float64{-2, -1, 0, 1, 2, nan, inf}, []float64{0, 0, 1, 0, 0, 0, 0}},
		{"clamp, closed, by where", unaryFunc(func(x *Var) *Var {
			inside := Mask{x.shape, make([]bool, x.Size())}
			for i, v := range x.data {
				inside.On[i] = -1 <= v && v <= 1
			}
			return Where(inside, x, Clamp(x, -1, 1))
		}), []float64{-2, -1, 0, 1, 2}, []float64{0, 1, 1, 1, 0}},
		{"relu by clamp", unaryFunc(func(x *Var) *Var { return Clamp(x, 0, inf) }),
			[]float64{-1, 0, 1}, []float64{0, 0, 1}},
		{"relu by max", unaryFunc(func(x *Var) *Var { return Max(x, x.tape.Scalar(0)) }),
			[]float64{-1, 0, 1}, []float64{0, 0.5, 1}},
		{"min with a constant", unaryFunc(func(x *Var) *Var { return Min(x, x.tape.Scalar(0)) }),
			[]float64{-1, 0, 1, nan}, []float64{1, 0.5, 0, 1}},
		{"max of itself", unaryFunc(func(x *Var) *Var { return Max(x, x) }), []float64{1}, []float64{1}},
		{"sqrt at 0", unaryFunc(Sqrt), []float64{0, -1, 4}, []float64{inf, nan, 0.25}},
		{"log at 0", unaryFunc(Log), []float64{0, 2}, []float64{inf, 0.5}},
		{"pow 0", unaryFunc(func(x *Var) *Var { return Pow(x, 0) }), []float64{0, 2}, []float64{0, 0}},
		{"pow 1", unaryFunc(func(x *Var) *Var { return Pow(x, 1) }), []float64{0, 2}, []float64{1, 1}},
		{"pow 2", unaryFunc(func(x *Var) *Var { return Pow(x, 2) }), []float64{0, -2}, []float64{0, -4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ones := make([]float64, len(c.in))
			for i := range ones {
				ones[i] = 1
			}
			requireSame(t, c.want, gradient(c.f, ones, vector(c.in...))[0])
			requireSame(t, c.want, tangent(c.f, [][]float64{ones}, vector(c.in...)))
		})
	}
	for name, op := range map[string]func(a, b *Var) *Var{"max": Max, "min": Min} {
		g := gradient(binaryFunc(op), []float64{1, 1}, vector(3, nan), vector(3, 1))
		requireSame(t, []float64{0.5, 1}, g[0])
		requireSame(t, []float64{0.5, 1}, g[1])
		require.True(t, math.IsNaN(evaluate(binaryFunc(op), []Tensor{vector(nan), vector(1)}).Item()), name)
	}
	largest := unaryFunc(func(x *Var) *Var { return MaxReduce(x, false, -1) })
	requireSame(t, []float64{0.5, 0, 0.5}, gradient(largest, []float64{1}, vector(2, 1, 2))[0])
	requireSame(t, []float64{4}, tangent(largest, [][]float64{{3, 100, 5}}, vector(2, 1, 2)))
	requireSame(t, []float64{0, 1, 0}, gradient(largest, []float64{1}, vector(2, nan, 3))[0])
	require.True(t, math.IsNaN(evaluate(largest, []Tensor{vector(2, nan, 3)}).Item()))
}

// What Where does not select has no influence, whatever it holds.
func TestWherePoison(t *testing.T) {
	mask := Mask{[]int{4}, []bool{true, false, false, false}}
	f := func(x []*Var) *Var { return Where(mask, x[0], x[1]) }
	a, b := vector(1, nan, inf, -inf), vector(nan, 2, 3, 4)
	requireSame(t, []float64{1, 2, 3, 4}, evaluate(f, []Tensor{a, b}).data)

	g := gradient(f, []float64{0.3, 0.5, 0.7, 0.9}, a, b)
	requireSame(t, []float64{0.3, 0, 0, 0}, g[0])
	requireSame(t, []float64{0, 0.5, 0.7, 0.9}, g[1])
	// Nor do a poisoned tangent or cotangent cross over.
	requireSame(t, []float64{1, 2, 2, 2},
		tangent(f, [][]float64{{1, nan, nan, inf}, {nan, 2, 2, 2}}, a, b))
	g = gradient(f, []float64{1, nan, inf, 1}, a, b)
	requireSame(t, []float64{1, 0, 0, 0}, g[0])
	requireSame(t, []float64{0, nan, inf, 1}, g[1])
}

// Where stops poison that was selected away, but a rule in front of it still
// multiplies its 0: mask the input, not the result. torch does the same.
func TestWhereMasksInputs(t *testing.T) {
	mask := Mask{[]int{2}, []bool{true, false}}
	after := func(x []*Var) *Var { return Where(mask, Log(x[0]), x[0].tape.Scalar(0)) }
	before := func(x []*Var) *Var {
		return Where(mask, Log(Where(mask, x[0], x[0].tape.Scalar(1))), x[0].tape.Scalar(0))
	}
	requireSame(t, []float64{0.5, nan}, gradient(after, []float64{1, 1}, vector(2, 0))[0])
	for _, poison := range []float64{0, -1, nan, inf} {
		requireSame(t, []float64{0.5, 0}, gradient(before, []float64{1, 1}, vector(2, poison))[0])
	}
}

// Rows of nothing but −Inf are defined, −Inf beside numbers is an impossible
// outcome, and NaN and +Inf show.
func TestSoftmaxRows(t *testing.T) {
	x := Tensor{[]int{4, 3}, []float64{
		-inf, -inf, -inf,
		0, -inf, 0,
		nan, 0, 0,
		inf, 0, 0,
	}}
	value := func(op func(*Var, int) *Var) []float64 {
		return evaluate(unaryFunc(func(x *Var) *Var { return op(x, -1) }), []Tensor{x}).data
	}
	ln2 := math.Log(2)
	requireSame(t, []float64{0, 0, 0, 0.5, 0, 0.5, nan, nan, nan, nan, 0, 0}, value(Softmax))
	requireSame(t, []float64{-inf, -inf, -inf, -ln2, -inf, -ln2, nan, nan, nan, nan, -inf, -inf}, value(LogSoftmax))
	requireSame(t, []float64{-inf, ln2, nan, inf},
		value(func(x *Var, axis int) *Var { return LogSumExp(x, false, axis) }))

	dead := Tensor{[]int{2, 3}, x.Data[:6]}
	v := []float64{0.3, -0.7, 0.2, 0.6, 0.9, -0.5}
	for name, c := range map[string]struct {
		f    Func
		v    []float64
		want []float64
	}{
		"softmax":    {unaryFunc(func(x *Var) *Var { return Softmax(x, -1) }), v, []float64{0, 0, 0, 0.275, 0, -0.275}},
		"logsoftmax": {unaryFunc(func(x *Var) *Var { return LogSoftmax(x, -1) }), v, []float64{0, 0, 0, 0.1, 0.9, -1}},
		"logsumexp":  {unaryFunc(func(x *Var) *Var { return LogSumExp(x, true, -1) }), v[:2], []float64{0, 0, 0, -0.35, 0, -0.35}},
	} {
		g := gradient(c.f, c.v, dead)[0]
		d := tangent(c.f, [][]float64{{1, 2, 3, 0, 0, 0}}, dead)
		for i, w := range c.want {
			// Six operations on numbers of at most 1 round by less than 1e-15.
			require.InDelta(t, w, g[i], 1e-15, "%s: element %d", name, i)
			if i < 3 {
				require.Zero(t, g[i], name)
			}
		}
		for _, v := range d {
			require.Zero(t, v, "%s: a tangent of the dead row", name)
		}
	}
	require.Equal(t, -inf, evaluate(unaryFunc(func(x *Var) *Var { return LogSumExp(x, false, -1) }),
		[]Tensor{{[]int{0}, nil}}).Item())
}

// Logits far from 0 neither overflow nor vanish.
func TestSoftmaxShift(t *testing.T) {
	for _, shift := range []float64{0, 1e4, -1e4, 0x1p60} {
		in := []Tensor{vector(shift, shift)}
		requireSame(t, []float64{0.5, 0.5}, evaluate(unaryFunc(func(x *Var) *Var { return Softmax(x, 0) }), in).data)
		requireSame(t, []float64{-math.Ln2, -math.Ln2}, evaluate(unaryFunc(func(x *Var) *Var { return LogSoftmax(x, 0) }), in).data)
		require.Equal(t, shift+math.Ln2, evaluate(unaryFunc(func(x *Var) *Var { return LogSumExp(x, false, 0) }), in).Item())
	}
}

// Slopes in the tails, where 1 − y² and y·(1 − y) have lost all digits.
// sech²x and σ'(x) to 17 digits: Python's decimal with 60 digits.
func TestTails(t *testing.T) {
	for _, c := range []struct{ x, tanh, sigmoid float64 }{
		{-40, 7.219405551381661e-35, 4.248354255291589e-18},
		{-20, 1.6993417021166355e-17, 2.061153613941849e-09},
		{-3, 0.00986603716544019, 0.04517665973091213},
		{-0.5, 0.7864477329659274, 0.2350037122015945},
		{0, 1, 0.25},
		{0.5, 0.7864477329659274, 0.2350037122015945},
		{2, 0.07065082485316447, 0.10499358540350652},
		{20, 1.6993417021166355e-17, 2.061153613941849e-09},
		{40, 7.219405551381661e-35, 4.248354255291589e-18},
		{300, 1.0601586212017243e-260, 5.148200222412013e-131},
	} {
		for _, d := range []struct {
			f    func(*Var) *Var
			want float64
		}{{Tanh, c.tanh}, {Sigmoid, c.sigmoid}} {
			// Ten roundings of 2^-53, and the exponential's.
			limit := 16 * unit * d.want
			require.InDelta(t, d.want, gradient(unaryFunc(d.f), []float64{1}, vector(c.x))[0][0], limit, "x = %g", c.x)
			require.InDelta(t, d.want, tangent(unaryFunc(d.f), [][]float64{{1}}, vector(c.x))[0], limit, "x = %g", c.x)
		}
	}
	y := evaluate(unaryFunc(Sigmoid), []Tensor{vector(-745, -800, 800)}).data
	require.Equal(t, []float64{math.Exp(-745), 0, 1}, y)
}
