package pretrained

import (
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/gguf"
	"plumbline/internal/tokenizer"
)

// openGGUF opens a GGUF file.
func openGGUF(path string) (_ *source, err error) {
	f, err := gguf.OpenModel(path)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, configFile: path, names: f.Names(), read: f.Read, shape: f.Shape, head: "lm_head.weight", eos: f.Config.EOS, template: f.Tokenizer.ChatTemplate,
		exact: true, notes: slices.Clone(f.Notes), close: f.Close}
	if s.config, err = Language(f.Config); err != nil {
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
