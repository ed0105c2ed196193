package dataset

import (
	"fmt"

	"plumbline/internal/rng"
)

// Pairs of a generated task.
const (
	generatedTrain = 8
	generatedTest  = 2
)

// GeneratedArc returns n tasks of three kinds in turn: copy, flip (left and right) and recolour (one colour becomes another that is in
// no input). Each has eight training pairs and two test pairs of 3 to 5 rows and columns. The inputs of all tasks are of the colours
// 0 to 3, so that only the examples tell the tasks apart. They are drawn from stream.
func GeneratedArc(stream rng.Stream, n int) []ArcTask {
	const palette = 4
	list := make([]ArcTask, n)
	for i := range list {
		at := uint64(i) * 1024
		next := func(n int) int { at++; return int(stream.Uniform(at) * float64(n)) }
		from, to := next(palette), palette+next(ArcColors-palette)
		kind := [...]string{"copy", "flip", "recolour"}[i%3]
		t := ArcTask{Name: fmt.Sprintf("%s-%02d", kind, i)}
		for j := range generatedTrain + generatedTest {
			in := Grid{H: 3 + next(3), W: 3 + next(3)}
			for range in.H * in.W {
				in.Cells = append(in.Cells, next(palette))
			}
			in.Cells[next(len(in.Cells))] = from // the one that changes is seen
			out := Grid{in.H, in.W, make([]int, len(in.Cells))}
			for at, v := range in.Cells {
				switch {
				case kind == "flip":
					out.Cells[at/in.W*in.W+in.W-1-at%in.W] = v
				case kind == "recolour" && v == from:
					out.Cells[at] = to
				default:
					out.Cells[at] = v
				}
			}
			if j < generatedTrain {
				t.Train = append(t.Train, ArcPair{in, out})
			} else {
				t.Test = append(t.Test, ArcPair{in, out})
			}
		}
		list[i] = t
	}
	return list
}
