package bind

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"plumbline/accel/lora"
	accel "plumbline/accel/model"
	"plumbline/internal/arch"
	"plumbline/internal/pretrained"
	"plumbline/internal/refmodel"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/model"
	"plumbline/reference/quant"
)

// Base is the base of an accelerated policy: its files are open, its weights are not read.
type Base struct {
	Config      arch.Config
	Text        *Text
	Fingerprint string            // of the weights, "" if they have none
	Extra       map[string][]byte // the files of its folder that a checkpoint takes along
	Notes       []string          // what a reader should know

	reference model.Config
	weights   accel.Weights
	close     func()
}

// OpenBase opens a model by its name as [Open] does. The caller closes it.
func OpenBase(name string, seed uint64) (*Base, error) { return openBase(name, seed, false) }

// openBase is OpenBase for folders that may have no tokenizer.
func openBase(name string, seed uint64, bare bool) (_ *Base, err error) {
	path, done, err := Unpack(name)
	if err != nil {
		return nil, err
	}
	s, err := pretrained.Open(path, pretrained.Options{NoTokenizer: bare})
	if err != nil {
		done()
		return nil, err
	}
	b := &Base{Config: s.Config, Notes: s.Notes, close: func() { s.Close(); done() }}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.reference, err = refmodel.Config(s.ConfigFile, s.Config); err != nil {
		return nil, err
	}
	if !bare {
		if b.Text, err = newText(s.Path, s.Text); err != nil {
			return nil, err
		}
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if b.Extra, err = ReadExtra(path); err != nil {
			return nil, err
		}
	}
	b.weights = func(name string, dst []float32, first int) error {
		w, err := s.Weight(name)
		if err != nil {
			return err
		}
		return w.ReadRows32(dst, first)
	}
	if name == TinyInit || name == TinyGPTJInit {
		m, err := initial(path, seed)
		if err != nil {
			return nil, err
		}
		b.weights = func(name string, dst []float32, first int) error {
			x, width := m.Base.Data(name), len(dst)
			for _, t := range m.Base.Config.Tensors() {
				if t.Name == name && len(t.Shape) == 2 {
					width = t.Shape[1]
				}
			}
			for i := range dst {
				dst[i] = float32(x[first*width+i])
			}
			return nil
		}
		b.Fingerprint = numbersHash(m.Base)
		return b, nil
	}
	b.Fingerprint, err = s.Fingerprint()
	return b, err
}

// Close closes the files.
func (b *Base) Close() { b.close() }

// Reference returns the configuration of the model in reference/model, which names the layers of an adapter.
func (b *Base) Reference() model.Config { return b.reference }

// Accelerated is a model of accel/model as a [train.Policy]: a frozen base of int8 codes, or of float32 numbers, under an adapter.
type Accelerated struct {
	adapted
	model *accel.Model
}

// UntrainedError says that a run trains what the accelerated path does not.
type UntrainedError struct{}

func (UntrainedError) Error() string {
	return "the accelerated policy trains an adapter on a frozen base, and this run trains all weights: set lora.r=8 (or another rank) and lora.targets, or say --policy reference"
}

// NewAccelerated reads the weights of a base, one after the other, and makes an adapter on it trainable. It is an [UntrainedError] without an
// adapter. With Options.Int8 the layers of the blocks are rounded to float16 before they are quantised, as bitsandbytes does.
func NewAccelerated(b *Base, mode lora.Mode, o Options) (*Accelerated, error) {
	if o.Adapter == nil {
		return nil, UntrainedError{}
	}
	if o.Int8 && b.Config.Type == string(model.GPT2) {
		return nil, fmt.Errorf("int8: the layers of %s store [in, out]; only those with rows of outputs are quantised", b.Config.Type)
	}
	o.Fingerprint = cmp.Or(o.Fingerprint, b.Fingerprint)
	weights := b.weights
	if o.Int8 {
		weights = half(b.Config, weights)
	}
	m, err := accel.New(b.Config, mode, weights)
	if err != nil {
		return nil, err
	}
	l := &Accelerated{adapted{masters: newMasters(b.reference, o)}, m}
	if err := l.attach(m.Attach); err != nil {
		return nil, err
	}
	return l, nil
}

// half rounds the weights of the linear layers in the blocks to float16.
func half(c arch.Config, w accel.Weights) accel.Weights {
	rounded := map[string]bool{}
	for _, l := range c.Linears() {
		if l.Layer >= 0 {
			rounded[l.Weight().Name] = true
		}
	}
	return func(name string, dst []float32, first int) error {
		if err := w(name, dst, first); err != nil || !rounded[name] {
			return err
		}
		for i, v := range dst {
			dst[i] = float32(quant.Float16.Round(float64(v)))
		}
		return nil
	}
}

// Mode says how the base is stored and computed with.
func (l *Accelerated) Mode() lora.Mode { return l.model.Mode }

// Bytes returns the memory of the base.
func (l *Accelerated) Bytes() int { return l.model.Bytes() }

// Weight returns a weight of the base as the numbers that the model computes with.
func (l *Accelerated) Weight(name string) []float64 { return l.model.Weight(name) }

// Variant implements [train.Policy].
func (l *Accelerated) Variant() string { return "accel " + l.model.Mode.String() }

// load takes the masters as they are.
func (l *Accelerated) load() {
	l.adapted.load()
	for _, u := range l.updates {
		clear(u.GradA)
		clear(u.GradB)
	}
}

// pack returns the tokens of a batch without its padding, and what of it is scored.
func (l *Accelerated) pack(b train.Batch) (accel.Tokens, cells, error) {
	tokens, at := accel.Pack(b.Rows, b.Prompt+b.Response, b.IDs, b.Real)
	return tokens, cellsOf(b, func(k int) int { return at[k] }), l.model.Check(tokens)
}

// forward computes the scores of a batch. The caller closes the pass.
func (l *Accelerated) forward(b train.Batch, adapted bool, keep accel.Keep) (p *accel.Pass, x []float32, c cells, s *accel.Scores, out train.Scores, err error) {
	l.load()
	tokens, c, err := l.pack(b)
	if err != nil {
		return nil, nil, c, nil, out, err
	}
	p = l.model.Forward(tokens, adapted, keep)
	x = p.Gather(c.before)
	s = l.model.Score(x, c.targets, adapted, keep)
	n := b.Rows * b.Response
	out = train.Scores{LogProbs: c.spread(s.LogProbs(), n), Entropy: c.spread(s.Entropies(), n)}
	if h := l.head(); h != nil {
		out.Values = c.spread(h.Forward(x), n)
	}
	return p, x, c, s, out, nil
}

// Score implements [train.Policy].
func (l *Accelerated) Score(b train.Batch) (train.Scores, error) {
	p, _, _, _, out, err := l.forward(b, true, accel.Nothing)
	if err == nil {
		p.Close()
	}
	return out, err
}

// Reference implements [train.Policy]: the model without its adapter, which takes no memory of its own.
func (l *Accelerated) Reference(b train.Batch) ([]float64, error) {
	p, _, _, _, out, err := l.forward(b, false, accel.Nothing)
	if err == nil {
		p.Close()
	}
	return out.LogProbs, err
}

// Accumulate implements [train.Policy].
func (l *Accelerated) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	keep := accel.Everything
	if l.options.Checkpointing {
		keep = accel.Layers
	}
	p, x, c, s, out, err := l.forward(b, true, keep)
	if err != nil {
		return err
	}
	slopes, err := loss(out)
	if err != nil {
		p.Close()
		return err
	}
	dx := s.Backward(c.pick(slopes.LogProbs), c.pick(slopes.Entropy))
	if h := l.head(); h != nil && slopes.Values != nil {
		h.Backward(l.param(headWeight).Grad, &l.param(headBias).Grad[0], dx, x, c.pick(slopes.Values))
	}
	p.Backward(c.before, dx)
	l.collect()
	return nil
}

// Sample implements [train.Policy]: all rows that go on are computed together, with a cache of keys and values.
func (l *Accelerated) Sample(ctx context.Context, prompts train.Batch, s train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) (ids [][]int, logp [][]float64, err error) {
	if err := within(l.config.MaxPositions, prompts.Rows, prompts.Prompt, prompts.Real, s.MaxNew); err != nil {
		return nil, nil, err
	}
	l.load()
	vocab := l.config.Vocab
	d := newDraws(prompts.Rows, vocab, s, stream, first, eos)
	cache := l.model.NewCache(prompts.Rows, prompts.Prompt+s.MaxNew)
	var rows []int
	var next [][]int
	for i := range prompts.Rows {
		var prompt []int
		for j := i * prompts.Prompt; j < (i+1)*prompts.Prompt; j++ {
			if prompts.Real == nil || prompts.Real[j] {
				prompt = append(prompt, prompts.IDs[j])
			}
		}
		if len(prompt) == 0 {
			return nil, nil, fmt.Errorf("row %d of the prompts has no tokens", i)
		}
		rows, next = append(rows, i), append(next, prompt)
	}
	wide := make([]float64, vocab)
	for d.more() {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		logits, err := l.model.Extend(cache, rows, next)
		if err != nil {
			return nil, nil, err
		}
		var open []int
		next = nil
		for k, i := range rows {
			convert(wide, logits[k*vocab:(k+1)*vocab])
			id, err := d.draw(i, wide)
			if err != nil {
				return nil, nil, err
			}
			if d.done[i] {
				cache.Drop(i)
				continue
			}
			open, next = append(open, i), append(next, []int{id})
		}
		rows = open
		d.step(progress)
	}
	return d.ids, d.logp, nil
}

var _ train.Policy = (*Accelerated)(nil)

// Exact returns the policy in float64 that computes what l does: on the weights that l computes with, with a copy of its masters.
func (l *Accelerated) Exact() (*Language, error) {
	m, err := model.New(l.config, func(name string, _ ...int) ([]float64, error) { return l.model.Weight(name), nil })
	if err != nil {
		return nil, err
	}
	return l.exact(m)
}

// exact returns the policy in float64 over m with a copy of the masters of l.
func (l *Accelerated) exact(m *model.Model) (*Language, error) {
	o := l.options
	o.Int8, o.Adapter = false, model.Adapter{}
	for name, f := range l.options.Adapter {
		o.Adapter[name] = model.LoRA{Rank: f.Rank, Scale: f.Scale, A: slices.Clone(f.A), B: slices.Clone(f.B)}
	}
	e, err := NewLanguage(m, o)
	if err != nil {
		return nil, err
	}
	l.copyTo(e.params)
	return e, nil
}

// copyTo copies the masters.
func (l *masters) copyTo(params []train.Param) {
	for i, p := range l.params {
		copy(params[i].Data, p.Data)
	}
}

// twin returns a policy over the same model with masters of its own, as they are.
func (l *Accelerated) twin() *Accelerated {
	t := &Accelerated{adapted{newMasters(l.config, l.options), l.updates}, l.model}
	for _, p := range l.params {
		t.add(p.Name, p.Shape, slices.Clone(p.Data))
	}
	return t
}

// Rounding returns what the contract of the mode allows the kernels, with signs from the given seed: w8a16 rounds activations and gradients
// to bfloat16, w8a8 activations to codes and gradients to bfloat16, and all sums are of float32.
func (l *Accelerated) Rounding(seed uint64) *model.Rounding {
	r := &model.Rounding{Rand: rand.New(rand.NewPCG(seed, 0)), Unit: 0x1p-24, Terms: max(l.config.Hidden, l.config.Intermediate)}
	switch l.model.Mode {
	case lora.W8A16:
		r.Activation, r.Gradient = 0x1p-8, 0x1p-8
	case lora.W8A8, lora.LLMInt8:
		r.Code, r.Gradient = 1./254, 0x1p-8
	}
	return r
}
