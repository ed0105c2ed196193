package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Scales checks the scales of int8 weights.
var Scales = &check.Check[*Input]{
	Name: "quant/scales",
	Doc: `every int8 weight [out, in] has its SCB [out], finite and positive where the row is not zero, and weight_format 0

SCB is the largest magnitude of the row, W ≈ codes·SCB/127, so that the largest code of a row is 127. A float8 scale of 0 makes
NaN on quantising and zeros on reading.`,
	Source: "bitsandbytes int8 tensors; int8 base with LoRA as PEFT and bitsandbytes have it; bitsandbytes@0.50 backends/default/ops.py; faults P150, P212",
	Fix:    "quantise again from the float weights",
	Run: scanned(func(in *Input) ([]check.Result, error) {
		return each(in.Folder.of(Whole), in.Folder.scaleFindings)
	}),
}

func (f *Folder) scaleFindings(u *Unit) (out []check.Result, err error) {
	byName := map[string]*Tensor{}
	for _, t := range u.tensors(weightsRole) {
		byName[t.Name] = t
	}
	wrong := map[string][]string{}
	n := 0
	for _, t := range u.tensors(weightsRole) {
		if strings.HasSuffix(t.Name, ".weight_scale") || strings.HasSuffix(t.Name, ".weight_scale_inv") {
			n++
			if !t.Array.DType.Float() || t.stats != nil && t.stats.bad > 0 {
				continue
			}
			if zero, err := anyZero(t); err != nil {
				return out, err
			} else if zero {
				wrong["zero"] = append(wrong["zero"], t.Name)
			}
		}
		scb := byName[strings.TrimSuffix(t.Name, ".weight")+".SCB"]
		if t.Array.DType != format.I8 || len(t.Array.Shape) != 2 || scb == nil {
			continue
		}
		n++
		if w := byName[t.Name+"_format"]; w != nil && w.stats != nil && !w.stats.zero {
			wrong["format"] = append(wrong["format"], t.Name)
			continue
		}
		if !scb.Array.DType.Float() || scb.Array.Len() != t.Array.Shape[0] {
			wrong["length"] = append(wrong["length"], fmt.Sprintf("%s %s for %s", scb.Name, scb.Array.ShapeString(), t.Array.ShapeString()))
			continue
		}
		values, err := scb.Array.Float64s()
		if err != nil {
			return out, err
		}
		for i, v := range values {
			high := uint8(0)
			if t.stats != nil && i < len(t.stats.rowMax) {
				high = t.stats.rowMax[i]
			}
			kind := ""
			switch {
			case math.IsNaN(v) || math.IsInf(v, 0):
				kind = "nan"
			case v < 0 || v == 0 && high > 0:
				kind = "sign"
			case high > 127:
				kind = "code"
			case high > 0 && high < 127:
				kind = "range"
			}
			if kind != "" {
				wrong[kind] = append(wrong[kind], fmt.Sprintf("%s row %d (SCB %g, largest code %d)", t.Name, i, v, high))
			}
		}
	}
	for _, w := range []struct{ kind, fault, title, what string }{
		{"format", "WEIGHT-FORMAT", "tiled for an old GPU: the rows are not where they seem", "weight_format is not 0 (row-major)"},
		{"length", "SCB-LENGTH", "scales of another weight", "SCB does not have one number per row"},
		{"nan", "SCB-NAN", "quantised from weights that were not finite", "SCB is not finite"},
		{"sign", "SCB-SIGN", "scales that were zeroed or overwritten", "SCB is not positive where the row has codes"},
		{"code", "INT8-CODE", "codes of another quantiser", "a code is −128, which absmax quantisation never gives"},
		{"zero", "P212", "a row of zeros was quantised without a guard", "a scale is 0"},
	} {
		if list := wrong[w.kind]; len(list) > 0 {
			out = append(out, fail(f.at(u), w.fault, w.title, "%s: %s", w.what, several(list)))
		}
	}
	if list := wrong["range"]; len(list) > 0 {
		out = append(out, warn(f.at(u), "INT8-RANGE", "not the absmax of the row: a scale per tensor, or codes from before a merge", "the largest code of %s is not 127: %s", plural(len(list), "row"), several(list)))
	}
	if len(out) == 0 && n > 0 {
		out = append(out, pass(f.at(u), n, "scales of %s", plural(n, "weight")))
	}
	return out, nil
}

func anyZero(t *Tensor) (bool, error) {
	const block = 1 << 16
	x := make([]float64, min(block, t.Array.Len()))
	for at := 0; at < t.Array.Len(); at += block {
		part := x[:min(block, t.Array.Len()-at)]
		if err := t.Array.ReadFloat64(part, at); err != nil {
			return false, err
		}
		if slices.Contains(part, 0) {
			return true, nil
		}
	}
	return false, nil
}

// Codes checks int8 weights against the weights that they stand for.
var Codes = &check.Check[*Input]{
	Name: "quant/codes",
	Doc: `|W − codes·SCB/127| ≤ SCB/254 in every row, with --base

Rounding to the nearest code leaves half a step of the row; the float weights are cast to float16 first, which adds 2⁻¹¹·|W|
and half of float16's smallest step.`,
	Source: "V28; int8 base with LoRA as PEFT and bitsandbytes have it; bitsandbytes int8 tensors",
	Fix:    "quantise again from this base; do not mix constants: SCB is the absmax, not absmax/127",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Base == nil || whole(in.Base) == nil {
			return nil, nil
		}
		b := whole(in.Base)
		old := byName(b)
		var out []check.Result
		for _, u := range in.Folder.of(Whole) {
			made := byName(u)
			for _, t := range u.tensors(weightsRole) {
				w := old[plainName(u, t.Name)]
				if t.Array.DType != format.I8 || len(t.Array.Shape) != 2 || w == nil || !w.Array.DType.Float() {
					continue
				}
				r, err := in.codeFinding(t, w, made)
				if err != nil {
					if format.IsMalformed(err) {
						continue // scales are judged in quant/scales
					}
					return out, err
				}
				out = append(out, r)
			}
		}
		return summarise(out, in.Folder.Tree.Path(), "int8 weight within half a step of the base"), nil
	},
}

// summarise makes one result of those that passed.
func summarise(list []check.Result, subject, what string) []check.Result {
	var out []check.Result
	n, compared := 0, 0
	var worst check.Result
	for _, r := range list {
		if r.Verdict != check.Pass {
			out = append(out, r)
			continue
		}
		if n == 0 || r.Ratio() > worst.Ratio() {
			worst = r
		}
		n++
		compared += r.Compared
	}
	if n > 0 {
		worst.Subject, worst.Compared, worst.Reason = subject, compared, plural(n, what)
		out = append(out, worst)
	}
	return out
}

func (in *Input) codeFinding(t, w *Tensor, made map[string]*Tensor) (check.Result, error) {
	subject := in.Folder.tensor(t)
	if fmt.Sprint(t.Array.Shape) != fmt.Sprint(w.Array.Shape) {
		return fail(subject, "WRONG-BASE", "the codes of another model", "shape %s, in the base %s", t.Array.ShapeString(), w.Array.ShapeString()), nil
	}
	codes, err := newRows(t, made)
	if err != nil {
		return check.Result{}, err
	}
	rows, cols := t.Array.Shape[0], t.Array.Shape[1]
	type part struct {
		excess, n  int64
		worst      float64
		limit      float64
		where      string
		dot, norm2 float64
	}
	if rows == 0 || cols == 0 {
		return pass(subject, 0, "no elements"), nil
	}
	block, chunks := max(1, piece/8/cols), (cols+widest-1)/widest
	parts := make([]part, (rows+block-1)/block)
	err = in.parallel("codes", len(parts), 0, func(i int, _ []byte) error {
		q := &parts[i]
		width := min(cols, widest)
		xbuf, ybuf := make([]float64, width), make([]float64, width)
		for at := i * block * chunks; at < min(rows, (i+1)*block)*chunks; at++ {
			row, first := at/chunks, at%chunks*widest
			x, y := xbuf[:min(widest, cols-first)], ybuf[:min(widest, cols-first)]
			if err := w.Array.ReadFloat64(x, row*cols+first); err != nil {
				return err
			}
			if err := codes.row(y, row, first); err != nil {
				return err
			}
			half := codes.half(row)
			for j, v := range x {
				e := math.Abs(v - y[j])
				bound := half + 0x1p-11*math.Abs(v) + 0x1p-25
				q.n++
				q.dot += float64(v * y[j])
				q.norm2 += float64(y[j] * y[j])
				if !(e <= bound) {
					q.excess++
				}
				if q.where == "" || e-bound > q.worst-q.limit || e != e {
					q.worst, q.limit = e, bound
					q.where = fmt.Sprintf("[%d, %d]: %.6g, the base has %.6g", row, first+j, y[j], v)
				}
			}
		}
		return nil
	})
	if err != nil {
		return check.Result{}, err
	}
	var all part
	for i := range parts {
		q := &parts[i]
		if all.where == "" || q.worst-q.limit > all.worst-all.limit {
			all.worst, all.limit, all.where = q.worst, q.limit, q.where
		}
		all.excess += q.excess
		all.n += q.n
		all.dot += q.dot
		all.norm2 += q.norm2
	}
	r := check.Bound(subject, "|W − codes·SCB/127|", all.worst, all.limit, int(all.n))
	r.Where = all.where
	if all.excess > 0 { // whatever NaN has done to the maximum
		r.Verdict = check.Fail
	}
	if r.Verdict == check.Fail {
		c := all.dot / all.norm2
		id, title := "QUANT-BASE", "codes of other weights: another base, or merged since"
		if math.Abs(c-127) < 2 {
			id, title = "QUANT-SCALE-127", "SCB holds absmax/127 in place of absmax"
		}
		r.Reason = fmt.Sprintf("%s of %s numbers beyond half a step; base = %.4g·codes·SCB/127 fits best", thousands(all.excess), thousands(all.n), c)
		r.Explanations = []check.Explanation{{Fault: id, Title: title}}
	}
	return r, nil
}
