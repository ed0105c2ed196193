package bind

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"plumbline/internal/format/hf"
	"plumbline/reference/model"
	"plumbline/reference/quant"
)

// Int8Base replaces the weights of the linear layers in the blocks of m by what int8 codes with one scale for each row stand for, as
// a model that is loaded with load_in_8bit computes with them, and returns the codes by the names of the layers. Embeddings, norms,
// biases and the head stay. The numbers are those of quant.Quantize from float16, dequantised by 1/127 rounded to float32:
// bitsandbytes@0.50.2 int8_vectorwise_quant and int8_vectorwise_dequant.
//
// It is an error for GPT-2, whose layers store their weights transposed.
func Int8Base(m *model.Model) (map[string]*quant.Int8, error) {
	if m.Config.Kind == model.GPT2 {
		return nil, fmt.Errorf("int8: the layers of %s store [in, out]; only those with rows of outputs are quantised", m.Config.Kind)
	}
	codes := map[string]*quant.Int8{}
	for _, t := range m.Config.Linears() {
		if !strings.Contains(t.Name, ".") { // lm_head
			continue
		}
		w := m.Data(t.Name + ".weight")
		q := quant.Quantize(w, t.Shape[0], t.Shape[1], quant.Float16)
		q.Dequantize(w, quant.Inv127Float32)
		codes[t.Name] = q
	}
	return codes, nil
}

// Adapted is a [Language] with an adapter on a base that is known by its files.
type Adapted struct {
	*Language
	Codes map[string]*quant.Int8 // of the layers of an int8 base, by their names

	stored string
}

// NewAdapted makes the adapter of o trainable, on the base of m as it is or as [Int8Base] leaves it. stored is what
// [StoredFingerprint] says of the base; with "" it is known by its numbers.
func NewAdapted(m *model.Model, o Options, int8 bool, stored string) (*Adapted, error) {
	if o.Adapter == nil {
		panic("bind: without an adapter there is no frozen base")
	}
	l, err := NewLanguage(m, o)
	if err != nil {
		return nil, err
	}
	a := &Adapted{Language: l, stored: stored}
	if stored == "" {
		a.stored = l.Fingerprint()
	}
	if int8 {
		a.Codes, err = Int8Base(m)
	}
	return a, err
}

// Fingerprint implements train.Policy: that of the base's files, which int8 codes follow from.
func (a *Adapted) Fingerprint() string { return a.stored }

// StoredFingerprint returns the fingerprint of the weights in the folder of a model, as manifests name a base, "" for what is no
// folder of safetensors.
func StoredFingerprint(name string) (string, error) {
	path := name
	if e, ok := embedded[name]; ok {
		if name == TinyInit || name == TinyGPTJInit {
			return "", nil
		}
		var err error
		if path, err = os.MkdirTemp("", "plumbline-tiny-"); err != nil {
			return "", err
		}
		defer os.RemoveAll(path)
		tiny, err := fs.Sub(e.files, e.dir)
		if err == nil {
			err = os.CopyFS(path, tiny)
		}
		if err != nil {
			return "", err
		}
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return "", err
	}
	f, err := hf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Fingerprint()
}

// Embeddings returns those of a model's tokens, [V, C].
func Embeddings(m *model.Model) []float64 {
	name := "model.embed_tokens.weight"
	if m.Config.Kind == model.GPT2 || m.Config.Kind == model.GPTJ {
		name = "transformer.wte.weight"
	}
	return m.Data(name)
}
