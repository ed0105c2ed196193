package bind

import (
	"strings"

	"plumbline/accel/lora"
	accel "plumbline/accel/model"
	"plumbline/internal/train"
)

// adapted are masters beside a base that kernels compute with: the kernels have copies of the factors in float32.
type adapted struct {
	masters
	updates []update
}

// update is the low-rank update of a layer, with the numbers of its factors among the parameters.
type update struct {
	*lora.Update
	a, b int
}

// attach adds the factors of the adapter and a value head, and gives the factors to a model as float32.
func (l *adapted) attach(give func(layer string, u *lora.Update) error) error {
	if err := l.addAdapter(); err != nil {
		return err
	}
	for i, p := range l.params {
		layer, isA := strings.CutSuffix(p.Name, factorA)
		if !isA {
			continue
		}
		f := l.options.Adapter[layer]
		u := update{a: i, b: i + 1, Update: &lora.Update{Rank: f.Rank, Scale: float32(f.Scale), A: make([]float32, len(f.A)), B: make([]float32, len(f.B)),
			GradA: make([]float32, len(f.A)), GradB: make([]float32, len(f.B))}}
		if err := give(layer, u.Update); err != nil {
			return err
		}
		l.updates = append(l.updates, u)
	}
	l.addHead()
	return nil
}

// load copies the factors to the kernels.
func (l *adapted) load() {
	for _, u := range l.updates {
		convert(u.A, l.params[u.a].Data)
		convert(u.B, l.params[u.b].Data)
	}
}

// collect adds the gradients of the kernels to those of the masters.
func (l *adapted) collect() {
	for _, u := range l.updates {
		for i, g := range u.GradA {
			l.params[u.a].Grad[i] += float64(g)
		}
		for i, g := range u.GradB {
			l.params[u.b].Grad[i] += float64(g)
		}
	}
}

// head returns the value head, as it is; nil without one.
func (l *adapted) head() *accel.ValueHead {
	if !l.options.ValueHead {
		return nil
	}
	return &accel.ValueHead{W: l.param(headWeight).Data, B: l.param(headBias).Data[0]}
}

// cells are the response tokens of a batch that can be scored: real ones after a real one.
type cells struct {
	at      []int // in [B, R]
	before  []int // the numbers of the tokens before
	targets []int
}

// cellsOf returns those of b; at is the number of the token in a cell of [B, P+R], −1 for padding.
func cellsOf(b train.Batch, at func(cell int) int) (c cells) {
	for i := range b.Rows {
		for j := range b.Response {
			k := i*(b.Prompt+b.Response) + b.Prompt + j
			if b.Prompt+j > 0 && at(k) >= 0 && at(k-1) >= 0 {
				c.at, c.before, c.targets = append(c.at, i*b.Response+j), append(c.before, at(k-1)), append(c.targets, b.IDs[k])
			}
		}
	}
	return c
}

// spread returns [B, R] numbers, 0 where nothing is scored.
func (c cells) spread(x []float64, n int) []float64 {
	out := make([]float64, n)
	for i, k := range c.at {
		out[k] = x[i]
	}
	return out
}

// pick returns the numbers of [B, R] that are scored; nil stays nil.
func (c cells) pick(x []float64) []float64 {
	if x == nil {
		return nil
	}
	out := make([]float64, len(c.at))
	for i, k := range c.at {
		out[i] = x[k]
	}
	return out
}

// convert copies x into dst, number by number.
func convert[To, From float32 | float64](dst []To, x []From) {
	for i, v := range x {
		dst[i] = To(v)
	}
}
