package fault

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// sliceMove is a way in which a micro-batch reads what belongs to another one: a slice that does not move, or moves by one too many, or rows of another rank.
// from returns the file that is read in place of file i, −1 for none.
type sliceMove struct {
	title string
	from  func(files []dump.FileInfo, i int) int
}

var sliceMoves = []sliceMove{
	{"the first micro-batch of the step", func(files []dump.FileInfo, i int) int { return fileAmong(files, i, func(_, n int) int { return 0 }) }},
	{"the last micro-batch of the step", func(files []dump.FileInfo, i int) int {
		return fileAmong(files, i, func(_, n int) int { return n - 1 })
	}},
	{"the micro-batch before, of the first those of the last", func(files []dump.FileInfo, i int) int {
		return fileAmong(files, i, func(k, n int) int { return (k + n - 1) % n })
	}},
	{"the micro-batch before, of the first its own", func(files []dump.FileInfo, i int) int {
		return fileAmong(files, i, func(k, _ int) int { return max(k-1, 0) })
	}},
	{"the micro-batch behind, of the last those of the first", func(files []dump.FileInfo, i int) int {
		return fileAmong(files, i, func(k, n int) int { return (k + 1) % n })
	}},
	{"the micro-batch behind, of the last its own", func(files []dump.FileInfo, i int) int {
		return fileAmong(files, i, func(k, n int) int { return min(k+1, n-1) })
	}},
	{"the same micro-batch of the first rank", func(files []dump.FileInfo, i int) int {
		return slices.IndexFunc(files, func(f dump.FileInfo) bool {
			return f.Step == files[i].Step && f.MicroBatch == files[i].MicroBatch && f.Rank == 0
		})
	}},
	{"the same micro-batch of the next rank, of the last one that of the first", func(files []dump.FileInfo, i int) int { return ofRank(files, i, 1) }},
	{"the same micro-batch of the rank before, of the first one that of the last", func(files []dump.FileInfo, i int) int { return ofRank(files, i, -1) }},
	{"the first micro-batch of the rollout", func(files []dump.FileInfo, i int) int {
		return slices.IndexFunc(files, func(f dump.FileInfo) bool { return f.Rank == files[i].Rank })
	}},
}

// ofRank returns the file of the same step and micro-batch whose rank is by ranks on, round the end, −1 where there is none but its own.
func ofRank(files []dump.FileInfo, i, by int) int {
	world := 0
	for _, f := range files {
		world = max(world, f.Rank+1)
	}
	rank := (files[i].Rank + by + world) % world
	if rank == files[i].Rank {
		return -1
	}
	return slices.IndexFunc(files, func(f dump.FileInfo) bool {
		return f.Step == files[i].Step && f.MicroBatch == files[i].MicroBatch && f.Rank == rank
	})
}

// fileAmong returns the file whose place among those of the step and rank of file i is that which place makes of the place k of n of i.
func fileAmong(files []dump.FileInfo, i int, place func(k, n int) int) int {
	var own []int
	at := 0
	for j, f := range files {
		if f.Step == files[i].Step && f.Rank == files[i].Rank {
			if j == i {
				at = len(own)
			}
			own = append(own, j)
		}
	}
	return own[place(at, len(own))]
}

// moved returns the rows that are read in place of each row, nil where that are their own or a file has no other rows of its number.
func (m sliceMove) moved(b *dump.Batch) []int {
	from, other := make([]int, b.Rows), false
	for i, f := range b.Files {
		s := m.from(b.Files, i)
		if s < 0 || b.Files[s].Hi-b.Files[s].Lo != f.Hi-f.Lo {
			return nil
		}
		other = other || s != i
		for r := f.Lo; r < f.Hi; r++ {
			from[r] = b.Files[s].Lo + r - f.Lo
		}
	}
	if !other {
		return nil
	}
	return from
}

// sliceIDs are the bugs that a tensor of another micro-batch is, where one has a name.
var sliceIDs = map[string]string{"logp_old": "OLD-ROWS-ROLLED", "advantages": "ADV-ROWS-OF-OTHERS", "is_weights": "IS-ROWS", "values": "VALUES-OF-OTHER-ROWS", "kl": "KL-OF-OTHER-ROWS"}

// sliceEdits returns edits of a formula that reads the rows of another micro-batch, of each tensor that it reads, and of an output that has them.
func sliceEdits(o *stage.Outcome) []edit {
	b := o.Case.B
	if len(b.Files) < 2 {
		return nil
	}
	var list []edit
	for _, m := range sliceMoves {
		if m.moved(b) == nil {
			continue
		}
		if t := b.Tensors[o.Check.Output]; t != nil && len(o.Got) == len(t.Data) && t.Width <= 1 && (o.Check.Stage == convention.Advantage || o.Check.Stage == convention.Ratio || o.Check.Stage == convention.KL) {
			id := "SLICE-OF-OTHERS"
			if o.Check.Output == "advantages" {
				id = "ADV-ROWS-OF-OTHERS"
			}
			if o.Check.Output == "is_weights" {
				id = "IS-ROWS"
			}
			list = append(list, edit{id: id, title: fmt.Sprintf("%s are those of %s", o.Check.Output, m.title), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					from := m.moved(c.B)
					if from == nil {
						return nil
					}
					return ofRows(c, ch, from)
				}})
		}
		for _, name := range slicedBy(o) {
			list = append(list, edit{id: cmp.Or(sliceIDs[name], "SLICE-OF-OTHERS"), title: name + " is that of " + m.title, changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					from := m.moved(c.B)
					if from == nil {
						return nil
					}
					return ofSlice(name, c, ch, func(r int) (x []float64, mask []bool) { return rowOf(c.B, name, from[r]) })
				}})
		}
	}
	return list
}

// slicedBy are the tensors whose rows an output reads.
func slicedBy(o *stage.Outcome) (names []string) {
	for _, name := range []string{"logp_old", "logp_gen", "logp_ref", "values", "returns", "advantages", "is_weights", "token_rewards", "scores", "kl"} {
		t := o.Case.B.Tensors[name]
		if t != nil && name != o.Check.Output && t.Width <= 1 && (t.Layout == dump.PerToken || t.Layout == dump.PerRow) && !(made[name] > made[o.Check.Output] && made[o.Check.Output] > 0) {
			names = append(names, name)
		}
	}
	return names
}

// rowOf returns a row of a tensor and its cells that have numbers, of one number per row that number alone.
func rowOf(b *dump.Batch, name string, r int) (x []float64, mask []bool) {
	if each := b.Row(name); len(each) == b.Rows {
		return each[r : r+1], []bool{true}
	}
	if x = b.Token(name); x == nil {
		return nil, nil
	}
	return x[r*b.Cols : (r+1)*b.Cols], b.Mask[r*b.Cols : (r+1)*b.Cols]
}

// ofSlice predicts an output under other rows of a tensor. What a dump holds outside the mask may be another number than the program had there: of an output
// per token such cells are not judged where they are wrong.
func ofSlice(name string, c *stage.Case, ch *stage.Check, row func(r int) (x []float64, mask []bool)) *stage.Prediction {
	b, t := c.B, c.B.Tensors[name]
	w := len(t.Data) / max(b.Rows, 1)
	y, known := slices.Clone(t.Data), make([]bool, len(b.Mask))
	for r := range b.Rows {
		x, mask := row(r)
		if len(x) == 0 || w == 1 != (len(x) == 1) && b.Cols != 1 {
			return nil
		}
		copy(y[r*w:(r+1)*w], x)
		for k := range b.Cols {
			known[r*b.Cols+k] = w == 1 && b.Cols != 1 || k < len(mask) && mask[k]
		}
	}
	p := under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B.With(name, y), c.Set, true }, c, ch)
	if p == nil || len(p.Want) != len(b.Mask) || b.Cols == 0 {
		return p
	}
	q, got := *p, b.Tensors[ch.Output]
	q.Judge = make([]bool, len(p.Want))
	for i := range q.Judge {
		right := known[i] || got != nil && len(got.Data) == len(p.Want) && math.Abs(got.Data[i]-p.Want[i]) <= p.Bound[i]
		q.Judge[i] = right && b.Mask[i] && (p.Judge == nil || p.Judge[i])
	}
	return &q
}

// slicesAmong returns edits in which every micro-batch reads the same rows of a tensor, those of one micro-batch of the rollout: what stands beside the step
// are the batches of the steps around it.
func slicesAmong(o *stage.Outcome, beside func(step int) []*dump.Batch) []edit {
	const most = 48 // micro-batches
	var list []edit
	for _, name := range slicedBy(o) {
		list = append(list, edit{id: cmp.Or(sliceIDs[name], "SLICE-OF-OTHERS"), title: name + " of every micro-batch is that of one micro-batch of the rollout: a slice that does not move", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				got := c.B.Tensors[ch.Output]
				if got == nil {
					return nil
				}
				best, tried := closest{got: got.Data}, 0
				for _, b := range append([]*dump.Batch{c.B}, beside(c.B.Meta.Step)...) {
					for _, f := range b.Files {
						if b.Tensors[name] == nil || tried >= most || slices.ContainsFunc(c.B.Files, func(own dump.FileInfo) bool { return own.Hi-own.Lo != f.Hi-f.Lo }) {
							continue
						}
						tried++
						best.consider(ofSlice(name, c, ch, func(r int) (x []float64, mask []bool) {
							return rowOf(b, name, f.Lo+r-c.B.Files[c.B.File(r)].Lo)
						}))
					}
				}
				return best.p
			}})
	}
	return list
}
