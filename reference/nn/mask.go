package nn

import (
	"fmt"

	"plumbline/reference/ad"
)

// Visible says which keys a query of attention sees. The queries are the last ones of the keys: query t of T stands at place
// S − T + t, which is how a chunk of tokens meets the keys of a cache.
type Visible struct {
	Batch, Queries, Keys int // B, T, S
	Causal               bool
	// Window, if positive, hides the keys that lie Window or more places before the query. It is
	// sliding_window of transformers@5.23.0, where a query sees Window keys, itself included.
	Window int
	// Real [B, S] is false at padding, which no query sees; nil: all are real.
	Real []bool
	// Segment [B, S] numbers the sequences packed into a row: a query sees the keys of its own number only; nil: one
	// sequence per row.
	Segment []int
}

// Mask returns the mask [B, 1, T, S], on where query t of a row sees key s. It is [1, 1, T, S] if the rows do not differ.
//
// A query may see nothing: so does one that is itself left padding under a causal mask.
// It panics if there are more queries than keys or a slice has another length.
func (v Visible) Mask() ad.Mask {
	b, t, s := v.Batch, v.Queries, v.Keys
	if b < 0 || t < 0 || t > s || v.Window < 0 {
		panic(fmt.Sprintf("nn: mask: %d rows of %d queries and %d keys, window %d", b, t, s, v.Window))
	}
	if v.Real != nil && len(v.Real) != b*s || v.Segment != nil && len(v.Segment) != b*s {
		panic("nn: mask: lengths do not fit")
	}
	if v.Real == nil && v.Segment == nil {
		b = 1
	}
	m := ad.Mask{Shape: []int{b, 1, t, s}, On: make([]bool, b*t*s)}
	for i := range b {
		for q := range t {
			at := s - t + q
			for k := range s {
				m.On[(i*t+q)*s+k] = (!v.Causal || k <= at) &&
					(v.Window == 0 || k > at-v.Window) &&
					(v.Real == nil || v.Real[i*s+k]) &&
					(v.Segment == nil || v.Segment[i*s+k] == v.Segment[i*s+at])
			}
		}
	}
	return m
}

// Positions returns the position [B, T] of every token, counted from 0 over the real tokens of its row:
//
//	pos_t = max(0, Σ_{i≤t} real_i − 1)
//
// and anew where the segment changes. real and segment are [B, T] or nil, as in [Visible]. Left padding therefore does not
// shift a sequence: it is position_ids as transformers' generation makes it from attention_mask, which writes another
// number at left padding, where no one sees it.
func Positions(b, t int, real []bool, segment []int) []int {
	if real != nil && len(real) != b*t || segment != nil && len(segment) != b*t {
		panic("nn: positions: lengths do not fit")
	}
	pos := make([]int, b*t)
	for i := range b {
		seen := 0
		for j := i * t; j < (i+1)*t; j++ {
			if segment != nil && j > i*t && segment[j] != segment[j-1] {
				seen = 0
			}
			if real == nil || real[j] {
				seen++
			}
			pos[j] = max(0, seen-1)
		}
	}
	return pos
}
