package gguf

import (
	"math"

	"plumbline/internal/format"
)

// Tokenizer is the tokenizer in the metadata of a file, tokenizer.ggml.*.
type Tokenizer struct {
	Model  string    // "gpt2" for byte-level BPE, "llama" for SentencePiece
	Pre    string    // the split before BPE: "smollm", "qwen2", "llama-bpe"; "" if not said
	Tokens []string  // by id, in the alphabet of Model
	Types  []int32   // by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; nil if not said
	Scores []float32 // by id; nil if not said
	Merges []string  // "left right", in the order of their ranks

	BOS, EOS, UNK, PAD int  // ids, -1 for none
	AddBOS, AddEOS     bool // whether text is put between them
	AddSpacePrefix     bool
	ChatTemplate       string // Jinja2, "" for none
}

// tokenizer reads the tokenizer. A file without one has no tokens.
func (f *File) tokenizer() (*Tokenizer, error) {
	const prefix = "tokenizer.ggml."
	t := new(Tokenizer)
	var err error
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	text := func(to *string, key string) {
		v, e := Metadata[string](f, key)
		*to = v
		keep(e)
	}
	flag := func(to *bool, key string) {
		v, e := Metadata[bool](f, prefix+key)
		*to = v
		keep(e)
	}
	text(&t.Model, prefix+"model")
	text(&t.Pre, prefix+"pre")
	text(&t.ChatTemplate, "tokenizer.chat_template")
	flag(&t.AddBOS, "add_bos_token")
	flag(&t.AddEOS, "add_eos_token")
	flag(&t.AddSpacePrefix, "add_space_prefix")
	var e error
	t.Tokens, e = Metadata[[]string](f, prefix+"tokens")
	keep(e)
	t.Merges, e = Metadata[[]string](f, prefix+"merges")
	keep(e)
	t.Types, e = Metadata[[]int32](f, prefix+"token_type")
	keep(e)
	t.Scores, e = Metadata[[]float32](f, prefix+"scores")
	keep(e)
	for i, key := range []string{"bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"} {
		id, e := f.Int(prefix+key, -1, math.MinInt32, math.MaxUint32)
		if id == math.MaxUint32 { // -1 of an unsigned type
			id = -1
		}
		if e == nil && (id < -1 || id >= int64(len(t.Tokens)) && len(t.Tokens) > 0) {
			e = format.Malformed(f.Path, prefix+key, "is %d, want an id of one of the %d tokens", id, len(t.Tokens))
		}
		*[]*int{&t.BOS, &t.EOS, &t.UNK, &t.PAD}[i] = int(id)
		keep(e)
	}
	if n := len(t.Types); err == nil && n > 0 && n != len(t.Tokens) {
		err = format.Malformed(f.Path, prefix+"token_type", "has %d elements, tokens %d", n, len(t.Tokens))
	}
	if n := len(t.Scores); err == nil && n > 0 && n != len(t.Tokens) {
		err = format.Malformed(f.Path, prefix+"scores", "has %d elements, tokens %d", n, len(t.Tokens))
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}
