package model

import "fmt"

// Tokens are sequences one after the other, without padding: sequence s has the tokens from Starts[s] to Starts[s+1].
type Tokens struct {
	IDs, Positions, Starts []int
}

// Len returns the number of tokens.
func (t Tokens) Len() int { return len(t.IDs) }

// Pack returns the real tokens of a batch of rows of time ids [rows, time], and where each of them lies: at [rows, time] holds the number of
// a token, −1 at padding. real [rows, time] is false at padding, on either side or within; nil: there is none. Positions count the real
// tokens of a row from 0. A row without any is a sequence of none. Pack panics if the lengths do not fit.
func Pack(rows, time int, ids []int, real []bool) (t Tokens, at []int) {
	if len(ids) != rows*time || real != nil && len(real) != len(ids) {
		panic("model: ids or mask do not fill the rows")
	}
	t.Starts, at = []int{0}, make([]int, len(ids))
	for r := range rows {
		first := t.Len()
		for i := r * time; i < (r+1)*time; i++ {
			at[i] = -1
			if real == nil || real[i] {
				at[i] = t.Len()
				t.IDs, t.Positions = append(t.IDs, ids[i]), append(t.Positions, t.Len()-first)
			}
		}
		t.Starts = append(t.Starts, t.Len())
	}
	return t, at
}

// Check returns an error that names the first token that the model cannot take: outside the vocabulary, or at a position that its table does
// not have.
func (m *Model) Check(t Tokens) error {
	for i, id := range t.IDs {
		if id < 0 || id >= m.Config.Vocab {
			return fmt.Errorf("model: token %d: id %d is not in a vocabulary of %d", i, id, m.Config.Vocab)
		}
		if p := t.Positions[i]; p < 0 || m.places != nil && p >= m.Config.Positions {
			return fmt.Errorf("model: token %d: position %d of %d", i, p, m.Config.Positions)
		}
	}
	return nil
}

// arena keeps the memory of a pass for the next one of the same size.
type arena struct {
	tokens int
	free   map[int][][]float32
}

// begin forgets the memory of passes over another number of tokens.
func (a *arena) begin(tokens int) {
	if a.tokens != tokens || a.free == nil {
		a.tokens, a.free = tokens, map[int][][]float32{}
	}
}

// get returns memory of n numbers that may hold anything.
func (a *arena) get(n int) []float32 {
	list := a.free[n]
	if len(list) == 0 {
		return make([]float32, n)
	}
	a.free[n] = list[:len(list)-1]
	return list[len(list)-1]
}

// put gives memory back.
func (a *arena) put(lists ...[]float32) {
	for _, x := range lists {
		if x != nil {
			a.free[len(x)] = append(a.free[len(x)], x)
		}
	}
}

// store is memory that is taken again and again.
type store struct{ x []float32 }

// take returns memory of n numbers that may hold anything. What was taken before is of no more use.
func (s *store) take(n int) []float32 {
	if cap(s.x) < n {
		s.x = make([]float32, n)
	}
	return s.x[:n]
}
