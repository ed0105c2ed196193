package report

import "io"

// Rows prints a table of plain texts. Every row has as many cells as the header.
func Rows(w io.Writer, header []string, rows [][]string) error {
	t := newTable(w, nil)
	t.Header(header)
	for _, row := range rows {
		if err := t.Append(row); err != nil {
			return err
		}
	}
	return t.Render()
}
