package f32

import "math"

// lanes is a sum of float64 in eight parts: part j adds the elements of a row whose number is j modulo 8, in their order.
type lanes [8]float64

// total adds the parts.
func (l *lanes) total() float64 {
	return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

// topOf returns the largest element, NaN if there is one, −Inf of none.
func topOf(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top || v != v {
			top = v
		}
	}
	return top
}

// expSumGeneric turns x into e^{x − top} and adds them, before they are rounded, to sum. The first element belongs to part 0.
func expSumGeneric(x []float32, top float64, sum *lanes) {
	for i, v := range x {
		e := exp(float64(v) - top)
		x[i] = float32(e)
		sum[i&7] += e
	}
}

func softmaxGeneric(x []float32) {
	top := topOf(x)
	if math.IsInf(float64(top), -1) {
		clear(x)
		return
	}
	var sum lanes
	expSumGeneric(x, float64(top), &sum)
	scaleGeneric(x, float32(1/sum.total()))
}

func scaleGeneric(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// dotGeneric adds the products of a and b, which float64 holds exactly, to sum.
func dotGeneric(a, b []float32, sum *lanes) {
	for i, v := range a {
		sum[i&7] += float64(float64(v) * float64(b[i]))
	}
}

func softmaxBackGeneric(ds, dp, p []float32, by float32) {
	var sum lanes
	dotGeneric(p, dp, &sum)
	softmaxBackRest(ds, dp, p, float32(sum.total()), by)
}

func softmaxBackRest(ds, dp, p []float32, dot, by float32) {
	for i, v := range p {
		ds[i] = float32(v*float32(dp[i]-dot)) * by
	}
}

// headAddGeneric adds e = e^{z − top} to sum and e·(z − top) to weighted; no z lies above top.
func headAddGeneric(z []float32, top float64, sum, weighted *lanes) {
	for i, v := range z {
		d := float64(v) - top
		e := exp(d)
		sum[i&7] += e
		if e != 0 {
			weighted[i&7] += float64(e * d)
		}
	}
}

// slopes are what [Head.Slopes] needs of a row beside its logits.
type slopes struct{ top, inv, dlp, dh, log, entropy float64 }

func headBackGeneric(z []float32, s slopes) {
	for j, v := range z {
		d := float64(v) - s.top
		p := float64(exp(d) * s.inv)
		g := -float64(s.dlp * p)
		if s.dh != 0 && p != 0 {
			g -= float64(float64(s.dh*p) * (d - s.log + s.entropy))
		}
		z[j] = float32(g)
	}
}

func swiGLUGeneric(y, gate, up []float32) {
	for i, g := range gate {
		y[i] = float32(silu(float64(g)) * float64(up[i]))
	}
}

func swiGLUBackGeneric(dgate, dup, dy, gate, up []float32) {
	for i, g := range gate {
		d, u := float64(dy[i]), float64(up[i])
		dgate[i], dup[i] = float32(float64(d*u)*siluSlope(float64(g))), float32(d*silu(float64(g)))
	}
}

func rmsNormGeneric(y, x, w []float32, eps float64) (r float32) {
	var sum lanes
	dotGeneric(x, x, &sum)
	r = float32(1 / math.Sqrt(sum.total()/float64(len(x))+eps))
	rmsNormRest(y, x, w, r)
	return r
}

func rmsNormRest(y, x, w []float32, r float32) {
	for j, v := range x {
		y[j] = w[j] * float32(v*r)
	}
}

// scaledDotGeneric adds fl(w·d)·x to sum.
func scaledDotGeneric(w, d, x []float32, sum *lanes) {
	for i, v := range x {
		sum[i&7] += float64(float64(float32(w[i]*d[i])) * float64(v))
	}
}

// share is what a row of n channels takes off each of its x in the gradient of RMSNorm.
func share(sum *lanes, r float32, n int) float32 {
	return float32(sum.total() * float64(r) * float64(r) / float64(n))
}

func rmsNormBackGeneric(dx, dy, x, w []float32, r float32) {
	var sum lanes
	scaledDotGeneric(w, dy, x, &sum)
	rmsNormBackRest(dx, dy, x, w, r, share(&sum, r, len(x)))
}

func rmsNormBackRest(dx, dy, x, w []float32, r, s float32) {
	for j, v := range x {
		dx[j] += float32(r * (float32(w[j]*dy[j]) - float32(v*s)))
	}
}

func addGeneric(dst, x, y []float32) {
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

// rotateGeneric rotates the pairs of x and y.
func rotateGeneric(x, y, cos, sin []float32, inverse bool) {
	for j, p := range x {
		q, s := y[j], sin[j]
		if inverse {
			s = -s
		}
		x[j] = float32(p*cos[j]) - float32(q*s)
		y[j] = float32(q*cos[j]) + float32(p*s)
	}
}
