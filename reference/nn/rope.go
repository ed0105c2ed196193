package nn

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"plumbline/reference/ad"
)

// RoPE is a rotary position embedding: the first Dim of the D channels of a head are rotated pairwise by an angle that
// grows with the position, the others pass. Su et al. 2021 (https://arxiv.org/abs/2104.09864), Equation 34.
type RoPE struct {
	Dim   int     // even, at most D: rotary_dim, or D·partial_rotary_factor
	Theta float64 // the base of the frequencies: rope_theta; 10000 in the paper
	// Interleaved pairs the channels 2j and 2j+1, as GPT-J and the paper do. Otherwise j and j + Dim/2 are a pair, as in
	// Llama and Qwen2.
	Interleaved bool
	Scaling     RoPEScaling
}

// RoPEScaling stretches the frequencies for contexts longer than those of the training. The fields are those of
// rope_parameters (earlier rope_scaling) in a config.json; a zero means that the file does not have it.
type RoPEScaling struct {
	Type                 string  // rope_type: "", default, linear, llama3 or yarn
	Factor               float64 // of linear, llama3, yarn
	LowFreqFactor        float64 // of llama3
	HighFreqFactor       float64 // of llama3
	OriginalMaxPositions float64 // original_max_position_embeddings, of llama3 and yarn
	BetaFast, BetaSlow   float64 // of yarn; by default 32 and 1
	AttentionFactor      float64 // of yarn; by default from MScale and MScaleAllDim, or 0.1·ln Factor + 1
	MScale, MScaleAllDim float64 // of yarn
	NoTruncate           bool    // of yarn: truncate is false, the ends of its ramp are not rounded
}

// Validate returns an error that names the first parameter out of range. The types dynamic and longrope are refused: their
// frequencies depend on the length of the sequence, dynamic's on what was decoded before, so there is no one right value.
func (r RoPE) Validate() error {
	s := r.Scaling
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
	switch {
	case r.Dim < 2 || r.Dim%2 != 0:
		return fmt.Errorf("nn: rope: %d rotated channels: must be even and at least 2", r.Dim)
	case !positive(r.Theta):
		return fmt.Errorf("nn: rope: rope_theta %g is not positive", r.Theta)
	}
	switch s.Type {
	case "", "default":
		return nil
	case "linear", "llama3", "yarn":
	default:
		return fmt.Errorf("nn: rope: rope_type %q is not one of default, linear, llama3, yarn", s.Type)
	}
	if !(s.Factor >= 1) || math.IsInf(s.Factor, 0) {
		return fmt.Errorf("nn: rope: rope_type %s: factor %g is not at least 1", s.Type, s.Factor)
	}
	if s.Type != "linear" && !positive(s.OriginalMaxPositions) {
		return fmt.Errorf("nn: rope: rope_type %s: original_max_position_embeddings %g is not positive", s.Type, s.OriginalMaxPositions)
	}
	if s.Type == "llama3" && !(positive(s.LowFreqFactor) && positive(s.HighFreqFactor) && s.LowFreqFactor < s.HighFreqFactor) {
		return fmt.Errorf("nn: rope: rope_type llama3: low_freq_factor %g must be positive and below high_freq_factor %g", s.LowFreqFactor, s.HighFreqFactor)
	}
	if s.Type == "yarn" {
		if r.Theta == 1 {
			return errors.New("nn: rope: rope_type yarn: rope_theta is 1")
		}
		for _, v := range []float64{s.BetaFast, s.BetaSlow, s.AttentionFactor, s.MScale, s.MScaleAllDim} {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("nn: rope: rope_type yarn: a parameter is %g", v)
			}
		}
	}
	return nil
}

// Frequencies returns the angle per position of each of the Dim/2 pairs, and the factor by which the cosine and the sine
// are multiplied. With f_j = Theta^{−2j/Dim}:
//
//	default  f_j
//	linear   f_j/factor (Chen et al. 2023, https://arxiv.org/abs/2306.15595)
//	llama3   f_j where the wavelength 2π/f_j < N/high_freq_factor, f_j/factor where it is > N/low_freq_factor, between
//	         them (1−s)·f_j/factor + s·f_j with s = (N·f_j/2π − low)/(high − low)
//	yarn     (1−e)·f_j/factor + e·f_j, e = 1 − clamp((j − lo)/(hi − lo), 0, 1), where lo and hi are the j that turn
//	         beta_fast and beta_slow times in N positions (Peng et al. 2023, https://arxiv.org/abs/2309.00071, Section 3.2)
//
// where N is original_max_position_embeddings. The factor is 1 but for yarn. Formulas and defaults are those of
// transformers@5.23.0 modeling_rope_utils, in float64. It panics if r is not valid.
func (r RoPE) Frequencies() (freq []float64, factor float64) {
	if err := r.Validate(); err != nil {
		panic(err.Error())
	}
	s, n := r.Scaling, r.Scaling.OriginalMaxPositions
	freq = make([]float64, r.Dim/2)
	for j := range freq {
		freq[j] = 1 / math.Pow(r.Theta, float64(2*j)/float64(r.Dim))
	}
	switch s.Type {
	case "linear":
		for j := range freq {
			freq[j] /= s.Factor
		}
	case "llama3":
		for j, f := range freq {
			wave := 2 * math.Pi / f
			switch {
			case wave < n/s.HighFreqFactor:
			case wave > n/s.LowFreqFactor:
				freq[j] = f / s.Factor
			default:
				mix := (n/wave - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
				freq[j] = float64((1-mix)*f/s.Factor) + float64(mix*f)
			}
		}
	case "yarn":
		lo, hi := r.yarnRamp()
		for j, f := range freq {
			ramp := min(max((float64(j)-lo)/(hi-lo), 0), 1)
			freq[j] = float64(f/s.Factor*ramp) + float64(f*(1-ramp))
		}
		return freq, s.yarnFactor()
	}
	return freq, 1
}

// yarnRamp returns the pairs between which yarn goes over from keeping to dividing a frequency.
func (r RoPE) yarnRamp() (lo, hi float64) {
	s := r.Scaling
	fast, slow := cmp.Or(s.BetaFast, 32), cmp.Or(s.BetaSlow, 1)
	pair := func(turns float64) float64 { // that turns so often in N positions
		return float64(r.Dim) * math.Log(s.OriginalMaxPositions/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	lo, hi = pair(fast), pair(slow)
	if !s.NoTruncate {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	}
	lo, hi = max(lo, 0), min(hi, float64(r.Dim-1))
	if lo == hi {
		hi += 0.001 // as the framework does, so that the ramp has a slope
	}
	return lo, hi
}

func (s RoPEScaling) yarnFactor() float64 {
	grown := func(m float64) float64 {
		if s.Factor <= 1 {
			return 1
		}
		return float64(0.1*m*math.Log(s.Factor)) + 1
	}
	switch {
	case s.AttentionFactor != 0:
		return s.AttentionFactor
	case s.MScale != 0 && s.MScaleAllDim != 0:
		return grown(s.MScale) / grown(s.MScaleAllDim)
	}
	return grown(1)
}

// Apply rotates the heads x [B, T, H, D] of the tokens at the positions pos [B·T]. With the angle a = pos·freq_j and the
// factor m of [RoPE.Frequencies], the pair (x, y) becomes
//
//	x' = x·m·cos a − y·m·sin a,   y' = y·m·cos a + x·m·sin a
//
// It panics if the shapes do not fit or r is not valid.
func (r RoPE) Apply(x *ad.Var, pos []int) *ad.Var {
	s := x.Shape()
	if len(s) != 4 || r.Dim > s[3] || len(pos) != s[0]*s[1] {
		panic(fmt.Sprintf("nn: rope: %d positions and %d rotated channels for heads of shape %v", len(pos), r.Dim, s))
	}
	freq, factor := r.Frequencies()
	b, t, h, half := s[0], s[1], s[2], len(freq)
	cos, sin := make([]float64, len(pos)*half), make([]float64, len(pos)*half)
	for i, p := range pos {
		for j, f := range freq {
			a := float64(p) * f
			cos[i*half+j], sin[i*half+j] = math.Cos(a)*factor, math.Sin(a)*factor
		}
	}
	c, d := x.Tape().Const(cos, b, t, 1, half), x.Tape().Const(sin, b, t, 1, half)

	rotated, rest := ad.Slice(x, 3, 0, r.Dim), ad.Slice(x, 3, r.Dim, s[3])
	var p, q *ad.Var
	if r.Interleaved {
		pairs := ad.Reshape(rotated, b, t, h, half, 2)
		p = ad.Reshape(ad.Slice(pairs, 4, 0, 1), b, t, h, half)
		q = ad.Reshape(ad.Slice(pairs, 4, 1, 2), b, t, h, half)
	} else {
		p, q = ad.Slice(rotated, 3, 0, half), ad.Slice(rotated, 3, half, r.Dim)
	}
	p, q = ad.Sub(ad.Mul(p, c), ad.Mul(q, d)), ad.Add(ad.Mul(q, c), ad.Mul(p, d))
	if r.Interleaved {
		pairs := ad.Concat(4, ad.Reshape(p, b, t, h, half, 1), ad.Reshape(q, b, t, h, half, 1))
		return ad.Concat(3, ad.Reshape(pairs, b, t, h, r.Dim), rest)
	}
	return ad.Concat(3, p, q, rest)
}
