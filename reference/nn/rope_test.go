package nn

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The rotation keeps the length of each pair, passes the other channels bit for bit, does nothing at position 0, is undone by
// the opposite one, and lets scores depend on distances only.
func TestRoPE(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		half, rest, b, n, h := size(t, "half", 3), rapid.IntRange(0, 3).Draw(t, "rest"), size(t, "b", 2), size(t, "t", 3), size(t, "h", 2)
		p := RoPE{Dim: 2 * half, Theta: rapid.SampledFrom([]float64{2, 10000}).Draw(t, "theta"), Interleaved: rapid.Bool().Draw(t, "interleaved")}
		d := p.Dim + rest
		in := random(r, b, n, h, d)
		x := leaves(in)[0]
		pos, zero, back, later := make([]int, b*n), make([]int, b*n), make([]int, b*n), make([]int, b*n)
		for i := range pos {
			pos[i] = r.IntN(2000)
			back[i], later[i] = -pos[i], pos[i]+77
		}
		y := p.Apply(x, pos)
		freq, _ := p.Frequencies()
		for row := 0; row < len(in.Data); row += d {
			at := pos[row/(h*d)]
			for j := range half {
				k, l := j, j+half
				if p.Interleaved {
					k, l = 2*j, 2*j+1
				}
				// the pair as a complex number, turned by the angle
				u := complex(in.Data[row+k], in.Data[row+l])
				s, c := math.Sincos(float64(at) * freq[j])
				w := u * complex(c, s)
				require.InDelta(t, real(w), y.Data()[row+k], 1e-14)
				require.InDelta(t, imag(w), y.Data()[row+l], 1e-14)
			}
			require.Equal(t, in.Data[row+p.Dim:row+d], y.Data()[row+p.Dim:row+d])
		}
		require.Equal(t, in.Data, p.Apply(x, zero).Data())
		near(t, in.Data, p.Apply(y, back).Data())

		other := leaves(random(r, b, n, h, d))[0]
		score := func(at []int) (sums []float64) {
			u, v := p.Apply(x, at).Data(), p.Apply(other, slices.Repeat([]int{at[0]}, len(at))).Data()
			for row := 0; row < len(u); row += d {
				var sum float64
				for j := range d {
					sum += u[row+j] * v[row+j]
				}
				sums = append(sums, sum)
			}
			return sums
		}
		a, c := score(pos), score(later)
		for i := range a { // the angles have a relative error of 2⁻⁵³
			require.InDelta(t, a[i], c[i], 1e-11)
		}
	})
}

func TestRoPEValidate(t *testing.T) {
	good := RoPE{Dim: 4, Theta: 10000}
	require.NoError(t, good.Validate())
	for _, s := range []RoPEScaling{{Type: "default"}, {Type: "linear", Factor: 1}, {Type: "yarn", Factor: 2, OriginalMaxPositions: 64},
		{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 64}} {
		r := good
		r.Scaling = s
		require.NoError(t, r.Validate())
	}
	for want, change := range map[string]func(r *RoPE){
		"3 rotated channels":                             func(r *RoPE) { r.Dim = 3 },
		"0 rotated channels":                             func(r *RoPE) { r.Dim = 0 },
		"rope_theta NaN":                                 func(r *RoPE) { r.Theta = math.NaN() },
		"rope_theta +Inf":                                func(r *RoPE) { r.Theta = math.Inf(1) },
		`rope_type "dynamic"`:                            func(r *RoPE) { r.Scaling.Type = "dynamic" },
		`rope_type "longrope"`:                           func(r *RoPE) { r.Scaling.Type = "longrope" },
		"rope_type linear: factor 0":                     func(r *RoPE) { r.Scaling.Type = "linear" },
		"rope_type linear: factor 0.5 is not at least 1": func(r *RoPE) { r.Scaling = RoPEScaling{Type: "linear", Factor: 0.5} },
		"rope_type yarn: factor 0.999 is not":            func(r *RoPE) { r.Scaling = RoPEScaling{Type: "yarn", Factor: 0.999, OriginalMaxPositions: 8} },
		"factor NaN":                                     func(r *RoPE) { r.Scaling = RoPEScaling{Type: "linear", Factor: math.NaN()} },
		"original_max_position_embeddings 0":             func(r *RoPE) { r.Scaling = RoPEScaling{Type: "yarn", Factor: 2} },
		"low_freq_factor 4 must be positive": func(r *RoPE) {
			r.Scaling = RoPEScaling{Type: "llama3", Factor: 2, OriginalMaxPositions: 8, LowFreqFactor: 4, HighFreqFactor: 4}
		},
		"rope_type yarn: a parameter is -1": func(r *RoPE) { r.Scaling = RoPEScaling{Type: "yarn", Factor: 2, OriginalMaxPositions: 8, BetaFast: -1} },
		"rope_type yarn: rope_theta is 1": func(r *RoPE) {
			*r = RoPE{Dim: 4, Theta: 1, Scaling: RoPEScaling{Type: "yarn", Factor: 2, OriginalMaxPositions: 8}}
		},
		"rope_type yarn: a parameter is +Inf": func(r *RoPE) {
			r.Scaling = RoPEScaling{Type: "yarn", Factor: 2, OriginalMaxPositions: 8, MScale: math.Inf(1)}
		},
	} {
		r := good
		change(&r)
		require.ErrorContains(t, r.Validate(), want)
		require.Panics(t, func() { r.Frequencies() })
	}
}

// Yarn with ends that meet has the step that transformers gives it, and frequencies stay finite.
func TestYarnEndsMeet(t *testing.T) {
	r := RoPE{Dim: 8, Theta: 10000, Scaling: RoPEScaling{Type: "yarn", Factor: 4, OriginalMaxPositions: 1}}
	freq, factor := r.Frequencies()
	require.InDelta(t, 0.1*math.Log(4)+1, factor, 1e-15)
	for j, f := range freq {
		want := math.Pow(10000, -float64(j)/4)
		if j > 0 { // the ramp is over at the first pair
			want /= 4
		}
		require.InEpsilon(t, want, f, 1e-14)
	}
}
