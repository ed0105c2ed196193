package projection

import (
	"fmt"
	"math"

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
	if !b.usable() {
		return f, nil
	}
	in.read(f)
	for _, t := range f.all() {
		in.widest = max(in.widest, t.cols)
	}
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
		byName := map[string]*target{}
		for b := range outs {
			byName[outs[b].name] = &outs[b]
		}
		for a := range raws {
			out := byName[raws[a].name]
			if len(raws) == 1 && len(outs) == 1 {
				out = &outs[0]
			}
			if out != nil && out.cols == raws[a].cols {
				p := &pair{raw: &raws[a], out: out}
				raws[a].pair, out.pair = p, p
				f.pairs = append(f.pairs, p)
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
		d.noise = make([]float32, len(d.Data))
		for _, x := range []*Tensor{&t, o} {
			u, eta := x.DType.Unit()
			for i, v := range x.Data {
				d.noise[i] += float32(tol.Storage(v, u, eta)) * (1 + 0x1p-20) // rounded up
			}
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
				noise := make([]float64, n*t.cols)
				t.noise(noise, from*t.cols)
				linalg.AddComponents(p.fog[i], q, k, noise, t.cols)
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
