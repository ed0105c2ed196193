package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"plumbline/internal/arch"
	"plumbline/internal/format"
)

// tensorPair is two tensors that are meant to be of one parameter: new, and old.
type tensorPair struct{ a, b *Tensor }

// difference is what the comparison of a pair found.
type difference struct {
	name              string
	dtype             format.DType // of the new one
	dims              int
	compared, changed int64
	delta2, old2      float64 // Σ(a−b)² and Σb²
	problem           string  // why they were not compared
}

// compare compares the elements of pairs by their values, in pieces and in parallel. The sums are added in the order of
// the pieces, so they do not depend on the number of threads.
func (in *Input) compare(list []tensorPair) ([]difference, error) {
	out := make([]difference, len(list))
	type part struct {
		pair     int
		from, to int // elements
		changed  int64
		delta2   float64
		old2     float64
	}
	var parts []part
	for i, p := range list {
		d := &out[i]
		d.name, d.dtype, d.dims = p.a.Name, p.a.Array.DType, len(p.a.Array.Shape)
		switch {
		case !slices.Equal(p.a.Array.Shape, p.b.Array.Shape):
			d.problem = fmt.Sprintf("shape %s, was %s", p.a.Array.ShapeString(), p.b.Array.ShapeString())
		case p.a.Array.DType.Size() == 0 || p.b.Array.DType.Size() == 0:
			d.problem = "element type " + p.a.Array.Type + " is not decoded"
		default:
			n := p.a.Array.Len()
			d.compared = int64(n)
			step := piece / max(p.a.Array.DType.Size(), p.b.Array.DType.Size())
			for from := 0; from < n; from += step {
				parts = append(parts, part{pair: i, from: from, to: min(n, from+step)})
			}
		}
	}
	err := in.parallel("comparing", len(parts), 2*piece, func(i int, buf []byte) error {
		q := &parts[i]
		a, b := list[q.pair].a, list[q.pair].b
		sa, sb := a.Array.DType.Size(), b.Array.DType.Size()
		n := q.to - q.from
		x, y := buf[:n*sa], buf[piece:piece+n*sb]
		if err := a.read(x, int64(q.from)*int64(sa)); err != nil {
			return err
		}
		if err := b.read(y, int64(q.from)*int64(sb)); err != nil {
			return err
		}
		same := a.Array.DType == b.Array.DType && bytes.Equal(x, y)
		const block = 1024
		var u, v [block]float64
		for at := 0; at < n; at += block {
			m := min(block, n-at)
			format.Decode(v[:m], y[at*sb:], b.Array.DType, binary.LittleEndian)
			for _, w := range v[:m] {
				q.old2 += float64(w * w)
			}
			if same {
				continue
			}
			format.Decode(u[:m], x[at*sa:], a.Array.DType, binary.LittleEndian)
			for k, w := range v[:m] {
				if d := u[k] - w; d != 0 { // a NaN on either side is a change
					q.changed++
					q.delta2 += float64(d * d)
				}
			}
		}
		return nil
	})
	for i := range parts {
		d := &out[parts[i].pair]
		d.changed += parts[i].changed
		d.delta2 += parts[i].delta2
		d.old2 += parts[i].old2
	}
	return out, err
}

// movedFacts is what the comparison of two units found.
type movedFacts struct {
	diffs             []difference
	compared, changed int64
	gone, added       []string // tensors that only the old or the new unit has
}

// relative returns ‖a − b‖ / ‖b‖ over all that was compared.
func (m *movedFacts) relative() float64 {
	var d, o float64
	for i := range m.diffs {
		d += m.diffs[i].delta2
		o += m.diffs[i].old2
	}
	if o == 0 {
		return math.Inf(1)
	}
	return math.Sqrt(d / o)
}

// moved compares the weights and heads of two units by name.
func (in *Input) moved(a, b *Unit) (*movedFacts, error) {
	m := &movedFacts{}
	old := map[string]*Tensor{}
	for _, t := range append(b.tensors(weightsRole), b.tensors(headRole)...) {
		old[plainName(b, t.Name)] = t
	}
	var list []tensorPair
	for _, t := range append(a.tensors(weightsRole), a.tensors(headRole)...) {
		n := plainName(a, t.Name)
		if o := old[n]; o != nil {
			list = append(list, tensorPair{t, o})
			delete(old, n)
		} else {
			m.added = append(m.added, t.Name)
		}
	}
	for _, t := range old {
		m.gone = append(m.gone, t.Name)
	}
	slices.SortFunc(m.gone, compareNatural)
	var err error
	m.diffs, err = in.compare(list)
	for i := range m.diffs {
		m.compared += m.diffs[i].compared
		m.changed += m.diffs[i].changed
	}
	return m, err
}

// plainName is the name that one parameter has in every way of saving it.
func plainName(u *Unit, name string) string {
	if u.Kind == Whole && u.Model != nil {
		return arch.Rooted(u.Model.Type, name)
	}
	return name
}
