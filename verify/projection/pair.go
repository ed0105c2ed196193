package projection

import (
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/reference/linalg"
	"plumbline/verify/tol"
)

// pair is a gradient before and after projection, and how far the second, p, is from the formula.
type pair struct {
	raw, out *target

	refNorm2  float64 // ‖g − Qc‖²
	outDotRef float64
	err2      float64 // ‖p − (g − Qc)‖²
	room2     float64 // ‖R‖², see second
	spike     spike   // the element with the largest error
	changed   int     // elements that the formula moves by more than rounding
	identical bool

	comp  [2][]float64 // components that one pass, and two passes, remove: c and 2c − QᵀQc
	tight [2]tol.Tally // p against one pass, and two, within the bound
	low   [2]tol.Tally // within what work in low16 can do
	low16 format.DType // the 16-bit type of p, else the one whose grid every element of it is on
}

type spike struct {
	at              int
	err2, got, want float64
}

// passes returns how many passes fit p better, 1 or 2. With Q orthonormal they are the same.
func (p *pair) passes() int {
	if p.tight[1].Failed < p.tight[0].Failed {
		return 2
	}
	return 1
}

// fit returns the comparisons with the number of passes that fits better.
func (p *pair) fit() (tight, low *tol.Tally) {
	i := p.passes() - 1
	return &p.tight[i], &p.low[i]
}

// second compares each projected gradient p with g − Qc, c = Qᵀg, element by element:
//
//	|p_j − (g − Qc)_j| <= R_j + Σ_k |q_jk|·L
//
// R_j is what the arithmetic of row j can make in float32, 2·ProjectionRow (a second pass is allowed), plus the storage of
// p. L = tol·‖g‖ is what gradient/component allows along each column. The error of a c that was summed in float32 in an
// unknown order may be as large as d·u·Σ|q·g|, which for long vectors bounds nothing; but that error is Q times something,
// and so it is L that judges it. Where Q is not quite orthonormal two passes give another result than one, by Q(QᵀQ − I)c:
// p is held against both, and must fit one of them as a whole.
func (in *Input) second(f *facts) error {
	k := in.Basis.K
	for _, p := range f.pairs {
		p.identical = true
		p.low16 = p.lowType()
		p.comp[0], p.comp[1] = p.raw.comp, make([]float64, len(p.raw.comp))
		again := defectTimes(f.gram, k, p.raw.comp, p.raw.cols)
		for i, c := range p.raw.comp {
			p.comp[1][i] = c - again[i]
		}
		for i := range p.tight {
			p.tight[i].Scale = math.Sqrt(p.raw.norm2 / float64(len(p.raw.v)))
			p.low[i].Scale, p.low[i].Coarse = p.tight[i].Scale, true
		}
	}
	return stream(in, "g − Q(Qᵀg)", func() []*pair {
		parts := make([]*pair, len(f.pairs))
		for i, p := range f.pairs {
			parts[i] = &pair{raw: p.raw, out: p.out, comp: p.comp, low16: p.low16, identical: true}
			for j := range p.tight {
				parts[i].tight[j].Scale, parts[i].low[j].Scale, parts[i].low[j].Coarse = p.tight[j].Scale, p.low[j].Scale, true
			}
		}
		return parts
	}, func(parts []*pair, q []float64, from, n int) {
		absQ := make([]float64, len(q))
		for i, v := range q {
			absQ[i] = math.Abs(v)
		}
		for _, p := range parts {
			p.rows(q, absQ, k, in.tol()*math.Sqrt(p.raw.norm2), from, n)
		}
	}, func(parts []*pair) {
		for i, p := range f.pairs {
			p.merge(parts[i])
		}
	})
}

// rows adds n rows of Q, the first of them from, to what p has measured.
func (p *pair) rows(q, absQ []float64, k int, limit float64, from, n int) {
	c := p.raw.cols
	lo := from * c
	g, out := p.raw.v[lo:lo+n*c], p.out.v[lo:lo+n*c]
	var ref [2][]float64
	for i := range ref {
		ref[i] = make([]float64, len(g))
		linalg.Remove(ref[i], q, k, g, p.comp[i], c)
	}
	size := make([]float64, len(g)) // Σ_k |q_jk|·|c_k| = 0 − |Q|·(−|C|)
	linalg.Remove(size, absQ, k, size, minusAbs(p.raw.comp), c)
	u, eta := p.out.dtype.Unit()
	lowU, lowEta := p.low16.Unit()
	var inside float64 // Σ_k |q_jk|·L
	for j := range g {
		if j%c == 0 {
			inside = limit * sum(absQ[j/c*k:(j/c+1)*k])
		}
		room := 2 * tol.ProjectionRow(k, tol.U32, size[j], g[j])
		if low16(p.out.dtype) {
			room += tol.Storage(ref[0][j], u, eta) * (1 + 2*u)
		}
		for i := range ref {
			p.tight[i].Add(lo+j, ref[i][j], out[j], room+inside)
			if p.low16 != format.Unknown {
				// c, Qc and p, all rounded to 16 bits.
				p.low[i].Add(lo+j, ref[i][j], out[j], room+inside+2*tol.Storage(math.Abs(ref[i][j])+size[j], lowU, lowEta))
			}
		}
		p.room2 += float64(room * room)
		p.refNorm2 += float64(ref[0][j] * ref[0][j])
		p.outDotRef += float64(out[j] * ref[0][j])
		e := out[j] - ref[0][j]
		e2 := float64(e * e)
		p.err2 += e2
		if e2 > p.spike.err2 {
			p.spike = spike{lo + j, e2, out[j], ref[0][j]}
		}
		if !(math.Abs(g[j]-ref[0][j]) <= room) {
			p.changed++
		}
		p.identical = p.identical && out[j] == g[j]
	}
}

func sum(x []float64) float64 {
	var s float64
	for _, v := range x {
		s += v
	}
	return s
}

// merge adds what a later run of rows has measured.
func (p *pair) merge(s *pair) {
	for i := range p.tight {
		p.tight[i].Merge(&s.tight[i])
		p.low[i].Merge(&s.low[i])
	}
	p.room2 += s.room2
	p.refNorm2 += s.refNorm2
	p.outDotRef += s.outDotRef
	p.err2 += s.err2
	if s.spike.err2 > p.spike.err2 {
		p.spike = s.spike
	}
	p.changed += s.changed
	p.identical = p.identical && s.identical
}

// lowType returns the 16-bit type that p is stored in, or whose grid every element of it is on.
func (p *pair) lowType() format.DType {
	if low16(p.out.dtype) {
		return p.out.dtype
	}
	for _, d := range []format.DType{format.BF16, format.F16} {
		if onGrid(p.out.v, d) {
			return d
		}
	}
	return format.Unknown
}

// onGrid reports whether every element is a number of the type d.
func onGrid(x []float64, d format.DType) bool {
	return !slices.ContainsFunc(x, func(v float64) bool { return format.Round(v, d) != v })
}

func minusAbs(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = -math.Abs(v)
	}
	return out
}
