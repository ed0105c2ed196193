package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"

	"plumbline/verify/check"
)

// Group is the checks of one command.
type Group struct {
	Command string
	Checks  []check.Info
}

// List prints every check with its title.
func List(w io.Writer, groups []Group) error {
	var rows [][]string
	for _, g := range groups {
		for _, c := range g.Checks {
			rows = append(rows, []string{g.Command, c.Name, c.Title(), fmt.Sprint(len(c.Faults))})
		}
	}
	return Table(w, []string{"command", "check", "what it demands", "faults"}, rows)
}

// newTable returns a table without borders; align is the alignment of its columns, left where it says nothing.
func newTable(w io.Writer, align []tw.Align) *tablewriter.Table {
	return tablewriter.NewTable(w,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Symbols:  tw.NewSymbols(tw.StyleLight),
			Settings: tw.Settings{Separators: tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off}},
		})),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAlignment(tw.AlignLeft),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAlignmentConfig(tw.CellAlignment{Global: tw.AlignLeft, PerColumn: align}),
	)
}

// Explain prints all that is known of a check.
func Explain(w io.Writer, command string, c check.Info) error {
	fmt.Fprintf(w, "%s  (verify %s)\n\n%s\n\nsource: %s\nfix:    %s\n", c.Name, command, c.Doc, c.Source, c.Fix)
	if len(c.Faults) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\nfaults it must catch (planted by the tests and by verify faults):\n\n")
	var rows [][]string
	for _, f := range c.Faults {
		rows = append(rows, []string{f.ID, f.Title, f.Cause, f.Source})
	}
	return Table(w, []string{"fault", "what it is", "typical cause", "source"}, rows)
}

// ExplainFault prints one fault and the check that ships it.
func ExplainFault(w io.Writer, command string, c check.Info, f check.FaultInfo) {
	fix := cmp.Or(f.Fix, c.Fix)
	fmt.Fprintf(w, "%s  %s\n\ncause:     %s\nsource:    %s\ncaught by: %s (verify %s)\nfix:       %s\n\n", f.ID, f.Title, f.Cause, f.Source, c.Name, command, fix)
}

// Kill is one planted fault and what the checks made of it.
type Kill struct {
	Check, Fault, Title string
	Caught              bool     // by the check that ships it, with the verdict it must give
	By                  []string // every check that did not pass
	Named               string   // first explanation of that check
}

// Matrix prints which faults were caught and how many of them were named first, and the false alarms on healthy data.
func Matrix(w io.Writer, kills []Kill, healthy, alarms int) error {
	var rows [][]string
	caught, named := 0, 0
	for _, k := range kills {
		mark := "MISSED"
		if k.Caught {
			mark, caught = "yes", caught+1
		}
		if k.Named == k.Fault {
			named++
		}
		rows = append(rows, []string{mark, k.Check, k.Fault, k.Title, k.Named, strings.Join(k.By, " ")})
	}
	if err := Table(w, []string{"caught", "check", "fault", "what was planted", "explained as", "seen by"}, rows); err != nil {
		return err
	}
	limit := ""
	if alarms == 0 && healthy > 0 {
		limit = fmt.Sprintf(" (with 95 %% confidence below %.2g %%)", 300/float64(healthy))
	}
	_, err := fmt.Fprintf(w, "\n%d of %d faults caught, %d named first. False alarms: %d of %d healthy inputs%s.\n", caught, len(kills), named, alarms, healthy, limit)
	return err
}

// Table prints rows under a header, in the width of a [Wrapper].
func Table(w io.Writer, header []string, rows [][]string) error {
	return alignedTable(w, header, nil, rows)
}

func alignedTable(w io.Writer, header []string, align []tw.Align, rows [][]string) error {
	t := newTable(w, align)
	t.Header(anys(header)...)
	for _, r := range fit(header, rows, columnsOf(w)) {
		if err := t.Append(anys(r)...); err != nil {
			return err
		}
	}
	return t.Render()
}

func anys(x []string) []any {
	y := make([]any, len(x))
	for i := range x {
		y[i] = x[i]
	}
	return y
}
