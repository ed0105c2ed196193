package bind

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/assets"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/tokenizer"
	"plumbline/internal/train"
	"plumbline/reference/model"
)

// The names of masked models that are part of the program. With -init after it the name is that of the model before any training.
const (
	TinyMasked = "tiny_masked" // fills in Sonnets
	TinyJudge  = "tiny_judge"  // tells them from synthetic text
	initSuffix = "-init"
)

// Untrained returns the name of a model before any training.
func Untrained(name string) string { return strings.TrimSuffix(name, initSuffix) + initSuffix }

// The files of a folder of a masked model, beside [WeightsFile].
const (
	maskedConfig     = "config.json"     // nanoGPT's model_args, with the names of golden models/maskedgpt
	maskedVocabulary = "vocabulary.json" // {"characters": "…"}: id i is the i-th
)

// maxMaskedFile bounds them.
const maxMaskedFile = 1 << 20

// maxMaskedLayers bounds the layers, of which each is named before its weights are looked for.
const maxMaskedLayers = 1024

// maxMaskedSize bounds the elements of a model that is made from a seed.
const maxMaskedSize = 1 << 28

// MaskedFolder is a folder of a masked model: config.json, vocabulary.json and model.safetensors.
type MaskedFolder struct {
	Path       string
	Model      *model.MaskedGPT
	Characters *tokenizer.Chars
	weights    map[string][]float64
	files      map[string][]byte
}

// OpenMasked reads a masked model by its name: [TinyMasked], [TinyJudge], one of them or a folder with -init after it, which has
// weights from the seed, or a folder. A checkpoint of torch is refused.
func OpenMasked(name string, seed uint64) (*MaskedFolder, error) {
	path, initial := strings.CutSuffix(name, initSuffix)
	f := &MaskedFolder{Path: path, files: map[string][]byte{}, weights: map[string][]float64{}}
	embedded, isPart := map[string]fs.FS{TinyMasked: assets.TinyMasked, TinyJudge: assets.TinyJudge}[path]
	if !isPart {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case !info.IsDir():
			return nil, format.Malformed(path, "", "is no folder: a masked model is config.json, vocabulary.json and model.safetensors; a pickled .pt file is not read, since unpickling runs "+
				"code: write its tensors with safetensors.torch.save_file, without the prefix _orig_mod. that torch.compile gives them")
		}
	}
	for _, name := range []string{maskedConfig, maskedVocabulary} {
		var err error
		if isPart {
			f.files[name], err = fs.ReadFile(embedded, path+"/"+name)
		} else {
			f.files[name], err = readSmall(filepath.Join(path, name))
		}
		if err != nil {
			return nil, err
		}
	}
	c, err := parseMaskedConfig(filepath.Join(path, maskedConfig), f.files[maskedConfig])
	if err != nil {
		return nil, err
	}
	if f.Characters, err = parseVocabulary(filepath.Join(path, maskedVocabulary), f.files[maskedVocabulary], c); err != nil {
		return nil, err
	}
	if initial {
		err = f.initial(c, seed)
	} else {
		err = f.load(c, embedded)
	}
	if err != nil {
		return nil, err
	}
	f.Model, err = model.NewMaskedGPT(c, func(name string, _ ...int) ([]float64, error) { return f.weights[name], nil })
	return f, err
}

func readSmall(path string) ([]byte, error) {
	file, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if file.Size > maxMaskedFile {
		return nil, format.Malformed(path, "", "has %d bytes, want at most %d", file.Size, maxMaskedFile)
	}
	text := make([]byte, file.Size)
	if _, err := io.ReadFull(file, text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// parseMaskedConfig reads config.json. What this program does not compute is an error; special ids that are the same are a
// *[train.ConfigError].
func parseMaskedConfig(path string, text []byte) (model.MaskedGPTConfig, error) {
	c := model.MaskedGPTConfig{Mode: model.LanguageModel}
	kind, attention, position := "", "bidirectional", "rotary"
	has := map[string]bool{}
	numbers := map[string]*int{"n_layer": &c.Layers, "n_head": &c.Heads, "n_embd": &c.Hidden, "block_size": &c.MaxPositions, "vocab_size": &c.Vocab,
		"mask_token_id": &c.Mask, "pad_token_id": &c.Pad, "cls_token_id": &c.CLS}
	s := format.NewScanner(path, text, 0)
	err := s.Document(func(key string) (err error) {
		has[key] = true
		switch key {
		case "mode":
			var mode string
			mode, err = s.String()
			c.Mode = model.Mode(mode)
			if err == nil && c.Mode != model.LanguageModel && c.Mode != model.SequenceScorer {
				return s.Malformed("mode %.40q is not one of %s, %s", mode, model.LanguageModel, model.SequenceScorer)
			}
		case "model_type":
			kind, err = s.String()
		case "attention_type":
			attention, err = s.String()
		case "position_encoding":
			position, err = s.String()
		case "bias":
			c.Bias, err = s.Bool()
		case "cls_embedding":
			c.CLSEmbedding, err = s.Bool()
		default:
			to := numbers[key]
			if to == nil {
				return s.Malformed("unknown key %.40q", key)
			}
			var n int64
			if n, err = s.Int(); err == nil && (n < 0 || n > math.MaxInt32) {
				return s.Malformed("%s %d is out of range", key, n)
			}
			*to = int(n)
		}
		return err
	})
	if err != nil {
		return c, err
	}
	need := []string{"model_type", "n_layer", "n_head", "n_embd", "block_size", "vocab_size", "mask_token_id", "pad_token_id"}
	if c.Mode == model.SequenceScorer {
		need = append(need, "cls_token_id")
	}
	for _, key := range need {
		if !has[key] {
			return c, format.Malformed(path, "", "no key %q", key)
		}
	}
	if kind != "maskedgpt" || attention != "bidirectional" || position != "rotary" {
		return c, format.Malformed(path, "", "model_type %.40q, attention_type %.40q, position_encoding %.40q: want maskedgpt, bidirectional, rotary", kind, attention, position)
	}
	if c.Layers > maxMaskedLayers {
		return c, format.Malformed(path, "", "n_layer %d, want at most %d", c.Layers, maxMaskedLayers)
	}
	if err := sameIDs(path, c); err != nil {
		return c, err
	}
	if err := c.Validate(); err != nil {
		return c, format.Malformed(path, "", "%v", err)
	}
	return c, nil
}

// sameIDs refuses special ids that are the same: a judge whose CLS is PAD reads the padding, or a text's beginning, as the other
// (H6).
func sameIDs(path string, c model.MaskedGPTConfig) error {
	names, ids := []string{"mask_token_id", "pad_token_id"}, []int{c.Mask, c.Pad}
	if c.Mode == model.SequenceScorer {
		names, ids = append(names, "cls_token_id"), append(ids, c.CLS)
	}
	for i := range ids {
		for j := range i {
			if ids[i] == ids[j] {
				return &train.ConfigError{Msg: fmt.Sprintf("%s: H6: %s and %s are both %d: give each special token an id of its own", path, names[j], names[i], ids[i])}
			}
		}
	}
	return nil
}

// parseVocabulary reads vocabulary.json and fits it to the configuration.
func parseVocabulary(path string, text []byte, c model.MaskedGPTConfig) (*tokenizer.Chars, error) {
	var characters string
	s := format.NewScanner(path, text, 0)
	err := s.Document(func(key string) (err error) {
		if key != "characters" {
			return s.Malformed("unknown key %.40q", key)
		}
		characters, err = s.String()
		return err
	})
	if err != nil {
		return nil, err
	}
	cls := -1
	if c.Mode == model.SequenceScorer {
		cls = c.CLS
	}
	chars, err := tokenizer.NewChars([]rune(characters), c.Mask, c.Pad, cls)
	if err == nil {
		err = chars.CheckVocab(c.Vocab, c.Mode == model.SequenceScorer)
	}
	if err != nil {
		return nil, format.Malformed(path, "", "%v", err)
	}
	return chars, nil
}

// load reads the weights, from a folder of the file system or, if it is not nil, an embedded one. lm_head.weight, which files hold
// beside the table that it is, must be that table; there is no other tensor than those of the configuration.
func (f *MaskedFolder) load(c model.MaskedGPTConfig, embedded fs.FS) error {
	var file *safetensors.File
	var err error
	path := filepath.Join(f.Path, WeightsFile)
	if embedded == nil {
		file, err = safetensors.Open(path)
	} else {
		var text []byte
		if text, err = fs.ReadFile(embedded, f.Path+"/"+WeightsFile); err == nil {
			file, err = safetensors.ParseAt(bytes.NewReader(text), int64(len(text)), path)
		}
	}
	if err != nil {
		return err
	}
	defer file.Close()
	known := map[string]bool{}
	for _, t := range c.Tensors() {
		var data []float64
		if a, ok := file.Tensor(t.Name); ok && slices.Equal(a.Shape, t.Shape) && a.DType != format.Unknown { // else ReadTensor says what is wrong
			data = make([]float64, a.Len())
		}
		if err := train.ReadTensor(file, t.Name, t.Shape, data); err != nil {
			return err
		}
		f.weights[t.Name], known[t.Name] = data, true
	}
	for name, a := range file.Tensors() {
		if known[name] {
			continue
		}
		table := f.weights["transformer.wte.weight"]
		if name != "lm_head.weight" {
			return format.Malformed(path, name, "is no tensor of the model that config.json describes")
		}
		if head, err := a.Float64s(); err != nil || !slices.Equal(head, table) {
			return format.Malformed(path, name, "differs from transformer.wte.weight, which it is in the model that config.json describes")
		}
	}
	return nil
}

// initial fills the weights as nanoGPT does: a normal distribution of standard deviation 0.02, biases of 0, norms of 1; a judge
// begins with the verdict ½ of everything, A being 1.
func (f *MaskedFolder) initial(c model.MaskedGPTConfig, seed uint64) error {
	size := 0
	for _, t := range c.Tensors() {
		n := 1
		for _, d := range t.Shape {
			if n *= d; n > maxMaskedSize {
				break
			}
		}
		if size += n; size > maxMaskedSize {
			return &train.ConfigError{Msg: fmt.Sprintf("%s: a model of more than %d weights is not made from a seed", f.Path, maxMaskedSize)}
		}
	}
	for n, t := range c.Tensors() {
		stream, data := rng.New(seed, uint64(streamInit+n)), make([]float64, format.Elements(t.Shape))
		for i := range data {
			switch {
			case len(t.Shape) > 1 || t.Name == "cls_embedding":
				data[i] = 0.02 * stream.Normal(uint64(i))
			case filepath.Ext(t.Name) == ".weight" || t.Name == "sequence_head.A":
				data[i] = 1
			}
		}
		f.weights[t.Name] = data
	}
	return nil
}

// OpenJudge is OpenMasked for a judge. A language model is a *[train.ConfigError].
func OpenJudge(name string, seed uint64) (*MaskedFolder, error) {
	f, err := OpenMasked(name, seed)
	if err != nil {
		return nil, err
	}
	if f.Model.Config.Mode != model.SequenceScorer {
		return nil, &train.ConfigError{Msg: fmt.Sprintf("%s: Judge model must be configured with mode=SEQUENCE_SCORER, not %s", name, f.Model.Config.Mode)}
	}
	return f, nil
}

// OpenGenerator is OpenMasked for a generator. A judge is a *[train.ConfigError].
func OpenGenerator(name string, seed uint64) (*MaskedFolder, error) {
	f, err := OpenMasked(name, seed)
	if err != nil {
		return nil, err
	}
	if f.Model.Config.Mode != model.LanguageModel {
		return nil, &train.ConfigError{Msg: fmt.Sprintf("%s: the generator must be configured with mode=LANGUAGE_MODEL, not %s", name, f.Model.Config.Mode)}
	}
	return f, nil
}

// SameCharacters is a *[train.ConfigError] unless a judge reads what a generator writes.
func SameCharacters(generator, judge *MaskedFolder) error {
	a, b := generator.Characters, judge.Characters
	same := a.Len() == b.Len()
	for id := 0; same && id < a.Len(); id++ {
		x, errX := a.Decode([]int{id}, 0)
		y, errY := b.Decode([]int{id}, 0)
		same = errX == nil && errY == nil && x == y
	}
	if !same {
		return &train.ConfigError{Msg: fmt.Sprintf("%s and %s have other characters: the judge cannot read what the generator writes", generator.Path, judge.Path)}
	}
	return nil
}
