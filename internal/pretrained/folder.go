package pretrained

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/tokenizer"
)

// folder is the files of a Source that is a folder of Hugging Face.
type folder struct{ *hf.Folder }

func (f folder) fingerprint() (string, error) { return f.Fingerprint() }

func (f folder) weight(name string) (*Weight, error) {
	a, err := f.Array(name)
	if err != nil {
		return nil, err
	}
	w := &Weight{Name: name, Shape: a.Shape, Type: a.Type, where: a.Name, path: f.Path}
	width := w.Width()
	w.rows = func(dst []float64, first int) error { return a.ReadFloat64(dst, first*width) }
	switch {
	case len(a.Shape) == 2 && f.IsInt8(name):
		codes := sync.OnceValues(func() (*hf.Int8, error) { return f.Int8(name, a.Shape[0], a.Shape[1]) })
		w.rows = func(dst []float64, first int) error {
			q, err := codes()
			if err != nil {
				return err
			}
			for i := range dst {
				dst[i] = float64(q.Codes[first*width+i]) * q.AbsMax[first+i/width] / 127
			}
			return nil
		}
	case !a.DType.Float():
		w.rows = func([]float64, int) error { return f.Numbers(name) }
	}
	return w, nil
}

// openFolder opens a folder of Hugging Face.
func openFolder(path string) (_ *Source, err error) {
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
	s := &Source{Path: path, ConfigFile: f.Config.File, Text: Text{EOS: f.Config.EOS, path: path}, Notes: slices.Clone(f.Notes), files: folder{f}}
	if s.Config, err = Language(f.Config); err != nil {
		return nil, err
	}
	if f.Generation != nil && len(f.Generation.EOS) > 0 {
		s.EOS = f.Generation.EOS
	}
	int8s := 0
	for _, n := range f.Names() {
		if f.IsInt8(n) {
			int8s++
		}
	}
	if int8s > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%s: %d weights are int8 of bitsandbytes; they are computed with as code·absmax/127", path, int8s))
	}
	config, err := tokenizerConfig(f)
	if err != nil {
		return nil, err
	}
	s.Template = config.template
	s.tokenizer = func() (*tokenizer.Tokenizer, []string, error) { return folderTokenizer(f, config, s.EOS) }
	return s, nil
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
