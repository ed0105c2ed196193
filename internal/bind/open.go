package bind

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"plumbline/internal/assets"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/pretrained"
	"plumbline/internal/refmodel"
	"plumbline/internal/rng"
	"plumbline/internal/tokenizer"
	"plumbline/reference/model"
)

// The names of models that are part of the program.
const (
	Tiny     = "tiny"      // answers about a third of the additions of two digits
	TinyInit = "tiny-init" // the same model before any training

	TinyGPTJ     = "tiny-gptj"      // answers questions about items with lists of short words
	TinyGPTJInit = "tiny-gptj-init" // the same model before any training
)

// embedded are the folders of the models that are part of the program.
var embedded = map[string]struct {
	files fs.FS
	dir   string
}{Tiny: {assets.Tiny, "tiny"}, TinyInit: {assets.Tiny, "tiny"}, TinyGPTJ: {assets.TinyGPTJ, "tiny_gptj"}, TinyGPTJInit: {assets.TinyGPTJ, "tiny_gptj"}}

// Open returns a model by its name: [Tiny], [TinyInit], [TinyGPTJ], [TinyGPTJInit], or a path that [refmodel.Open] takes. extra are the files of its folder
// that a checkpoint takes along.
func Open(name string, seed uint64) (m *refmodel.Model, extra map[string][]byte, err error) {
	path, done, err := Unpack(name)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	if name == TinyInit || name == TinyGPTJInit {
		m, err = initial(path, seed)
	} else {
		m, err = refmodel.Open(path, refmodel.Options{Fingerprint: true})
	}
	if err != nil {
		return nil, nil, err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		extra, err = ReadExtra(path)
		if err != nil {
			return nil, nil, err
		}
	}
	return m, extra, nil
}

// Unpack returns the path of a model by its name: those that are part of the program are written into a folder that done takes away.
func Unpack(name string) (path string, done func(), err error) {
	e, ok := embedded[name]
	if !ok {
		return name, func() {}, nil
	}
	if path, err = os.MkdirTemp("", "plumbline-tiny-"); err != nil {
		return "", nil, err
	}
	tiny, err := fs.Sub(e.files, e.dir)
	if err == nil {
		err = os.CopyFS(path, tiny)
	}
	if err != nil {
		os.RemoveAll(path)
		return "", nil, err
	}
	return path, func() { os.RemoveAll(path) }, nil
}

// streamInit numbers the random numbers of the first tensor.
const streamInit = 10_000

// initial returns the model of a folder with weights from a normal distribution of standard deviation 0.02, biases of 0 and norms
// of 1, whatever weights lie there.
func initial(path string, seed uint64) (*refmodel.Model, error) {
	config, err := hf.ReadConfig(path)
	if err != nil {
		return nil, err
	}
	known, err := pretrained.Language(config)
	if err != nil {
		return nil, err
	}
	c, err := refmodel.Config(config.File, known)
	if err != nil {
		return nil, err
	}
	n := uint64(0)
	base, err := model.New(c, func(name string, shape ...int) ([]float64, error) {
		stream := rng.New(seed, streamInit+n)
		n++
		w := make([]float64, format.Elements(shape))
		for i := range w {
			switch {
			case len(shape) > 1:
				w[i] = 0.02 * stream.Normal(uint64(i))
			case filepath.Ext(name) == ".weight":
				w[i] = 1
			}
		}
		return w, nil
	})
	if err != nil {
		return nil, err
	}
	extra, err := ReadExtra(path)
	if err != nil {
		return nil, err
	}
	text, is := extra["tokenizer.json"]
	if !is {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(path, "tokenizer.json"), Err: fs.ErrNotExist}
	}
	tok, err := tokenizer.Parse("tokenizer.json", text)
	if err != nil {
		return nil, err
	}
	return &refmodel.Model{Path: path, Base: base, Text: pretrained.Text{Tokenizer: tok, EOS: config.EOS}}, nil
}

// Text is a tokenizer as a trainer sees it.
type Text struct {
	t   *tokenizer.Tokenizer
	eos int
}

// NewText returns the tokenizer of a model. A prompt's special tokens that are written out are text. Padding is by the end, which
// the masks tell apart. It is an error if the model names no end.
func NewText(m *refmodel.Model) (*Text, error) { return newText(m.Path, m.Text) }

func newText(path string, t pretrained.Text) (*Text, error) {
	if len(t.EOS) == 0 {
		return nil, fmt.Errorf("%s: names no end of text (eos_token_id): responses could not end", path)
	}
	return &Text{t.Tokenizer, t.EOS[0]}, nil
}

// Encode returns the ids of a text, without the tokens that the tokenizer adds.
func (x *Text) Encode(text string) []int { return x.t.Encode(text, tokenizer.EncodeOptions{}) }

// Decode returns the text of ids without special tokens. What is not UTF-8 is replaced.
func (x *Text) Decode(ids []int) string {
	text, err := x.t.Decode(ids, tokenizer.DecodeOptions{SkipSpecial: true})
	if err != nil {
		return "" // an id beyond the tokenizer: padding rows of the embedding
	}
	return text
}

// EOS returns the end of a response, also its padding.
func (x *Text) EOS() int { return x.eos }

// Pad returns the padding.
func (x *Text) Pad() int { return x.eos }

// EmbeddedNames are the names of the causal models that are part of the program.
func EmbeddedNames() []string { return slices.Sorted(maps.Keys(embedded)) }
