package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
	"plumbline/internal/rng"
)

// The pairs of three real tasks are what their rules say: 67a3c6ac mirrors, c9e6f938 appends the mirror image.
func TestReadArc(t *testing.T) {
	list, err := ReadArc("testdata/arc")
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, []string{"0d3d703e", "67a3c6ac", "c9e6f938"}, []string{list[0].Name, list[1].Name, list[2].Name})
	require.Equal(t, Grid{3, 3, []int{3, 1, 2, 3, 1, 2, 3, 1, 2}}, list[0].Train[0].Input)
	require.Equal(t, Grid{3, 3, []int{4, 5, 6, 4, 5, 6, 4, 5, 6}}, list[0].Train[0].Output)
	mirror := func(g Grid) Grid {
		m := Grid{g.H, g.W, nil}
		for i := range g.H {
			for j := range g.W {
				m.Cells = append(m.Cells, g.Cells[i*g.W+g.W-1-j])
			}
		}
		return m
	}
	for _, p := range append(list[1].Train, list[1].Test...) {
		require.Equal(t, mirror(p.Input), p.Output)
	}
	for _, p := range append(list[2].Train, list[2].Test...) {
		require.Equal(t, 2*p.Input.W, p.Output.W)
	}
	one, err := ReadArc("testdata/arc/67a3c6ac.json")
	require.NoError(t, err)
	require.Equal(t, list[1:2], one)
	_, err = ReadArc(filepath.Join(t.TempDir(), "absent.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ReadArc(t.TempDir())
	require.ErrorContains(t, err, "has no file *.json")
	require.True(t, format.IsMalformed(err))
}

// A file of many tasks; a task whose tests are not solved.
func TestParseArc(t *testing.T) {
	list, err := ParseArc("all.json", []byte(`{"a": {"test": [{"input": [[1]]}], "name": "x", "train": [{"output": [[2, 9]], "id": 3, "input": [[0], [1]]}]},
		"about": "text", "b": {"train": [{"input": [[5]], "output": [[5]]}]}}`))
	require.NoError(t, err)
	require.Equal(t, []ArcTask{
		{"a", []ArcPair{{Grid{2, 1, []int{0, 1}}, Grid{1, 2, []int{2, 9}}}}, []ArcPair{{Grid{1, 1, []int{1}}, Grid{}}}},
		{"b", []ArcPair{{Grid{1, 1, []int{5}}, Grid{1, 1, []int{5}}}}, nil}}, list)
}

// Bad files are refused by the name of the task and the place of the cell.
func TestParseArcRefuses(t *testing.T) {
	train := func(grid string) string { return `{"t": {"train": [{"input": [[1]], "output": ` + grid + `}]}}` }
	tall, wide := "["+strings.Repeat("[1],", 30)+"[1]]", "[["+strings.Repeat("1,", 30)+"1]]"
	for text, says := range map[string]string{
		train(`[[1, 10]]`):                      `task "t", train pair 0, output, row 0, column 1: the colour 10 is not from 0 to 9`,
		train(`[[1], [-1]]`):                    `row 1, column 0: the colour -1 is not from 0 to 9`,
		train(`[[1, 2], [3]]`):                  `task "t", train pair 0, output, row 1 has 1 cells, row 0 has 2`,
		train(tall):                             `output has more than 30 rows`,
		train(wide):                             `output, row 0 has more than 30 cells`,
		train(`[[1.0]]`):                        `the colour 1.0 is no integer (D1): targets are classes, target.long() and not target.float()`,
		train(`[[1e0]]`):                        `(D1)`,
		train(`[["1"]]`):                        `row 0, column 0: want a colour`,
		train(`[[null]]`):                       `want a colour`,
		train(`[[]]`):                           `row 0 has 0 cells`,
		train(`[]`):                             `has no rows`,
		train(`3`):                              `want an array`,
		`{"t": {"train": [{"input": [[1]]}]}}`:  `task "t", train pair 0: has no output`,
		`{"t": {"train": [{"output": [[1]]}]}}`: `task "t", train pair 0 has no input`,
		`{"t": {"train": []}}`:                  `task "t": has no training pair`,
		`{"t": {}}`:                             `has no training pair`,
		`{"t": {"test": [{"input": [[1]], "output": [[1]]}]}}`: `has no training pair`,
		`{}`:       `has no task`,
		`{"a": 1}`: `has no task`,
		`[]`:       `want an object`,
		``:         `want an object`,
		`{"train": [{"input": [[1]], "output": [[1]]}]} x`:                                                              `after the end`,
		`{"train": [{"input": [[1]], "output": [[1]]}], "b": {}}`:                                                       `is a task, and the task "b" lies in it`,
		`{"train": [{"input": [[1]], "output": [[1]]}], "train": []}`:                                                   `duplicate key "train"`,
		`{"train": [{"input": [[1]], "output": [[1]], "input": [[2]]}]}`:                                                `input`,
		`{"train": [{"input": [[1]], "output": [[1]]}], "test": [{"input": [[1]]}, {"input": [[2]], "output": [[2]]}]}`: `task "bad", test pair 1: and test pair 0: one has an output, the other not`,
	} {
		_, err := ParseArc("dir/bad.json", []byte(text))
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, "dir/bad.json", text)
		require.True(t, format.IsMalformed(err), text)
	}
}

// The rules of the generated tasks hold in every pair, and the colour that a recolour changes is in every grid.
func TestGeneratedArc(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 30).Draw(t, "n")
		list := GeneratedArc(rng.New(rapid.Uint64().Draw(t, "seed"), 1), n)
		require.Len(t, list, n)
		for i, task := range list {
			require.Equal(t, fmt.Sprintf("%s-%02d", []string{"copy", "flip", "recolour"}[i%3], i), task.Name)
			require.Len(t, task.Train, 8)
			require.Len(t, task.Test, 2)
			become := map[int]int{}
			for _, p := range append(task.Train, task.Test...) {
				in, out := p.Input, p.Output
				require.Equal(t, [2]int{in.H, in.W}, [2]int{out.H, out.W})
				require.True(t, 3 <= in.H && in.H <= 5 && 3 <= in.W && in.W <= 5)
				changed := false
				for at, v := range out.Cells {
					from := in.Cells[at]
					if i%3 == 1 {
						from = in.Cells[at/in.W*in.W+in.W-1-at%in.W]
					}
					if was, seen := become[from]; seen {
						require.Equal(t, was, v, "%s", task.Name)
					}
					become[from] = v
					changed = changed || from != v
				}
				require.Equal(t, i%3 == 2, changed, task.Name)
			}
			require.LessOrEqual(t, len(become), 4)
		}
	})
}

// Grids differ in their digest when they differ in a cell, in a size, or in their order.
func TestDigest(t *testing.T) {
	a, b := Grid{1, 2, []int{1, 2}}, Grid{2, 1, []int{1, 2}}
	seen := map[any]bool{}
	for _, list := range [][]Grid{{a}, {b}, {a, b}, {b, a}, {{1, 2, []int{2, 1}}}, {a, a}, nil} {
		require.False(t, seen[Digest(list...)], "%v", list)
		seen[Digest(list...)] = true
	}
	require.Equal(t, Digest(a), Digest(Grid{1, 2, []int{1, 2}}))
}

// Whatever a file holds, it is refused as malformed, or every grid has its cells in range; the cells are not more than its bytes.
func FuzzParseArc(f *testing.F) {
	for _, name := range []string{"0d3d703e", "67a3c6ac", "c9e6f938"} {
		text, err := os.ReadFile("testdata/arc/" + name + ".json")
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"a": {"train": [{"input": [[1]], "output": [[1, 2]]}], "test": [{"input": [[1]]}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseArc("f", text)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		cells := 0
		for _, task := range list {
			require.NotEmpty(t, task.Train)
			for i, p := range append(task.Train, task.Test...) {
				for _, g := range []Grid{p.Input, p.Output} {
					require.Equal(t, g.H*g.W, len(g.Cells))
					require.True(t, g.H <= ArcSide && g.W <= ArcSide)
					for _, v := range g.Cells {
						require.True(t, 0 <= v && v < ArcColors)
					}
					cells += len(g.Cells)
				}
				require.NotZero(t, p.Input.H)
				require.True(t, i >= len(task.Train) || p.Output.H > 0)
			}
		}
		require.LessOrEqual(t, cells, len(text))
	})
}
