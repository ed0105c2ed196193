//go:build !purego

package f32

import (
	"math"

	"plumbline/accel/cpu"
)

// The loops over rows are assembly because the compiler does not vectorise: an exponential takes 23 instructions for 8 elements and
// no branch. Each routine computes 8·n elements; Go code does the rest. Lane j of a sum adds the elements whose number is j modulo 8.

// expSum turns x into e^{x − top} and adds them to sum.
//
//go:noescape
func expSum(x *float32, n int, top float64, sum *lanes)

// headSum adds e = e^{x − top} to sum and e·(x − top) to weighted.
//
//go:noescape
func headSum(x *float32, n int, top float64, sum, weighted *lanes)

// headSlopes is the loop of [Head.Slopes].
//
//go:noescape
func headSlopes(x *float32, n int, top, inv, dlp, dh, log, entropy float64)

// gatedSilu is the loop of [Activation.Gated] with silu.
//
//go:noescape
func gatedSilu(y, gate, up *float32, n int)

// gatedSiluBack is the loop of [Activation.GatedBackward] with silu.
//
//go:noescape
func gatedSiluBack(dgate, dup, dy, gate, up *float32, n int)

// maxAndNaN returns the largest element, of any value if nan reports that one is no number.
//
//go:noescape
func maxAndNaN(x *float32, n int) (top float32, nan bool)

//go:noescape
func scaleRow(x *float32, n int, by float32)

// dotLanes adds the products of a and b to sum.
//
//go:noescape
func dotLanes(a, b *float32, n int, sum *lanes)

// scaledDotLanes adds fl(w·d)·x to sum.
//
//go:noescape
func scaledDotLanes(w, d, x *float32, n int, sum *lanes)

// softmaxBackRow stores p·(dp − dot)·by.
//
//go:noescape
func softmaxBackRow(ds, dp, p *float32, n int, dot, by float32)

// rmsNormRow stores w·(x·r).
//
//go:noescape
func rmsNormRow(y, x, w *float32, n int, r float32)

// rmsNormBackRow adds r·(w·dy − x·s) to dx.
//
//go:noescape
func rmsNormBackRow(dx, dy, x, w *float32, n int, r, s float32)

// addRow stores x + y.
//
//go:noescape
func addRow(dst, x, y *float32, n int)

// rotateRow rotates 16·n pairs; flip holds the sign bit where the sine has the other sign.
//
//go:noescape
func rotateRow(x, y, cos, sin *float32, n int, flip uint32)

func init() {
	rotate.Add("avx512", cpu.AVX512, rotateAVX512)
	topRow.Add("avx512", cpu.AVX512, topAVX512)
	scaleBy.Add("avx512", cpu.AVX512, scaleAVX512)
	softmax.Add("avx512", cpu.AVX512, softmaxAVX512)
	softmaxBack.Add("avx512", cpu.AVX512, softmaxBackAVX512)
	headAdd.Add("avx512", cpu.AVX512, headAddAVX512)
	headBack.Add("avx512", cpu.AVX512, headBackAVX512)
	swiGLU.Add("avx512", cpu.AVX512, swiGLUAVX512)
	swiGLUBack.Add("avx512", cpu.AVX512, swiGLUBackAVX512)
	rmsNorm.Add("avx512", cpu.AVX512, rmsNormAVX512)
	rmsNormBack.Add("avx512", cpu.AVX512, rmsNormBackAVX512)
	add.Add("avx512", cpu.AVX512, addAVX512)
}

// topAVX512 works like topOf.
func topAVX512(x []float32) float32 {
	n := len(x) / 8
	if n == 0 {
		return topOf(x)
	}
	top, nan := maxAndNaN(&x[0], n)
	if nan {
		return float32(math.NaN())
	}
	for _, v := range x[8*n:] {
		if v > top || v != v {
			top = v
		}
	}
	return top
}

// softmaxAVX512 works like softmaxGeneric.
func softmaxAVX512(x []float32) {
	top := topAVX512(x)
	if math.IsInf(float64(top), -1) {
		clear(x)
		return
	}
	var sum lanes
	n := len(x) / 8
	if n > 0 {
		expSum(&x[0], n, float64(top), &sum)
	}
	expSumGeneric(x[8*n:], float64(top), &sum)
	scaleAVX512(x, float32(1/sum.total()))
}

// scaleAVX512 works like scaleGeneric.
func scaleAVX512(x []float32, by float32) {
	n := len(x) / 8
	if n > 0 {
		scaleRow(&x[0], n, by)
	}
	scaleGeneric(x[8*n:], by)
}

// softmaxBackAVX512 works like softmaxBackGeneric.
func softmaxBackAVX512(ds, dp, p []float32, by float32) {
	var sum lanes
	n := len(p) / 8
	if n > 0 {
		dotLanes(&p[0], &dp[0], n, &sum)
	}
	dotGeneric(p[8*n:], dp[8*n:], &sum)
	d := float32(sum.total())
	if n > 0 {
		softmaxBackRow(&ds[0], &dp[0], &p[0], n, d, by)
	}
	softmaxBackRest(ds[8*n:], dp[8*n:], p[8*n:], d, by)
}

// headAddAVX512 works like headAddGeneric.
func headAddAVX512(z []float32, top float64, sum, weighted *lanes) {
	n := len(z) / 8
	if n > 0 {
		headSum(&z[0], n, top, sum, weighted)
	}
	headAddGeneric(z[8*n:], top, sum, weighted)
}

// headBackAVX512 works like headBackGeneric.
func headBackAVX512(z []float32, s slopes) {
	n := len(z) / 8
	if n > 0 {
		headSlopes(&z[0], n, s.top, s.inv, s.dlp, s.dh, s.log, s.entropy)
	}
	headBackGeneric(z[8*n:], s)
}

// swiGLUAVX512 works like swiGLUGeneric.
func swiGLUAVX512(y, gate, up []float32) {
	n := len(y) / 8
	if n > 0 {
		gatedSilu(&y[0], &gate[0], &up[0], n)
	}
	swiGLUGeneric(y[8*n:], gate[8*n:], up[8*n:])
}

// swiGLUBackAVX512 works like swiGLUBackGeneric.
func swiGLUBackAVX512(dgate, dup, dy, gate, up []float32) {
	n := len(dy) / 8
	if n > 0 {
		gatedSiluBack(&dgate[0], &dup[0], &dy[0], &gate[0], &up[0], n)
	}
	swiGLUBackGeneric(dgate[8*n:], dup[8*n:], dy[8*n:], gate[8*n:], up[8*n:])
}

// rmsNormAVX512 works like rmsNormGeneric.
func rmsNormAVX512(y, x, w []float32, eps float64) (r float32) {
	var sum lanes
	n := len(x) / 8
	if n > 0 {
		dotLanes(&x[0], &x[0], n, &sum)
	}
	dotGeneric(x[8*n:], x[8*n:], &sum)
	r = float32(1 / math.Sqrt(sum.total()/float64(len(x))+eps))
	if n > 0 {
		rmsNormRow(&y[0], &x[0], &w[0], n, r)
	}
	rmsNormRest(y[8*n:], x[8*n:], w[8*n:], r)
	return r
}

// rmsNormBackAVX512 works like rmsNormBackGeneric.
func rmsNormBackAVX512(dx, dy, x, w []float32, r float32) {
	var sum lanes
	n := len(x) / 8
	if n > 0 {
		scaledDotLanes(&w[0], &dy[0], &x[0], n, &sum)
	}
	scaledDotGeneric(w[8*n:], dy[8*n:], x[8*n:], &sum)
	s := share(&sum, r, len(x))
	if n > 0 {
		rmsNormBackRow(&dx[0], &dy[0], &x[0], &w[0], n, r, s)
	}
	rmsNormBackRest(dx[8*n:], dy[8*n:], x[8*n:], w[8*n:], r, s)
}

// addAVX512 works like addGeneric.
func addAVX512(dst, x, y []float32) {
	n := len(dst) / 8
	if n > 0 {
		addRow(&dst[0], &x[0], &y[0], n)
	}
	addGeneric(dst[8*n:], x[8*n:], y[8*n:])
}

// rotateAVX512 works like rotateGeneric.
func rotateAVX512(x, y, cos, sin []float32, inverse bool) {
	n, flip := len(x)/16, uint32(0)
	if inverse {
		flip = 1 << 31
	}
	if n > 0 {
		rotateRow(&x[0], &y[0], &cos[0], &sin[0], n, flip)
	}
	rotateGeneric(x[16*n:], y[16*n:], cos[16*n:], sin[16*n:], inverse)
}
