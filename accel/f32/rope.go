package f32

import (
	"fmt"
	"math"
)

// RoPE is a rotary position embedding: the first Dim of the D channels of a head are rotated pairwise by an angle that grows with the
// position, the others pass. Su et al. 2021, Equation 34.
type RoPE struct {
	Dim int // even, at most D
	// Interleaved pairs the channels 2j and 2j+1, as GPT-J does; otherwise j and j + Dim/2 are a pair, as in Llama and Qwen2.
	Interleaved bool
	// Frequencies [Dim/2] are the angles per position, Factor is what cosine and sine are multiplied by: 1, but for yarn.
	Frequencies []float64
	Factor      float64
}

// Tables returns cosine and sine, times Factor, of the angles of the positions pos, [len(pos), Dim/2] each: computed in float64 and
// rounded once, so that each is exact to half a unit of float32 at any position.
func (r RoPE) Tables(pos []int) (cos, sin []float32) {
	half := len(r.Frequencies)
	cos, sin = make([]float32, len(pos)*half), make([]float32, len(pos)*half)
	for i, p := range pos {
		for j, f := range r.Frequencies {
			s, c := math.Sincos(float64(p) * f)
			cos[i*half+j], sin[i*half+j] = float32(c*r.Factor), float32(s*r.Factor)
		}
	}
	return cos, sin
}

// Apply rotates x [N, H, D] in place, the heads of token i by row i of the tables:
//
//	x' = x·cos a − y·sin a,   y' = y·cos a + x·sin a
//
// With inverse the sine has the other sign: that is the gradient of the rotation, and its inverse where Factor is 1. It panics if the
// shapes do not fit.
func (r RoPE) Apply(x []float32, heads, dim int, cos, sin []float32, inverse bool) {
	half := r.Dim / 2
	if r.Dim > dim || r.Dim < 2 || r.Dim%2 != 0 || heads < 1 || len(r.Frequencies) != half {
		panic(fmt.Sprintf("f32: rope: %d rotated channels of heads of %d", r.Dim, dim))
	}
	n := rows("rope", len(x), heads*dim)
	same("rope", len(cos), n*half)
	same("rope", len(sin), n*half)
	turn := rotate.Func()
	for i := range n {
		c, s := cos[i*half:(i+1)*half], sin[i*half:(i+1)*half]
		for h := range heads {
			head := x[(i*heads+h)*dim : (i*heads+h)*dim+r.Dim]
			if !r.Interleaved {
				turn(head[:half], head[half:], c, s, inverse)
				continue
			}
			for j := range half {
				si := s[j]
				if inverse {
					si = -si
				}
				p, q := head[2*j], head[2*j+1]
				head[2*j] = float32(p*c[j]) - float32(q*si)
				head[2*j+1] = float32(q*c[j]) + float32(p*si)
			}
		}
	}
}
