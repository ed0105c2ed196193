package f32

import (
	"fmt"
	"math"
	"slices"

	"plumbline/accel"
)

// The ops of rows. Their variants return the same bits.
var (
	topRow      = accel.New("f32.Max", topOf, testTop)
	scaleBy     = accel.New("f32.Scale", scaleGeneric, testScale)
	softmax     = accel.New("f32.Softmax", softmaxGeneric, testSoftmax)
	softmaxBack = accel.New("f32.SoftmaxBackward", softmaxBackGeneric, testSoftmaxBack)
	headAdd     = accel.New("f32.Head", headAddGeneric, testHeadAdd)
	headBack    = accel.New("f32.HeadBackward", headBackGeneric, testHeadBack)
	swiGLU      = accel.New("f32.SwiGLU", swiGLUGeneric, testSwiGLU)
	swiGLUBack  = accel.New("f32.SwiGLUBackward", swiGLUBackGeneric, testSwiGLUBack)
	rmsNorm     = accel.New("f32.RMSNorm", rmsNormGeneric, testRMSNorm)
	rmsNormBack = accel.New("f32.RMSNormBackward", rmsNormBackGeneric, testRMSNormBack)
	add         = accel.New("f32.Add", addGeneric, testAdd)
	rotate      = accel.New("f32.RoPE", rotateGeneric, testRotate)
)

// Add stores x + y in dst, which may be one of them. It panics if the lengths differ.
func Add(dst, x, y []float32) {
	same("add", len(x), len(dst))
	same("add", len(y), len(dst))
	add.Func()(dst, x, y)
}

// Scale multiplies x by a number, in place.
func Scale(x []float32, by float32) { scaleBy.Func()(x, by) }

// Max returns the largest element of x: NaN if there is one, −Inf of none.
func Max(x []float32) float32 { return topRow.Func()(x) }

// testRow is a row longer than two vectors, with a number below all others and one far above.
func testRow(k int) []float32 {
	x := make([]float32, 21)
	for i := range x {
		x[i] = float32((i*7919+k*613)%1009-504) / 131
	}
	x[3], x[12] = float32(math.Inf(-1)), 30
	return x
}

// plain is testRow without an infinity.
func plain(k int) []float32 {
	x := testRow(k)
	x[3] = -120
	return x
}

// equalRows compares the bits of numbers.
func equalRows(got, want []float32) error {
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			return fmt.Errorf("element %d of a row is %v, not %v", i, got[i], want[i])
		}
	}
	return nil
}

func testTop(f func([]float32) float32) error {
	x := testRow(0)
	if got := f(x); got != 30 {
		return fmt.Errorf("the largest element of a row is %v, not 30", got)
	}
	x[9] = float32(math.NaN())
	if got := f(x); got == got {
		return fmt.Errorf("the largest element of a row with NaN is %v", got)
	}
	return nil
}

func testScale(f func(x []float32, by float32)) error {
	want, got := plain(0), plain(0)
	scaleGeneric(want, 0.3)
	f(got, 0.3)
	return equalRows(got, want)
}

func testSoftmax(f func([]float32)) error {
	want, got := testRow(0), testRow(0)
	softmaxGeneric(want)
	f(got)
	return equalRows(got, want)
}

func testRotate(f func(x, y, cos, sin []float32, inverse bool)) error {
	for _, inverse := range []bool{false, true} {
		a, b, c, d := plain(0), plain(1), plain(0), plain(1)
		rotateGeneric(a, b, plain(2), plain(3), inverse)
		f(c, d, plain(2), plain(3), inverse)
		if err := equalRows(slices.Concat(c, d), slices.Concat(a, b)); err != nil {
			return err
		}
	}
	return nil
}

func testSoftmaxBack(f func(ds, dp, p []float32, by float32)) error {
	want, got := make([]float32, 21), make([]float32, 21)
	softmaxBackGeneric(want, plain(0), plain(1), 0.3)
	f(got, plain(0), plain(1), 0.3)
	return equalRows(got, want)
}

func testHeadAdd(f func(z []float32, top float64, sum, weighted *lanes)) error {
	var a, b, c, d lanes
	headAddGeneric(testRow(0), 30, &a, &b)
	f(testRow(0), 30, &c, &d)
	if a != c || b != d {
		return fmt.Errorf("the sums of a row are %v and %v, not %v and %v", c, d, a, b)
	}
	return nil
}

func testHeadBack(f func(z []float32, s slopes)) error {
	for _, dh := range []float64{0, -0.7} {
		s := slopes{top: 30, inv: 0.9, dlp: 1.3, dh: dh, log: 0.1, entropy: 0.2}
		want, got := testRow(0), testRow(0)
		headBackGeneric(want, s)
		f(got, s)
		if err := equalRows(got, want); err != nil {
			return err
		}
	}
	return nil
}

func testSwiGLU(f func(y, gate, up []float32)) error {
	want, got := make([]float32, 21), make([]float32, 21)
	swiGLUGeneric(want, plain(0), plain(1))
	f(got, plain(0), plain(1))
	return equalRows(got, want)
}

func testSwiGLUBack(f func(dgate, dup, dy, gate, up []float32)) error {
	a, b, c, d := make([]float32, 21), make([]float32, 21), make([]float32, 21), make([]float32, 21)
	swiGLUBackGeneric(a, b, plain(0), plain(1), plain(2))
	f(c, d, plain(0), plain(1), plain(2))
	if err := equalRows(c, a); err != nil {
		return err
	}
	return equalRows(d, b)
}

func testRMSNorm(f func(y, x, w []float32, eps float64) float32) error {
	want, got := make([]float32, 22), make([]float32, 22)
	want[21], got[21] = rmsNormGeneric(want[:21], plain(0), plain(1), 1e-5), f(got[:21], plain(0), plain(1), 1e-5)
	return equalRows(got, want)
}

func testRMSNormBack(f func(dx, dy, x, w []float32, r float32)) error {
	want, got := plain(3), plain(3)
	rmsNormBackGeneric(want, plain(0), plain(1), plain(2), 0.2)
	f(got, plain(0), plain(1), plain(2), 0.2)
	return equalRows(got, want)
}

func testAdd(f func(dst, x, y []float32)) error {
	want, got := make([]float32, 21), make([]float32, 21)
	addGeneric(want, plain(0), plain(1))
	f(got, plain(0), plain(1))
	return equalRows(got, want)
}
