package checkpoint

import (
	"path"
	"strconv"

	"plumbline/internal/format"
)

// Tokenizer is what a directory holds of a tokenizer.
type Tokenizer struct {
	File  string // tokenizer.json, "" if it is of another kind
	Files []string
	Size  int // ids of the vocabulary: the largest plus one, 0 if not known
	Added int // the same with the tokens that were added, at least Size

	EOSText string // eos_token of tokenizer_config.json
	EOS     int    // its id, -1 if it is not known
	Chat    bool   // a chat template is there
}

// tokenizerFiles are those without which no tokenizer can be loaded, one of them at least.
var tokenizerFiles = []string{"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "sentencepiece.bpe.model"}

// tokenizer looks at the files of a tokenizer and reads the ids of a tokenizer.json.
func (f *Folder) tokenizer(u *Unit) error {
	t := &Tokenizer{EOS: -1}
	for _, n := range tokenizerFiles {
		if u.has(n) {
			t.Files = append(t.Files, n)
		}
	}
	if len(t.Files) == 0 {
		return nil
	}
	u.Tokenizer = t
	t.Chat = u.has("chat_template.jinja") || u.has("chat_template.json")
	config, err := f.object(u, "tokenizer_config.json")
	if err != nil {
		return err
	}
	more := 0 // largest id of tokens that were added, plus one, in the files beside tokenizer.json
	if config != nil {
		t.Chat = t.Chat || config.Has("chat_template")
		switch v := config.Members["eos_token"].(type) {
		case string:
			t.EOSText = v
		case map[string]any:
			t.EOSText, _ = v["content"].(string)
		}
		if tokens, ok := config.Members["added_tokens_decoder"].(map[string]any); ok {
			for id := range tokens {
				if n, err := strconv.Atoi(id); err == nil {
					more = max(more, min(n, largest)+1)
				}
			}
		}
	}
	tokens, err := f.object(u, "added_tokens.json")
	if err != nil {
		return err
	}
	if tokens != nil {
		for _, v := range tokens.Members {
			if n, ok := v.(format.Number); ok {
				id, err := strconv.Atoi(string(n))
				if err == nil {
					more = max(more, min(id, largest)+1)
				}
			}
		}
	}
	if !u.has("tokenizer.json") {
		return nil
	}
	name := path.Join(u.Dir, "tokenizer.json")
	t.File = f.shown(name)
	text, err := f.text(name, format.MaxIndex)
	if err == nil {
		t.Size, t.Added, t.EOS, err = tokenizerSize(t.File, text, t.EOSText)
		t.Added = max(t.Added, more)
	}
	return f.refuse(err)
}

// tokenizerSize returns the largest id of model.vocab plus one, that of model.vocab and added_tokens together, and the id of the
// token called eos, -1 if there is none.
func tokenizerSize(file string, text []byte, eos string) (vocab, all, end int, err error) {
	var largest [2]int64
	end = -1
	s := format.NewScanner(file, text, 0)
	id := func(of int) (int64, error) {
		if s.Kind() != format.KindNumber {
			return -1, s.Skip()
		}
		n, err := s.Int()
		if err == nil && n < 0 {
			return n, s.Malformed("id %d is negative", n)
		}
		largest[of] = max(largest[of], n+1)
		return n, err
	}
	found := func(token string, n int64) {
		if token == eos && eos != "" && n >= 0 {
			end = int(min(n, 1<<31-1))
		}
	}
	err = s.Object(func(key string) error {
		switch {
		case key == "model" && s.Kind() == format.KindObject:
			return s.Object(func(key string) error {
				switch {
				case key == "vocab" && s.Kind() == format.KindObject:
					return s.Object(func(token string) error {
						n, err := id(0)
						found(token, n)
						return err
					})
				case key == "vocab" && s.Kind() == format.KindArray: // Unigram: a list of pieces
					return s.Array(func(i int) error {
						largest[0] = max(largest[0], int64(i)+1)
						return s.Skip()
					})
				}
				return s.Skip()
			})
		case key == "added_tokens" && s.Kind() == format.KindArray:
			return s.Array(func(int) error {
				if s.Kind() != format.KindObject {
					return s.Skip()
				}
				n, token := int64(-1), ""
				err := s.Object(func(key string) (err error) {
					switch {
					case key == "id":
						n, err = id(1)
					case key == "content" && s.Kind() == format.KindString:
						token, err = s.String()
					default:
						err = s.Skip()
					}
					return err
				})
				found(token, n)
				return err
			})
		}
		return s.Skip()
	})
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return 0, 0, -1, err
	}
	const most = 1<<31 - 1
	return int(min(largest[0], most)), int(min(max(largest[0], largest[1]), most)), end, nil
}
