package tokenizer

import (
	"fmt"

	"plumbline/internal/format"
)

// Limits of a tokenizer.
const (
	maxVocab = 1 << 21  // ids and tokens
	maxToken = 16 << 10 // bytes of a token
	maxAdded = 1 << 10  // bytes of an added token, which bounds the time of looking for one

	maxAddedTokens = 1 << 15 // Llama 3 has 256
)

// source is what a file says of a tokenizer.
type source struct {
	file         string
	vocab        list[token]
	merges       list[pair]
	added        []addedToken
	normalize    func(string) string
	steps        []step
	before       []named
	after        []named
	unknown      string // "" if there is none
	fuseUnknown  bool
	ignoreMerges bool
	places       places
}

// pair is a merge as the file has it: two tokens in one text, which takes less than two texts.
type pair struct {
	text      string
	left, gap int32 // bytes of the first, and between the two
}

func (p *pair) parts() [2]string { return [2]string{p.text[:p.left], p.text[p.left+p.gap:]} }

// places are the names, in the file, of the parts of a source.
type places struct{ vocab, merges, added, template string }

// named is a token with the id that the file gives beside its name; -1 if it gives none.
type named struct {
	text string
	id   int
}

// build checks that the parts of s fit each other.
func (s *source) build() (*Tokenizer, error) {
	bad := func(where, msg string, args ...any) (*Tokenizer, error) {
		return nil, format.Malformed(s.file, where, msg, args...)
	}
	t := &Tokenizer{file: s.file, normalize: s.normalize, steps: s.steps, added: make(map[string]int32, len(s.added)), normalForms: map[int32]string{}}
	v := &t.vocab
	if s.vocab.n == 0 {
		return bad(s.places.vocab, "has no tokens")
	}
	v.tokens = s.vocab.slice(len(s.added))
	for _, tok := range v.tokens {
		if len(tok.text) > maxToken {
			return bad(s.places.vocab, "token %.32q… has %d bytes, want at most %d", tok.text, len(tok.text), maxToken)
		}
	}
	if i := v.index(); i >= 0 {
		return bad(s.places.vocab, "token %.64q is there twice", v.tokens[i].text)
	}
	for b, r := range byteRune {
		t.model.byteID[b], _ = v.find(string(r))
	}
	if err := s.addTokens(t); err != nil {
		return nil, err
	}
	if a, b, ok := v.sort(); !ok {
		return bad(s.places.vocab, "tokens %.64q and %.64q have the same id %d", v.tokens[a].text, v.tokens[b].text, v.tokens[a].id)
	}
	t.markAdded(s.added)
	if a, b := t.normal.same(); a != nil {
		return bad(s.places.added, "tokens %.64q and %.64q have the same normal form", a.content, b.content)
	}
	if err := s.addMerges(t); err != nil {
		return nil, err
	}
	t.model.unknown, t.model.fuseUnknown = -1, s.fuseUnknown
	if s.unknown != "" {
		id, ok := v.find(s.unknown)
		if !ok {
			return bad(s.places.vocab, "does not have the unknown token %.64q", s.unknown)
		}
		t.model.unknown = id
	}
	if s.ignoreMerges {
		t.model.whole = v
	}
	var err error
	if t.before, err = s.resolve(t, s.before); err == nil {
		t.after, err = s.resolve(t, s.after)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// addTokens appends the added tokens that the vocabulary does not have. tokenizers ignores the id that the file gives an
// added token and uses that of the vocabulary, or else the number of tokens so far; where the two differ, the readers of
// the file disagree, and it is refused.
func (s *source) addTokens(t *Tokenizer) error {
	next := int32(s.vocab.n)
	for i := range s.added {
		a := &s.added[i]
		where := fmt.Sprintf("%s[%d]", s.places.added, i)
		if a.content == "" || len(a.content) > maxAdded {
			return format.Malformed(s.file, where, "content %.32q has %d bytes, want 1 to %d", a.content, len(a.content), maxAdded)
		}
		if _, twice := t.added[a.content]; twice {
			return format.Malformed(s.file, where, "token %.64q is added twice", a.content)
		}
		want, inVocab := t.vocab.find(a.content)
		if !inVocab {
			want = next
			next++
			t.vocab.tokens = append(t.vocab.tokens, token{text: a.content, id: want})
		}
		if a.id != int(want) {
			return format.Malformed(s.file, where, "token %.64q has the id %d, tokenizers would give it %d", a.content, a.id, want)
		}
		t.added[a.content] = want
	}
	return nil
}

// markAdded makes the added tokens known to Encode and Decode. The vocabulary of t is sorted.
func (t *Tokenizer) markAdded(added []addedToken) {
	var raw, normal []spelled
	for i := range added {
		a := &added[i]
		tok := t.vocab.at(a.id)
		tok.special = a.special
		if a.normalized {
			form := a.content
			if t.normalize != nil {
				form = t.normalize(form)
			}
			normal = append(normal, spelled{form, a})
			if form != a.content {
				tok.other, t.normalForms[tok.id] = true, form
			}
		} else {
			raw = append(raw, spelled{a.content, a})
		}
	}
	t.raw, t.normal = newMatcher(raw), newMatcher(normal)
}

func (s *source) addMerges(t *Tokenizer) error {
	t.model.merges = make(map[uint64]merge, min(s.merges.n, len(t.vocab.tokens))) // hardly more: each makes a token
	var joined []byte
	return s.merges.each(func(rank int, p *pair) error {
		m := p.parts()
		bad := func(msg string, args ...any) error {
			return format.Malformed(s.file, fmt.Sprintf("%s[%d]", s.places.merges, rank), msg, args...)
		}
		var ids [2]int32
		for i, part := range m {
			id, ok := t.vocab.find(part)
			if !ok {
				return bad("%.64q is not in the vocabulary", part)
			}
			ids[i] = id
		}
		joined = append(append(joined[:0], m[0]...), m[1]...)
		id, ok := t.vocab.find(string(joined))
		if !ok {
			return bad("the result %.64q is not in the vocabulary", joined)
		}
		key := pairOf(ids[0], ids[1])
		if first, twice := t.model.merges[key]; twice {
			return bad("is merge %d once more", first.rank)
		}
		t.model.merges[key] = merge{int32(rank), id}
		return nil
	})
}

// resolve returns the ids of the tokens of a template.
func (s *source) resolve(t *Tokenizer, tokens []named) ([]int32, error) {
	var ids []int32
	for _, n := range tokens {
		id, ok := t.ID(n.text)
		if !ok {
			return nil, format.Malformed(s.file, s.places.template, "token %.64q is not in the vocabulary", n.text)
		}
		if n.id >= 0 && n.id != id {
			return nil, format.Malformed(s.file, s.places.template, "token %.64q has the id %d there, %d in the vocabulary", n.text, n.id, id)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}
