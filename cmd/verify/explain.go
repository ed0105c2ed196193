package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/report"
	"plumbline/verify/stage"
	"plumbline/verify/symptom"
)

func newExplain() *cobra.Command {
	var schema, all bool
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "prints the formula, the source, the faults and the fix of a check, or what a fault is",
		Long: `verify explain takes the id of a check (advantage/group), of a fault (AGG-GA-MISSING, H3a), or a code that they cite (P012, V19), with
the faults that stand for it; the name of an option (clip.low), with its values, what each profile has, and the faults that other values
are; a framework's own name of one (loss_agg_mode); the name of a fact of a run, of a key or of a tensor of a dump (loss_denominator,
dlogp_scale, is_weights); the name of a metric of a log (approx_kl). verify explain dump prints the format of a dump, verify explain options all options with the values that they may have.`,
		Example: `  verify explain basis/orthonormal
  verify explain advantage/group
  verify explain AGG-GA-MISSING
  verify explain P012
  verify explain clip.low
  verify explain loss_agg_mode
  verify explain loss_denominator
  verify explain dump
  verify explain options
  verify explain --schema > report.schema.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema {
				_, err := cmd.OutOrStdout().Write(report.Schema)
				return err
			}
			if all {
				if len(args) > 0 {
					return usageError{"--bugs prints all bugs and takes no id"}
				}
				return printBugs(cmd.OutOrStdout())
			}
			w := cli.Screen(cmd)
			defer w.Close()
			if len(args) != 1 {
				return usageError{"explain takes the id of a check or a fault, an option, a metric, or a row of the catalogue (verify list prints the checks)"}
			}
			if args[0] == "dump" {
				_, err := io.WriteString(w, dump.Description())
				return err
			}
			if args[0] == "options" {
				printOptions(w)
				return nil
			}
			return explain(w, args[0])
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return explainable(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the reports")
	cmd.Flags().BoolVar(&all, "bugs", false, "print the page of all bugs (docs/bugs.md), in Markdown")
	return cmd
}

// explain prints a check, or the faults of that id or row.
func explain(w io.Writer, id string) error {
	found := false
	if c := bug.FindCode(id); c != nil {
		found = true
		printCode(w, c)
	}
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
	if o, err := convention.Find(id); err == nil {
		found = true
		printOption(w, o)
	}
	if printInput(w, id) {
		found = true
	}
	if printNative(w, id) {
		found = true
	}
	for _, m := range symptom.Meanings(id) {
		found = true
		printMeaning(w, m)
	}
	if len(symptom.Meanings(id)) > 0 {
		fmt.Fprintln(w)
	}
	for _, s := range bug.Symptoms() {
		if strings.EqualFold(s.ID, id) || slices.ContainsFunc(s.Rows, func(row string) bool { return strings.EqualFold(row, id) }) {
			found = true
			printSymptom(w, s)
		}
	}
	for _, b := range bugs() {
		if strings.EqualFold(b.ID, id) || slices.ContainsFunc(b.Rows, func(row string) bool { return strings.EqualFold(row, id) }) {
			found = true
			b.print(w)
		}
	}
	if found {
		return nil
	}
	nearest := check.Nearest(id, explainable())
	if catalogueRow.MatchString(id) { // every code is near to another
		return usageError{fmt.Sprintf("no code %s; did you mean %q?", id, nearest)}
	}
	if check.Similar(id, explainable()) == "" {
		return usageError{fmt.Sprintf("no check, fault, option or metric %.64q (verify list prints the checks, verify faults the faults)", id)}
	}
	return usageError{fmt.Sprintf("no check, fault, option or metric %.64q; did you mean %q?", id, nearest)}
}

// catalogueRow is the form of the codes.
var catalogueRow = regexp.MustCompile(`^(?i:[ABCDHPV])[0-9]+[a-z]?$`)

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
		ids = append(ids, b.ID)
	}
	for _, c := range bug.Codes() {
		ids = append(ids, c.ID)
	}
	for _, s := range bug.Symptoms() {
		ids = append(ids, s.ID)
	}
	for _, o := range convention.Options() {
		ids = append(ids, o.Name)
	}
	ids = append(append(ids, inputs()...), "options")
	slices.Sort(ids)
	return slices.Compact(ids)
}

// seen is a bug of training code, with the checks that look for it and the options whose other values are this bug.
type seen struct {
	*bug.Bug
	checks, options []string
}

// bugs returns the bugs that dumps are searched for.
func bugs() []*seen {
	var list []*seen
	at := map[string]*seen{}
	for _, b := range bug.All() {
		at[b.ID] = &seen{Bug: b}
		list = append(list, at[b.ID])
	}
	add := func(list *[]string, more ...string) {
		for _, x := range more {
			if !slices.Contains(*list, x) {
				*list = append(*list, x)
			}
		}
	}
	for _, h := range fault.All() {
		add(&at[h.ID].checks, h.Checks...)
	}
	for _, o := range convention.Options() {
		for _, c := range changes(o) {
			if n, ok := fault.OfChange(c); ok {
				add(&at[n.ID].options, o.Name)
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

func (b *seen) print(w io.Writer) {
	fmt.Fprintf(w, "%s  %s\n\n", b.ID, b.Title)
	line := fields(w)
	line("cause", b.Cause)
	line("effect", b.Effect)
	line("before", b.Before)
	line("after", b.After)
	line("fix", b.Fix)
	line("options", strings.Join(b.options, ", "))
	line("looked for", strings.Join(b.checks, ", "))
	line("shows", b.Shows)
	for i, row := range b.Rows {
		c := bug.FindCode(row)
		line([]string{"seen as", ""}[min(i, 1)], strings.Join(append([]string{row + ", " + c.Text}, c.Links()...), "  "))
	}
	fmt.Fprintln(w)
}

// fields returns a function that prints a text under its name, and a further one without a name.
func fields(w io.Writer) func(name, text string) {
	return func(name, text string) {
		if name != "" {
			name += ":"
		}
		if text != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, text)
		}
	}
}

// printOption prints what an option decides, which profiles have which of its values, and which bugs other values are.
func printOption(w io.Writer, o *convention.Option) {
	fmt.Fprintf(w, "%s  %s\n\n", o.Name, o.Doc)
	line := fields(w)
	line("values", o.Legal())
	line("source", o.Source)
	var stages []string
	for _, s := range o.Stages {
		stages = append(stages, string(s))
	}
	line("read by", strings.Join(stages, ", "))
	var order []string
	profiles := map[string][]string{}
	for _, p := range convention.AllProfiles() {
		for _, s := range p.Settings() {
			if s.Option.Name != o.Name || s.Value.Kind() == convention.NotApplicable {
				continue
			}
			value := s.String()
			if profiles[value] == nil {
				order = append(order, value)
			}
			profiles[value] = append(profiles[value], p.Name)
		}
	}
	for i, value := range order {
		line([]string{"profiles", ""}[min(i, 1)], value+": "+strings.Join(profiles[value], ", "))
	}
	var ids []string
	for _, b := range bugs() {
		if slices.Contains(b.options, o.Name) {
			ids = append(ids, b.ID)
		}
	}
	line("bugs", strings.Join(ids, ", "))
	line("declare", fmt.Sprintf("verify dump RUN --set %s=VALUE, or among the options of the dump", o.Name))
	fmt.Fprintln(w)
}

// printCode prints what a code stands for.
func printCode(w io.Writer, c *bug.Code) {
	fmt.Fprintf(w, "%s  %s\n", c.ID, c.Text)
	for _, l := range c.Links() {
		fmt.Fprintf(w, "     %s\n", l)
	}
	if len(c.Links()) == 0 && len(c.Upstream) > 0 {
		fmt.Fprintf(w, "     %s\n", strings.Join(c.Upstream, ", "))
	}
	fmt.Fprintln(w)
}

// printSymptom prints what a log shows of a bug.
func printSymptom(w io.Writer, s *bug.Symptom) {
	fmt.Fprintf(w, "%s  in a log: %s\n\n", s.ID, s.Title)
	line := fields(w)
	line("cause", s.Cause)
	line("better", s.Better)
	line("fix", s.Fix)
	line("dump", s.Dump)
	line("explains", strings.Join(s.Explains, ", "))
	for i, row := range s.Rows {
		line([]string{"seen as", ""}[min(i, 1)], row+", "+bug.FindCode(row).Text)
	}
	fmt.Fprintln(w)
}

// printMeaning prints what a program means by the name of a metric.
func printMeaning(w io.Writer, m symptom.Name) {
	program := cmp.Or(m.Program, "any other")
	text := "not judged"
	if q := symptom.Find(m.Quantity); q != nil {
		text = q.Formula
		for _, more := range []string{q.Mask, q.Reduction, q.Sign} {
			if more != "" {
				text += "; " + more
			}
		}
	}
	if m.Trap != "" {
		text += ". " + m.Trap
	}
	fmt.Fprintf(w, "%-10s %s: %s\n", program, m.Name, text)
}
