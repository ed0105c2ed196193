package train

import (
	"math"
	"slices"
	"strings"

	"plumbline/reference/linalg"
)

// spanTolerance is the share of the largest singular value below which a direction is dropped: systems A.4.
const spanTolerance = 1e-6

// NewBasis returns the basis of what the n vectors e [n, d] span: the right singular vectors V[:, :k] with s_j > 1e-6·s_1, at most
// rank of them, and at most d/4. rank 0 is no limit of its own. It is an error if the vectors are not finite or all 0.
func NewBasis(e []float64, d, rank int) (*Basis, error) {
	for i, v := range e {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, unfit("the protected vectors are not finite: vector %d, element %d is %g", i/d, i%d, v)
		}
	}
	v, s, ok := linalg.RightSingular(e, d)
	if !ok || s[0] == 0 {
		return nil, unfit("the protected vectors have no singular value decomposition, or are all 0")
	}
	k := 0
	for k < len(s) && s[k] > spanTolerance*s[0] {
		k++
	}
	cap := d / 4
	if rank > 0 {
		cap = min(cap, rank)
	}
	if k = min(k, cap); k == 0 {
		return nil, unfit("a basis of vectors of %d numbers has at most a quarter of their columns: none", d)
	}
	b := &Basis{D: d, K: k, Q: make([]float64, d*k)}
	for i := range d {
		copy(b.Q[i*k:(i+1)*k], v[i*len(s):i*len(s)+k])
	}
	return b, nil
}

// ReadVectors reads protected vectors, a matrix (n, d) of a .safetensors or .npy file.
func ReadVectors(path string) (e []float64, d int, err error) {
	a, _, close, err := openMatrix(path)
	if err != nil {
		return nil, 0, err
	}
	defer close()
	switch {
	case len(a.Shape) != 2 || a.Shape[0] == 0 || a.Shape[1] == 0:
		return nil, 0, unfit("%s: protected vectors of shape %s, want (n, d)", path, a.ShapeString())
	case !a.DType.Float():
		return nil, 0, unfit("%s: protected vectors stored as %s, want a floating-point type", path, a.Type)
	}
	e, err = a.Float64s()
	return e, a.Shape[1], err
}

// ProtectedGradients returns the gradients of the mean −log p of each of the first texts, one at a time: what an update along would
// change of how likely they are. For a flat basis they are one vector of all LoRA numbers each, for a side basis the columns of the
// gradients of every lora_B of the width of the first, as rows (n, d). At most a quarter of d texts are read.
func ProtectedGradients(p Policy, tok Tokenizer, texts []string, kind string) (e []float64, d int, err error) {
	params := p.Params()
	order := Flattened(params)
	if d = total(order); kind == Side {
		for _, q := range params {
			if strings.Contains(q.Name, ".lora_B") {
				d = q.Shape[0]
				break
			}
		}
	}
	for _, text := range texts[:min(len(texts), d/4)] {
		ids := tok.Encode(text)
		if len(ids) < 2 {
			continue
		}
		batch, mask := leftPad([][]int{ids[:1]}, tok.Pad()).withResponses([][]int{ids[1:]}, tok.Pad())
		err := p.Accumulate(batch, func(Scores) (Slopes, error) {
			slopes := make([]float64, len(mask))
			for i := range slopes {
				slopes[i] = -1 / float64(len(mask))
			}
			return Slopes{LogProbs: slopes}, nil
		})
		if err != nil {
			return nil, 0, err
		}
		if kind == Flat {
			for _, span := range order {
				q := params[slices.IndexFunc(params, func(q Param) bool { return peftPrefix+q.Name == span.Name })]
				e = append(e, q.Grad...)
			}
		}
		for _, q := range params {
			if kind == Side && strings.Contains(q.Name, ".lora_B") && q.Shape[0] == d {
				for j := range q.Shape[1] {
					for i := range d {
						e = append(e, q.Grad[i*q.Shape[1]+j])
					}
				}
			}
			clear(q.Grad)
		}
	}
	if len(e) == 0 {
		return nil, 0, unfit("no protected text has two tokens")
	}
	return e, d, nil
}
