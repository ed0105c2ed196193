package report

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"
)

// Wrapper breaks lines at spaces so that they fit a terminal. Further lines of one are indented as its text is: after the first gap of
// two or more spaces, if that is in the left half, or as the line, an item of a list two columns more. Tables that are written to it take its width.
type Wrapper struct {
	w     io.Writer
	width int
	rest  []byte // of a line that has not ended
}

// NewWrapper returns a writer that breaks lines at width; 0 leaves them as they are.
func NewWrapper(w io.Writer, width int) *Wrapper {
	if width > 0 {
		width = max(width, leastWidth)
	}
	return &Wrapper{w: w, width: width}
}

// Columns is the width, 0 for any.
func (x *Wrapper) Columns() int { return x.width }

// Write takes all of p; an error is that of the writer underneath.
func (x *Wrapper) Write(p []byte) (int, error) {
	if x.width == 0 {
		return x.w.Write(p)
	}
	x.rest = append(x.rest, p...)
	end := bytes.LastIndexByte(x.rest, '\n')
	if end < 0 {
		return len(p), nil
	}
	whole := string(x.rest[:end])
	x.rest = append(x.rest[:0], x.rest[end+1:]...)
	for _, line := range strings.Split(whole, "\n") {
		if _, err := io.WriteString(x.w, strings.Join(broken(line, x.width), "\n")+"\n"); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Close writes a last line that has no end.
func (x *Wrapper) Close() error {
	if len(x.rest) == 0 {
		return nil
	}
	_, err := io.WriteString(x.w, strings.Join(broken(string(x.rest), x.width), "\n"))
	x.rest = nil
	return err
}

// broken returns the lines of a line.
func broken(line string, width int) []string {
	if visible(line) <= width {
		return []string{line}
	}
	text := strings.TrimLeft(line, " ")
	indent := len(line) - len(text)
	hang := indent
	if strings.HasPrefix(text, "- ") {
		hang += 2
	}
	if gap := strings.Index(text, "  "); gap > 0 {
		after := strings.TrimLeft(text[gap:], " ")
		if at := visible(line) - visible(after); after != "" && at <= width/2 {
			hang = at
		}
	}
	if indent > width/2 {
		indent, hang = 0, 0
	}
	var lines []string
	room, head := width-indent, strings.Repeat(" ", indent)
	for text != "" {
		var first string
		if first, text = cut(text, room); first == "" {
			break
		}
		lines = append(lines, head+first)
		room, head = width-hang, strings.Repeat(" ", hang)
	}
	return lines
}

// cut returns what of a text fits into a number of columns, broken at the last space, and the rest; a longer word is broken.
func cut(text string, room int) (first, rest string) {
	columns, space := 0, -1
	for i := 0; i < len(text); {
		if n := escape(text[i:]); n > 0 {
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == ' ' {
			space = i
		}
		if columns++; columns > room {
			if space <= 0 || strings.TrimSpace(text[:space]) == "" {
				return text[:i], text[i:]
			}
			return strings.TrimRight(text[:space], " "), strings.TrimLeft(text[space:], " ")
		}
		i += n
	}
	return text, ""
}

// visible is the number of columns of a line, without its colours.
func visible(line string) int {
	columns := 0
	for i := 0; i < len(line); {
		if n := escape(line[i:]); n > 0 {
			i += n
			continue
		}
		_, n := utf8.DecodeRuneInString(line[i:])
		columns++
		i += n
	}
	return columns
}

// escape is the length of a colour at the start of a text, 0 if there is none.
func escape(text string) int {
	if !strings.HasPrefix(text, "\x1b[") {
		return 0
	}
	for i := 2; i < len(text); i++ {
		if c := text[i]; c >= '@' && c <= '~' {
			return i + 1
		} else if c != ';' && (c < '0' || c > '9') {
			return 0
		}
	}
	return 0
}

// fit breaks the cells of a table so that its rows have at most width columns: the widest columns give way, none below least.
func fit(header []string, rows [][]string, width int) [][]string {
	const least, margin = 12, 2 // margin: a space on either side of a cell
	if width == 0 || len(header) == 0 {
		return rows
	}
	size := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			if i < len(size) {
				size[i] = max(size[i], visible(cell))
			}
		}
	}
	total := margin * len(size)
	for _, s := range size {
		total += s
	}
	for ; total > width; total-- {
		widest := 0
		for i, s := range size {
			if s > size[widest] {
				widest = i
			}
		}
		if size[widest] <= max(least, visible(header[widest])) {
			break
		}
		size[widest]--
	}
	fitted := make([][]string, len(rows))
	for r, row := range rows {
		fitted[r] = make([]string, len(row))
		for i, cell := range row {
			fitted[r][i] = cell
			if i < len(size) && visible(cell) > size[i] {
				var lines []string
				for first, rest := "", cell; rest != ""; {
					if first, rest = cut(rest, size[i]); first == "" {
						break
					}
					lines = append(lines, first)
				}
				fitted[r][i] = strings.Join(lines, "\n")
			}
		}
	}
	return fitted
}

// columnsOf is the width that a writer breaks at, 0 if it does not.
func columnsOf(w io.Writer) int {
	if x, ok := w.(interface{ Columns() int }); ok {
		return x.Columns()
	}
	return 0
}
