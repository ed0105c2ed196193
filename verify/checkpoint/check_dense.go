package checkpoint

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Dense checks a float model against the int8 model that it was made of.
var Dense = &check.Check[*Input]{
	Name: "quant/dense",
	Doc: `a float model beside an int8 --base is codes·SCB/127, or what training made of it, and no multiple of it

W is compared with the dequantised base row by row, within half a unit of its type and the rounding to float16. Beyond that the
factor c of W ≈ c·codes·SCB/127 is fitted: training leaves it at 1, a wrong constant moves it in every weight (127/128, 127, 1/127),
and scales on the wrong axis fit by columns. With a float --base a common factor is a warning, and so are weights that have little in common.`,
	Source: "V28; int8 base with LoRA as PEFT and bitsandbytes have it; bitsandbytes int8 tensors; faults P149, P150, P156",
	Fix:    "dequantise again: W = codes·SCB[row]/127; SCB is the absmax of the row",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Base == nil || whole(in.Base) == nil {
			return nil, nil
		}
		old := byName(whole(in.Base))
		return each(in.Folder.of(Whole), func(u *Unit) ([]check.Result, error) { return in.denseFindings(u, old) })
	},
}

// denseFacts is a weight x beside that of the base, y, dequantised where it is int8, and z with the scales on the columns.
type denseFacts struct {
	name       string
	codes      bool
	n, excess  int64
	worst      float64 // of |x − y|, where the bound is exceeded most
	limit      float64
	where      string
	xx, yy, zz float64 // Σx², Σy², Σz²
	xy, xz     float64
}

// factor is the c of x ≈ c·y, and the share of x that it leaves over.
func (d *denseFacts) factor() (c, rest float64) {
	return d.xy / d.yy, math.Sqrt(max(0, 1-d.xy/d.xx*d.xy/d.yy))
}

func (in *Input) denseFindings(u *Unit, old map[string]*Tensor) (out []check.Result, err error) {
	var list []tensorPair
	for _, t := range u.tensors(weightsRole) {
		w := old[plainName(u, t.Name)]
		_, inLayer := layerOf(t.Name)
		if inLayer && w != nil && t.Array.DType.Float() && len(t.Array.Shape) == 2 && slices.Equal(t.Array.Shape, w.Array.Shape) && t.Array.Len() > 0 && t.Array.Shape[1] <= widest &&
			(w.Array.DType == format.I8 || w.Array.DType.Float()) {
			list = append(list, tensorPair{t, w})
		}
	}
	facts := make([]*denseFacts, len(list))
	err = in.parallel("dequantising", len(list), 0, func(i int, _ []byte) (err error) {
		facts[i], err = measureDense(list[i], old)
		return err
	})
	if err != nil && format.IsMalformed(err) {
		return nil, nil // the base has codes without scales: no base to compare with
	}
	if err != nil {
		return nil, err
	}
	subject := in.Folder.at(u)
	var wrong, turned, other []*denseFacts
	low, high := math.Inf(-1), math.Inf(1) // where every factor may be, within four times what noise of rounding leaves in it
	sum, loose := 0.0, 0.0
	var apart []string
	n, compared, codes := 0, int64(0), 0
	for _, d := range facts {
		if d.codes {
			codes++
		}
		n, compared = n+1, compared+d.n
		if d.excess == 0 || d.xx == 0 || d.yy == 0 {
			low, high = max(low, 1), min(high, 1)
			sum++
			continue
		}
		c, rest := d.factor()
		if loose = max(loose, rest); !d.codes && rest > 0.5 {
			apart = append(apart, d.name)
		}
		sigma := rest / math.Sqrt(float64(d.n))
		low, high = max(low, c-4*sigma), min(high, c+4*sigma)
		sum += c
		switch {
		case d.codes && rest > 0.02 && d.zz > 0 && d.xz*d.xz > 0.9995*d.xx*d.zz:
			turned = append(turned, d)
		case d.codes && rest <= 0.05 && math.Abs(c-1) > 2e-3:
			wrong = append(wrong, d)
		case d.codes && rest > 0.3:
			other = append(other, d)
		}
	}
	report := func(list []*denseFacts, id, title string) {
		if len(list) == 0 {
			return
		}
		d := list[0]
		c, _ := d.factor()
		r := check.Bound(in.Folder.shown(d.name), "|W − codes·SCB/127|", d.worst, d.limit, int(d.n))
		r.Verdict, r.Where = check.Fail, d.where
		r.Reason = fmt.Sprintf("%d of %s are not the dequantised base; W = %.5g·codes·SCB/127 fits the first best", len(list), plural(codes, "weight"), c)
		r.Explanations = []check.Explanation{{Fault: id, Title: title}}
		out = append(out, r)
	}
	report(turned, "QUANT-AXIS", "dequantised by columns: SCB has one scale for each row")
	if len(wrong) > 0 {
		c, _ := wrong[0].factor()
		report(wrong, "QUANT-FACTOR", factorName(c))
	}
	report(other, "QUANT-BASE", "the codes of another model, or rows in another order")
	if c := sum / float64(n); codes == 0 && n > 1 && loose <= 0.05 && low-high < 1e-3 && math.Abs(c-1) > 4e-3 {
		out = append(out, warn(subject, "QUANT-FACTOR", factorName(c), "every matrix of the layers is %.5g times that of --base", c))
	}
	if len(apart) > 0 {
		out = append(out, warn(subject, "QUANT-BASE", "another base, or its layers in another order", "%d of %s have little in common with those of --base: %s", len(apart), plural(n, "weight"), several(apart)))
	}
	if len(out) == 0 && codes > 0 {
		out = append(out, pass(subject, int(compared), "%s beside the dequantised base", plural(n, "weight")))
	}
	return out, nil
}

// factorName says where a factor comes from.
func factorName(c float64) string {
	for _, k := range []struct {
		c     float64
		title string
	}{{127.0 / 128, "dequantised with 1/128 in place of 1/127"}, {128.0 / 127, "dequantised with 127/128 left out"}, {127, "SCB was taken for the step: the 1/127 was left out"}, {1.0 / 127, "divided by 127 twice"}} {
		if math.Abs(c/k.c-1) < 1e-3 {
			return k.title
		}
	}
	return "dequantised with another constant, or scaled as a whole"
}

func measureDense(p tensorPair, old map[string]*Tensor) (*denseFacts, error) {
	d := &denseFacts{name: p.a.File + ":" + p.a.Name, codes: p.b.Array.DType == format.I8}
	rows, err := newRows(p.b, old)
	if err != nil {
		return nil, err
	}
	height, width := p.a.Array.Shape[0], p.a.Array.Shape[1]
	unit, eta := p.a.Array.DType.Unit()
	x, y := make([]float64, width), make([]float64, width)
	for i := range height {
		if err := p.a.Array.ReadFloat64(x, i*width); err != nil {
			return nil, err
		}
		if err := rows.row(y, i, 0); err != nil {
			return nil, err
		}
		for j, v := range x {
			bound := (unit+0x1p-11)*math.Abs(y[j])*(1+0x1p-10) + eta + 0x1p-25
			if e := math.Abs(v - y[j]); !(e <= bound) {
				if d.excess++; d.where == "" || e-bound > d.worst-d.limit {
					d.worst, d.limit = e, bound
					d.where = fmt.Sprintf("[%d, %d]: %.6g, the base gives %.6g", i, j, v, y[j])
				}
			}
			d.n++
			d.xx += float64(v * v)
			d.yy += float64(y[j] * y[j])
			d.xy += float64(v * y[j])
			if d.codes && height == width && rows.scale[i] > 0 {
				z := y[j] / rows.scale[i] * rows.scale[j]
				d.zz += float64(z * z)
				d.xz += float64(v * z)
			}
		}
	}
	return d, nil
}
