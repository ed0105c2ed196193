package bind

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rundir"
	"plumbline/internal/tokenizer"
	"plumbline/internal/train"
	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// Masked is a masked model of reference/model as a [train.MaskedPolicy] or a [train.Judge]: float64 on the tape.
type Masked struct {
	model, frozen *model.MaskedGPT
	chars         *tokenizer.Chars
	extra         map[string][]byte // configuration and vocabulary, by the name of the file
	params        []train.Param
	frozenSHA     string
}

// NewMasked makes the model of a folder trainable. Its weights change from then on; they are rounded to float32, the precision of
// masters. reference is the frozen model, nil for a copy of this one as it is now.
func NewMasked(f *MaskedFolder, reference *MaskedFolder) (*Masked, error) {
	m := &Masked{model: f.Model, chars: f.Characters, extra: f.files}
	for _, t := range f.Model.Config.Tensors() {
		data := f.weights[t.Name]
		for i, v := range data {
			data[i] = float64(float32(v))
		}
		m.params = append(m.params, train.Param{Name: t.Name, Shape: t.Shape, Data: data, Grad: make([]float64, len(data))})
	}
	weights := f.weights
	if reference != nil {
		if a, b := f.Model.Config, reference.Model.Config; a.Vocab != b.Vocab || a.Mask != b.Mask || b.Mode != model.LanguageModel || a.MaxPositions > b.MaxPositions {
			return nil, &train.ConfigError{Msg: fmt.Sprintf("%s is no reference for %s: vocabulary, MASK, mode or block_size differ", reference.Path, f.Path)}
		}
		m.frozen, weights = reference.Model, reference.weights
	} else {
		var err error
		if m.frozen, err = model.NewMaskedGPT(f.Model.Config, func(name string, _ ...int) ([]float64, error) { return slices.Clone(f.weights[name]), nil }); err != nil {
			return nil, err
		}
	}
	h := sha256.New()
	for _, t := range m.frozen.Config.Tensors() {
		hashTensor(h, t, weights[t.Name])
	}
	m.frozenSHA = hex.EncodeToString(h.Sum(nil))
	return m, nil
}

func hashTensor(h hash.Hash, t model.Tensor, data []float64) {
	fmt.Fprintln(h, t.Name, t.Shape)
	var b [8]byte
	for _, v := range data {
		binary.LittleEndian.PutUint64(b[:], math.Float64bits(v))
		h.Write(b[:])
	}
}

// Vocabulary implements [train.MaskedModel].
func (m *Masked) Vocabulary() train.Vocabulary {
	c := m.model.Config
	return train.Vocabulary{Characters: m.chars.Len(), Mask: c.Mask, Pad: c.Pad, BlockSize: c.MaxPositions}
}

// Encode implements [train.MaskedModel].
func (m *Masked) Encode(text string) ([]int, error) { return m.chars.Encode(text) }

// Decode implements [train.MaskedModel].
func (m *Masked) Decode(ids []int) string {
	text, err := m.chars.Decode(ids, '_')
	if err != nil {
		return "" // an id beyond the vocabulary
	}
	return text
}

// Params implements [train.MaskedModel].
func (m *Masked) Params() []train.Param { return m.params }

func all(string) bool { return true }

func input(x train.Texts) model.Input { return model.Input{Batch: x.Rows, Time: x.Time, IDs: x.IDs} }

func logitsOf(x train.Texts, v *ad.Var) train.Logits {
	s := v.Shape()
	return train.Logits{Rows: s[0], Time: s[1], Vocab: s[2], Data: v.Data()}
}

// Logits implements [train.MaskedPolicy].
func (m *Masked) Logits(x train.Texts) train.Logits {
	n := m.model.On(&ad.Tape{}, nil)
	return logitsOf(x, n.Logits(n.Forward(input(x)).Hidden))
}

// FLOPs implements [train.MaskedPolicy]: 2·N + 4·L·C·T, with N the weights, L layers and C channels, a third of what nanoGPT's estimate_mfu has
// for a forward and a backward pass.
func (m *Masked) FLOPs(time int) float64 {
	n := 0
	for _, p := range m.params {
		n += len(p.Data)
	}
	c := m.model.Config
	return 2*float64(n) + 4*float64(c.Layers*c.Hidden*time)
}

// Reference implements [train.MaskedPolicy].
func (m *Masked) Reference(x train.Texts) train.Logits {
	n := m.frozen.On(&ad.Tape{}, nil)
	return logitsOf(x, n.Logits(n.Forward(input(x)).Hidden))
}

// Accumulate implements [train.MaskedPolicy].
func (m *Masked) Accumulate(x train.Texts, loss func(train.Logits) ([]float64, error)) error {
	n := m.model.On(&ad.Tape{}, all)
	logits := n.Logits(n.Forward(input(x)).Hidden)
	d, err := loss(logitsOf(x, logits))
	if err != nil {
		return err
	}
	ad.Backward(logits, d)
	m.add(n)
	return nil
}

func (m *Masked) add(n *model.MaskedNet) {
	for _, p := range m.params {
		for i, g := range n.Var(p.Name).Grad() {
			p.Grad[i] += g
		}
	}
}

// Score implements [train.Judge].
func (m *Masked) Score(x train.Texts) (verdicts []float64, cut int) {
	in := m.model.Config.JudgeInput(input(x))
	return m.model.On(&ad.Tape{}, nil).Score(in).Data(), x.Time + 1 - in.Time
}

// AccumulateScore implements [train.Judge].
func (m *Masked) AccumulateScore(x train.Texts, loss func(verdicts []float64) ([]float64, error)) error {
	n := m.model.On(&ad.Tape{}, all)
	y := n.Score(m.model.Config.JudgeInput(input(x)))
	d, err := loss(y.Data())
	if err != nil {
		return err
	}
	ad.Backward(y, d)
	m.add(n)
	return nil
}

// Variant implements [train.Model].
func (m *Masked) Variant() string { return train.Reference }

// Files implements [train.MaskedModel].
func (m *Masked) Files() ([]rundir.File, error) {
	var files []rundir.File
	for _, name := range slices.Sorted(maps.Keys(m.extra)) {
		text := m.extra[name]
		files = append(files, rundir.File{Name: name, Write: func(w io.Writer) error { _, err := w.Write(text); return err }})
	}
	var tensors []safetensors.Tensor
	for _, p := range m.params {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: p.Data})
	}
	return append(files, rundir.File{Name: WeightsFile, Write: func(w io.Writer) error {
		return safetensors.Write(w, map[string]string{"format": "pt"}, tensors)
	}}), nil
}

// Restore implements [train.MaskedModel].
func (m *Masked) Restore(dir string) error {
	f, err := safetensors.Open(filepath.Join(dir, WeightsFile))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range m.params {
		if err := train.ReadTensor(f, p.Name, p.Shape, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// Fingerprint implements [train.MaskedModel]: the sha256 over the bits of the frozen weights in the order of the forward pass.
func (m *Masked) Fingerprint() string { return m.frozenSHA }
