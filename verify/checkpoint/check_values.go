package checkpoint

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Values checks what numbers look like that no training left.
var Values = &check.Check[*Input]{
	Name: "weights/values",
	Doc: `no two layers hold the same matrix, no matrix is of a size that no training reaches, no adapter has rows of B that are zero

Matrices of the same name in two layers that are equal bit for bit were copied; several whole layers twice are a model that was made
deeper, and a warning. A matrix whose numbers are all below the normal ones of its type, or above 10⁴ in the root mean square, is made
of other bytes: an optimiser of Adam's family moves a weight by about its learning rate a step. In float16, whose normal numbers begin at
6·10⁻⁵, it is one only where it is every matrix. A row of B that is zero where the same
module of other layers has none got no gradient, or was not gathered.`,
	Source: "layout of a PEFT adapter; faults P183, P202, P211",
	Fix:    "save again from the model in memory, with the partitions gathered",
	Run: scanned(func(in *Input) ([]check.Result, error) {
		return each(in.judged(), func(p place) ([]check.Result, error) {
			if p.u.Kind != Adapter && p.u.Kind != Whole || len(p.u.tensors(weightsRole)) == 0 {
				return nil, nil
			}
			found, n, err := p.f.valueFindings(p.u)
			if err == nil && len(found) == 0 && n > 0 {
				found = append(found, pass(p.f.at(p.u), n, "%s", plural(n, "tensor")))
			}
			return found, err
		})
	}),
}

// mostRMS is beyond every weight. A step of Adam moves a weight by at most lr·(1−β₁)/√(1−β₂), 3.2·lr with 0.9 and 0.999 (Kingma and Ba 2015,
// section 2.1): 10⁴ steps in one direction with a learning rate of 0.1 end below 3.2·10³. That rate and that number of steps are a choice, far
// above what fine-tunes language models.
const mostRMS = 1e4

// leastRows is the inverse of the share of zero rows that fails: one of the up to 8 devices of a machine over which tensor parallelism cuts
// a matrix leaves at least 1/8 of the rows, if its part alone is lost. That no more than 8 take part is a choice: below it is a warning.
const leastRows = 8

func (f *Folder) valueFindings(u *Unit) (out []check.Result, n int, err error) {
	subject := f.at(u)
	var small, large, halves []string
	groups := map[string][]*Tensor{}
	var forms []string
	for _, t := range u.tensors(weightsRole) {
		if len(t.Array.Shape) != 2 || t.Array.Len() < 16 || !t.Array.DType.Float() || t.Array.DType.Size() == 0 || ignorable(t.Name) || t.stats != nil && (t.stats.bad > 0 || t.stats.zero) {
			continue
		}
		n++
		_, high, rms, err := t.extremes()
		if err != nil {
			return nil, 0, err
		}
		switch least := normal(t.Array.DType); {
		case rms > mostRMS:
			large = append(large, fmt.Sprintf("%s (root mean square %.3g)", t.Name, rms))
		case high > 0 && high < least && t.Array.DType == format.F16: // below 6.1e-5: a matrix B of few steps, but not every matrix
			halves = append(halves, fmt.Sprintf("%s (largest %.3g)", t.Name, high))
		case high > 0 && high < least:
			small = append(small, fmt.Sprintf("%s (largest %.3g)", t.Name, high))
		}
		if _, ok := layerOf(t.Name); ok && (strings.HasSuffix(t.Name, ".weight") || u.Kind == Adapter) {
			form := numberless(t.Name) + t.Array.ShapeString()
			if groups[form] == nil {
				forms = append(forms, form)
			}
			groups[form] = append(groups[form], t)
		}
	}
	if len(halves) == n {
		small = append(small, halves...)
	}
	out = append(out, ifAny(fail, subject, "VALUES-HUGE", "bytes of another type or of another order, or a run that blew up", "tensor", "%s: %s", large)...)
	out = append(out, ifAny(fail, subject, "VALUES-SUBNORMAL", "bytes of another type or of another order: every number is below the normal ones", "tensor", "%s: %s", small)...)
	if len(out) == 0 {
		found, err := f.copyFindings(u, forms, groups)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, found...)
	}
	if u.Kind == Adapter {
		found, err := rowFindings(subject, u)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, found...)
	}
	return out, n, nil
}

// normal is the least normal number of a type.
func normal(d format.DType) float64 {
	switch d {
	case format.F16:
		return 0x1p-14
	case format.F64:
		return 0x1p-1022
	}
	return 0x1p-126
}

// copyFindings looks for matrices of one name that are equal in two layers.
func (f *Folder) copyFindings(u *Unit, forms []string, groups map[string][]*Tensor) ([]check.Result, error) {
	pairs := map[[2]int][]string{} // layers, and what is equal in them
	matrices := map[int]int{}
	var order [][2]int
	for _, form := range forms {
		list := groups[form]
		first := map[string][]*Tensor{}
		for _, t := range list {
			i, _ := layerOf(t.Name)
			matrices[i]++
			sample, constant, err := t.sample()
			if err != nil {
				return nil, err
			}
			if constant {
				continue
			}
			for _, other := range first[sample] {
				j, _ := layerOf(other.Name)
				same, err := equal(t, other)
				if err != nil {
					return nil, err
				}
				if !same || i == j {
					continue
				}
				key := [2]int{min(i, j), max(i, j)}
				if pairs[key] == nil {
					order = append(order, key)
				}
				pairs[key] = append(pairs[key], t.Name)
				break
			}
			first[sample] = append(first[sample], t)
		}
	}
	if len(order) == 0 {
		return nil, nil
	}
	key := order[0]
	subject := f.at(u)
	if u.Lora != nil && len(u.Lora.Repeats) > 0 { // layers that began as one
		return nil, nil
	}
	whole := len(order) > 1 && u.Kind == Whole
	for _, k := range order {
		whole = whole && len(pairs[k]) == matrices[k[0]]
	}
	reason := fmt.Sprintf("%s of layer %d equal to those of layer %d: %s", plural(len(pairs[key]), "tensor"), key[1], key[0], several(pairs[key]))
	if len(order) > 1 {
		reason += fmt.Sprintf("; and in %d pairs of layers more", len(order)-1)
	}
	if whole {
		return []check.Result{warn(subject, "LAYER-COPIED", "a model that was made deeper out of its own layers, or shards of one rank saved several times", "%s", reason)}, nil
	}
	return []check.Result{fail(subject, "LAYER-COPIED", "a layer was saved in the place of another", "%s", reason)}, nil
}

// sample returns bytes of three places of the tensor, and whether they are of one number alone.
func (t *Tensor) sample() (text string, constant bool, err error) {
	n := t.bytes()
	size := int64(max(t.Array.DType.Size(), 1))
	part := min(n, 1024) / size * size
	b := make([]byte, 0, 3*part)
	for _, at := range []int64{0, (n - part) / 2 / size * size, n - part} {
		buf := make([]byte, part)
		if err := t.read(buf, at); err != nil {
			return "", false, err
		}
		b = append(b, buf...)
	}
	constant = true
	for at := size; at < int64(len(b)) && constant; at += size {
		constant = bytes.Equal(b[at:at+size], b[:size])
	}
	return string(b), constant, nil
}

// equal reports whether two tensors of one shape hold the same bytes.
func equal(a, b *Tensor) (bool, error) {
	n := a.bytes()
	if n != b.bytes() || a.Array.DType != b.Array.DType {
		return false, nil
	}
	x, y := make([]byte, min(n, piece)), make([]byte, min(n, piece))
	for at := int64(0); at < n; at += piece {
		k := min(piece, n-at)
		if err := a.read(x[:k], at); err != nil {
			return false, err
		}
		if err := b.read(y[:k], at); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:k], y[:k]) {
			return false, nil
		}
	}
	return true, nil
}

// rowFindings looks for rows of B that are zero, in modules whose like in other layers has none. Rows of an embedding or a head belong
// to tokens, and experts may not be chosen.
func rowFindings(subject string, u *Unit) (out []check.Result, err error) {
	empty, most := map[string]int{}, map[string]int{} // by form: modules with zero rows, and modules
	type found struct {
		module     string
		rows, zero int
	}
	var list []found
	for _, p := range u.pairs {
		if p.a == nil || p.b == nil || p.embed || endsWith(p.module, "lm_head") || strings.Contains(p.module, "expert") || u.Lora != nil && u.Lora.parameter(p.module) {
			continue
		}
		s, d := p.b.Array.Shape, p.b.Array.DType
		if len(s) != 2 || !d.Float() || d.Size() == 0 || s[1] == 0 || s[1] > widest || p.b.stats != nil && p.b.stats.zero {
			continue
		}
		most[numberless(p.module)]++
		x := make([]float64, s[1])
		zero := 0
		for row := range s[0] {
			if err := p.b.Array.ReadFloat64(x, row*s[1]); err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(x, func(v float64) bool { return v != 0 }) {
				zero++
			}
		}
		if zero > 0 {
			empty[numberless(p.module)]++
			list = append(list, found{p.module, s[0], zero})
		}
	}
	var many, few []string
	for _, m := range list {
		form := numberless(m.module)
		text := fmt.Sprintf("%s (%d of %d)", m.module, m.zero, m.rows)
		if leastRows*m.zero >= m.rows && (empty[form] < most[form] || most[form] == 1) {
			many = append(many, text)
		} else {
			few = append(few, text)
		}
	}
	out = append(out, ifAny(fail, subject, "B-ZERO-ROWS", "a part of B was not gathered: one shard of tensor parallelism or FSDP was saved for the whole", "module", "rows of zeros in B of %s, and none in the same module of other layers: %s", many)...)
	out = append(out, ifAny(warn, subject, "B-ZERO-ROWS", "outputs that never had a gradient: inner features that the activation cuts off, or a part that was not gathered", "module", "rows of zeros in B of %s: %s", few)...)
	return out, nil
}
