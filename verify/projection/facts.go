package projection

import (
	"fmt"
	"math"

	"plumbline/internal/format"
	"plumbline/reference/linalg"
	"plumbline/verify/tol"
)

// facts is what the passes over Q measured; every check reads from it.
type facts struct {
	finite    bool
	firstBad  [2]int // row and column of the first element that is not finite
	badValue  float64
	badCount  int
	gram      []float64 // K×K
	defect    float64   // max|QᵀQ − I| and its columns
	di, dj    int
	storage   float64 // bound on the defect that storing Q in 16 bits can make
	rank      int
	sigma     [2]float64
	rankKnown bool

	grads, projected, updates []reading // one per set
	adapter                   reading
	adapterMode               string // "weights-delta" or "weights-raw"
	pairs                     []*pair
}

// all returns every target in the order of the input.
func (f *facts) all() []*target {
	var out []*target
	for _, rs := range [][]reading{f.grads, f.projected, f.updates, {f.adapter}} {
		for i := range rs {
			for j := range rs[i].targets {
				out = append(out, &rs[i].targets[j])
			}
		}
	}
	return out
}

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

// broken reports whether Q is further from orthonormal than its limit: then P is no projection, and what follows from
// that is not a second fault.
func (in *Input) broken(f *facts) bool { return !(f.defect < max(in.tol(), f.storage)) }

// measure runs the passes, once.
func (in *Input) measure() (*facts, error) {
	in.once.Do(func() { in.facts, in.err = in.pass() })
	return in.facts, in.err
}

func (in *Input) pass() (*facts, error) {
	f := &facts{}
	b := in.Basis
	if !b.readable() {
		return f, nil
	}
	in.read(f)
	if err := in.first(f); err != nil {
		return nil, err
	}
	if !f.finite {
		return f, nil
	}
	f.defect, f.di, f.dj = linalg.Defect(f.gram, b.K)
	f.rank, f.sigma[0], f.sigma[1], f.rankKnown = linalg.Rank(f.gram, b.K)
	if u, _ := b.DType.Unit(); low16(b.DType) {
		// Rounding moves q by at most u·|q|, so q_i·q_j by at most (2u + u²)·Σ|q_ri·q_rj| <= (2u + u²)·‖q_i‖·‖q_j‖.
		f.storage = (2*u + u*u) * (1 + f.defect)
	}
	if len(f.pairs) > 0 {
		if err := in.second(f); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// read matches every set with the basis.
func (in *Input) read(f *facts) {
	for i, s := range in.Grads {
		r := projectedGrad
		if i < len(in.Projected) {
			r = rawGrad
		}
		f.grads = append(f.grads, in.match(s, r, "gradient"))
	}
	for _, s := range in.Projected {
		f.projected = append(f.projected, in.match(s, projectedGrad, "projected"))
	}
	for _, s := range in.Updates {
		f.updates = append(f.updates, in.match(s, update, "update"))
	}
	switch {
	case in.Adapter == nil:
	case in.Init == nil:
		f.adapterMode, f.adapter = "weights-raw", in.match(*in.Adapter, rawWeights, "lora_flat")
	default:
		f.adapterMode = "weights-delta"
		if delta, problem := difference(*in.Adapter, *in.Init); problem != "" {
			f.adapter.problem = problem
		} else {
			f.adapter = in.match(delta, weightDelta, "lora_flat")
		}
	}
	for i := range min(len(f.grads), len(f.projected)) {
		raws, outs := f.grads[i].targets, f.projected[i].targets
		for a := range raws {
			for b := range outs {
				same := raws[a].name == outs[b].name || len(raws) == 1 && len(outs) == 1
				if same && raws[a].cols == outs[b].cols {
					raws[a].pair = &outs[b]
					f.pairs = append(f.pairs, &pair{raw: &raws[a], out: &outs[b]})
				}
			}
		}
	}
}

// difference returns w − init by tensor name. The storage error of both is carried along: it can be larger than the
// change.
func difference(w, init Set) (Set, string) {
	before := map[string]*Tensor{}
	for i := range init.Tensors {
		before[init.Tensors[i].Name] = &init.Tensors[i]
	}
	out := Set{Name: w.Name}
	for _, t := range loraOnly(w.Tensors) {
		o, ok := before[t.Name]
		if !ok {
			return out, fmt.Sprintf("tensor %q is in %s but not in %s", t.Name, w.Name, init.Name)
		}
		delete(before, t.Name)
		if fmt.Sprint(o.Shape) != fmt.Sprint(t.Shape) {
			return out, fmt.Sprintf("tensor %q has shape %s in %s and %s in %s", t.Name, shapeString(t.Shape), w.Name, shapeString(o.Shape), init.Name)
		}
		d := Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: make([]float64, len(t.Data))}
		for i := range d.Data {
			d.Data[i] = t.Data[i] - o.Data[i]
		}
		d.noise = storageNoise(t.Data, t.DType)
		for i, n := range storageNoise(o.Data, o.DType) {
			d.noise[i] += n
		}
		if low16(o.DType) {
			d.DType = o.DType
		}
		out.Tensors = append(out.Tensors, d)
	}
	for _, t := range loraOnly(init.Tensors) {
		if _, left := before[t.Name]; left {
			return out, fmt.Sprintf("tensor %q is in %s but not in %s", t.Name, init.Name, w.Name)
		}
	}
	return out, ""
}

// first is the pass that measures Q and the components of every target.
func (in *Input) first(f *facts) error {
	b, k := in.Basis, in.Basis.K
	targets := f.all()
	fogs := false
	for _, t := range targets {
		t.comp = make([]float64, k*t.cols)
		if t.noise != nil {
			t.fog, fogs = make([]float64, k*t.cols), true
		}
		t.zero = true
		for i, v := range t.v {
			t.norm2 += float64(v * v)
			t.zero = t.zero && v == 0
			if v-v != 0 && t.bad == "" {
				t.bad = fmt.Sprintf("element %d is %g", i, v)
			}
		}
	}
	f.finite = true
	f.gram = make([]float64, k*k)
	type part struct {
		gram      []float64
		comp, fog [][]float64
		bad       int
		row, col  int
		value     float64
	}
	err := stream(in, "QᵀQ", func() *part {
		p := &part{gram: make([]float64, k*k)}
		for _, t := range targets {
			p.comp = append(p.comp, make([]float64, len(t.comp)))
			p.fog = append(p.fog, make([]float64, len(t.fog)))
		}
		return p
	}, func(p *part, q []float64, from, n int) {
		for i, v := range q {
			if v-v != 0 { // NaN or infinite
				if p.bad++; p.bad == 1 {
					p.row, p.col, p.value = from+i/k, i%k, v
				}
			}
		}
		if p.bad > 0 {
			return
		}
		linalg.AddGram(p.gram, q, k)
		for i, t := range targets {
			linalg.AddComponents(p.comp[i], q, k, t.v[from*t.cols:(from+n)*t.cols], t.cols)
		}
		if !fogs {
			return
		}
		for i, v := range q { // the block is this call's own
			q[i] = math.Abs(v)
		}
		for i, t := range targets {
			if t.noise != nil {
				linalg.AddComponents(p.fog[i], q, k, t.noise[from*t.cols:(from+n)*t.cols], t.cols)
			}
		}
	}, func(p *part) {
		if p.bad > 0 && f.badCount == 0 {
			f.finite, f.firstBad, f.badValue = false, [2]int{p.row, p.col}, p.value
		}
		f.badCount += p.bad
		add(f.gram, p.gram)
		for i, t := range targets {
			add(t.comp, p.comp[i])
			add(t.fog, p.fog[i])
		}
	})
	linalg.Symmetrise(f.gram, b.K)
	return err
}

func add(dst, src []float64) {
	for i, v := range src {
		dst[i] += v
	}
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
			p.low[i].Scale = p.tight[i].Scale
		}
	}
	return stream(in, "g − Q(Qᵀg)", func() []*pair {
		parts := make([]*pair, len(f.pairs))
		for i, p := range f.pairs {
			parts[i] = &pair{raw: p.raw, out: p.out, comp: p.comp, low16: p.low16, identical: true}
			for j := range p.tight {
				parts[i].tight[j].Scale, parts[i].low[j].Scale = p.tight[j].Scale, p.low[j].Scale
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
	for _, v := range x {
		if format.Round(v, d) != v {
			return false
		}
	}
	return true
}

func minusAbs(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = -math.Abs(v)
	}
	return out
}

// defectTimes returns (G − I)·X for the K×c matrix x.
func defectTimes(gram []float64, k int, x []float64, c int) []float64 {
	out := make([]float64, len(x))
	for i := range k {
		for l := range k {
			e := gram[i*k+l]
			if i == l {
				e--
			}
			for j := range c {
				out[i*c+j] += float64(e * x[l*c+j])
			}
		}
	}
	return out
}
