package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Masks over columns of the ids, without the length of the prompt: what a row ends with tells an EOS that is left out from a mask that is early.
func TestMasksOfTheIDsThatEndEarly(t *testing.T) {
	// Prompts of two tokens, EOS 2 among them; column s is token s+1.
	ids := [][]float64{{9, 2, 5, 6, 2, 0}, {9, 2, 7, 2, 0, 0}, {9, 2, 6, 6, 2, 0}, {9, 2, 8, 2, 0, 0}}
	cut := []float64{9, 2, 5, 6, 7, 8}
	tools := []float64{9, 2, 5, 2, 7, 7}
	rows := func(early, leave int, list ...[]float64) grid {
		g := newGrid(5, make([]int, len(list))...)
		g.Meta.Align, g.Files[0].PromptCols = dump.AlignShifted, 1
		var all, attended []float64
		for r, row := range list {
			n := 0
			for n < len(row) && row[n] != 0 {
				n++
			}
			for t, id := range row {
				all, attended = append(all, id), append(attended, b2f(id != 0))
				end := n - 1 - early
				if row[n-1] == 2 {
					end -= leave
				}
				if t >= 2-early && t <= end {
					g.Mask[r*5+t-1] = true
				}
			}
		}
		return g.row("input_ids", all...).row("attention_mask", attended...)
	}
	s := set(t, "").WithFact("eos_token_id", 2.0)
	fault := func(g grid) string {
		o := rules(t, "masks/position", g.Batch, s)
		if o.Verdict != check.Fail {
			return ""
		}
		return o.Rules.Violations[len(o.Rules.Violations)-1].Fault
	}
	with := append(ids[:4:4], cut)
	require.Empty(t, fault(rows(0, 0, with...)))
	require.Equal(t, "MASK-NO-EOS", fault(rows(0, 1, ids...)))
	require.Equal(t, "MASK-NO-EOS", fault(rows(0, 1, with...)))
	require.Equal(t, "MASK-SHIFT", fault(rows(1, 0, with...)))
	require.Empty(t, fault(rows(0, 1, ids[:2]...)), "two rows")
	turns := rows(0, 1, append(ids[:3:3], tools)...)
	turns.Mask[3*5+3], turns.Mask[3*5+4] = false, false
	require.Empty(t, fault(turns), "a row that goes on behind its mask")
	s = s.WithFact("stop_strings", []any{"x"})
	require.Empty(t, fault(rows(0, 1, ids...)), "EOS is put behind responses that another string ends")
}

// Of packed rows whose columns are those of the ids, the first token of a sequence is no target: the sequence before would predict it. Rows that are
// columns of responses, parts of two rows, and segments a column late are left alone.
func TestFirstOfPacked(t *testing.T) {
	const cols = 3
	batch := func(align dump.Align, row int, mask ...bool) *Case {
		return &Case{B: &dump.Batch{Rows: 2, Cols: cols, Mask: mask, Meta: dump.Meta{Align: align},
			Origin: []dump.Origin{{Row: 0, Col: 0, Cols: cols}, {Row: row, Col: cols, Cols: cols}}}}
	}
	for _, c := range []struct {
		what string
		c    *Case
		want int
	}{
		{"the first token counts", batch(dump.AlignShifted, 0, false, true, true, true, true, true), 1},
		{"the first token does not", batch(dump.AlignShifted, 0, false, true, true, false, true, true), 0},
		{"a column late", batch(dump.AlignShifted, 0, true, true, false, true, true, false), 0},
		{"columns of responses", batch(dump.AlignResponse, 0, true, true, true, true, true, true), 0},
		{"another row", batch(dump.AlignShifted, 1, true, true, true, true, true, true), 0},
	} {
		a := &Assertion{}
		c.c.firstOfPacked(a)
		require.Len(t, a.Violations, c.want, c.what)
		for _, v := range a.Violations {
			require.Equal(t, "MASK-PACKED-FIRST", v.Fault)
		}
	}
}
