package checkpoint

import (
	"fmt"
	"hash/fnv"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

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
	UnkText string // unk_token
	Chat    bool   // a chat template is there

	extra  map[int]string // tokens that were added, by their ids
	digest uint64         // of the tokens with their ids and of the merges, whatever their order in the file; 0 if it is not known
}

// without returns the tokens that were added with ids of at least rows, in order, but for unk_token: the classes of transformers add
// one that no text becomes where the file has none.
func (t *Tokenizer) without(rows int) (list []string) {
	for _, id := range slices.Sorted(maps.Keys(t.extra)) {
		if id >= rows && (t.extra[id] != t.UnkText || t.UnkText == "") {
			list = append(list, fmt.Sprintf("%.32q is %d", t.extra[id], id))
		}
	}
	return list
}

// tokenizerFiles are those without which no tokenizer can be loaded, one of them at least.
var tokenizerFiles = []string{"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "sentencepiece.bpe.model"}

// tokenizer looks at the files of a tokenizer and reads the ids of a tokenizer.json.
func (f *Folder) tokenizer(u *Unit) error {
	t := &Tokenizer{EOS: -1, extra: map[int]string{}}
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
		switch v := config.Members["unk_token"].(type) {
		case string:
			t.UnkText = v
		case map[string]any:
			t.UnkText, _ = v["content"].(string)
		}
		if tokens, ok := config.Members["added_tokens_decoder"].(map[string]any); ok {
			for id, v := range tokens {
				if n, err := strconv.Atoi(id); err == nil {
					more = max(more, min(n, largest)+1)
					if token, ok := v.(map[string]any); ok {
						t.extra[n], _ = token["content"].(string)
					}
				}
			}
		}
	}
	tokens, err := f.object(u, "added_tokens.json")
	if err != nil {
		return err
	}
	if tokens != nil {
		for token, v := range tokens.Members {
			if n, ok := v.(format.Number); ok {
				id, err := strconv.Atoi(string(n))
				if err == nil {
					more = max(more, min(id, largest)+1)
					t.extra[id] = token
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
		err = t.read(text)
		t.Added = max(t.Added, more)
	}
	return f.refuse(err)
}

// read takes from a tokenizer.json the largest id of model.vocab plus one, that of model.vocab and added_tokens together, and the id of
// the token called EOSText.
func (t *Tokenizer) read(text []byte) error {
	file, eos := t.File, t.EOSText
	var largest [2]int64
	end := -1
	sum := func(of int, token string, n int64) { // the order of a JSON object says nothing
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %d %s", of, n, token)
		t.digest += h.Sum64()
	}
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
	err := s.Document(func(key string) error {
		switch {
		case key == "model" && s.Kind() == format.KindObject:
			return s.Object(func(key string) error {
				switch {
				case key == "vocab" && s.Kind() == format.KindObject:
					return s.Object(func(token string) error {
						n, err := id(0)
						found(token, n)
						sum(0, token, n)
						return err
					})
				case key == "vocab" && s.Kind() == format.KindArray: // Unigram: a list of pieces
					return s.Array(func(i int) error {
						largest[0] = max(largest[0], int64(i)+1)
						return s.Skip()
					})
				case key == "merges" && s.Kind() == format.KindArray:
					return s.Array(func(i int) error {
						switch s.Kind() {
						case format.KindString:
							m, err := s.String()
							left, right, _ := strings.Cut(m, " ")
							sum(2, left+"\x00"+right, int64(i))
							return err
						case format.KindArray:
							var parts []string
							err := s.Array(func(int) error {
								if s.Kind() != format.KindString {
									return s.Skip()
								}
								m, err := s.String()
								parts = append(parts, m)
								return err
							})
							sum(2, strings.Join(parts, "\x00"), int64(i))
							return err
						}
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
				sum(1, token, n)
				if n >= 0 && n < 1<<31 {
					t.extra[int(n)] = token
				}
				return err
			})
		}
		return s.Skip()
	})
	if err != nil {
		t.digest, t.extra = 0, map[int]string{}
		return err
	}
	const most = 1<<31 - 1
	t.Size, t.Added, t.EOS = int(min(largest[0], most)), int(min(max(largest[0], largest[1]), most)), end
	return nil
}
