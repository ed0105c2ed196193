package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Bounds of weights that nobody declares lie between those that are kept and those that are not, and are those that weights stand on.
func TestWeightsAreShown(t *testing.T) {
	const rows, cols = 24, 9
	rng := rand.New(rand.NewPCG(1, 8))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1, 1
	old, gen := make([]float64, rows*cols), make([]float64, rows*cols)
	sum, n := make([]float64, rows), make([]float64, rows)
	for i := range old {
		r := i / cols
		old[i] = float64(float32(-3 * rng.Float64()))
		gen[i] = float64(float32(old[i] + 0.1*rng.NormFloat64()))
		if b.Mask[i] = i%cols < 3+r%(cols-2); b.Mask[i] {
			sum[r], n[r] = sum[r]+old[i]-gen[i], n[r]+1
		}
	}
	token := func(_ int, d float64) float64 { return math.Exp(d) }
	row := func(r int, _ float64) float64 { return math.Exp(sum[r]) }
	mean := func(r int, _ float64) float64 { return math.Exp(sum[r] / n[r]) }
	clamp := func(_, by float64) float64 { return max(0.877, min(by, 1.123)) }
	drop := func(w, by float64) float64 {
		if by < 0.877 || by > 1.123 {
			return 0
		}
		return w
	}
	below := func(w, by float64) float64 {
		if by > 0.0173 {
			return 0
		}
		return w
	}
	apart := func(r int, d float64) float64 { // |p − q| of a token
		for i := r * cols; i < (r+1)*cols; i++ {
			if old[i]-gen[i] == d {
				return math.Abs(math.Exp(gen[i]) - math.Exp(old[i]))
			}
		}
		return math.NaN()
	}
	divergence := func(r int, d float64) float64 { // the binary KL of a token
		for i := r * cols; i < (r+1)*cols; i++ {
			if p, q := math.Exp(gen[i]), math.Exp(old[i]); old[i]-gen[i] == d {
				return 20 * (p*math.Log(p/q) + (1-p)*math.Log((1-p)/(1-q)))
			}
		}
		return math.NaN()
	}
	for _, tt := range []struct {
		weight, by func(r int, d float64) float64
		rule       func(w, by float64) float64
		divided    bool
		want       [2]string
	}{
		{token, apart, below, false, [2]string{"token", "zero_outside"}},
		{token, divergence, below, false, [2]string{"token", "zero_outside"}},
		{token, token, drop, false, [2]string{"token", "zero_outside"}},
		{token, token, clamp, false, [2]string{"token", "clamp"}},
		{row, row, clamp, false, [2]string{"seq_sum", "clamp"}},
		{mean, mean, drop, false, [2]string{"seq_geo", "zero_outside"}},
		{token, mean, drop, false, [2]string{"seq_geo", "seq_filter"}},
		{token, token, clamp, true, [2]string{"token", "clamp"}},
	} {
		w := make([]float64, rows*cols)
		var all, count float64
		for i, m := range b.Mask {
			if m {
				d := old[i] - gen[i]
				w[i] = tt.rule(tt.weight(i/cols, d), tt.by(i/cols, d))
				all, count = all+w[i], count+1
			}
		}
		for i := range w {
			if tt.divided {
				w[i] /= all / count
			}
			w[i] = float64(float32(w[i]))
		}
		for name, x := range map[string][]float64{"logp_old": old, "logp_gen": gen, "is_weights": w} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}}
		}
		fits, _ := Complete(Find("ratio/is_weights"), b, &convention.Set{})
		require.NotEmpty(t, fits, "%v, divided %t", tt.want, tt.divided)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		got := texts(fits[0].Changes)
		require.Equal(t, tt.want, [2]string{got["tis.level"], got["tis.rule"]})
		if tt.divided {
			require.Equal(t, "true", got["tis.normalize"])
		}
		// The same weights of an engine whose log-probs stand the other way round are those of no bounds.
		for i := range w {
			if b.Mask[i] {
				w[i] = float64(float32(math.Exp(gen[i]-old[i]) * 1.5))
			}
		}
		fits, _ = Complete(Find("ratio/is_weights"), b, &convention.Set{})
		for _, f := range fits {
			require.NotEqual(t, check.Pass, f.Outcome.Verdict, "%v", texts(f.Changes))
		}
	}
}

// Of bounds by which most rows are left out every step shows a part, and no step all.
func TestBoundsOfWeightsAreThoseOfAllSteps(t *testing.T) {
	const rows, cols, high = 6, 10, 1.0002
	var steps []Step
	for n := range 4 {
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
		b.Meta.Step = n + 1
		old, gen, w := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for r := range rows {
			mean := 0.004 * math.Sin(float64(7*r+3*n))
			switch r {
			case 0: // kept
				mean = 0.00015 + 0.00001*float64(n)
			case 1: // left out, and near
				mean = 0.00024 + 0.00002*float64(3-n)
			case 2:
				mean = -0.0012
			}
			var sum float64
			for i := r * cols; i < (r+1)*cols; i++ {
				b.Mask[i], gen[i] = true, -1-0.1*float64(i%7)
				old[i] = gen[i] + mean + 0.01*math.Sin(2*math.Pi*float64(i%cols)/cols)
				sum += old[i] - gen[i]
			}
			x := math.Exp(sum / cols)
			if x > high || x < 0.9999 {
				x = 0
			}
			for i := r * cols; i < (r+1)*cols; i++ {
				w[i] = float64(float32(x))
			}
		}
		for name, x := range map[string][]float64{"logp_old": old, "logp_gen": gen, "is_weights": w} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}}
		}
		steps = append(steps, Step{b, &convention.Set{}})
	}
	fits := SolveWeights(Find("ratio/is_weights"), steps)
	require.NotEmpty(t, fits)
	got := texts(fits[0].Changes)
	require.Equal(t, [3]string{"seq_geo", "zero_outside", "1.0002"}, [3]string{got["tis.level"], got["tis.rule"], got["tis.high"]})
}
