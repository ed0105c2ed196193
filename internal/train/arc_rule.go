package train

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/dataset"
)

// arcSample is a pair to solve, and all that a solver may see of its task: examples are the training pairs but this one. Output is
// what it is judged by, and nothing else.
type arcSample struct {
	task   string
	input  dataset.Grid
	output dataset.Grid
	pairs  []dataset.ArcPair // the training pairs of the task, shared by its samples
	but    int               // the place of this one among them, counted from 1; 0: it is none
}

// examples returns what a solver may see. They are put together anew: of a task of n pairs all samples would hold n² of them.
func (s arcSample) examples() []dataset.ArcPair {
	if s.but == 0 {
		return s.pairs
	}
	return slices.Concat(s.pairs[:s.but-1], s.pairs[s.but:])
}

// samples returns the training pairs, and the test pairs that are solved: those of validation. unsolved counts the others.
func samples(tasks []dataset.ArcTask) (train, test []arcSample, unsolved int) {
	for _, t := range tasks {
		for i, p := range t.Train {
			train = append(train, arcSample{t.Name, p.Input, p.Output, t.Train, i + 1})
		}
		for _, p := range t.Test {
			if p.Output.H == 0 {
				unsolved++
				continue
			}
			test = append(test, arcSample{t.Name, p.Input, p.Output, t.Train, 0})
		}
	}
	return train, test, unsolved
}

// key identifies what the prompt of a sample is made of: the task's examples and the grid, not the target.
func (s arcSample) key() [32]byte {
	grids := []dataset.Grid{s.input}
	for _, p := range s.examples() {
		grids = append(grids, p.Input, p.Output)
	}
	return dataset.Digest(grids...)
}

// arcRule is what the examples of a task have in common.
type arcRule struct {
	same, known           bool        // every output has the size of its input; there are examples
	kept, mirrored, upset float64     // shares of cells that are those of the input, of its mirror image, of it upside down
	becomes               map[int]int // the only colour that a colour becomes, where it is another one
	h, w                  int         // of the first output
}

func ruleOf(examples []dataset.ArcPair) arcRule {
	r := arcRule{same: true, known: len(examples) > 0, becomes: map[int]int{}}
	var cells, kept, mirrored, upset float64
	all := map[int]map[int]bool{}
	for _, p := range examples {
		in, out := p.Input, p.Output
		if in.H != out.H || in.W != out.W {
			r.same = false
			continue
		}
		for i, v := range out.Cells {
			row, column := i/in.W, i%in.W
			is := func(at int) float64 {
				if in.Cells[at] == v {
					return 1
				}
				return 0
			}
			cells, kept, mirrored, upset = cells+1, kept+is(i), mirrored+is(row*in.W+in.W-1-column), upset+is((in.H-1-row)*in.W+column)
			if all[in.Cells[i]] == nil {
				all[in.Cells[i]] = map[int]bool{}
			}
			all[in.Cells[i]][v] = true
		}
	}
	if cells > 0 {
		r.kept, r.mirrored, r.upset = kept/cells, mirrored/cells, upset/cells
	}
	for from, to := range all {
		for v := range to {
			if len(to) == 1 && v != from {
				r.becomes[from] = v
			}
		}
	}
	if r.known {
		r.h, r.w = examples[0].Output.H, examples[0].Output.W
	}
	return r
}

// sentence tells the encoder the rule of a task, as far as all examples show one, and the size of the grid. It is made of the grid
// and the examples, never of the target (H10).
func (s arcSample) sentence() string {
	r := ruleOf(s.examples())
	var rules []string
	say := func(is bool, format string, a ...any) {
		if is {
			rules = append(rules, fmt.Sprintf(format, a...))
		}
	}
	say(!r.known, "no examples")
	say(r.known && !r.same, "becomes %dx%d", r.h, r.w)
	say(r.kept == 1, "all cells stay")
	say(r.mirrored == 1, "left and right swap")
	say(r.upset == 1, "top and bottom swap")
	for from := range dataset.ArcColors {
		to, ok := r.becomes[from]
		say(ok, "%d becomes %d", from, to)
	}
	say(len(rules) == 0, "cells move")
	return fmt.Sprintf("%s in %dx%d", strings.Join(rules, ", "), s.input.H, s.input.W)
}

// control describes the grid in n numbers: the shares of the colours and the sides in units of the longest.
func (s arcSample) control(n int) []float64 {
	x := make([]float64, dataset.ArcColors, dataset.ArcColors+2)
	for _, v := range s.input.Cells {
		x[v] += 1 / float64(len(s.input.Cells))
	}
	return fit(append(x, float64(s.input.H)/dataset.ArcSide, float64(s.input.W)/dataset.ArcSide), n)
}

// features describe the examples in n numbers: the shares of the rule, and for every colour which it becomes.
func (s arcSample) features(n int) []float64 {
	r := ruleOf(s.examples())
	one := map[bool]float64{true: 1}
	x := []float64{one[r.known], one[r.same], r.kept, r.mirrored, r.upset, float64(r.h) / dataset.ArcSide, float64(r.w) / dataset.ArcSide}
	for from := range dataset.ArcColors {
		to, ok := r.becomes[from]
		x = append(x, one[ok], float64(to)/dataset.ArcColors)
	}
	return fit(x, n)
}

// fit cuts x, or fills it up with zeros, to n numbers.
func fit(x []float64, n int) []float64 { return append(x, make([]float64, max(0, n-len(x)))...)[:n] }
