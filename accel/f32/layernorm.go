package f32

import "math"

// LayerNorm stores in y the layer normalisation of the rows of x [N, C], with weight w and bias b [C], and in mean and rstd [N], unless
// they are nil, what [LayerNormBackward] needs (the mean in float64: a large one would otherwise cost x − μ its digits):
//
//	y_i = w_i·((x_i − μ)·r) + b_i,   μ = Σx/C,   r = 1/√(v + ε),   v = Σ(x − μ)²/C
//
// The sums are of float64 and the variance is that of the differences, never E[x²] − μ². y may be x. It panics if the lengths do not fit.
//
// Source: Ba et al. 2016, as torch.nn.LayerNorm.
func LayerNorm(y, x, w, b []float32, eps float64, mean []float64, rstd []float32) {
	n := rows("layernorm", len(x), len(w))
	same("layernorm", len(y), len(x))
	same("layernorm", len(b), len(w))
	if rstd != nil {
		same("layernorm", len(rstd), n)
		same("layernorm", len(mean), n)
	}
	c := len(w)
	for i := range n {
		in, out := x[i*c:(i+1)*c], y[i*c:(i+1)*c]
		var sum, squares float64
		for _, v := range in {
			sum += float64(v)
		}
		mu := sum / float64(c)
		for _, v := range in {
			d := float64(v) - mu
			squares += float64(d * d)
		}
		r := 1 / math.Sqrt(squares/float64(c)+eps)
		if rstd != nil {
			mean[i], rstd[i] = mu, float32(r)
		}
		for j, v := range in {
			out[j] = float32(w[j]*float32((float64(v)-mu)*r)) + b[j]
		}
	}
}

// LayerNormBackward adds to dx [N, C] the gradient by x from dy, the gradient by y. Weight and bias are frozen and have none.
//
//	dx_i += r·(g_i − Σg/C − x̂_i·Σ_j g_j·x̂_j/C),   g = w∘dy,   x̂ = (x − μ)·r
func LayerNormBackward(dx, dy, x, w []float32, mean []float64, rstd []float32) {
	n := rows("layernorm", len(x), len(w))
	same("layernorm", len(dx), len(x))
	same("layernorm", len(dy), len(x))
	same("layernorm", len(mean), n)
	same("layernorm", len(rstd), n)
	c := len(w)
	for i := range n {
		in, d, out := x[i*c:(i+1)*c], dy[i*c:(i+1)*c], dx[i*c:(i+1)*c]
		mu, r := mean[i], rstd[i]
		var sum, dot float64
		for j, v := range in {
			g := float64(w[j] * d[j])
			sum += g
			dot += float64(g * float64(float32((float64(v)-mu)*float64(r))))
		}
		sum, dot = sum/float64(c), dot/float64(c)
		for j, v := range in {
			hat := float64(float32((float64(v) - mu) * float64(r)))
			out[j] += float32(float64(r) * (float64(w[j]*d[j]) - sum - float64(hat*dot)))
		}
	}
}
