package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/memory"
)

// ArcColors is the number of colours of a cell, and ArcSide the longest side of a grid.
const (
	ArcColors = 10
	ArcSide   = 30
)

// Grid is a picture of H rows and W columns of colours, row-major.
type Grid struct {
	H, W  int
	Cells []int
}

// ArcPair is a grid and what becomes of it. Output.H is 0 where that is not told.
type ArcPair struct{ Input, Output Grid }

// ArcTask is a task of the Abstraction and Reasoning Corpus (Chollet 2019, https://arxiv.org/abs/1911.01547): Train shows a rule,
// Test asks for it.
type ArcTask struct {
	Name        string
	Train, Test []ArcPair
}

// maxArc bounds a file of tasks: ARC-AGI-2 with its 1000 has 6 MB.
const maxArc = 1 << 28

// ReadArc reads tasks: a file with one task {"train": [{"input", "output"}, …], "test": […]}, a file {name: task, …}, or all files
// *.json of a folder in the order of their names. A grid is a list of rows of colours from 0 to 9, of at most 30×30 cells. Every
// training pair has an output; either all test pairs of a task have one or none. What is not so is a *format.Error that names the
// file, the task, the pair and the cell.
func ReadArc(path string) ([]ArcTask, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		f, err := format.Open(path)
		if err != nil {
			return nil, err
		}
		return readArcFile(f)
	}
	dir, err := format.OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Entries()
	if err != nil {
		return nil, err
	}
	var list []ArcTask
	for _, name := range names {
		if filepath.Ext(name) != ".json" {
			continue
		}
		f, err := dir.Open(name)
		if err != nil {
			return nil, err
		}
		tasks, err := readArcFile(f)
		if err != nil {
			return nil, err
		}
		list = append(list, tasks...)
	}
	if len(list) == 0 {
		return nil, format.Malformed(path, "", "has no file *.json with tasks")
	}
	return list, nil
}

func readArcFile(f *format.File) ([]ArcTask, error) {
	defer f.Close()
	// A pair of two cells takes 31 bytes of text, and about 330 as grids, as a sample and in slices that grow.
	if err := memory.Need(12*float64(f.Size), "%s, %d bytes of tasks,", f.Path, f.Size); err != nil {
		return nil, err
	}
	text, err := f.ReadAll(maxArc)
	if err != nil {
		return nil, err
	}
	return ParseArc(f.Path, text)
}

// ParseArc is ReadArc for the bytes of one file. A task without a name of its own has that of the file.
func ParseArc(path string, text []byte) ([]ArcTask, error) {
	var list []ArcTask
	one := ArcTask{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
	single := false
	s := format.NewScanner(path, text, 0)
	err := s.Document(func(key string) error {
		if (key == "train" || key == "test") && s.Kind() == format.KindArray {
			single = true
			return arcPairs(s, &one, key)
		}
		if s.Kind() != format.KindObject {
			return s.Skip() // a comment beside the tasks or the pairs
		}
		t := ArcTask{Name: strings.Clone(key)}
		err := s.Object(func(part string) error {
			if part == "train" || part == "test" {
				return arcPairs(s, &t, part)
			}
			return s.Skip()
		})
		list = append(list, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	if single {
		if len(list) > 0 {
			return nil, format.Malformed(path, "", "is a task, and the task %.80q lies in it", list[0].Name)
		}
		list = append(list, one)
	}
	if len(list) == 0 {
		return nil, format.Malformed(path, "", "has no task: want {\"train\": [{\"input\": …, \"output\": …}, …], \"test\": […]}, or such by their names")
	}
	for _, t := range list {
		if err := t.check(path); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (t *ArcTask) check(path string) error {
	task := fmt.Sprintf("task %.80q", t.Name)
	if len(t.Train) == 0 {
		return format.Malformed(path, task, "has no training pair")
	}
	for i, p := range t.Train {
		if p.Output.H == 0 {
			return format.Malformed(path, fmt.Sprintf("%s, train pair %d", task, i), "has no output")
		}
	}
	for i, p := range t.Test {
		if (p.Output.H == 0) != (t.Test[0].Output.H == 0) {
			return format.Malformed(path, fmt.Sprintf("%s, test pair %d", task, i), "and test pair 0: one has an output, the other not")
		}
	}
	return nil
}

func arcPairs(s *format.Scanner, t *ArcTask, part string) error {
	to := &t.Train
	if part == "test" {
		to = &t.Test
	}
	*to = nil // a key that is given twice is refused where its object ends
	return s.Array(func(i int) error {
		where := func(grid string) string { return fmt.Sprintf("task %.80q, %s pair %d%s", t.Name, part, i, grid) }
		var p ArcPair
		err := s.Object(func(key string) (err error) {
			switch key {
			case "input":
				p.Input, err = arcGrid(s, func() string { return where(", input") })
			case "output":
				p.Output, err = arcGrid(s, func() string { return where(", output") })
			default:
				err = s.Skip()
			}
			return err
		})
		if err == nil && p.Input.H == 0 {
			err = s.Malformed("%s has no input", where(""))
		}
		*to = append(*to, p)
		return err
	})
}

// arcGrid reads a grid; where names it in messages, of which a file that is right needs none.
func arcGrid(s *format.Scanner, where func() string) (g Grid, err error) {
	err = s.Array(func(row int) error {
		if row == ArcSide {
			return s.Malformed("%s has more than %d rows", where(), ArcSide)
		}
		n := 0
		err := s.Array(func(column int) error {
			if column == ArcSide {
				return s.Malformed("%s, row %d has more than %d cells", where(), row, ArcSide)
			}
			at := func() string { return fmt.Sprintf("%s, row %d, column %d", where(), row, column) }
			if s.Kind() != format.KindNumber {
				return s.Malformed("%s: want a colour, an integer from 0 to %d", at(), ArcColors-1)
			}
			text, err := s.Number()
			if err != nil {
				return err
			}
			if strings.ContainsAny(text, ".eE") {
				return s.Malformed("%s: the colour %.40s is no integer (D1): targets are classes, target.long() and not target.float()", at(), text)
			}
			if len(text) != 1 {
				return s.Malformed("%s: the colour %.40s is not from 0 to %d", at(), text, ArcColors-1)
			}
			g.Cells = append(g.Cells, int(text[0]-'0'))
			n++
			return nil
		})
		if err != nil {
			return err
		}
		if n == 0 || row > 0 && n != g.W {
			return s.Malformed("%s, row %d has %d cells, row 0 has %d", where(), row, n, g.W)
		}
		g.W, g.H = n, row+1
		return nil
	})
	if err == nil && g.H == 0 {
		err = s.Malformed("%s has no rows", where())
	}
	return g, err
}

// Digest identifies grids by what is in them: their sizes and cells, in order.
func Digest(grids ...Grid) [sha256.Size]byte {
	h := sha256.New()
	for _, g := range grids {
		binary.Write(h, binary.LittleEndian, []uint64{uint64(g.H), uint64(g.W)})
		for _, v := range g.Cells {
			h.Write([]byte{byte(v)})
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}
