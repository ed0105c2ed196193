package train_test

import (
	"context"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
)

// stub is a policy that shares nothing with those of the reference: a bigram model in float32, with an adapter and a value for every
// token, which samples by itself and hands out no logits.
//
//	z(next | last) = base[last, next] + Σ_r B[next, r]·A[r, last]
type stub struct {
	base   []float32 // [V, V]
	params []train.Param
	calls  map[string]int
}

const (
	stubVocab = 48
	stubRank  = 3
	stubEnd   = 0
)

func newStub(seed uint64) *stub {
	s := &stub{base: make([]float32, stubVocab*stubVocab), calls: map[string]int{}}
	for i := range s.base {
		s.base[i] = float32(rng.New(seed, 1).Normal(uint64(i)))
	}
	add := func(name string, size float64, shape ...int) {
		p := train.Param{Name: name, Shape: shape, Data: make([]float64, shape[0]*shape[1]), Grad: make([]float64, shape[0]*shape[1])}
		for i := range p.Data {
			p.Data[i] = float64(float32(size * rng.New(seed, uint64(2+len(s.params))).Normal(uint64(i))))
		}
		s.params = append(s.params, p)
	}
	add("model.layers.0.bigram.lora_A.weight", .3, stubRank, stubVocab)
	add("model.layers.0.bigram.lora_B.weight", 0, stubVocab, stubRank)
	add("v_head.summary.weight", .1, 1, stubVocab)
	return s
}

// logProbs returns those of the token after last, in float32.
func (s *stub) logProbs(last int, adapted bool) []float32 {
	z := slices.Clone(s.base[last*stubVocab : (last+1)*stubVocab])
	if adapted {
		a, b := s.params[0].Data, s.params[1].Data
		for i := range z {
			for r := range stubRank {
				z[i] += float32(b[i*stubRank+r]) * float32(a[r*stubVocab+last])
			}
		}
	}
	top, sum := slices.Max(z), float32(0)
	for _, v := range z {
		sum += float32(math.Exp(float64(v - top)))
	}
	for i := range z {
		z[i] -= top + float32(math.Log(float64(sum)))
	}
	return z
}

// each calls f for every response token that is real, with its place in [B, R], the token before it and its own id.
func each(b train.Batch, f func(at, last, id int)) {
	width := b.Prompt + b.Response
	for i := range b.Rows {
		for t := b.Prompt; t < width; t++ {
			if b.Real[i*width+t] {
				f(i*b.Response+t-b.Prompt, b.IDs[i*width+t-1], b.IDs[i*width+t])
			}
		}
	}
}

func (s *stub) Score(b train.Batch) (train.Scores, error) {
	s.calls["score"]++
	n := b.Rows * b.Response
	out := train.Scores{LogProbs: make([]float64, n), Entropy: make([]float64, n), Values: make([]float64, n)}
	each(b, func(at, last, id int) {
		lp := s.logProbs(last, true)
		out.LogProbs[at], out.Values[at] = float64(lp[id]), s.params[2].Data[last]
		for _, v := range lp {
			out.Entropy[at] -= math.Exp(float64(v)) * float64(v)
		}
	})
	return out, nil
}

func (s *stub) Reference(b train.Batch) ([]float64, error) {
	out := make([]float64, b.Rows*b.Response)
	each(b, func(at, last, id int) { out[at] = float64(s.logProbs(last, false)[id]) })
	return out, nil
}

func (s *stub) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	s.calls["accumulate"]++
	now, _ := s.Score(b)
	d, err := loss(now)
	if err != nil {
		return err
	}
	at := func(x []float64, i int) float64 {
		if x == nil {
			return 0
		}
		return x[i]
	}
	a, up := s.params[0], s.params[1]
	each(b, func(i, last, id int) {
		s.params[2].Grad[last] += at(d.Values, i)
		for k, lp := range s.logProbs(last, true) {
			p := math.Exp(float64(lp))
			dz := -p*at(d.LogProbs, i) - p*(float64(lp)+now.Entropy[i])*at(d.Entropy, i)
			if k == id {
				dz += at(d.LogProbs, i)
			}
			for r := range stubRank {
				up.Grad[k*stubRank+r] += dz * a.Data[r*stubVocab+last]
				a.Grad[r*stubVocab+last] += dz * up.Data[k*stubRank+r]
			}
		}
	})
	return nil
}

func (s *stub) Sample(ctx context.Context, prompts train.Batch, how train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) (ids [][]int, logp [][]float64, err error) {
	s.calls["sample"]++
	drawn := train.Drawn{Open: prompts.Rows}
	ids, logp = make([][]int, prompts.Rows), make([][]float64, prompts.Rows)
	for i := range prompts.Rows { // row by row, unlike the reference
		last := prompts.IDs[(i+1)*prompts.Prompt-1]
		for t := 0; t < how.MaxNew; t++ {
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			lp := s.logProbs(last, true)
			p, sum := make([]float64, stubVocab), 0.0
			for k, v := range lp {
				if k != eos || t >= how.MinNew {
					p[k] = math.Exp(float64(v) / temperature(how))
				}
				sum += p[k]
			}
			u, id := train.Uniform(stream, first+i, t)*sum, 0
			for acc := p[0]; acc <= u && id < stubVocab-1; acc += p[id] {
				id++
			}
			ids[i], logp[i] = append(ids[i], id), append(logp[i], float64(lp[id]))
			if !how.Raw {
				logp[i][t] = math.Log(p[id] / sum)
			}
			drawn.Tokens, drawn.Position, last = drawn.Tokens+1, max(drawn.Position, t+1), id
			if progress != nil {
				progress(drawn)
			}
			if id == eos {
				break
			}
		}
		drawn.Open--
	}
	return ids, logp, nil
}

func temperature(how train.Sampling) float64 {
	if how.Greedy {
		return 1e-3
	}
	return how.Temperature
}

func (s *stub) Params() []train.Param { return s.params }
func (s *stub) Fingerprint() string   { return "the base of the stub" }
func (s *stub) Variant() string       { return "stub-f32" }

func (s *stub) Files() ([]rundir.File, error) {
	var tensors []safetensors.Tensor
	for _, p := range s.params {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: p.Data})
	}
	return []rundir.File{{Name: "adapter_model.safetensors", Write: func(w io.Writer) error { return safetensors.Write(w, nil, tensors) }}}, nil
}

func (s *stub) Restore(dir string) error {
	f, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range s.params {
		if err := train.ReadTensor(f, p.Name, p.Shape, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// momentum is an optimiser that is none of the reference's: p ← p − lr·m with m ← 0.9·m + g, in float32.
type momentum struct {
	params  []train.Param
	m       [][]float64
	steps   int
	updates []train.Update
}

func newMomentum(params []train.Param) *momentum {
	o := &momentum{params: params}
	for _, p := range params {
		o.m = append(o.m, make([]float64, len(p.Data)))
	}
	return o
}

func (o *momentum) Step(u train.Update) (out train.Updated, err error) {
	o.steps++
	o.updates = append(o.updates, u)
	add := make([][]float64, len(o.params))
	for i, p := range o.params {
		add[i] = make([]float64, len(p.Data))
		for j, g := range p.Grad {
			out.Norm += g * g
			o.m[i][j] = float64(.9*float32(o.m[i][j]) + float32(g))
			add[i][j] = -u.Rule.LR * o.m[i][j]
		}
		clear(p.Grad)
	}
	out.Norm, out.Flow = math.Sqrt(out.Norm), make([]float64, len(o.params))
	if s := u.Shield; s != nil && s.Shield != nil && s.Mode == train.ProjectUpdate {
		out.Before = s.Leak(add)
		s.Project(add, s.Passes)
		out.After = s.Leak(add)
	}
	for i, p := range o.params {
		for j, v := range add[i] {
			p.Data[j] = float64(float32(p.Data[j] + v))
		}
	}
	return out, nil
}

func (o *momentum) File() rundir.File {
	var tensors []safetensors.Tensor
	for i, p := range o.params {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: o.m[i]})
	}
	return rundir.File{Name: "momentum.safetensors", Write: func(w io.Writer) error { return safetensors.Write(w, nil, tensors) }}
}

func (o *momentum) Restore(dir string, updates int) error {
	f, err := safetensors.Open(filepath.Join(dir, "momentum.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	o.steps = updates
	for i, p := range o.params {
		if err := train.ReadTensor(f, p.Name, p.Shape, o.m[i]); err != nil {
			return err
		}
	}
	return nil
}

// letters is a tokenizer of one token for a character.
type letters struct{}

func (letters) Encode(text string) (ids []int) {
	for _, c := range []byte(text) {
		ids = append(ids, 1+int(c)%(stubVocab-1))
	}
	return ids
}

func (letters) Decode(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		if id != stubEnd {
			b.WriteByte(byte(id - 1 + stubVocab - 1)) // 47 is /, 48 to 57 the digits
		}
	}
	return b.String()
}
func (letters) EOS() int { return stubEnd }
func (letters) Pad() int { return stubEnd }
