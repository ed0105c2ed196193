package dataset

import (
	"fmt"

	"plumbline/internal/format"
	"plumbline/internal/rng"
)

// maxText bounds a file of text.
const maxText = 1 << 28

// ReadText returns a text file as it is.
func ReadText(path string) (string, error) {
	data, err := format.ReadFile(path, maxText)
	return string(data), err
}

// Corpus is a text as ids of characters, of which windows are drawn.
type Corpus struct {
	IDs        []int
	Characters int // of the vocabulary: ids are below
}

// Split cuts the corpus into the first 90% and the rest, which training never sees.
func (c Corpus) Split() (train, held Corpus) {
	n := len(c.IDs) * 9 / 10
	return Corpus{c.IDs[:n], c.Characters}, Corpus{c.IDs[n:], c.Characters}
}

// Check returns an error if the corpus has no window of n ids.
func (c Corpus) Check(n int) error {
	if len(c.IDs) < n {
		return fmt.Errorf("a text of %d characters has no window of %d", len(c.IDs), n)
	}
	return nil
}

// Window returns a copy of n neighbouring ids that begin at an offset drawn from random number i of the stream.
func (c Corpus) Window(stream rng.Stream, i, n int) []int {
	from := int(stream.Uniform(uint64(i)) * float64(len(c.IDs)-n+1))
	return append([]int(nil), c.IDs[from:from+n]...)
}

// Ignore is the target of a position that is not supervised.
const Ignore = -100

// Mask makes of a text of T ids the input x and the targets y of masked training, as BERT does (Devlin et al. 2019, Section
// 3.1): each position is chosen with probability ratio; of the chosen, 80% become mask, 10% a random character and 10% stay. y is
// the text's id at the chosen positions and [Ignore] elsewhere. The random numbers are those of row i.
func (c Corpus) Mask(stream rng.Stream, i int, text []int, ratio float64, mask int) (x, y []int) {
	for t, id := range text {
		at := uint64(i)*uint64(3*len(text)) + uint64(3*t)
		target := Ignore
		if stream.Uniform(at) < ratio {
			target = id
			switch kind := stream.Uniform(at + 1); {
			case kind < .8:
				id = mask
			case kind < .9:
				id = int(stream.Uniform(at+2) * float64(c.Characters))
			}
		}
		x, y = append(x, id), append(y, target)
	}
	return x, y
}

// Corrupt returns a text of which a share of the ids is synthetic, and that share: their number is uniform from 0 to T, their
// places are random, and half of them are drawn from all characters, half from the characters of the corpus as often as they stand
// there. The random numbers are those of row i.
func (c Corpus) Corrupt(stream rng.Stream, i int, text []int) (out []int, share float64) {
	base := uint64(i) * uint64(3*len(text)+1)
	n := int(stream.Uniform(base) * float64(len(text)+1))
	left := n
	for t, id := range text {
		at := base + 1 + uint64(3*t)
		// Of the places that are left, each is as likely as the others: n of T are taken in the end.
		if stream.Uniform(at)*float64(len(text)-t) < float64(left) {
			left--
			if u := stream.Uniform(at + 2); stream.Uniform(at+1) < .5 {
				id = int(u * float64(c.Characters))
			} else {
				id = c.IDs[int(u*float64(len(c.IDs)))]
			}
		}
		out = append(out, id)
	}
	return out, float64(n) / float64(len(text))
}

// JudgeTarget is what a judge is taught to say of a text of which the share s is synthetic,
//
//	t(s) = 1 − (−s⁴ + 2s³ − 2s + 1)
//
// from 0 for a text that is not to 1 for one that is all.
func JudgeTarget(s float64) float64 { return 1 - (-s*s*s*s + 2*s*s*s - 2*s + 1) }
