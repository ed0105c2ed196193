package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawBatch draws a batch of 1–5 rows and 1–8 columns with a mask that has holes and empty rows; at is the least number of
// true cells.
func drawBatch(t *rapid.T, at int) (x []float64, mask []bool, rows, cols int) {
	rows, cols = rapid.IntRange(1, 5).Draw(t, "rows"), rapid.IntRange(1, 8).Draw(t, "cols")
	for rows*cols < at {
		cols++
	}
	x = drawCells(t, "x", rows*cols)
	mask = rapid.SliceOfN(rapid.Bool(), rows*cols, rows*cols).Draw(t, "mask")
	n := 0
	for _, m := range mask {
		if m {
			n++
		}
	}
	for i := 0; n < at; i++ {
		if !mask[i] {
			mask[i] = true
			n++
		}
	}
	return x, mask, rows, cols
}

// drawCells draws n numbers of magnitude up to 4, on a grid so that shrinking gives readable ones.
func drawCells(t *rapid.T, label string, n int) []float64 {
	ints := rapid.SliceOfN(rapid.IntRange(-4000, 4000), n, n).Draw(t, label)
	x := make([]float64, n)
	for i, v := range ints {
		x[i] = float64(v) / 1000
	}
	return x
}

// poison returns x with NaN, ±1e6 and infinities at masked cells.
func poison(x []float64, mask []bool) []float64 {
	bad := []float64{math.NaN(), 1e6, -1e6, math.Inf(1), math.Inf(-1)}
	y := append([]float64{}, x...)
	for i, m := range mask {
		if !m {
			y[i] = bad[i%len(bad)]
		}
	}
	return y
}

// pick returns the true cells of x.
func pick(x []float64, mask []bool) []float64 {
	y := []float64{}
	for i, m := range mask {
		if m {
			y = append(y, x[i])
		}
	}
	return y
}

// sameBits reports whether a and b are equal bit by bit, so that NaN equals itself and 0 is not −0.
func sameBits(a, b []float64) bool {
	for i := range a {
		if math.Float64bits(a[i]) != math.Float64bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

var (
	own = WhitenOptions{Scope: ScopeGlobal, Eps: 1e-8, Remask: true, ConstantZero: true,
		Var: VarOptions{Mean: MeanOptions{Outside: OutsideIgnore, Empty: EmptyZero}, Empty: EmptyZero, Single: SingleZero}}
	nan = math.NaN()
)

func TestMeanRules(t *testing.T) {
	x, none := []float64{1, nan, 5}, []bool{false, false, false}
	_, err := MaskedMean(x, none, MeanOptions{Empty: EmptyError})
	require.ErrorIs(t, err, ErrEmptyMask)
	for _, c := range []struct {
		mask []bool
		o    MeanOptions
		want float64
	}{
		{none, MeanOptions{Outside: OutsideIgnore}, nan},
		{none, MeanOptions{Outside: OutsideIgnore, Empty: EmptyZero}, 0},
		{none, MeanOptions{Empty: EmptyZero}, nan}, // Σ x·0 with a NaN, as NeMo-RL's multiplication has it
		{[]bool{true, false, true}, MeanOptions{Outside: OutsideIgnore}, 3},
		{[]bool{true, false, true}, MeanOptions{}, nan},
		{[]bool{true, false, true}, MeanOptions{Outside: OutsideIgnore, Eps: 1}, 2},
		{[]bool{true, true, true}, MeanOptions{Outside: OutsideIgnore}, nan}, // NaN at a true cell is a value
		{nil, MeanOptions{}, nan},
	} {
		got, err := MaskedMean(x, c.mask, c.o)
		require.NoError(t, err)
		require.NoError(t, off([]float64{got}, []float64{c.want}, 0), "%v %+v", c.mask, c.o)
	}
	_, err = MaskedMeanRows(nil, []float64{1, 2}, []bool{true, false}, 2, 1, MeanOptions{Empty: EmptyError})
	require.ErrorIs(t, err, ErrEmptyMask)
}

func TestVarRules(t *testing.T) {
	x := []float64{3, 7, 3}
	one, two := []bool{true, false, false}, []bool{true, true, false}
	for _, c := range []struct {
		mask []bool
		o    VarOptions
		want float64
		err  error
	}{
		{two, VarOptions{}, 4, nil},
		{two, VarOptions{DDof: 1}, 8, nil},
		{two, VarOptions{DDof: 1, Mean: MeanOptions{Eps: 2}}, 2 * (.25 + 20.25) / 4, nil}, // μ = 10/4
		{one, VarOptions{}, 0, nil},
		{one, VarOptions{DDof: 1}, nan, nil},
		{one, VarOptions{DDof: 1, Single: SingleZero}, 0, nil},
		{one, VarOptions{DDof: 1, Single: SingleError}, nan, ErrSingle},
		{make([]bool, 3), VarOptions{}, nan, nil},
		{make([]bool, 3), VarOptions{Empty: EmptyZero}, 0, nil},
		{make([]bool, 3), VarOptions{Empty: EmptyError}, nan, ErrEmptyMask},
	} {
		got, err := MaskedVar(x, c.mask, c.o)
		require.ErrorIs(t, err, c.err)
		require.NoError(t, off([]float64{got}, []float64{c.want}, 1e-15), "%v %+v", c.mask, c.o)
	}
	// two passes: E[x²] − μ² of these numbers is 0 or 2
	v, err := MaskedVar([]float64{1e8, 1e8 + 1, 1e8 + 2}, nil, VarOptions{DDof: 1})
	require.NoError(t, err)
	require.Equal(t, 1.0, v)
}

// TestWhitenDecides has the vectors that tell the options apart.
func TestWhitenDecides(t *testing.T) {
	root := math.Sqrt(.5)
	for _, c := range []struct {
		name string
		x    []float64
		o    WhitenOptions
		want []float64
		tol  float64
	}{
		{"ddof 0", []float64{0, 1}, WhitenOptions{}, []float64{-1, 1}, 0},
		{"ddof 1", []float64{0, 1}, WhitenOptions{Var: VarOptions{DDof: 1}}, []float64{-root, root}, 1e-15},
		{"inside_sqrt", []float64{0, 1e-4}, WhitenOptions{Eps: 1e-8}, []float64{-.447214, .447214}, 1e-6},
		{"floor_var", []float64{0, 1e-4}, WhitenOptions{Eps: 1e-8, EpsPlace: FloorVar}, []float64{-.5, .5}, 1e-12},
		{"no_std", []float64{0, 1e-4}, WhitenOptions{Eps: 1e-8, EpsPlace: NoStd}, []float64{-5e-5, 5e-5}, 1e-18},
		{"add_std", []float64{0, 1e-4}, WhitenOptions{Eps: 1e-8, EpsPlace: AddStd}, []float64{-.9998, .9998}, 1e-6},
		{"shift", []float64{3, 7}, WhitenOptions{}, []float64{-1, 1}, 0},
		{"add back", []float64{3, 7}, WhitenOptions{Shift: ShiftFalseAddBack}, []float64{4, 6}, 0},
		{"plain", []float64{3, 7}, WhitenOptions{Shift: ShiftFalsePlain}, []float64{1.5, 3.5}, 0},
	} {
		c.o.Scope = ScopeGlobal
		got, err := Whiten(nil, c.x, nil, 1, 2, c.o)
		require.NoError(t, err)
		require.NoError(t, off(got, c.want, c.tol), c.name)
	}
	// the PPO system's own oracle: x = [[1,2,3],[4,5,6]] without cell 2
	x, mask := []float64{1, 2, 3, 4, 5, 6}, []bool{true, true, false, true, true, true}
	got, err := Whiten(nil, x, mask, 2, 3, own)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{-1.401826, -.862662, 0, .215666, .754830, 1.293993}, 1e-6))
	o := own
	o.Var.DDof = 1
	got, err = Whiten(nil, x, mask, 2, 3, o)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{-1.253831, -.771589, 0, .192897, .675140, 1.157383}, 1e-6))
	// by row, and not at all
	o.Var.DDof, o.Scope = 0, ScopeRow
	got, err = Whiten(nil, x, mask, 2, 3, o)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{-1, 1, 0, -math.Sqrt(1.5), 0, math.Sqrt(1.5)}, 1e-7))
	o.Scope = ScopeNone
	got, err = Whiten(nil, x, mask, 2, 3, o)
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2, 0, 4, 5, 6}, got)
}

func TestWhitenEdges(t *testing.T) {
	empty := make([]bool, 3)
	o := own
	got, err := Whiten(nil, []float64{nan, 1, 2}, empty, 1, 3, o)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0, 0}, got)
	o.Var.Empty, o.Remask = EmptyNaN, false
	got, err = Whiten(nil, []float64{0, 1, 2}, empty, 1, 3, o)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{nan, nan, nan}, 0))
	o.Var.Empty = EmptyError
	_, err = Whiten(nil, []float64{0, 1, 2}, empty, 1, 3, o)
	require.ErrorIs(t, err, ErrEmptyMask)

	// one cell, and equal ones whose mean is not their value after rounding and mean.eps
	o = own
	o.Var.Mean.Eps = 1e-8
	for _, x := range [][]float64{{.3}, {.1, .1, .1}} {
		got, err = Whiten(nil, x, nil, 1, len(x), o)
		require.NoError(t, err)
		for _, v := range got {
			require.Equal(t, 0.0, v)
		}
		plain := o
		plain.ConstantZero, plain.Var.Single = false, SingleNaN
		got, err = Whiten(nil, x, nil, 1, len(x), plain)
		require.NoError(t, err)
		require.NotEqual(t, 0.0, got[0], "the residue that ConstantZero removes")
	}
	o.Shift = ShiftFalseAddBack
	got, err = Whiten(nil, []float64{.5, .5}, nil, 1, 2, o)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{.5, .5}, 1e-8))
	o = own
	o.Shift, o.Eps = ShiftFalsePlain, .25
	got, err = Whiten(nil, []float64{.5, .5}, nil, 1, 2, o)
	require.NoError(t, err)
	require.Equal(t, []float64{1, 1}, got, "x/σ has nothing to subtract")
	got, err = Whiten(nil, []float64{.5}, nil, 1, 1, o)
	require.NoError(t, err)
	require.Equal(t, []float64{0}, got, "whiten.single zero")
	for _, x := range []float64{math.Inf(1), math.Inf(-1), nan} { // infinities differ by NaN, not by 0
		got, err = Whiten(nil, []float64{x, x}, nil, 1, 2, own)
		require.NoError(t, err)
		require.NoError(t, off(got, []float64{nan, nan}, 0))
	}
	require.Panics(t, func() { Whiten(nil, []float64{1}, nil, 1, 2, own) })
	for _, wrong := range []func(o *WhitenOptions){
		func(o *WhitenOptions) { o.Scope = 5 }, func(o *WhitenOptions) { o.Scope = -1 },
		func(o *WhitenOptions) { o.EpsPlace = 4 }, func(o *WhitenOptions) { o.Shift = 3 }, func(o *WhitenOptions) { o.Var.DDof = -1 },
	} {
		o := own
		wrong(&o)
		require.Panics(t, func() { Whiten(nil, []float64{1, 2}, nil, 1, 2, o) })
	}
	require.Panics(t, func() { MaskedVar([]float64{1}, nil, VarOptions{DDof: 2}) })
}

// whitenFunc is Whiten, or a wrong version of it.
type whitenFunc func(x []float64, mask []bool, rows, cols int, o WhitenOptions) []float64

func rightWhiten(x []float64, mask []bool, rows, cols int, o WhitenOptions) []float64 {
	y, err := Whiten(nil, x, mask, rows, cols, o)
	if err != nil {
		panic(err)
	}
	return y
}

// whitenLaws checks the laws of whitening on one batch, and returns the first that f breaks.
func whitenLaws(f whitenFunc, x []float64, mask []bool, rows, cols int) string {
	y := f(x, mask, rows, cols, own)
	in := pick(y, mask)
	flatBatch := constant(x, mask)
	mean, _ := MaskedMean(in, nil, MeanOptions{})
	v, _ := MaskedVar(pick(x, mask), nil, VarOptions{})
	vy, _ := MaskedVar(in, nil, VarOptions{})
	switch {
	case !(math.Abs(mean) <= 1e-9):
		return "mean 0"
	case !flatBatch && !(math.Abs(vy-v/(v+1e-8)) <= 1e-9):
		return "variance v/(v+ε)"
	case !sameBits(in, pick(f(poison(x, mask), mask, rows, cols, own), mask)):
		return "contamination"
	}
	for i, m := range mask {
		if !m && y[i] != 0 || flatBatch && y[i] != 0 {
			return "zero where masked and where constant"
		}
	}
	scaled, shifted, negated := make([]float64, len(x)), make([]float64, len(x)), make([]float64, len(x))
	for i, u := range x {
		scaled[i], shifted[i], negated[i] = 2*u, u+3, -u
	}
	exact := own
	exact.Eps = 0
	if !flatBatch && !sameBits(f(scaled, mask, rows, cols, exact), f(x, mask, rows, cols, exact)) {
		return "scale 2 without ε"
	}
	minus := f(negated, mask, rows, cols, own)
	for i := range minus {
		if minus[i] != -y[i] {
			return "scale −1"
		}
	}
	if off(f(shifted, mask, rows, cols, own), y, 1e-9) != nil {
		return "shift"
	}
	keep := own
	keep.Shift = ShiftFalseAddBack
	mu, _ := MaskedMean(pick(x, mask), nil, MeanOptions{})
	back, _ := MaskedMean(pick(f(x, mask, rows, cols, keep), mask), nil, MeanOptions{})
	if !(math.Abs(back-mu) <= 1e-9) {
		return "the mean is kept when added back"
	}
	return ""
}

func TestWhitenLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, mask, rows, cols := drawBatch(t, 1)
		if law := whitenLaws(rightWhiten, x, mask, rows, cols); law != "" {
			t.Fatal(law)
		}
		o := own
		o.Scope = Scope(rapid.IntRange(0, 4).Draw(t, "scope"))
		y, in := rightWhiten(x, mask, rows, cols, o), append([]float64{}, x...)
		if got, err := Whiten(in, in, mask, rows, cols, o); err != nil || !sameBits(got, y) {
			t.Fatal("in place")
		}
	})
}

func TestWhitenLawsReject(t *testing.T) {
	change := func(f func(o *WhitenOptions)) whitenFunc {
		return func(x []float64, mask []bool, rows, cols int, o WhitenOptions) []float64 {
			f(&o)
			return rightWhiten(x, mask, rows, cols, o)
		}
	}
	faults := map[string]whitenFunc{
		"ddof 1":        change(func(o *WhitenOptions) { o.Var.DDof = 1 }),
		"by row":        change(func(o *WhitenOptions) { o.Scope = ScopeRow }),
		"multiplies":    change(func(o *WhitenOptions) { o.Var.Mean.Outside = OutsidePropagate }),
		"not remasked":  change(func(o *WhitenOptions) { o.Remask = false }),
		"eps in σ":      change(func(o *WhitenOptions) { o.EpsPlace = AddStd }),
		"never shifted": change(func(o *WhitenOptions) { o.Shift = ShiftFalsePlain }),
		"mean lost":     change(func(o *WhitenOptions) { o.Shift = ShiftTrue }),
		"padding counted": func(x []float64, mask []bool, rows, cols int, o WhitenOptions) []float64 {
			return Remask(nil, rightWhiten(x, nil, rows, cols, o), mask)
		},
	}
	x := []float64{1, 2.5, -3, 4, .5, 2}
	mask := []bool{true, true, false, true, false, true}
	require.Empty(t, whitenLaws(rightWhiten, x, mask, 2, 3))
	for name, f := range faults {
		require.NotEmpty(t, whitenLaws(f, x, mask, 2, 3), name)
	}
}

// TestNoRows runs everything on a batch without rows, and on rows without columns.
func TestNoRows(t *testing.T) {
	for _, rows := range []int{0, 3} {
		x, mask, per, noEOS := []float64{}, []bool{}, make([]float64, rows), make([]int, rows)
		for i := range noEOS {
			noEOS[i] = -1
		}
		b := Rollout{Rows: rows, Reward: x, Value: x, Mask: mask}
		adv, ret := GAE(nil, nil, b, GAEOptions{Hole: HoleCut})
		require.Len(t, append(adv, ret...), 0)
		white, err := Whiten(nil, x, mask, rows, 0, own)
		require.NoError(t, err)
		require.Len(t, white, 0)
		require.Equal(t, per, RowSums(nil, x, nil, rows, 0))
		for index := ScoreLastResponse; index <= ScoreLastColumn; index++ {
			require.Len(t, TokenRewards(nil, per, nil, nil, noEOS, rows, 0, RewardOptions{Index: index}), 0)
		}
		require.Len(t, Broadcast(nil, per, nil, rows, 0), 0)
		require.Len(t, OptimalTokenBaseline(nil, x, x, x, nil, nil, make([]int, rows), rows, 0, 1e-8), 0)
	}
	none, err := GroupAdvantage(nil, nil, nil, GroupOptions{Scale: ScaleBatchStd, BatchCentred: true})
	require.NoError(t, err)
	require.Len(t, none, 0)
	require.Len(t, GPGAdvantage(nil, nil, nil, 1), 0)
	require.Len(t, OPOAdvantage(nil, nil, nil, nil), 0)
	best, err := PassKAdvantage(nil, nil, nil, true, 1)
	require.NoError(t, err)
	require.Len(t, best, 0)
}
