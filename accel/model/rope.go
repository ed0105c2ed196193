package model

import (
	"cmp"
	"fmt"
	"math"

	"plumbline/internal/arch"
)

// Frequencies returns the angles per position of a rotary embedding [Dim/2], in float64, and what cosine and sine are multiplied by. With f_j = θ^(−2j/d), N the original number of positions and λ_j = 2π/f_j
// the wavelength:
//
//	linear  f_j/factor
//	llama3  f_j for short waves, λ_j < N/high; f_j/factor for long ones, λ_j > N/low; between them the mean of both that is linear in N/λ_j
//	yarn    f_j for pairs that turn more often than beta_fast in N positions, f_j/factor for those that turn less often than beta_slow,
//	        between them a mean that is linear in j; cosine and sine are multiplied by 0.1·ln factor + 1 or what the file says
//
// Sources: Chen et al. 2023; Peng et al. 2023, Section 3.2; transformers' modeling_rope_utils. Types whose frequencies depend on the length
// of the text are refused.
func Frequencies(r arch.Rope) (freq []float64, factor float64, err error) {
	if r.Dim < 2 || r.Dim%2 != 0 || !(r.Theta > 0) || math.IsInf(r.Theta, 0) {
		return nil, 0, fmt.Errorf("model: rotary positions with %d channels and a base of %g", r.Dim, r.Theta)
	}
	for j := 0; j < r.Dim; j += 2 {
		freq = append(freq, math.Pow(r.Theta, -float64(j)/float64(r.Dim)))
	}
	n := float64(r.OriginalPositions)
	switch r.Type {
	case "", "default":
	case "linear":
		for j := range freq {
			freq[j] /= r.Factor
		}
	case "llama3":
		for j, f := range freq {
			turns := n * f / (2 * math.Pi) // N/λ
			kept := min(max((turns-r.LowFreqFactor)/(r.HighFreqFactor-r.LowFreqFactor), 0), 1)
			freq[j] = float64(kept*f) + float64((1-kept)*f)/r.Factor
		}
	case "yarn":
		fast, slow := cmp.Or(r.BetaFast, 32), cmp.Or(r.BetaSlow, 1)
		// the pair j with N·f_j/2π = turns
		pair := func(turns float64) float64 {
			return float64(r.Dim) / 2 * math.Log(n/(2*math.Pi*turns)) / math.Log(r.Theta)
		}
		lo, hi := pair(fast), pair(slow)
		if !r.NoTruncate {
			lo, hi = math.Floor(lo), math.Ceil(hi)
		}
		lo, hi = max(lo, 0), min(hi, float64(r.Dim-1))
		if lo == hi {
			hi += 0.001
		}
		for j, f := range freq {
			divided := min(max((float64(j)-lo)/(hi-lo), 0), 1)
			freq[j] = float64((1-divided)*f) + float64(divided*f)/r.Factor
		}
		return freq, yarnFactor(r), nil
	default:
		return nil, 0, fmt.Errorf("model: rotary positions of type %q are not computed: their frequencies depend on the length of the text", r.Type)
	}
	return freq, 1, nil
}

func yarnFactor(r arch.Rope) float64 {
	grown := func(scale float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 1 + float64(0.1*scale*math.Log(r.Factor))
	}
	switch {
	case r.AttentionFactor != 0:
		return r.AttentionFactor
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return grown(r.MScale) / grown(r.MScaleAllDim)
	}
	return grown(1)
}
