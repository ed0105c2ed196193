package checkpoint

import "fmt"

// Scanned is what a pass over some pieces of the elements found of one tensor.
type Scanned struct {
	Key     string `json:"key"`    // file and name of the tensor
	Tensor  int    `json:"tensor"` // its place in the order of the files
	Bad     int    `json:"bad,omitempty"`
	First   int    `json:"first,omitempty"`
	Value   string `json:"value,omitempty"`
	Nonzero bool   `json:"nonzero,omitempty"`
	Row     int    `json:"row,omitempty"`    // the first that was seen
	RowMax  []byte `json:"rowmax,omitempty"` // largest magnitudes from it on
}

func (t *Tensor) key() string { return t.File + " " + t.Name }

// Shard looks at the elements of shard i of n, 0 ≤ i < n: pieces of 1 MiB that follow one another, so that a large tensor may lie in
// several shards.
func (in *Input) Shard(i, n int) ([]Scanned, error) {
	tensors := in.scannable()
	list := jobs(tensors)
	list = list[len(list)*i/n : len(list)*(i+1)/n]
	if err := in.look(list); err != nil {
		return nil, err
	}
	mine := map[*Tensor]bool{}
	for _, j := range list {
		mine[j.t] = true
	}
	var found []Scanned
	for k, t := range tensors {
		if s := t.stats; mine[t] {
			row := 0
			for row < len(s.rowMax) && s.rowMax[row] == 0 {
				row++
			}
			found = append(found, Scanned{t.key(), k, s.bad, s.first, s.value, !s.zero, row, s.rowMax[row:]})
		}
	}
	return found, nil
}

// take puts what shards found together. For each tensor: the numbers that are not finite are counted, the first is that of the least
// index, it is zero if every piece is, and a row of codes has the largest magnitude of its parts. All four are the same in any order.
func (in *Input) take(found []Scanned) error {
	tensors := in.scannable()
	for _, f := range found {
		if f.Tensor < 0 || f.Tensor >= len(tensors) || tensors[f.Tensor].key() != f.Key || f.Row < 0 || f.Row > tensors[f.Tensor].Array.Len() {
			return fmt.Errorf("a shard looked at %q, which is not in this folder", f.Key)
		}
		s := tensors[f.Tensor].stats
		if f.Nonzero {
			s.zero = false
		}
		if f.Bad > 0 {
			if s.bad == 0 || f.First < s.first {
				s.first, s.value = f.First, f.Value
			}
			s.bad += f.Bad
		}
		for i, m := range f.RowMax {
			s.merge([]rowMax{{f.Row + i, m}})
		}
	}
	return nil
}
