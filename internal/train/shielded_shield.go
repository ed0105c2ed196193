package train

import (
	"math"
	"slices"
	"strings"
	"time"

	"plumbline/reference/optim"
)

// Shield keeps span(Q) out of what is added to the parameters:
//
//	v ← v − Q(Qᵀv)
//
// QT holds the columns of Q as contiguous rows; Q·Qᵀ is never formed. Sets of vectors v are parallel to the parameters.
type Shield struct {
	Kind  string
	D, K  int
	qt    []float64 // [K, D]
	slabs []slab
	// Bare are the names of the lora_B of another width that a side basis does not shield.
	Bare []string
}

// slab is a matrix [D, cols] that Q is applied to: the tensors of the parameters of these numbers, one under the other.
type slab struct {
	at   []int
	cols int
}

// NewShield joins a basis to the parameters. A side basis does not fit a lora_B of another width: it is an error unless skip names its
// target.
func NewShield(b *Basis, params []Param, skip []string) (*Shield, error) {
	s := &Shield{Kind: b.Kind, D: b.D, K: b.K, qt: make([]float64, len(b.Q))}
	for i := range b.D {
		for j := range b.K {
			s.qt[j*b.D+i] = b.Q[i*b.K+j]
		}
	}
	if b.Kind == Flat {
		one := slab{cols: 1}
		for _, span := range Flattened(params) {
			one.at = append(one.at, slices.IndexFunc(params, func(p Param) bool { return peftPrefix+p.Name == span.Name }))
		}
		s.slabs = []slab{one}
		return s, nil
	}
	for i, p := range params {
		layer, isB := strings.CutSuffix(p.Name, ".lora_B.weight")
		target := layer[strings.LastIndexByte(layer, '.')+1:]
		switch {
		case !isB:
		case p.Shape[0] == b.D:
			s.slabs = append(s.slabs, slab{[]int{i}, p.Shape[1]})
		case slices.Contains(skip, target):
			s.Bare = append(s.Bare, layer)
		default:
			return nil, unfit("%s is %d wide and the side basis has d = %d: it would not be shielded; leave it out of lora.targets, or name it in projection.skip", layer, p.Shape[0], b.D)
		}
	}
	return s, nil
}

// gather copies the tensors of a slab into one matrix.
func (b slab) gather(v [][]float64) (x []float64) {
	for _, i := range b.at {
		x = append(x, v[i]...)
	}
	return x
}

func (b slab) scatter(v [][]float64, x []float64) {
	for _, i := range b.at {
		x = x[copy(v[i], x):]
	}
}

// components returns QᵀX [K, cols].
func (s *Shield) components(x []float64, cols int) []float64 {
	c := make([]float64, s.K*cols)
	for j := range s.K {
		row, to := s.qt[j*s.D:(j+1)*s.D], c[j*cols:(j+1)*cols]
		for i, q := range row {
			for l, v := range x[i*cols : (i+1)*cols] {
				to[l] += float64(q * v)
			}
		}
	}
	return c
}

// Leak returns max|Qᵀv| / max(1, ‖v‖), over the slabs: what verify projection measures.
func (s *Shield) Leak(v [][]float64) float64 {
	worst := 0.0
	for _, b := range s.slabs {
		x := b.gather(v)
		top, norm := 0.0, 0.0
		for _, c := range s.components(x, b.cols) {
			if a := math.Abs(c); !(a <= top) {
				top = a
			}
		}
		for _, e := range x {
			norm += float64(e * e)
		}
		if leak := top / max(1, math.Sqrt(norm)); !(leak <= worst) {
			worst = leak
		}
	}
	return worst
}

// Project removes from v what lies in span(Q), passes times over.
func (s *Shield) Project(v [][]float64, passes int) {
	for _, b := range s.slabs {
		x := b.gather(v)
		for range passes {
			c := s.components(x, b.cols)
			for j := range s.K {
				row, from := s.qt[j*s.D:(j+1)*s.D], c[j*b.cols:(j+1)*b.cols]
				for i, q := range row {
					to := x[i*b.cols : (i+1)*b.cols]
					for l, w := range from {
						to[l] -= float64(q * w)
					}
				}
			}
		}
		b.scatter(v, x)
	}
}

// measure stores what is measured of the gradient.
func (s *Shielding) measure(out *Updated, grads [][]float64) {
	if s.Flow {
		for _, g := range grads {
			sum := 0.0
			for _, v := range g {
				sum += math.Abs(v)
			}
			out.Flow = append(out.Flow, sum/float64(max(1, len(g))))
		}
	}
	if s.Keep {
		out.Raw = deepClone(grads)
	}
	if s.Shield != nil {
		p := deepClone(grads)
		s.Project(p, s.Passes)
		out.ProjectedNorm = globalNorm(p)
		if s.Keep {
			out.Projected = p
		}
	}
}

// project projects v, the increment or the gradient, in the mode that does it.
func (s *Shielding) project(out *Updated, v [][]float64, mode string) {
	if s.Shield == nil || s.Mode != mode {
		return
	}
	out.Before = s.Leak(v)
	kept := deepClone(v)
	at := time.Now()
	s.Project(v, s.Passes)
	out.Spent = time.Since(at)
	out.After, out.Idle = s.Leak(v), slices.EqualFunc(v, kept, slices.Equal[[]float64])
}

// delta returns W − W_init.
func (s *Shielding) delta(params []Param) [][]float64 {
	out := make([][]float64, len(params))
	for i, p := range params {
		for j, w := range p.Data {
			out[i] = append(out[i], w-s.Initial[i][j])
		}
	}
	return out
}

func deepClone(v [][]float64) [][]float64 {
	out := make([][]float64, len(v))
	for i := range v {
		out[i] = slices.Clone(v[i])
	}
	return out
}

func globalNorm(v [][]float64) float64 { return optim.ClipGlobalNorm(v, math.Inf(1)) }
