package checkpoint

import (
	"fmt"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Finite checks every element.
var Finite = &check.Check[*Input]{
	Name: "weights/finite",
	Doc: `no NaN and no infinity in weights, heads and moments

Every element of the folder and of --merged is looked at; the first bad one of each tensor is named. One NaN in a weight makes every output NaN.`,
	Source: "layout of a PEFT adapter; faults P147, P155, P211",
	Fix:    "go back to the checkpoint before; look for the step with a NaN loss or gradient norm",
	Run: scanned(func(in *Input) ([]check.Result, error) {
		out := in.Folder.finiteFindings()
		if in.Merged != nil {
			out = append(out, in.Merged.finiteFindings()...)
		}
		return out, nil
	}),
}

func (f *Folder) finiteFindings() (out []check.Result) {
	for _, u := range f.Units {
		n := 0
		for _, c := range u.Containers {
			for _, t := range c.Tensors {
				n += t.Array.Len()
				if t.stats == nil || t.stats.bad == 0 {
					continue
				}
				id, title := "NAN", "NaN: 0/0 or Inf − Inf in an update"
				if t.stats.value != "NaN" {
					id, title = "INF", "overflow of "+t.Array.DType.String()
				}
				r := fail(f.tensor(t), id, title, "%s of %s numbers not finite", thousands(int64(t.stats.bad)), thousands(int64(t.Array.Len())))
				r.Where = fmt.Sprintf("element %s: %s", format.Place(t.stats.first, t.Array.Shape), t.stats.value)
				r.Compared = t.Array.Len()
				out = append(out, r)
			}
		}
		if n > 0 && len(out) == 0 {
			out = append(out, pass(f.at(u), n, "%s numbers", thousands(int64(n))))
		}
	}
	return out
}

// Zero checks for matrices of zeros.
var Zero = &check.Check[*Input]{
	Name: "weights/zero",
	Doc: `no weight of a whole model is zero everywhere, and no matrix of a layer in a quarter of its rows or columns side by side

Biases may be. A matrix of zeros was never filled: a partition that was not gathered, a router zeroed by a quantiser. LoRA on
it is half dead.`,
	Source: "faults P202, P211, P134",
	Fix:    "save again with the partitions gathered; keep the router out of the quantiser",
	Run: scanned(func(in *Input) ([]check.Result, error) {
		var out []check.Result
		for _, u := range in.Folder.of(Whole) {
			n := 0
			var zero, part []string
			for _, t := range u.tensors(weightsRole) {
				if !strings.HasSuffix(t.Name, "weight") || ignorable(t.Name) || t.Array.Len() < 2 {
					continue
				}
				if offsetNorms(u) && len(t.Array.Shape) == 1 {
					continue
				}
				if n++; t.stats != nil && t.stats.zero {
					zero = append(zero, t.Name)
					continue
				}
				what, err := t.emptyPart()
				if err != nil {
					return out, err
				}
				if what != "" {
					part = append(part, t.Name+": "+what)
				}
			}
			if len(part) > 0 {
				out = append(out, fail(in.Folder.at(u), "ZERO-PART", "a part of the matrix was never filled: one shard of tensor parallelism or FSDP was saved for the whole", "%d of %s zero in part: %s", len(part), plural(n, "weight"), several(part)))
			}
			switch {
			case len(zero) > 0:
				out = append(out, fail(in.Folder.at(u), "P202", "weights that were never filled, or zeroed by a quantiser", "%s of %s zero everywhere: %s", thousands(int64(len(zero))), plural(n, "weight"), several(zero)))
			case n > 0 && len(part) == 0:
				out = append(out, pass(in.Folder.at(u), n, "%s", plural(n, "weight")))
			}
		}
		return out, nil
	}),
}

// offsetNorms reports whether the norms of the model scale by 1 + w, so that they begin at 0: those of Gemma and of Qwen3-Next
// (transformers@5.23.0 models/gemma/modeling_gemma.py GemmaRMSNorm).
func offsetNorms(u *Unit) bool {
	return u.Config != nil && (strings.Contains(u.Config.Type, "gemma") || strings.HasPrefix(u.Config.Type, "qwen3_next") || strings.HasPrefix(u.Config.Type, "qwen3_5"))
}

// emptyPart says which rows or columns at the end or the beginning of a matrix of a layer are zero, if they are a quarter of it or
// more; "" if none are. A matrix without them costs two rows.
func (t *Tensor) emptyPart() (string, error) {
	s := t.Array.Shape
	if _, ok := layerOf(t.Name); !ok || len(s) != 2 || s[0] < 8 || s[1] < 8 || s[1] > widest || t.Array.DType.Size() == 0 {
		return "", nil
	}
	rows, cols := s[0], s[1]
	x := make([]float64, cols)
	// low and high count the zeros at the beginning and at the end of a row.
	ends := func(row int) (low, high int, err error) {
		if err = t.Array.ReadFloat64(x, row*cols); err != nil {
			return
		}
		for low < cols && x[low] == 0 {
			low++
		}
		for high < cols && x[cols-1-high] == 0 {
			high++
		}
		return
	}
	for _, end := range []struct {
		what        string
		first, step int
	}{{"last", rows - 1, -1}, {"first", 0, 1}} {
		empty := 0
		for empty < rows {
			low, _, err := ends(end.first + empty*end.step)
			if err != nil {
				return "", err
			}
			if low < cols {
				break
			}
			empty++
		}
		if 4*empty >= rows {
			return fmt.Sprintf("the %s %d of %d rows", end.what, empty, rows), nil
		}
	}
	left, right := cols, cols
	for row := 0; row < rows && 4*max(left, right) >= cols; row++ {
		low, high, err := ends(row)
		if err != nil {
			return "", err
		}
		if low < cols {
			left, right = min(left, low), min(right, high)
		}
	}
	switch {
	case 4*right >= cols && right < cols:
		return fmt.Sprintf("the last %d of %d columns", right, cols), nil
	case 4*left >= cols && left < cols:
		return fmt.Sprintf("the first %d of %d columns", left, cols), nil
	}
	return "", nil
}
