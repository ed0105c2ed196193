package f32

// Embedding stores in y [N, C] the rows of the table w [V, C] that ids name. It panics if the lengths do not fit or an id is not in [0, V).
func Embedding(y, w []float32, ids []int, c int) {
	same("embedding", len(y), len(ids)*c)
	v := rows("embedding", len(w), c)
	for i, id := range ids {
		if id < 0 || id >= v {
			panic("f32: embedding: an id outside the vocabulary")
		}
		copy(y[i*c:(i+1)*c], w[id*c:(id+1)*c])
	}
}
