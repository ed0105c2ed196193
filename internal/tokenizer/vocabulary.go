package tokenizer

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
)

// token is an entry of the vocabulary.
type token struct {
	text    string // as the file spells it
	id      int32
	special bool
	other   bool // Decode gives another text, of Tokenizer.normalForms
}

// vocabulary finds tokens by id and by spelling. It takes less memory than two maps of a file that holds nothing else.
type vocabulary struct {
	tokens []token // those of the model in the order of the file, then the added ones that the model does not have
	byID   []int32 // their places, by id
	slots  []int32 // by hash of the spelling, one more than the place, 0 where free; of the model's tokens only
	seed   maphash.Seed
}

// index makes the tokens findable by spelling. It returns the place of a token whose spelling came before, else -1.
func (v *vocabulary) index() int {
	v.seed = maphash.MakeSeed()
	v.slots = make([]int32, 1<<bits.Len(uint(len(v.tokens))*3/2))
	for i, t := range v.tokens {
		slot := v.slot(t.text)
		if v.slots[slot] != 0 {
			return i
		}
		v.slots[slot] = int32(i) + 1
	}
	return -1
}

// slot returns where text is, or would be: a free slot.
func (v *vocabulary) slot(text string) uint64 {
	mask := uint64(len(v.slots) - 1)
	for i := maphash.String(v.seed, text); ; i++ {
		if at := v.slots[i&mask]; at == 0 || v.tokens[at-1].text == text {
			return i & mask
		}
	}
}

// find returns the id of the model's token with the given spelling.
func (v *vocabulary) find(text string) (int32, bool) {
	at := v.slots[v.slot(text)]
	if at == 0 {
		return -1, false
	}
	return v.tokens[at-1].id, true
}

// sort makes the tokens findable by id. It returns the places of two tokens with the same id, if there are such.
func (v *vocabulary) sort() (a, b int, ok bool) {
	v.byID = make([]int32, len(v.tokens))
	for i := range v.byID {
		v.byID[i] = int32(i)
	}
	slices.SortFunc(v.byID, func(a, b int32) int { return cmp.Compare(v.tokens[a].id, v.tokens[b].id) })
	for i := 1; i < len(v.byID); i++ {
		if a, b := int(v.byID[i-1]), int(v.byID[i]); v.tokens[a].id == v.tokens[b].id {
			return min(a, b), max(a, b), false
		}
	}
	return 0, 0, true
}

// at returns the token with the given id, nil if there is none.
func (v *vocabulary) at(id int) *token {
	if 0 <= id && id < len(v.byID) {
		if t := &v.tokens[v.byID[id]]; int(t.id) == id {
			return t // no hole before it
		}
	}
	i, ok := slices.BinarySearchFunc(v.byID, id, func(at int32, id int) int { return cmp.Compare(int(v.tokens[at].id), id) })
	if !ok {
		return nil
	}
	return &v.tokens[v.byID[i]]
}

// list is a slice that grows without moving: what it takes in all is what it holds.
type list[T any] struct {
	full [][]T
	last []T
	n    int
}

func (l *list[T]) add(v T) {
	if len(l.last) == cap(l.last) {
		l.full = append(l.full, l.last)
		l.last = make([]T, 0, min(max(8, 2*cap(l.last)), 4096))
	}
	l.last = append(l.last, v)
	l.n++
}

// each calls f for every element until it returns an error.
func (l *list[T]) each(f func(i int, v *T) error) error {
	i := 0
	for _, part := range append(l.full, l.last) {
		for j := range part {
			if err := f(i, &part[j]); err != nil {
				return err
			}
			i++
		}
	}
	return nil
}

// slice returns the elements, with room for more.
func (l *list[T]) slice(more int) []T {
	s := make([]T, 0, l.n+more)
	for _, part := range l.full {
		s = append(s, part...)
	}
	return append(s, l.last...)
}
