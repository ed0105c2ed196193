package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/report"
	"plumbline/verify/stage"
)

func newExplain() *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "prints the formula, the source, the faults and the fix of a check, or what a fault is",
		Long: `verify explain takes the id of a check (advantage/group), of a fault (AGG-GA-MISSING, H3a), or a row of the fault catalogue
(P012), which lists the faults that stand for it. verify explain dump prints the format of a dump.`,
		Example: `  verify explain basis/orthonormal
  verify explain advantage/group
  verify explain AGG-GA-MISSING
  verify explain P012
  verify explain dump
  verify explain --schema > report.schema.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			w := cmd.OutOrStdout()
			if schema {
				_, err := w.Write(report.Schema)
				return err
			}
			if len(args) != 1 {
				return usageError{"explain takes the id of a check or a fault, or a row of the catalogue (verify list prints the checks)"}
			}
			if args[0] == "dump" {
				_, err := io.WriteString(w, dump.Description())
				return err
			}
			return explain(w, args[0])
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return explainable(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the reports")
	return cmd
}

// explain prints a check, or the faults of that id or row.
func explain(w io.Writer, id string) error {
	found := false
	for _, g := range suites() {
		for _, c := range g.Checks {
			if c.Name == id {
				return report.Explain(w, g.Command, c)
			}
			for _, f := range c.Faults {
				if g.Command != "dump" && (strings.EqualFold(f.ID, id) || slices.ContainsFunc(rowsOf(f.Source), func(row string) bool { return strings.EqualFold(row, id) })) {
					found = true
					report.ExplainFault(w, g.Command, c, f)
				}
			}
		}
	}
	for _, b := range bugs() {
		if strings.EqualFold(b.id, id) || slices.ContainsFunc(b.rows, func(row string) bool { return strings.EqualFold(row, id) }) {
			found = true
			b.print(w)
		}
	}
	if found {
		return nil
	}
	nearest := check.Nearest(id, explainable())
	if catalogueRow.MatchString(id) { // every row is near to another
		return usageError{fmt.Sprintf("no fault stands for row %s of the catalogue; did you mean %q?", id, nearest)}
	}
	if check.Similar(id, explainable()) == "" {
		return usageError{fmt.Sprintf("no check or fault %.64q (verify list prints the checks, verify faults the faults)", id)}
	}
	return usageError{fmt.Sprintf("no check or fault %.64q; did you mean %q?", id, nearest)}
}

// catalogueRow is the form of the rows of the fault catalogue.
var catalogueRow = regexp.MustCompile(`^(?i:[PHCV])[0-9]+[a-z]?$`)

// rowsOf returns the rows of the fault catalogue that a fault's source names.
func rowsOf(source string) []string {
	return slices.DeleteFunc(strings.FieldsFunc(source, func(r rune) bool { return strings.ContainsRune(" ,;", r) }), func(w string) bool { return !sourceRow.MatchString(w) })
}

var sourceRow = regexp.MustCompile(`^[ABCDHP][0-9]+[a-z]?$`)

// explainable returns everything that explain takes.
func explainable() []string {
	var ids []string
	for _, g := range suites() {
		for _, c := range g.Checks {
			ids = append(ids, c.Name)
			for _, f := range c.Faults {
				ids = append(append(ids, f.ID), rowsOf(f.Source)...)
			}
		}
	}
	for _, b := range bugs() {
		ids = append(append(ids, b.id), b.rows...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// bug is a fault of training code: a hypothesis, a legal option where another one is due, or both.
type bug struct {
	id, title, cause, fix string
	rows                  []string
	checks                []string // that look for it
	options               []string // whose other values are this bug
}

// bugs returns the faults that dumps are searched for, in the order of the pipeline.
func bugs() []*bug {
	var list []*bug
	get := func(id, title string) *bug {
		if i := slices.IndexFunc(list, func(b *bug) bool { return b.id == id }); i >= 0 {
			return list[i]
		}
		list = append(list, &bug{id: id, title: title})
		return list[len(list)-1]
	}
	for _, h := range append(slices.Clone(fault.All()), fault.Find("FACTOR")) {
		b := get(h.ID, h.Title)
		b.cause, b.fix, b.rows, b.checks = h.Cause, h.Fix, slices.Clone(h.Rows), h.Checks
	}
	for _, o := range convention.Options() {
		for _, c := range changes(o) {
			n, ok := fault.OfChange(c)
			if !ok {
				continue
			}
			b := get(n.ID, n.Title)
			for _, row := range n.Rows {
				if !slices.Contains(b.rows, row) {
					b.rows = append(b.rows, row)
				}
			}
			if !slices.Contains(b.options, o.Name) {
				b.options = append(b.options, o.Name)
			}
		}
	}
	return list
}

// changes returns the changes from one value of an option to another, one of unknown values where they are not few.
func changes(o *convention.Option) []stage.Change {
	var values []convention.Value
	for _, text := range append(slices.Clone(o.Values), "true", "false") {
		if v, err := o.Parse(text); err == nil {
			values = append(values, v)
		}
	}
	list := []stage.Change{{Option: o.Name}}
	for _, from := range values {
		for _, to := range values {
			if from != to {
				list = append(list, stage.Change{Option: o.Name, From: from, To: to})
			}
		}
	}
	return list
}

func (b *bug) print(w io.Writer) {
	fmt.Fprintf(w, "%s  %s\n\n", b.id, b.title)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%-12s %s\n", name+":", text)
		}
	}
	line("cause", b.cause)
	line("catalogue", strings.Join(b.rows, ", "))
	line("options", strings.Join(b.options, ", "))
	line("looked for", strings.Join(b.checks, ", "))
	line("fix", b.fix)
	if b.fix == "" && len(b.options) > 0 {
		line("fix", "compute with the declared value, or declare the other one with --set")
	}
	fmt.Fprintln(w)
}
