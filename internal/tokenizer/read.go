package tokenizer

import (
	"fmt"
	"strings"

	"plumbline/internal/format"
)

// Read reads a tokenizer.json. A form that is not of the families of this package, a part that does not fit another and
// everything that the strict JSON scanner refuses is a *format.Error.
func Read(f *format.File) (*Tokenizer, error) {
	data, err := f.ReadAll(format.MaxIndex)
	if err != nil {
		return nil, err
	}
	return Parse(f.Path, data)
}

// Parse is Read for the content of a file, which must not change as long as the tokenizer is in use.
func Parse(file string, data []byte) (*Tokenizer, error) {
	if len(data) > format.MaxIndex {
		return nil, format.Malformed(file, "", "has %d bytes, want at most %d", len(data), format.MaxIndex)
	}
	r := &reader{s: format.NewScanner(file, data, 0), source: source{file: file,
		places: places{"model.vocab", "model.merges", "added_tokens", "post_processor"}}}
	err := r.s.Document(r.member)
	if err == nil {
		err = r.interpret()
	}
	if err != nil {
		return nil, err
	}
	r.source.added = r.added.slice(0)
	return r.source.build()
}

// reader reads a tokenizer.json from front to back and then puts it together, since its members come in any order.
type reader struct {
	s                                    *format.Scanner
	source                               source
	added                                list[addedToken]
	model, normalizer, splitter, decoder *component
	template                             *component
}

// member reads a member of the document.
func (r *reader) member(key string) (err error) {
	switch key {
	case "version":
		v, err := r.s.String()
		if err == nil && v != "1.0" {
			return r.s.Malformed("version %.32q, want \"1.0\"", v)
		}
		return err
	case "truncation", "padding":
		return r.s.Skip() // transformers sets both anew at each call
	case "added_tokens":
		return r.s.Array(func(i int) error {
			if i == maxAddedTokens {
				return r.s.Malformed("more than %d added tokens", maxAddedTokens)
			}
			return r.addedToken()
		})
	case "normalizer":
		r.normalizer, err = readComponent(r.s, false)
	case "pre_tokenizer":
		r.splitter, err = readComponent(r.s, false)
	case "post_processor":
		r.template, err = readComponent(r.s, false)
	case "decoder":
		r.decoder, err = readComponent(r.s, false)
	case "model":
		r.model = new(component)
		return r.s.Object(r.modelMember)
	default:
		if err = r.s.Skip(); err == nil {
			return format.Malformed(r.source.file, fmt.Sprintf("%.64s", key), "is not a known member of a tokenizer")
		}
	}
	return err
}

func (r *reader) addedToken() error {
	a := addedToken{id: -1}
	err := r.s.Object(func(key string) (err error) {
		switch key {
		case "id":
			a.id, err = r.id()
		case "content":
			a.content, err = r.s.String()
		case "single_word":
			a.singleWord, err = r.s.Bool()
		case "lstrip":
			a.lstrip, err = r.s.Bool()
		case "rstrip":
			a.rstrip, err = r.s.Bool()
		case "normalized":
			a.normalized, err = r.s.Bool()
		case "special":
			a.special, err = r.s.Bool()
		default:
			if err = r.s.Skip(); err == nil {
				err = r.s.Malformed("%.64q is not a known member of an added token", key)
			}
		}
		return err
	})
	if err == nil && a.id < 0 {
		err = format.Malformed(r.source.file, fmt.Sprintf("added_tokens[%d]", r.added.n), "has no id")
	}
	r.added.add(a)
	return err
}

// id reads a token id.
func (r *reader) id() (int, error) {
	n, err := r.s.Int()
	if err == nil && (n < 0 || n >= maxVocab) {
		err = r.s.Malformed("id %d, want one in [0, %d)", n, maxVocab)
	}
	return int(n), err
}

// modelMember reads a member of the model.
func (r *reader) modelMember(key string) (err error) {
	refuse := func(what string) error {
		return r.s.Malformed("%s is %s, which byte-level BPE of these families does not have", key, what)
	}
	empty := func() error { // a string that must be null or empty
		if r.s.Kind() == format.KindNull {
			return r.s.Null()
		}
		t, err := r.s.String()
		if err == nil && t != "" {
			return refuse(fmt.Sprintf("%.32q", t))
		}
		return err
	}
	switch key {
	case "type":
		r.model.kind, err = r.s.String()
	case "dropout":
		if r.s.Kind() == format.KindNull {
			return r.s.Null()
		}
		p, err := r.s.Float()
		if err == nil && p != 0 {
			return r.s.Malformed("dropout is %g: the ids would be drawn at random", p)
		}
		return err
	case "unk_token":
		if r.s.Kind() == format.KindNull {
			return r.s.Null()
		}
		r.source.unknown, err = r.s.String()
	case "continuing_subword_prefix", "end_of_word_suffix":
		return empty()
	case "fuse_unk":
		r.source.fuseUnknown, err = r.s.Bool()
	case "ignore_merges":
		r.source.ignoreMerges, err = r.s.Bool()
	case "byte_fallback":
		b, err := r.s.Bool()
		if err == nil && b {
			return refuse("true")
		}
		return err
	case "vocab":
		return r.s.Object(func(key string) error {
			id, err := r.id()
			if err == nil && r.source.vocab.n == maxVocab {
				err = r.s.Malformed("more than %d tokens", maxVocab)
			}
			r.source.vocab.add(token{text: key, id: int32(id)})
			return err
		})
	case "merges":
		return r.s.Array(func(int) error { return r.merge() })
	default:
		if err = r.s.Skip(); err == nil {
			err = format.Malformed(r.source.file, fmt.Sprintf("model.%.64s", key), "is not a known member of the model")
		}
	}
	return err
}

// merge reads a merge: "a b", or since tokenizers 0.20 ["a", "b"], which alone can hold a token with a space.
func (r *reader) merge() error {
	if r.source.merges.n == maxVocab {
		r.s.Skip()
		return r.s.Malformed("more than %d merges", maxVocab)
	}
	var m pair
	if r.s.Kind() == format.KindString {
		t, err := r.s.String()
		if err != nil || strings.HasPrefix(t, "#version") { // the first line of a merges.txt
			return err
		}
		var ok bool
		if m, ok = splitMerge(t); !ok {
			return r.s.Malformed("merge %.64q, want two tokens with a space between", t)
		}
	} else {
		n := 0
		var parts [2]string
		err := r.s.Array(func(i int) (err error) {
			if n++; i < 2 {
				parts[i], err = r.s.String()
				return err
			}
			return r.s.Skip()
		})
		if err == nil && n != 2 {
			err = format.Malformed(r.source.file, fmt.Sprintf("model.merges[%d]", r.source.merges.n), "has %d tokens, want 2", n)
		}
		if err != nil {
			return err
		}
		m = pair{parts[0] + parts[1], int32(len(parts[0])), 0}
	}
	r.source.merges.add(m)
	return nil
}

func splitMerge(t string) (m pair, ok bool) {
	left, right, ok := strings.Cut(t, " ")
	return pair{t, int32(len(left)), 1}, ok && left != "" && right != "" && !strings.Contains(right, " ")
}
