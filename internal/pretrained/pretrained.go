// Package pretrained opens what others trained: a folder of Hugging Face or a GGUF file, with a LoRA adapter of PEFT on
// top if wanted, as a model of plumbline/reference/model with its tokenizer.
//
// A model is opened whole or not at all. What does not fit together is refused with the name of the file and of the thing:
// a weight that is missing, has another shape or is not finite, an adapter for another base, a tokenizer with tokens that
// the embedding has no rows for. What fits and is still worth knowing is a note.
package pretrained

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/tokenizer"
	"plumbline/reference/model"
)

// Options says what to open.
type Options struct {
	Adapter     string // folder of a PEFT adapter, "" for none
	NoTokenizer bool   // leave the tokenizer out, which a folder of weights need not have
	Fingerprint bool   // take that of the weights, for which all of them are read once more
}

// Model is a model with its tokenizer, in memory.
type Model struct {
	Path        string
	Base        *model.Model
	Adapter     model.Adapter        // nil without an adapter
	Tokenizer   *tokenizer.Tokenizer // nil if it was left out
	EOS         []int                // the tokens that end a text, in the order of the file
	Template    string               // the chat template, "" if there is none
	Fingerprint string               // of the weights of a folder, if it was asked for: [hf.Folder.Fingerprint]
	Notes       []string             // what a reader should know
}

// source is a file or folder of weights that has been opened: its configuration is known, its weights are not read.
type source struct {
	path        string
	config      model.Config
	configFile  string   // for messages about config
	names       []string // of all stored weights, named as those of reference/model
	read        model.Weights
	shape       func(name string) ([]int, error) // of a stored weight
	head        string                           // the name under which read gives the head, also if it is tied
	eos         []int
	template    string
	tokenizer   func() (_ *tokenizer.Tokenizer, notes []string, err error)
	exact       bool                   // the tokenizer has as many tokens as the embedding has rows
	fingerprint func() (string, error) // of the weights, nil if they have none
	notes       []string
	close       func() error
}

// Open reads the model at path: a folder with config.json, or a GGUF file.
func Open(path string, o Options) (_ *Model, err error) {
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	defer s.close()
	// Before the weights of every layer are named: a configuration of two lines can claim thousands.
	if s.config.Layers > len(s.names) {
		return nil, format.Malformed(s.configFile, "", "describes %d layers, but %s holds %d tensors", s.config.Layers, path, len(s.names))
	}
	m := &Model{Path: path, EOS: s.eos, Template: s.template, Notes: s.notes}
	if !o.NoTokenizer {
		var notes []string
		if m.Tokenizer, notes, err = s.tokenizer(); err != nil {
			return nil, err
		}
		m.Notes = append(m.Notes, notes...)
		if err := m.fits(s); err != nil {
			return nil, err
		}
	}
	config, weights := s.config, s.read
	if o.Adapter != "" {
		a, err := attach(s, o.Adapter)
		if err != nil {
			return nil, err
		}
		m.Adapter, config, weights = a.lora, a.config, a.weights
		m.Notes = append(m.Notes, a.notes...)
	}
	if err := m.leftOver(s); err != nil {
		return nil, err
	}
	if err := s.complete(); err != nil {
		return nil, err
	}
	if o.Fingerprint && s.fingerprint != nil {
		if m.Fingerprint, err = s.fingerprint(); err != nil {
			return nil, err
		}
	}
	m.Base, err = model.New(config, finite(path, weights))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// open opens the weights at path.
func open(path string) (*source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return openFolder(path)
	}
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := f.ReadAt(magic, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch ext := filepath.Ext(path); {
	case f.Size == 0:
		return nil, format.Malformed(path, "", "is empty")
	case string(magic) == "GGUF":
		return openGGUF(path)
	case string(magic[:2]) == "PK" || magic[0] == 0x80 || slices.Contains([]string{".bin", ".pt", ".pth", ".ckpt", ".pkl"}, ext):
		return nil, hf.Pickled(path)
	case ext == ".safetensors":
		return nil, format.Malformed(path, "", "holds weights only: give the folder with its config.json")
	}
	return nil, format.Malformed(path, "", "starts with %q: neither a GGUF file nor the folder of a model", magic)
}

// finite returns weights that refuse NaN and infinities.
func finite(path string, w model.Weights) model.Weights {
	return func(name string, shape ...int) ([]float64, error) {
		values, err := w(name, shape...)
		if err != nil {
			return nil, err
		}
		for i, v := range values {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, format.Malformed(path, fmt.Sprintf("tensor %q", name), "element %d is %v, want finite weights", i, v)
			}
		}
		return values, nil
	}
}

// complete refuses weights that are missing or have another shape before any of many gigabytes is read.
func (s *source) complete() error {
	for _, t := range s.config.Tensors() {
		got, err := s.shape(t.Name)
		if err == nil && !slices.Equal(got, t.Shape) {
			_, err = s.read(t.Name, t.Shape...) // its error says what is stored
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leftOver refuses stored weights of the body that the configuration does not ask for: it is that of a smaller model. Heads
// of another kind (a value head, a classifier) are noted.
func (m *Model) leftOver(s *source) error {
	wanted := map[string]bool{}
	for _, t := range s.config.Tensors() {
		wanted[t.Name] = true
	}
	for _, name := range s.names {
		part := strings.TrimSuffix(strings.TrimSuffix(name, ".SCB"), ".weight_format")
		switch {
		case wanted[name] || name == s.head || part != name && wanted[part+".weight"]:
		case strings.HasPrefix(name, "model.") || strings.HasPrefix(name, "transformer."):
			return format.Malformed(m.Path, fmt.Sprintf("tensor %.128q", name), "is stored, but %s describes a model without it: %d layers of %d heads",
				s.configFile, s.config.Layers, s.config.Heads)
		default:
			m.Notes = append(m.Notes, fmt.Sprintf("%s: tensor %.128q is not part of the language model and was not read", m.Path, name))
		}
	}
	return nil
}
