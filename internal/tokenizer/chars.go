package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Chars is a vocabulary of characters, for a masked diffusion model over text. Characters have the ids 0 to n-1; MASK, PAD
// and CLS have ids of their own and are never made from text.
type Chars struct {
	runes []rune
	ids   map[rune]int
	// Mask is the token to be filled in, Pad the one that fills a row up, CLS the one whose hidden state a judge reads,
	// -1 for none.
	Mask, Pad, CLS int
}

// NewChars returns the vocabulary with character runes[i] at id i. Special ids that are equal or are those of a character
// are an error: a judge whose CLS is PAD reads the padding. cls is -1 for none.
func NewChars(runes []rune, mask, pad, cls int) (*Chars, error) {
	c := &Chars{runes: slices.Clone(runes), ids: make(map[rune]int, len(runes)), Mask: mask, Pad: pad, CLS: cls}
	if len(runes) == 0 {
		return nil, fmt.Errorf("character vocabulary: no characters")
	}
	for i, r := range runes {
		if !utf8.ValidRune(r) {
			return nil, fmt.Errorf("character vocabulary: id %d is %U, which is not a character", i, r)
		}
		if j, twice := c.ids[r]; twice {
			return nil, fmt.Errorf("character vocabulary: %q has the ids %d and %d", r, j, i)
		}
		c.ids[r] = i
	}
	taken := map[int]string{}
	for _, s := range []struct {
		name string
		id   int
	}{{"MASK", mask}, {"PAD", pad}, {"CLS", cls}} {
		if s.name == "CLS" && s.id == -1 {
			continue
		}
		if s.id < len(runes) || s.id >= maxVocab {
			return nil, fmt.Errorf("character vocabulary: %s has the id %d, want one in [%d, %d), after the characters", s.name, s.id, len(runes), maxVocab)
		}
		if other, ok := taken[s.id]; ok {
			return nil, fmt.Errorf("character vocabulary: %s and %s have the same id %d", other, s.name, s.id)
		}
		taken[s.id] = s.name
	}
	return c, nil
}

// Len returns the number of characters; a sampler excludes every id from there on.
func (c *Chars) Len() int { return len(c.runes) }

// CheckVocab returns an error if a token, other than CLS unless cls is true, has no row in an embedding of that many rows.
func (c *Chars) CheckVocab(rows int, cls bool) error {
	need := max(c.Mask, c.Pad)
	if cls {
		if c.CLS < 0 {
			return fmt.Errorf("character vocabulary: no CLS, which a judge needs")
		}
		need = max(need, c.CLS)
	}
	if need >= rows {
		return fmt.Errorf("character vocabulary: has the id %d, the embedding has %d rows", need, rows)
	}
	return nil
}

// Encode returns the ids of text. A character that the vocabulary does not have is an error.
func (c *Chars) Encode(text string) ([]int, error) {
	ids := make([]int, 0, utf8.RuneCountInString(text))
	for i, r := range text {
		id, ok := c.ids[r]
		if !ok || r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			_, n := utf8.DecodeRuneInString(text[i:])
			return nil, fmt.Errorf("character vocabulary: %+q at byte %d is not in it", text[i:i+n], i)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// Decode returns the text of ids. PAD and CLS are left out and MASK is the given character; another id that is no
// character's is an error.
func (c *Chars) Decode(ids []int, mask rune) (string, error) {
	var b strings.Builder
	for t, id := range ids {
		switch {
		case id == c.Mask:
			b.WriteRune(mask)
		case id == c.Pad || id == c.CLS && id >= 0:
		case 0 <= id && id < len(c.runes):
			b.WriteRune(c.runes[id])
		default:
			return "", fmt.Errorf("character vocabulary: position %d: no token has the id %d", t, id)
		}
	}
	return b.String(), nil
}
