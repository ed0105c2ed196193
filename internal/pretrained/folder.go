package pretrained

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/tokenizer"
)

// openFolder opens a folder of Hugging Face.
func openFolder(path string) (_ *source, err error) {
	f, err := hf.Open(path)
	var absent *fs.PathError
	if errors.Is(err, fs.ErrNotExist) && errors.As(err, &absent) && absent.Path != path {
		if info, lerr := os.Lstat(absent.Path); lerr == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, format.Malformed(absent.Path, "", "is a symbolic link that leads nowhere")
		}
		return nil, format.Malformed(path, "", "is no folder of a model: it holds no %s", filepath.Base(absent.Path))
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	s := &source{path: path, configFile: f.Config.File, names: f.Names(), shape: f.Shape, head: "lm_head.weight", eos: f.Config.EOS, notes: slices.Clone(f.Notes),
		fingerprint: f.Fingerprint, close: f.Close}
	if s.config, err = Language(f.Config); err != nil {
		return nil, err
	}
	if f.Generation != nil && len(f.Generation.EOS) > 0 {
		s.eos = f.Generation.EOS
	}
	s.read = func(name string, shape ...int) ([]float64, error) {
		if len(shape) == 2 && f.IsInt8(name) {
			q, err := f.Int8(name, shape[0], shape[1])
			if err != nil {
				return nil, err
			}
			return dequantize(q), nil
		}
		return f.Read(name, shape...)
	}
	int8s := 0
	for _, n := range s.names {
		if f.IsInt8(n) {
			int8s++
		}
	}
	if int8s > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%s: %d weights are int8 of bitsandbytes; they are computed with as code·absmax/127", path, int8s))
	}
	config, err := tokenizerConfig(f)
	if err != nil {
		return nil, err
	}
	s.template = config.template
	s.tokenizer = func() (*tokenizer.Tokenizer, []string, error) { return folderTokenizer(f, config, s.eos) }
	return s, nil
}

// dequantize returns the weights that int8 codes stand for, code·absmax/127.
func dequantize(q *hf.Int8) []float64 {
	w := make([]float64, len(q.Codes))
	for i, c := range q.Codes {
		w[i] = float64(c) * q.AbsMax[i/q.In] / 127
	}
	return w
}

// tokenConfig is what tokenizer_config.json says beside the tokenizer.
type tokenConfig struct {
	file     string
	eos      string // spelling of the token that ends a text
	template string
}

// tokenizerConfig reads tokenizer_config.json and the chat template, which may have a file of its own.
func tokenizerConfig(f *hf.Folder) (c tokenConfig, err error) {
	const name = "tokenizer_config.json"
	if f.Has(name) {
		text, err := f.Bytes(name, format.MaxConfig)
		if err != nil {
			return c, err
		}
		if c, err = parseTokenizerConfig(filepath.Join(f.Path, name), text); err != nil {
			return c, err
		}
	}
	if f.Has("chat_template.jinja") {
		text, err := f.Bytes("chat_template.jinja", format.MaxConfig)
		if err != nil {
			return c, err
		}
		c.template = string(text)
	}
	return c, nil
}

// parseTokenizerConfig reads the text of a tokenizer_config.json; file is for messages. A token is a string or an object
// with its spelling; a chat template is a string, or one of several with names, of which "default" is taken.
func parseTokenizerConfig(file string, text []byte) (tokenConfig, error) {
	c := tokenConfig{file: file}
	o, err := format.ParseObject(file, text)
	if err != nil {
		return c, err
	}
	if _, object := o.Members["eos_token"].(map[string]any); object {
		c.eos = o.Object("eos_token").Text("content", "")
	} else {
		c.eos = o.Text("eos_token", "")
	}
	if list, several := o.Members["chat_template"].([]any); several {
		for _, v := range list {
			if t, ok := v.(map[string]any); ok && t["name"] == "default" {
				c.template, _ = t["template"].(string)
			}
		}
	} else {
		c.template = o.Text("chat_template", "")
	}
	return c, o.Err()
}

// folderTokenizer reads tokenizer.json. eos are the tokens that end a text by the configuration.
func folderTokenizer(f *hf.Folder, c tokenConfig, eos []int) (_ *tokenizer.Tokenizer, notes []string, err error) {
	const name = "tokenizer.json"
	if !f.Has(name) {
		return nil, nil, format.Malformed(f.Path, "", "has no %s: AutoTokenizer.from_pretrained(...).save_pretrained(...) writes it", name)
	}
	text, err := f.Bytes(name, format.MaxIndex)
	if err != nil {
		return nil, nil, err
	}
	t, err := tokenizer.Parse(filepath.Join(f.Path, name), text)
	if err != nil || c.eos == "" {
		return t, nil, err
	}
	id, ok := t.ID(c.eos)
	switch {
	case !ok:
		return nil, nil, format.Malformed(c.file, "eos_token", "is %.64q, which %s does not have: the tokenizer is another model's", c.eos, name)
	case len(eos) > 0 && !slices.Contains(eos, id):
		notes = append(notes, fmt.Sprintf("%s: eos_token %q is token %d, by the configuration %d ends a text", c.file, c.eos, id, eos))
	}
	return t, notes, nil
}

// fits refuses a tokenizer of another model: one with tokens that have no row in the embedding, or without the tokens that
// end a text.
func (m *Model) fits(s *source) error {
	if err := m.Tokenizer.CheckVocab(s.config.Vocab); err != nil {
		return err
	}
	for _, id := range s.eos {
		if _, ok := m.Tokenizer.Token(id); !ok {
			return format.Malformed(s.configFile, "eos_token_id", "is %d, which the tokenizer does not have: it is another model's", id)
		}
	}
	if n := m.Tokenizer.MaxID() + 1; s.exact && n != s.config.Vocab {
		return format.Malformed(m.Path, "tokenizer.ggml.tokens", "has %d tokens, the embedding %d rows", n, s.config.Vocab)
	} else if n < s.config.Vocab {
		m.Notes = append(m.Notes, fmt.Sprintf("%s: %d of %d rows of the embedding have no token; they are never sampled", m.Path, s.config.Vocab-n, s.config.Vocab))
	}
	return nil
}
