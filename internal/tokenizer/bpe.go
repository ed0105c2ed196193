package tokenizer

// merge says that two tokens are joined to the token id; the lowest rank comes first.
type merge struct{ rank, id int32 }

// pairOf is the key of a pair of tokens.
func pairOf(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// bpe is the model: byte-pair encoding (Sennrich et al. 2016, algorithm 1) over bytes (Radford et al. 2019, section 2.2).
type bpe struct {
	byteID      [256]int32       // -1: the vocabulary has no token for the byte
	merges      map[uint64]merge // by pairOf
	whole       *vocabulary      // where a piece that is a token is not built by merges; else nil
	unknown     int32            // stands for a byte without a token; -1: such a byte is left out
	fuseUnknown bool             // a run of such bytes is one unknown token
}

// symbol is a token of the word at work, in a doubly linked list; a symbol that was joined to the one before it has size 0.
type symbol struct {
	id         int32
	size       int32 // bytes of the text
	prev, next int32 // -1: none
}

// candidate is a merge that was possible when it was pushed.
type candidate struct {
	rank  int32
	left  int32 // index of the symbol
	pair  uint64
	merge int32 // id of the result
}

// scratch is the memory of one encoding.
type scratch struct {
	symbols []symbol
	heap    []candidate
	spelled []byte
}

// encode cuts piece into tokens and calls f with each token and its length in bytes of piece. The pair of neighbours with
// the lowest rank is joined, the leftmost on ties, until no pair has a rank. It takes O(n log n) for n bytes.
func (m *bpe) encode(w *scratch, piece string, f func(id int32, size int)) {
	if m.whole != nil {
		w.spelled = appendSpelled(w.spelled[:0], piece)
		if id, ok := m.whole.find(string(w.spelled)); ok {
			f(id, len(piece))
			return
		}
	}
	w.symbols, w.heap = w.symbols[:0], w.heap[:0]
	pending := false // the last symbol is an unknown token that may grow
	skipped := int32(0)
	for i := range len(piece) {
		id, size := m.byteID[piece[i]], int32(1)
		switch {
		case id >= 0:
			pending = false
		case m.unknown < 0:
			if n := len(w.symbols); n > 0 {
				w.symbols[n-1].size++
			} else {
				skipped++
			}
			continue
		case pending && m.fuseUnknown:
			w.symbols[len(w.symbols)-1].size++
			continue
		default:
			id, pending = m.unknown, true
		}
		n := int32(len(w.symbols))
		w.symbols = append(w.symbols, symbol{id, size + skipped, n - 1, n + 1})
		skipped = 0
	}
	if len(w.symbols) == 0 {
		return
	}
	w.symbols[len(w.symbols)-1].next = -1
	for i := range len(w.symbols) - 1 {
		m.consider(w, int32(i))
	}
	for len(w.heap) > 0 {
		c := w.pop()
		left := &w.symbols[c.left]
		if left.size == 0 || left.next < 0 {
			continue
		}
		right := &w.symbols[left.next]
		if pairOf(left.id, right.id) != c.pair {
			continue // one of the two has been joined to another since
		}
		left.id, left.size, left.next = c.merge, left.size+right.size, right.next
		right.size = 0
		if left.next >= 0 {
			w.symbols[left.next].prev = c.left
			m.consider(w, c.left)
		}
		if left.prev >= 0 {
			m.consider(w, left.prev)
		}
	}
	for i := int32(0); i >= 0; i = w.symbols[i].next {
		f(w.symbols[i].id, int(w.symbols[i].size))
	}
}

// consider pushes the merge of symbol i and its next, if there is one.
func (m *bpe) consider(w *scratch, i int32) {
	left := w.symbols[i]
	pair := pairOf(left.id, w.symbols[left.next].id)
	if found, ok := m.merges[pair]; ok {
		w.push(candidate{found.rank, i, pair, found.id})
	}
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.left < d.left
}

// push and pop keep w.heap a binary heap. Package container/heap would box every candidate.
func (w *scratch) push(c candidate) {
	h := append(w.heap, c)
	i := len(h) - 1
	for i > 0 && c.before(h[(i-1)/2]) {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = c
	w.heap = h
}

func (w *scratch) pop() candidate {
	h := w.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if child >= len(h) || !h[child].before(last) {
			h[i] = last
			break
		}
		h[i] = h[child]
		i = child
	}
	w.heap = h
	return top
}
