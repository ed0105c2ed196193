package model

// Cache holds the keys, after rotation, and the values of the tokens of several rows.
type Cache struct {
	layers []cacheLayer
	length []int
}

type cacheLayer struct{ keys, values [][]float32 } // by row, [S, KVHeads·D]

// NewCache returns an empty cache of that many rows, with room for as many tokens in each.
func (m *Model) NewCache(rows, tokens int) *Cache {
	c := &Cache{length: make([]int, rows)}
	width := m.Config.KVHeads * m.Config.HeadDim
	for range m.blocks {
		l := cacheLayer{make([][]float32, rows), make([][]float32, rows)}
		for r := range rows {
			l.keys[r], l.values[r] = make([]float32, 0, tokens*width), make([]float32, 0, tokens*width)
		}
		c.layers = append(c.layers, l)
	}
	return c
}

// Len returns the number of tokens of a row.
func (c *Cache) Len(row int) int { return c.length[row] }

// Drop forgets a row and frees its memory.
func (c *Cache) Drop(row int) {
	c.length[row] = 0
	for i := range c.layers {
		c.layers[i].keys[row], c.layers[i].values[row] = nil, nil
	}
}

// Extend reads new tokens of some rows of a cache, all rows together, and returns the logits [len(rows), V] of the tokens that may follow, with
// the adapter. Those of a row are, bit by bit, what one pass over its tokens gives. It returns an error for tokens that the model cannot
// take, see [Model.Check].
func (m *Model) Extend(c *Cache, rows []int, ids [][]int) ([]float32, error) {
	t := Tokens{Starts: []int{0}}
	last := make([]int, len(rows))
	for i, r := range rows {
		for j, id := range ids[i] {
			t.IDs, t.Positions = append(t.IDs, id), append(t.Positions, c.length[r]+j)
		}
		t.Starts = append(t.Starts, t.Len())
		last[i] = t.Len() - 1
	}
	if err := m.Check(t); err != nil {
		return nil, err
	}
	p := &Pass{m: m, t: t, adapted: true, cache: c, rows: rows}
	p.run()
	for i, r := range rows {
		c.length[r] += len(ids[i])
	}
	logits := make([]float32, len(rows)*m.head.Out)
	m.head.Forward(logits, p.Gather(last), len(rows), true, &m.headWork)
	p.Close()
	return logits, nil
}
