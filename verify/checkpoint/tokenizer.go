package checkpoint

import (
	"path"

	"plumbline/internal/format"
)

// Tokenizer is what a directory holds of a tokenizer.
type Tokenizer struct {
	File  string // tokenizer.json, "" if it is of another kind
	Files []string
	Size  int // ids of the vocabulary: the largest plus one, 0 if not known
	Added int // the same with the tokens that were added, at least Size
}

// tokenizerFiles are those without which no tokenizer can be loaded, one of them at least.
var tokenizerFiles = []string{"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "sentencepiece.bpe.model"}

// tokenizer looks at the files of a tokenizer and reads the ids of a tokenizer.json.
func (f *Folder) tokenizer(u *Unit) error {
	t := &Tokenizer{}
	for _, n := range tokenizerFiles {
		if u.has(n) {
			t.Files = append(t.Files, n)
		}
	}
	if len(t.Files) == 0 {
		return nil
	}
	u.Tokenizer = t
	if !u.has("tokenizer.json") {
		return nil
	}
	name := path.Join(u.Dir, "tokenizer.json")
	t.File = f.shown(name)
	text, err := f.text(name, format.MaxIndex)
	if err == nil {
		t.Size, t.Added, err = tokenizerSize(t.File, text)
	}
	return f.refuse(err)
}

// tokenizerSize returns the largest id of model.vocab plus one, and that of model.vocab and added_tokens together.
func tokenizerSize(file string, text []byte) (vocab, all int, err error) {
	var largest [2]int64
	s := format.NewScanner(file, text, 0)
	id := func(of int) error {
		if s.Kind() != format.KindNumber {
			return s.Skip()
		}
		n, err := s.Int()
		if err == nil && n < 0 {
			return s.Malformed("id %d is negative", n)
		}
		largest[of] = max(largest[of], n+1)
		return err
	}
	err = s.Object(func(key string) error {
		switch {
		case key == "model" && s.Kind() == format.KindObject:
			return s.Object(func(key string) error {
				switch {
				case key == "vocab" && s.Kind() == format.KindObject:
					return s.Object(func(string) error { return id(0) })
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
				return s.Object(func(key string) error {
					if key != "id" {
						return s.Skip()
					}
					return id(1)
				})
			})
		}
		return s.Skip()
	})
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return 0, 0, err
	}
	const most = 1<<31 - 1
	return int(min(largest[0], most)), int(min(max(largest[0], largest[1]), most)), nil
}
