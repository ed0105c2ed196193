package fault

import "slices"

// Changes of a row of a mask, which bugs of all its uses share.

func withoutLast(row []bool) {
	if _, last := firstLast(row); last >= 0 {
		row[last] = false
	}
}

func withoutFirst(row []bool) {
	if first, _ := firstLast(row); first >= 0 {
		row[first] = false
	}
}

func oneMore(row []bool) {
	if _, last := firstLast(row); last >= 0 && last+1 < len(row) {
		row[last+1] = true
	}
}

func early(row []bool) { copy(row, row[1:]); row[len(row)-1] = false }

func late(row []bool) { copy(row[1:], slices.Clone(row)); row[0] = false }

func everyCell(row []bool) {
	for i := range row {
		row[i] = true
	}
}

// withHoles fills what lies between the first and the last cell of a row, as the tokens of tools.
func withHoles(row []bool) {
	if first, last := firstLast(row); first >= 0 {
		everyCell(row[first : last+1])
	}
}
