package f32

// grow returns x with room for n numbers, which may hold anything.
func grow(x *[]float32, n int) []float32 {
	if cap(*x) < n {
		*x = make([]float32, n)
	}
	return (*x)[:n]
}

// places returns how many queries and keys a sequence has.
func (a Attention) places(q, k []float32) (t, s int) {
	return len(q) / (a.Heads * a.Dim), len(k) / (a.KVHeads * a.Dim)
}

// chain returns Σ a_i·b_i, fused, in the order of i.
func chain(a, b []float32) (s float32) {
	for i, v := range a {
		s = FMA(v, b[i], s)
	}
	return s
}

// each calls f with the probabilities of every query of a group for the keys [start, start+len(p)), of which it sees none before from. The
// channels of the query stand at at among those of all.
func (a Attention) each(q, k []float32, kv int, w *Scratch, f func(at, start, from int, p []float32)) {
	t, s := a.places(q, k)
	ks, g, d := a.KVHeads*a.Dim, a.Heads/a.KVHeads, a.Dim
	p := grow(&w.p, s)
	for h := kv * g; h < (kv+1)*g; h++ {
		for i := range t {
			from, to := a.sees(s-t+i, s)
			start, at := first(from), (i*a.Heads+h)*d
			row := p[:to-start]
			for j := range row {
				row[j] = chain(q[at:at+d], k[(start+j)*ks+kv*d:])
			}
			a.hide(row, from, start)
			scaledSoftmaxGeneric(row, a.Scale)
			f(at, start, from, row)
		}
	}
}

func attendGeneric(a Attention, y, q, k, v []float32, kv int, w *Scratch) {
	ks, d := a.KVHeads*a.Dim, a.Dim
	a.each(q, k, kv, w, func(at, start, from int, p []float32) {
		out := y[at : at+d]
		clear(out)
		addRows(out, p[from-start:], v[from*ks+kv*d:], ks)
	})
}

// addRows adds Σ_j p_j·x_j to out, x_j being the rows of x, ld apart.
func addRows(out, p, x []float32, ld int) {
	for j, pj := range p {
		for l := range out {
			out[l] = FMA(pj, x[j*ld+l], out[l])
		}
	}
}

func attendBackGeneric(a Attention, dq, dk, dv, dy, q, k, v []float32, kv int, w *Scratch) {
	_, s := a.places(q, k)
	ks, d := a.KVHeads*a.Dim, a.Dim
	sumK, sumV, out := grow(&w.dk, s*d), grow(&w.dv, s*d), grow(&w.out, d)
	clear(sumK)
	clear(sumV)
	a.each(q, k, kv, w, func(at, start, from int, p []float32) {
		slope := dy[at : at+d]
		ds := grow(&w.dp, len(p))
		for j := range ds {
			ds[j] = chain(slope, v[(start+j)*ks+kv*d:])
		}
		for j := from - start; j < len(p); j++ {
			for l, x := range slope {
				sumV[(start+j)*d+l] = FMA(p[j], x, sumV[(start+j)*d+l])
			}
		}
		softmaxBackGeneric(ds, ds, p, a.Scale)
		for j := from - start; j < len(p); j++ {
			for l, x := range q[at : at+d] {
				sumK[(start+j)*d+l] = FMA(ds[j], x, sumK[(start+j)*d+l])
			}
		}
		clear(out)
		addRows(out, ds[from-start:], k[from*ks+kv*d:], ks)
		copy(dq[at:], out)
	})
	a.addTo(dk, sumK, d, kv, addGeneric)
	a.addTo(dv, sumV, d, kv, addGeneric)
}

// addTo adds the rows of sum, ld apart, to those of key-value head kv in x.
func (a Attention) addTo(x, sum []float32, ld, kv int, add func(dst, x, y []float32)) {
	ks, d := a.KVHeads*a.Dim, a.Dim
	for i := 0; i*ks < len(x); i++ {
		row := x[i*ks+kv*d:][:d]
		add(row, row, sum[i*ld:][:d])
	}
}

// scaledSoftmaxGeneric turns x·by into probabilities.
func scaledSoftmaxGeneric(x []float32, by float32) {
	scaleGeneric(x, by)
	softmaxGeneric(x)
}
