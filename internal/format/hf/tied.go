package hf

import (
	"math"
	"slices"

	"plumbline/internal/arch"
)

// Tie says how the output head and the embedding are stored.
type Tie uint8

// The cases. TiedUnknown is an architecture whose names are not known.
const (
	TiedUnknown Tie = iota
	TiedAbsent      // neither is stored
	TiedHead        // only the head
	TiedEmbed       // only the embedding
	TiedEqual       // both, with the same shape and values
	TiedDiffer      // both, with another shape or other values
)

// Tied compares the stored head with the stored embedding, element by element. NaN equals NaN.
func (f *Folder) Tied() (Tie, error) {
	embedding := arch.EmbeddingOf(f.Config.Type)
	if embedding == "" {
		return TiedUnknown, nil
	}
	head, hasHead := f.Tensor(arch.HeadWeight)
	embed, hasEmbed := f.Tensor(embedding)
	switch {
	case !hasHead && !hasEmbed:
		return TiedAbsent, nil
	case !hasEmbed:
		return TiedHead, nil
	case !hasHead:
		return TiedEmbed, nil
	case !slices.Equal(head.Shape, embed.Shape):
		return TiedDiffer, nil
	}
	var a, b [4096]float64
	for at, n := 0, head.Len(); at < n; at += len(a) {
		k := min(len(a), n-at)
		if err := head.ReadFloat64(a[:k], at); err != nil {
			return TiedUnknown, err
		}
		if err := embed.ReadFloat64(b[:k], at); err != nil {
			return TiedUnknown, err
		}
		for i := range k {
			if a[i] != b[i] && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
				return TiedDiffer, nil
			}
		}
	}
	return TiedEqual, nil
}
