// Package pretrained opens what others trained: a folder of Hugging Face (safetensors, also of bitsandbytes' int8, in one file
// or in shards) or a GGUF file, with a LoRA adapter of PEFT if wanted, and their tokenizer.
//
// A [Source] is open and checked, and holds no weights: their names, shapes and types are known, their elements are read when
// they are asked for, whole or by rows, in float64 or float32. A program that
// computes with them does so in four steps:
//
//	s, err := pretrained.Open(path, pretrained.Options{Adapter: folder})
//	defer s.Close()
//	m, _ := s.Config.Module(arch.Down, 3)  // the geometry knows the name
//	w, err := s.Weight(m.Weight().Name)    // shape [Out, In]; of GPT-2's Conv1D [In, Out]
//	err = w.ReadRows32(tile, 128)          // rows from 128 on, len(tile)/Width of them
//
// A model is opened whole or not at all. What does not fit together is refused with the name of the file and of the thing:
// a weight that is missing or has another shape, an adapter for another base, a tokenizer with tokens that the embedding has
// no rows for. A weight that is not finite is refused when it is read. What fits and is still worth knowing is a note.
package pretrained

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/tokenizer"
)

// Options says what to open.
type Options struct {
	Adapter     string // folder of a PEFT adapter, "" for none
	NoTokenizer bool   // leave the tokenizer out, which a folder of weights need not have
}

// Source is an open model: its geometry, tokenizer and adapter are known, its weights lie in its files. Its methods may be
// called by several goroutines at once.
type Source struct {
	Path       string
	Config     arch.Config // of the base as it is stored; with an adapter see [Adapter.Config]
	ConfigFile string      // that says so, for messages
	Adapter    *Adapter    // nil without one
	Text                   // the tokenizer and what is said about texts
	Notes      []string    // what a reader should know

	files     files
	tokenizer func() (_ *tokenizer.Tokenizer, notes []string, err error)
	exact     bool // the tokenizer has as many tokens as the embedding has rows
}

// files is where weights lie: a folder or a GGUF file. Names are those of the state dict of transformers.
type files interface {
	Names() []string
	weight(name string) (*Weight, error)
	fingerprint() (string, error)
	Close() error
}

// Open opens the model at path, a folder with config.json or a GGUF file, and the adapter on it, and checks that all of it
// belongs together. Weights are not read, except where a tied head is stored beside its embedding and both must agree. The
// caller closes the Source.
func Open(path string, o Options) (_ *Source, err error) {
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	names := s.files.Names()
	// Before the weights of every layer are named: a configuration of two lines can claim thousands.
	if s.Config.Layers > len(names) {
		return nil, format.Malformed(s.ConfigFile, "", "describes %d layers, but %s holds %d tensors", s.Config.Layers, path, len(names))
	}
	if err := s.Config.Validate(); err != nil {
		return nil, format.Malformed(s.ConfigFile, "", "%v", err)
	}
	if !o.NoTokenizer {
		var notes []string
		if s.Tokenizer, notes, err = s.tokenizer(); err != nil {
			return nil, err
		}
		s.Notes = append(s.Notes, notes...)
		if err := s.fits(); err != nil {
			return nil, err
		}
	}
	if o.Adapter != "" {
		if s.Adapter, err = attach(s, o.Adapter); err != nil {
			return nil, err
		}
		s.Notes = append(s.Notes, s.Adapter.Notes...)
	}
	if err := s.leftOver(names); err != nil {
		return nil, err
	}
	return s, s.complete()
}

// open opens the files at path.
func open(path string) (*Source, error) {
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

// Close closes the files. Weights cannot be read after it.
func (s *Source) Close() error { return s.files.Close() }

// Weight returns the weight of the base called name, as [arch.Config.Tensors] of Config has it; "lm_head.weight" is the
// embedding where the head is tied. The adapter is no part of it.
func (s *Source) Weight(name string) (*Weight, error) { return s.files.weight(name) }

// Fingerprint returns the sha256 that manifests and adapters know the base by, "" for a GGUF file, which has none. Of each file
// it reads the header, the first and the last MiB: [hf.Folder.Fingerprint].
func (s *Source) Fingerprint() (string, error) { return s.files.fingerprint() }

// Languages are the values of model_type that a Source opens: those whose arithmetic is known, not only their geometry.
var Languages = []string{"gpt2", "gptj", "llama", "qwen2"}

// Language returns what a configuration says about a language model. What is not one of [Languages], a classifier and a
// quantisation other than bitsandbytes' int8 are refused by name.
func Language(c *hf.Config) (arch.Config, error) {
	if err := c.OneOf(Languages); err != nil {
		return arch.Config{}, err
	}
	for _, a := range c.Architectures {
		if strings.Contains(a, "ForSequenceClassification") || strings.Contains(a, "ForTokenClassification") || strings.Contains(a, "ForQuestionAnswering") {
			return arch.Config{}, format.Malformed(c.File, "architectures", "is %.64q, want a language model", a)
		}
	}
	if q := c.Quantization; q != nil && (q.Method != "bitsandbytes" || q.Bit4) {
		return arch.Config{}, format.Malformed(c.File, "quantization_config", "quant_method %.64q with 4 bits %t is not supported, only bitsandbytes with load_in_8bit is", q.Method, q.Bit4)
	}
	return c.Config, nil
}

// complete refuses weights that are missing or have another shape before any of many gigabytes is read.
func (s *Source) complete() error {
	for _, t := range s.Config.Tensors() {
		w, err := s.Weight(t.Name)
		if err == nil && !slices.Equal(w.Shape, t.Shape) {
			err = format.Malformed(w.where, "", "shape %s, want %s", shapeString(w.Shape), shapeString(t.Shape))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func shapeString(shape []int) string { return (&format.Array{Shape: shape}).ShapeString() }

// leftOver refuses stored weights of the body that the configuration does not ask for: it is that of a smaller model. Heads
// of another kind (a value head, a classifier) are noted.
func (s *Source) leftOver(names []string) error {
	wanted := map[string]bool{arch.HeadWeight: true}
	for _, t := range s.Config.Tensors() {
		wanted[t.Name] = true
	}
	for _, name := range names {
		part := strings.TrimSuffix(strings.TrimSuffix(name, ".SCB"), ".weight_format")
		switch {
		case wanted[name] || part != name && wanted[part+".weight"]:
		case strings.HasPrefix(name, "model.") || strings.HasPrefix(name, "transformer."):
			return format.Malformed(s.Path, fmt.Sprintf("tensor %.128q", name), "is stored, but %s describes a model without it: %d layers of %d heads",
				s.ConfigFile, s.Config.Layers, s.Config.Heads)
		default:
			s.Notes = append(s.Notes, fmt.Sprintf("%s: tensor %.128q is not part of the language model and was not read", s.Path, name))
		}
	}
	return nil
}
