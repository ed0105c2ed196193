package pretrained

import (
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/gguf"
	"plumbline/internal/tokenizer"
)

// ggufFile is the files of a Source that is one GGUF file.
type ggufFile struct{ *gguf.Model }

func (f ggufFile) fingerprint() (string, error) { return "", nil }

func (f ggufFile) weight(name string) (*Weight, error) {
	w, err := f.Weight(name)
	if err != nil {
		return nil, err
	}
	return &Weight{Name: name, Shape: w.Shape, Type: w.Type.String(), where: w.Where(), path: f.Path, rows: w.ReadRows}, nil
}

// openGGUF opens a GGUF file.
func openGGUF(path string) (_ *Source, err error) {
	f, err := gguf.OpenModel(path)
	if err != nil {
		return nil, err
	}
	s := &Source{Path: path, ConfigFile: path, Text: Text{EOS: f.Config.EOS, Template: f.Tokenizer.ChatTemplate, path: path},
		exact: true, Notes: slices.Clone(f.Notes), files: ggufFile{f}}
	if s.Config, err = Language(f.Config); err != nil {
		f.Close()
		return nil, err
	}
	s.tokenizer = func() (*tokenizer.Tokenizer, []string, error) {
		t := f.Tokenizer
		switch {
		case len(t.Tokens) == 0:
			return nil, nil, format.Malformed(path, "tokenizer.ggml.tokens", "is missing")
		case t.Model != "gpt2":
			return nil, nil, format.Malformed(path, "tokenizer.ggml.model", "is %.64q, supported is \"gpt2\", which is byte-level BPE", t.Model)
		}
		tok, err := tokenizer.FromGGUF(path, tokenizer.GGUF{Pre: t.Pre, Tokens: t.Tokens, Types: t.Types, Merges: t.Merges,
			AddBOS: t.AddBOS, AddEOS: t.AddEOS, BOS: t.BOS, EOS: t.EOS})
		return tok, nil, err
	}
	return s, nil
}
