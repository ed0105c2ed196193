package dump

import (
	"fmt"
	"math"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// perFile reports whether an output is one number for each file.
func perFile(output string) bool {
	return strings.HasPrefix(output, "scalars/") || strings.HasSuffix(output, "loss") && output != "token_loss"
}

// place names the element of an output: file, row and column there, token id.
func place(o *stage.Outcome, i int, redact bool) string {
	b := o.Case.B
	n := 0
	if o.Got != nil {
		n = len(o.Got)
	} else if t := b.Tensors[o.Check.Output]; t != nil {
		n = len(t.Data)
	}
	switch {
	case n == b.Rows*b.Cols && b.Cols > 0 && !perFile(o.Check.Output) || n == 0 && b.Cols > 0: // of a passed one only the number is gone
		return cell(b, i/b.Cols, i%b.Cols, redact)
	case n == len(b.Files) && i < len(b.Files) && (n != b.Rows || perFile(o.Check.Output)):
		return b.Files[i].Name
	case i < b.Rows:
		return cell(b, i, -1, redact)
	}
	return fmt.Sprintf("step %d", b.Meta.Step)
}

func cell(b *dump.Batch, row, col int, redact bool) string {
	if row < 0 || row >= len(b.Origin) {
		return fmt.Sprintf("step %d", b.Meta.Step)
	}
	org := b.Origin[row]
	text := fmt.Sprintf("%s [row %d", b.Files[org.File].Name, org.Row)
	if col >= 0 {
		text += fmt.Sprintf(", token %d", org.Col+col)
		if id, ok := b.TokenID(row, col); ok && !redact {
			text += fmt.Sprintf(", id %d", id)
		}
	}
	return text + "]"
}

// pattern describes where the cells are that are wrong, which often says enough.
func pattern(o *stage.Outcome) string {
	b, p := o.Case.B, o.Pred
	if n := len(b.Files); p != nil && n > 1 && len(o.Got) == n && perFile(o.Check.Output) && !strings.HasPrefix(o.Check.Output, "scalars/") {
		var bad []string
		for i, f := range b.Files {
			if !(math.Abs(o.Got[i]-p.Want[i]) <= 4*(p.Bound[i]+1e-7*math.Abs(p.Want[i]))) {
				bad = append(bad, fmt.Sprintf("rank %d, micro-batch %d (× %.4g)", f.Rank, f.MicroBatch, o.Got[i]/p.Want[i]))
			}
		}
		if len(bad) > 0 && len(bad) <= max(1, n/2) && len(bad) < n {
			return "only these are wrong: " + strings.Join(bad[:min(3, len(bad))], ", ")
		}
		return ""
	}
	if p == nil || len(o.Got) != b.Rows*b.Cols || b.Cols < 2 {
		return ""
	}
	badRows, badLast, badFirst, bad := map[int]bool{}, 0, 0, 0
	for r := range b.Rows {
		first, last := -1, -1
		for t := range b.Cols {
			if b.Mask[r*b.Cols+t] {
				if first < 0 {
					first = t
				}
				last = t
			}
		}
		for t := range b.Cols {
			i := r*b.Cols + t
			if !b.Mask[i] || math.Abs(o.Got[i]-p.Want[i]) <= 4*(p.Bound[i]+1e-7*math.Abs(p.Want[i])) {
				continue
			}
			bad++
			badRows[r] = true
			if t == last {
				badLast++
			}
			if t == first {
				badFirst++
			}
		}
	}
	switch {
	case bad == 0:
		return ""
	case bad == badLast:
		return "only last tokens of responses are wrong: look at the mask's end and at EOS"
	case bad == badFirst:
		return "only first tokens of responses are wrong: look at the boundary between prompt and response"
	case len(badRows) == 1 && b.Rows > 2:
		for r := range badRows {
			return fmt.Sprintf("only row %d is wrong", r)
		}
	case len(badRows) <= b.Rows/4:
		return fmt.Sprintf("%d of %d rows are wrong", len(badRows), b.Rows)
	}
	return ""
}
