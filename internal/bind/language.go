// Package bind joins the models of the reference to the trainers.
package bind

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/peft"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/nn"
	"plumbline/reference/quant"
	"plumbline/reference/rl"
)

// Options of a [Language].
type Options struct {
	// Adapter is trained if it is not nil; else all weights are.
	Adapter model.Adapter
	// PEFT is the adapter's configuration in a checkpoint: [AdapterConfig].
	PEFT peft.Config
	// Int8 quantises the base under an adapter by [Int8Base].
	Int8 bool
	// Fingerprint is that of the files of the base, as manifests name it; with "" a base is known by its numbers.
	Fingerprint string
	// Checkpointing keeps what the layers read and runs them once more backwards: less memory, the same bits.
	Checkpointing bool
	// ValueHead adds one, with weights from a normal distribution of standard deviation 0.01 and a bias of 0.
	ValueHead bool
	Seed      uint64
	// Extra are the files of a checkpoint beside the weights: configuration and tokenizer, by name.
	Extra map[string][]byte
}

// Language is a model of reference/model as a [train.Policy]: float64 on the tape.
type Language struct {
	Codes map[string]*quant.Int8 // of the layers of an int8 base, by their names

	masters
	model, frozen *model.Model
	rounding      *model.Rounding // of the passes, nil: none
}

// NewLanguage makes m trainable. The weights of m change from then on; they are rounded to float32, the precision of masters. It
// panics if a base without an adapter is to be quantised.
func NewLanguage(m *model.Model, o Options) (*Language, error) {
	l := &Language{model: m, frozen: m, masters: newMasters(m.Config, o)}
	if o.Adapter == nil {
		for _, t := range m.Config.Tensors() {
			l.add(t.Name, t.Shape, m.Data(t.Name))
		}
		var err error
		l.frozen, err = model.New(m.Config, func(name string, _ ...int) ([]float64, error) { return slices.Clone(m.Data(name)), nil })
		if err != nil {
			return nil, err
		}
	} else {
		if err := l.addAdapter(); err != nil {
			return nil, err
		}
		if o.Fingerprint == "" {
			l.options.Fingerprint = numbersHash(m)
		}
	}
	l.addHead()
	if o.Int8 {
		if o.Adapter == nil {
			panic("bind: int8 weights cannot be trained")
		}
		var err error
		if l.Codes, err = Int8Base(m); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// pass is the model on a tape.
type pass struct {
	*model.Net
	tape          *ad.Tape
	weight, bias  *ad.Var // of the value head
	checkpointing bool
}

func (l *Language) on(m *model.Model, adapter model.Adapter, grad bool) pass {
	p := pass{tape: &ad.Tape{}, checkpointing: grad && l.options.Checkpointing}
	t := model.Trainable{Adapter: adapter, LoRA: grad && adapter != nil}
	if grad && adapter == nil {
		t.Weight = func(string) bool { return true }
	}
	if l.rounding != nil {
		t.Read, t.Give, t.Update = l.rounding.Read, l.rounding.Give, l.rounding.Update
	}
	p.Net = m.On(p.tape, t)
	if l.options.ValueHead {
		leaf := p.tape.View
		if grad {
			leaf = p.tape.Param
		}
		w := l.param(headWeight)
		p.weight = leaf(w.Data, w.Shape...)
		p.bias = leaf(l.param(headBias).Data, 1)
	}
	return p
}

// logits returns those of the response tokens, [B, R, V], and the values of the states before them, nil without a head. The token
// at P+t is scored at P+t−1.
func (p pass) logits(b train.Batch) (logits, values *ad.Var) {
	out := p.Forward(model.Input{Batch: b.Rows, Time: b.Prompt + b.Response, IDs: b.IDs, Real: b.Real, Checkpointing: p.checkpointing})
	hidden := ad.Slice(out.Hidden, 1, b.Prompt-1, b.Prompt+b.Response-1)
	if p.weight != nil {
		values = nn.ValueHead(hidden, p.weight, p.bias)
	}
	return p.Logits(hidden), values
}

func tokens(b train.Batch) []int {
	t := b.Prompt + b.Response
	var ids []int
	for i := range b.Rows {
		ids = append(ids, b.IDs[i*t+b.Prompt:(i+1)*t]...)
	}
	return ids
}

func scores(b train.Batch, logits, values *ad.Var, vocab int) train.Scores {
	s := train.Scores{
		LogProbs: rl.LogProbs(nil, logits.Data(), tokens(b), vocab, rl.LogProbOptions{}),
		Entropy:  rl.Entropy(nil, logits.Data(), vocab, rl.EntropyOptions{}),
	}
	if values != nil {
		s.Values = slices.Clone(values.Data())
	}
	return s
}

// Score implements [train.Policy].
func (l *Language) Score(b train.Batch) (train.Scores, error) {
	if err := l.fits(b, false); err != nil {
		return train.Scores{}, err
	}
	logits, values := l.on(l.model, l.options.Adapter, false).logits(b)
	return scores(b, logits, values, l.model.Config.Vocab), nil
}

// Reference implements [train.Policy]: the model before training, or without the adapter.
func (l *Language) Reference(b train.Batch) ([]float64, error) {
	if err := l.fits(b, false); err != nil {
		return nil, err
	}
	logits, _ := l.on(l.frozen, nil, false).logits(b)
	return rl.LogProbs(nil, logits.Data(), tokens(b), l.model.Config.Vocab, rl.LogProbOptions{}), nil
}

// Accumulate implements [train.Policy].
func (l *Language) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	if err := l.fits(b, true); err != nil {
		return err
	}
	p := l.on(l.model, l.options.Adapter, true)
	logits, values := p.logits(b)
	vocab := l.model.Config.Vocab
	slopes, err := loss(scores(b, logits, values, vocab))
	if err != nil {
		return err
	}
	// The closed forms of log-probabilities and entropy give the derivative by the logits; the tape does the rest.
	d := make([]float64, logits.Size())
	if slopes.LogProbs != nil {
		d = rl.LogProbsBackward(d, slopes.LogProbs, logits.Data(), tokens(b), vocab, rl.LogProbOptions{})
	}
	if slopes.Entropy != nil {
		d = rl.EntropyBackward(d, slopes.Entropy, logits.Data(), vocab, rl.EntropyOptions{})
	}
	ad.Backward(logits, d)
	if values != nil && slopes.Values != nil {
		ad.Backward(values, slopes.Values)
	}
	for _, param := range l.params {
		for i, g := range l.onTape(p, param.Name).Grad() {
			param.Grad[i] += g
		}
	}
	return nil
}

// onTape returns a parameter of a pass.
func (l *Language) onTape(p pass, name string) *ad.Var {
	switch {
	case name == headWeight:
		return p.weight
	case name == headBias:
		return p.bias
	case l.options.Adapter == nil:
		return p.Var(name)
	}
	layer, isA := strings.CutSuffix(name, ".lora_A.weight")
	f, _ := p.Factors(strings.TrimSuffix(layer, ".lora_B.weight"))
	if isA {
		return f.A
	}
	return f.B
}

// Variant implements [train.Policy].
func (l *Language) Variant() string { return train.Reference }

// numbersHash returns the sha256 over the bits of the weights in the order of the forward pass.
func numbersHash(m *model.Model) string {
	h := sha256.New()
	var b [8]byte
	for _, t := range m.Config.Tensors() {
		fmt.Fprintln(h, t.Name, t.Shape)
		for _, v := range m.Data(t.Name) {
			binary.LittleEndian.PutUint64(b[:], math.Float64bits(v))
			h.Write(b[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NewAdapter returns an adapter of rank r for the layers of a model whose last name is a target: A uniform in ±√(1/in), as PEFT's
// Kaiming initialisation has it, and B of zeros. It is an error if a target names no layer.
func NewAdapter(c model.Config, r int, alpha float64, targets []string, seed uint64) (model.Adapter, error) {
	a := model.Adapter{}
	seen := map[string]bool{}
	for n, t := range c.Linears() {
		last := t.Name[strings.LastIndexByte(t.Name, '.')+1:]
		if !slices.Contains(targets, last) {
			continue
		}
		seen[last] = true
		f := model.LoRA{Rank: r, Scale: nn.LoRAScale(alpha, r, false), A: make([]float64, r*t.Shape[1]), B: make([]float64, t.Shape[0]*r)}
		stream, bound := rng.New(seed, uint64(1000+n)), 1/math.Sqrt(float64(t.Shape[1]))
		for i := range f.A {
			f.A[i] = float64(float32((2*stream.Uniform(uint64(i)) - 1) * bound))
		}
		a[t.Name] = f
	}
	for _, name := range targets {
		if !seen[name] {
			return nil, fmt.Errorf("lora.targets: the model has no layer %s; it has %s", name, strings.Join(lastNames(c), ", "))
		}
	}
	if len(a) == 0 {
		return nil, fmt.Errorf("lora.targets is empty: an adapter of nothing; the model has %s", strings.Join(lastNames(c), ", "))
	}
	return a, nil
}

func lastNames(c model.Config) []string {
	var names []string
	for _, t := range c.Linears() {
		if last := t.Name[strings.LastIndexByte(t.Name, '.')+1:]; !slices.Contains(names, last) {
			names = append(names, last)
		}
	}
	return names
}

// ReadExtra reads the files of a model's folder that a checkpoint takes along, those that are there.
func ReadExtra(dir string) (map[string][]byte, error) {
	folder, err := format.OpenDir(dir) // a link that leads out of it would put another file into the checkpoint
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	extra := map[string][]byte{}
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"} {
		text, err := folder.ReadFile(name, format.MaxIndex)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		extra[name] = text
	}
	return extra, nil
}
