package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/verify/check"
	"plumbline/verify/dump"
	"plumbline/verify/golden"
	"plumbline/verify/projection"
	"plumbline/verify/report"
)

// suites are the checks of every command.
func suites() []report.Group {
	return []report.Group{{Command: "dump", Checks: dump.Infos()}, {Command: "projection", Checks: projection.Suite.Infos()}, {Command: "golden", Checks: golden.Suite.Infos()}}
}

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "prints every check",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return report.List(cmd.OutOrStdout(), suites())
		},
	}
}

func newExplain() *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "prints the formula, the source, the faults and the fix of a check, or what a fault is",
		Example: `  verify explain basis/orthonormal
  verify explain H3a
  verify explain --schema > report.schema.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			w := cmd.OutOrStdout()
			if schema {
				_, err := w.Write(report.Schema)
				return err
			}
			if len(args) != 1 {
				return usageError{"explain takes the id of a check or a fault (verify list prints the checks)"}
			}
			var ids []string
			found := false
			for _, g := range suites() {
				for _, c := range g.Checks {
					ids = append(ids, c.Name)
					if c.Name == args[0] {
						return report.Explain(w, g.Command, c)
					}
					for _, f := range c.Faults {
						ids = append(ids, f.ID)
						if strings.EqualFold(f.ID, args[0]) {
							found = true
							report.ExplainFault(w, g.Command, c, f)
						}
					}
				}
			}
			if found {
				return nil
			}
			return usageError{fmt.Sprintf("no check or fault %q; did you mean %q?", args[0], check.Nearest(args[0], ids))}
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			for _, g := range suites() {
				ids = append(ids, names(g.Checks)...)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the reports")
	return cmd
}
