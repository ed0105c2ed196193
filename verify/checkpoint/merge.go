package checkpoint

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
)

// mergeFacts is what the comparison of a merged model with base and adapter found.
type mergeFacts struct {
	problem string // why there is nothing to compare
	notes   []string
	modules []*mergedModule
	biases  []mergedBias
	kept    []keptPart   // what the adapter trained whole
	others  []difference // tensors that no module of the adapter changes
	absent  []string     // of the base, not in the merged model
}

// mergedModule is one weight W of the base, W' of the merged model, and s·B·A between them.
type mergedModule struct {
	name    string
	dtype   format.DType // of W'
	scaling float64
	alpha   float64
	rank    int

	compared  int64
	unchanged int64 // W' = W although Δ ≠ 0
	lost      int64 // of these, W + Δ rounds to W: the type cannot hold the update
	excess    int64 // elements beyond their bound
	worst     float64
	limit     float64 // where worst is
	where     string
	coarse    int64 // elements further than the bound of bfloat16 allows

	dot, norm2, noise2 float64 // Σ(W'−W)·BA, Σ(BA)², Σ(rounding of W')²·(BA)²
	rest2              float64 // Σ(W'−W)²
	dotT               float64 // Σ(W'−W)·(BA)ᵀ, square matrices only
	dora               bool    // with magnitudes
}

// fit returns the factor c of B·A that fits W' − W best, and the uncertainty that the rounding of W' leaves in it.
func (m *mergedModule) fit() (c, sigma float64) {
	return m.dot / m.norm2, math.Sqrt(m.noise2) / m.norm2
}

// mergeAll compares the merged model once.
func (in *Input) mergeAll() (*mergeFacts, error) {
	in.mergeOnce.Do(func() { in.merged, in.mergeErr = in.measureMerge() })
	return in.merged, in.mergeErr
}

func (in *Input) measureMerge() (*mergeFacts, error) {
	m := &mergeFacts{}
	u := in.Folder.adapter()
	var base, merged *Unit
	if in.Base != nil {
		base = whole(in.Base)
	}
	merged = whole(in.Merged)
	switch {
	case u == nil || u.Lora == nil || len(u.pairs) == 0:
		m.problem = "the folder holds no LoRA adapter that could have been merged"
	case base == nil:
		m.problem = "--merged needs --base with the weights that the adapter was merged into"
	case merged == nil:
		m.problem = fmt.Sprintf("%s holds no whole model", in.Merged.Tree.Path())
	case u.Lora.changesBase():
		m.problem = fmt.Sprintf("init_lora_weights %q takes a part out of the base when the adapter is attached: what A and B were added to is in no file", u.Lora.Init)
	case len(u.Lora.Repeats) > 0:
		m.problem = "layer_replication makes new layers of the base: which of them the merged model has is not compared"
	case u.Lora.Type != "LORA":
		m.problem = fmt.Sprintf("an adapter of %s is not merged as base + s·B·A", u.Lora.Type)
	case u.Lora.Variant != "":
		m.problem = fmt.Sprintf("%s makes the adapter another function than s·B·A", u.Lora.Variant)
	}
	if m.problem != "" {
		return m, nil
	}
	old, made := byName(base), byName(merged)
	touched, err := m.whole(u, base, old, made)
	if err != nil {
		return nil, err
	}
	for _, p := range u.pairs {
		if p.rank() < 1 || p.in() == 0 || p.out() == 0 || p.a.Array.DType.Size() == 0 || p.b.Array.DType.Size() == 0 {
			continue
		}
		n := plainName(base, p.module) + ".weight"
		w, v := old[n], made[n]
		if touched[n] {
			continue // rows of it, or all of it, are the adapter's own
		}
		touched[n] = true
		if u.Lora.Ties && (p.embed || n == arch.HeadWeight) {
			m.notes = append(m.notes, fmt.Sprintf("%s is tied by ensure_weight_tying: how often its update is added depends on the version of PEFT", p.module))
			touched[arch.HeadWeight] = true
			continue
		}
		if w == nil || v == nil {
			m.absent = append(m.absent, n)
			continue
		}
		// PEFT turns the flag over where it is not what the layer asks for (tuners/lora/model.py _create_new_module).
		turned := u.Lora.FanInOut
		if base.Model != nil {
			turned = conv1D(base.Model, plainName(base, p.module))
		}
		if u.Lora.DoRA && (p.embed || p.in() > widest && !turned) {
			m.problem = fmt.Sprintf("DoRA of %s is not recomputed: only that of layers with at most %d inputs is", p.module, widest)
			return m, nil
		}
		x, err := in.measureModule(u.Lora, p, turned || p.embed, false, w, v, old, made)
		if err != nil {
			return nil, err
		}
		// A base that is loaded in a narrower type than its file, which is how most merges are made, is rounded before the update.
		if x != nil && x.excess > 0 && narrower(v.Array.DType, w.Array.DType) {
			y, err := in.measureModule(u.Lora, p, turned || p.embed, true, w, v, old, made)
			if err != nil {
				return nil, err
			}
			if y.excess < x.excess || y.rest2 == 0 {
				x = y
			}
		}
		if x != nil {
			m.modules = append(m.modules, x)
		}
		if p.bias != nil {
			n := plainName(base, p.module) + ".bias"
			touched[n] = true
			if err := m.bias(u.Lora.Scaling(p.module), p.bias, old[n], made[n]); err != nil {
				return nil, err
			}
		}
	}
	var rest []tensorPair
	for _, n := range slices.SortedFunc(maps.Keys(old), compareNatural) {
		if touched[n] || ignorable(n) {
			continue
		}
		if t := made[n]; t != nil {
			rest = append(rest, tensorPair{t, old[n]})
		} else if !(strings.HasPrefix(n, "lm_head.") && base.Model != nil && base.Model.Tied) && strings.HasSuffix(n, "weight") {
			m.absent = append(m.absent, n)
		}
	}
	// Scales of an int8 weight that was merged change with it.
	rest = slices.DeleteFunc(rest, func(p tensorPair) bool {
		return touched[strings.TrimSuffix(p.a.Name, ".SCB")+".weight"]
	})
	m.others, err = in.compare(rest)
	return m, err
}

// conv1D reports whether the module of that name stores its weight [in, out].
func conv1D(m *arch.Model, name string) bool {
	return slices.ContainsFunc(m.Modules(), func(x arch.Module) bool { return x.Name == name && x.Kind == arch.Conv1D })
}

// ignorable reports whether a tensor of that name is a buffer that loaders leave out.
func ignorable(name string) bool { return arch.Buffer("", name) }

// whole returns the first unit of a folder that is a whole model with tensors.
func whole(f *Folder) *Unit {
	for _, u := range f.of(Whole) {
		if len(u.tensors(weightsRole)) > 0 {
			return u
		}
	}
	return nil
}

func byName(u *Unit) map[string]*Tensor {
	m := map[string]*Tensor{}
	for _, t := range u.tensors(weightsRole) {
		m[plainName(u, t.Name)] = t
	}
	return m
}

// narrower reports whether numbers of type a have fewer bits than those of type b.
func narrower(a, b format.DType) bool {
	u, _ := a.Unit()
	v, _ := b.Unit()
	return u > v && v > 0
}

// widest is the number of elements of a row that are held at a time.
const widest = 1 << 20

// measureModule compares one module; nil if the shapes are those of no merge.
//
// The bound of an element is what a framework may lose: half a unit of W's type at W + Δ, the summation of the r products
// in float32, and, where the adapter is stored in 16 bits, two roundings of Δ to that type (peft@0.21
// tuners/lora/layer.py get_delta_weight). An int8 weight is rounded to the grid of its row: half of SCB/127, and to
// float16 before that (bnb.py merge).
//
// With DoRA (Liu et al. 2024, Eq. 5) each output's row of W + Δ is scaled to its magnitude m, W' = m/‖W + Δ‖·(W + Δ); of a layer
// that stores [in, out] that is a column. The norm is rounded to W's type, and so are the quotient and the product
// (tuners/lora/variants.py DoraLinearVariant.merge_safe).
//
// With loaded the base was loaded in W' 's type: W is rounded to it, and so is Δ (`base_layer.weight.data += delta`).
func (in *Input) measureModule(l *Lora, p *pair, turned, loaded bool, w, v *Tensor, old, made map[string]*Tensor) (*mergedModule, error) {
	x := &mergedModule{name: p.module, dtype: v.Array.DType, scaling: l.Scaling(p.module), alpha: l.Alpha, rank: p.rank()}
	if q := pick(l.Alphas, p.module); q != nil {
		x.alpha = q.value
	}
	left, err := p.b.Array.Float64s() // [out, r]
	if err != nil {
		return nil, err
	}
	right, err := p.a.Array.Float64s() // [r, in]
	if err != nil {
		return nil, err
	}
	rows, cols, r := p.out(), p.in(), x.rank
	shape := w.Array.Shape
	var magnitudes []float64
	columns := false // the outputs, which DoRA scales, are columns
	if t := p.magnitude(); t != nil && l.DoRA {
		if magnitudes, err = t.Array.Float64s(); err != nil {
			return nil, err
		}
		if len(magnitudes) != rows {
			return nil, nil
		}
	}
	switch {
	case len(shape) != 2 || !slices.Equal(shape, v.Array.Shape):
		return nil, nil
	case turned && shape[0] == cols && shape[1] == rows: // Δᵀ = Aᵀ·Bᵀ
		left, right = transpose(right, r, cols), transpose(left, rows, r)
		rows, cols = cols, rows
		columns = magnitudes != nil
	case shape[0] != rows || shape[1] != cols:
		return nil, nil
	}
	from, err := newRows(w, old)
	if err != nil {
		return nil, err
	}
	to, err := newRows(v, made)
	if err != nil {
		return nil, err
	}
	unit, eta := v.Array.DType.Unit()
	oldUnit, _ := w.Array.DType.Unit() // the norm of DoRA has W's type
	stored, _ := p.a.Array.DType.Unit()
	if stored <= 0x1p-24 {
		stored = 0
	}
	if loaded {
		stored, oldUnit = max(stored, unit), unit
	}
	gamma := float64(r+3) * 0x1p-24 * (1 + 0x1p-10)
	widths := make([]float64, cols) // ‖a_j‖, for Σ|b·a| ≤ ‖b‖·‖a‖
	for k := range r {
		for j, a := range right[k*cols : (k+1)*cols] {
			widths[j] += float64(a * a)
		}
	}
	for j, w := range widths {
		widths[j] = math.Sqrt(w) * (1 + 0x1p-40)
	}
	var scales []float64 // of DoRA's columns
	if columns {
		if scales, err = in.columnNorms(x.scaling, from, left, right, rows, cols, r, func(y float64) float64 {
			if loaded {
				y = format.Round(y, v.Array.DType)
			}
			return y
		}); err != nil {
			return nil, err
		}
		for j, norm := range scales {
			scales[j] = magnitudes[j] / norm
		}
	}
	block, chunks := max(1, piece/4/cols), (cols+widest-1)/widest
	parts := make([]mergedModule, (rows+block-1)/block)
	err = in.parallel("merging", len(parts), 0, func(i int, _ []byte) error {
		q := &parts[i]
		width := min(cols, widest)
		wbuf, vbuf, bbuf := make([]float64, width), make([]float64, width), make([]float64, width)
		for at := i * block * chunks; at < min(rows, (i+1)*block)*chunks; at++ {
			row, first := at/chunks, at%chunks*widest
			n := min(widest, cols-first)
			wr, vr, ba := wbuf[:n], vbuf[:n], bbuf[:n]
			if err := from.row(wr, row, first); err != nil {
				return err
			}
			if err := to.row(vr, row, first); err != nil {
				return err
			}
			if loaded {
				for j, y := range wr {
					wr[j] = format.Round(y, v.Array.DType)
				}
			}
			clear(ba)
			size := 0.0
			for k := range r {
				b := left[row*r+k]
				size += float64(b * b)
				for j, a := range right[k*cols+first : k*cols+first+n] {
					ba[j] += float64(b * a)
				}
			}
			size = math.Sqrt(size)
			half := to.half(row)
			factor, loose := 1.0, 0.0
			if columns {
				loose = float64(rows+8)*0x1p-24 + 4*max(oldUnit, 0x1p-24)
			} else if magnitudes != nil { // the whole row is here
				norm2 := 0.0
				for j, b := range ba {
					s := wr[j] + float64(x.scaling*b)
					norm2 += float64(s * s)
				}
				factor = magnitudes[row] / math.Sqrt(norm2)
				loose = float64(cols+8)*0x1p-24 + 4*max(oldUnit, 0x1p-24)
			}
			for j, y := range vr {
				d := y - wr[j]
				delta := x.scaling * ba[j]
				if columns {
					factor = scales[first+j]
				}
				want := factor * (wr[j] + delta)
				bound := unit*math.Abs(want)*(1+unit) + eta + math.Abs(factor)*(gamma*math.Abs(x.scaling)*size*widths[first+j]+2*stored*math.Abs(delta)) + loose*math.Abs(want) + half
				if from.scale != nil || to.scale != nil {
					bound += 0x1p-11*math.Abs(want) + 0x1p-25
				}
				err := math.Abs(y - want)
				q.compared++
				if !(err <= bound) {
					q.excess++
					if !(err <= 0x1p-8*(math.Abs(want)+math.Abs(delta))*1.02+bound) {
						q.coarse++
					}
					if q.where == "" || err-bound > q.worst-q.limit {
						q.worst, q.limit = err, bound
						q.where = fmt.Sprintf("[%d, %d]: got %.9g, want %.9g + %.9g", row, first+j, y, wr[j], delta)
						if magnitudes != nil {
							q.where += fmt.Sprintf(", times %.9g", factor)
						}
					}
				} else if q.excess == 0 && err > q.worst {
					q.worst, q.limit = err, bound
				}
				if d == 0 && delta != 0 {
					q.unchanged++
					if format.Round(want, v.Array.DType) == wr[j] {
						q.lost++
					}
				}
				q.dot += float64(d * ba[j])
				q.norm2 += float64(ba[j] * ba[j])
				q.rest2 += float64(d * d)
				e := unit*math.Abs(y) + half
				q.noise2 += float64(e*e) * float64(ba[j]*ba[j])
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	x.worst, x.limit, x.dora = 0, 0, magnitudes != nil
	for i := range parts {
		q := &parts[i]
		x.compared += q.compared
		x.unchanged += q.unchanged
		x.lost += q.lost
		x.coarse += q.coarse
		if q.excess > 0 && (x.excess == 0 || q.worst-q.limit > x.worst-x.limit) || x.excess == 0 && q.worst > x.worst {
			x.worst, x.limit, x.where = q.worst, q.limit, q.where
		}
		x.excess += q.excess
		x.dot += q.dot
		x.norm2 += q.norm2
		x.noise2 += q.noise2
		x.rest2 += q.rest2
	}
	if x.excess > 0 && rows == cols {
		x.dotT, err = in.turned(from, to, left, right, rows, r)
	}
	return x, err
}

// turned returns Σ(W'−W)·(BA)ᵀ of a square module: a merge of the transpose shows in it.
func (in *Input) turned(from, to *matrixRows, left, right []float64, n, r int) (float64, error) {
	columns := transpose(left, n, r)
	dots := make([]float64, n)
	err := in.parallel("merging", n, 0, func(row int, _ []byte) error {
		w, v, turn := make([]float64, n), make([]float64, n), make([]float64, n)
		if err := from.row(w, row, 0); err != nil {
			return err
		}
		if err := to.row(v, row, 0); err != nil {
			return err
		}
		for k := range r {
			a := right[k*n+row]
			for j, b := range columns[k*n : (k+1)*n] {
				turn[j] += float64(b * a)
			}
		}
		for j, t := range turn {
			dots[row] += float64((v[j] - w[j]) * t)
		}
		return nil
	})
	sum := 0.0
	for _, d := range dots {
		sum += d
	}
	return sum, err
}

func transpose(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for i := range rows {
		for j := range cols {
			y[j*rows+i] = x[i*cols+j]
		}
	}
	return y
}
