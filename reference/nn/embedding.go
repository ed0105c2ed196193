package nn

import "plumbline/reference/ad"

// Embedding returns the rows of the table w [V, C] that ids name, as [shape..., C]. It panics if ids does not fill shape or
// an id is not in [0, V).
//
// The row of a padding token is a row like any other: torch.nn.Embedding's padding_idx, which keeps its gradient 0, is a
// mask on the loss's side here.
func Embedding(w *ad.Var, ids []int, shape ...int) *ad.Var { return ad.Embedding(w, ids, shape...) }
