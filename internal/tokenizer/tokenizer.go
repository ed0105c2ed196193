// Package tokenizer turns text into token ids and back: byte-level BPE as in tokenizer.json of Hugging Face and in GGUF,
// with the splitters of GPT-2 (and GPT-J), Qwen2, Llama 3 and SmolLM2; the character vocabulary of a masked diffusion
// model; and ChatML.
//
// The ids are those of tokenizers 0.23.3 (golden/tokenizer). A form that is not one of those families' is refused by name
// and never approximated: a tokenizer that is nearly right trains on other tokens than the sampler drew, without a word.
package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"plumbline/internal/format"
)

// Tokenizer is a byte-level BPE tokenizer. It does not change and may be used by several goroutines.
type Tokenizer struct {
	file          string
	vocab         vocabulary
	added         map[string]int32 // ids of the added tokens, by content
	normalForms   map[int32]string // of the added tokens that are normalised, where it is another text
	model         bpe
	raw           *matcher            // added tokens that are looked for in the text as it is
	normal        *matcher            // those that are looked for in the normalised text
	normalize     func(string) string // nil: the text stays as it is
	steps         []step
	before, after []int32 // what the post-processor puts around a text
}

// EncodeOptions says what Encode does beside the text. The zero value encodes plain text.
type EncodeOptions struct {
	// AddSpecial adds what the file's post-processor adds, such as a token for the beginning of the text:
	// add_special_tokens of transformers, true there by default.
	AddSpecial bool
	// ParseSpecial makes special tokens that are written out in the text their ids, which lets a user's text end a turn:
	// the opposite of split_special_tokens of transformers, which is false there by default.
	ParseSpecial bool
}

// DecodeOptions says what Decode leaves out. The zero value leaves out nothing.
type DecodeOptions struct {
	SkipSpecial bool // leave out special tokens: skip_special_tokens of transformers
}

// Encode returns the token ids of text. Text that is not UTF-8 is encoded byte by byte in the places where it is not,
// each byte taken for a character that is neither letter, number nor white space. A byte without a token (see Missing)
// is left out, or is the unknown token if the file names one.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int {
	e := encoder{t: t, ids: make([]int, 0, len(text)/3+8)}
	if o.AddSpecial {
		e.add(t.before)
	}
	e.text(text, o.ParseSpecial)
	if o.AddSpecial {
		e.add(t.after)
	}
	return e.ids
}

// encoder collects the ids of a text.
type encoder struct {
	t       *Tokenizer
	ids     []int
	ends    []int // where each token ends, in bytes of the normalised text
	size    int
	scratch scratch
}

func (e *encoder) add(ids []int32) {
	for _, id := range ids {
		e.put(id, 0)
	}
}

func (e *encoder) put(id int32, size int) {
	e.size += size
	e.ids, e.ends = append(e.ids, int(id)), append(e.ends, e.size)
}

// text adds a text, without what the post-processor puts around it.
func (e *encoder) text(s string, special bool) {
	t := e.t
	token := func(a *addedToken, size int) { e.put(int32(a.id), size) }
	t.raw.cut(s, special, func(s string) {
		if t.normalize != nil {
			s = t.normalize(s)
		}
		t.normal.cut(s, special, e.plain, token)
	}, token)
}

// plain adds a text without added tokens.
func (e *encoder) plain(s string) {
	split(s, e.t.steps, func(piece string) {
		before := e.size
		e.t.model.encode(&e.scratch, piece, func(id int32, size int) { e.put(id, size) })
		e.size = before + len(piece)
	})
}

// Decode returns the text of ids, with U+FFFD for bytes that are not UTF-8. An id that the vocabulary does not have is an
// error. CleanUp is not applied.
func (t *Tokenizer) Decode(ids []int, o DecodeOptions) (string, error) {
	b, err := t.Bytes(ids, o)
	if err != nil {
		return "", err
	}
	return replace(b), nil
}

// Bytes returns what ids stand for as it is, which need not be UTF-8.
func (t *Tokenizer) Bytes(ids []int, o DecodeOptions) ([]byte, error) {
	var b []byte
	for i, id := range ids {
		tok := t.vocab.at(id)
		if tok == nil {
			return nil, t.unknownID(id, fmt.Sprintf("position %d", i))
		}
		if !tok.special || !o.SkipSpecial {
			b = appendBytes(b, t.shown(tok))
		}
	}
	return b, nil
}

func (t *Tokenizer) unknownID(id int, where string) error {
	return fmt.Errorf("%s: %s: no token has the id %d; the vocabulary has %d tokens with ids up to %d", t.file, where, id, len(t.vocab.tokens), t.MaxID())
}

// shown returns the spelling that Decode gives a token.
func (t *Tokenizer) shown(tok *token) string {
	if tok.other {
		return t.normalForms[tok.id]
	}
	return tok.text
}

// ID returns the id of the token that the file spells so, in the byte alphabet unless it is an added token: a space is Ġ.
func (t *Tokenizer) ID(text string) (id int, ok bool) {
	n, ok := t.added[text]
	if !ok {
		n, ok = t.vocab.find(text)
	}
	return int(n), ok
}

// Token returns the spelling of the token with the given id.
func (t *Tokenizer) Token(id int) (text string, ok bool) {
	tok := t.vocab.at(id)
	if tok == nil {
		return "", false
	}
	return tok.text, true
}

// Len returns the number of tokens.
func (t *Tokenizer) Len() int { return len(t.vocab.tokens) }

// MaxID returns the largest id.
func (t *Tokenizer) MaxID() int { return int(t.vocab.tokens[t.vocab.byID[len(t.vocab.byID)-1]].id) }

// Missing returns the bytes, in increasing order, that have no token.
func (t *Tokenizer) Missing() []byte {
	var b []byte
	for i, id := range t.model.byteID {
		if id < 0 {
			b = append(b, byte(i))
		}
	}
	return b
}

// CheckVocab returns an error if some token has no row in an embedding of the given number of rows: the tokenizer is that
// of another model. More rows than tokens are usual (GPT-J has 50400 for 50257) and no error.
func (t *Tokenizer) CheckVocab(rows int) error {
	if id := t.MaxID(); id >= rows {
		text, _ := t.Token(id)
		return format.Malformed(t.file, "vocabulary", "token %.64q has the id %d, the embedding has %d rows: this is the tokenizer of another model", text, id, rows)
	}
	return nil
}

// Stream decodes tokens one at a time, for text that is shown while it is sampled. A character of several tokens is held
// back until it is complete, so that what comes out is UTF-8 at every step; joined, it is what Decode returns.
type Stream struct {
	t    *Tokenizer
	opt  DecodeOptions
	held []byte // the start of a character, at most 3 bytes
}

// NewStream returns a Stream of t.
func (t *Tokenizer) NewStream(o DecodeOptions) *Stream { return &Stream{t: t, opt: o} }

// Push returns the text that the token id completes, which may be "". After an error the Stream is as before.
func (s *Stream) Push(id int) (string, error) {
	tok := s.t.vocab.at(id)
	if tok == nil {
		return "", s.t.unknownID(id, "stream")
	}
	if tok.special && s.opt.SkipSpecial {
		return "", nil
	}
	p := appendBytes(s.held, s.t.shown(tok))
	out, n := valid(nil, p)
	s.held = append(s.held[:0:0], p[n:]...)
	return string(out), nil
}

// Flush returns U+FFFD if a character is still incomplete, else "". The Stream is then as new.
func (s *Stream) Flush() string {
	if len(s.held) == 0 {
		return ""
	}
	s.held = nil
	return string(utf8.RuneError)
}
