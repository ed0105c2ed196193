package fault

import (
	"fmt"

	"plumbline/verify/stage"
)

// chunkForms are recursions that start anew every n tokens of a response, counted from its first or from its last one, as where a buffer is cut into chunks of
// one length: A_{t+1} is not carried over the edge of a chunk, or the next value is not taken over it, either.
func chunkForms(c *stage.Case) []recursionForm {
	const most = 64 // tokens of a chunk
	var list []recursionForm
	for n := 2; n < min(c.B.Cols, most+1); n++ {
		for _, from := range []struct {
			words string
			edge  func(t, tokens int) bool
		}{
			{"", func(t, _ int) bool { return t%n == n-1 }},
			{", counted from the last one", func(t, tokens int) bool { return (tokens-1-t)%n == 0 }},
		} {
			for words, next := range []string{"A_{t+1} is not carried over the edge of a chunk", "neither A_{t+1} nor the next value is taken over the edge of a chunk"} {
				f := recursionForms()[0]
				f.title = fmt.Sprintf("the recursion starts anew every %d tokens%s: %s", n, from.words, next)
				f.stops = func(t, tokens int) (bool, bool) { edge := from.edge(t, tokens); return !edge || words == 0, !edge }
				list = append(list, f)
			}
		}
	}
	return list
}
